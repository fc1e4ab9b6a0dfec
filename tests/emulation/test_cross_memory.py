"""The system's copies between ranks' private memories: selected equally, correct, counted, and free of deadlocks."""

import os
import signal
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
from job import Ran, Start, tell

import blinkccl
from blinkccl.errors import DeadlineError, PeerLostError
from blinkccl.runtime.communicator import Communicator

COUNT = 40_001
LARGE = 5_000_000  # float64: results that bypass the caches
SOME = 300_000  # enough for an AllReduce to cross


Found = TypeVar("Found")


def wishing(comm: Communicator, variable: str, work: Callable[..., Found], *arguments: int) -> Found:
    """Run ``work`` on another communicator of the same ranks, made with this value of the variable."""
    os.environ["BLINK_CROSS_MEMORY"] = variable
    part = comm.split(0)
    part.store = comm.store
    return work(part, *arguments)


def all_copies(comm: Communicator, count: int) -> int:
    """Run every collective that may use the system's copies; return the bytes that the system copied for this rank."""
    rank, other = comm.rank, 1 - comm.rank
    mine = np.arange(count, dtype=np.float64) + 1000 * rank
    others = np.arange(count, dtype=np.float64) + 1000 * other
    both = np.stack([mine, others] if rank == 0 else [others, mine])
    before = comm.stats()["crossed_bytes"]
    gathered = np.zeros((2, count))
    comm.allgather(mine, gathered.reshape(-1))
    assert (gathered == both).all()
    gathered[other] = 0
    comm.allgather(gathered[rank], gathered.reshape(-1))
    assert (gathered == both).all()
    sent = mine.copy()
    comm.broadcast(sent, root=1)
    assert (sent == both[1]).all()
    assert (comm.gather(mine, root=1) is None) == (rank == 0)
    scattered = comm.scatter(np.concatenate([mine, -mine]) if rank == 0 else None, np.empty(count), root=0)
    assert (scattered == (mine if rank == 0 else -others)).all()
    summed = comm.reduce_scatter(np.concatenate([mine, others]), np.empty(count))
    assert (summed == mine + others).all()
    comm.allreduce(mine[:SOME])
    assert (mine[:SOME] == summed[:SOME]).all()
    comm.allreduce(others[:SOME], op="premul_sum", scale=2.0)
    assert (others[:SOME] == 2 * summed[:SOME]).all()
    return comm.stats()["crossed_bytes"] - before


@pytest.fixture
def possible(ran: Ran) -> None:
    if not all(ran(2, can_cross)):
        pytest.skip("this system lets no process copy from another's memory")


def can_cross(comm: Communicator) -> bool:
    """True on nearly every 64-bit Linux; some containers and settings forbid it."""
    crosses = comm.group.can_cross()
    comm.barrier()  # until here the other rank's memory is readable
    return crosses


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize("count", [COUNT, LARGE])
def test_all_copies_cross_where_the_user_wants_it(ran: Ran, count: int) -> None:
    first, second = ran(2, wishing, "1", all_copies, count)
    summed = SOME if count > SOME else 0
    assert (first, second) == (8 * (4 * count + summed), 8 * (5 * count + summed))  # the received bytes of each


def gathers(comm: Communicator, count: int, calls: int) -> int:
    """Run the same AllGather many times; return the number of others' blocks that the system copied for this rank."""
    mine, gathered = np.full(count, float(comm.rank)), np.empty((comm.size, count))
    before = comm.stats()["crossed_bytes"]
    for _ in range(calls):
        comm.allgather(mine, gathered.reshape(-1))
        assert (gathered == np.arange(comm.size)[:, None]).all()
        gathered[:] = -1
    return (comm.stats()["crossed_bytes"] - before) // mine.nbytes


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_measure_the_same_variants(ran: Ran, ranks: int) -> None:
    crossed = ran(ranks, wishing, "", gathers, COUNT, 60)
    assert len(set(crossed)) == 1
    assert crossed[0] >= 2 * (ranks - 1)  # they are tried this often, because the first trial does not count


