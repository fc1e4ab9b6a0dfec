"""Ranks with different calls: an error with both calls on every rank, or no effect at all; no rank hangs."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from job import PATIENT_S, Start, member
from rank_processes import RankProcess, outcomes

import blinkccl
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import Collective
from blinkccl.errors import BlinkError, CommunicationError, PeerLostError, UnsupportedError, UsageError
from blinkccl.runtime import host_group
from blinkccl.runtime.communicator import Communicator
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

#: A call: collective, elements per block, element type, operation, root.
Words = tuple[str, int, str, str, int]
Failure = tuple[str, str]


def call(comm: Communicator, words: Words, shared: bool) -> None:
    name, count, dtype, op, root = words
    collective = CollectiveCall(name, dtype, count, op, root, 1).among(comm.size)
    into, out = collective.input_blocks(comm.rank), collective.output_blocks(comm.rank)

    def new(blocks: int) -> Any:
        return blinkccl.empty(blocks * count, dtype) if shared else np.ones(blocks * count, dtype)

    comm._call((name, op, root, 1), new(into) if into else None, new(out or 1) if out or not into else None)


def failure_of(work: Callable[[], object]) -> Failure:
    try:
        work()
    except BlinkError as error:
        time.sleep(0.2)  # so that no rank gets this one's end instead of the other's call
        return type(error).__name__, str(error)
    return "nothing", ""


def calls_its_own(comm: Communicator, calls: list[list[Words]], shared: bool) -> Failure:
    """Make this rank's calls (the last list serves all further ranks), then a barrier; return the failure."""

    def work() -> None:
        for words in calls[min(comm.rank, len(calls) - 1)]:
            call(comm, words, shared)
        comm.barrier()

    return failure_of(work)


SMALL: Words = ("allreduce", 16, "float32", "sum", 0)
LARGE: Words = ("allreduce", 1_000_000, "float32", "sum", 0)
DISAGREEMENTS: dict[str, tuple[list[Words], list[Words]]] = {
    "size, small": ([SMALL], [("allreduce", 17, "float32", "sum", 0)]),
    "size, large": ([LARGE], [("allreduce", 1_000_001, "float32", "sum", 0)]),
    "size, small and large": ([SMALL], [LARGE]),
    "size, none and some": ([("allreduce", 0, "float32", "sum", 0)], [SMALL]),
    "type, of the same size": ([SMALL], [("allreduce", 16, "int32", "sum", 0)]),
    "type, large": ([LARGE], [("allreduce", 1_000_000, "float64", "sum", 0)]),
    "operation": ([SMALL], [("allreduce", 16, "float32", "max", 0)]),
    "operation, large": ([LARGE], [("allreduce", 1_000_000, "float32", "avg", 0)]),
    "root": ([("broadcast", 16, "float32", "sum", 0)], [("broadcast", 16, "float32", "sum", 1)]),
    "root, large": ([("reduce", 1_000_000, "float32", "sum", 0)], [("reduce", 1_000_000, "float32", "sum", 1)]),
    "collective": ([SMALL], [("broadcast", 16, "float32", "sum", 0)]),
    "collective, large": ([LARGE], [("allgather", 500_000, "float32", "sum", 0)]),
    "collective, many blocks": ([("alltoall", 5000, "int8", "sum", 0)], [("reduce_scatter", 5000, "int8", "sum", 0)]),
    "order": ([SMALL, ("broadcast", 9, "int8", "sum", 0)], [("broadcast", 9, "int8", "sum", 0), SMALL]),
    "order, mixed sizes": ([LARGE, SMALL], [SMALL, LARGE]),
    "number of calls": ([SMALL, SMALL], [SMALL]),
}  # fmt: skip


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_different_calls_are_named_on_all_ranks(start: Start, what: str, shared: bool) -> None:
    one, other = DISAGREEMENTS[what]
    failures = start(3, calls_its_own, [one, other], shared).values()
    texts = {text for _, text in failures}
    assert [kind for kind, _ in failures] == ["PlanMismatchError"] * 3, failures
    assert len(texts) == 1, "all ranks say the same"
    (text,) = texts
    assert text.startswith("call 2 " if what == "number of calls" else "call 1 "), text
    assert "rank 0 calls " in text
    assert "rank 1 calls " in text or "rank 2 calls " in text
    if what not in ("number of calls",):
        first = next(a for a, b in zip(one, other, strict=True) if a != b)
        assert f"calls {first[0]} of {first[1]} × {first[2]}" in text


