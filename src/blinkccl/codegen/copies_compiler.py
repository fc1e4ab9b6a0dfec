"""Generated code for copy engines: an object for this host, whose entries put a schedule into streams.

``libblink.so`` opens it beside the kernels' image. It needs no other library, and no GPU's compiler.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from blinkccl.codegen.command import compiled, version_of
from blinkccl.codegen.host_compiler import host_compiler

#: BLINK_COPIES: kernels' entries are left out (native/device/blink/copy_engine.h).
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-DBLINK_COPIES")


@dataclass(frozen=True)
class CopiesCompiler:
    """A C++17 compiler.

    Parameters
    ----------
    command
        How it is called, e.g. ``ccache g++``.
    flags
        What is given to it.
    """

    command: str
    include: Path
    flags: tuple[str, ...] = FLAGS
    suffix: str = ".so"

    def fingerprint(self) -> str:
        return "\n".join([version_of(self.command), *self.flags])

    def compile(self, text: str, deadline_s: float) -> bytes:
        def command(source: Path, output: Path) -> list[str]:
            start = [*shlex.split(self.command), *self.flags, f"-I{self.include}", "-x", "c++", str(source)]
            return [*start, "-o", str(output)]

        return compiled(text, ".cpp", command, deadline_s)


def copies_compiler() -> CopiesCompiler:
    """The compiler that :func:`blinkccl.codegen.host_compiler.host_compiler` finds.

    Raises
    ------
    UnsupportedError
        If there is none, or the package has no native part.
    """
    found = host_compiler()
    return CopiesCompiler(found.command, found.include)
