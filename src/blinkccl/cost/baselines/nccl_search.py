"""The channels that NCCL 2.30 would set up for a job, with the speed that it assigns to them.

NCCL searches rings, and chains for its trees, on a ladder of speeds from the top down (src/graph/search.cc). At each
speed it tries copies of one order and then different orders. It begins with NVLink alone and continues with farther
paths, among them NVLink through another GPU of the job (NVB) and PCIe. It keeps the channels with the most bandwidth,
and tries slower ones down to half the speed of the best, because two halves may fit where a whole does not. In the end
it doubles each fast channel, and tries whether as many would run faster.

NCCL's search stops after a number of steps; this one tries all orders of up to 8 GPUs. Compared with the search of NCCL
2.27 to 2.32, called in its wheels (``benchmarks/nccl_channels.py``) on 1,545 sets of GPUs of ten machines:

- Number, speed and kind of rings and chains agree except for 7 GPUs of a DGX-1P: 54 GB/s, where NCCL finds 36, 45 or
  54, depending on the numbers of the GPUs.
- On NVSwitches that no machine has, chains may differ by a step of the ladder.
- Across two servers of 8 A100s, chains differ for 5 GPUs each, all of one processor and one more: 30 GB/s inside a
  server, where NCCL finds 48 (before 2.29 for 4 to 6 GPUs, and slower ones).
- More than 8 GPUs without an NVSwitch get their own order and its reverse. NVLS, CollNet and PAT are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from blinkccl.cost.baselines.nccl_links import KINDS, PHB, PIX, PXB, PXN, SYS, VERSION
from blinkccl.cost.baselines.nccl_packing import MOST_CHANNELS, Packing, SearchStep, ServerChannel
from blinkccl.cost.baselines.nccl_system import NcclHop, NcclMachine, see
from blinkccl.errors import UnsupportedError
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import Topology


def _ladder(speeds: str) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, speeds.split()))


#: GB/s of a channel that NCCL tries, by the minimum compute capability: inside one server, and across servers.
LADDERS = (
    (100, _ladder("90 80 70 60 50 45 40 30 24 20 19 18"),
     _ladder("96 86 80 48 45.1 42 40 30 24 22 20 17.5 15 12 6 3 2.4 1.2 0.24 0.12")),
    (90, _ladder("60 50 40 30 24 20 15 12 11 6 3"),
     _ladder("48 45 42 40 30 24 22 20 17.5 15 12 6 3 2.4 1.2 0.24 0.12")),
    (0, _ladder("40 30 20 18 15 12 10 9 7 6 5 4 3"),
     _ladder("48 30 28 24 20 18 15 12 10 9 7 6 5 4 3 2.4 1.2 0.24 0.12")),
)  # fmt: skip
#: GB/s that NCCL assigns to the ring in the order of the ranks if no channel fits at any speed.
LAST_RESORT_GB_PER_S = Fraction(1, 10)


@dataclass(frozen=True, slots=True)
class Chains:
    """The parts of NCCL's tree: on each server one chain per channel, and between servers a double binary tree.

    ``orders``: by channel and by server the ranks, beginning with the one that exchanges data with other servers.
    ``kind`` and ``net_kind`` ("" on one server): the farthest kinds of path (``nccl_links.KINDS``).
    """

    orders: tuple[tuple[tuple[int, ...], ...], ...]
    gb_per_s_per_channel: float
    net_gb_per_s_per_channel: float
    kind: str
    net_kind: str


@dataclass(frozen=True, slots=True)
class Channels:
    """The result of NCCL's search, with speeds and kinds as in :class:`Chains`.

    ``rings``: by channel the ranks in the direction of the data, with repetitions; ``same``: all rings are equal.
    ``tree`` has as many chains; it is ``None`` if no speed has room for them. ``servers``: NVLink domains of the job.
    ``arch`` and ``vendor`` (of the processors) are inputs of NCCL's cost model.
    """

    rings: tuple[tuple[int, ...], ...]
    gb_per_s_per_channel: float
    net_gb_per_s_per_channel: float
    kind: str
    net_kind: str
    same: bool
    tree: Chains | None
    servers: int
    arch: str
    vendor: str

    @property
    def count(self) -> int:
        """The channels of the search; NCCL runs two for each."""
        return len(self.rings)

    @property
    def ranks(self) -> int:
        """The number of GPUs of the job."""
        return len(self.rings[0])


def search(
    topology: Topology, ranks: Sequence[int], arch: str | None = None, version: tuple[int, int] = VERSION
) -> Channels:
    """The channels that NCCL of this version would set up for a job of at least two GPUs.

    ``arch`` is pascal, volta, ampere, hopper or blackwell; None infers it from the machine's links. Each server is
    searched by itself, and the slowest decides the speed, as in NCCL. Only network cards at GPUs of the job count.
    Cost: 10 ms for most sets of a DGX-1, 0.1 s at most; 1 s for 8 GPUs on PCIe, seconds on irregular direct links.
    """
    if len(ranks) < 2:
        raise UnsupportedError(f"NCCL needs no channels for {len(ranks)} rank; give at least two GPUs")
    arch = guess_arch(topology) if arch is None else arch
    servers = see(topology, ranks, arch, version)
    for server in servers:
        if len(servers) > 1 and not server.nics:
            number = topology.vertex[server.gpus[0]].server
            raise UnsupportedError(f"{topology.name}: no network card is joined to the job's GPUs of server {number}")
    rings = [_best_rings(server, len(servers) > 1) for server in servers]
    count = min(len(each.ways) for each in rings)
    joined = [_ring(rings, channel, count) for channel in range(count)]
    if len(servers) > 1:
        _check_joined(topology, joined)
    trees = [_best_chains(server, len(servers) > 1, count) for server in servers]
    return Channels(
        tuple(tuple(gpu for way in ways for gpu in way.order) for ways in joined),
        float(min(each.gb_per_s for each in rings)),
        float(min(each.net_gb_per_s for each in rings)),
        KINDS[max(each.stage.kind for each in rings)],
        _net_kind(rings),
        all(each.stage.same for each in rings),
        _joined_chains([tree for tree in trees if tree is not None], count) if None not in trees else None,
        len(servers),
        arch,
        servers[0].vendor,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The best channels of one server so far."""

    ways: tuple[ServerChannel, ...]
    stage: SearchStep
    gb_per_s: Fraction
    net_gb_per_s: Fraction

    @property
    def total_gb_per_s(self) -> Fraction:
        return len(self.ways) * self.gb_per_s


