"""An NCCL program that times calls for ``blink tune``: the child process of :mod:`~blinkccl.bench.gpu_tune`.

It does not use Blink: libblink.so is preloaded and configured by the environment. One thread serves all GPUs, like
nccl-tests. Each line on stdin is answered with one on stdout, both JSON::

    {"do": "open"}                       {"gpus": [{"name": …, "uuid": …, "bus_id": …, …}], "driver": …, "nccl": …}
    {"do": "load", "name": "allreduce", "size_bytes": 65536}           {"wrong": ""}
    {"do": "time", "calls": 20}                                        {"seconds": 2.1e-05}
    {"do": "close"}                                                    {}

``open`` creates communicators, ``close`` destroys them. ``load`` puts data of a size on the GPUs, runs a call and
compares every element with the definition. ``time`` runs consecutive calls and returns the seconds per call on the
slowest GPU. All GPUs wait for a flag until everything is enqueued, so the time to enqueue for all GPUs in one thread
does not count: a job has a process per GPU. After a failure, ``{"failed": WHY}`` is the last line.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from blinkccl.bench.sizes import block_count
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.nccl.peer_copies import CopyGpu, Driver, DriverError

_POINTER, _EVENT = c.c_uint64, c.c_void_p
_MORE: dict[str, list[Any]] = {
    "cuDriverGetVersion": [c.POINTER(c.c_int)],
    "cuDeviceGetName": [c.c_char_p, c.c_int, c.c_int],
    "cuDeviceGetPCIBusId": [c.c_char_p, c.c_int, c.c_int],
    "cuMemFree_v2": [_POINTER],
    "cuMemsetD8Async": [_POINTER, c.c_ubyte, c.c_size_t, c.c_void_p],
    "cuEventCreate": [c.POINTER(_EVENT), c.c_uint],
    "cuEventRecord": [_EVENT, c.c_void_p],
    "cuEventElapsedTime": [c.POINTER(c.c_float), _EVENT, _EVENT],
    "cuMemHostRegister_v2": [c.c_void_p, c.c_size_t, c.c_uint],
    "cuMemHostGetDevicePointer_v2": [c.POINTER(_POINTER), c.c_void_p, c.c_uint],
    "cuStreamWaitValue64_v2": [c.c_void_p, _POINTER, c.c_uint64, c.c_uint],
}
#: ncclFloat32, ncclSum (for collectives that reduce), and the bytes of an element.
_FLOAT32, _SUM, _ITEMSIZE = 7, 0, 4
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
_PORTABLE_AND_MAPPED = 3
#: Period of the data in elements, no multiple of any chunk: large sizes are filled and compared in a second.
_PERIOD = 65_521
#: Most seconds that streams wait for the flag, because enqueueing may wait for them.
_MOST_HELD_S = 2.0
_FUNCTIONS = {
    "allreduce": "ncclAllReduce",
    "allgather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
}
#: Collectives that can be timed: those of data-parallel training.
SERVED = tuple(_FUNCTIONS)


def _grown(part: Any, period: int, count: int) -> Any:
    """Blocks of ``count`` elements that repeat the first ``period`` elements of each; None stays None."""
    if part is None or period == count:
        return part
    repeats = -(-count // period)
    return np.ascontiguousarray(np.tile(part.reshape(-1, period), (1, repeats))[:, :count]).reshape(-1)


class _Gpu(CopyGpu):
    """One GPU, with events for timing, the send buffer ``source`` and the receive buffer ``target``."""

    def __init__(self, driver: Driver, ordinal: int, flag: c.c_uint64) -> None:
        device = c.c_int()
        driver.call("cuDeviceGet", c.byref(device), ordinal)
        super().__init__(driver, device.value, 1)
        self.ordinal, self.flag, self.events = ordinal, _POINTER(), (_EVENT(), _EVENT())
        with self:
            for event in self.events:
                driver.call("cuEventCreate", c.byref(event), 0)
            if driver.try_call("cuMemHostGetDevicePointer_v2", c.byref(self.flag), c.byref(flag), 0):
                driver.call("cuMemHostRegister_v2", c.byref(flag), c.sizeof(flag), _PORTABLE_AND_MAPPED)
                driver.call("cuMemHostGetDevicePointer_v2", c.byref(self.flag), c.byref(flag), 0)

    def about(self) -> dict[str, Any]:
        """The facts for the planner."""

        def text(function: str) -> str:
            buffer = c.create_string_buffer(256)
            self.driver.call(function, buffer, 256, self.device)
            return buffer.value.decode("utf-8", "replace")

        def attribute(number: int) -> int:
            value = c.c_int()
            self.driver.call("cuDeviceGetAttribute", c.byref(value), number, self.device)
            return value.value

        uuid = (c.c_char * 16)()
        self.driver.call("cuDeviceGetUuid_v2", uuid, self.device)
        numbers = {"multiprocessors": _MULTIPROCESSORS, "major": _MAJOR, "minor": _MINOR}
        return {
            "device": self.ordinal,
            "name": text("cuDeviceGetName"),
            "bus_id": text("cuDeviceGetPCIBusId"),
            "uuid": uuid.raw.hex(),
            **{name: attribute(number) for name, number in numbers.items()},
        }

    def load(self, data: bytes, out_bytes: int) -> None:
        """Allocate buffers: ``data`` to send, and ``out_bytes`` of 0xFF to receive into."""
        with self:
            for buffer, nbytes in ((self.source, len(data)), (self.target, out_bytes)):
                self.driver.call("cuMemFree_v2", buffer)
                self.driver.call("cuMemAlloc_v2", c.byref(buffer), max(1, nbytes))
            self.driver.call("cuMemsetD8Async", self.target, 0xFF, max(1, out_bytes), self.stream)
        self.write(self.source, data)


def open_nccl() -> c.CDLL:
    """Load NCCL from BLINK_NCCL_LIB, by its name, or from NVIDIA's wheels.

    Symbols are looked up among all libraries of the process, so a preloaded library comes first.
    """
    wheels = [str(path) for base in sys.path for path in sorted(Path(base).glob("nvidia/nccl/lib/libnccl.so.2"))]
    for path in filter(None, [os.environ.get("BLINK_NCCL_LIB"), "libnccl.so.2", *wheels]):
        try:
            c.CDLL(path, mode=c.RTLD_GLOBAL)
        except OSError:
            continue
        return c.CDLL(None)
    raise DriverError("libnccl.so.2 cannot be loaded: install NCCL, or set BLINK_NCCL_LIB to its path")


class Client:
    """All GPUs of a job, and their communicators."""

    def __init__(self, ordinals: list[int]) -> None:
        self.driver = Driver(os.environ.get("BLINK_CUDA_LIB") or "libcuda.so.1", _MORE)
        self.nccl = open_nccl()
        self.driver.call("cuInit", 0)
        self.flag = c.c_uint64()
        self.gpus = [_Gpu(self.driver, ordinal, self.flag) for ordinal in ordinals]
        self.comms = (c.c_void_p * len(ordinals))()
        self.collective, self.count = Collective("allreduce", len(ordinals)), 0

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self.nccl, function)(*arguments)
        if code:
            raise DriverError(f"{function} returned {code}")

    def open(self) -> dict[str, Any]:
        """Create the communicators; GPUs, driver and NCCL version."""
        version, driver = c.c_int(), c.c_int()
        self.call("ncclGetVersion", c.byref(version))
        self.driver.call("cuDriverGetVersion", c.byref(driver))
        ordinals = (c.c_int * len(self.gpus))(*[gpu.ordinal for gpu in self.gpus])
        self.call("ncclCommInitAll", self.comms, len(self.gpus), ordinals)
        gpus = [gpu.about() for gpu in self.gpus]
        return {"gpus": gpus, "driver": driver.value, "nccl": version.value}

    def close(self) -> dict[str, Any]:
        """Destroy the communicators, if any."""
        for place, comm in enumerate(self.comms):
            if comm:
                self.call("ncclCommDestroy", c.c_void_p(comm))
                self.comms[place] = None
        return {}

    def load(self, name: str, size_bytes: int) -> dict[str, Any]:
        """Put data of a size on the GPUs and run a call; ``wrong`` describes an error in its results."""
        size = len(self.gpus)
        self.collective = Collective(name, size, **dict.fromkeys(COLLECTIVES[name].parameters, 0))
        self.count = max(1, block_count(self.collective, size_bytes, _ITEMSIZE))
        period = min(self.count, _PERIOD)
        parts = make_inputs(self.collective, period, "float32", seed=period)
        results = oracle(self.collective, parts)
        inputs = [_grown(one, period, self.count) for one in parts]
        expected = [_grown(one, period, self.count) for one in results]
        for gpu, sent, got in zip(self.gpus, inputs, expected, strict=True):
            gpu.load(b"" if sent is None else sent.tobytes(), 0 if got is None else got.nbytes)
        self.enqueue()
        outputs = [
            None if one is None else np.frombuffer(gpu.read(gpu.target, one.nbytes), one.dtype)
            for gpu, one in zip(self.gpus, expected, strict=True)
        ]
        return {"wrong": mismatch(outputs, expected, self.count) or ""}

    def enqueue(self) -> None:
        """Enqueue one call on every GPU."""
        function, name = _FUNCTIONS[self.collective.name], self.collective.name
        tail = [_FLOAT32] + [_SUM] * (name in ("allreduce", "reduce_scatter", "reduce"))
        tail += [0] * (self.collective.root is not None)
        self.call("ncclGroupStart")
        for gpu, comm in zip(self.gpus, self.comms, strict=True):
            with gpu:
                self.call(function, gpu.source, gpu.target, c.c_size_t(self.count), *tail, c.c_void_p(comm), gpu.stream)
        self.call("ncclGroupEnd")

    def time(self, calls: int) -> dict[str, Any]:
        """Seconds per call of ``calls`` consecutive calls, on the slowest GPU."""
        with self.held():
            for gpu in self.gpus:
                with gpu:
                    self.driver.call("cuEventRecord", gpu.events[0], gpu.stream)
            for _ in range(calls):
                self.enqueue()
            for gpu in self.gpus:
                with gpu:
                    self.driver.call("cuEventRecord", gpu.events[1], gpu.stream)
        taken = []
        for gpu in self.gpus:
            milliseconds = c.c_float()
            with gpu:
                self.driver.call("cuStreamSynchronize", gpu.stream)
                self.driver.call("cuEventElapsedTime", c.byref(milliseconds), *gpu.events)
            taken.append(milliseconds.value / 1e3)
        return {"seconds": max(taken) / calls}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold all streams until the end of the body, or for :data:`_MOST_HELD_S`; older drivers cannot hold them."""
        self.flag.value = 0
        late = threading.Timer(_MOST_HELD_S, self._go)
        late.start()
        try:
            for gpu in self.gpus:
                with gpu:
                    self.driver.try_call("cuStreamWaitValue64_v2", gpu.stream, gpu.flag, 1, 0)
            yield
        finally:
            self._go()
            late.cancel()

    def _go(self) -> None:
        self.flag.value = 1


def main() -> None:
    """Run ``gpu_client.py ORDINAL…``: answer until stdin ends."""
    c.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Output of libraries must not mix with answers.

    def reply(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        client = Client([int(word) for word in sys.argv[1:]])
        for line in sys.stdin:
            question = json.loads(line)
            reply(getattr(client, question.pop("do"))(**question))
        client.close()
    except (DriverError, MemoryError) as error:
        reply({"failed": str(error) or type(error).__name__})
    answers.flush()
    os._exit(0)  # Some drivers hang in their own cleanup.


if __name__ == "__main__":
    main()
