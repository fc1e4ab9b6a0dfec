"""Ranks by server, and the order in which those of one server line up behind each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from blinkccl.algorithms.cycles import hamiltonian_path
from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.shapes import Paths
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Path
from blinkccl.topology.model import Topology


def by_server(topology: Topology, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each server, both in the order in which they are given."""
    servers: dict[int, list[int]] = {}
    for rank in ranks:
        servers.setdefault(topology.vertex[rank].server, []).append(rank)
    return tuple(map(tuple, servers.values()))


def require_one_server(request: Request, algorithm: str) -> None:
    """Refuse ranks on several servers, with their names."""
    servers = sorted({request.topology.vertex[rank].server for rank in request.ranks})
    if len(servers) > 1:
        raise UnsupportedError(
            f"{algorithm} works inside one server, but the ranks are on servers "
            f"{', '.join(map(str, servers))}; use --algo optimal"
        )


def stays_inside(network: Topology, path: Path) -> bool:
    """Whether ``path`` keeps to the server of its first vertex and crosses no NIC."""
    server = network.vertex[path[0]].server
    return all(network.vertex[v].server == server and network.vertex[v].kind != "nic" for v in path)


def line_up(
    network: Topology, paths: Paths, members: Sequence[int], start: int | None = None
) -> tuple[int, ...] | None:
    """The ranks of one server, from ``start`` if given, in an order in which each hop stays inside it; None if none."""
    arcs = {
        (u, v): min(network.link[arc].capacity for arc in pairwise(path))
        for (u, v), path in ((pair, paths[pair]) for pair in _pairs(paths, members))
        if stays_inside(network, path)
    }
    return hamiltonian_path(arcs, members, start)


def _pairs(paths: Paths, members: Sequence[int]) -> list[tuple[int, int]]:
    return [(u, v) for u in members for v in members if (u, v) in paths]
