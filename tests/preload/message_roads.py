"""Unusual messages, from one process with the GPUs of Cedar: the library that carries them, and the data.

``message_roads.py PATH`` opens libblink.so as NCCL and prints a line of JSON per check. Up to 1000 bytes, and from
GPU 3 to GPU 1, messages take the direct path, which is NCCL's; longer ones take other GPUs and the host, which is
Blink's (``BLINK_PATHS``). One thread makes the calls of all ranks; only streams wait.
"""

import ctypes as c
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nccl_roads import INVALID_ARGUMENT, check, must

INT32, LARGE, SMALL, MOST = 2, 50_000, 100, 60_000


class Rank:
    """A GPU with two streams and memory for three messages."""

    def __init__(self, cuda: c.CDLL, device: int) -> None:
        self.cuda, self.context, self.stream, self.memory = cuda, c.c_void_p(), c.c_void_p(), c.c_uint64()
        self.other = c.c_void_p()
        must(cuda.cuDevicePrimaryCtxRetain(c.byref(self.context), device))
        must(cuda.cuCtxSetCurrent(self.context))
        for stream in (self.stream, self.other):
            must(cuda.cuStreamCreate(c.byref(stream), 1))
        must(cuda.cuMemAlloc_v2(c.byref(self.memory), c.c_size_t(3 * 4 * MOST)))

    def at(self, place: int) -> c.c_void_p:
        return c.c_void_p(self.memory.value + 4 * MOST * place)

    def put(self, place: int, seed: int) -> None:
        """Write the values of ``seed`` to a place, in stream order."""
        values = (c.c_int32 * MOST)(*(seed * 1_000_003 + i for i in range(MOST)))
        must(self.cuda.cuCtxSetCurrent(self.context))
        must(self.cuda.cuMemcpyHtoDAsync_v2(self.at(place), values, c.c_size_t(4 * MOST), self.stream))

    def wrong(self, place: int, seed: int, count: int) -> int:
        """The number of ``count`` elements that differ from those of ``seed``; waits for the stream."""
        values = (c.c_int32 * count)()
        must(self.cuda.cuCtxSetCurrent(self.context))
        must(self.cuda.cuMemcpyDtoHAsync_v2(values, self.at(place), c.c_size_t(4 * count), self.stream))
        must(self.cuda.cuStreamSynchronize(self.stream))
        return sum(value != seed * 1_000_003 + i for i, value in enumerate(values))


class Program:
    def __init__(self, path: str) -> None:
        self.nccl, self.cuda, self.read = c.CDLL(path), c.CDLL(os.environ["BLINK_CUDA_LIB"]), 0
        must(self.cuda.cuInit(0))
        self.ranks = [Rank(self.cuda, device) for device in range(4)]
        comms = (c.c_void_p * 4)()
        must(self.nccl.ncclCommInitAll(comms, 4, None))
        self.comms = [c.c_void_p(comm) for comm in comms]

    @contextmanager
    def group(self) -> Iterator[None]:
        must(self.nccl.ncclGroupStart())
        yield
        must(self.nccl.ncclGroupEnd())

    def send(self, rank: int, peer: int, count: int, place: int = 0) -> int:
        one = self.ranks[rank]
        return self.nccl.ncclSend(one.at(place), c.c_size_t(count), INT32, peer, self.comms[rank], one.stream)

    def receive(self, rank: int, peer: int, count: int, place: int = 1) -> int:
        one = self.ranks[rank]
        return self.nccl.ncclRecv(one.at(place), c.c_size_t(count), INT32, peer, self.comms[rank], one.stream)

    def reached(self) -> list[str]:
        """The ends of messages that NCCL received since the last call."""
        lines = Path(os.environ["BLINK_DOUBLE_NCCL_JOURNAL"]).read_text().splitlines()
        begin, self.read = self.read, len(lines)
        rows = [line.split() for line in lines[begin:]]
        return [row[0] for row in rows if row[5] == "outer" and row[0] in ("ncclSend", "ncclRecv")]


def others_do_nothing(program: Program) -> None:
    """Two ranks exchange messages whose paths lead over GPUs that make no call."""
    for rank in (0, 1):
        program.ranks[rank].put(0, rank)
    for calls in range(3):
        program.reached()
        with program.group():
            for rank in (0, 1):
                must(program.send(rank, 1 - rank, LARGE - calls))
                must(program.receive(rank, 1 - rank, LARGE - calls))
        check("both ways", [program.ranks[rank].wrong(1, 1 - rank, LARGE - calls) for rank in (0, 1)], [0, 0])
        check("without NCCL", program.reached(), [])
    must(program.send(0, 1, LARGE))  # outside of a group
    must(program.receive(1, 0, LARGE))
    check("one way", program.ranks[1].wrong(1, 0, LARGE), 0)


def of_nccl(program: Program) -> None:
    """NCCL's messages: empty ones, invalid ones, one to the rank itself, and one whose best path is direct."""
    program.reached()
    check("no such peer", (program.send(0, 4, LARGE), program.receive(0, -1, LARGE)), (INVALID_ARGUMENT,) * 2)
    check("of NCCL", program.reached(), ["ncclSend", "ncclRecv"])
    code = program.nccl.ncclSend(program.ranks[0].at(0), c.c_size_t(LARGE), 12, 1, program.comms[0], None)
    check("no such type", (code, program.reached()), (INVALID_ARGUMENT, ["ncclSend"]))
    code = program.nccl.ncclSend(None, c.c_size_t(LARGE), INT32, 1, program.comms[0], program.ranks[0].stream)
    check("no memory", (code, program.reached()), (INVALID_ARGUMENT, ["ncclSend"]))
    for what, peer, count in (("nothing", 1, 0), ("to itself", 0, LARGE), ("a short one", 1, SMALL)):
        program.ranks[0].put(0, 5)
        with program.group():
            must(program.send(0, peer, count))
            must(program.receive(peer, 0, count))
        check(what, (program.ranks[peer].wrong(1, 5, count), program.reached()), (0, ["ncclSend", "ncclRecv"]))


