"""Programs against the CUDA driver double; each scene is one program: ``cuda_scenes.py NAME [ARGUMENT…]``."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class Cuda:
    """The driver that BLINK_CUDA_LIB names: ``cuda.cuMemAlloc_v2(...)`` returns the error code."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["BLINK_CUDA_LIB"])

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self.library, name)

        def call(*arguments: object) -> int:
            return int(function(*(ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments)))

        return call

    def ready(self, device: int = 0) -> int:
        """Initialises, makes the device current, returns its context."""
        expect(0, self.cuInit(0))
        context = self.out(self.cuDevicePrimaryCtxRetain, device)
        expect(0, self.cuCtxSetCurrent(context))
        return context

    def out(self, call: Callable[..., int], *arguments: object) -> int:
        """The value that a function writes through its first pointer."""
        value = ctypes.c_uint64()
        expect(0, call(ctypes.byref(value), *arguments))
        return value.value

    def allocate(self, count: int) -> int:
        return self.out(self.cuMemAlloc_v2, count)

    def stream(self, flags: int = 1) -> int:
        return self.out(self.cuStreamCreate, flags)

    def event(self, flags: int = 2) -> int:
        return self.out(self.cuEventCreate, flags)

    def fill(self, address: int, value: int, count: int) -> None:
        expect(0, self.cuMemsetD8Async(address, value, count, 0))
        expect(0, self.cuStreamSynchronize(0))

    def read(self, address: int, count: int) -> bytes:
        buffer = ctypes.create_string_buffer(count)
        expect(0, self.cuMemcpyDtoH_v2(buffer, address, count))
        return buffer.raw


def expect(wanted: object, seen: object) -> None:
    """An assertion that Python's -O keeps and that says both sides."""
    if wanted != seen:
        raise AssertionError(f"expected {wanted!r}, got {seen!r}")


cuda = Cuda()
NONE = ctypes.c_void_p(None)


def fresh_memory() -> None:
    cuda.ready()
    memory = cuda.allocate(5000)
    expect(b"\xa5" * 5000, cuda.read(memory, 5000))
    expect(0, memory % 256)


def overrun() -> None:
    """Past the end by an alignment and more: the guard page."""
    cuda.ready()
    ctypes.memset(cuda.allocate(4096 * 3) + 4096 * 3, 1, 1)


def small_overrun() -> None:
    cuda.ready()
    memory = cuda.allocate(1000)
    ctypes.memset(memory + 1000, 1, 1)
    cuda.cuMemFree_v2(memory)


def underrun() -> None:
    cuda.ready()
    ctypes.memset(cuda.allocate(4096 * 3) - 1, 1, 1)


def use_after_free() -> None:
    cuda.ready()
    memory = cuda.allocate(100)
    expect(0, cuda.cuMemFree_v2(memory))
    ctypes.memset(memory, 1, 1)


def events(rounds: str, waits: str) -> None:
    """Writes in one stream, copies in another, up to ``rounds`` times; says whether a copy came too early."""
    cuda.ready()
    a, b = cuda.allocate(4096), cuda.allocate(4096)
    for number in range(int(rounds)):
        writer, reader, written, read = cuda.stream(), cuda.stream(), cuda.event(), cuda.event()
        cuda.cuMemsetD8Async(a, number % 255 + 1, 4096, writer)
        cuda.cuEventRecord(written, writer)
        if waits == "yes":
            cuda.cuStreamWaitEvent(reader, written, 0)
        cuda.cuMemcpyDtoDAsync_v2(b, a, 4096, reader)
        cuda.cuEventRecord(read, reader)
        expect(0, cuda.cuEventSynchronize(read))
        if cuda.read(b, 4096) != bytes([number % 255 + 1]) * 4096:
            print("early")
            return
        cuda.cuStreamSynchronize(writer)
        for handle in (writer, reader):
            cuda.cuStreamDestroy_v2(handle)
    print("in order")


