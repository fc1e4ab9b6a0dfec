"""Which way an AllToAll goes: from sizes that all ranks know. With threads as ranks and a transport in memory."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module

import pytest

from blinkccl.errors import PlanMismatchError

torch = pytest.importorskip("torch", reason="needs PyTorch")
CallTable = import_module("blinkccl.torch_backend.call_table").CallTable


class Memory:
    """A transport between threads: what each has sent lies in ``posted``."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size, timeout=20)
        self.posted = [b""] * size
        self.messages = {}
        self.used = []

    def end_of(self, rank):
        return End(self, rank)


class End:
    """One rank's."""

    def __init__(self, memory, rank):
        self.memory, self.rank = memory, rank

    def run(self, call, send, recv, *_):
        name, count = call.collective, call.elements
        size = self.memory.size
        if self.rank == 0:
            self.memory.used.append((name, count))
        blocks = size if name == "alltoall" else 1
        self.memory.posted[self.rank] = ctypes.string_at(send, count * blocks)
        self.memory.barrier.wait()
        mine = self.rank if name == "alltoall" else 0
        received = b"".join(data[mine * count : (mine + 1) * count] for data in self.memory.posted)
        self.memory.barrier.wait()
        ctypes.memmove(recv, received, len(received))

    def isend(self, address, nbytes, dst, tag, _):
        self._message((self.rank, dst, tag)).set_result(ctypes.string_at(address, nbytes))
        self.memory.used.append(("message", nbytes))
        sent = Future()
        sent.set_result(None)
        return sent

    def irecv(self, address, nbytes, src, tag, _):
        received = Future()
        self._message((src, self.rank, tag)).add_done_callback(
            lambda message: received.set_result(ctypes.memmove(address, message.result(), nbytes))
        )
        return received

    def _message(self, key):
        return self.memory.messages.setdefault(key, Future())


def exchange(rows, told=None):
    """All ranks exchange ``rows[source][target]`` rows of 2 numbers; what the transport was asked for."""
    size = len(rows)
    memory = Memory(size)

    def one(rank):
        sent = [torch.full((rows[rank][peer], 2), 10.0 * rank + peer) for peer in range(size)]
        expected = [(told or rows)[peer][rank] for peer in range(size)]
        output = torch.zeros(sum(expected), 2)
        request = CallTable(rank, size).all_to_all_single(output, torch.cat(sent), expected, rows[rank])
        request.run(memory.end_of(rank), 5.0)
        request.memory.finish(succeeded=True)
        assert output[:, 1].tolist() == [10.0 * peer + rank for peer in range(size) for _ in range(rows[peer][rank])]

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(one, range(size)))
    return memory.used


def test_equal_blocks_go_straight():
    assert exchange([[3, 3], [3, 3]]) == [("allgather", 32), ("alltoall", 24)]


def test_blocks_that_differ_a_little_are_padded():
    assert exchange([[1, 2], [3, 0]]) == [("allgather", 32), ("alltoall", 24)]
    assert exchange([[2, 2, 2], [2, 2, 2], [2, 2, 1]]) == [("allgather", 48), ("alltoall", 16)]


def test_blocks_that_differ_much_are_messages():
    used = exchange([[0, 0, 90], [1, 0, 0], [0, 2, 5]])
    assert used[0] == ("allgather", 48)
    assert sorted(used[1:]) == [("message", 8), ("message", 16), ("message", 720)]


def test_nothing_at_all():
    assert exchange([[0, 0], [0, 0]]) == [("allgather", 32)]


def test_sizes_that_do_not_fit_are_found_before_anything_is_sent():
    with pytest.raises(PlanMismatchError, match="rank 1 sends 24 bytes to rank 0, which expects 32"):
        exchange([[1, 1], [3, 1]], told=[[1, 1], [4, 1]])


def test_in_place_is_served():
    """Output and input may be the same memory."""
    memory = Memory(2)
    tensors = [torch.tensor([10.0 * rank, 10.0 * rank + 1]) for rank in range(2)]

    def one(rank):
        request = CallTable(rank, 2).all_to_all_single(tensors[rank], tensors[rank], [], [])
        request.run(memory.end_of(rank), 5.0)
        request.memory.finish(succeeded=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(2)))
    assert [tensor.tolist() for tensor in tensors] == [[0, 10], [1, 11]]
