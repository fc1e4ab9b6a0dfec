"""Generated code on emulated blocks with threads (tests/emulate): the code of GPUs, on this CPU.

A :class:`Machine` replaces the launcher of :mod:`support.generated`, so that its sessions run on the machine.
"""

import ctypes as c
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blinkccl.codegen.build import build
from blinkccl.codegen.command import compiled, version_of
from blinkccl.codegen.device_files import searched
from blinkccl.engines.buffers import filled
from support import generated
from support.engines import Array
from support.generated import LaunchCall

TESTS = Path(__file__).parents[1]
DEVICE, EMULATE = TESTS.parent / "native" / "device", TESTS / "emulate"
CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler: neither CXX, g++ nor clang++")
_FLAGS = ("-std=c++17", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-Werror")
#: Bodies report their accesses to plain_accesses.cpp instead of the sanitizer, so its library is not linked.
_BODIES = ("-O0", "-DBLINK_EMULATED", "-fsanitize=thread")


class FindingError(Exception):
    """An error that the emulation detected, with the seed."""


@dataclass(frozen=True)
class EmulatedCompiler:
    """Compiler of bodies with the headers in ``include``, for the machine in ``library``; None: the machine itself."""

    library: Path | None
    include: Path = DEVICE
    suffix: str = ".so"

    @property
    def _flags(self) -> tuple[str, ...]:
        return (*_FLAGS, *(("-O2",) if self.library is None else _BODIES))

    def fingerprint(self) -> str:
        assert CXX is not None
        return "\n".join([version_of(CXX), *self._flags, str(self.library)])

    def compile(self, text: str, deadline_s: float) -> bytes:
        def command(source: Path, output: Path) -> list[str]:
            assert CXX is not None
            include = [f"-I{path}" for path in (*searched(self.include), DEVICE, TESTS)]
            flags = shlex.join([*self._flags, *include, "-c", str(source), "-o", f"{output}.o"])
            linked = shlex.join(
                ["-shared", f"{output}.o", *([str(self.library)] if self.library else []), "-o", str(output)]
            )
            return ["sh", "-c", f"{CXX} {flags} && {CXX} {linked}"]

        return compiled(text, ".cpp", command, deadline_s)


@cache
def machine_library() -> Path:
    """Compile the machine that runs in one thread."""
    sources = [path for path in sorted(EMULATE.glob("*.cpp")) if path.name != "threads.cpp"]
    content = sha256(b"".join(path.read_bytes() for path in sorted(EMULATE.iterdir()))).hexdigest()
    text = f"// {content}\n" + "".join(f'#include "emulate/{path.name}"\n' for path in sources)
    return build(text, EmulatedCompiler(None))


@dataclass
class Machine:
    """Executor of launches with ``threads`` threads per block, each with the schedule of the next ``seed``."""

    threads: int = 64
    seed: int = 0
    #: Offset of buffers, in elements, from an address that suits all types.
    skew: int = 0
    launches: int = 0
    libraries: dict[str, c.CDLL] = field(default_factory=dict)

    def launch(self, entry: int, calls: c.Array[LaunchCall], blocks: int, timeout_s: float) -> None:
        library = c.CDLL(str(machine_library()))
        run = library.blink_emulate
        run.argtypes = [c.c_void_p, c.c_void_p, c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint64, c.c_char_p, c.c_uint32]
        text = c.create_string_buffer(1000)
        code = run(entry, c.addressof(calls), len(calls), blocks, self.threads, self.seed, text, len(text))
        self.seed, self.launches = self.seed + 1, self.launches + 1
        if code == 2:
            raise FindingError(text.value.decode())

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        memory = np.zeros(count * dtype.itemsize + 64 + self.skew * dtype.itemsize, np.uint8)
        start = -memory.ctypes.data % 64 + self.skew * dtype.itemsize
        return memory[start : start + count * dtype.itemsize].view(dtype)


#: Compiled libraries of the emulation, by name.
_libraries: dict[str, c.CDLL] = {}


@contextmanager
def emulated(machine: Machine) -> Iterator[Machine]:
    """Run sessions of :mod:`support.generated` on ``machine``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generated, "launch", machine.launch)
        patch.setattr(generated, "filled", partial(filled, zeros=machine.zeros))
        patch.setattr(generated, "host_compiler", lambda: EmulatedCompiler(machine_library()))
        patch.setattr(generated, "_libraries", _libraries)
        yield machine