def free_while_open() -> None:
    """A peer that has gone holds nothing; one that has not, has the memory open."""
    cuda.ready()
    handle = IpcHandle()
    for stays in (False, True):
        memory = cuda.allocate(10000)
        cuda.cuIpcGetMemHandle(ctypes.byref(handle), memory)
        command = [sys.executable, __file__, "ipc_holder", bytes(handle).hex()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            if not stays:
                holder.kill()
                holder.wait()
            expect(0, cuda.cuMemFree_v2(memory))
    print("not noticed")


def ipc_holder(text: str) -> None:
    cuda.ready(1)
    cuda.out(cuda.cuIpcOpenMemHandle_v2, IpcHandle.from_buffer_copy(bytes.fromhex(text)), 1)
    print("open", flush=True)
    sys.stdin.read()  # to the end of whoever began this


def staging() -> None:
    """Pageable memory is read before the call returns; pinned memory when the stream reaches the copy."""
    cuda.ready()
    memory, gate, stream = cuda.allocate(100), cuda.allocate(8), cuda.stream()
    cuda.fill(gate, 0, 8)
    pageable, pinned = ctypes.create_string_buffer(b"a" * 50, 50), ctypes.create_string_buffer(b"a" * 50, 50)
    cuda.cuMemHostRegister_v2(pinned, 50, 0)
    cuda.cuStreamWaitValue64_v2(stream, gate, 1, 0)
    cuda.cuMemcpyHtoDAsync_v2(memory, pageable, 50, stream)
    cuda.cuMemcpyHtoDAsync_v2(memory + 50, pinned, 50, stream)
    pageable.raw = pinned.raw = b"b" * 50
    cuda.cuStreamWriteValue64_v2(cuda.stream(), gate, 1, 0)
    cuda.cuStreamSynchronize(stream)
    expect(b"a" * 50 + b"b" * 50, cuda.read(memory, 100))


def late_copies() -> None:
    """A copy that waits has read its source when it returns, and waits for nothing on the GPU but the legacy stream."""
    cuda.ready()
    memory, other, stream = cuda.allocate(8), cuda.allocate(8), cuda.stream()
    cuda.fill(memory, ord("a"), 8)
    pageable = ctypes.create_string_buffer(b"b" * 8, 8)
    expect(0, cuda.cuMemcpyHtoD_v2(memory, pageable, 8))
    pageable.raw = b"c" * 8
    expect(0, cuda.cuMemcpyDtoDAsync_v2(other, memory, 8, stream))
    expect(0, cuda.cuStreamSynchronize(stream))
    early = ctypes.string_at(other, 8)
    expect(0, cuda.cuStreamSynchronize(0))
    expect(b"b" * 8, ctypes.string_at(memory, 8))
    expect(b"a" * 8, early)


def ats() -> None:
    """An asynchronous copy reads its source when its stream reaches it, if GPUs read the host's pages."""
    cuda.ready()
    memory, gate, stream = cuda.allocate(50), cuda.allocate(8), cuda.stream()
    cuda.fill(gate, 0, 8)
    pageable = ctypes.create_string_buffer(b"a" * 50, 50)
    cuda.cuStreamWaitValue64_v2(stream, gate, 1, 0)
    cuda.cuMemcpyHtoDAsync_v2(memory, pageable, 50, stream)
    pageable.raw = b"b" * 50
    cuda.cuStreamWriteValue64_v2(cuda.stream(), gate, 1, 0)
    cuda.cuStreamSynchronize(stream)
    expect(b"b" * 50, cuda.read(memory, 50))


def side_by_side(path: str, way: str) -> None:
    """Two kernels that wait for each other, in two streams or two branches of a graph, and end if both run at once."""
    cuda.ready()
    function, state = _loaded(path, "meet"), cuda.allocate(16)
    cuda.fill(state, 0, 16)
    one, two, forked, joined = cuda.stream(), cuda.stream(), cuda.event(), cuda.event()
    if way == "branches":
        expect(0, cuda.cuStreamBeginCapture_v2(one, 2))
        cuda.cuEventRecord(forked, one)
        cuda.cuStreamWaitEvent(two, forked, 0)
    for stream in (one, two):
        expect(0, _launch(function, Call(2, state, 0, state + 8), 1, 32, stream))
    if way == "branches":
        cuda.cuEventRecord(joined, two)
        cuda.cuStreamWaitEvent(one, joined, 0)
        graph = ctypes.c_uint64()
        expect(0, cuda.cuStreamEndCapture(one, ctypes.byref(graph)))
        expect(0, cuda.cuGraphLaunch(cuda.out(cuda.cuGraphInstantiateWithFlags, graph.value, 0), one))
    met = ctypes.c_uint64.from_address(state)
    ends = time.monotonic() + 20
    while met.value == 0 and time.monotonic() < ends:
        pass
    time.sleep(0.2)
    print(met.value)
    ctypes.c_uint64.from_address(state + 8).value = 1  # give up
    for stream in (one, two):
        expect(0, cuda.cuStreamSynchronize(stream))
    expect(2, met.value)


def _loaded(path: str, name: str) -> int:
    module = cuda.out(cuda.cuModuleLoadData, ctypes.create_string_buffer(Path(path).read_bytes()))
    expect(500, cuda.cuModuleGetFunction(ctypes.byref(ctypes.c_uint64()), module, b"no_such_kernel"))
    return cuda.out(cuda.cuModuleGetFunction, module, name.encode())


class Call(ctypes.Structure):
    """The members of blink::Call that the kernels of these tests use, at their places."""

    _fields_ = [
        ("input", ctypes.c_uint64),
        ("output", ctypes.c_uint64),
        ("connections", ctypes.c_uint64),
        ("abort", ctypes.c_uint64),
        ("rest", ctypes.c_char * 96),
    ]


def _launch(function: int, call: Call, blocks: int, threads: int, stream: int) -> int:
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(call))
    return cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NONE)


