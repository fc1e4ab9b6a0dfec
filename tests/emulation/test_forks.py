"""Ranks that fork, as data loaders do: a child is not a rank, disturbs no rank, and keeps no rank alive."""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from job import PATIENT_S, Start, tell, wait_for

import blinkccl
from blinkccl.errors import CommunicationError, PeerLostError
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.heap import process_heap


def in_child(work: Callable[[], Any]) -> int:
    """Fork; the child runs ``work`` and ends, in order or not, with 0 if it did not raise."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(pid: int) -> int:
    end = time.monotonic() + PATIENT_S
    while True:
        waited, status = os.waitpid(pid, os.WNOHANG)
        if waited:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("a child hung")
        time.sleep(0.01)


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(CommunicationError, match="a forked child has no rank in it"):
        call()


def forks_in_the_middle(comm: Communicator) -> list[int]:
    """Children that try everything, forked while other threads of their parent are inside calls."""
    shared = blinkccl.empty(100_000)
    shared[:] = comm.rank
    array = np.full(100_000, 5.0)
    comm.allreduce(np.ones(3))  # prepared before the fork
    peer = 1 - comm.rank

    def child() -> None:
        for call in (
            lambda: comm.allreduce(np.ones(3)), comm.barrier, lambda: comm.allreduce(np.ones(3), wait=False),
            lambda: comm.allgather(np.ones(9)), lambda: comm.send(np.ones(3), peer),
            lambda: comm.recv(np.ones(3), peer), lambda: comm.split(0), comm.stats, comm.abort,
        ):  # fmt: skip
            refused(call)
        assert blinkccl.empty(10).sum() == 0  # its own heap, without a lock of the parent's threads
        comm.close()

    def child_that_drops_arrays() -> None:
        nonlocal shared
        mine = shared[5:10]
        del shared, mine
        gc.collect()

    def talk() -> None:
        for _ in range(150):
            sent = comm.send(array, peer, tag=1, wait=False)
            comm.recv(np.empty_like(array), peer, tag=1)
            sent.result(PATIENT_S)

    talker = threading.Thread(target=talk)
    talker.start()
    codes = []
    for turn in range(6):
        futures = [comm.allreduce(np.ones(200_000), wait=False) for _ in range(3)]
        pid = in_child((child, child_that_drops_arrays)[turn % 2])
        for future in futures:
            assert (future.result(PATIENT_S) == 2).all()
        codes.append(ended(pid))
    talker.join(PATIENT_S)
    assert not talker.is_alive()
    assert (shared == comm.rank).all(), "a child's garbage collection emptied its parent's array"
    assert (comm.allreduce(shared) == 1).all()
    return codes


def test_children_are_not_ranks_and_disturb_none(start: Start) -> None:
    assert start(2, forks_in_the_middle).values() == [[0] * 6] * 2


def forks_and_exits_in_order(comm: Communicator) -> int:
    """A child that ends with sys.exit runs Python's exit functions, which must not close its parent's groups."""
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    code = ended(pid)
    assert (comm.allreduce(np.ones(3)) == 2).all()
    return code


def test_a_childs_orderly_exit_closes_nothing_of_its_parents(start: Start) -> None:
    assert [code for code in start(2, forks_and_exits_in_order).values() if code] == []


def forks_and_is_killed(comm: Communicator) -> tuple[float, int]:
    if comm.rank == 1:
        child = in_child(lambda: time.sleep(30))
        comm.store.set("child", str(child).encode())
        tell(comm, "forked")
        time.sleep(30)
    with pytest.raises(PeerLostError) as lost:
        comm.barrier()
    return time.monotonic(), lost.value.rank


def test_a_child_does_not_keep_its_dead_parents_place(start: Start) -> None:
    job = start(2, forks_and_is_killed)
    job.hear("forked", 1)
    child = int(wait_for(job.store, "child"))
    try:
        time.sleep(0.2)
        killed = job.signal(1, signal.SIGKILL)
        ((at, lost),) = job.values(0)
        os.kill(child, 0)  # it still runs, with all inherited resources
    finally:
        os.kill(child, signal.SIGKILL)
    assert lost == 1
    assert at - killed < 2.0


def test_a_child_may_be_a_rank_of_another_group(start: Start) -> None:
    assert start(2, forks_a_group_of_its_own).values() == [[0], [0]]


def forks_a_group_of_its_own(comm: Communicator) -> list[int]:
    """The children of all ranks form a group of their own, with arrays of their own heaps."""

    def child() -> None:
        other = Communicator.create(comm.store, comm.rank, comm.size, prefix="children", deadline_s=PATIENT_S)
        array = blinkccl.empty(50_000)
        array[:] = 3
        assert (other.allreduce(array) == 6).all()
        assert process_heap().used
        other.close()

    process_heap()
    codes = [ended(in_child(child))]
    assert (comm.allreduce(np.ones(3)) == 2).all()
    return codes
