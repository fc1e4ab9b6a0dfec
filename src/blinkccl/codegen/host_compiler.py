"""Generated code compiled for this host by any C++17 compiler: kernels for this CPU, or entries of copy engines.

Kernels become a shared library, which calls ``libblink_device.so``. The entries of copy engines enqueue a schedule on
streams; ``libblink.so`` opens them beside the kernels' image. They need neither another library nor a GPU compiler.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from blinkccl.codegen.command import compiled, version_of
from blinkccl.codegen.device_files import host_library, include_directory, searched
from blinkccl.errors import UnsupportedError

#: Most time is spent in the library, so optimizing its callers would cost more than it saves.
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-shared")
#: BLINK_COPIES leaves out the kernels' entries (native/device/blink/rows.h).
COPIES_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-DBLINK_COPIES")


@dataclass(frozen=True)
class HostCompiler:
    """A C++17 compiler with the command line ``command``, e.g. ``ccache g++``; links with ``library``, if any."""

    command: str
    include: Path
    library: Path | None
    flags: tuple[str, ...] = FLAGS
    suffix: str = ".so"

    def fingerprint(self) -> str:
        linked = [] if self.library is None else [str(self.library)]
        return "\n".join([version_of(self.command), *self.flags, *linked])

    def compile(self, text: str, deadline_s: float) -> bytes:
        def command(source: Path, output: Path) -> list[str]:
            start = [
                *shlex.split(self.command),
                *self.flags,
                *(f"-I{path}" for path in searched(self.include)),
                "-x",
                "c++",
                str(source),
            ]
            linked = [] if self.library is None else ["-x", "none", str(self.library)]
            return [*start, *linked, "-o", str(output)]

        return compiled(text, ".cpp", command, deadline_s)


def host_compiler() -> HostCompiler:
    """The compiler of kernels: ``CXX``, or the first of c++, g++ and clang++ on PATH; else UnsupportedError."""
    named = os.environ.get("CXX", "").strip()
    for command in [named] if named else ["c++", "g++", "clang++"]:
        if shutil.which(shlex.split(command)[0]):
            return HostCompiler(command, include_directory(), host_library())
    reason = f"CXX names {named!r}, which does not exist" if named else "none of c++, g++ and clang++ is on PATH"
    raise UnsupportedError(f"generated code needs a C++17 compiler, and {reason}; on Debian: apt install g++")


def copies_compiler() -> HostCompiler:
    """The compiler of copy engines' entries."""
    return replace(host_compiler(), library=None, flags=COPIES_FLAGS)
