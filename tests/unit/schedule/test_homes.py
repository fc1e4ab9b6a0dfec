"""Homes of messages: pushed, pulled, staged, and relayed behind more than one memory."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.run import simulate
from blinkccl.engines import reference
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program, Queue
from blinkccl.schedule.text import from_json, to_json, to_text
from blinkccl.schedule.verifier import violations
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.forest.model import Forest
from support import generated, local_host
from support.engines import ENGINES
from support.planned import asked


def line(*kinds: str, link: str = "nvlink", gb_per_s: int = 10) -> Topology:
    """A chain of vertices of these kinds."""
    box = Assembly("line", "declared")
    for a, b in pairwise([box.add(kind) for kind in kinds]):
        box.join(a, b, gb_per_s, link)
    return box.finish()


def relayed(between: int) -> Forest:
    """A send from the first GPU of a line to the last, through ``between`` others."""
    topology = line(*["gpu"] * (between + 2))
    return algorithm("optimal").plan(asked(topology, "sendrecv", (0, between + 1), relays=True))


def queues(program: Program) -> list[tuple[tuple[int, ...], int]]:
    return [(queue.path, queue.home) for queue in program.queues]


@pytest.mark.parametrize(
    ("between", "expected", "relays"),
    [
        (0, [((0, 1), 1)], ()),
        (1, [((0, 1, 2), 1)], ()),
        (2, [((0, 1, 2), 1), ((2, 3), 3)], (2,)),
        (3, [((0, 1, 2), 1), ((2, 3, 4), 3)], (2,)),
        (4, [((0, 1, 2), 1), ((2, 3, 4), 3), ((4, 5), 5)], (2, 4)),
    ],
)
def test_every_other_memory_is_a_relay_and_those_before_hold_the_messages(between, expected, relays) -> None:
    forest = relayed(between)
    program = lower(forest)
    assert (queues(program), program.relays) == (expected, relays)
    assert violations(program, forest.topology) == []
    assert sorted((role.offset, role.rank) for role in program.roles)[1:-1] == [
        (place + 1, 2 + place) for place in range(len(relays))
    ]


@pytest.mark.parametrize(
    ("spec", "gpus", "path", "home"),
    [
        (
            "mist",
            (0, 2),
            (0, 4, 5, 2),
            5,
        ),  # the last processor's memory, written by the sender and read by the receiver
        ("dgx-2", (0, 1), (0, 16, 1), 1),
        ("pcie-8gpu", (0, 4), None, None),  # root complexes forward: pushed to the receiver
    ],
)
def test_a_processor_stores_data_from_nvlink_and_forwards_data_from_pcie(spec, gpus, path, home) -> None:
    forest = algorithm("optimal").plan(asked(spec, "broadcast", gpus))
    program = lower(forest)
    assert violations(program, forest.topology) == []
    assert not program.relays
    for queue in program.queues:
        assert queue.home == (queue.path[-1] if home is None else home)
        assert path is None or queue.path == path


def test_text_and_json_state_the_homes_of_messages() -> None:
    program = lower(relayed(2))
    assert "program sendrecv src 0 dst 1 ranks 0,3 relays 2 rate 1\n" in to_text(program)
    assert "\nqueue 0 rank 0 to 2 path 0,1,2 home 1\nqueue 1 rank 2 to 1 path 2,3\n" in to_text(program)
    assert "\nrank 2 channel 0 share 0 relay @1 slice 0: receive 0, send 1\n" in to_text(program)
    assert from_json(to_json(program)) == program


def test_a_pulled_queue_is_valid_and_is_read_over_its_whole_path() -> None:
    forest = algorithm("optimal").plan(asked("dgx-2", "broadcast", (0, 1)))
    pushed = lower(forest)
    pulled = replace(pushed, queues=tuple(replace(queue, home=queue.path[0]) for queue in pushed.queues))
    assert violations(pulled, forest.topology) == []
    assert {queue.legs for queue in pulled.queues} == {((0, 16, 1),)}
    assert from_json(to_json(pulled)) == pulled


def with_queue(program: Program, number: int, **changes: object) -> Program:
    changed = list(program.queues)
    changed[number] = replace(changed[number], **changes)
    return replace(program, queues=tuple(changed))


WRONG: list[tuple[Callable[[Program], Program], str]] = [
    (lambda p: with_queue(p, 0, home=3), r"queue 0: its home 3 is not on its path \[0, 1, 2\]"),
    (lambda p: with_queue(p, 0, home=2), r"queue 0: path \[0, 1, 2\] crosses the memory of GPU1, so its home"),
    (lambda p: with_queue(p, 0, home=0), "so its home must be there, got GPU0"),
    (lambda p: replace(p, relays=(1,)), "queue 0 from rank 0 to rank 2 lies on path"),
    (lambda p: replace(p, relays=()), "queue 0 ends at rank 2, outside 0 … 1"),
    (lambda p: replace(p, relays=(9,)), "rank 2 is vertex 9, which line does not have"),
    (lambda p: replace(p, relays=(3,)), r"relays \[3\] must be different vertices outside the job \[0, 3\]"),
    (
        lambda p: replace(p, roles=tuple(replace(r, keeps=r.stage == "relay" or r.keeps) for r in p.roles)),
        "relay 2, channel 0, step 0 .*: wrong block: it keeps slice 0 of .*, which this rank must not get",
    ),
    (
        lambda p: replace(p, roles=tuple(replace(r, sends=()) if r.stage == "relay" else r for r in p.roles)),
        "starves: it receives from queue 1",
    ),
]


@pytest.mark.parametrize(("damage", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_wrong_homes_and_relays_are_refused(damage, message) -> None:
    forest = relayed(2)
    faults = violations(damage(lower(forest)), forest.topology)
    assert any(re.search(message, sentence) for sentence in faults), faults


def test_a_switch_is_no_home_of_messages() -> None:
    topology = line("gpu", "switch", "gpu")
    program = lower(algorithm("optimal").plan(asked(topology, "broadcast")))
    staged = with_queue(program, 0, home=1)
    assert violations(staged, topology) == [
        f"queue 0: its home {topology.vertex[1].label} is a switch, which has no memory for messages"
    ]


JOBS = [("ring:6", (0, 3)), ("ring:7", (0, 2, 5)), ("dgx-1v", (1, 4, 5, 6)), ("mi250", (0, 1, 2, 3)), ("mist", None)]


@pytest.mark.parametrize(("spec", "gpus"), JOBS, ids=[spec for spec, _ in JOBS])
@pytest.mark.parametrize("name", ["allreduce", "allgather", "broadcast", "alltoall"])
def test_programs_with_homes_compute_their_collective(spec, gpus, name) -> None:
    forest = algorithm("optimal").plan(asked(spec, name, gpus, relays=True))
    program = lower(forest)
    assert violations(program, forest.topology) == []
    inputs = make_inputs(program.collective, 103, "int32")
    call = CollectiveCall.of(program.collective, "int32", 103)
    for run in (partial(reference.run, order=5), local_host.run):
        outputs = run(program, inputs, call, chunk_bytes=64)
        assert mismatch(outputs, oracle(program.collective, inputs), 103) is None


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in ("reference", "host")])
def test_engines_without_relays_refuse_them_by_name(name) -> None:
    if ENGINES[name].missing:
        pytest.skip(ENGINES[name].missing)
    program = lower(relayed(2))
    inputs = [np.zeros(4, np.int32), None]
    with pytest.raises(UnsupportedError, match=r"roles at vertices \[2\] outside the job"):
        ENGINES[name].run(program, inputs, CollectiveCall.of(program.collective, "int32", 4))


def test_generated_code_is_not_prepared_for_relays() -> None:
    with pytest.raises(UnsupportedError, match=r"roles at vertices \[2\] outside the job"):
        generated.prepare([lower(relayed(2))])


@pytest.mark.parametrize("between", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("chunks", [1, 8, 30])
def test_the_simulator_takes_as_long_as_store_and_forward(between, chunks) -> None:
    """Every memory is a stage of the pipeline: k chunks through m memories take (k + m)·t, within 1 %."""
    forest = relayed(between)
    size = 240_000_000
    simulation = simulate(lower(forest), forest.topology, calibration("nominal"), size, chunk_bytes=size // chunks)
    assert simulation.seconds == pytest.approx((chunks + between) * size / chunks / 10e9, rel=0.01)
    assert simulation.outcome.transfers == chunks * (between + 1)
    assert len(simulation.translation.legs) == between + 1


def test_queues_know_their_legs() -> None:
    assert Queue(0, 1, (5, 6, 7), 7).legs == Queue(0, 1, (5, 6, 7), 5).legs == ((5, 6, 7),)
    assert Queue(0, 1, (5, 6, 7), 6).legs == ((5, 6), (6, 7))
