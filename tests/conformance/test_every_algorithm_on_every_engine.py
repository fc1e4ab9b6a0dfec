"""Every registered algorithm × collective × engine × type × ragged size × slots × placement equals the oracle.

New rows of any registry are tested automatically. The only accepted refusal is an UnsupportedError with a reason.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from typing import Any

import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines.host_plan import INLINE
from blinkccl.errors import UnsupportedError
from blinkccl.runtime import ucx
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest.model import Forest
from support import generated, local_host
from support.between_hosts import EVERY_RANK_APART
from support.engines import ENGINES, Array, RunProgram
from support.examples import ALL_TESTS
from support.execution import difference, ragged_counts
from support.planned import asked

#: Machines: no ring, a switch, two sockets, a ring, full mesh, no symmetry, two servers, GPUs between the ranks.
JOBS: dict[str, str | None] = {
    "dgx-1v": "1,4,5,6",
    "dgx-a100": "0,3,5,6",
    "mist": None,
    "ring:5": None,
    "clique:4": None,
    "random:5:seed=3": None,
    "2x dgx-1v @ 40Gbps": "0,1,2+1,2",
    "chain:7": "0,3,6",
}
#: Machines that together have plans of all algorithms and collectives.
FEW = ("dgx-a100", "2x dgx-1v @ 40Gbps")
#: Machines whose GPUs outside the job forward data, as relays.
RELAYED = ("chain:7",)
CHUNK_BYTES = 64


def run_small(
    program: Program, inputs: Sequence[Array | None], call: CollectiveCall, **arguments: Any
) -> list[Array | None]:
    """The host engine with inline flags, if the messages are small enough."""
    channels = tuple(replace(channel, protocol=INLINE) for channel in program.channels)
    try:
        return local_host.run(replace(program, channels=channels), inputs, call, **arguments)
    except UnsupportedError as refusal:
        if "too many for protocol" not in refusal.reason or call.elements < 10_000:
            raise
        return local_host.run(program, inputs, call, **arguments)


#: Ways to run a Program on this machine: all engines, and options of some engines.
RUNS: dict[str, RunProgram] = {name: engine.run for name, engine in ENGINES.items() if engine.missing is None}
if "host" in RUNS:
    RUNS["host, shared tensors"] = partial(local_host.run, options=local_host.HostOptions(shared=True))
    RUNS["host, cross memory"] = partial(local_host.run, options=local_host.HostOptions(cross_memory=True))
    RUNS["host, small messages"] = run_small
    with suppress(UnsupportedError):
        ucx.find()
        RUNS["host, between hosts"] = EVERY_RANK_APART
if "generated" in RUNS:
    RUNS["generated, LL"] = partial(generated.run, options=generated.GeneratedOptions("ll", 1))
    RUNS["generated, LL128"] = partial(generated.run, options=generated.GeneratedOptions("ll128", 3))


#: Every type with every operation that it has; neighbours differ in both.
SERVED = sorted(
    ((dtype, op) for dtype, row in DTYPES.items() for op, chosen in OPS.items() if row.serves(chosen)),
    key=lambda pair: ((list(DTYPES).index(pair[0]) + list(OPS).index(pair[1])) % len(DTYPES), pair),
)


def planned(spec: str, algorithm: str, name: str) -> Forest:
    return ALGORITHMS[algorithm].plan(asked(spec, name, JOBS[spec], root=2, relays=spec in RELAYED))


@cache
def plan_or_reason(spec: str, algorithm: str, name: str) -> Forest | str:
    try:
        return planned(spec, algorithm, name)
    except UnsupportedError as refusal:
        return refusal.reason


@cache
def compiled(spec: str) -> None:
    """Compile the code of all programs on a machine in one file, because a compiler takes longest to start."""
    if "generated" in RUNS and (spec in FEW or ALL_TESTS):
        forests = [plan_or_reason(spec, algorithm, name) for algorithm in ALGORITHMS for name in COLLECTIVES]
        programs = [lower(forest) for forest in forests if not isinstance(forest, str)]
        generated.prepare(program for program in programs if runs("generated", program))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("spec", JOBS)
def test_equals_the_oracle(spec: str, algorithm: str, name: str) -> None:
    compiled(spec)
    forest = plan_or_reason(spec, algorithm, name)
    if isinstance(forest, str):
        assert len(forest.split()) >= 4, f"{algorithm} refuses {name} on {spec} without a reason: {forest!r}"
        return
    pairs = cycle(SERVED)
    for slots in (1, 2):
        program = lower(forest, slots)
        assert violations(program, forest.topology) == []
        for engine, count, in_place in cases(spec, program, slots):
            dtype, op = next(pairs)
            error = difference(
                RUNS[engine],
                program,
                count=count,
                dtype=dtype,
                op=op,
                chunk_bytes=CHUNK_BYTES,
                in_place=in_place,
            )
            assert error is None, f"{engine}, slots {slots}, {count} × {dtype}, {op}, in place {in_place}: {error}"


#: Engines that run on few machines: generated code needs a compiler and a thread per block, and the others are options
#: of an engine that runs everywhere.
ON_FEW = {name for name in RUNS if name.startswith(("generated", "host, "))}


def cases(spec: str, program: Program, slots: int) -> list[tuple[str, int, bool]]:
    """All cases (engine, count, in place). ``make test`` runs half of the counts with 1 slot, the others with 2.

    Each of these has one placement. The halves and placements differ by engine and by plan.
    """
    places = (False,) if program.collective.name == "alltoall" else (False, True)
    counts = ragged_counts(program, CHUNK_BYTES // 4)
    plan = len(program.roles)
    return [
        (engine, count, in_place)
        for number, engine in enumerate(RUNS)
        if (spec in FEW or engine not in ON_FEW or spec in RELAYED or ALL_TESTS) and runs(engine, program)
        for index, count in enumerate(counts)
        if (number + index + slots + plan) % 2 == 0 or ALL_TESTS
        for in_place in (places if ALL_TESTS else [places[(index // 2 + slots + plan // 2) % len(places)]])
    ]


def runs(engine: str, program: Program) -> bool:
    """True if the engine can run the program: its relays, and messages staged outside the memory of their ends."""
    pushed = all(queue.home == queue.path[-1] for queue in program.queues)
    return engine.startswith(("reference", "host")) or (not program.relays and pushed)


def test_some_plans_have_relays_and_some_have_staged_queues() -> None:
    forests = [plan_or_reason(spec, "optimal", "broadcast") for spec in RELAYED]
    assert all(not isinstance(forest, str) and lower(forest).relays for forest in forests)
    hybrid = plan_or_reason("dgx-1v", "hybrid", "allreduce")
    assert not isinstance(hybrid, str)
    assert any(queue.is_staged for queue in lower(hybrid).queues)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("spec", JOBS)
def test_the_optimum_serves_everything(spec: str, name: str) -> None:
    assert not isinstance(plan_or_reason(spec, "optimal", name), str)


def test_few_machines_have_all_plans() -> None:
    assert {plan for spec in FEW for plan in plans_on(spec)} == {plan for spec in JOBS for plan in plans_on(spec)}


def plans_on(spec: str) -> list[tuple[str, str]]:
    pairs = [(algorithm, name) for algorithm in ALGORITHMS for name in COLLECTIVES]
    return [pair for pair in pairs if not isinstance(plan_or_reason(spec, *pair), str)]


@pytest.mark.parametrize("engine", RUNS)
def test_every_type_and_operation_on_every_engine(engine: str) -> None:
    """Every type runs with every operation that it has, each pair on one of three collectives."""
    programs = []
    for name in ("allreduce", "reduce_scatter", "reduce"):
        forest = plan_or_reason("ring:5", "optimal", name)
        assert not isinstance(forest, str)
        programs.append(lower(forest))
    for program, (dtype, op) in zip(cycle(programs), SERVED, strict=False):
        error = difference(RUNS[engine], program, count=157, dtype=dtype, op=op, chunk_bytes=48, in_place=True)
        assert error is None, (dtype, op, error)


def test_alltoall_in_place_is_refused_with_the_reason() -> None:
    program = lower(planned("ring:5", "optimal", "alltoall"))
    for run in RUNS.values():
        with pytest.raises(UnsupportedError, match="out of place only"):
            difference(run, program, count=10, in_place=True)
