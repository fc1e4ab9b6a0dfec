"""Flows and packed trees in native code: the same answers as :mod:`~blinkccl.trees.packing.maxflow` and its users,
sooner.

It takes what 64 bits can hold. Python's own integers serve everything else, and systems where it is not built.
"""

from __future__ import annotations

import ctypes as c
import math
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from blinkccl.errors import InternalError
from blinkccl.native import find_library, open_library
from blinkccl.native.headers import header
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops

LIBRARY = "libblink_packing.so"
#: Names another library file, or none: then Python's integers serve everything; for people who work on it.
OVERRIDE = "BLINK_PACKING_LIBRARY"
HEADER = header("packing.h")
INFINITE = HEADER.constants["BLINK_PACKING_INFINITE"]
#: Sums of finite capacities stay below.
LIMIT = INFINITE // 2
_DONE, _GOES_ON, _NO_MEMORY = (HEADER.constants[f"BLINK_PACKING_{name}"] for name in ("DONE", "GOES_ON", "NO_MEMORY"))
#: Seconds between two looks at signals: Ctrl-C waits for no longer.
SLICE_S = 0.2


@HEADER.layout("blink_arcs")
class _Arcs(c.Structure):
    pass


@lru_cache(maxsize=1)
def load() -> c.CDLL | None:
    """The library, opened once; None where there is none. An unfit one is an error, never the slow way in silence."""
    path = find_library(LIBRARY, OVERRIDE)
    return None if path is None else open_library(path, HEADER.functions, "blink_packing_abi")


class Arcs:
    """Arcs as native code sees them, valid for as long as this object lives."""

    def __init__(self, vertices: int, tails: Sequence[int], heads: Sequence[int], capacities: Sequence[int]) -> None:
        self._held = (array("i", tails), array("i", heads), array("q", capacities))
        self.given = _Arcs(vertices, len(tails), *(_address(column) for column in self._held))

    @classmethod
    def of(cls, network: FlowNetwork, factor: int = 1) -> Arcs:
        """The network's, with capacities multiplied by ``factor``."""
        tails, heads, capacities = zip(*network.arcs, strict=True) if network.arcs else ((), (), ())
        return cls(network.n, tails, heads, [units * factor for units in capacities])


def _address(column: array[Any]) -> int:
    return column.buffer_info()[0]


def max_flow(
    vertices: int, heads: Sequence[int], capacities: list[int], source: int, sink: int, limit: int
) -> int | None:
    """As :meth:`FlowGraph.max_flow` on its edges, ``capacities`` changed in place; None where native code cannot serve.

    ``heads[2i]`` is the head of arc i and ``heads[2i + 1]`` its tail.
    """
    library = load()
    if library is None:
        return None
    try:
        before = array("q", capacities)
        finite = before
    except OverflowError:  # some are infinite: a look at each
        before = array("q", [units if units < INFINITE else INFINITE for units in capacities])
        finite = array("q", [units for units in before if units != INFINITE])
    if sum(finite) >= LIMIT:
        return None
    after = before[:]
    arcs = Arcs(vertices, heads[1::2], heads[::2], ())
    added: int = library.blink_max_flow(c.byref(arcs.given), _address(after), source, sink, min(limit, INFINITE))
    if added < 0:
        raise MemoryError
    if added >= INFINITE:
        return None
    if finite is before:
        capacities[:] = after.tolist()
    else:
        capacities[:] = [units + new - old for units, new, old in zip(capacities, after, before, strict=True)]
    return added


def first_unreached(
    network: FlowNetwork, factor: int, joined: Sequence[int], sink: int
) -> tuple[int, tuple[int, ...]] | None:
    """The first terminal from ``sink`` on that cannot get ``joined[r]`` units from each r, and the cut that shows it.

    Capacities are multiplied by ``factor``. None where all can, or native code cannot serve: see :func:`can_hold`.
    """
    library = load()
    assert library is not None
    clock.look()
    arcs, place, side = Arcs.of(network, factor), c.c_int64(sink), array("B", bytes(network.n))
    units = array("q", joined)
    code = library.blink_all_reach(
        c.byref(arcs.given), network.terminals, _address(units), c.byref(place), _address(side)
    )
    if code == _NO_MEMORY:
        raise MemoryError
    return None if code == _DONE else (place.value, tuple(v for v, inside in enumerate(side) if inside))


def least_flow(network: FlowNetwork, root: int) -> tuple[int, tuple[int, ...]]:
    """As :func:`~blinkccl.trees.packing.maxflow.broadcast_rate`, of two terminals or more; see :func:`can_hold`."""
    library = load()
    assert library is not None
    clock.look()
    arcs, side = Arcs.of(network), array("B", bytes(network.n))
    least: int = library.blink_least_flow(c.byref(arcs.given), network.terminals, root, _address(side))
    if least < 0:
        raise MemoryError
    return least, tuple(v for v, inside in enumerate(side) if inside)


def admissible(
    network: FlowNetwork, joined: Sequence[int], pair: tuple[int, int, int], wanted: int, order: list[int]
) -> int:
    """As :func:`blinkccl.trees.packing.splitting.admissible`, ``order`` changed in place; see :func:`can_hold`."""
    library = load()
    assert library is not None
    clock.look()
    arcs, given, ends, asked = Arcs.of(network), array("q", joined), array("i", pair), array("i", order)
    units: int = library.blink_admissible(
        *(c.byref(arcs.given), network.terminals, _address(given), _address(ends)),
        *(c.c_int64(wanted), _address(asked)),
    )
    if units < 0:
        raise MemoryError
    order[:] = asked
    return units


