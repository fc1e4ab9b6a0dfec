"""The best rings that NCCL could be given for a job, by its own count of links, with a proof of how near the best is.

NCCL's search goes down a ladder of speeds, and looks at farther paths only while nearer ones have given nothing: so
where some rings fit on NVLink alone, it never adds others that go through a GPU on their way (NVB). Here both kinds of
paths are tried at all speeds at which some link is full with whole channels. A graph file has one speed for all
channels, so the best may stay below the bound.

The bound is that of rings of any speeds: prices on links, of which the cheapest ring through all GPUs costs at least
one unit; then all rings together have no more than all links cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from blinkccl.cost.baselines.nccl_links import KINDS, NVB, NVL
from blinkccl.cost.baselines.nccl_packing import EXACT_GPUS, MOST_CHANNELS, Packing, SearchStep, ServerChannel
from blinkccl.cost.baselines.nccl_search import Channels
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.cost.baselines.nccl_system import Arc, NcclMachine
from blinkccl.errors import UnsupportedError
from blinkccl.trees.packing.solver import Model, solve_with_duals

#: A link is tried as full with so many channels at most.
MOST_PER_LINK = 4
#: Duals are taken for fractions with such denominators; a proof is exact whatever they are.
_DENOMINATOR = 10**6


@dataclass(frozen=True, slots=True)
class RingBound:
    """``gb_per_s``: no rings have more together. ``prices``: of a GB/s of links; no ring costs less than 1."""

    gb_per_s: Fraction
    prices: Mapping[Arc, Fraction]


def best_rings(nccl: NcclServer) -> Channels:
    """The rings of the most bandwidth at one speed; NCCL's own where nothing is better, or where it has no search.

    UnsupportedError where there are several servers. Cost: up to a second for 8 GPUs of a DGX-1.
    """
    own, server = nccl.channels, nccl.server
    if own.servers > 1:
        raise UnsupportedError(f"a graph file is one server's, and these GPUs are of {own.servers}")
    best, most = own, Fraction(own.gb_per_s_per_channel) * own.count * Fraction(nccl.spare).limit_denominator()
    if server.switched or len(server.gpus) > EXACT_GPUS:
        return best
    for kind in (NVL, NVB):
        for gb_per_s in _speeds(server):
            ways = Packing(server, SearchStep(kind, same=False), False, gb_per_s).most(int(most / gb_per_s) + 1)
            if len(ways) * gb_per_s > most:
                best, most = _channels(own, ways, gb_per_s), len(ways) * gb_per_s
    return best


def _speeds(server: NcclMachine) -> list[Fraction]:
    """Those at which some link is full with whole channels, fastest first."""
    full = {gb_per_s / count for gb_per_s in server.capacity.values() for count in range(1, MOST_PER_LINK + 1)}
    return sorted(full, reverse=True)


def _channels(own: Channels, ways: Sequence[ServerChannel], gb_per_s: Fraction) -> Channels:
    """The ways as channels, none faster than NCCL takes one thread block for."""
    copies = min(MOST_CHANNELS // len(ways), ceil(gb_per_s / Fraction(own.gb_per_s_per_channel))) or 1
    each = float(gb_per_s / copies)
    return replace(
        own,
        rings=tuple(way.order for way in ways for _ in range(copies)),
        gb_per_s_per_channel=each,
        net_gb_per_s_per_channel=each,
        kind=KINDS[max(hop.kind for way in ways for hop in way.hops)],
        same=len({way.order for way in ways}) == 1,
        tree=None,
    )


def ring_bound(server: NcclMachine, kind: int = NVB) -> RingBound:
    """The bound for rings on paths of up to this ``kind``; UnsupportedError where no such ring joins all GPUs."""
    if len(server.gpus) > EXACT_GPUS:
        raise UnsupportedError(f"the bound of rings looks at all of them, for at most {EXACT_GPUS} GPUs")
    loads = [_load(server, order) for order in _orders(server, kind)]
    if not loads:
        raise UnsupportedError("no ring on these paths joins all GPUs")
    arcs = sorted({arc for load in loads for arc in load})
    row = {arc: i for i, arc in enumerate(arcs)}
    scale = max(x.denominator for x in (*server.capacity.values(), *(y for load in loads for y in load.values())))
    columns = [{row[arc]: int(x * scale) for arc, x in load.items()} for load in loads]
    upper = [int(server.capacity[arc] * scale) for arc in arcs]
    _, duals = solve_with_duals(Model(columns, [None] * len(arcs), upper, [-1.0] * len(columns)))
    prices = {
        arc: Fraction(max(0.0, -dual)).limit_denominator(_DENOMINATOR) for arc, dual in zip(arcs, duals, strict=True)
    }
    cheapest = min(sum((prices[arc] * x for arc, x in load.items()), Fraction(0)) for load in loads)
    priced = {arc: price / cheapest for arc, price in prices.items() if price}
    return RingBound(sum((price * server.capacity[arc] for arc, price in priced.items()), Fraction(0)), priced)


def _orders(server: NcclMachine, kind: int) -> Iterator[tuple[int, ...]]:
    """Every ring, from the first GPU on."""
    near = {pair for pair, hop in server.hops.items() if hop.kind <= kind}

    def extend(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(order) == len(server.gpus):
            if (order[-1], order[0]) in near:
                yield order
            return
        for following in server.gpus:
            if following not in order and (order[-1], following) in near:
                yield from extend((*order, following))

    yield from extend(server.gpus[:1])


def _load(server: NcclMachine, order: tuple[int, ...]) -> dict[Arc, Fraction]:
    """GB/s that a ring of 1 GB/s takes of every link."""
    load: dict[Arc, Fraction] = {}
    for pair in zip(order, (*order[1:], order[0]), strict=True):
        for arc, share in server.hops[pair].load:
            load[arc] = load.get(arc, Fraction(0)) + share
    return load