def _ladder_of(server: NcclMachine, across: bool) -> tuple[Fraction, ...]:
    """The speeds to try, up to that of the server's widest path."""
    inside, between = next(row[1:] for row in LADDERS if server.arch.sm >= row[0])
    if across:
        widest = max((nic.gb_per_s for nic in server.nics), default=Fraction(0))
        return tuple(gb_per_s for gb_per_s in between[:-1] if gb_per_s <= widest) + between[-1:]
    return tuple(gb_per_s for gb_per_s in inside[:-1] if gb_per_s <= server.max_gb_per_s) + inside[-1:]


def _stages(server: NcclMachine, across: bool, tree: bool) -> Iterator[SearchStep]:
    """The stages to try at one speed, in NCCL's order: near before far, one order before several."""
    nearest, farthest = server.kinds
    if not across:
        yield from _kinds(server, nearest, farthest, None, False)
        return
    for crossing in (False, True) if server.switched and len(server.nics) > 1 and not tree else (False,):
        for net_kind in (kind for kind in (PIX, PXB, PXN, PHB, SYS) if kind >= min(nic.kind for nic in server.nics)):
            yield from _kinds(server, nearest, max(nearest, min(farthest, net_kind)), net_kind, crossing)


def _kinds(
    server: NcclMachine, nearest: int, farthest: int, net_kind: int | None, crossing: bool
) -> Iterator[SearchStep]:
    for kind in range(nearest, farthest + 1):
        yield SearchStep(kind, True, net_kind, crossing)
        # Between AMD's processors NCCL tries one order only.
        if not (server.vendor == "AuthenticAMD" and kind == SYS):
            yield SearchStep(kind, False, net_kind, crossing)


