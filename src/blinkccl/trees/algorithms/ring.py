"""Rings as in NCCL 2.4: the baseline of the paper, including the fall-back to PCIe.

Inside one server, the rule is (NCCL 2.4; Blink, MLSys 2020, §2.1):

1. The most link-disjoint directed Hamiltonian cycles over NVLink. For at most 4 GPUs every link is also tried as two of
   half the speed, which is used only if it more than doubles the number of rings (a P100 quad gets 6 half rings instead
   of 2).
2. If no such cycle exists but GPUs reach each other through switches: the ring in the order of the nearest neighbour,
   in both directions.
3. If some GPU has no NVLink to another GPU of the job: one ring over PCIe, each GPU followed by its nearest.
4. If every GPU has one, and still no cycle exists: one ring in the order of the ranks over PCIe.

So ``ring`` also uses PCIe links for every value of ``--links``, and never relays through a GPU outside the job. In tree
form a ring AllReduce has N shares per ring: share r uses the chain that ends at rank r up, and the chain that starts at
r down, in the direction of the ring.

Over several servers NCCL forms a line of the GPUs of each server. It joins the lines over the network, in the order of
the ranks and in one direction for all its channels (src/graph/connect.cc; FujitsuPolycom/sparkring, issue 273, counts
the bytes). With cables instead of a switch, this closes a ring only if a cable joins each rank to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import gcd

from blinkccl.collectives.spec import Block
from blinkccl.errors import InternalError, TopologyError, UnsupportedError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import FAST_KINDS, Topology
from blinkccl.topology.select import PCIE_CHOICES
from blinkccl.trees.algorithms.cycles import max_disjoint_cycles
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import (
    Paths,
    by_server,
    chain_down,
    chain_up,
    cyclic,
    forest_on,
    line_up,
    missing_pairs,
    require_collective,
    transit_paths,
)
from blinkccl.trees.forest.model import Forest, Share, Tree, link_use

SERVED = ("broadcast", "reduce", "allreduce", "allgather", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Ring:
    """Ranks (vertex ids) in the direction of the data, and the capacity of the ring on each of its hops."""

    order: tuple[int, ...]
    capacity: Fraction


def plan(request: Request) -> Forest:
    """The rings that NCCL 2.4 would use, with weights in proportion to their capacities.

    The forest and its bound are on the links of the rings: NVLink, or PCIe if NCCL falls back to it.

    Raises
    ------
    UnsupportedError
        If the collective has no ring in NCCL 2.4, or neither NVLink nor PCIe closes one.

    Notes
    -----
    For rings of total capacity R, AllReduce runs at R·N / (2(N−1)), AllGather and ReduceScatter at R·N / (N−1),
    Broadcast and Reduce at R. Cost: AllReduce 2(N−1) steps, 2(N−1)/N·S on each link of a single ring; Broadcast and
    Reduce N−1 steps, S. Differences from NCCL: equal rings are one ring with the sum of their capacities, instead of
    one channel each. NVLinks through a switch carry one ring in each direction, instead of a copy for every lane.
    """
    require_served(request)
    return on_rings(request, "ring", *rings_for(request))


def require_served(request: Request) -> None:
    """Refuse a collective without a ring."""
    require_collective(request, "ring", SERVED, "use --algo optimal")


def on_rings(request: Request, algorithm: str, network: Topology, rings: Sequence[Ring]) -> Forest:
    """The forest of these rings on ``network``, with weights in proportion to their capacities."""
    paths = transit_paths(network, request.ranks)
    total = sum((ring.capacity for ring in rings), Fraction(0))
    drawn = [(ring.capacity / total, *part) for ring in rings for part in _parts(request, ring, paths)]
    per_ring = len(drawn) // len(rings)
    shares = [
        Share(weight / per_ring, i, block, root, up, down) for i, (weight, block, root, up, down) in enumerate(drawn)
    ]
    return forest_on(request, algorithm, network, shares)


def rate(request: Request, rings: Sequence[Ring]) -> Fraction:
    """The rate of :func:`on_rings` if every rank is a root, without its forest; in units of the rings' links."""
    if request.collective.root is not None:
        raise InternalError("rings with one root leave a hop out, so their rate needs a forest")
    size = request.collective.world_size
    phases = 2 if request.collective.name == "allreduce" else 1
    return sum((ring.capacity for ring in rings), Fraction(0)) * size / (phases * (size - 1))


