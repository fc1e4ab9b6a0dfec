"""The paper's machines: allocations of a DGX-1 up to isomorphism, and the rates of today's rings there."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import networkx as nx

from blinkccl.topology.spec import load
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.ring import ring_count
from blinkccl.trees.forest.model import Forest
from support.planned import asked

Gpus = tuple[int, ...]


@cache
def nvlinks(machine: str) -> nx.Graph:
    """NVLinks with their width in lanes."""
    topology, ranks = load(machine)
    widths = {(x.src, x.dst): x.capacity for x in topology.links if x.kind == "nvlink"}
    lane = min(widths.values())
    graph = nx.Graph()
    graph.add_nodes_from(ranks)
    graph.add_weighted_edges_from((u, v, c // lane) for (u, v), c in widths.items())
    return graph


@cache
def settings(machine: str, *, connected: bool = True) -> tuple[Gpus, ...]:
    """One allocation of 3 to 8 GPUs of each isomorphism class, the first in lexicographic order."""
    classes: list[tuple[Gpus, nx.Graph]] = []
    for size in range(3, 9):
        for gpus in combinations(range(8), size):
            part = nvlinks(machine).subgraph(gpus)
            if connected and not nx.is_connected(part):
                continue
            if not any(len(other) == size and same(part, graph) for other, graph in classes):
                classes.append((gpus, part))
    return tuple(gpus for gpus, _ in classes)


def same(one: nx.Graph, other: nx.Graph) -> bool:
    """True if two graphs are isomorphic, widths included."""
    return bool(nx.is_isomorphic(one, other, edge_match=lambda a, b: a["weight"] == b["weight"]))


def plan(algorithm: str, machine: str, name: str, gpus: Sequence[int] | None = None, root: int = 0) -> Forest:
    return ALGORITHMS[algorithm].plan(asked(machine, name, gpus, root))


def rings(machine: str, gpus: Sequence[int]) -> int:
    """Number of NVLink rings that NCCL 2.4 finds."""
    return ring_count(asked(machine, "allreduce", gpus))
