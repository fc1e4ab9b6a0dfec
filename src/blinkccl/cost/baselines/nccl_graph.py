"""Rings for a graph file, which NCCL reads in place of its own search: a plan's, or the best by NCCL's count of links.

The file holds rings alone; NCCL searches as many chains for its trees itself. The speed of the rings is the rate that
NCCL's constants for links allow each ring. A channel is one thread block, so rings that are faster than NCCL's own
channels become several channels. Remarks explain the use of the file and compare the rings with the bound of a cut.
They also give the times of these rings and of NCCL's own by NCCL 2.30's cost model.

NCCL's search goes down a ladder of speeds, and looks at farther paths only while nearer ones give no ring. Where some
rings fit on NVLink alone, it never adds rings that relay through a GPU (NVB). The best rings are searched over both
kinds of paths, at all speeds at which whole channels fill some link. A graph file has one speed for all channels, so
the best rings may stay below the bound.

The bound covers rings of any speeds. It is a price for each link, such that every ring through all GPUs costs at least
one unit. All rings together then have no more bandwidth than all links cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, gcd, lcm

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_links import KINDS, NVB, NVL
from blinkccl.cost.baselines.nccl_model import SERVED, cost_lines
from blinkccl.cost.baselines.nccl_packing import EXACT_GPUS, MOST_CHANNELS, Packing, SearchStep, ServerChannel
from blinkccl.cost.baselines.nccl_search import Channels
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.cost.baselines.nccl_system import Arc, NcclMachine
from blinkccl.errors import UnsupportedError
from blinkccl.formats.registry import RingChannels
from blinkccl.topology.model import Topology
from blinkccl.topology.nccl_graph import dev_of
from blinkccl.trees.algorithms.bounds import certificate_for
from blinkccl.trees.algorithms.shapes import cyclic
from blinkccl.trees.forest.model import Cut, Forest, Share
from blinkccl.trees.packing.solver import Model, solve_with_duals
from blinkccl.units import bus_factor

#: Sizes at which both sets of rings are compared.
COMPARED_BYTES = (2**20, 2**26, 2**30)
#: Channels that fill a link, at most, in the speeds to try.
MOST_PER_LINK = 4
#: The largest denominator of duals as fractions. The proof is exact with any duals.
_DENOMINATOR = 10**6


Order = tuple[int, ...]


def rings_of_plan(forest: Forest, machine: Topology | None) -> RingChannels:
    """The plan's rings on the whole ``machine``, if known; refuses plans without rings and files that NCCL misreads."""
    rings = rings_of(forest)
    nccl = NcclServer.of(machine or forest.topology, forest.ranks)
    before = nccl.channels
    if before.servers > 1:
        raise UnsupportedError(f"an NCCL graph file covers one server, but these GPUs are on {before.servers}")
    after = channels_of(rings, nccl.server, before)
    return _in_file(forest.topology, after, _remarks(forest, nccl, after, machine is None))


def rings_of_job(machine: Topology, ranks: tuple[int, ...]) -> RingChannels:
    """The best rings for NCCL on a job, without a plan."""
    nccl = NcclServer.of(machine, ranks)
    best = best_rings(nccl)
    return _in_file(machine, best, _remarks_of_best(nccl, best))


def _in_file(topology: Topology, channels: Channels, remarks: Sequence[str]) -> RingChannels:
    orders = tuple(tuple(dev_of(topology, rank) for rank in ring) for ring in channels.rings)
    return RingChannels(orders, channels.gb_per_s_per_channel, channels.kind, tuple(remarks))


def rings_of(forest: Forest) -> dict[Order, Fraction]:
    """The plan's rings, each from its lowest GPU on, with their parts of the data."""
    weights: dict[Order, Fraction] = {}
    for number, share in enumerate(forest.shares):
        order = _ring(share, forest.ranks)
        if order is None:
            raise UnsupportedError(
                f"share {number} is no ring through all GPUs, which NCCL's graph file requires inside a server: plan "
                "with --algo ring, or give --topo and --gpus instead of a plan for the best rings"
            )
        weights[order] = weights.get(order, Fraction(0)) + share.weight
    return dict(sorted(weights.items()))


