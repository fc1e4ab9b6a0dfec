"""Packing undirected spanning trees: the optimum of AllReduce on symmetric links.

    τ(G) = min over partitions P of the vertices of cap(P) / (|P| − 1)        (Tutte 1961, Nash-Williams 1961)

with cap(P) the undirected width between blocks. A partition that attains τ is the certificate. The trees are computed
without a solver, in three steps. Scale the widths by the denominator of τ = p/q. Direct every link (split its width
into the two directions) such that p units can flow from a root to every vertex. Pack p arborescences in the directed
network. Each tree is used once upward and once downward, so both directions of every link are equally full.

A packing of the *directed* graph, used for both phases, would give λ/2, up to a third less (0.667 in the worst
allocation of a DGX-1V). So this module implements the paper's "create an undirected graph".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.errors import InternalError, PackingError
from blinkccl.trees.packing.integral import Arborescence, merged, pack_arborescences
from blinkccl.trees.packing.maxflow import FlowGraph
from blinkccl.trees.packing.native_flows import INFINITE
from blinkccl.trees.packing.network import Arc, FlowNetwork, longest_way, rooted_at

#: Undirected edges (u < v) with their width.
Widths = dict[Arc, int]


def undirected_widths(network: FlowNetwork) -> Widths:
    """Width of each undirected edge of a switchless symmetric network. PackingError for other networks."""
    if not network.switchless or not network.symmetric:
        raise PackingError("undirected packing needs symmetric links and no transit vertices")
    return {(u, v): c for u, v, c in network.arcs if u < v}


def strength(n: int, widths: Mapping[Arc, int]) -> tuple[Fraction, tuple[tuple[int, ...], ...]]:
    """τ and a partition that attains it, coarse enough to show the bottleneck. PackingError if not connected.

    Newton's method on min over P of cap(P) − λ(|P| − 1). Each step is n maximum flows (the greedy algorithm of the
    Dilworth truncation, merging tight sets; Cunningham 1985).
    """
    if n < 2:
        raise PackingError("spanning trees need at least two vertices")
    blocks: tuple[tuple[int, ...], ...] = tuple((v,) for v in range(n))
    rate = Fraction(sum(widths.values()), n - 1)
    while True:
        value, better = _least_partition(n, widths, rate)
        if value >= 0:
            return rate, _coarsened(widths, blocks, rate)
        blocks = better
        rate = Fraction(crossing(widths, blocks), len(blocks) - 1)
        if rate == 0:
            parts = " and ".join("{" + ", ".join(map(str, block)) + "}" for block in blocks)
            raise PackingError(f"the vertices are not connected: {parts}")


def _coarsened(
    widths: Mapping[Arc, int], blocks: tuple[tuple[int, ...], ...], rate: Fraction
) -> tuple[tuple[int, ...], ...]:
    """Merge two blocks with exactly ``rate`` between them while there are any; the partition stays tight."""
    while len(blocks) > 2:
        home = {v: i for i, block in enumerate(blocks) for v in block}
        between: Counter[Arc] = Counter()
        for (u, v), w in widths.items():
            between[min(home[u], home[v]), max(home[u], home[v])] += w
        pairs = [pair for pair, width in between.items() if width == rate and pair[0] != pair[1]]
        if not pairs:
            break
        i, j = min(pairs)
        blocks = tuple(
            sorted([*(b for k, b in enumerate(blocks) if k not in (i, j)), tuple(sorted(blocks[i] + blocks[j]))])
        )
    return blocks


def crossing(widths: Mapping[Arc, int], blocks: Iterable[Iterable[int]]) -> int:
    """Total width between different blocks, which need not hold every vertex."""
    home = {v: i for i, block in enumerate(blocks) for v in block}
    return sum(w for (u, v), w in widths.items() if u in home and v in home and home[u] != home[v])


def _least_partition(n: int, widths: Mapping[Arc, int], rate: Fraction) -> tuple[Fraction, tuple[tuple[int, ...], ...]]:
    """The minimum over partitions of cap(P) − rate·(|P| − 1), times rate's denominator, and its partition."""
    p, q = rate.numerator, rate.denominator
    part = list(range(n))
    share: list[int] = []  # twice the greedy solution: x(X) ≤ d(X)·q/2 − p for every X, tight on every part
    terms = _Terms(n, {edge: q * w for edge, w in widths.items()})
    for last in range(n):
        # min of q·d(X) − share(X − last) over sets X with last ∈ X ⊆ {0 … last}, and the least such X
        value = terms.least([-x for x in share], inside=[last], outside=range(last + 1, n))
        share.append(value - 2 * p)
        joined = {part[v] for v in terms.members()}
        for v in range(n):
            if part[v] in joined:
                part[v] = last
    blocks: dict[int, list[int]] = {}
    for v in range(n):
        blocks.setdefault(part[v], []).append(v)
    partition = tuple(sorted(tuple(block) for block in blocks.values()))
    value = q * crossing(widths, partition) - p * (len(partition) - 1)
    return Fraction(value), partition


