"""A small NCCL program in pure ctypes: an AllReduce over all GPUs of this machine, checked.

    blink run --require -- python3 examples/nccl_client.py [GPUS] [BYTES]

It does not use Blink. Without NCCL, a driver or two GPUs it prints this and exits with 0 (with --need-gpus: 1).
"""

from __future__ import annotations

import argparse
import array
import ctypes as c
import os
import sys
from collections.abc import Callable
from pathlib import Path

FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t


class UnavailableError(Exception):
    """A component that this machine lacks; the message names it."""


class CallError(Exception):
    """A failed call; the message names it."""


def open_library(override: str, name: str, wheel: str | None) -> c.CDLL:
    """A library with the name in ``override``, with its own name, or from NVIDIA's wheels."""
    wheels = [str(path) for base in sys.path for path in sorted(Path(base).glob(wheel))] if wheel else []
    for path in filter(None, [os.environ.get(override), name, *wheels]):
        try:
            return c.CDLL(path, mode=c.RTLD_GLOBAL)
        except OSError:
            continue
    raise UnavailableError(f"there is no {name} here")


class Checked:
    """Functions of a library. Every result other than 0 is an error."""

    def __init__(self, library: c.CDLL, name: str) -> None:
        self._library, self._name = library, name

    def __getattr__(self, function: str) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            try:
                code = getattr(self._library, function)(*arguments)
            except AttributeError:
                raise UnavailableError(f"{self._name} has no {function}") from None
            if code:
                raise CallError(f"{function} returned {code}")

        return call


class Gpu:
    """A GPU with a stream and two buffers."""

    def __init__(self, cuda: Checked, ordinal: int, nbytes: int) -> None:
        self.cuda = cuda
        device = c.c_int()
        cuda.cuDeviceGet(c.byref(device), ordinal)
        self.context, self.stream = c.c_void_p(), c.c_void_p()
        cuda.cuDevicePrimaryCtxRetain(c.byref(self.context), device)
        self.send, self.recv = c.c_uint64(), c.c_uint64()
        with self:
            cuda.cuStreamCreate(c.byref(self.stream), 1)
            cuda.cuMemAlloc_v2(c.byref(self.send), c.c_size_t(nbytes))
            cuda.cuMemAlloc_v2(c.byref(self.recv), c.c_size_t(nbytes))

    def __enter__(self) -> None:
        self.cuda.cuCtxPushCurrent_v2(self.context)

    def __exit__(self, *_: object) -> None:
        self.cuda.cuCtxPopCurrent_v2(c.byref(c.c_void_p()))

    def fill(self, data: bytes) -> None:
        with self:
            self.cuda.cuMemcpyHtoDAsync_v2(self.send, data, c.c_size_t(len(data)), self.stream)
            self.cuda.cuStreamSynchronize(self.stream)

    def result(self, nbytes: int) -> bytes:
        data = c.create_string_buffer(nbytes)
        with self:
            self.cuda.cuStreamSynchronize(self.stream)
            self.cuda.cuMemcpyDtoHAsync_v2(data, self.recv, c.c_size_t(nbytes), self.stream)
            self.cuda.cuStreamSynchronize(self.stream)
        return data.raw


def gpus_here(cuda: Checked) -> int:
    """Number of GPUs, counted by requesting one after another."""
    try:
        cuda.cuInit(0)
    except CallError as error:
        raise UnavailableError(f"no GPU answers: {error}") from None
    count = 0
    while True:
        try:
            cuda.cuDeviceGet(c.byref(c.c_int()), count)
        except CallError:
            return count
        count += 1


def all_reduce(wanted: int | None, nbytes: int) -> str:
    """Sum over all GPUs; return a report for people."""
    cuda = Checked(open_library("BLINK_CUDA_LIB", "libcuda.so.1", None), "libcuda")
    open_library("BLINK_NCCL_LIB", "libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2")
    # Symbols are searched in all libraries of the process, so a preloaded one comes first; functions of the library
    # itself would bypass it.
    nccl = Checked(c.CDLL(None), "libnccl")
    version = c.c_int()
    nccl.ncclGetVersion(c.byref(version))
    size = min(gpus_here(cuda), wanted or 64)
    if size < 2:
        raise UnavailableError(f"{size} GPU(s) here, expected at least 2")
    gpus = [Gpu(cuda, ordinal, nbytes) for ordinal in range(size)]
    communicators = (c.c_void_p * size)()
    nccl.ncclCommInitAll(communicators, size, None)
    count = nbytes // 4
    for rank, gpu in enumerate(gpus):
        gpu.fill(array.array("f", [rank + i % 7 for i in range(count)]).tobytes())
    nccl.ncclGroupStart()
    for communicator, gpu in zip(communicators, gpus, strict=True):
        with gpu:
            nccl.ncclAllReduce(
                gpu.send, gpu.recv, c.c_size_t(count), FLOAT32, SUM, c.c_void_p(communicator), gpu.stream
            )
    nccl.ncclGroupEnd()
    ranks = size * (size - 1) // 2
    expected = array.array("f", [ranks + size * (i % 7) for i in range(count)]).tobytes()
    wrong = [rank for rank, gpu in enumerate(gpus) if gpu.result(nbytes) != expected]
    for communicator in communicators:
        nccl.ncclCommDestroy(c.c_void_p(communicator))
    if wrong:
        raise SystemExit(f"AllReduce of {nbytes} bytes on {size} GPUs: wrong on ranks {wrong}")
    return f"AllReduce of {nbytes} bytes on {size} GPUs with NCCL {version.value}: all sums are right"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="An AllReduce over the GPUs of this machine, through NCCL.")
    parser.add_argument("gpus", nargs="?", type=int, help="how many, at least 2; default: all")
    parser.add_argument("bytes", nargs="?", type=int, default=1 << 20, help="size of a buffer; default: 1 MiB")
    parser.add_argument("--need-gpus", action="store_true", help="fail where NCCL cannot run")
    chosen = parser.parse_args()
    try:
        print(all_reduce(chosen.gpus, max(4, chosen.bytes // 4 * 4)))
    except UnavailableError as error:
        print(f"NCCL cannot run here: {error}")
        raise SystemExit(1 if chosen.need_gpus else 0) from None
    except CallError as error:
        raise SystemExit(f"NCCL or CUDA failed: {error}") from None


if __name__ == "__main__":
    main()
