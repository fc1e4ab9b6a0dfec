"""At most so many shallow trees per root, with weights in whole units of a block, above a rate that is known.

Where links join ranks directly and trees are few, an integer program chooses among all of them: one root per orbit has
trees, which are moved to all. It chooses a partition of each root's units first, and then a tree for each of its parts:
programs in which a tree may have any weight, and few may have any, take minutes where these take tenths of a second.
On a DGX-1V two trees per root have all of AllGather's rate at depth 3, and 35/36 of it at depth 2; three have all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from blinkccl.trees.packing.equal_trees import EqualTrees
from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.shallow import tree_columns
from blinkccl.trees.packing.solver import Entries, Model, UndecidedError, decide
from blinkccl.trees.packing.solver import whole as in_whole
from blinkccl.trees.packing.symmetry import arc_orbits, symmetry_of
from blinkccl.trees.packing.templates import rotated

#: Trees that a program chooses among, its branchings, the units of a block, and pairs of rate and units, at most.
MOST_COLUMNS, MOST_NODES, MOST_UNITS, MOST_TRIED = 1500, 100, 8, 8

Tree = tuple[int, tuple[Arc, ...]]


def every_root(
    network: FlowNetwork, rate: Fraction, most: int, above: Fraction, *, least_depth: bool = False
) -> EqualTrees | None:
    """Out-trees, at most ``most`` from each terminal, of a rate per root ``above`` one and up to ``rate``, a bound.

    Of least depth, or for all of ``rate`` one more unless ``least_depth``. None where none are found, and where there
    are too many trees to choose among, or transit vertices.
    """
    if not network.switchless or most > MOST_UNITS or above >= rate:
        return None
    roots = symmetry_of(network).roots
    depth = max(map(network.eccentricity, roots))
    shallow = tree_columns(network, roots, depth, most=MOST_COLUMNS)
    if shallow is None:
        return None
    for hoped, units in _hoped(network, rate, most, above)[:MOST_TRIED]:
        everybody = units * (network.n - 1)  # through one link
        room = {arc: min(int(units * c / hoped), everybody) for arc, c in network.capacity.items()}
        deeper = hoped == rate and not least_depth
        for columns in (shallow, tree_columns(network, roots, depth + 1, most=MOST_COLUMNS) if deeper else None):
            if columns is None:
                break
            chosen = _choose(network, columns, room, list(partitions(units, most, units)))
            if chosen is not None:
                return _moved(network, chosen, units)
    return None


def _hoped(network: FlowNetwork, rate: Fraction, most: int, above: Fraction) -> list[tuple[Fraction, int]]:
    """(rate, units) at which some link is full, and what all others send may enter each terminal; best rates first."""
    found = {
        (Fraction(units * c, load), units)
        for units in range(1, MOST_UNITS + 1 if most > 1 else 2)
        for c in set(network.capacity.values())
        for load in range(max(1, int(units * c / rate)), min(int(units * c / above), units * (network.n - 1)) + 1)
        if above < Fraction(units * c, load) <= rate
    }
    entering = [[c for (_, v), c in network.capacity.items() if v == sink] for sink in range(network.n)]
    enough = {
        (hoped, units)
        for hoped, units in found
        if all(sum(int(units * c / hoped) for c in into) >= units * (network.n - 1) for into in entering)
    }
    return sorted(enough, key=lambda tried: (-tried[0], tried[1]))


def partitions(units: int, most: int, largest: int) -> Iterator[tuple[int, ...]]:
    """``units`` as a sum of at most ``most`` parts of at most ``largest``, which never grow."""
    if units == 0:
        yield ()
    elif most:
        for part in range(min(units, largest), 0, -1):
            for others in partitions(units - part, most - 1, part):
                yield (part, *others)


def _choose(
    network: FlowNetwork,
    columns: Sequence[Tree],
    room: Mapping[Arc, int],
    shapes: Sequence[tuple[int, ...]],
) -> list[tuple[Tree, int]] | None:
    """Trees with units, in one of ``shapes`` for each root of an orbit, that moved to all fit into ``room``."""
    symmetry = symmetry_of(network)
    orbit = arc_orbits(network, symmetry.moves)
    parts = sorted({part for shape in shapes for part in shape})
    kinds = [(root, part) for root in symmetry.roots for part in parts]
    links = sorted(set(orbit.values()))
    one = {root: i for i, root in enumerate(symmetry.roots)}
    kind = {name: len(one) + i for i, name in enumerate(kinds)}
    link = {arc: len(one) + len(kinds) + i for i, arc in enumerate(links)}
    entries: list[Entries] = [
        {one[root]: 1, **{kind[root, part]: -times for part, times in Counter(shape).items()}}
        for root in symmetry.roots
        for shape in shapes
    ]
    weighted = [(tree, part) for tree in columns for part in parts]
    for (root, arcs), part in weighted:
        # Only the identity keeps a terminal, or an arc, in its place: moved trees load an orbit's arcs alike.
        hits = Counter(link[orbit[arc]] for arc in arcs)
        entries.append({kind[root, part]: 1, **{row: part * times for row, times in hits.items()}})
    lower = [*(1 for _ in one), *(0 for _ in kinds), *(None for _ in links)]
    upper = [*(1 for _ in one), *(0 for _ in kinds), *(room[arc] for arc in links)]
    try:
        values = decide(Model(entries, lower, upper, integer=True), MOST_NODES)
    except UndecidedError:
        return None
    times = None if values is None else in_whole(values)
    if times is None:
        return None
    counts = times[-len(weighted) :]
    chosen = [(tree, part * count) for (tree, part), count in zip(weighted, counts, strict=True) if count]
    total: Counter[int] = Counter()
    for (root, _), units in chosen:
        total[root] += units
    return chosen if all(total[root] == sum(shapes[0]) for root in symmetry.roots) else None


def _moved(network: FlowNetwork, chosen: Sequence[tuple[Tree, int]], units: int) -> EqualTrees:
    """The trees of all terminals, and the rate by the loads that they put on links."""
    load: Counter[Arc] = Counter()
    trees = []
    for (root, arcs), times in chosen:
        for move in symmetry_of(network).moves:
            trees.append((move[root], Fraction(times, units), rotated(arcs, move)))
            load.update({(move[u], move[v]): times for u, v in arcs})
    reached = min(Fraction(network.capacity[arc] * units, carried) for arc, carried in load.items())
    return EqualTrees(reached, tuple(sorted(trees, key=lambda tree: (tree[0], -tree[1], tree[2]))))