class _Terms:
    """Minimiser over vertex sets of the width that leaves a set plus a term per member, with fixed in- and outsiders.

    All minima use one graph, with a source before every vertex and a sink after it.
    """

    def __init__(self, n: int, widths: Mapping[Arc, int]) -> None:
        self._n, self._graph = n, FlowGraph(n + 2)
        for (u, v), w in widths.items():
            self._graph.add(u, v, w)
            self._graph.add(v, u, w)
        self._wide = sum(widths.values())
        self._into = [self._graph.add(n, v, 0) for v in range(n)]
        self._out = [self._graph.add(v, n + 1, 0) for v in range(n)]

    def least(self, terms: Sequence[int], inside: Iterable[int], outside: Iterable[int]) -> int:
        """The minimum. Vertices beyond ``terms``, and those of ``inside`` and ``outside``, have term 0."""
        held, barred = frozenset(inside), frozenset(outside)
        infinite = 2 * self._wide + sum(map(abs, terms)) + 1
        constant = 0
        for v in range(self._n):
            term = terms[v] if v < len(terms) and v not in held and v not in barred else 0
            constant += min(term, 0)
            self._graph.set_capacity(self._into[v], infinite if v in held else max(-term, 0))
            self._graph.set_capacity(self._out[v], infinite if v in barred else max(term, 0))
        self._graph.reset()
        return self._graph.max_flow(self._n, self._n + 1) + constant

    def members(self) -> list[int]:
        """The least set of that minimum."""
        return [v for v in self._graph.source_side(self._n) if v < self._n]


@dataclass(frozen=True, slots=True)
class TreePacking:
    """``trees``, as arborescences from their centres; their multiplicities sum to τ × ``scale``, rounded down."""

    rate: Fraction
    scale: int
    blocks: tuple[tuple[int, ...], ...]
    trees: tuple[Arborescence, ...]


def pack_trees(network: FlowNetwork, *, few: bool = False, loss: Fraction = Fraction(0)) -> TreePacking:
    """A maximum packing of undirected spanning trees, each rooted at its centre, with its certificate.

    ``few`` directs the links from every vertex in turn, and keeps the packing with the fewest trees. ``loss`` is a
    fraction of τ that may be lost for multiplicities with a smaller sum.
    """
    widths = undirected_widths(network)
    rate, blocks = strength(network.n, widths)
    q = next(scale for scale in range(1, rate.denominator + 1) if int(scale * rate) >= scale * rate * (1 - loss))
    p = int(q * rate)
    scaled = {edge: q * w for edge, w in widths.items()}
    packings: list[list[Arborescence]] = []
    for root in range(network.n) if few else [most_central(network)]:
        directed = direct(network.n, scaled, root, p)
        packings.append(merge_equal(map(recentred, pack_arborescences(directed, {root: p}, few=few))))
    fewest = min(packings, key=lambda trees: len(trees))
    return TreePacking(rate, q, blocks, tuple(fewest))


def most_central(network: FlowNetwork) -> int:
    """The terminal with the least eccentricity in hops; the lowest number among equals."""
    return min(range(network.terminals), key=lambda v: (network.eccentricity(v), v))


def direct(n: int, widths: Mapping[Arc, int], root: int, demand: int) -> FlowNetwork:
    """Split every width into two directions such that ``demand`` ≤ τ can flow from ``root`` to each vertex.

    Only the in-degrees m matter. An orientation is valid iff m(X) ≥ i(X) + demand for every nonempty set X without the
    root, where i(X) is the width inside X (Frank 1980). A greedy algorithm computes the least such m with one minimum
    cut per vertex, and one maximum flow realises it.
    """
    degree = [0] * n
    for (u, v), w in widths.items():
        degree[u] += w
        degree[v] += w
    entering = degree.copy()
    terms = _Terms(n, widths)
    for v in range(n):
        if v != root:
            entering[v] -= _slack(terms, degree, entering, v, root) - demand
    entering[root] = sum(widths.values()) - sum(entering[v] for v in range(n) if v != root)
    if entering[root] < 0:
        raise InternalError(f"no orientation of the links fits {demand} trees from {root}")
    return _realised(n, widths, entering)


def _slack(terms: _Terms, degree: list[int], entering: list[int], v: int, root: int) -> int:
    """The minimum over X with v ∈ X, root ∉ X of entering(X) − i(X)."""
    twice = [2 * m - d for m, d in zip(entering, degree, strict=True)]  # 2·(m(X) − i(X)) = Σ (2m − deg) over X, + d(X)
    doubled = twice[v] + terms.least(twice, inside=[v], outside=[root])
    if doubled % 2:
        raise InternalError("the sum of in-degrees and widths is odd")
    return doubled // 2


def _realised(n: int, widths: Mapping[Arc, int], entering: list[int]) -> FlowNetwork:
    source, sink = n, n + 1
    graph = FlowGraph(n + 2 + len(widths))
    heads: list[tuple[int, int, int]] = []
    for node, ((u, v), w) in enumerate(widths.items(), start=n + 2):
        graph.add(source, node, w)
        heads += ((u, v, graph.add(node, v, INFINITE)), (v, u, graph.add(node, u, INFINITE)))
    for v, units in enumerate(entering):
        graph.add(v, sink, units)
    if graph.max_flow(source, sink) != sum(widths.values()):
        raise InternalError("no orientation has these in-degrees")
    return FlowNetwork(n, n, tuple(sorted((u, v, graph.flow(edge)) for u, v, edge in heads if graph.flow(edge))))


def recentred(tree: Arborescence) -> Arborescence:
    """The same undirected tree with its centre (the lower of two) as root, which halves the depth."""
    way = longest_way(tree.root, tree.arcs)
    root = min(way[(len(way) - 1) // 2], way[len(way) // 2])
    return Arborescence(root, tree.multiplicity, tuple((hop[0], hop[-1]) for hop in rooted_at(root, tree.arcs)))


def merge_equal(trees: Iterable[Arborescence]) -> list[Arborescence]:
    """Trees with equal ones merged, largest multiplicity first."""
    return sorted(merged(trees), key=lambda t: (-t.multiplicity, t.root, t.arcs))
