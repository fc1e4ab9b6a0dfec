"""Rates that are known beforehand, and plans with every choice a request has."""

from __future__ import annotations

from typing import Any

from planned import assert_sound

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.forest.model import Forest
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.spec import load

#: (machine, GPUs) → optimum in lanes of broadcast, allreduce and allgather.
IN_LANES = {
    ("dgx-1v", None): ("6", "24/7", "48/7"),
    ("dgx-1v", "0,1,2,3"): ("4", "3", "16/3"),
    ("dgx-1v", "0,1,2,4,5,6"): ("4", "13/5", "24/5"),
    ("dgx-1v", "0,1,2,3,4"): ("2", "2", "5/2"),
    ("dgx-1p", None): ("4", "16/7", "32/7"),
    ("dgx-1p", "0,1,3,4,5,7"): ("3", "9/5", "18/5"),
}
#: The same in GB/s.
IN_GB_PER_S = {
    "dgx-a100": ("300", "1200/7", "2400/7"),
    "2x dgx-a100 @ 200Gbps": ("200", "520/3", "1040/3"),
    "16x dgx-a100 @ 200Gbps": (None, "320/3", "640/3"),
}


def asked(spec: str | Topology, name: str, gpus: str | None = None, root: int = 0, **choices: Any) -> Request:
    """A request for ``name``; ``root`` is a position, and sendrecv goes from it to the next rank."""
    topology, ranks = load(spec, gpus) if isinstance(spec, str) else (spec, spec.ranks)
    given = {"root": root, "src": root, "dst": (root + 1) % len(ranks)}
    wanted = {key: given[key] for key in COLLECTIVES[name].parameters}
    return Request(topology, Collective(name, len(ranks), **wanted), ranks, **choices)


def planned(algorithm: str, request: Request) -> Forest:
    """The forest, looked through and passed by the independent checker."""
    forest = ALGORITHMS[algorithm].plan(request)
    assert_sound(forest)
    return forest


def digraph(capacity: dict[tuple[int, int], int], gpus: int, switches: int = 0) -> Topology:
    """GPUs 0 … gpus−1, then switches, and one link per entry."""
    kinds = ["gpu"] * gpus + ["switch"] * switches
    links = tuple(Link(u, v, c, "nvlink", 25.0 * c, "synthetic") for (u, v), c in sorted(capacity.items()))
    return Topology("drawn", 25.0, tuple(Vertex(i, kind) for i, kind in enumerate(kinds)), links)