def is_root_of_what_the_others_do_not_call(comm: Communicator) -> list[Failure]:
    """Rank 0 is in its second call when the others detect that its first differs from theirs."""
    ones = np.ones(16, np.float32)
    failures = []
    if comm.rank == 0:
        comm.broadcast(ones, 0)
    for work in (lambda: comm.allreduce(ones), comm.barrier):
        failures.append(failure_of(work))
    return failures


def test_the_first_failed_call_gives_the_cause_and_later_ones_refer_to_it(start: Start) -> None:
    firsts, nexts = zip(*start(3, is_root_of_what_the_others_do_not_call).values(), strict=True)
    assert len(set(firsts)) == 1, firsts
    assert firsts[0][0] == "PlanMismatchError"
    assert firsts[0][1].startswith("call 1 on the communicator: rank ")
    assert all(": the group had ended already: call 1 on the communicator: rank " in text for _, text in nexts), nexts


def test_a_program_of_other_chunks_is_another_call(start: Start) -> None:
    failures = start(2, runs_other_chunks).values()
    assert [kind for kind, _ in failures] == ["PlanMismatchError"] * 2, failures


def runs_other_chunks(comm: Communicator) -> Failure:
    program = lower(algorithm("ring").plan(_request(comm.size)))
    ones = np.ones(100_000)
    return failure_of(lambda: comm.run(program, ones, ones.copy(), chunk_bytes=(64 << 10) << comm.rank))


def _request(ranks: int) -> Request:
    topology = parse_spec(f"clique:{ranks}")
    return Request(topology, Collective("allreduce", ranks), topology.ranks)


# ---- invalid calls are rejected before anything happens, and the group stays usable


def makes_no_sense(comm: Communicator) -> dict[str, str]:
    """Make the same mistakes on every rank, alone; then call a collective together."""
    ones = np.ones(12, np.float32)
    mistakes = {
        "root above": lambda: comm.broadcast(ones, comm.size),
        "root below": lambda: comm.reduce(ones, root=-1),
        "operation": lambda: comm.allreduce(ones, op="mean"),
        "operation of the type": lambda: comm.allreduce(ones, op="bxor"),
        "type": lambda: comm.allreduce(np.ones(3, np.complex64)),
        "byte order": lambda: comm.allreduce(np.ones(3, ">f4")),
        "two types": lambda: comm.allreduce(ones, np.ones(12)),
        "two sizes": lambda: comm.allreduce(ones, np.ones(13, np.float32)),
        "blocks": lambda: comm.reduce_scatter(np.ones(13, np.float32), np.ones(4, np.float32)),
        "not contiguous": lambda: comm.allreduce(np.ones(24, np.float32)[::2]),
        "read-only": lambda: comm.allreduce(ones, np.frombuffer(bytes(48), np.float32)),
        "no buffer": lambda: comm.scatter(None, None, 0),
        "no scale": lambda: comm.allreduce(ones, op="premul_sum"),
        "scale": lambda: comm.allreduce(ones, scale=2.0),
        "deadline": lambda: comm.allreduce(ones, deadline_s=-1),
        "deadline that is none": lambda: comm.allreduce(ones, deadline_s=float("nan")),
        "to itself": lambda: comm.send(ones, comm.rank),
        "from itself": lambda: comm.recv(ones, comm.rank),
        "to nobody": lambda: comm.send(ones, comm.size),
        "into read-only": lambda: comm.recv(np.frombuffer(bytes(48), np.float32), 1 - comm.rank),
        "message deadline": lambda: comm.recv(ones, 1 - comm.rank, deadline_s=0),
        "more ranks than there are": lambda: comm.run(lower(algorithm("ring").plan(_request(3))), ones, ones.copy()),
        "sendrecv with itself": lambda: comm.sendrecv(ones, ones.copy(), 1, 1),
    }
    texts = {}
    for what, mistake in mistakes.items():
        with pytest.raises((UnsupportedError, UsageError)) as refused:
            mistake()
        texts[what] = str(refused.value)
    assert (comm.allreduce(ones.copy()) == 2).all()
    return texts