def late_load(path: str) -> None:
    """A kernel that was asked for before can be asked for again while it waits; another one cannot."""
    cuda.ready()
    module = cuda.out(cuda.cuModuleLoadData, Path(path).read_bytes())
    function = cuda.out(cuda.cuModuleGetFunction, module, b"meet")
    state, stream = cuda.allocate(16), cuda.stream()
    cuda.fill(state, 0, 16)
    expect(0, _launch(function, Call(2, state, 0, state + 8), 1, 32, stream))
    while not cuda.read(state, 1)[0]:
        pass
    cuda.out(cuda.cuModuleGetFunction, module, b"meet")
    print("asked again", flush=True)
    cuda.out(cuda.cuModuleGetFunction, module, b"gather")
    cuda.fill(state + 8, 1, 8)
    expect(0, cuda.cuStreamSynchronize(stream))


def co_residency(path: str) -> None:
    """Blocks that wait for each other end if all fit (two do), and never if one does not; other kernels count too."""
    cuda.ready()
    function = _loaded(path, "meet")
    expect(2, cuda.out(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, 128, 0))
    state = cuda.allocate(16)
    for blocks, ends in ((2, True), (3, False)):
        cuda.fill(state, 0, 16)
        stream = cuda.stream()
        expect(0, _launch(function, Call(blocks, state, 0, state + 8), blocks, 128, stream))
        time.sleep(0.05 if not ends else 0)
        if ends:
            expect(0, cuda.cuStreamSynchronize(stream))
        else:
            expect(600, cuda.cuStreamQuery(stream))
            ctypes.c_uint64.from_address(state + 8).value = 1  # abort
            expect(0, cuda.cuStreamSynchronize(stream))
    cuda.fill(state, 0, 16)
    one, two, three = cuda.stream(), cuda.stream(), cuda.stream()
    for stream in (one, two, three):
        expect(0, _launch(function, Call(3, state, 0, state + 8), 1, 128, stream))
    time.sleep(0.05)
    expect([600] * 3, [cuda.cuStreamQuery(stream) for stream in (one, two, three)])
    ctypes.c_uint64.from_address(state + 8).value = 1
    for stream in (one, two, three):
        expect(0, cuda.cuStreamSynchronize(stream))


def capture_errors() -> None:
    cuda.ready()
    stream, other, event, outside = cuda.stream(0), cuda.stream(), cuda.event(), cuda.event()
    memory = cuda.allocate(64)
    graph, out = ctypes.byref(ctypes.c_uint64()), ctypes.byref(ctypes.c_uint64())

    def lost(error: int, seen: int) -> None:
        """The call gives the error, and the capture is lost."""
        expect(error, seen)
        expect(901, cuda.cuMemsetD8Async(memory, 0, 8, stream))
        expect(901, cuda.cuStreamEndCapture(stream, graph))
        expect(0, cuda.cuStreamBeginCapture_v2(stream, 0))

    expect(401, cuda.cuStreamEndCapture(stream, graph))
    expect(900, cuda.cuStreamBeginCapture_v2(0, 0))
    cuda.cuStreamBeginCapture_v2(stream, 0)
    lost(900, cuda.cuMemAlloc_v2(out, 100))
    lost(900, cuda.cuMemFree_v2(memory))
    lost(900, cuda.cuStreamSynchronize(stream))
    lost(900, cuda.cuStreamQuery(stream))
    lost(900, cuda.cuEventSynchronize(outside))
    lost(906, cuda.cuMemsetD8Async(memory, 0, 8, 0))
    cuda.cuEventRecord(event, stream)
    relaxed = ctypes.c_int(2)
    expect(0, cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed)))
    expect(0, relaxed.value)
    expect(0, cuda.cuMemAlloc_v2(out, 100))  # allowed now, and the capture goes on
    expect(907, cuda.cuEventQuery(event))
    expect(907, cuda.cuEventSynchronize(event))
    cuda.cuEventRecord(outside, other)
    lost(905, cuda.cuStreamWaitEvent(stream, outside, 0))
    expect(0, cuda.cuStreamBeginCapture_v2(other, 2))
    cuda.cuEventRecord(event, other)
    expect(902, cuda.cuStreamWaitEvent(stream, event, 0))
    expect(901, cuda.cuStreamEndCapture(stream, graph))
    expect(901, cuda.cuStreamEndCapture(other, graph))
    cuda.cuStreamBeginCapture_v2(stream, 2)
    cuda.cuEventRecord(event, stream)
    cuda.cuStreamWaitEvent(other, event, 0)
    expect(903, cuda.cuStreamEndCapture(other, graph))
    cuda.cuMemsetD8Async(memory, 0, 8, other)
    expect(904, cuda.cuStreamEndCapture(stream, graph))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
