"""``engines/torch_p2p`` in real processes over gloo: against the oracle, against the library, and when ranks fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np
import pytest

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.collectives.ops import DTYPES, OPS, DType
from blinkccl.collectives.oracle import Array
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference, torch_p2p_local
from blinkccl.engines.torch_p2p_processes import LocalGroup
from blinkccl.errors import (
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    UnsupportedError,
    UsageError,
)
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.testing.execution import difference, ragged_counts
from blinkccl.testing.programs import random_program
from blinkccl.topology.spec import parse_spec

torch = pytest.importorskip("torch", reason="needs PyTorch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

ranks = import_module("torch_p2p_ranks")

pytestmark = pytest.mark.timeout(60)
CHUNK_BYTES = 64
JOBS = {"ring:4": (0, 1, 2, 3), "dgx-1v": (1, 4, 5, 6)}
SERVED = [(name, op) for name, row in DTYPES.items() for op in OPS if row.serves(OPS[op])]


def program_for(spec: str, algorithm: str, name: str, slots: int = 2) -> Program | None:
    """The algorithm's program, or None where it does not serve this."""
    topology, n = parse_spec(spec), len(JOBS[spec])
    ends = {"root": n // 2, "src": 0, "dst": n - 1}
    collective = Collective(name, n, **{key: ends[key] for key in COLLECTIVES[name].parameters})
    try:
        return lower(ALGORITHMS[algorithm].plan(Request(topology, collective, JOBS[spec])), slots)
    except UnsupportedError:
        return None


def ring(n: int = 4) -> Program:
    topology = parse_spec(f"ring:{n}" if n > 2 else f"chain:{n}")
    return lower(ALGORITHMS["ring"].plan(Request(topology, Collective("allreduce", n), topology.ranks)))


@pytest.fixture(scope="module")
def four() -> Iterator[LocalGroup]:
    with LocalGroup(4) as group:
        yield group


@pytest.fixture(scope="module", autouse=True)
def _no_processes_left() -> Iterator[None]:
    yield
    torch_p2p_local.close()


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("spec", JOBS)
def test_every_algorithm_equals_the_oracle(spec: str, name: str) -> None:
    kinds, ran = cycle(SERVED), 0
    for algorithm in ALGORITHMS:
        for slots in (1, 2):
            program = program_for(spec, algorithm, name, slots)
            if program is None:
                continue
            counts = ragged_counts(program, CHUNK_BYTES // 4)
            for count in [counts[0], counts[-1 - slots], counts[-1]]:
                dtype, op = next(kinds)
                in_place = slots == 1 and name != "alltoall"
                found = difference(
                    torch_p2p_local.run,
                    program,
                    count=count,
                    dtype=dtype,
                    op=op,
                    chunk_bytes=CHUNK_BYTES,
                    in_place=in_place,
                    deadline_s=20,
                )
                assert found is None, f"{algorithm}, slots {slots}, {count} × {dtype}, {op}: {found}"
                ran += 1
    assert ran


def random_inputs(program: Program, row: DType, count: int, seed: int) -> list[Array | None]:
    """Data whose result depends on the order of reduction and on every rounding."""
    rng = np.random.default_rng(seed)
    blocks = [program.collective.input_blocks(rank) for rank in range(len(program.ranks))]
    if row.kind == "float":
        return [(rng.standard_normal(b * count) * 3).astype(row.storage) if b else None for b in blocks]
    top = 2 if row.kind == "bool" else 256
    nbytes = count * row.itemsize
    drawn = [rng.integers(0, top, b * nbytes, dtype=np.uint8) if b else None for b in blocks]
    return [None if array is None else array.view(row.storage) for array in drawn]


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_give_the_bits_of_the_reference(seed: int) -> None:
    random = Random(seed)
    for turn in range(2):
        program, _ = random_program(random)
        for dtype, op in random.sample(SERVED, 3):
            row, count = DTYPES[dtype], random.randrange(300)
            scales = [random.choice([0.5, 1, 3]) for _ in program.ranks] if OPS[op].scales else None
            arguments = {
                "count": count,
                "dtype": dtype,
                "op": op,
                "scales": scales,
                "chunk_bytes": random.choice([16, 48, 200]),
                "in_place": program.collective.name != "alltoall" and turn == 0,
            }
            inputs = random_inputs(program, row, count, seed)
            expected = reference.run(program, inputs, **arguments)
            outputs = torch_p2p_local.run(program, inputs, deadline_s=20, **arguments)
            for rank, (got, want) in enumerate(zip(outputs, expected, strict=True)):
                assert (got is None) == (want is None)
                if got is not None and want is not None:
                    unsigned = f"u{row.itemsize}"
                    same = (got.view(unsigned) == want.view(unsigned)) | ((got != got) & (want != want))  # any NaN
                    assert same.all(), f"rank {rank}, {program.collective.name}, {count} × {dtype}, {op}"


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_messages_that_travel_while_the_next_round_is_computed(four: LocalGroup, ahead: int) -> None:
    program = ring()
    inputs = random_inputs(program, DTYPES["float32"], 1001, ahead)
    expected = reference.run(program, inputs, count=1001, dtype="float32", op="avg", chunk_bytes=64)
    outputs = four.call(ranks.run_ahead, [(program, given, 1001, "avg", ahead) for given in inputs], 20)
    assert all(np.array_equal(got, want) for got, want in zip(outputs, expected, strict=True))


# What the ring of the blog post that this repeats gets wrong.


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 1003])
def test_sizes_that_the_ranks_do_not_divide(four: LocalGroup, count: int) -> None:
    assert four.call(ranks.ring, [(ring(), count, "float32", "sum", "flat")] * 4, 20) == [(0, True)] * 4