def test_invalid_calls_are_rejected_and_the_group_stays_usable(start: Start) -> None:
    for texts in start(2, makes_no_sense).values():
        assert "root 2 is outside 0 … 1" in texts["root above"]
        assert "the program is for 3 ranks, but this group has 2" in texts["more ranks than there are"]
        assert "read-only" in texts["read-only"]


def refuses_alone(comm: Communicator) -> Failure:
    """One rank's own mistake ends it; the others get its end as the cause, not a mismatch."""
    if comm.rank == 1:
        comm.broadcast(np.ones(3), 5)
    return failure_of(lambda: (comm.broadcast(np.ones(3), 0), comm.barrier()))


def test_a_wrong_root_on_one_rank_keeps_nobody_waiting(start: Start) -> None:
    job = start(3, refuses_alone)
    (error,) = job.errors(1)
    assert isinstance(error, UsageError)
    for kind, text in job.values(0, 2):
        assert kind == "PeerLostError"
        assert "rank 1" in text


# ---- memory that is missing, too small, or another group's


def limited(comm: Communicator) -> str:
    return "made"


def member_with_limit(url: str, rank: int, who: int, limit: str, room: int) -> Any:
    """Run a rank; rank ``who``, or all (-1), under a limit of the system."""
    import resource

    if who in (-1, rank):
        resource.setrlimit(getattr(resource, limit), (room, room))
    return member(url, rank, 2, PATIENT_S, limited, ())


@pytest.mark.parametrize("who", [-1, 0, 1])
@pytest.mark.parametrize(("limit", "room"), [("RLIMIT_FSIZE", 1 << 20), ("RLIMIT_AS", 4 << 30)])
def test_too_little_memory_is_reported_on_all_ranks(
    tmp_path: Any, start: Start, limit: str, room: int, who: int
) -> None:
    url = f"file://{tmp_path}/store"
    began = time.monotonic()
    ended = outcomes([RankProcess(member_with_limit, url, rank, who, limit, room) for rank in range(2)])
    for rank, outcome in enumerate(ended):
        if who in (-1, rank):
            assert isinstance(outcome.error, UnsupportedError), outcome
        else:
            assert isinstance(outcome.error, CommunicationError), outcome
            assert f"rank {who}" in str(outcome.error)
        assert "bytes of" in str(outcome.error)
        assert "need" in str(outcome.error)
    assert time.monotonic() - began < PATIENT_S


def member_of_another_kind(url: str, rank: int) -> Any:
    """Rank 1 is configured for rings of other sizes than rank 0."""
    if rank == 1:
        host_group.STREAM_BYTES *= 2
    return member(url, rank, 2, PATIENT_S, limited, ())


def test_memory_of_another_size_is_refused(tmp_path: Any, start: Start) -> None:
    url = f"file://{tmp_path}/store"
    zero, one = outcomes([RankProcess(member_of_another_kind, url, rank) for rank in range(2)])
    assert isinstance(one.error, CommunicationError)
    assert "rank 1 was given" in str(one.error)
    assert isinstance(zero.error, CommunicationError)
    assert "rank 1" in str(zero.error)


def member_with_foreign_memory(url: str, rank: int, forgery: str) -> Any:
    """Rank 0 shares memory of the right size that is not its group's."""
    real = host_group.format_segment

    def forged(address: int, size: int, shape: Any, token: bytes) -> None:
        if forgery == "token":
            real(address, size, shape, bytes(16))

    if rank == 0:
        host_group.format_segment = forged
    return member(url, rank, 2, PATIENT_S, limited, ())


@pytest.mark.parametrize("forgery", ["token", "zeros"])
def test_a_foreign_segment_is_refused_by_all_ranks(tmp_path: Any, start: Start, forgery: str) -> None:
    url = f"file://{tmp_path}/store"
    for outcome in outcomes([RankProcess(member_with_foreign_memory, url, rank, forgery) for rank in range(2)]):
        assert isinstance(outcome.error, CommunicationError)
        assert not isinstance(outcome.error, PeerLostError)
        assert "this shared memory belongs to another job or another version of blink-ccl" in str(outcome.error)
