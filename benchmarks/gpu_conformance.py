"""Conformance of ranks on one GPU: collectives through libblink.so's plain interface, against the oracle.

      gpu_conformance.py SIZE all|few                  # every rank is a thread of this process
      gpu_conformance.py SIZE all|few RANK KEY         # one of them

Prints ``ok``, or the faults.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from cuda_driver import Cuda
from gpu_group import COLLECTIVES, DTYPE_NUMBERS, REDUCING, GpuGroup

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import Collective

COUNTS = (1, 17, 1037, 100_003)
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def calls(case: str, size: int) -> Iterator[tuple[Collective, int, str, str]]:
    """Collective, count, type and operation of each call; the same on all ranks."""
    if case == "few":
        yield Collective("allreduce", size), 1037, "float32", "sum"
        yield Collective("broadcast", size, root=0), 1037, "float32", "sum"
        return
    for name in COLLECTIVES:
        for root in range(size) if name in ROOTED else (None,):
            collective = Collective(name, size) if root is None else Collective(name, size, root=root)
            for count in COUNTS:
                yield collective, count, "float32", "sum"
            if name in REDUCING and not root:
                for dtype in DTYPE_NUMBERS:
                    for op in ("sum", "prod", "min", "max", "avg"):
                        yield collective, 1037, dtype, op


class Definition:
    """Inputs and outputs of a call on all ranks, computed once for all threads."""

    def __init__(self) -> None:
        self._lock, self._last = threading.Lock(), lru_cache(maxsize=2)(self._compute)

    def __call__(self, collective: Collective, count: int, dtype: str, op: str) -> tuple[Sequence[Any], Sequence[Any]]:
        with self._lock:
            return self._last(collective, count, dtype, op)

    @staticmethod
    def _compute(collective: Collective, count: int, dtype: str, op: str) -> tuple[Sequence[Any], Sequence[Any]]:
        inputs = make_inputs(collective, count, dtype, seed=count, op=op)
        return inputs, oracle(collective, inputs, op)


class Rank:
    """One rank's group, stream and buffers. Nothing is allocated or freed between calls: that waits for the whole GPU,
    and so for ranks that may be waiting for this one."""

    def __init__(self, group: GpuGroup, cuda: Cuda, definition: Definition) -> None:
        self.group, self.cuda, self.stream, self.definition = group, cuda, cuda.stream(), definition
        room = group.size * max(COUNTS) * 8
        self.send, self.recv = cuda.empty(room), cuda.empty(room)

    def run(self, call: tuple[Collective, int, str, str]) -> str | None:
        """Run one call; return the fault of this rank's output, or None."""
        collective, count, dtype, op = call
        rank, kind = self.group.rank, DTYPES[dtype].storage
        inputs, outputs = self.definition(*call)
        mine, expected = inputs[rank], outputs[rank]
        if mine is not None:
            self.cuda.write(self.send, mine)
        if expected is not None:
            self.cuda.write(self.recv, np.full(expected.nbytes, 0xA5, np.uint8))
        send, recv = None if mine is None else self.send, None if expected is None else self.recv
        self.group.run(CollectiveCall.of(collective, dtype, count, op), send, recv, self.stream)
        self.cuda.synchronize(self.stream)
        if expected is None:
            return None
        output = self.cuda.get(self.recv, expected.nbytes, np.uint8).view(kind)
        wrong = mismatch([output], [expected], count)
        return None if wrong is None else f"{collective.name} of {count} x {dtype}, {op}, on rank {rank}: {wrong}"


def new_key() -> str:
    """A text that no other group has."""
    return f"gpu-day/{secrets.token_hex(16)}"


def work(key: str, size: int, rank: int, case: str, definition: Definition) -> list[str]:
    """Run all calls of one rank."""
    cuda = Cuda(int(os.environ.get("BLINK_TEST_DEVICE", "0")))
    group = GpuGroup(key, rank, size, 0)
    one = Rank(group, cuda, definition)
    wrong = [text for call in calls(case, size) if (text := one.run(call)) is not None]
    group.close()
    return wrong


def conformance(size: int, case: str) -> tuple[int, list[str]]:
    """Run all ranks as threads of this process; return the number of calls per rank, and the faults."""
    definition, key = Definition(), new_key()
    with ThreadPoolExecutor(size) as pool:
        faults = list(pool.map(lambda rank: work(key, size, rank, case, definition), range(size)))
    return sum(1 for _ in calls(case, size)), [text for texts in faults for text in texts]


def main() -> int:
    size, case = int(sys.argv[1]), sys.argv[2]
    alone = sys.argv[3:]
    wrong = work(alone[1], size, int(alone[0]), case, Definition()) if alone else conformance(size, case)[1]
    print("\n".join(wrong[:20]) if wrong else "ok", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