@pytest.mark.parametrize("layout", ["turned", "every second"])
def test_tensors_that_are_not_contiguous(four: LocalGroup, layout: str) -> None:
    assert four.call(ranks.ring, [(ring(), 205, "float32", "sum", layout)] * 4, 20) == [(0, True)] * 4


@pytest.mark.parametrize("op", ["prod", "min", "max", "avg"])
def test_operations_other_than_sum(four: LocalGroup, op: str) -> None:
    assert four.call(ranks.ring, [(ring(), 205, "float64", op, "flat")] * 4, 20) == [(0, True)] * 4


def test_a_group_whose_ranks_are_not_the_global_ones(four: LocalGroup) -> None:
    answers = four.call(ranks.sub_group, [(ring(2), [1, 3])] * 4, 20)
    assert answers == [[2.0] * 5, [4.0] * 5] * 2


def test_no_second_copy_of_the_data() -> None:
    """Staging depends on the chunk, not on the size; nor does the peak of the whole process."""
    size = 64 << 20
    with LocalGroup(2) as pair:
        for staging, grown in pair.call(ranks.memory, [(ring(2), [1 << 20, 2 << 20, size // 4])] * 2, 30):
            assert staging[0] == staging[1] == staging[2] < 4 << 20
            assert grown < size // 4


# One execution, many calls; and when something is wrong.


def test_an_execution_serves_all_sizes_and_types(four: LocalGroup) -> None:
    assert four.call(ranks.many_calls, [(ring(), [17, 17, 400, 1, 17])] * 4, 20) == [0] * 4


def test_a_wrong_call_does_no_harm(four: LocalGroup) -> None:
    for rank, (message, right) in enumerate(four.call(ranks.wrong_call, [(ring(),)] * 4, 20)):
        assert f"rank {rank}'s input has 10 elements, expected 1 block(s) of 11" in message
        assert right


def test_ranks_with_different_programs(four: LocalGroup) -> None:
    other = program_for("ring:4", "optimal", "allreduce")
    for error in four.replies(ranks.prepare, [([ring(), ring(), other, ring()],)] * 4, 20):
        assert isinstance(error, PlanMismatchError)
        assert "the program of rank(s) 2 is not that of rank 0" in str(error)


def test_a_program_for_another_number_of_ranks(four: LocalGroup) -> None:
    with pytest.raises(UsageError, match="the program has 3 ranks, the process group 4"):
        four.call(ranks.prepare, [([ring(3)] * 4,)] * 4, 20)


def test_a_process_that_is_not_in_the_group(four: LocalGroup) -> None:
    with pytest.raises(UsageError, match="rank 3 is not in this process group"):
        four.call(ranks.not_a_member, [(ring(3),)] * 4, 20)


def test_a_rank_that_dies_is_named() -> None:
    with LocalGroup(4) as group:
        errors = group.replies(ranks.disturbed, [(ring(), "dies", 2, 3.0)] * 4, 12)
    assert isinstance(errors[2], PeerLostError)  # as the pool sees it
    neighbours = [error for error in (errors[1], errors[3]) if isinstance(error, PeerLostError)]
    assert [error.rank for error in neighbours].count(2) >= 1
    for rank in (0, 1, 3):
        assert isinstance(errors[rank], CommunicationError), errors[rank]
        assert any("then: this execution failed before" in note for note in errors[rank].__notes__)


@pytest.mark.parametrize("how", ["stays away", "other count"])
def test_a_rank_that_does_not_take_part_is_waited_for_until_the_deadline(how: str) -> None:
    with LocalGroup(4) as group:
        answers = group.replies(ranks.disturbed, [(ring(), how, 3, 1.5)] * 4, 12)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(errors) == (3 if how == "stays away" else 4)
    assert all(isinstance(error, CommunicationError) for error in errors)
    late = [str(error) for error in errors if isinstance(error, DeadlineError)]
    assert late
    assert any("rank 3 (" in text and "waited past the deadline for chunk" in text for text in late)
    assert all("the same count, type, operation and chunk_bytes" in text for text in late)


# The processes themselves.


def test_the_pool_carries_values_and_errors(four: LocalGroup) -> None:
    assert [list(got) for got in four.call(ranks.as_bytes, [(np.arange(2),)] * 4, 10)] == [[r, r + 1] for r in range(4)]
    answers = four.replies(ranks.fail, [(1,)] * 4, 10)
    assert answers[0] == 0
    assert isinstance(answers[1], CommunicationError)
    assert "StrangeError: as planned" in str(answers[1])
    with pytest.raises(CommunicationError, match="as planned"):
        four.call(ranks.fail, [(3,)] * 4, 10)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_pool_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blinkccl.engines.torch_p2p_processes.GRACE_S", 1.0)
    group = LocalGroup(2)
    with pytest.raises(DeadlineError, match=r"rank\(s\) 1 of a local group did not answer within 3 s"):
        group.call(ranks.sleep, [(0.0,), (60.0,)], 2.0)
    assert not any(alive(pid) for pid in group.pids)


def test_the_next_run_after_a_lost_rank_has_new_processes() -> None:
    program = ring(2)
    assert difference(torch_p2p_local.run, program, count=10) is None
    os.kill(torch_p2p_local._groups[2].pids[1], 9)
    with pytest.raises(PeerLostError, match="rank 1"):
        difference(torch_p2p_local.run, program, count=10, deadline_s=3)
    assert difference(torch_p2p_local.run, program, count=10) is None


def test_the_experiment_of_ring_against_library() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "ring_against_library.py"
    options = ["--nproc", "2", "--sizes", "4K,1M", "--iterations", "2", "--json"]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["size_bytes"], row["plan"]) for row in rows] == [
        (size, plan) for size in (4096, 1 << 20) for plan in ("ring", "trees", "library")
    ]
    assert [row["wrong"] for row in rows] == [0] * 6
    assert all(row["ratio"] == pytest.approx(row["ms"] / rows[i // 3 * 3 + 2]["ms"]) for i, row in enumerate(rows))


def test_importing_the_package_loads_no_torch() -> None:
    code = "import blinkccl, blinkccl.engines.torch_p2p_local, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30).stdout == "False\n"
