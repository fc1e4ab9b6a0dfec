"""The binding of ``libblink_mpi.so`` to one MPI library: one C file, compiled with that library's ``mpi.h``.

It is linked with no library: its symbols are resolved by those of the program. So only ``mpi.h`` is needed: from the
launcher's prefix (``PREFIX/bin/mpirun``, ``PREFIX/include/mpi.h``), or from the compiler wrapper ``mpicc`` of the same
name and place.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from blinkccl.codegen.build import COMPILE_DEADLINE_S, build
from blinkccl.codegen.command import output_of
from blinkccl.errors import UnsupportedError
from blinkccl.native import absent, headers

_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun")
_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",
    "-fno-optimize-sibling-calls",
)
_INSTALL = "install it (Debian: apt install libopenmpi-dev, or libmpich-dev), or name it with --mpicc"


@dataclass(frozen=True, slots=True)
class CompiledBinding:
    """The compiled file, and the libraries to preload with ``libblink_mpi.so`` for this MPI library."""

    path: Path
    beside: tuple[str, ...]


def compiled_binding(command: Sequence[str], mpicc: str | None = None) -> CompiledBinding:
    """The binding for the MPI library of ``command``; UnsupportedError names a missing part or a compiler error.

    ``mpicc`` is a compiler wrapper of that library; None: the one of the launcher in ``command``, or the first on PATH.
    Cost: half a second at first, then from the cache.
    """
    directory = Path(str(files("blinkccl").joinpath("_native").joinpath("mpi")))
    parts = [directory / name for name in ("functions.h", "core.h", "binding.inc", "hosts.inc", "binding.c")]
    if not all(part.is_file() for part in parts):
        raise UnsupportedError(absent("mpi/binding.c"))
    line = _line(command, mpicc)
    text = "".join(part.read_text(encoding="utf-8") for part in parts)
    number = re.search(rb"^#define MPI_VERSION[ \t]+(\d+)", _macros(line), re.MULTILINE)
    # Programs test for the functions of MPI 4.
    later = ["libblink_mpi4.so"] if number is not None and int(number[1]) >= 4 else []
    return CompiledBinding(build(text, _Compiler(line, directory)), ("libblink_mpi_fortran.so", *later))


def _line(command: Sequence[str], mpicc: str | None) -> tuple[str, ...]:
    """The command that compiles a file with the right mpi.h."""
    if mpicc is not None:
        wrapper = shutil.which(mpicc)
        if wrapper is None:
            raise UnsupportedError(f"there is no {mpicc}: {_INSTALL}")
        return (wrapper,)
    launcher = shutil.which(command[0]) if command else None
    name = Path(launcher).name if launcher else ""
    kind = next((kind for kind in _LAUNCHERS if name.startswith(kind)), None)
    if launcher is None or kind is None:
        wrapper = shutil.which("mpicc")
    else:
        beside = Path(launcher).parent
        include = beside.parent / "include"
        if (include / "mpi.h").is_file():
            return (_plain(), f"-I{include}")
        wrapper = shutil.which("mpicc" + name.removeprefix(kind), path=str(beside)) or shutil.which("mpicc")
    if wrapper is None:
        raise UnsupportedError(
            "there is no mpicc, by which Blink finds the mpi.h of the MPI library that the program uses: " + _INSTALL
        )
    return (wrapper,)


def _plain() -> str:
    """Path of a C compiler."""
    named = os.environ.get("CC")
    compiler = shutil.which(named) if named else shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UnsupportedError("there is no C compiler for the binding to MPI: install one (Debian: apt install gcc)")
    return compiler


@dataclass(frozen=True)
class _Compiler:
    """Compiler of ``binding.c`` in ``include``; see :class:`blinkccl.codegen.build.Compiler`."""

    line: tuple[str, ...]
    include: Path
    suffix: str = ".so"

    def fingerprint(self) -> str:
        """The command and the content of mpi.h: another version of the library may have the same path."""
        return " ".join(self.line) + " " + sha256(_macros(self.line)).hexdigest()

    def compile(self, text: str, deadline_s: float) -> bytes:
        """The library's bytes."""
        includes = ["-I", str(self.include), "-I", str(headers.DIRECTORY)]
        with tempfile.TemporaryDirectory(prefix="blink-mpi-") as room:
            made, library = Path(room, "binding.o"), Path(room, "binding.so")
            source = str(self.include / "binding.c")
            _run([*self.line, *_FLAGS, *includes, "-c", source, "-o", str(made)], deadline_s)
            # The plain compiler, because the wrapper would add the MPI library.
            _run([_plain(), "-shared", str(made), "-o", str(library)], deadline_s)
            return library.read_bytes()


@lru_cache(maxsize=1)
def _macros(line: tuple[str, ...]) -> bytes:
    """All macros of mpi.h."""
    return _run([*line, "-E", "-dM", "-include", "mpi.h", "-x", "c", os.devnull], COMPILE_DEADLINE_S)


def _run(line: Sequence[str], deadline_s: float) -> bytes:
    advice = f"\nIs the header mpi.h of the MPI library there? Else {_INSTALL}"
    return output_of(line, deadline_s, "the binding to MPI", advice)
