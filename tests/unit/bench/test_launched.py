"""Ranks of a launcher perform rank 0's commands; here they are threads, with a communicator made of barriers."""

import threading

import numpy as np
import pytest

from blinkccl.bench.host import Leader, follow, launcher
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.perform import private_memory
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, LaunchError, UnsupportedError

RANKS = 3


class Ranks:
    """Shared state of the threads."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS, timeout=20)
        self.held: dict[int, np.ndarray] = {}


class Communicator:
    """One thread's communicator; its collectives copy from the others' buffers."""

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.ranks, self.rank, self.size = ranks, rank, RANKS

    def _meet(self, own, use):
        self.ranks.held[self.rank] = own
        self.ranks.barrier.wait()
        use(self.ranks.held)
        self.ranks.barrier.wait()

    def broadcast(self, buffer, root):
        self._meet(buffer, lambda held: buffer.__setitem__(..., held[root]))

    def allgather(self, send, recv):
        self._meet(send, lambda held: recv.__setitem__(..., np.concatenate([held[r] for r in range(RANKS)])))

    def gather(self, send, recv, root):
        if self.rank == root:
            self.allgather(send, recv)
        else:
            self._meet(send, lambda held: None)

    def sum(self, send, recv):
        self._meet(send, lambda held: setattr(self, "total", sum(held[r] for r in range(RANKS))))
        recv[...] = self.total
        self.ranks.barrier.wait()


class Library:
    title = "threads"

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator

    def allocate(self, size, shared):
        if shared:
            raise UnsupportedError("no shared memory here")
        return private_memory(size)

    def time(self, command, send, recv, warmup, iterations):
        if command.dtype == "int8":
            raise CommunicationError("rank 2 is lost")
        for _ in range(warmup + iterations):
            self.communicator.sum(send.view(command.dtype).copy(), recv.view(command.dtype))
        return np.full(iterations, 1.0 + self.communicator.rank)


@pytest.fixture
def leader():
    ranks = Ranks()
    ends = [Communicator(ranks, rank) for rank in range(RANKS)]
    threads = [threading.Thread(target=follow, args=(end, Library(end)), daemon=True) for end in ends[1:]]
    for thread in threads:
        thread.start()
    first = Leader(ends[0], Library(ends[0]))
    yield first
    first.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_rank_0_leads(leader):
    work = TimedCall(Collective("allreduce", RANKS), 10_000, "int32", warmup=1, iterations=3)
    for in_place in (False, True):
        measured = leader.run(
            commands(TimedCall(work.collective, work.count, work.dtype, in_place=in_place, iterations=3))
        )
        assert measured.wrong == 0
        assert np.array_equal(measured.seconds, [[1.0] * 3, [2.0] * 3, [3.0] * 3])
    assert len(leader.pids) == RANKS


def test_refusals_and_failures_reach_rank_0(leader):
    work = TimedCall(Collective("allreduce", RANKS), 10, "int32")
    with pytest.raises(UnsupportedError, match="rank 0: no shared memory here"):
        leader.run(commands(TimedCall(work.collective, 10, "int32", shared=True)))
    with pytest.raises(CommunicationError, match="rank 0: CommunicationError: rank 2 is lost"):
        leader.run(commands(TimedCall(work.collective, 10, "int8")))
    assert leader.run(commands(work)).wrong == 0


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"HOME": "/root", "RANKING": "7"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, "torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, None),
        ({"BLINK_RANK": "1", "BLINK_WORLD_SIZE": "4", "BLINK_STORE": "file:///nowhere"}, "blink"),
    ],
)
def test_the_launcher_of_a_process(environment, name):
    assert launcher(environment) == name


def test_half_an_environment_is_an_error():
    with pytest.raises(LaunchError, match="WORLD_SIZE"):
        launcher({"RANK": "0"})
