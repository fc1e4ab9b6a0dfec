"""Rank processes for tests: forked, with a sum through shared memory and faults on request; and their launch.

python fake_ranks.py SOCKET RANKS [wrong|silent|dying|refusing|failing|twice|stranger|absent|writing]
"""

import mmap
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np

from blinkccl.bench.candidate import CandidateLaunch, Process
from blinkccl.bench.perform import private_memory
from blinkccl.bench.protocol import Command, RankHello
from blinkccl.bench.worker import serve
from blinkccl.errors import CommunicationError, UnsupportedError

SHARE = 1 << 20


def launch(fault: str = "", size: int = 2, name: str = "fake", variant: str = "", library: str = "") -> CandidateLaunch:
    """Return a candidate with such ranks."""

    def processes(path: Path, room: Path) -> list[Process]:
        return [Process([sys.executable, __file__, str(path), str(size), fault])]

    return CandidateLaunch(name, size, processes, variant, library)


class FakeLibrary:
    """A textbook AllReduce: every rank writes, every rank sums."""

    title = "fake 1.2.3"

    def __init__(self, rank: int, size: int, shared: np.ndarray, barrier: object, fault: str) -> None:
        self.rank, self.size, self.shared, self.barrier, self.fault = rank, size, shared, barrier, fault

    def allocate(self, size: int, shared: bool) -> np.ndarray:
        return private_memory(size)

    def time(self, command: Command, send: np.ndarray, recv: np.ndarray, warmup: int, iterations: int) -> np.ndarray:
        if self.fault == "refusing" and command.dtype == "int8":
            raise UnsupportedError("no int8 here")
        if self.fault == "failing":
            raise CommunicationError("rank 0 waited for nobody")
        if self.fault == "silent" and self.rank == 1:
            time.sleep(60)
        if self.fault == "dying" and self.rank == 1:
            print("the last words of rank 1", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        assert command.collective == "allreduce"
        for _ in range(warmup + iterations):
            self.shared[self.rank, : send.size] = send
            self.barrier.wait(10)
            parts = self.shared[:, : send.size].view(command.dtype)
            recv.view(command.dtype)[:] = parts.sum(axis=0)
            self.barrier.wait(10)
        if self.fault == "wrong" and self.rank == 1:
            recv.view(command.dtype)[3] += 1
        return np.arange(1, iterations + 1) * 1e-3 * (1 + self.rank)


def rank_process(rank: int, path: str, size: int, shared: np.ndarray, barrier: object, fault: str) -> None:
    library = FakeLibrary(rank, size, shared, barrier, fault)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        if fault == "stranger":
            peer.sendall(b"GET / HTTP/1.1\r\n" * 100)
            time.sleep(30)
        if fault == "twice":
            peer.sendall(RankHello(0, size, os.getpid(), library.title).pack())
            time.sleep(30)
        serve(peer, library, rank, size)
    if fault == "writing":
        time.sleep(0.5)
        Path(os.environ["BLINK_TIMELINE"], str(rank)).touch()


def main() -> None:
    path, size, fault = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
    if fault == "absent":
        sys.exit("there is nobody here")
    shared = np.frombuffer(mmap.mmap(-1, size * SHARE), np.uint8).reshape(size, SHARE)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(size)
    ranks = [
        context.Process(target=rank_process, args=(rank, path, size, shared, barrier, fault), daemon=True)
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    main()
