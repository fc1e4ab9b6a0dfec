"""A plan of rings as NCCL's graph file: NCCL then runs our rings, with its own kernels.

The file holds the rings alone (id 0): NCCL looks for the chains of its trees itself, as many as there are rings. Their
speed is what NCCL's constants for links let each have; rings faster than NCCL's own channels become several, as a
channel is one thread block. Comments say how to use it, what the rings have of what a cut allows any rings, and what
NCCL 2.30's cost model says of them beside its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, gcd, lcm

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_best_rings import best_rings, ring_bound
from blinkccl.cost.baselines.nccl_links import KINDS, NVB
from blinkccl.cost.baselines.nccl_model import SERVED, cost_lines
from blinkccl.cost.baselines.nccl_search import Channels
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.cost.baselines.nccl_system import NcclMachine
from blinkccl.errors import UnsupportedError
from blinkccl.formats.registry import File
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.topology.nccl_graph import MOST_CHANNELS, RING, RING_PATTERN, ChannelGraph, dev_of
from blinkccl.topology.nccl_graph import write as graph_text
from blinkccl.trees.algorithms.bounds import certificate_for
from blinkccl.trees.algorithms.shapes import cyclic
from blinkccl.trees.forest.model import Cut, Forest, Share
from blinkccl.units import bus_factor

#: S at which the two are compared.
COMPARED_BYTES = (2**20, 2**26, 2**30)

Order = tuple[int, ...]


def write(_program: Program, forest: Forest, machine: Topology | None = None) -> tuple[File, ...]:
    """One file; see :class:`blinkccl.formats.registry.Write`. Refuses what is no ring, and what NCCL would misread."""
    rings = rings_of(forest)
    nccl = NcclServer.of(machine or forest.topology, forest.ranks)
    before = nccl.channels
    if before.servers > 1:
        raise UnsupportedError(f"a graph file is one server's, and these GPUs are of {before.servers}")
    after = channels_of(rings, nccl.server, before)
    return (_file(forest.topology, after, _remarks(forest, nccl, after, machine is None)),)


def pack(machine: Topology, ranks: tuple[int, ...]) -> tuple[File, ...]:
    """The best rings for NCCL on a job, without a plan: :mod:`blinkccl.cost.baselines.nccl_best_rings`."""
    nccl = NcclServer.of(machine, ranks)
    best = best_rings(nccl)
    return (_file(machine, best, _remarks_of_best(nccl, best)),)


def _file(topology: Topology, channels: Channels, remarks: list[str]) -> File:
    orders = tuple(tuple(dev_of(topology, rank) for rank in ring) for ring in channels.rings)
    graph = ChannelGraph(RING, RING_PATTERN, orders, channels.gb_per_s_per_channel, channels.kind)
    return File("nccl-graph.xml", graph_text([graph], remarks))


def rings_of(forest: Forest) -> dict[Order, Fraction]:
    """The plan's rings, each from its lowest GPU on, and what part of the data goes round each."""
    found: dict[Order, Fraction] = {}
    for number, share in enumerate(forest.shares):
        order = _ring(share, forest.ranks)
        if order is None:
            raise UnsupportedError(
                f"share {number} is no ring through all GPUs, and NCCL's graph file takes nothing else inside a "
                "server: plan with --algo ring, or give --topo and --gpus in place of a plan for the best rings"
            )
        found[order] = found.get(order, Fraction(0)) + share.weight
    return dict(sorted(found.items()))


