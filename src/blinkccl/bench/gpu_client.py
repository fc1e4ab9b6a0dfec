"""An NCCL program that ``blink tune`` tells what to time: the child process of :mod:`~blinkccl.bench.gpu_tune`.

It knows nothing of Blink: libblink.so is preloaded, and its environment says what that is to do. One thread has all
GPUs, as nccl-tests has. It answers each line on stdin with one on stdout, both JSON::

    {"do": "open"}                       {"gpus": [{"name": …, "uuid": …, "bus_id": …, …}], "driver": …, "nccl": …}
    {"do": "load", "name": "allreduce", "size_bytes": 65536}           {"wrong": ""}
    {"do": "time", "calls": 20}                                        {"seconds": 2.1e-05}
    {"do": "close"}                                                    {}

``open`` makes communicators, ``close`` ends them; ``load`` puts data of a size on the GPUs, runs a call and
compares every element with the definition; ``time`` runs calls behind each other, and says what one takes on the GPU
that takes longest. All GPUs wait for a flag until everything is enqueued: what it costs one thread to enqueue for all
of them is no part of it, as a job has a process for each. A failure is ``{"failed": WHY}``, the last line.
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
#: ncclFloat32, ncclSum; elements are summed where anything is.
_FLOAT32, _SUM, _ITEMSIZE = 7, 0, 4
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
_PORTABLE_AND_MAPPED = 3
#: Elements after which data repeats itself, no multiple of any chunk: large sizes are made and compared in a second.
_PERIOD = 65_521
#: Nobody waits longer for a call that was not enqueued, as enqueueing may itself wait.
_MOST_HELD_S = 2.0
_FUNCTIONS = {
    "allreduce": "ncclAllReduce",
    "allgather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
}
#: What can be timed: what data-parallel training calls.
SERVED = tuple(_FUNCTIONS)


def _grown(part: Any, period: int, count: int) -> Any:
    """Blocks of so many elements, which go on as their first ``period`` ones do; None stays None."""
    if part is None or period == count:
        return part
    repeats = -(-count // period)
    return np.ascontiguousarray(np.tile(part.reshape(-1, period), (1, repeats))[:, :count]).reshape(-1)


class _Gpu(CopyGpu):
    """One GPU, with events for timing; ``source`` is sent and ``target`` received into."""

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
        """What the planner is told of it."""

        def text(function: str) -> str:
            found = c.create_string_buffer(256)
            self.driver.call(function, found, 256, self.device)
            return found.value.decode("utf-8", "replace")

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
        """New buffers: ``data`` to send, and no byte of it to receive into."""
        with self:
            for buffer, nbytes in ((self.source, len(data)), (self.target, out_bytes)):
                self.driver.call("cuMemFree_v2", buffer)
                self.driver.call("cuMemAlloc_v2", c.byref(buffer), max(1, nbytes))
            self.driver.call("cuMemsetD8Async", self.target, 0xFF, max(1, out_bytes), self.stream)
        self.write(self.source, data)


def open_nccl() -> c.CDLL:
    """NCCL by what BLINK_NCCL_LIB names, by its own name, or out of NVIDIA's wheels; looked up among all libraries of
    the process, so that one that is preloaded comes first."""
    wheels = [str(path) for base in sys.path for path in sorted(Path(base).glob("nvidia/nccl/lib/libnccl.so.2"))]
    for path in filter(None, [os.environ.get("BLINK_NCCL_LIB"), "libnccl.so.2", *wheels]):
        try:
            c.CDLL(path, mode=c.RTLD_GLOBAL)
        except OSError:
            continue
        return c.CDLL(None)
    raise DriverError("there is no libnccl.so.2: install NCCL, or name it by BLINK_NCCL_LIB")


class Client:
    """All GPUs of a job, and the communicators between them."""

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
        """Makes communicators, and says what runs."""
        version, driver = c.c_int(), c.c_int()
        self.call("ncclGetVersion", c.byref(version))
        self.driver.call("cuDriverGetVersion", c.byref(driver))
        ordinals = (c.c_int * len(self.gpus))(*[gpu.ordinal for gpu in self.gpus])
        self.call("ncclCommInitAll", self.comms, len(self.gpus), ordinals)
        gpus = [gpu.about() for gpu in self.gpus]
        return {"gpus": gpus, "driver": driver.value, "nccl": version.value}

    def close(self) -> dict[str, Any]:
        """Ends communicators, where there are any."""
        for place, comm in enumerate(self.comms):
            if comm:
                self.call("ncclCommDestroy", c.c_void_p(comm))
                self.comms[place] = None
        return {}

    def load(self, name: str, size_bytes: int) -> dict[str, Any]:
        """Data of a size, and the first call with it; what was wrong with its results, in words."""
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
        found = [
            None if got is None else np.frombuffer(gpu.read(gpu.target, got.nbytes), got.dtype)
            for gpu, got in zip(self.gpus, expected, strict=True)
        ]
        return {"wrong": mismatch(found, expected, self.count) or ""}

    def enqueue(self) -> None:
        """One call on every GPU."""
        function, name = _FUNCTIONS[self.collective.name], self.collective.name
        tail = [_FLOAT32] + [_SUM] * (name in ("allreduce", "reduce_scatter", "reduce"))
        tail += [0] * (self.collective.root is not None)
        self.call("ncclGroupStart")
        for gpu, comm in zip(self.gpus, self.comms, strict=True):
            with gpu:
                self.call(function, gpu.source, gpu.target, c.c_size_t(self.count), *tail, c.c_void_p(comm), gpu.stream)
        self.call("ncclGroupEnd")

    def time(self, calls: int) -> dict[str, Any]:
        """Seconds of one of so many calls behind each other, on the GPU that takes longest."""
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
        """Streams go on when the body has enqueued everything, or after a while; older drivers hold nothing."""
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
    """``gpu_client.py ORDINAL…``: answers until stdin ends."""
    c.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is for people

    def say(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    try:
        client = Client([int(word) for word in sys.argv[1:]])
        for line in sys.stdin:
            asked = json.loads(line)
            say(getattr(client, asked.pop("do"))(**asked))
        client.close()
    except (DriverError, MemoryError) as error:
        say({"failed": str(error) or type(error).__name__})
    answers.flush()
    os._exit(0)  # drivers have been seen to hang in their own clean-up


if __name__ == "__main__":
    main()
