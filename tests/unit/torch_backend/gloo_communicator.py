"""A transport for tests that need none of ours: the same interface, and torch's gloo below it.

What the tests of the backend prove with it is the torch side alone; tests/emulation runs the real thing.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from blinkccl.collectives.ops import DTYPES
from blinkccl.errors import DeadlineError

_OPS = {"sum": "SUM", "avg": "SUM", "premul_sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
_OPS |= {"band": "BAND", "bor": "BOR", "bxor": "BXOR"}


def at(address: int, count: int, dtype: str) -> torch.Tensor:
    """The ``count`` elements at ``address``."""
    kind = getattr(torch, dtype)
    if not count:
        return torch.empty(0, dtype=kind)
    memory = (ctypes.c_uint8 * (count * DTYPES[dtype].itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind)


class GlooCommunicator:
    """The interface of ``Transport`` over gloo."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.rank, self.size = rank, size
        timeout = timedelta(seconds=timeout_s)
        self._collectives = dist.ProcessGroupGloo(dist.PrefixStore("c", store), rank, size, timeout)
        self._messages = dist.ProcessGroupGloo(dist.PrefixStore("m", store), rank, size, timeout)
        self._counts: Counter[str] = Counter()
        self._fifo = ThreadPoolExecutor(1)
        self._waiters = ThreadPoolExecutor(32)

    def run_raw(self, name, send_ptr, recv_ptr, count, dtype, op="sum", root=0, scale=None, deadline_s=None):
        self._counts[name] += 1
        send_blocks = self.size if name in ("reduce_scatter", "scatter", "alltoall") else 1
        recv_blocks = self.size if name in ("allgather", "gather", "alltoall") else 1
        send = at(send_ptr, count * send_blocks, dtype).clone() if send_ptr else None
        recv = at(recv_ptr, count * recv_blocks, dtype) if recv_ptr else None
        if scale is not None:
            send.mul_(scale)
        try:
            getattr(self, f"_{name}")(send, recv, count, _OPS[op], root)
        except RuntimeError as error:
            raise DeadlineError(f"gloo: {error}") from error
        if op == "avg" and recv is not None:
            recv.div_(self.size) if recv.is_floating_point() else recv.div_(self.size, rounding_mode="trunc")

    def submit_raw(self, *arguments, **more):
        return self._fifo.submit(self.run_raw, *arguments, **more)

    def isend_raw(self, ptr, nbytes, dst, tag=0):
        self._counts["isend"] += 1
        work = self._messages.send([at(ptr, nbytes, "uint8")], dst, tag % 1000)
        return self._waiters.submit(lambda: work.wait() and None)

    def irecv_raw(self, ptr, nbytes, src, tag=0):
        self._counts["irecv"] += 1
        buffer = [at(ptr, nbytes, "uint8")]
        if src is None:
            work = self._messages.recv_anysource(buffer, tag % 1000)
        else:
            work = self._messages.recv(buffer, src, tag % 1000)
        return self._waiters.submit(lambda: (work.wait(), work._source_rank())[1])

    def stats(self):
        return self._counts

    def close(self):
        self._fifo.shutdown(cancel_futures=True)
        self._waiters.shutdown(wait=False, cancel_futures=True)

    abort = close

    def _allreduce(self, send, recv, count, op, root):
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        self._collectives.allreduce([send], options).wait()
        recv.copy_(send)

    def _reduce(self, send, recv, count, op, root):
        self._allreduce(send, send, count, op, root)
        if recv is not None and self.rank == root:
            recv.copy_(send)

    def _broadcast(self, send, recv, count, op, root):
        if self.rank == root:
            recv.copy_(send)
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._collectives.broadcast([recv], options).wait()

    def _allgather(self, send, recv, count, op, root):
        outputs = [torch.empty_like(send) for _ in range(self.size)]
        self._collectives.allgather([outputs], [send]).wait()
        recv.copy_(torch.cat(outputs))

    def _reduce_scatter(self, send, recv, count, op, root):
        self._allreduce(send, send, count, op, root)
        recv.copy_(send[self.rank * count : (self.rank + 1) * count])

    def _gather(self, send, recv, count, op, root):
        everything = torch.empty(count * self.size, dtype=send.dtype)
        self._allgather(send, everything, count, op, root)
        if self.rank == root:
            recv.copy_(everything)

    def _scatter(self, send, recv, count, op, root):
        everything = send if self.rank == root else torch.empty(count * self.size, dtype=recv.dtype)
        self._broadcast(everything, everything, count, op, root)
        recv.copy_(everything[self.rank * count : (self.rank + 1) * count])

    def _alltoall(self, send, recv, count, op, root):
        self._collectives.alltoall_base(recv, send, [], []).wait()