def _parts(request: Request, ring: Ring, paths: Paths) -> Iterator[tuple[Block, int, Tree | None, Tree | None]]:
    """(block, root, up, down) of each share of one ring; all have the same weight."""
    name, root = request.collective.name, request.collective.root
    for rank in request.ranks if root is None else (request.ranks[root],):
        down = cyclic(ring.order, rank)
        up = (*down[1:], rank)
        yield (
            rank if name in ("allgather", "reduce_scatter") else None,
            rank,
            chain_up(paths, up) if request.collective.reduces else None,
            None if request.collective.only_reduces else chain_down(paths, down),
        )


def in_channels(request: Request, lane_gb_per_s: Fraction, per_lane: int, most: int) -> Forest:
    """The forest of :func:`plan` with a ring per channel: ``per_lane`` channels on each lane of a ring.

    There are at most ``most`` channels, and one for a ring over links of other kinds than NVLink, xGMI or shared
    memory. If rings use halves of lanes, a half counts as a lane, and so does each line over several servers. NCCL
    2.4.2 has two channels per lane and 16 at most (src/transport/p2p.cu).
    """
    require_served(request)
    network, closed = rings_for(request)
    fast = any(link.kind in FAST_KINDS for link in network.links)
    lane = lane_gb_per_s / exact_unit(network)
    if any((2 * ring.capacity / lane) % 2 == 1 for ring in closed):
        lane /= 2
    alone = len(by_server(network, request.ranks)) == 1
    channels = []
    for ring in closed:
        times = per_lane * (max(1, int(ring.capacity / lane)) if alone else 1) if fast else 1
        times = max(1, min(times, most // len(closed)))
        channels += [replace(ring, capacity=ring.capacity / times)] * times
    return on_rings(request, "ring", network, channels)


def ring_count(request: Request) -> int:
    """The number of rings of NCCL 2.4 on NVLink; 0 if it falls back to PCIe."""
    network, closed = fast_rings(request)
    return len(closed) if network is None else counted(request.topology, network, closed)


def counted(topology: Topology, network: Topology, rings: Sequence[Ring]) -> int:
    """The number of rings on fast links.

    Rings over direct links are counted in lanes, so 6 half rings of a P100 quad count as 3. The rate of a lane is the
    largest one of which every NVLink of the machine is a multiple. Rings through switches or over servers count as one.
    """
    if any(network.is_transit(v) for v in network.vertex):
        return len(rings)
    return int(sum((ring.capacity for ring in rings), Fraction(0)) / _lane(topology, network))


def rings_for(request: Request) -> tuple[Topology, tuple[Ring, ...]]:
    """The rings and their links: NVLink if it closes a ring, else PCIe, else UnsupportedError."""
    if request.links not in PCIE_CHOICES:
        network, rings = fast_rings(request)
        if network is not None and rings:
            return network, rings
        why = "no NVLink ring through all ranks exists"
        by_rank = network is not None
    else:
        why, by_rank = f"--links {request.links} selects PCIe", False
    links = request.links if request.links in PCIE_CHOICES else "pcie"
    try:
        network = replace(request, links=links, relays=False).network
    except TopologyError as error:
        raise UnsupportedError(f"ring: {why}, and there is no ring over PCIe: {error}") from None
    return network, _fall_back(network, request.ranks, by_rank)


def _fall_back(network: Topology, ranks: Sequence[int], by_rank: bool) -> tuple[Ring, ...]:
    """The single ring over PCIe."""
    paths = transit_paths(network, ranks)
    if over_cables(network, ranks):
        return _in_order_of_ranks(network, paths, ranks)
    if missing_pairs(paths, ranks):
        u, v = missing_pairs(paths, ranks)[0]
        raise UnsupportedError(
            f"ring: no NVLink ring through all ranks exists, and no PCIe path from {u} to {v}; use --algo optimal"
        )
    order = tuple(ranks) if by_rank else _nearest(paths, ranks)
    return _with_capacity(network, paths, [order])


def over_cables(network: Topology, ranks: Sequence[int]) -> bool:
    """True if cables join servers with one rank each."""
    return len(by_server(network, ranks)) == len(ranks) and bool(cables_of(network))


def _in_order_of_ranks(network: Topology, paths: Paths, ranks: Sequence[int]) -> tuple[Ring, ...]:
    """The single ring over cables."""
    for u, v in pairwise((*ranks, ranks[0])):
        if (u, v) not in paths:
            raise UnsupportedError(
                f"ring: NCCL's ring follows the order of the ranks, but no cable leads from {u} to {v}; use --algo "
                "optimal"
            )
    return _with_capacity(network, paths, [tuple(ranks)])


def fast_rings(request: Request) -> tuple[Topology | None, tuple[Ring, ...]]:
    """The rings over NVLink, xGMI or shared memory, and these links.

    The links are None if some rank has none to other ranks (NCCL then uses PCIe in PCIe order). The rings are empty if
    no ring closes (NCCL then uses PCIe in rank order).
    """
    try:
        network = replace(request, links="fast", relays=False).network
    except TopologyError:
        return None, ()
    if not any(link.kind in FAST_KINDS for link in network.links):
        return None, ()
    if len(by_server(network, request.ranks)) > 1:
        return network, _cluster_rings(network, request.ranks)
    direct = rings(network, request.ranks, _lane(request.topology, network))
    return network, direct or _switched_rings(network, request.ranks)


def rings(network: Topology, ranks: Sequence[int], lane: int = 1) -> tuple[Ring, ...]:
    """Link-disjoint directed Hamiltonian cycles over the direct fast links between ``ranks``, distinct and ascending.

    ``lane`` is the capacity of one lane, in units of ``network``: rings are whole lanes, or halves for at most 4 ranks.
    """
    lanes = {
        (x.src, x.dst): x.capacity // lane
        for x in network.links
        if x.src in ranks and x.dst in ranks and x.kind in FAST_KINDS and x.capacity >= lane
    }
    cycles, size = max_disjoint_cycles(lanes, ranks), Fraction(lane)
    if len(ranks) <= 4:
        halves = max_disjoint_cycles({arc: 2 * count for arc, count in lanes.items()}, ranks)
        if sum(times for _, times in halves) > 2 * sum(times for _, times in cycles):
            cycles, size = halves, size / 2
    return tuple(Ring(order, times * size) for order, times in cycles)


def _lane(topology: Topology, network: Topology) -> int:
    """The capacity of a lane in units of ``network``: the divisor of every link of these kinds in the machine."""
    kinds = frozenset(x.kind for x in network.links if x.kind in FAST_KINDS)
    sample = network.links[0]
    scale = topology.link[sample.src, sample.dst].capacity // sample.capacity
    return max(1, gcd(*(x.capacity for x in topology.links if x.kind in kinds)) // scale)


def _switched_rings(network: Topology, ranks: Sequence[int]) -> tuple[Ring, ...]:
    """The ring of nearest neighbours through switches, in both directions."""
    paths = transit_paths(network, ranks)
    if missing_pairs(paths, ranks):
        return ()
    order = _nearest(paths, ranks)
    both = [order, cyclic(order[::-1], order[0])]
    return _with_capacity(network, paths, both if len(order) > 2 else both[:1])


def _cluster_rings(network: Topology, ranks: Sequence[int]) -> tuple[Ring, ...]:
    """The ring over the lines of all servers; () if a server has no line.

    If every line closes, its rotations are lines too. If they are faster, ring k enters servers at GPU k.
    """
    paths = transit_paths(network, ranks)
    servers = by_server(network, ranks)
    lines = [line for members in servers if (line := line_up(network, paths, members)) is not None]
    if len(lines) < len(servers):
        return ()
    turnable = all(line_up(network, paths, (line[-1], line[0])) is not None for line in lines)
    turned = [
        tuple(rank for line in lines for rank in cyclic(line, line[k % len(line)])) for k in range(max(map(len, lines)))
    ]
    if any(hop not in paths for order in turned for hop in pairwise((*order, order[0]))):
        return ()
    single = _with_capacity(network, paths, turned[:1])
    if not turnable:
        return single
    several = _with_capacity(network, paths, turned)
    return several if several[0].capacity * len(several) > single[0].capacity else single


def _nearest(paths: Paths, ranks: Sequence[int]) -> tuple[int, ...]:
    """The order from the first rank always to the nearest remaining one, by links, then by the order of ranks."""
    order, remaining = [ranks[0]], list(ranks[1:])
    while remaining:
        onward = min(remaining, key=lambda v: len(paths[order[-1], v]))
        remaining.remove(onward)
        order.append(onward)
    return tuple(order)


def _with_capacity(network: Topology, paths: Paths, orders: Sequence[tuple[int, ...]]) -> tuple[Ring, ...]:
    """Rings of equal capacity, the largest that their shared links allow."""
    closed = [Share(Fraction(1), 0, None, order[0], None, chain_down(paths, (*order, order[0]))) for order in orders]
    capacity = min(network.link[arc].capacity / use for arc, use in link_use(closed).items())
    return tuple(Ring(order, capacity) for order in orders)
