"""Python interface of the native code for flows and packed trees (``native/packing/``).

Units are integers, and all sums are exact. Capacities of measured links have 15 digits, and rates scale them further.
The native code accepts up to 123 bits, and computes in 64 bits if they suffice.
"""

from __future__ import annotations

import ctypes as c
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from blinkccl.errors import InternalError, PackingError
from blinkccl.native import library_file, open_library
from blinkccl.native.headers import header
from blinkccl.trees.packing import clock
from blinkccl.trees.packing.network import Arc, FlowNetwork, Hop, Hops

LIBRARY = "libblink_packing.so"
#: Environment variable with the path of another library file, for development.
OVERRIDE = "BLINK_PACKING_LIBRARY"
HEADER = header("packing.h")
#: Capacity of an arc that never becomes full; the sum of all other capacities stays below half of it.
INFINITE = HEADER.constants["BLINK_PACKING_INFINITE_HIGH"] << 64
LIMIT = INFINITE // 2
_HALF = (1 << 64) - 1
_DONE, _GOES_ON, _NO_MEMORY = (HEADER.constants[f"BLINK_PACKING_{name}"] for name in ("DONE", "GOES_ON", "NO_MEMORY"))
#: Seconds of native work between two checks for signals, so the longest delay of Ctrl-C.
SLICE_S = 0.2


