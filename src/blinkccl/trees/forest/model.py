"""Forests: weighted shares of the data, each with its trees.

One type represents Blink, every baseline and all further algorithms. A share is a slice of the data. It is reduced up a
tree to its root, and then copied down a tree. Either stage may be absent:

=================  ==========================  =====================================
collective         ``reduce`` (up)             ``broadcast`` (down)
=================  ==========================  =====================================
broadcast          —                           tree from the root
reduce             tree to the root            —
allreduce          tree to any root            tree from the same root
allgather          — (or a path to a relay)    tree from the block's rank (or relay)
reduce_scatter     tree to the block's rank    —
gather, scatter,   —                           a path to the one keeper; the ranks
alltoall, sendrecv                             between only pass on
=================  ==========================  =====================================

A rank that needs a slice has it in three cases: the down-tree delivers it, the rank is the root, or data of a single
source passes the rank on the way up. Without a down-tree, only the root of a reduction has the result.

A switch with ``combines`` (in-network reduction) may stand in a tree like a rank, and be its root. It reduces data on
the way up and multicasts data on the way down (:mod:`blinkccl.trees.algorithms.in_switch`). It has no data of its own.

All vertices are ids of the topology. ``ranks[i]`` is rank ``i`` of the job; only
:class:`~blinkccl.collectives.spec.Collective` uses positions.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from math import lcm

from blinkccl.collectives.spec import Block, Collective, Item
from blinkccl.errors import InternalError
from blinkccl.topology.model import Topology

#: Weights and their sets of vertex ids.
WeighedSets = tuple[tuple[Fraction, tuple[int, ...]], ...]
#: One hop of a tree: vertex ids ``(u, …, v)`` in the direction of the data. Inner vertices only pass it on.
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A rooted tree over ranks and switches with in-network reduction.

    Edges point in the direction of the data: toward the root in an up-tree, away from it in a down-tree.

    In a down-tree, edges with the same parent are in the order of sending. In an up-tree, operands are reduced in the
    order of their lowest ranks (:mod:`blinkccl.schedule.lower`), independent of the order of edges.
    """

    root: int
    edges: tuple[Path, ...]

    def reversed(self) -> Tree:
        """The same tree with all edges reversed: an up-tree becomes a down-tree."""
        return Tree(self.root, tuple(path[::-1] for path in self.edges))


@dataclass(frozen=True, slots=True)
class Share:
    """One slice of the data and its trees. The slices of a ``block`` (a vertex id, see :class:`Item`) lie in order.

    ``weight`` is the size of the slice as a fraction of S. Shares with the same ``slice`` carry the same data
    (one-shot), and their weight counts once. The up-tree ends at ``root``, and the down-tree begins there.
    """

    weight: Fraction
    slice: int
    block: Block
    root: int
    reduce: Tree | None
    broadcast: Tree | None

    def trees(self) -> Iterator[Tree]:
        """The trees of the stages, up before down."""
        if self.reduce is not None:
            yield self.reduce
        if self.broadcast is not None:
            yield self.broadcast


@dataclass(frozen=True, slots=True)
class Cut:
    """Links leaving ``side`` carry ``capacity``; at least ``demand`` of S must cross: rate ≤ capacity / demand.

    ``kind`` is ``"cut"`` if the demand is the whole of S (Edmonds 1973). It is ``"ratio"`` if the demand counts the
    ranks on one side: the bottleneck ratio of AllGather and similar collectives (arXiv 2402.06787).
    """

    side: tuple[int, ...]
    capacity: Fraction
    demand: Fraction

    @property
    def kind(self) -> str:
        return "cut" if self.demand == 1 else "ratio"

    @property
    def bound(self) -> Fraction:
        return self.capacity / self.demand


@dataclass(frozen=True, slots=True)
class Partition:
    """Blocks that each hold a rank; ``capacity`` is half of the directed capacity between them.

    Every element of an AllReduce must cross between k blocks at least 2(k−1) times. Hence rate ≤ capacity / (k−1); on
    symmetric links without transit the bound is attained (Tutte 1961, Nash-Williams 1961).
    """

    blocks: tuple[tuple[int, ...], ...]
    capacity: Fraction

    kind = "partition"

    @property
    def bound(self) -> Fraction:
        return self.capacity / (len(self.blocks) - 1)