def _ring(share: Share, ranks: tuple[int, ...]) -> Order | None:
    """The one ring on which all trees of a share lie as chains that leave out one hop; None where there is none."""
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
    """The rings as NCCL's channels of one speed, the highest that fits all links as NCCL counts these.

    ``before`` is what NCCL would set up: its channels are as fast as one thread block is taken to be.
    """
    parts = _whole(rings)
    used: Counter[tuple[int, int]] = Counter()
    for ring, times in parts.items():
        for pair in pairwise((*ring, ring[0])):
            if pair not in server.hops:
                raise UnsupportedError(f"NCCL has no path from GPU {pair[0]} to {pair[1]} on the plan's links")
            if server.hops[pair].kind == NVB:
                raise UnsupportedError(
                    f"from GPU {pair[0]} to {pair[1]} NCCL goes over NVLink through another GPU of the job, and the "
                    "plan over PCIe: it would not run this plan"
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
    """The least whole numbers in the proportion of the rings."""
    common = lcm(*(part.denominator for part in rings.values()))
    wholes = {ring: int(part * common) for ring, part in rings.items()}
    shared = gcd(*wholes.values())
    return {ring: whole // shared for ring, whole in wholes.items()}


def _remarks(forest: Forest, nccl: NcclServer, after: Channels, alone: bool) -> list[str]:
    """What people are told, in comments."""
    before = nccl.channels
    room = before.count * before.gb_per_s_per_channel * nccl.spare
    gpus = ",".join(map(str, forest.ranks))
    name = forest.collective.name if forest.collective.name in SERVED else "allreduce"
    total = forest.rate * Fraction(bus_factor(forest.collective.name, len(forest.ranks)))
    unit = forest.topology.unit_gb_per_s
    limit, side = _limit(forest)
    worse = after.count * after.gb_per_s_per_channel < room * 0.999
    return [
        *(["NCCL's own rings are faster than these by its model: leave it to itself."] if worse else []),
        f"Rings of {forest.topology.name}, GPUs {gpus}, as planned for {forest.collective.name} by {forest.algorithm}.",
        *_HOW_TO,
        f"Nominal: {float(total) * unit:g} GB/s. No set of rings on the plan's links has more than "
        f"{float(limit) * unit:g}: all cross the cut between GPUs {','.join(map(str, side))} and the rest, both ways.",
        f"As NCCL 2.30 counts links: {_told(after)}. Its own search{' on these links alone' if alone else ''} finds "
        f"{_told(before)}, on which data moves at up to {room:g}."
        + (" Export with --topo for its search on the whole machine." if alone else ""),
        *_compared(after, before, name),
    ]


_HOW_TO = (
    "On every rank of a job on just these GPUs: export NCCL_GRAPH_FILE=nccl-graph.xml",
    "To see that NCCL took it: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH. For rings at all sizes: NCCL_ALGO=Ring",
)


def _remarks_of_best(nccl: NcclServer, best: Channels) -> list[str]:
    own, gpus = nccl.channels, ",".join(map(str, nccl.ranks))
    remarks = [
        f"The best rings for NCCL among GPUs {gpus} of {nccl.topology.name}, as NCCL 2.30 counts links: {_told(best)}.",
        f"Its own search finds {_told(own)}.",
        *_HOW_TO,
        *_compared(best, own, "allreduce"),
    ]
    if best is own:
        remarks.insert(0, "NCCL's own rings: nothing better was found, so leave it to itself.")
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


def _told(channels: Channels) -> str:
    each = channels.gb_per_s_per_channel
    return f"{channels.count} x {each:g} = {channels.count * each:g} GB/s over {channels.kind}"


def _ring_us(channels: Channels, name: str, size_bytes: int) -> float:
    return float(min(line.time_us(size_bytes) for line in cost_lines(channels, name) if line.algorithm == "ring"))


def _limit(forest: Forest) -> tuple[Fraction, Order]:
    """The least cut between GPUs, in either direction: every ring crosses every cut at least once each way."""
    size, ranks = len(forest.ranks), forest.ranks
    cuts = [certificate_for(Collective(name, size, 0), ranks, forest.topology) for name in ("broadcast", "reduce")]
    best = min((cut for cut in cuts if isinstance(cut, Cut)), key=lambda cut: cut.bound)
    return best.bound, tuple(rank for rank in ranks if rank in best.side)
