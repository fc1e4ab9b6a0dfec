"""Libraries that ranks in Python measure: blink on the host engine, and gloo through ``torch.distributed``.

Gloo's timed loop is in Python; its times are a hundred times that overhead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from blinkccl.bench.perform import Bytes, private_memory, typed
from blinkccl.bench.protocol import Command, Flag, Kind
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.engines.host import NativeOp
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.communicator import Communicator, init
from blinkccl.runtime.heap import empty
from blinkccl.runtime.host_group import HostGroup
from blinkccl.runtime.peer_info import package_version
from blinkccl.schedule.text import from_json
from blinkccl.trees.algorithms.tables import Way


class OwnLibrary:
    """A communicator of the job in the environment, and the loop in C that times it."""

    def __init__(self, deadline_s: float) -> None:
        self.communicator: Communicator = init(deadline_s=deadline_s)
        self.rank: int = self.communicator.rank
        self.size: int = self.communicator.size
        self.title = f"blink-ccl {package_version()}"
        self._plan: tuple[HostPlan, int] | None = None
        self._rows: tuple[Way, ...] = ()
        #: Operations that live across blocks, as in a group, because they remember their fastest variant.
        self._ops: dict[tuple[tuple[Way, ...], CollectiveCall], NativeOp] = {}

    def prepare(self, kind: Kind, number: int, text: str) -> None:
        """See :class:`blinkccl.bench.perform.Library`."""
        if kind is Kind.CHOICE:
            self._plan, self._rows = None, msgspec.json.decode(text, type=tuple[Way, ...])
        else:
            self._plan, self._rows = (_laid_out(text), number) if text else None, ()

    def close(self) -> None:
        """Leave the job."""
        for op in self._ops.values():
            op.close()
        self.communicator.close()

    def allocate(self, size: int, shared: bool) -> Bytes:
        """Private memory, like that of peers, or a shared tensor."""
        if not shared:
            return private_memory(size)
        memory: Bytes = empty(size, np.uint8)
        return memory

    def time(
        self, command: Command, send: Bytes | None, recv: Bytes | None, warmup: int, iterations: int
    ) -> NDArray[np.float64]:
        """See :class:`blinkccl.bench.perform.Library`."""
        if command.op == "premul_sum":
            raise UnsupportedError("-o mulsum cannot be timed; -o sum does the same work except for one product")
        storage = element_type(command.dtype).storage
        if send is None and recv is None:  # A rank without data passes a buffer for its size and type.
            recv = private_memory(max(1, command.count * command.itemsize))[: command.count * command.itemsize]
        if self._plan is not None:
            return self._time_plan(*self._plan, command, send, recv, warmup + iterations)[warmup:]
        if self._rows:
            return self._time_rows(command, send, recv, warmup + iterations)[warmup:]
        lone = command.collective == "sendrecv"
        seconds = self.communicator.time(
            command.collective,
            typed(send, storage),
            typed(recv, storage),
            op=command.op,
            root=command.src if lone else command.root,
            dst=command.dst,
            iterations=warmup + iterations,
            with_barrier=bool(command.flags & Flag.WITH_BARRIER),
        )
        return seconds[warmup:]

    def _time_rows(
        self, command: Command, send: Bytes | None, recv: Bytes | None, iterations: int
    ) -> NDArray[np.float64]:
        group = self.communicator.group
        if not isinstance(group, HostGroup):
            raise UnsupportedError("the table of a host needs all ranks on one host")
        call = CollectiveCall(
            command.collective, command.dtype, command.count, command.op, command.root if command.root > 0 else 0
        )
        key = self._rows, call
        if key not in self._ops:
            self._ops[key] = group.prepare_choice(
                self._rows, command.count, command.dtype, command.op, call.among(self.size)
            )
        source, target = (None if buffer is None else buffer.ctypes.data for buffer in (send, recv))
        return group.time(self._ops[key], source, target, iterations, bool(command.flags & Flag.WITH_BARRIER))

    def _time_plan(
        self,
        plan: HostPlan,
        chunk_bytes: int,
        command: Command,
        send: Bytes | None,
        recv: Bytes | None,
        iterations: int,
    ) -> NDArray[np.float64]:
        group = self.communicator.group
        source, target = (None if buffer is None else buffer.ctypes.data for buffer in (send, recv))
        prepared = group.prepare(plan, command.count, command.dtype, command.op, chunk_bytes)
        try:
            return group.time(prepared, source, target, iterations, bool(command.flags & Flag.WITH_BARRIER))
        finally:
            prepared.close()


@lru_cache(maxsize=64)
def _laid_out(program: str) -> HostPlan:
    return HostPlan(from_json(program))


_TYPES = {"int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
_REFUSALS = {Kind.PROGRAM: "runs no Program", Kind.CHOICE: "reads no table"}
_REDUCING = {"reduce", "allreduce", "reduce_scatter"}
_WAIT = timedelta(seconds=120)


class GlooLibrary:
    """A process group of torch, named by ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``."""

    def __init__(self, backend: str = "gloo") -> None:
        try:
            torch: Any = import_module("torch")
        except ImportError:
            raise UnsupportedError("torch is not installed: pip install torch") from None
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            raise UnsupportedError("this torch was built without gloo")
        torch.set_num_threads(1)
        torch.distributed.init_process_group(backend, timeout=_WAIT)
        self._torch = torch
        self._dist = torch.distributed
        self.rank: int = self._dist.get_rank()
        self.size: int = self._dist.get_world_size()
        self.title = f"{backend} (torch {torch.__version__})"

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    def prepare(self, kind: Kind, number: int, text: str) -> None:
        """Refuse: gloo runs no plans and reads no tables."""
        raise UnsupportedError(f"gloo {_REFUSALS[kind]}")

    def allocate(self, size: int, shared: bool) -> Bytes:
        """Private memory."""
        if shared:
            raise UnsupportedError("gloo has no shared buffers")
        return private_memory(size)

    def time(
        self, command: Command, send: Bytes | None, recv: Bytes | None, warmup: int, iterations: int
    ) -> NDArray[np.float64]:
        """See :class:`blinkccl.bench.perform.Library`."""
        run = self._call(command, self._tensor(send, command), self._tensor(recv, command))
        seconds = np.empty(warmup + iterations)
        for i in range(warmup + iterations):
            began = time.perf_counter()
            self._dist.barrier()
            if not command.flags & Flag.WITH_BARRIER:
                began = time.perf_counter()
            run()
            seconds[i] = time.perf_counter() - began
        return seconds[warmup:]

    def _tensor(self, memory: Bytes | None, command: Command) -> Any:
        if memory is None:
            return None
        if command.dtype not in _TYPES:
            raise UnsupportedError(f"gloo has no element type {command.dtype}")
        return self._torch.from_numpy(memory).view(getattr(self._torch, command.dtype))

    def _call(self, command: Command, send: Any, recv: Any) -> Callable[[], object]:
        """The collective as a function of no arguments."""
        dist = self._dist
        if command.collective in _REDUCING and command.op not in _OPS:
            raise UnsupportedError(f"gloo has no operation {command.op}")
        op = getattr(dist.ReduceOp, _OPS.get(command.op, "SUM"))
        copies = send is not None and recv is not None and send.data_ptr() != recv.data_ptr()

        def then(run: Callable[[], object]) -> Callable[[], object]:
            """``run`` with a copy of the input before it if out of place: gloo has these collectives in place only."""
            return (lambda: (recv.copy_(send), run())) if copies else run

        def parts(buffer: Any) -> list[Any]:
            return list(buffer.chunk(self.size))

        root, at_root = command.root, self.rank == command.root
        calls: dict[str, Callable[[], Callable[[], object]]] = {
            "broadcast": lambda: then(lambda: dist.broadcast(recv, root)),
            "reduce": lambda: self._reduce(send, recv, root, op),
            "allreduce": lambda: then(lambda: dist.all_reduce(recv, op)),
            "allgather": lambda: lambda: dist.all_gather_into_tensor(recv, send),
            "reduce_scatter": lambda: lambda: dist.reduce_scatter_tensor(recv, send, op),
            "gather": lambda: (lambda into: lambda: dist.gather(send, into, root))(parts(recv) if at_root else None),
            "scatter": lambda: (lambda out: lambda: dist.scatter(recv, out, root))(parts(send) if at_root else None),
            "alltoall": lambda: lambda: dist.all_to_all_single(recv, send),
            "sendrecv": lambda: self._sendrecv(command, send, recv),
        }
        return calls[command.collective]()

    def _reduce(self, send: Any, recv: Any, root: int, op: Any) -> Callable[[], object]:
        """Reduce; ranks other than the root pass a copy, because gloo also writes their buffers."""
        into = recv if recv is not None else send.clone()
        if into.data_ptr() == send.data_ptr():
            return lambda: self._dist.reduce(into, root, op)
        return lambda: (into.copy_(send), self._dist.reduce(into, root, op))

    def _sendrecv(self, command: Command, send: Any, recv: Any) -> Callable[[], object]:
        if send is not None:
            return lambda: self._dist.send(send, command.dst)
        if recv is not None:
            return lambda: self._dist.recv(recv, command.src)
        return lambda: None
