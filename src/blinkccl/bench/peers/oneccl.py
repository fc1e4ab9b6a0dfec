"""How is oneCCL found, and how are its ranks started?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from blinkccl.bench.contender import Process, Team
from blinkccl.bench.peers.build import build
from blinkccl.bench.peers.tuning import Variant, variants
from blinkccl.errors import UnsupportedError

#: What the static CPU library refers to: Intel's compiler run-time and hwloc.
_LIBRARIES = (
    "-lmpi",
    "-l:libintlc.so.5",
    "-l:libimf.so",
    "-l:libsvml.so",
    "-l:libirng.so",
    "-l:libhwloc.so.15",
    "-ldl",
    "-lpthread",
)


def teams(prefix: str | None, world_size: int, cores: int) -> list[Team]:
    """oneCCL under ``prefix``, or under ``$CCL_ROOT``.

    The prefix is where pip put ``oneccl``, ``oneccl-devel``, ``impi-rt``, ``intel-cmplr-lib-rt`` and ``tcmlib``
    (hwloc), e.g. a virtual environment of its own.

    Raises
    ------
    UnsupportedError
        If it is not there, or cannot be compiled for.
    """
    chosen = prefix or os.environ.get("CCL_ROOT")
    if chosen is None:
        raise UnsupportedError("oneccl is not on PATH: name its prefix with --peer oneccl=/path")
    root = Path(chosen).expanduser()
    archive, library = root / "lib" / "ccl" / "cpu" / "lib" / "libccl.a", root / "lib"
    launcher = root / "bin" / "mpirun"
    for path in (archive, launcher, root / "include" / "oneapi" / "ccl.hpp"):
        if not path.exists():
            raise UnsupportedError(f"oneccl={root}: expected {path.relative_to(root)} there")
    program = build(
        "oneccl_peer.cpp",
        ("c++",),
        (
            "-std=gnu++17",
            "-O2",
            f"-I{root / 'include'}",
            str(archive),
            f"-L{library}",
            f"-Wl,-rpath,{library}",
            *_LIBRARIES,
        ),
    )
    return [_team(launcher, program, world_size, row) for row in variants("oneccl", world_size, cores)]


def _team(launcher: Path, program: Path, world_size: int, row: Variant) -> Team:
    def processes(path: Path, room: Path) -> Sequence[Process]:
        line = [str(launcher), *row.options, "-n", str(world_size), str(program), str(path)]
        return [Process(line, {**row.environment, "TMPDIR": str(room)})]

    return Team("oneccl", world_size, processes, row.name, "oneCCL")
