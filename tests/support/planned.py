"""Requests and plans for tests; the independent checker checks each plan before it is returned."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import UnsupportedError
from blinkccl.proof.check import check_plan
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.spec import parse_gpus, parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import to_document
from blinkccl.trees.forest.model import Cut, Forest, Path, Share, Tree, attained_rate


def with_ends(name: str, world_size: int, root: int = 0) -> Collective:
    """Return ``name`` with its root or ends: ``root`` is a position, -1 the last; sendrecv goes from it to the next."""
    root %= world_size
    ends = {"root": root, "src": root, "dst": (root + 1) % world_size}
    return Collective(name, world_size, **{key: ends[key] for key in COLLECTIVES[name].parameters})


def asked(
    spec: str | Topology,
    name: str = "allreduce",
    gpus: str | Sequence[int] | None = None,
    root: int = 0,
    **choices: Any,
) -> Request:
    """Return a request for ``name`` with the ends that follow from ``root``."""
    topology = parse_spec(spec) if isinstance(spec, str) else spec
    ranks = parse_gpus(gpus, topology) if gpus is None or isinstance(gpus, str) else tuple(gpus)
    return Request(topology, with_ends(name, len(ranks), root), ranks, **choices)


def planned(algorithm: str, request: Request) -> Forest:
    """Return the forest after :func:`assert_sound`."""
    forest = ALGORITHMS[algorithm].plan(request)
    assert forest.algorithm == algorithm
    assert_sound(forest)
    return forest


def plan_or_reason(algorithm: str, request: Request) -> Forest | str:
    """Return the unchecked forest, or the reason why the algorithm does not support the request."""
    try:
        return ALGORITHMS[algorithm].plan(request)
    except UnsupportedError as refusal:
        return refusal.reason


def plan(algorithm: str, spec: str, gpus: str | None, collective: str, **choices: Any) -> Forest:
    """Return the forest for :func:`asked` after :func:`assert_sound`."""
    return planned(algorithm, asked(spec, collective, gpus, **choices))


def by_hand(
    collective: Collective, topology: Topology, shares: Sequence[Share], ranks: tuple[int, ...] | None = None
) -> Forest:
    """Return a forest at the rate that its links allow; its bound is arbitrary."""
    rate = attained_rate(topology, shares)
    bound = Cut((topology.ranks[0],), rate, Fraction(1))
    return Forest(collective, ranks or topology.ranks, "by hand", topology, tuple(shares), rate, bound)


def broadcast_by_hand(topology: Topology, *trees: Sequence[Path]) -> Forest:
    """Return a broadcast from GPU 0 along the edges of these trees, each with an equal part of the data."""
    shares = [Share(Fraction(1, len(trees)), i, None, 0, None, Tree(0, tuple(x))) for i, x in enumerate(trees)]
    return by_hand(Collective("broadcast", len(topology.ranks), root=0), topology, shares)


def assert_sound(forest: Forest) -> None:
    """Check the forest with the independent checker, which also recomputes rate and bound."""
    verdict = check_plan(to_document(forest))
    assert verdict.violations == []
    assert (verdict.rate, verdict.bound) == (forest.rate, forest.bound)
    assert forest.rate <= forest.bound


def renumbered(topology: Topology, new: Mapping[int, int]) -> Topology:
    """Return the topology with other vertex ids."""
    vertices = tuple(replace(vertex, id=new[vertex.id]) for vertex in topology.vertices)
    links = tuple(replace(link, src=new[link.src], dst=new[link.dst]) for link in topology.links)
    return replace(topology, vertices=vertices, links=links)


def digraph(capacity: dict[tuple[int, int], int], gpus: int, switches: int = 0) -> Topology:
    """Return GPUs 0 … gpus−1, then switches, and one link per entry."""
    kinds = ["gpu"] * gpus + ["switch"] * switches
    links = tuple(Link(u, v, c, "nvlink", 25.0 * c, "synthetic") for (u, v), c in sorted(capacity.items()))
    return Topology("drawn", 25.0, tuple(Vertex(i, kind) for i, kind in enumerate(kinds)), links)


def with_homes(program: Program) -> Program:
    """Return the program with queues in turn pushed, staged in a memory, pulled, staged in another."""
    queues = list(program.queues)
    for index, queue in enumerate(queues):
        if index % 2:
            memory = 90 + index // 2 % 2
            queues[index] = replace(queue, path=(queue.path[0], memory, queue.path[-1]), home=memory)
        elif index % 4 == 2:
            queues[index] = replace(queue, home=queue.path[0])
    return replace(program, queues=tuple(queues))
