"""Does what one GPU writes into another's memory arrive there? The child process of :mod:`~blinkccl.nccl.peer_check`.

It talks to CUDA's driver, which may hang or crash it, and to its parent in lines, each of them flushed::

    stdin   {"uuids": ["6f…", …], "pairs": [[0, 1], …]}      pairs of indexes into uuids, in the order to try
    stdout  ready                                            all GPUs are found and have contexts
            begin 0 1                                        about to copy
            good 0 1  |  bad 0 1 WHY
            failed WHY                                       nothing can be said of any pair

The copies are those of the driver, from a context that has peer access: the same way that kernels' stores take. It uses
only functions that libblink.so needs as well.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys
from collections.abc import Callable, Sequence
from hashlib import shake_128
from typing import Any

#: More than a page, and no power of two.
PATTERN_BYTES = (1 << 20) + 272
_ALREADY_ENABLED = 704
_MOST_DEVICES = 256

#: What lies in the target before: no byte is right by chance.
_COMPLEMENT = bytes(range(255, -1, -1))

_POINTER = c.c_uint64
#: Function of the driver → its arguments.
_FUNCTIONS: dict[str, list[Any]] = {
    "cuInit": [c.c_uint],
    "cuGetErrorName": [c.c_int, c.POINTER(c.c_char_p)],
    "cuDeviceGet": [c.POINTER(c.c_int), c.c_int],
    "cuDeviceGetUuid_v2": [c.c_char * 16, c.c_int],
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
    """The driver refused; the message says what, by the driver's own name for it."""


class Driver:
    """CUDA's driver, every call checked.

    Parameters
    ----------
    path
        The library.

    Raises
    ------
    DriverError
        If it cannot be opened or lacks a function.
    """

    def __init__(self, path: str) -> None:
        try:
            self._library = c.CDLL(path)
            for name, arguments in _FUNCTIONS.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = c.c_int, arguments
        except (OSError, AttributeError) as error:
            raise DriverError(f"{path} cannot be used: {error}") from None

    def try_call(self, name: str, *arguments: Any) -> int:
        """The driver's answer; 0 is success."""
        code: int = getattr(self._library, name)(*arguments)
        return code

    def call(self, name: str, *arguments: Any) -> None:
        """As :meth:`try_call`; anything but success is an error."""
        code = self.try_call(name, *arguments)
        if code:
            raise DriverError(f"{name}: {self.name_of(code)}")

    def name_of(self, code: int) -> str:
        text = c.c_char_p()
        known = self.try_call("cuGetErrorName", code, c.byref(text)) == 0 and text.value
        return text.value.decode("ascii", "replace") if known and text.value else f"error {code}"


class Gpu:
    """A GPU with its primary context, a stream, and a buffer to copy from and one to copy into."""

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver, self.device = driver, device
        self.context, self.stream = c.c_void_p(), c.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", c.byref(self.context), device)
        self.source, self.target = _POINTER(), _POINTER()
        with self:
            driver.call("cuStreamCreate", c.byref(self.stream), 1)
            driver.call("cuMemAlloc_v2", c.byref(self.source), PATTERN_BYTES)
            driver.call("cuMemAlloc_v2", c.byref(self.target), PATTERN_BYTES)

    def __enter__(self) -> None:
        self.driver.call("cuCtxPushCurrent_v2", self.context)

    def __exit__(self, *_: object) -> None:
        self.driver.try_call("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))

    def write(self, at: c.c_uint64, data: bytes) -> None:
        with self:
            self.driver.call("cuMemcpyHtoDAsync_v2", at, data, len(data), self.stream)
            self.driver.call("cuStreamSynchronize", self.stream)

    def read(self, at: c.c_uint64) -> bytes:
        data = c.create_string_buffer(PATTERN_BYTES)
        with self:
            self.driver.call("cuMemcpyDtoHAsync_v2", data, at, PATTERN_BYTES, self.stream)
            self.driver.call("cuStreamSynchronize", self.stream)
        return data.raw


def pattern(src: int, dst: int) -> bytes:
    """Bytes of one ordered pair: as good as random, so that no other pair's and no other page's pass for them."""
    return shake_128(f"{src} {dst}".encode()).digest(PATTERN_BYTES)


def fault_of_copy(driver: Driver, source: Gpu, target: Gpu, data: bytes) -> str | None:
    """What is wrong with copies from one GPU to the other; None where all bytes arrive."""
    can = c.c_int()
    driver.call("cuDeviceCanAccessPeer", c.byref(can), source.device, target.device)
    if not can.value:
        return "CUDA grants no peer access"
    with source:
        enabled = driver.try_call("cuCtxEnablePeerAccess", target.context, 0)
    if enabled not in (0, _ALREADY_ENABLED):
        return f"cuCtxEnablePeerAccess: {driver.name_of(enabled)}"
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
    """Tries all pairs and says of each how it went."""
    driver.call("cuInit", 0)
    device_of = _devices(driver)
    missing = [uuid for uuid in uuids if uuid not in device_of]
    if missing:
        raise DriverError(f"CUDA of rank 0's process does not see GPU {missing[0]}: containers must share their GPUs")
    used = sorted({index for pair in pairs for index in pair})
    gpus = {index: Gpu(driver, device_of[uuids[index]]) for index in used}
    say("ready")
    for src, dst in pairs:
        say(f"begin {src} {dst}")
        try:
            why = fault_of_copy(driver, gpus[src], gpus[dst], pattern(src, dst))
        except DriverError as error:
            why = str(error)
        say(f"good {src} {dst}" if why is None else f"bad {src} {dst} {why}")


def _devices(driver: Driver) -> dict[str, int]:
    """CUDA's device by UUID."""
    found: dict[str, int] = {}
    for ordinal in range(_MOST_DEVICES):
        device, uuid = c.c_int(), (c.c_char * 16)()
        if driver.try_call("cuDeviceGet", c.byref(device), ordinal):
            break
        driver.call("cuDeviceGetUuid_v2", uuid, device)
        found[uuid.raw.hex()] = device.value
    return found


def main() -> None:
    """Reads the question from stdin and answers on stdout."""

    def say(line: str) -> None:
        print(line, flush=True)

    question = json.load(sys.stdin)
    try:
        driver = Driver(os.environ.get("BLINK_CUDA_LIB") or "libcuda.so.1")
        run(driver, question["uuids"], [(a, b) for a, b in question["pairs"]], say)
    except DriverError as error:
        say(f"failed {error}")
    sys.stdout.flush()
    os._exit(0)  # drivers have been seen to hang in their own clean-up


if __name__ == "__main__":
    main()
