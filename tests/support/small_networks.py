"""Small random networks, and definitions by exhaustive search, with which the solvers are compared."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from random import Random

from blinkccl.trees.packing.columns import ExactPacking, check_loads
from blinkccl.trees.packing.integral import Arborescence
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.undirected import TreePacking, undirected_widths

#: Undirected widths of a DGX-1V; a DGX-1P has the same pairs, all of width 1.
DGX_1V = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def both_ways(n: int, widths: Mapping[Arc, int]) -> FlowNetwork:
    """Return every undirected edge as two arcs."""
    arcs = [(u, v, w) for (u, v), w in widths.items()] + [(v, u, w) for (u, v), w in widths.items()]
    return FlowNetwork(n, n, tuple(sorted(arcs)))


def dgx_1v() -> FlowNetwork:
    return both_ways(8, DGX_1V)


def dgx_1p() -> FlowNetwork:
    return both_ways(8, dict.fromkeys(DGX_1V, 1))


def one_way_ring(n: int) -> FlowNetwork:
    return FlowNetwork(n, n, tuple((i, (i + 1) % n, 1) for i in range(n)))


def random_digraph(dice: Random, n: int, *, most: int = 3, density: float = 0.4, connected: bool = True) -> FlowNetwork:
    """Return a switchless digraph; strongly connected by a random cycle if ``connected``."""
    arcs: dict[Arc, int] = {}
    if connected and n > 1:
        order = dice.sample(range(n), n)
        arcs = {(a, b): dice.randint(1, most) for a, b in zip(order, order[1:] + order[:1], strict=True)}
    for u, v in itertools.permutations(range(n), 2):
        if (u, v) not in arcs and dice.random() < density:
            arcs[u, v] = dice.randint(1, most)
    return FlowNetwork(n, n, tuple((u, v, c) for (u, v), c in sorted(arcs.items())))


def random_graph(dice: Random, n: int, *, most: int = 3, density: float = 0.4) -> FlowNetwork:
    """Return a connected switchless network with symmetric links."""
    order = dice.sample(range(n), n)
    widths: dict[Arc, int] = {}
    for i in range(1, n):
        u, v = sorted((order[i], order[dice.randrange(i)]))
        widths[u, v] = dice.randint(1, most)
    for u, v in itertools.combinations(range(n), 2):
        if (u, v) not in widths and dice.random() < density:
            widths[u, v] = dice.randint(1, most)
    return both_ways(n, widths)


def random_switched(dice: Random, terminals: int, switches: int, *, balanced: bool, most: int = 3) -> FlowNetwork:
    """Return terminals around switches, a few direct links, the switches in a row."""
    arcs: dict[Arc, int] = {}

    def join(u: int, v: int) -> None:
        arcs[u, v] = dice.randint(1, most)
        arcs[v, u] = arcs[u, v] if balanced else dice.randint(1, most)

    homes = range(terminals, terminals + switches)
    for v in range(terminals):
        for home in dice.sample(homes, dice.randint(1, switches)):
            join(v, home)
    for one, other in itertools.pairwise(homes):
        join(one, other)
    for u, v in itertools.combinations(range(terminals), 2):
        if dice.random() < 0.2:
            join(u, v)
    return FlowNetwork(terminals + switches, terminals, tuple((u, v, c) for (u, v), c in sorted(arcs.items())))


def random_network(seed: int, most: int) -> FlowNetwork:
    """Return a network of any kind, with at most this number of vertices."""
    dice = Random(seed)
    kind = seed % 4
    if kind == 0:
        return random_graph(dice, dice.randint(2, most), most=9)
    if kind == 1:
        return random_digraph(dice, dice.randint(2, most), most=dice.choice([2, 10**6]))
    return random_switched(dice, dice.randint(2, 5), dice.randint(1, 3), balanced=kind == 2)


def subsets(n: int) -> Iterator[tuple[int, ...]]:
    """Yield the nonempty proper subsets of 0 … n−1."""
    for size in range(1, n):
        yield from itertools.combinations(range(n), size)


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield every partition into nonempty blocks."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for others in itertools.combinations(rest, size):
            left = [v for v in rest if v not in others]
            for smaller in partitions(left):
                yield [[first, *others], *smaller]


def assert_tree(n: int, tree: Arborescence) -> None:
    """Check that ``tree`` enters every vertex but its root once, by an arc from a vertex reached before."""
    reached = {tree.root}
    for u, v in tree.arcs:
        assert u in reached
        assert v not in reached
        reached.add(v)
    assert reached == set(range(n))
    assert tree.multiplicity > 0


def loads(trees: Sequence[Arborescence]) -> dict[Arc, int]:
    """Return the units on each arc."""
    used: dict[Arc, int] = {}
    for tree in trees:
        for arc in tree.arcs:
            used[arc] = used.get(arc, 0) + tree.multiplicity
    return used


def assert_packing(network: FlowNetwork, trees: Sequence[Arborescence], demand: Mapping[int, int]) -> None:
    """Check for spanning trees within the capacities, with the demanded number per root, and each shape once."""
    for tree in trees:
        assert_tree(network.n, tree)
    assert all(used <= network.capacity.get(arc, 0) for arc, used in loads(trees).items())
    count: dict[int, int] = {}
    for tree in trees:
        count[tree.root] = count.get(tree.root, 0) + tree.multiplicity
    assert count == {root: units for root, units in demand.items() if units}
    assert len({(tree.root, tree.arcs) for tree in trees}) == len(trees)


def assert_undirected_packing(network: FlowNetwork, packing: TreePacking) -> None:
    """Check for spanning trees from their centres that use each edge, both directions together, within its width."""
    for tree in packing.trees:
        assert_tree(network.n, tree)
    used, widths = loads(packing.trees), undirected_widths(network)
    assert all((min(arc), max(arc)) in widths for arc in used)
    for (u, v), width in widths.items():
        assert used.get((u, v), 0) + used.get((v, u), 0) <= width * packing.scale
    assert Fraction(sum(tree.multiplicity for tree in packing.trees), packing.scale) == packing.rate


def assert_exact(packing: ExactPacking, network: FlowNetwork, demand: list[Fraction]) -> None:
    """Check for feasible weights, groups that get their demand, and prices that prove optimality."""
    check_loads(packing.columns, network.capacity, demand, packing.rate)
    assert packing.rate == packing.bound
    assert all(price > 0 for price in packing.prices.values())
    assert all(column in packing.pool for column, _ in packing.columns)


def depth_of(tree: Arborescence) -> int:
    depth = {tree.root: 0}
    for u, v in tree.arcs:
        depth[v] = depth[u] + 1
    return max(depth.values())


def least_ratio(network: FlowNetwork, *, to: int | None = None) -> Fraction:
    """min of cap⁺(S) / |S ∩ terminals| over sets S that contain a terminal and lack one (``to``, if given)."""
    ratios = []
    for side in subsets(network.n):
        inside = sum(v < network.terminals for v in side)
        misses = inside < network.terminals if to is None else to not in side
        if inside and misses:
            ratios.append(Fraction(network.leaving(side), inside))
    return min(ratios)
