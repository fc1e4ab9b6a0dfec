"""Peers written in C: compiled on first use, kept under a name that says what went in."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from blinkccl.errors import UnsupportedError
from blinkccl.native.headers import DIRECTORY

_HERE = Path(__file__).parent
_COMPILE_S = 120.0


def cache_directory() -> Path:
    """``$BLINK_CACHE``, or ``blink`` in the user's cache directory; only its owner may write there."""
    chosen = os.environ.get("BLINK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return (Path(chosen) if chosen else Path(base) / "blink") / "peers"


def build(source: str, compiler: Sequence[str], options: Sequence[str] = ()) -> Path:
    """The program made of ``source``, a file beside this one, in the cache, under a hash of all that goes into it."""
    parts = (_HERE / "peer.h", _HERE / source, *(DIRECTORY / "blink" / name for name in ("bench.h", "types.h")))
    texts = [path.read_bytes() for path in parts]
    line = [*compiler, "-I", str(_HERE), "-I", str(DIRECTORY), str(_HERE / source), *options]
    key = hashlib.sha256(b"\0".join([*texts, *(part.encode() for part in line)])).hexdigest()[:20]
    target = cache_directory() / f"{Path(source).stem}-{key}"
    if target.exists() and os.access(target, os.X_OK) and target.stat().st_uid == os.getuid():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent) as room:
            made = Path(room) / target.name
            _compile([*line, "-o", str(made)])
            made.replace(target)  # At once: two benchmarks may start side by side.
    except OSError as error:
        raise UnsupportedError(
            f"cannot keep {target}: {error.strerror or error}; BLINK_CACHE names another directory"
        ) from None
    return target


def _compile(line: Sequence[str]) -> None:
    try:
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=_COMPILE_S, check=False)
    except FileNotFoundError:
        raise UnsupportedError(f"there is no {line[0]}, which a peer has to be compiled with") from None
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"{line[0]} took more than {_COMPILE_S:.0f} s to compile a peer") from None
    if done.returncode != 0:
        said = "\n  ".join(done.stderr.strip().splitlines()[:6])
        raise UnsupportedError(f"cannot compile a peer: {shlex.join(line)}\n  {said}")