def _best_rings(server: NcclMachine, across: bool) -> _Found:
    """NCCL's search on one server."""
    least = 2 if server.split else 1
    ladder = _ladder_of(server, across)
    ladder = tuple(gb_per_s for gb_per_s in ladder[:-1] if gb_per_s * least <= server.total_gb_per_s) + ladder[-1:]
    best: _Found | None = None
    for gb_per_s, slower in zip(ladder, (*ladder[1:], Fraction(0)), strict=True):
        best = _tried(server, across, gb_per_s, least, best)
        if best is not None and (_enough(server, best) or slower / best.gb_per_s <= Fraction(49, 100)):
            break
    if best is None:
        return _last_resort(server, across)
    best = _doubled(server, best)
    at_least = len(best.ways)
    for gb_per_s in (x for x in reversed(_ladder_of(server, across)) if x > best.gb_per_s):
        ways = Packing(server, best.stage, False, gb_per_s, gb_per_s).most(at_least)
        if len(ways) * gb_per_s > best.total_gb_per_s:
            best = _Found(ways, best.stage, gb_per_s, gb_per_s)
    return best


def _enough(server: NcclMachine, channels: _Found) -> bool:
    return channels.total_gb_per_s >= server.total_gb_per_s or len(channels.ways) == MOST_CHANNELS


def _tried(server: NcclMachine, across: bool, gb_per_s: Fraction, least: int, best: _Found | None) -> _Found | None:
    """The best channels after all stages at one speed; farther paths are tried only while nearer ones give none."""
    for packing in _distinct(server, across, False, gb_per_s):
        stage = packing.stage
        if best is not None and (stage.kind > best.stage.kind or _too_far(stage, best.stage)):
            continue
        needed = least if best is None else max(least, int(best.total_gb_per_s / gb_per_s) + 1)
        ways = packing.most(needed)
        if ways:
            best = _Found(ways, stage, gb_per_s, gb_per_s)
            if _enough(server, best):
                break
    return best


def _distinct(server: NcclMachine, across: bool, tree: bool, gb_per_s: Fraction) -> Iterator[Packing]:
    """The packings of the stages at one speed, without repeated questions."""
    questions: set[tuple[object, ...]] = set()
    for stage in _stages(server, across, tree):
        packing = Packing(server, stage, tree, gb_per_s, gb_per_s)
        if packing.question not in questions:
            questions.add(packing.question)
            yield packing


def _too_far(stage: SearchStep, best: SearchStep) -> bool:
    """True if a network card is farther than the best stage's, and farther than PXN."""
    return stage.net_kind is not None and stage.net_kind > max(PXN, best.net_kind or 0)


