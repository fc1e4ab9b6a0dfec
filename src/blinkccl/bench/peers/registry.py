"""Peers of ``--peer``: the search for each library, and the launch of its ranks.

The settings give each peer its best times, for a fair comparison. Variants of one peer run in the same benchmark; at
every size, the fastest counts as the peer.

========  =========================================  =================================================================
peer      setting                                    why
========  =========================================  =================================================================
openmpi   btl_vader_single_copy_mechanism none (4),  cross-memory attach copies in the kernel: without it, AllReduce of
          smsc ^cma,knem,xpmem (5)                   1 MiB took 61 µs instead of 101 (measured here, 2 ranks, 4.1.4)
openmpi   mpi_yield_when_idle 1                      Open MPI's FAQ on oversubscribed nodes: waiting ranks must yield
                                                     their core
impi      I_MPI_FABRICS=shm                          Intel's developer reference: no network is needed in one host
impi      I_MPI_THREAD_YIELD=2                       Intel's developer reference; with more ranks than cores, 4 KiB take
                                                     milliseconds without it (measured here)
impi      I_MPI_THREAD_YIELD=3                       the same page; faster than 2 if other processes use the cores
mpich     none                                       no setting of 4 and 5 helped here
========  =========================================  =================================================================
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blinkccl.bench.candidate import CandidateLaunch, Process
from blinkccl.bench.peers.build import build
from blinkccl.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Variant:
    """Options and variables of a launcher; ``crowded``: only with more ranks than cores (None: always)."""

    name: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    crowded: bool | None = None


_NO_SINGLE_COPY = ("--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "smsc", "^cma,knem,xpmem")
#: Settings of Open MPI 4 and 5 for the directory of shared files; by default they stay in /dev/shm if mpirun is killed.
_BACKING = ("btl_vader_backing_directory", "btl_sm_backing_directory")
_YIELD = ("--mca", "mpi_yield_when_idle", "1")

VARIANTS: dict[str, tuple[Variant, ...]] = {
    "openmpi": (
        Variant("default", crowded=False),
        Variant("no single copy", _NO_SINGLE_COPY, crowded=False),
        Variant("yield", _YIELD, crowded=True),
        Variant("yield, no single copy", (*_YIELD, *_NO_SINGLE_COPY), crowded=True),
    ),
    "mpich": (Variant("default"),),
    "impi": (
        Variant("shm", environment={"I_MPI_FABRICS": "shm"}, crowded=False),
        Variant("shm, yield", environment={"I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "2"}, crowded=True),
        Variant("shm, sleep", environment={"I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "3"}, crowded=True),
    ),
}


def variants(peer: str, world_size: int, cores: int) -> tuple[Variant, ...]:
    """The variants of ``peer`` for ``world_size`` ranks on ``cores`` cores."""
    crowded = world_size > cores
    return tuple(row for row in VARIANTS[peer] if row.crowded in (None, crowded))


#: Each library's name in MPI_Get_library_version, and its programs' names in Debian and in its own package.
LIBRARIES = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel(R) MPI"}
_PROGRAMS = {
    "openmpi": (("mpirun.openmpi", "mpicc.openmpi"), ("mpirun", "mpicc")),
    "mpich": (("mpirun.mpich", "mpicc.mpich"), ("mpirun", "mpicc")),
    "impi": (("mpirun", "mpigcc"), ("mpirun", "mpicc")),
}
_OPTIONS = ("-std=gnu11", "-O2")
PEERS = ("gloo", *LIBRARIES)


def parse(text: str) -> list[tuple[str, str | None]]:
    """Peers and their prefixes, from ``gloo,openmpi=/opt/openmpi``."""
    peers: list[tuple[str, str | None]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, prefix = part.partition("=")
        if name not in PEERS:
            raise UnsupportedError(f"--peer {name}: expected some of {', '.join(PEERS)}")
        peers.append((name, prefix or None))
    return peers


def launches(name: str, prefix: str | None, world_size: int, cores: int) -> list[CandidateLaunch]:
    """The variants of one peer, compiled and ready to start."""
    if name == "gloo":
        return [gloo(world_size)]
    library = installation(name, prefix)
    program = build("mpi_peer.c", library.compiler, library.options)
    rows = variants(name, world_size, cores)
    return [_launch(name, library, program, world_size, row, row.name if len(rows) > 1 else "") for row in rows]


def _launch(
    peer: str, library: Installation, program: Path, world_size: int, row: Variant, variant: str
) -> CandidateLaunch:
    options: list[str] = []
    if peer == "openmpi":
        options = [*(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe"]

    def processes(path: Path, room: Path) -> Sequence[Process]:
        shared = [text for name in _BACKING for text in ("--mca", name, str(room))] if peer == "openmpi" else []
        line = [library.launcher, *options, *shared, *row.options, "-n", str(world_size), str(program), str(path)]
        # Open MPI has its session in TMPDIR; a private one keeps concurrent runs apart.
        return [Process(line, {**library.environment, **row.environment, "TMPDIR": str(room)})]

    return CandidateLaunch(peer, world_size, processes, variant, LIBRARIES[peer], in_memory=True)


def gloo(world_size: int) -> CandidateLaunch:
    """The launch of gloo, in this Python."""
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("--peer gloo needs torch, which is not installed: pip install torch")

    def processes(path: Path, room: Path) -> Sequence[Process]:
        environment = {
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        return [_worker("gloo", path, {**environment, "RANK": str(rank)}) for rank in range(world_size)]

    return CandidateLaunch("gloo", world_size, processes, library="gloo")


def own(world_size: int, deadline_s: float) -> CandidateLaunch:
    """The launch of blink's ranks, on the host engine."""

    def processes(path: Path, room: Path) -> Sequence[Process]:
        store = room / "store"
        store.mkdir(mode=0o700, exist_ok=True)
        environment = {
            "BLINK_WORLD_SIZE": str(world_size),
            "BLINK_STORE": f"file://{store}",
            "BLINK_BENCH_DEADLINE_S": str(deadline_s),
        }
        return [_worker("blink", path, {**environment, "BLINK_RANK": str(rank)}) for rank in range(world_size)]

    return CandidateLaunch("blink", world_size, processes, library="blink-ccl", of_blink=True)