@dataclass(frozen=True, slots=True)
class Dual:
    """A price on every link: all links cost ``value``, one S costs at least ``cost``: rate ≤ value / cost.

    ``prices`` lists the positive prices. Without sets, ``cost`` holds for unicast store-and-forward trees (LP duality).
    With sets, it holds also for trees with in-network reduction. An out-tree enters every set of ``entered`` without
    its root, and an in-tree leaves every set of ``left`` without its root. A hop costs at least the weight of the sets
    that it enters, and at least that of the sets that it leaves (:mod:`blinkccl.trees.packing.in_network`).
    """

    prices: tuple[tuple[int, int, Fraction], ...]
    value: Fraction
    cost: Fraction
    entered: WeighedSets = ()
    left: WeighedSets = ()

    kind = "dual"

    @property
    def bound(self) -> Fraction:
        return self.value / self.cost


Certificate = Cut | Partition | Dual


@dataclass(frozen=True)
class Forest:
    """A collective as weighted trees, with the rate reached and a proof of an upper bound.

    ``rate`` and ``bound`` are S per unit of time, in units of the topology's ``unit_gb_per_s``. A share's load on a
    link is weight × rate × the number of times its trees cross the link. ``order`` is the order in which the plan
    claims to sum every element (:mod:`blinkccl.trees.forest.order`), or None.
    """

    collective: Collective
    ranks: tuple[int, ...]
    algorithm: str
    topology: Topology
    shares: tuple[Share, ...]
    rate: Fraction
    certificate: Certificate
    order: str | None = None

    @property
    def bound(self) -> Fraction:
        return self.certificate.bound

    @property
    def optimal(self) -> bool:
        return self.rate == self.bound

    @property
    def price(self) -> Fraction:
        """Bound / rate: an upper limit of the slowdown that an order causes."""
        return self.bound / self.rate

    @property
    def algbw_gb_per_s(self) -> float:
        """S / time in GB/s when every link runs at its stated rate."""
        return float(self.rate) * self.topology.unit_gb_per_s

    @cached_property
    def position(self) -> dict[int, int]:
        """Vertex id → rank."""
        return {vertex: i for i, vertex in enumerate(self.ranks)}

    def item(self, share: Share) -> Item:
        """The item of the collective to which the slice of ``share`` belongs."""
        return self._items[share.block]

    @cached_property
    def _items(self) -> dict[Block, Item]:
        return {to_ids(item.block, self.ranks): item for item in self.collective.items()}

    @cached_property
    def combining(self) -> tuple[int, ...]:
        """Switches with in-network reduction that are ends of hops."""
        able = {vertex.id for vertex in self.topology.vertices if vertex.combines}
        ends = {end for share in self.shares for tree in share.trees() for p in tree.edges for end in (p[0], p[-1])}
        return tuple(sorted(ends & able))

    @cached_property
    def depth(self) -> int:
        """The most hops from a root to a rank, over all trees."""
        return max((tree_depth(tree) for share in self.shares for tree in share.trees()), default=0)

    @cached_property
    def trees_per_block(self) -> int:
        """The most shares of one block. AllReduce, broadcast and reduce have one block, so all shares count."""
        return max(Counter(share.block for share in self.shares).values())

    @cached_property
    def longest_weight(self) -> int:
        """The largest denominator of a weight, as a fraction of a rank's block (of S if the collective has a root)."""
        blocks = 1 if self.collective.root is not None else len(self.ranks)
        return max((weight * blocks).denominator for weight in {share.weight for share in self.shares})

    @cached_property
    def link_load(self) -> dict[tuple[int, int], Fraction]:
        """Load per used link at ``rate``, in the topology's units."""
        return {arc: use * self.rate for arc, use in link_use(self.shares).items()}


