"""The child process of :mod:`~blinkccl.nccl.peer_check`, which copies bytes between GPUs and compares them.

It calls CUDA's driver, which may hang or crash it. It exchanges flushed lines with its parent::

    stdin   {"uuids": ["6f…", …], "pairs": [[0, 1], …]}      pairs of indexes into uuids, in the order to try stdout
    ready                                            all GPUs exist and have contexts, where possible begin 0 1
    about to copy good 0 1  |  bad 0 1 WHY untried 0 1 WHY                                  CUDA gives no context or
    memory there; it grants the two access to each other failed WHY                                       no pair can be
    checked

The driver copies from a context with peer access, on the path of kernels' stores, by functions that libblink.so needs.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_128
from typing import Any

#: Bytes of a pattern, more than a page and not a power of two.
PATTERN_BYTES = (1 << 20) + 272
_ALREADY_ENABLED = 704
#: CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_DEVICE_UNAVAILABLE for a GPU that another process uses exclusively.
_TAKEN = (2, 46)
#: Older drivers give CUDA_ERROR_INVALID_DEVICE instead, with the compute mode CU_COMPUTEMODE_EXCLUSIVE_PROCESS.
_INVALID_DEVICE, _COMPUTE_MODE, _EXCLUSIVE_PROCESS = 101, 20, 3
_MOST_DEVICES = 256

#: Translation of the pattern to the target's first content, so that no byte is right by chance.
_COMPLEMENT = bytes(range(255, -1, -1))

_POINTER = c.c_uint64
#: Argument types by function of the driver.
_FUNCTIONS: dict[str, list[Any]] = {
    "cuInit": [c.c_uint],
    "cuGetErrorName": [c.c_int, c.POINTER(c.c_char_p)],
    "cuDeviceGet": [c.POINTER(c.c_int), c.c_int],
    "cuDeviceGetUuid_v2": [c.c_char * 16, c.c_int],
    "cuDeviceGetAttribute": [c.POINTER(c.c_int), c.c_int, c.c_int],
    "cuDeviceCanAccessPeer": [c.POINTER(c.c_int), c.c_int, c.c_int],
    "cuDevicePrimaryCtxRetain": [c.POINTER(c.c_void_p), c.c_int],
    "cuCtxPushCurrent_v2": [c.c_void_p],
    "cuCtxPopCurrent_v2": [c.POINTER(c.c_void_p)],
    "cuCtxEnablePeerAccess": [c.c_void_p, c.c_uint],
    "cuMemAlloc_v2": [c.POINTER(_POINTER), c.c_size_t],
    "cuStreamCreate": [c.POINTER(c.c_void_p), c.c_uint],
    "cuStreamSynchronize": [c.c_void_p],
    "cuMemcpyHtoDAsync_v2": [_POINTER, c.c_void_p, c.c_size_t, c.c_void_p],
    "cuMemcpyDtoHAsync_v2": [c.c_void_p, _POINTER, c.c_size_t, c.c_void_p],
    "cuMemcpyDtoDAsync_v2": [_POINTER, _POINTER, c.c_size_t, c.c_void_p],
}


class DriverError(Exception):
    """An error of the driver, with the driver's own name for it; ``code`` is its result, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Driver:
    """CUDA's driver with checked calls; ``more`` adds functions with their argument types."""

    def __init__(self, path: str, more: Mapping[str, list[Any]] | None = None) -> None:
        try:
            self._library = c.CDLL(path)
            for name, arguments in {**_FUNCTIONS, **(more or {})}.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = c.c_int, arguments
        except (OSError, AttributeError) as error:
            raise DriverError(f"{path} cannot be used: {error}") from None

    def try_call(self, name: str, *arguments: Any) -> int:
        """The driver's result; 0 is success."""
        code: int = getattr(self._library, name)(*arguments)
        return code

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver; DriverError for any result but success."""
        code = self.try_call(name, *arguments)
        if code:
            raise DriverError(f"{name}: {self.name_of(code)}", code)

    def name_of(self, code: int) -> str:
        text = c.c_char_p()
        known = self.try_call("cuGetErrorName", code, c.byref(text)) == 0 and text.value
        return text.value.decode("ascii", "replace") if known and text.value else f"error {code}"


class CopyGpu:
    """A GPU with its primary context, a stream, and a buffer to copy from and one to copy into."""

    def __init__(self, driver: Driver, device: int, nbytes: int = PATTERN_BYTES) -> None:
        self.driver, self.device = driver, device
        self.context, self.stream = c.c_void_p(), c.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", c.byref(self.context), device)
        self.source, self.target = _POINTER(), _POINTER()
        with self:
            driver.call("cuStreamCreate", c.byref(self.stream), 1)
            driver.call("cuMemAlloc_v2", c.byref(self.source), nbytes)
            driver.call("cuMemAlloc_v2", c.byref(self.target), nbytes)

    def __enter__(self) -> None:
        self.driver.call("cuCtxPushCurrent_v2", self.context)

    def __exit__(self, *_: object) -> None:
        self.driver.try_call("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))

    def write(self, at: c.c_uint64, data: bytes) -> None:
        with self:
            self.driver.call("cuMemcpyHtoDAsync_v2", at, data, len(data), self.stream)
            self.driver.call("cuStreamSynchronize", self.stream)

    def read(self, at: c.c_uint64, nbytes: int = PATTERN_BYTES) -> bytes:
        data = c.create_string_buffer(nbytes)
        with self:
            self.driver.call("cuMemcpyDtoHAsync_v2", data, at, nbytes, self.stream)
            self.driver.call("cuStreamSynchronize", self.stream)
        return data.raw


def pattern(src: int, dst: int) -> bytes:
    """Pseudo-random bytes of one ordered pair, which differ from those of other pairs and other pages."""
    return shake_128(f"{src} {dst}".encode()).digest(PATTERN_BYTES)


def open_gpu(driver: Driver, device: int) -> CopyGpu | str:
    """The GPU, or the reason if another process uses it or its memory exclusively."""
    try:
        return CopyGpu(driver, device)
    except DriverError as error:
        mode = c.c_int()
        if error.code == _INVALID_DEVICE:
            driver.call("cuDeviceGetAttribute", c.byref(mode), _COMPUTE_MODE, device)
        if error.code in _TAKEN or mode.value == _EXCLUSIVE_PROCESS:
            return str(error)
        raise


def fault_of_copy(driver: Driver, source: CopyGpu, target: CopyGpu, data: bytes) -> str | None:
    """The fault of copies from one GPU to another; None if all bytes arrive."""
    with source:
        enabled = driver.try_call("cuCtxEnablePeerAccess", target.context, 0)
    if enabled not in (0, _ALREADY_ENABLED):
        raise DriverError(f"cuCtxEnablePeerAccess: {driver.name_of(enabled)}", enabled)
    source.write(source.source, data)
    target.write(target.target, data.translate(_COMPLEMENT))
    with source:
        driver.call("cuMemcpyDtoDAsync_v2", target.target, source.source, len(data), source.stream)
        driver.call("cuStreamSynchronize", source.stream)
    arrived = target.read(target.target)
    if arrived == data:
        return None
    wrong = [index for index, (a, b) in enumerate(zip(arrived, data, strict=True)) if a != b]
    return f"{len(wrong)} of {len(data)} bytes arrive wrong, the first is byte {wrong[0]}"


def run(driver: Driver, uuids: Sequence[str], pairs: Sequence[tuple[int, int]], say: Callable[[str], None]) -> None:
    """Try all pairs and report each result by ``say``."""
    driver.call("cuInit", 0)
    device_of = _devices(driver)
    missing = [uuid for uuid in uuids if uuid not in device_of]
    if missing:
        raise DriverError(f"CUDA of rank 0's process does not see GPU {missing[0]}: containers must share their GPUs")
    used = sorted({index for pair in pairs for index in pair})
    devices = {index: device_of[uuids[index]] for index in used}
    gpus = {index: open_gpu(driver, device) for index, device in devices.items()}
    say("ready")
    for src, dst in pairs:
        say(f"begin {src} {dst}")
        can = c.c_int()
        try:
            driver.call("cuDeviceCanAccessPeer", c.byref(can), devices[src], devices[dst])  # needs no context
            say(_verdict(driver, gpus, src, dst) if can.value else f"bad {src} {dst} CUDA grants no peer access")
        except DriverError as error:
            say(f"{'untried' if error.code in _TAKEN else 'bad'} {src} {dst} {error}")


def _verdict(driver: Driver, gpus: Mapping[int, CopyGpu | str], src: int, dst: int) -> str:
    """The line of a pair to which CUDA grants access."""
    source, target = gpus[src], gpus[dst]
    for gpu in (source, target):
        if isinstance(gpu, str):
            return f"untried {src} {dst} {gpu}"
    assert isinstance(source, CopyGpu)
    assert isinstance(target, CopyGpu)
    why = fault_of_copy(driver, source, target, pattern(src, dst))
    return f"good {src} {dst}" if why is None else f"bad {src} {dst} {why}"


def _devices(driver: Driver) -> dict[str, int]:
    """CUDA's devices by UUID."""
    devices: dict[str, int] = {}
    for ordinal in range(_MOST_DEVICES):
        device, uuid = c.c_int(), (c.c_char * 16)()
        if driver.try_call("cuDeviceGet", c.byref(device), ordinal):
            break
        driver.call("cuDeviceGetUuid_v2", uuid, device)
        devices[uuid.raw.hex()] = device.value
    return devices


def main() -> None:
    """Read the question from stdin and answer on stdout."""

    def say(line: str) -> None:
        print(line, flush=True)

    question = json.load(sys.stdin)
    try:
        driver = Driver(os.environ.get("BLINK_CUDA_LIB") or "libcuda.so.1")
        run(driver, question["uuids"], [(a, b) for a, b in question["pairs"]], say)
    except DriverError as error:
        say(f"failed {error}")
    sys.stdout.flush()
    os._exit(0)  # some drivers hang in their own clean-up


if __name__ == "__main__":
    main()
