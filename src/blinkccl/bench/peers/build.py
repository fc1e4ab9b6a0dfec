"""Peers in C, compiled on first use into the cache of compiled code."""

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
    """A compiler of a file in this directory to a program; see :class:`blinkccl.codegen.build.Compiler`."""

    source: str
    line: tuple[str, ...]
    options: tuple[str, ...]
    include: Path = _HERE
    suffix: str = ".peer"

    def fingerprint(self) -> str:
        """The compiler and its options, as a key of the cache."""
        return "\0".join([*self.line, *self.options])

    def compile(self, text: str, deadline_s: float) -> bytes:
        """The program's bytes."""
        with tempfile.TemporaryDirectory(prefix="blink-peer-") as room:
            binary = Path(room, "peer")
            includes = ["-I", str(_HERE), "-I", str(DIRECTORY)]
            line = [*self.line, *includes, str(_HERE / self.source), *self.options, "-o", str(binary)]
            output_of(line, deadline_s, "a peer")
            return binary.read_bytes()


def build(source: str, compiler: Sequence[str], options: Sequence[str] = ()) -> Path:
    """The program compiled from ``source``, a file in this directory; cached under a hash of all its inputs."""
    text = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("peer.h", source))
    return builds.build(text, _PeerCompiler(source, tuple(compiler), tuple(options)))
