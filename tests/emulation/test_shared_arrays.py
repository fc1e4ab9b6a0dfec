"""put and get between processes: what comes is what was put, signals and fences say when, and errors name who."""

from __future__ import annotations

import gc
import os
import signal
from random import Random

import numpy as np
import pytest
from job import Ran, Start, tell

import blinkccl
from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError, UnsupportedError, UsageError
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.heap import process_heap
from support.extras import needs


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_puts_and_gets_of_all_ranks(ran: Ran, size: int) -> None:
    assert ran(size, random_copies) == [True] * size


def random_copies(comm: Communicator) -> bool:
    """Rounds of copies between ranks at random; every rank knows them all, and what all arrays must hold then."""
    random = Random(comm.size)
    for dtype in (np.float32, np.int8, np.float64):
        sizes = [random.choice((0, 1, 7, 1000, 70_001)) for _ in range(comm.size)]
        model = [np.zeros(size, dtype) for size in sizes]
        own = blinkccl.empty(sizes[comm.rank], dtype)
        shared = comm.share(own)
        assert shared.sizes == sizes
        for turn in range(12):
            for rank in random.sample(range(comm.size), comm.size):  # a writer per target: no two overlap
                writer, at = random.randrange(comm.size), random.randint(0, sizes[rank])
                count = random.randint(0, sizes[rank] - at)
                data = (np.arange(count) + 31 * turn + rank).astype(dtype)
                model[rank][at : at + count] = data
                if comm.rank == writer:
                    blinkccl.put(np.repeat(data, 2)[::2] if turn % 2 else data, shared, rank, at)
            shared.fence()
            source, at = random.randrange(comm.size), 0
            found = np.empty(sizes[source], dtype)
            blinkccl.get(found, shared, source, at)
            assert found.tobytes() == model[source].tobytes()
            assert own.tobytes() == model[comm.rank].tobytes(), "what the others put is in the array itself"
            shared.fence()
        shared.close()
    return True


def test_signals_follow_what_was_put(ran: Ran) -> None:
    assert ran(3, around_the_ring, 400) == [400] * 3


def around_the_ring(comm: Communicator, turns: int) -> int:
    """Each turn a rank hands on what came, in two halves of its neighbour's array that take turns."""
    count, (before, after) = 3000, ((comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size)
    own = blinkccl.empty(2 * count, np.int64)
    shared = comm.share(own)
    for turn in range(turns):
        half = turn % 2 * count
        if turn >= 2:
            shared.wait(after)  # it has read what that half held
        blinkccl.put(np.full(count, 10 * turn + comm.rank), shared, after, half)
        shared.signal(after)
        shared.wait(before)
        assert (own[half : half + count] == 10 * turn + before).all(), turn
        shared.signal(before)
    for _ in range(min(2, turns)):
        shared.wait(after)
    shared.close()
    return turns


def test_arrays_are_kept_while_they_are_shared_and_no_longer(ran: Ran) -> None:
    assert ran(2, keeps_memory) == [True] * 2


def keeps_memory(comm: Communicator) -> bool:
    before = process_heap().used
    shared = comm.share(blinkccl.empty(5000))
    gc.collect()
    blinkccl.put(np.full(5000, comm.rank, np.float32), shared, 1 - comm.rank)
    shared.fence()
    kept = process_heap().used
    shared.close()
    with pytest.raises(UsageError, match="are closed"):
        blinkccl.put(np.zeros(1, np.float32), shared, 1 - comm.rank)
    del shared
    gc.collect()
    return kept > before == process_heap().used


def test_what_cannot_be_shared_or_reached_is_refused(ran: Ran) -> None:
    assert ran(2, refusals) == [True] * 2


def refusals(comm: Communicator) -> bool:
    with pytest.raises(UsageError, match="the array of rank 1 is in its own memory"):
        comm.share(blinkccl.empty(3) if comm.rank == 0 else np.zeros(3, np.float32))
    with pytest.raises(UsageError, match="rank 0 shares float32, rank 1 int32"):
        comm.share(blinkccl.empty(3, np.float32 if comm.rank == 0 else np.int32))
    nothing = comm.share(blinkccl.empty(2) if comm.rank == 0 else np.empty(0, np.float32))
    assert nothing.sizes == [2, 0], "an array without elements may be anywhere"
    nothing.close()
    shared = comm.share(blinkccl.empty(3))
    with pytest.raises(UsageError, match=r"elements 1 … 3 are not in rank 0's array, which has 3"):
        blinkccl.put(np.zeros(3, np.float32), shared, 0, 1)
    with pytest.raises(UsageError, match=r"elements -1 … 0 are not"):
        blinkccl.get(np.zeros(2, np.float32), shared, 0, -1)
    with pytest.raises(UsageError, match=r"rank 2 is outside 0 … 1"):
        blinkccl.put(np.zeros(1, np.float32), shared, 2)
    with pytest.raises(UsageError, match="float32 and float64; expected one type"):
        blinkccl.put(np.zeros(1), shared, 0)
    with pytest.raises(UsageError, match="read-only or not contiguous"):
        blinkccl.get(np.zeros(4, np.float32)[::2], shared, 0)
    with pytest.raises(DeadlineError, match=r"waited 0\.1 s for signal 1 of rank"):
        shared.wait(1 - comm.rank, 0.1)
    comm.barrier()
    shared.signal(1 - comm.rank)
    shared.wait(1 - comm.rank)  # a deadline that was missed ends nothing
    comm.close()
    with pytest.raises(CommunicationError, match="closed"):
        blinkccl.put(np.zeros(1, np.float32), shared, 0)
    return True


def test_who_waits_for_a_dead_rank_hears_of_it(start: Start) -> None:
    job = start(3, waits_for_one_that_dies)
    job.hear("shared")
    job.signal(1, signal.SIGKILL)
    for error in job.errors(0, 2):
        assert isinstance(error, PeerLostError)
        assert error.rank == 1


def waits_for_one_that_dies(comm: Communicator) -> None:
    shared = comm.share(blinkccl.empty(10))
    tell(comm, "shared")
    if comm.rank == 1:
        signal.pause()
    shared.wait(1)


@needs("torch")  # a group on several hosts needs a network
def test_ranks_on_several_hosts_are_refused(ran: Ran) -> None:
    assert ran(2, on_two_hosts) == [True] * 2


def on_two_hosts(comm: Communicator) -> bool:
    os.environ["BLINK_HOSTID"] = f"host{comm.rank}"
    apart = comm.split(0)
    assert apart is not None
    with pytest.raises(UnsupportedError, match="on several hosts"):
        apart.share(blinkccl.empty(3))
    apart.close()
    return True