def moves(comm: Communicator, count: int) -> int:
    """Run collectives without reductions among any number of ranks; return the blocks that the system copied."""
    rank, size = comm.rank, comm.size
    mine = np.arange(size * count, dtype=np.float64) + 1e7 * rank
    before = comm.stats()["crossed_bytes"]
    exchanged = comm.alltoall(mine, np.empty_like(mine)).reshape(size, count)
    part = np.arange(rank * count, (rank + 1) * count, dtype=np.float64)
    assert (exchanged == part + 1e7 * np.arange(size)[:, None]).all()
    scattered = comm.scatter(mine if rank == 0 else None, np.empty(count), root=0)
    assert (scattered == part).all()
    gathered = comm.gather(mine[:count], np.empty(size * count) if rank == 1 else None, root=1)
    assert rank != 1 or (gathered.reshape(size, count) == exchanged - part + np.arange(count)).all()
    sent = mine.copy()
    comm.broadcast(sent, root=2)
    assert (sent == np.arange(size * count) + 2e7).all()
    return (comm.stats()["crossed_bytes"] - before) // (8 * count)


@pytest.mark.usefixtures("possible")
def test_copies_cross_among_three(ran: Ran) -> None:
    assert ran(3, wishing, "1", moves, COUNT) == [2 + 3, 2 + 1 + 2 + 3, 2 + 1]


def wishes(comm: Communicator, *variables: str) -> int:
    return wishing(comm, variables[comm.rank], all_copies, COUNT)


@pytest.mark.parametrize("variables", ["00", "01"])
def test_nothing_crosses_where_one_does_not_want_it(ran: Ran, variables: str) -> None:
    assert ran(2, wishes, *variables) == [0, 0]


def works_until_lost(comm: Communicator) -> tuple[float, int]:
    large, gathered = np.ones(3_000_000), np.empty(6_000_000)
    tell(comm, "working")
    try:
        while True:
            comm.allgather(large, gathered)
            comm.broadcast(large, root=1)
            comm.broadcast(large, root=0)
    except PeerLostError as error:
        return time.monotonic(), error.rank


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize("wait_s", [0.0, 0.003, 0.007, 0.011, 0.05])
def test_a_rank_that_is_killed_in_the_middle_is_named(start: Start, wait_s: float) -> None:
    job = start(2, wishing, "1", works_until_lost)
    job.hear("working")
    time.sleep(wait_s)
    killed = job.signal(1, signal.SIGKILL)
    ((at, lost),) = job.values(0)
    assert lost == 1
    assert at - killed < 4.0  # twice the guarantee, as the machine may be busy


def buffer_after_its_deadline(comm: Communicator) -> bool:
    """Rank 1 is stopped in the middle; rank 0's call fails, and no rank writes into its memory afterwards."""
    large = np.full(2_000_000, float(comm.rank))
    tell(comm, "working")
    try:
        while True:
            comm.broadcast(large, root=1, deadline_s=0.4)
    except DeadlineError:
        large[:] = 7
        tell(comm, "over")
        time.sleep(1.0)
        return bool((large == 7).all())


@pytest.mark.usefixtures("possible")
def test_a_stopped_rank_writes_nothing_after_the_others_deadline(start: Start) -> None:
    job = start(2, wishing, "1", buffer_after_its_deadline)
    job.hear("working")
    job.signal(1, signal.SIGSTOP)
    job.hear("over", 0)
    job.signal(1, signal.SIGCONT)
    (clean,) = job.values(0)
    assert clean


def halves(comm: Communicator) -> dict[str, int]:
    """Broadcast a shared array: one half is read by the receiver, the other written by the sender."""
    array = blinkccl.empty(LARGE)
    array[:] = comm.rank
    before = comm.stats()
    comm.broadcast(array, root=1)
    assert (array == 1).all()
    return {name: after - before[name] for name, after in comm.stats().items()}


def test_a_shared_broadcast_keeps_both_ranks_busy(ran: Ran) -> None:
    stats, _ = ran(2, halves)
    assert stats["direct_read_bytes"] + stats["direct_write_bytes"] == stats["message_bytes"] > 0
    assert abs(stats["direct_read_bytes"] - stats["direct_write_bytes"]) <= 512 << 10
    assert stats["crossed_bytes"] == stats["staged_bytes"] == 0