@HEADER.layout("blink_arcs")
class _Arcs(c.Structure):
    pass


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library, opened once. UnsupportedError if it is missing or does not fit this version."""
    return open_library(library_file(LIBRARY, OVERRIDE), HEADER.functions, "blink_packing_abi")


class Arcs:
    """Arcs in the layout of the native code, valid during the life of this object. Capacities are optional."""

    def __init__(
        self, vertices: int, tails: Sequence[int], heads: Sequence[int], capacities: Iterable[int] | None = None
    ) -> None:
        self._ends = (array("i", tails), array("i", heads))
        self._units = None if capacities is None else _units(capacities)
        capacity = None if self._units is None else _address(self._units)
        self.given = _Arcs(vertices, len(tails), *map(_address, self._ends), capacity)

    @classmethod
    def of(cls, network: FlowNetwork, factor: int = 1) -> Arcs:
        """The arcs of ``network``, with capacities multiplied by ``factor``."""
        tails, heads, capacities = zip(*network.arcs, strict=True) if network.arcs else ((), (), ())
        return cls(network.n, tails, heads, [units * factor for units in capacities])


def refuse_wide(numbers: Iterable[int]) -> None:
    """Raise PackingError if the sum of ``numbers``, without :data:`INFINITE` ones, is too large for the native code."""
    if sum(units for units in numbers if units != INFINITE) >= LIMIT:
        raise PackingError("the links have 2^123 or more units of capacity in all; give them in a coarser unit")


def _units(numbers: Iterable[int], *, flowing: bool = False) -> array[int]:
    """Numbers of 128 bits, low half first. With ``flowing``, infinite ones may be reduced by a flow."""
    numbers = list(numbers)
    try:
        low = array("Q", numbers)
    except OverflowError:  # some have more than 64 bits, or are infinite
        refuse_wide([units for units in numbers if units < LIMIT] if flowing else numbers)
        return array("Q", [half for units in numbers for half in (units & _HALF, units >> 64)])
    both = array("Q", bytes(16 * len(low)))
    both[::2] = low
    return both


def _numbers(units: array[int]) -> list[int]:
    low, high = units[::2], units[1::2]
    return [above << 64 | below for below, above in zip(low, high, strict=True)] if any(high) else low.tolist()


def _address(column: array[Any]) -> int:
    return column.buffer_info()[0]


def _called(function: str, *arguments: Any) -> int:
    """Call a native function with addresses and numbers, and return its status code."""
    clock.look()
    code: int = getattr(load(), function)(*arguments)
    if code == _NO_MEMORY:
        raise MemoryError
    return code


def _all(side: array[int]) -> tuple[int, ...]:
    """The marked vertices."""
    return tuple(v for v, inside in enumerate(side) if inside)


def max_flow(arcs: Arcs, residual: list[int], source: int, sink: int, limit: int) -> int:
    """Add flow until it is maximal or at least ``limit``; return the added units.

    ``residual`` has the free capacity of arc i at 2i and of its reverse at 2i + 1, and is changed in place.
    """
    left, units = _units(residual, flowing=True), _units([limit])
    _called("blink_max_flow", c.byref(arcs.given), _address(left), source, sink, _address(units))
    residual[:] = _numbers(left)
    return _numbers(units)[0]


def first_unreached(
    network: FlowNetwork, factor: int, joined: Sequence[int], sink: int
) -> tuple[int, tuple[int, ...]] | None:
    """The first terminal, from ``sink`` on, that cannot receive ``joined[r]`` units from each r, and a violated cut.

    Capacities are multiplied by ``factor``. None if all terminals can receive them.
    """
    arcs, units, place, side = Arcs.of(network, factor), _units(joined), c.c_int64(sink), array("B", bytes(network.n))
    code = _called(
        "blink_all_reach",
        *(c.byref(arcs.given), network.terminals, _address(units), c.byref(place), _address(side)),
    )
    return None if code == _DONE else (place.value, _all(side))


def least_flow(network: FlowNetwork, root: int) -> tuple[int, tuple[int, ...]]:
    """The least of the maximum flows from ``root`` to other terminals, and the side of a cut that attains it.

    Without other terminals the result is :data:`INFINITE` and every vertex.
    """
    arcs, least, side = Arcs.of(network), _units([INFINITE]), array("B", bytes([1]) * network.n)
    _called("blink_least_flow", c.byref(arcs.given), network.terminals, root, _address(least), _address(side))
    return _numbers(least)[0], _all(side)


def admissible(
    network: FlowNetwork, joined: Sequence[int], pair: tuple[int, int, int], most: int, order: list[int]
) -> int:
    """The units of u → w → t, at most ``most``, that can be split off such that every terminal still gets its units.

    ``order`` is the order in which terminals are tested. It is changed in place: a terminal that limits the result
    moves to the front, because it likely limits the next one too.
    """
    arcs, demand, units = Arcs.of(network), _units(joined), _units([most])
    ends, tested = array("i", pair), array("i", order)
    _called(
        "blink_admissible",
        *(c.byref(arcs.given), network.terminals, _address(demand)),
        *(_address(ends), _address(units), _address(tested)),
    )
    order[:] = tested
    return _numbers(units)[0]


def pack(network: FlowNetwork, demand: Mapping[int, int], few: bool) -> list[tuple[int, int, tuple[Arc, ...]]] | None:
    """``(root, multiplicity, arcs)`` of trees for :func:`.integral.pack_arborescences`; None if they do not fit."""
    library, arcs = load(), Arcs.of(network)
    units = _units([demand.get(v, 0) for v in range(network.n)])
    packer = library.blink_packer_new(c.byref(arcs.given), _address(units), few)
    if packer is None:
        raise MemoryError
    try:
        code = _run(library.blink_packer_run, packer)
        return _trees(library, packer, network.n) if code == _DONE else None
    finally:
        library.blink_packer_free(packer)


def _run(function: Any, work: int) -> int:
    """Run native work in slices, with checks of the clock and of signals in between; return its status code."""
    while (code := function(work, c.c_double(min(SLICE_S, clock.left_s())))) == _GOES_ON:
        clock.look()
    if code == _NO_MEMORY:
        raise MemoryError
    return int(code)


def _trees(library: c.CDLL, packer: int, n: int) -> list[tuple[int, int, tuple[Arc, ...]]]:
    count = library.blink_packer_trees(packer)
    roots, units, ends = (
        array("i", bytes(4 * count)),
        array("Q", bytes(16 * count)),
        array("i", bytes(8 * count * (n - 1))),
    )
    library.blink_packer_read(packer, _address(roots), _address(units), _address(ends))
    pairs = list(zip(ends[::2], ends[1::2], strict=True))
    if len(pairs) != count * (n - 1):
        raise InternalError("a packed tree does not span all vertices")
    trees = (tuple(pairs[i * (n - 1) : (i + 1) * (n - 1)]) for i in range(count))
    return list(zip(roots, _numbers(units), trees, strict=True))


def flattened(
    vertices: int,
    capacity: Mapping[Arc, int],
    trees: Sequence[tuple[int, tuple[Arc, ...]]],
    both_ways: bool,
    passes: int,
) -> list[tuple[Arc, ...]]:
    """The arcs of each tree after :func:`.integral.flatten`. ``trees`` are (multiplicity, arcs)."""
    tails, heads = zip(*capacity, strict=True)
    arcs, units = Arcs(vertices, tails, heads, capacity.values()), _units(times for times, _ in trees)
    parents = array("i", [-1]) * (len(trees) * vertices)
    for t, (_, tree) in enumerate(trees):
        for u, v in tree:
            parents[t * vertices + v] = u
    arguments = (c.byref(arcs.given), len(trees), _address(units), both_ways, _address(parents))
    for _ in range(passes):
        if _called("blink_flatten", *arguments) == _DONE:
            break
    rows = (parents[t * vertices : (t + 1) * vertices] for t in range(len(trees)))
    return [tuple((u, v) for v, u in enumerate(row) if u >= 0) for row in rows]


def equal_trees(
    network: FlowNetwork, roots: Sequence[int], depth: int, edges: Sequence[int], most: Sequence[float], goal: float
) -> list[Hops] | None:
    """A tree from each of ``roots`` for :func:`.equal_trees.weighed`; None if a root cannot reach every terminal.

    ``edges`` and ``most`` are per arc; packing.h explains them.
    """
    library, starts, shared, limits = load(), array("i", roots), array("i", edges), array("d", most)
    tails, heads, _ = zip(*network.arcs, strict=True)
    arcs = Arcs(network.n, tails, heads)
    trees = library.blink_trees_new(
        *(c.byref(arcs.given), network.terminals, _address(starts), len(roots), depth),
        *(_address(shared), _address(limits), c.c_double(goal)),
    )
    if trees is None:
        raise MemoryError
    try:
        if _run(library.blink_trees_run, trees) != _DONE:
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
    """Different cheap trees of at most ``levels`` hops from each root, as lists of parents (−1 at the root).

    None if no tree has so few levels. ``price[u][v]`` is the price of a hop, None without one.
    """
    n = len(price)
    prices = array("d", [math.inf if x is None else float(x) for row in price for x in row])
    starts = array("i", roots)
    each = HEADER.constants["BLINK_PACKING_HOP_TREES"]
    parents = array("i", bytes(4 * n * each * len(roots)))
    arguments = (n, _address(prices), levels, _address(starts), len(roots), _address(parents))
    if _called("blink_hop_trees", *arguments) != _DONE:
        return None
    trees = ((roots[i // each], tuple(parents[i * n : i * n + n])) for i in range(each * len(roots)))
    return [(root, list(parent)) for root, parent in dict.fromkeys(trees)]