def _ring(share: Share, ranks: tuple[int, ...]) -> Order | None:
    """The ring that all trees of a share follow as chains without one hop; None if the trees form no such ring."""
    orders = set()
    for tree in share.trees():
        onward = {path[0]: path[-1] for path in tree.edges}
        start = next((rank for rank in ranks if rank not in onward.values()), None)
        order = [] if start is None else [start]
        while order and order[-1] in onward and len(order) < len(ranks):
            order.append(onward[order[-1]])
        if len(tree.edges) != len(ranks) - 1 or set(order) != set(ranks):
            return None
        orders.add(cyclic(tuple(order), min(ranks)))
    return orders.pop() if len(orders) == 1 else None


def channels_of(rings: Mapping[Order, Fraction], server: NcclMachine, before: Channels) -> Channels:
    """The rings as NCCL's channels of one speed: the highest that fits all links by NCCL's count.

    ``before`` holds the channels that NCCL would set up, whose speed stands for one thread block.
    """
    parts = _whole(rings)
    used: Counter[tuple[int, int]] = Counter()
    for ring, times in parts.items():
        for pair in pairwise((*ring, ring[0])):
            if pair not in server.hops:
                raise UnsupportedError(f"NCCL has no path from GPU {pair[0]} to {pair[1]} on the plan's links")
            if server.hops[pair].kind == NVB:
                raise UnsupportedError(
                    f"NCCL cannot run this plan: from GPU {pair[0]} to {pair[1]} it uses NVLink through another GPU of "
                    "the job, but the plan uses PCIe"
                )
            used[pair] += times
    load: dict[tuple[int, int], Fraction] = {}
    for pair, times in used.items():
        for arc, part in server.hops[pair].load:
            load[arc] = load.get(arc, Fraction(0)) + part * times
    speed = min(server.capacity[arc] / part for arc, part in load.items())
    count = sum(parts.values())
    copies = max(1, min(MOST_CHANNELS // count, ceil(speed / Fraction(before.gb_per_s_per_channel))))
    channels = tuple(ring for ring, times in parts.items() for _ in range(times * copies))
    gb_per_s = float(speed / copies)
    kind = KINDS[max(server.hops[pair].kind for pair in used)]
    return replace(
        before,
        rings=channels,
        gb_per_s_per_channel=gb_per_s,
        net_gb_per_s_per_channel=gb_per_s,
        kind=kind,
        same=len(parts) == 1,
        tree=None,
    )


def _whole(rings: Mapping[Order, Fraction]) -> dict[Order, int]:
    """The smallest integers in the proportion of the rings."""
    common = lcm(*(part.denominator for part in rings.values()))
    wholes = {ring: int(part * common) for ring, part in rings.items()}
    shared = gcd(*wholes.values())
    return {ring: whole // shared for ring, whole in wholes.items()}


def _remarks(forest: Forest, nccl: NcclServer, after: Channels, alone: bool) -> list[str]:
    """The remarks for the comments of the file."""
    before = nccl.channels
    room = before.count * before.gb_per_s_per_channel * nccl.spare
    gpus = ",".join(map(str, forest.ranks))
    name = forest.collective.name if forest.collective.name in SERVED else "allreduce"
    total = forest.rate * Fraction(bus_factor(forest.collective.name, len(forest.ranks)))
    unit = forest.topology.unit_gb_per_s
    limit, side = _limit(forest)
    worse = after.count * after.gb_per_s_per_channel < room * 0.999
    return [
        *(["NCCL's own rings are faster than these by its model: do not use this file."] if worse else []),
        f"Rings of {forest.topology.name}, GPUs {gpus}, as planned for {forest.collective.name} by {forest.algorithm}.",
        *_HOW_TO,
        f"Nominal: {float(total) * unit:g} GB/s. No set of rings on the plan's links has more than "
        f"{float(limit) * unit:g}: every ring uses the links between GPUs {','.join(map(str, side))} and the rest in "
        "both directions.",
        f"By NCCL 2.30's count of links: {_words(after)}. Its own search{' on these links alone' if alone else ''} "
        f"finds {_words(before)}, on which data moves at up to {room:g}."
        + (" Export with --topo for its search on the whole machine." if alone else ""),
        *_compared(after, before, name),
    ]


_HOW_TO = (
    "On every rank of a job on just these GPUs: export NCCL_GRAPH_FILE=nccl-graph.xml",
    "To check that NCCL uses it: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH. For rings at all sizes: NCCL_ALGO=Ring",
)


def _remarks_of_best(nccl: NcclServer, best: Channels) -> list[str]:
    own, gpus = nccl.channels, ",".join(map(str, nccl.ranks))
    remarks = [
        f"The best rings for NCCL among GPUs {gpus} of {nccl.topology.name}, by NCCL 2.30's count of links: "
        f"{_words(best)}.",
        f"Its own search finds {_words(own)}.",
        *_HOW_TO,
        *_compared(best, own, "allreduce"),
    ]
    if best is own:
        remarks.insert(0, "NCCL's own rings: the search found none better, so do not use this file.")
    try:
        bound = float(ring_bound(nccl.server).gb_per_s)
    except UnsupportedError:
        return remarks
    return [*remarks, f"No rings over NVLink through all GPUs have more than {bound:g} GB/s together."]


def _compared(after: Channels, before: Channels, name: str) -> list[str]:
    return [
        f"{name} of {size >> 20} MiB on rings, by NCCL 2.30's cost model: {_ring_us(after, name, size):.1f} us, "
        f"on its own {_ring_us(before, name, size):.1f} us."
        for size in COMPARED_BYTES
    ]


def _words(channels: Channels) -> str:
    each = channels.gb_per_s_per_channel
    return f"{channels.count} x {each:g} = {channels.count * each:g} GB/s over {channels.kind}"


def _ring_us(channels: Channels, name: str, size_bytes: int) -> float:
    return float(min(line.time_us(size_bytes) for line in cost_lines(channels, name) if line.algorithm == "ring"))


def _limit(forest: Forest) -> tuple[Fraction, Order]:
    """The smallest cut between GPUs, in either direction: every ring crosses every cut at least once each way."""
    size, ranks = len(forest.ranks), forest.ranks
    cuts = [certificate_for(Collective(name, size, 0), ranks, forest.topology) for name in ("broadcast", "reduce")]
    best = min((cut for cut in cuts if isinstance(cut, Cut)), key=lambda cut: cut.bound)
    return best.bound, tuple(rank for rank in ranks if rank in best.side)


# The best rings.
@dataclass(frozen=True, slots=True)
class RingBound:
    """The bound ``gb_per_s`` of all rings together; ``prices`` are per GB/s of a link, and no ring costs under 1."""

    gb_per_s: Fraction
    prices: Mapping[Arc, Fraction]


def best_rings(nccl: NcclServer) -> Channels:
    """The rings with the most bandwidth at one speed; NCCL's own where none are better or no search is possible.

    UnsupportedError for several servers. Cost: up to a second for 8 GPUs of a DGX-1.
    """
    own, server = nccl.channels, nccl.server
    if own.servers > 1:
        raise UnsupportedError(f"an NCCL graph file covers one server, but these GPUs are on {own.servers}")
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
    """The speeds at which whole channels fill some link, fastest first."""
    full = {gb_per_s / count for gb_per_s in server.capacity.values() for count in range(1, MOST_PER_LINK + 1)}
    return sorted(full, reverse=True)


def _channels(own: Channels, ways: Sequence[ServerChannel], gb_per_s: Fraction) -> Channels:
    """The ways as channels, none faster than one of NCCL's own channels."""
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
        raise UnsupportedError(f"the bound of rings enumerates all of them, for at most {EXACT_GPUS} GPUs")
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
    """All rings, each from the first GPU on."""
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
    """The load in GB/s of a ring of 1 GB/s on every link."""
    load: dict[Arc, Fraction] = {}
    for pair in zip(order, (*order[1:], order[0]), strict=True):
        for arc, share in server.hops[pair].load:
            load[arc] = load.get(arc, Fraction(0)) + share
    return load