def to_ids(block: Block, ranks: tuple[int, ...]) -> Block:
    """A block as vertex ids; the argument holds positions, as in Item."""
    if block is None:
        return None
    return ranks[block] if isinstance(block, int) else (ranks[block[0]], ranks[block[1]])


def tree_depth(tree: Tree) -> int:
    """Hops between the root and the farthest vertex; 0 for a tree without edges."""
    near: dict[int, list[int]] = defaultdict(list)
    for path in tree.edges:
        near[path[0]].append(path[-1])
        near[path[-1]].append(path[0])
    reached, level, depth = {tree.root}, [tree.root], 0
    while True:
        level = sorted({w for v in level for w in near[v]} - reached)
        if not level:
            return depth
        reached.update(level)
        depth += 1


def crossings(shares: Iterable[Share]) -> Counter[tuple[int, int]]:
    """Number of times that the trees of these shares cross each link."""
    hops = itertools.chain.from_iterable(tree.edges for share in shares for tree in share.trees())
    return Counter(itertools.chain.from_iterable(map(itertools.pairwise, hops)))


def link_use(shares: Iterable[Share]) -> dict[tuple[int, int], Fraction]:
    """Data that crosses each link, as a fraction of S."""
    units, scale = _use_in_units(shares)
    return {arc: Fraction(count, scale) for arc, count in units.items()}


def _use_in_units(shares: Iterable[Share]) -> tuple[Counter[tuple[int, int]], int]:
    """Integer units of data by link, and the number of units in S. Sums of fractions would be slow."""
    by_weight: dict[Fraction, list[Share]] = defaultdict(list)
    for share in shares:
        by_weight[share.weight].append(share)
    scale = lcm(*(weight.denominator for weight in by_weight))
    units: Counter[tuple[int, int]] = Counter()
    for weight, equal in by_weight.items():
        part = weight.numerator * (scale // weight.denominator)
        for arc, times in crossings(equal).items():
            units[arc] += part * times
    return units, scale


def attained_rate(topology: Topology, shares: Iterable[Share]) -> Fraction:
    """The rate at which the most loaded link is full. InternalError if no link is used, or a missing one is."""
    units, scale = _use_in_units(shares)
    if not units:
        raise InternalError("a forest without edges has no rate")
    capacity: Mapping[tuple[int, int], int] = {arc: link.capacity for arc, link in topology.link.items()}
    for arc in units:
        if arc not in capacity:
            raise InternalError(f"a tree crosses {arc[0]} → {arc[1]}, which is no link of {topology.name}")
    return min(Fraction(capacity[arc] * scale, count) for arc, count in units.items())


def digest(lines: list[str]) -> str:
    """The first 16 hexadecimal digits of SHA-256 over ``lines``; a reader can compare so few."""
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def topology_hash(topology: Topology) -> str:
    """Hash of unit, vertices and links. Names, notes and provenance do not affect a plan, so they are left out."""
    lines = [f"unit {topology.unit_gb_per_s!r}"]
    lines += [f"vertex {v.id} {v.kind} {v.server}" for v in sorted(topology.vertices, key=lambda v: v.id)]
    lines += [
        f"link {x.src} {x.dst} {x.capacity} {x.kind}{x.by and f' {x.by}'}"
        for x in sorted(topology.links, key=lambda x: (x.src, x.dst))
    ]
    return digest(lines)


def forest_hash(forest: Forest) -> str:
    """Hash of collective, ranks, rate and shares. Algorithm and certificate move no data, so they are left out."""
    collective = forest.collective
    lines = [
        f"{collective.name} {collective.world_size} {collective.root} {collective.src} {collective.dst}",
        f"ranks {forest.ranks}",
        f"rate {forest.rate}",
    ]
    lines += [
        f"share {share.weight} {share.slice} {share.block} {share.root} {_tree(share.reduce)} {_tree(share.broadcast)}"
        for share in forest.shares
    ]
    return digest(lines)


def _tree(tree: Tree | None) -> str:
    return "-" if tree is None else f"{tree.root}:{tree.edges}"