def _worker(library: str, path: Path, environment: Mapping[str, str]) -> Process:
    return Process([sys.executable, "-m", "blinkccl.bench.worker", library, str(path)], environment)


def _free_port() -> int:
    """A port that is free now, for the rendezvous of gloo's ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed library: its launcher and variables, and the compiler and options of its peer."""

    launcher: str
    compiler: tuple[str, ...]
    options: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def installation(peer: str, prefix: str | None) -> Installation:
    """The library ``peer`` on PATH, or under ``prefix`` with plain cc: wrappers from pip have wrong paths."""
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
    environment = _finding(launcher)
    if peer == "impi":
        environment["I_MPI_ROOT"] = str(prefix)
    options = (*_OPTIONS, f"-I{prefix / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}", "-lmpi")
    return Installation(str(launcher), ("cc",), options, environment)


def _finding(launcher: Path) -> dict[str, str]:
    """The PATH with the launcher's directory first: a launcher starts other programs of its package."""
    return {"PATH": os.pathsep.join((str(launcher.parent), os.environ.get("PATH", os.defpath)))}


def _on_path(peer: str) -> Installation:
    for launcher, wrapper in _PROGRAMS[peer]:
        at, compiler = shutil.which(launcher), shutil.which(wrapper)
        library = _library_of(at) if at and compiler else None
        if at and compiler and (library == peer or (library is None and peer != "openmpi")):
            return Installation(at, (compiler,), _OPTIONS)
    raise UnsupportedError(f"{peer} is not on PATH: install it, or name its prefix with --peer {peer}=/path")


def _library_of(launcher: str) -> str | None:
    """The library of ``launcher``, from its version text; None for MPICH and its derivatives, which do not name it."""
    try:
        text = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, errors="replace", timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "nothing that runs"
    return "openmpi" if "Open MPI" in text else "impi" if "Intel" in text else None
