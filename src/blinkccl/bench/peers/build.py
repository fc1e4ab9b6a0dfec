"""Peers written in C: compiled on first use, and kept with all other compiled code."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkccl.codegen import build as builds
from blinkccl.codegen.command import output_of
from blinkccl.native.headers import DIRECTORY

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class _PeerCompiler:
    """Compiles a file beside this one to a program; see :class:`blinkccl.codegen.build.Compiler`."""

    source: str
    line: tuple[str, ...]
    options: tuple[str, ...]
    include: Path = _HERE
    suffix: str = ".peer"

    def fingerprint(self) -> str:
        """Which compiler it is, and how it is called."""
        return "\0".join([*self.line, *self.options])

    def compile(self, text: str, deadline_s: float) -> bytes:
        """The program's bytes."""
        with tempfile.TemporaryDirectory(prefix="blink-peer-") as room:
            made = Path(room, "peer")
            includes = ["-I", str(_HERE), "-I", str(DIRECTORY)]
            line = [*self.line, *includes, str(_HERE / self.source), *self.options, "-o", str(made)]
            output_of(line, deadline_s, "a peer")
            return made.read_bytes()


def build(source: str, compiler: Sequence[str], options: Sequence[str] = ()) -> Path:
    """The program made of ``source``, a file beside this one, in the cache, under a hash of all that goes into it."""
    text = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("peer.h", source))
    return builds.build(text, _PeerCompiler(source, tuple(compiler), tuple(options)))
