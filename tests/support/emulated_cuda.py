"""An emulated GPU in place of the driver, for the kernels of benchmarks and their host code."""

import ctypes as c
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from blinkccl.codegen.build import build
from support.emulation import EmulatedCompiler, FindingError, machine_library


@dataclass
class EmulatedCuda:
    """A replacement for ``cuda_driver.Cuda`` with one launch at a time; each launch has the next ``seed``."""

    seed: int = 0
    multiprocessors: int = 2
    #: (text, replacement): a planted fault.
    fault: tuple[str, str] | None = None
    _memory: dict[int, Any] = field(default_factory=dict)
    _libraries: list[c.CDLL] = field(default_factory=list)

    def compiled(self, text: str) -> bytes:
        if self.fault is not None:
            assert self.fault[0] in text
            text = text.replace(*self.fault)
        return build(text, EmulatedCompiler(machine_library())).read_bytes()

    def function(self, image: bytes, name: str) -> int:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "kernel.so")
            path.write_bytes(image)
            self._libraries.append(c.CDLL(str(path)))
        address = c.cast(getattr(self._libraries[-1], name), c.c_void_p).value
        assert address is not None
        return address

    def empty(self, nbytes: int) -> int:
        memory = np.full(nbytes + 256, 0xA5, np.uint8)
        address = int(memory.ctypes.data + -memory.ctypes.data % 256)
        self._memory[address] = memory
        return address

    def put(self, values: Any) -> int:
        flat = np.ascontiguousarray(values)
        address = self.empty(flat.nbytes)
        self.write(address, flat)
        return address

    def write(self, address: int, values: Any) -> None:
        c.memmove(address, values.ctypes.data, values.nbytes)

    def get(self, address: int, count: int, dtype: Any) -> Any:
        values = np.empty(count, dtype)
        c.memmove(values.ctypes.data, address, values.nbytes)
        return values

    def free(self, *addresses: int) -> None:
        for address in addresses:
            del self._memory[address]

    def stream(self) -> int:
        return 1

    def event(self, timing: bool = True) -> int:
        return 1

    def synchronize(self, stream: int) -> None:
        pass

    def launch(self, function: int, blocks: int, threads: int, stream: int, arguments: Sequence[Any]) -> None:
        run = c.CDLL(str(machine_library())).blink_emulate
        run.argtypes = [c.c_void_p, c.c_void_p, c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint64, c.c_char_p, c.c_uint32]
        text = c.create_string_buffer(1000)
        code = run(function, c.addressof(arguments[0]), 1, blocks, threads, self.seed, text, len(text))
        self.seed += 1
        if code:
            raise FindingError(text.value.decode())