def _doubled(server: NcclMachine, channels: _Found) -> _Found:
    """Two of each channel at half its speed, if a channel is fast enough for two."""
    if channels.gb_per_s < 25 or (server.arch.sm > 80 and channels.gb_per_s < 50 and len(channels.ways) > 4):
        return channels
    ways = (channels.ways * 2)[:MOST_CHANNELS]
    share = -(-len(ways) // len(channels.ways))
    return _Found(ways, channels.stage, channels.gb_per_s / share, channels.net_gb_per_s / share)


def _last_resort(server: NcclMachine, across: bool) -> _Found:
    """The ring in the order of the GPUs, which NCCL uses if its search gives none."""
    order = server.gpus
    if across:
        first = server.nics[0].gpus[0]
        order = (first, *(gpu for gpu in order if gpu != first))
    direct = across and order[-1] in server.nics[0].gpus
    pairs = [*pairwise(order), *([] if direct else [(order[-1], order[0])])]
    apart = next((pair for pair in pairs if pair not in server.hops), None)
    if apart is not None:
        raise UnsupportedError(
            f"NCCL's search finds no ring, and no link, switch or processor joins GPUs {apart[0]} and {apart[1]}; add "
            "the machine's PCIe links to the topology"
        )
    hops = [server.hops[pair] for pair in pairs]
    net: list[NcclHop] = []
    if across:
        card = server.nics[0]
        last = order[-1] if direct else order[0]
        net = [card.enter[order[0]], *([] if direct else [hops.pop()]), card.leave[last]]
    way = ServerChannel(order, tuple(hops), tuple((hop, Fraction(1)) for hop in net))
    stage = SearchStep(SYS, True, SYS if across else None)
    return _Found((way,), stage, LAST_RESORT_GB_PER_S, LAST_RESORT_GB_PER_S)


def _best_chains(server: NcclMachine, across: bool, count: int) -> _Found | None:
    """The fastest ``count`` chains; None if they fit at no speed."""
    if len(server.gpus) > 1 or across:
        size = Fraction(len(server.gpus))
        # A chain has one hop less than a ring, so it may be faster by as much.
        total = server.total_gb_per_s * (size / (size - 1) if size > 1 else 1)
        ladder = _ladder_of(server, across)
        for gb_per_s in (*(x for x in ladder[:-1] if x * count <= total), ladder[-1]):
            for packing in _distinct(server, across, True, gb_per_s):
                ways = packing.most(count, count)
                if ways:
                    chains = _Found(ways, packing.stage, gb_per_s, gb_per_s)
                    return _faster_inside(server, chains) if across else chains
    return None


def _faster_inside(server: NcclMachine, chains: _Found) -> _Found:
    """The chains, up to twice as fast inside the server as towards the network."""
    ladder = next(row[2] for row in LADDERS if server.arch.sm >= row[0])
    for gb_per_s in (x for x in reversed(ladder) if x > chains.gb_per_s):
        if chains.gb_per_s >= 2 * chains.net_gb_per_s:
            break
        ways = Packing(server, chains.stage, True, gb_per_s, chains.net_gb_per_s).most(
            len(chains.ways), len(chains.ways)
        )
        if not ways:
            break
        chains = _Found(ways, chains.stage, gb_per_s, chains.net_gb_per_s)
    return chains


def _net_kind(servers: Sequence[_Found]) -> str:
    return "" if servers[0].stage.net_kind is None else KINDS[max(x.stage.net_kind or 0 for x in servers)]


def _ring(servers: Sequence[_Found], channel: int, count: int) -> list[ServerChannel]:
    """The ring through the servers in turn; every second server swaps crossing rings, so that like cards are joined."""
    ways = []
    for server, one in enumerate(servers):
        crossed = one.stage.crossing and count % 2 == 0 and server % 2
        ways.append(one.ways[channel ^ 1 if crossed else channel])
    return ways


def _check_joined(topology: Topology, rings: Sequence[Sequence[ServerChannel]]) -> None:
    """Refuse rings between network cards that no network joins."""
    beside: dict[int, list[int]] = {}
    for link in topology.links:
        if link.kind == "net" and topology.is_transit(link.src) and topology.is_transit(link.dst):
            beside.setdefault(link.src, []).append(link.dst)
    for ways in rings:
        for way, onward in zip(ways, (*ways[1:], ways[0]), strict=True):
            card, other = way.net[-1][0].path[-1], onward.net[0][0].path[0]
            reached = [card]
            for vertex in reached:
                reached += [each for each in beside.get(vertex, ()) if each not in reached]
            if other not in reached:
                names = [topology.vertex[v].label for v in (card, other)]
                raise UnsupportedError(f"{topology.name}: no network joins {names[0]} and {names[1]}")


def _joined_chains(servers: Sequence[_Found], count: int) -> Chains:
    return Chains(
        tuple(tuple(x.ways[channel].order for x in servers) for channel in range(count)),
        float(min(x.gb_per_s for x in servers)),
        float(min(x.net_gb_per_s for x in servers)),
        KINDS[max(x.stage.kind for x in servers)],
        _net_kind(servers),
    )