def one_waits_for_another(program: Program) -> None:
    """A group of one message of NCCL and one of Blink, where the first can end only after the second."""
    program.reached()
    program.ranks[3].put(0, 7)
    must(program.receive(2, 3, LARGE))
    with program.group():
        must(program.send(3, 1, LARGE))
        must(program.send(3, 2, LARGE))
    must(program.send(2, 1, LARGE, 1))  # what it has received
    must(program.receive(1, 2, LARGE, 1))
    must(program.receive(1, 3, LARGE, 2))
    check("the last", [program.ranks[1].wrong(place, 7, LARGE) for place in (1, 2)], [0, 0])
    check("of both", program.reached(), ["ncclSend", "ncclRecv"])


@contextmanager
def held(rank: Rank, stream: c.c_void_p) -> Iterator[None]:
    """A context in which the stream's work is held back until shortly after its end."""
    word, opener = c.c_uint64(), c.c_void_p()
    must(rank.cuda.cuCtxSetCurrent(rank.context))
    must(rank.cuda.cuMemAlloc_v2(c.byref(word), c.c_size_t(8)))
    must(rank.cuda.cuStreamCreate(c.byref(opener), 1))
    must(rank.cuda.cuMemsetD8Async(word, 0, c.c_size_t(8), opener))
    must(rank.cuda.cuStreamSynchronize(opener))
    must(rank.cuda.cuStreamWaitValue64_v2(stream, word, c.c_uint64(1), 0))
    yield
    time.sleep(0.2)
    must(rank.cuda.cuCtxSetCurrent(rank.context))
    must(rank.cuda.cuMemsetD8Async(word, 1, c.c_size_t(8), opener))


def a_call_after_a_message(program: Program) -> None:
    """In another stream, which only the communicator orders: the call forwards the message's data."""
    with held(program.ranks[0], program.ranks[0].stream):
        program.ranks[0].put(0, 9)
        must(program.send(0, 1, MOST))
        must(program.receive(1, 0, MOST))
        broadcast(program, 1, 2)
    for one in program.ranks:
        must(program.cuda.cuCtxSetCurrent(one.context))
        must(program.cuda.cuStreamSynchronize(one.other))
    check("passed on", [one.wrong(2, 9, MOST) for one in program.ranks], [0] * 4)


def a_message_after_a_call(program: Program) -> None:
    """The reverse: a message sends the data of a broadcast."""
    root = program.ranks[1]
    root.put(1, 11)
    must(program.cuda.cuStreamSynchronize(root.stream))
    with held(root, root.other):
        broadcast(program, 1, 2)
        must(program.send(2, 3, MOST, 2))
        must(program.receive(3, 2, MOST, 0))
    check("sent on", program.ranks[3].wrong(0, 11, MOST), 0)


def broadcast(program: Program, source: int, target: int) -> None:
    """Broadcast from rank 1, between these places, in the other streams."""
    with program.group():
        for one, comm in zip(program.ranks, program.comms, strict=True):
            data = one.at(source), one.at(target), c.c_size_t(MOST), INT32
            must(program.nccl.ncclBroadcast(*data, 1, comm, one.other))


def captured(program: Program) -> None:
    """Captured messages go to NCCL."""
    program.reached()
    graph = c.c_void_p()
    for rank in (0, 1):
        must(program.cuda.cuCtxSetCurrent(program.ranks[rank].context))
        must(program.cuda.cuStreamBeginCapture_v2(program.ranks[rank].stream, 1))
    with program.group():
        must(program.send(0, 1, LARGE))
        must(program.receive(1, 0, LARGE))
    check("captured", program.reached(), ["ncclSend", "ncclRecv"])
    for rank in (0, 1):
        must(program.cuda.cuCtxSetCurrent(program.ranks[rank].context))
        must(program.cuda.cuStreamEndCapture(program.ranks[rank].stream, c.byref(graph)))
        must(program.cuda.cuGraphDestroy(graph))


def nobody_receives(program: Program) -> None:
    """The sender gives up after BLINK_TIMEOUT, and every rank of the communicator gets the error."""
    must(program.send(0, 1, LARGE))
    given_up(program, 0)
    check("no more", program.send(0, 1, LARGE), 6)


def nobody_sends(program: Program) -> None:
    must(program.receive(1, 0, LARGE))
    given_up(program, 1)


def given_up(program: Program, rank: int) -> None:
    must(program.cuda.cuCtxSetCurrent(program.ranks[rank].context))
    must(program.cuda.cuStreamSynchronize(program.ranks[rank].stream))
    states = []
    for comm in program.comms:
        state = c.c_int(0)
        must(program.nccl.ncclCommGetAsyncError(comm, c.byref(state)))
        states.append(state.value)
    check("all know", states, [6] * 4)  # ncclRemoteError


def main(path: str) -> None:
    program = Program(path)
    scenes = others_do_nothing, of_nccl, one_waits_for_another, a_call_after_a_message, a_message_after_a_call, captured
    for scene in scenes:
        print(json.dumps({"what": scene.__name__, "ok": True}), flush=True)
        scene(program)
    nobody_receives(Program(path))
    nobody_sends(Program(path))


if __name__ == "__main__":
    main(sys.argv[1])