def can_hold(units: int) -> bool:
    """Whether native code is there, and its numbers hold a sum of so many units."""
    return units < LIMIT and load() is not None


def pack(network: FlowNetwork, demand: Mapping[int, int], few: bool) -> list[tuple[int, int, tuple[Arc, ...]]] | None:
    """``(root, multiplicity, arcs)`` of trees as :func:`~blinkccl.trees.packing.integral.pack_arborescences` finds
    them.

    None if they do not fit.
    """
    library = load()
    assert library is not None
    arcs = Arcs.of(network)
    wanted = array("q", [demand.get(v, 0) for v in range(network.n)])
    packer = library.blink_packer_new(c.byref(arcs.given), _address(wanted), few)
    if packer is None:
        raise MemoryError
    try:
        while (code := library.blink_packer_run(packer, c.c_double(min(SLICE_S, clock.left_s())))) == _GOES_ON:
            clock.look()  # and at signals
        if code == _NO_MEMORY:
            raise MemoryError
        return _trees(library, packer, network.n) if code == _DONE else None
    finally:
        library.blink_packer_free(packer)


def _trees(library: c.CDLL, packer: int, n: int) -> list[tuple[int, int, tuple[Arc, ...]]]:
    count = library.blink_packer_trees(packer)
    roots, units, ends = (
        array("i", bytes(4 * count)),
        array("q", bytes(8 * count)),
        array("i", bytes(8 * count * (n - 1))),
    )
    library.blink_packer_read(packer, _address(roots), _address(units), _address(ends))
    pairs = list(zip(ends[::2], ends[1::2], strict=True))
    if len(pairs) != count * (n - 1):
        raise InternalError("the packed trees do not span")
    return [(roots[i], units[i], tuple(pairs[i * (n - 1) : (i + 1) * (n - 1)])) for i in range(count)]


def flattened(
    vertices: int,
    capacity: Mapping[Arc, int],
    trees: Sequence[tuple[int, tuple[Arc, ...]]],
    both_ways: bool,
    most_passes: int,
) -> list[tuple[Arc, ...]]:
    """The arcs of trees with multiplicities, as :func:`~blinkccl.trees.packing.flatten.flatten` hangs them."""
    library = load()
    assert library is not None
    tails, heads = zip(*capacity, strict=True)
    arcs, units = Arcs(vertices, tails, heads, list(capacity.values())), array("q", [times for times, _ in trees])
    parents = array("i", [-1]) * (len(trees) * vertices)
    for t, (_, tree) in enumerate(trees):
        for u, v in tree:
            parents[t * vertices + v] = u
    for _ in range(most_passes):
        clock.look()
        code = library.blink_flatten(c.byref(arcs.given), len(trees), _address(units), both_ways, _address(parents))
        if code == _NO_MEMORY:
            raise MemoryError
        if code == _DONE:
            break
    rows = (parents[t * vertices : (t + 1) * vertices] for t in range(len(trees)))
    return [tuple((u, v) for v, u in enumerate(row) if u >= 0) for row in rows]


def equal_trees(
    network: FlowNetwork, roots: Sequence[int], depth: int, edges: Sequence[int], most: Sequence[float], goal: float
) -> list[Hops] | None:
    """A tree from each of ``roots``, as :mod:`~blinkccl.trees.packing.equal_trees` wants; None where one cannot reach
    all.

    ``edges`` and ``most`` are by arc, as the header says.
    """
    library = load()
    assert library is not None
    arcs, given, shared, limits = Arcs.of(network), array("i", roots), array("i", edges), array("d", most)
    trees = library.blink_trees_new(
        *(c.byref(arcs.given), network.terminals, _address(given), len(roots), depth),
        *(_address(shared), _address(limits), c.c_double(goal)),
    )
    if trees is None:
        raise MemoryError
    try:
        while (code := library.blink_trees_run(trees, c.c_double(min(SLICE_S, clock.left_s())))) == _GOES_ON:
            clock.look()  # and at signals
        if code == _NO_MEMORY:
            raise MemoryError
        if code != _DONE:
            return None
        numbers = array("i", bytes(4 * library.blink_trees_length(trees)))
        library.blink_trees_read(trees, _address(numbers))
    finally:
        library.blink_trees_free(trees)
    hops: list[Hop] = []
    begin = 0
    for at in range(1, len(numbers)):
        if numbers[at] < network.terminals and at > begin:
            hops.append(tuple(numbers[begin : at + 1]))
            begin = at + 1
    each = network.terminals - 1
    return [tuple(hops[i : i + each]) for i in range(0, len(hops), each)]


def hop_trees(
    price: Sequence[Sequence[float | None]], levels: int, roots: Sequence[int]
) -> list[tuple[int, list[int]]] | None:
    """Some different cheap trees of at most ``levels`` hops from each root, by their parents (−1: the root's).

    None without native code, or where levels are too few. ``price[u][v]`` is that of a hop, None where there is none.
    """
    library = load()
    if library is None:
        return None
    clock.look()
    n = len(price)
    prices = array("d", [math.inf if x is None else float(x) for row in price for x in row])
    starts = array("i", roots)
    each = HEADER.constants["BLINK_PACKING_HOP_TREES"]
    parents = array("i", bytes(4 * n * each * len(roots)))
    code = library.blink_hop_trees(n, _address(prices), levels, _address(starts), len(roots), _address(parents))
    if code == _NO_MEMORY:
        raise MemoryError
    if code != _DONE:
        return None
    found = ((roots[i // each], tuple(parents[i * n : i * n + n])) for i in range(each * len(roots)))
    return [(root, list(parent)) for root, parent in dict.fromkeys(found)]
