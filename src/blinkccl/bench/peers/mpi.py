"""How is an MPI library found, and how are its ranks started?"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkccl.bench.contender import Process, Team
from blinkccl.bench.peers.build import build
from blinkccl.bench.peers.tuning import Variant, variants
from blinkccl.errors import UnsupportedError

#: What each library calls itself (MPI_Get_library_version), and how Debian and its own package name its programs.
LIBRARIES = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel(R) MPI"}
_PROGRAMS = {
    "openmpi": (("mpirun.openmpi", "mpicc.openmpi"), ("mpirun", "mpicc")),
    "mpich": (("mpirun.mpich", "mpicc.mpich"), ("mpirun", "mpicc")),
    "impi": (("mpirun", "mpigcc"), ("mpirun", "mpicc")),
}
_OPTIONS = ("-std=gnu11", "-O2")


@dataclass(frozen=True, slots=True)
class Installation:
    """An MPI library: its launcher, and how to compile for it."""

    launcher: str
    compiler: tuple[str, ...]
    options: tuple[str, ...]


def installation(peer: str, prefix: str | None) -> Installation:
    """The library ``peer`` under ``prefix``, or on PATH.

    Under a prefix the plain compiler is used: the wrappers of packages made for pip name directories of the machine
    that built them.

    Raises
    ------
    UnsupportedError
        If it is not there.
    """
    return _on_path(peer) if prefix is None else _under(peer, Path(prefix).expanduser())


def _under(peer: str, prefix: Path) -> Installation:
    launcher = prefix / "bin" / "mpirun"
    libraries = [
        path.parent
        for pattern in ("lib*/libmpi.so*", "lib*/release/libmpi.so*")
        for path in sorted(prefix.glob(pattern))
    ]
    if not launcher.exists() or not libraries or not (prefix / "include" / "mpi.h").exists():
        raise UnsupportedError(f"{peer}={prefix}: expected bin/mpirun, include/mpi.h and lib/libmpi.so there")
    library = libraries[0]
    return Installation(
        str(launcher), ("cc",), (f"-I{prefix / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}", "-lmpi")
    )


def _on_path(peer: str) -> Installation:
    for launcher, wrapper in _PROGRAMS[peer]:
        at, compiler = shutil.which(launcher), shutil.which(wrapper)
        said = _speaks(at) if at and compiler else None
        if at and compiler and (said == peer or (said is None and peer != "openmpi")):
            return Installation(at, (compiler,), ())
    raise UnsupportedError(f"{peer} is not on PATH: install it, or name its prefix with --peer {peer}=/path")


def _speaks(launcher: str) -> str | None:
    """Which library ``launcher`` belongs to; None where its version does not tell (MPICH and its kin)."""
    try:
        text = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, errors="replace", timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "nothing that runs"
    return "openmpi" if "Open MPI" in text else "impi" if "Intel" in text else None


def teams(peer: str, prefix: str | None, world_size: int, cores: int) -> list[Team]:
    """The variants of ``peer``, compiled and ready to start.

    Raises
    ------
    UnsupportedError
        If it is not installed, or cannot be compiled for.
    """
    found = installation(peer, prefix)
    program = build("mpi_peer.c", found.compiler, (*_OPTIONS, *found.options))
    rows = variants(peer, world_size, cores)
    return [_team(peer, found, program, world_size, row, len(rows) > 1) for row in rows]


def _team(peer: str, found: Installation, program: Path, world_size: int, row: Variant, named: bool) -> Team:
    def processes(path: Path, room: Path) -> Sequence[Process]:
        line = [found.launcher, *_launch_options(peer), *row.options, "-n", str(world_size), str(program), str(path)]
        # Open MPI keeps its session under TMPDIR; in a room of its own, runs side by side cannot meet.
        return [Process(line, {**row.environment, "TMPDIR": str(room)})]

    return Team(peer, world_size, processes, row.name if named else "", LIBRARIES[peer])


def _launch_options(peer: str) -> list[str]:
    if peer != "openmpi":
        return []
    return [*(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe"]
