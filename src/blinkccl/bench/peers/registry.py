"""Which peers are there? What was typed after ``--peer`` becomes teams."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

from blinkccl.bench.contender import Process, Team
from blinkccl.bench.peers import mpi, oneccl
from blinkccl.errors import UnsupportedError

PEERS = ("gloo", *mpi.LIBRARIES, "oneccl")


def parse(text: str) -> list[tuple[str, str | None]]:
    """Peers and their prefixes, from ``gloo,openmpi=/opt/openmpi``.

    Raises
    ------
    UnsupportedError
        If a peer is unknown.
    """
    found: list[tuple[str, str | None]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, prefix = part.partition("=")
        if name not in PEERS:
            raise UnsupportedError(f"--peer {name}: expected some of {', '.join(PEERS)}")
        found.append((name, prefix or None))
    return found


def teams(name: str, prefix: str | None, world_size: int, cores: int) -> list[Team]:
    """The variants of one peer.

    Raises
    ------
    UnsupportedError
        If it is not installed.
    """
    if name == "gloo":
        return [gloo(world_size)]
    if name == "oneccl":
        return oneccl.teams(prefix, world_size, cores)
    return mpi.teams(name, prefix, world_size, cores)


def gloo(world_size: int) -> Team:
    """gloo, in this Python.

    Raises
    ------
    UnsupportedError
        If torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("gloo comes with torch, which is not installed: pip install torch")

    def processes(path: Path, room: Path) -> Sequence[Process]:
        port = _free_port()
        return [
            Process(
                [sys.executable, "-m", "blinkccl.bench.worker", "gloo", str(path)],
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                },
            )
            for rank in range(world_size)
        ]

    return Team("gloo", world_size, processes, library="gloo")


def own(world_size: int, deadline_s: float) -> Team:
    """Our own ranks, on the host engine."""

    def processes(path: Path, room: Path) -> Sequence[Process]:
        store = room / "store"
        store.mkdir(mode=0o700, exist_ok=True)
        return [
            Process(
                [sys.executable, "-m", "blinkccl.bench.worker", "blink", str(path)],
                {
                    "BLINK_RANK": str(rank),
                    "BLINK_WORLD_SIZE": str(world_size),
                    "BLINK_STORE": f"file://{store}",
                    "BLINK_BENCH_DEADLINE_S": str(deadline_s),
                },
            )
            for rank in range(world_size)
        ]

    return Team("blink", world_size, processes, library="blink-ccl")


def _free_port() -> int:
    """A port that is free now; gloo's ranks meet there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def version_of(distribution: str) -> str:
    """The installed version, "?" where the package is not installed as one."""
    try:
        return installed(distribution)
    except PackageNotFoundError:
        return "?"
