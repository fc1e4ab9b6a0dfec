"""A collective over several hosts in three phases: which bytes cross between which hosts, and who carries them.

Decisions only, no I/O; every rank makes the same ones from agreed numbers. Each host has a *window*, memory that all
its ranks see, which holds one chunk of every block that the collective needs. In phase 1 the ranks of a host put their
contributions there, combined where the collective reduces; in phase 2 parts of windows cross between hosts; in phase 3
every rank takes its results out (Blink, MLSys 2020, §3.5). A window is laid out alike on all hosts, so a
:class:`Transfer` is two hosts and a range.

Phase 2 is one round, or for large calls among three hosts or more two: sums are made, or blocks spread, in as many
parts as there are hosts, and then exchanged, so that no network interface carries more than 2(H−1)/H of the data of an
AllReduce each way. Where we differ from the paper: the ranks of a host share each transfer equally, also where hosts
differ in size. A range is cut at the shares of both hosts, so each piece has one rank at either end, and two hosts of a
and b ranks have at most a + b − 1 connections.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import lcm
from typing import NamedTuple

from blinkccl.collectives.spec import Block, Collective

KIB = 1024
#: Of a window: address space for one chunk of a call; only what is used takes memory.
WINDOW_BYTES = 16 * KIB * KIB
#: A transfer of fewer bytes than this is one rank's: a second message costs more than it saves.
SHARED_FROM = 128 * KIB
#: The chunks of an AllReduce of few bytes, all of which are under way at once, and each of them one rank's.
FIRST_CHUNK, FIRST_CHUNKS = 64 * KIB, 4
#: So long the network is busy with a chunk: a message costs a part of that, and filling the pipeline one chunk.
CHUNK_S = 0.008
LEAST_CHUNK, MOST_CHUNK = 256 * KIB, 2048 * KIB


@dataclass(frozen=True)
class Hosts:
    """``members[h]`` are the ranks of host h, rising; hosts are in the order of their first ranks."""

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, names: Sequence[Hashable]) -> Hosts:
        """Rank r is on the host called ``names[r]``."""
        ranks: dict[Hashable, list[int]] = {}
        for rank, name in enumerate(names):
            ranks.setdefault(name, []).append(rank)
        return cls(tuple(map(tuple, ranks.values())))

    @cached_property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(map(len, self.members))

    @cached_property
    def host_of(self) -> tuple[int, ...]:
        """Each rank's host."""
        return tuple(dict(sorted((rank, h) for h, ranks in enumerate(self.members) for rank in ranks)).values())

    @cached_property
    def first(self) -> tuple[int, ...]:
        """Where each host's blocks begin in a window, in which those of a host lie together."""
        return tuple(accumulate(map(len, self.members), initial=0))[:-1]

    def position(self, rank: int) -> int:
        """The place of a rank's block in a window."""
        host = self.host_of[rank]
        return self.first[host] + self.members[host].index(rank)


class Transfer(NamedTuple):
    """Elements ``start`` to ``stop`` of a window cross from host ``src`` to host ``dst``, where they ``combine``.

    All transfers of a round that combine at one host have the same range; its own part is combined with theirs in the
    order of hosts.
    """

    src: int
    dst: int
    start: int
    stop: int
    combine: bool = False


Round = tuple[Transfer, ...]


def window_blocks(collective: Collective) -> int:
    """How many blocks a window holds."""
    n = collective.world_size
    return n * n if collective.name == "alltoall" else collective.total_blocks()


def window_block(hosts: Hosts, block: Block) -> int:
    """Where an item's block lies in a window, in blocks."""
    if block is None:
        return 0
    if isinstance(block, int):
        return hosts.position(block)
    (a, b), sides = (hosts.host_of[rank] for rank in block), hosts.members
    source, target = sides[a].index(block[0]), sides[b].index(block[1])
    return hosts.first[a] * hosts.size + len(sides[a]) * hosts.first[b] + source * len(sides[b]) + target


def copies(
    hosts: Hosts, collective: Collective, rank: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """(block of the rank's input, block of the window), and (block of the window, block of the rank's output)."""
    into, out = [], []
    for item in collective.items():
        place = window_block(hosts, item.block)
        into += [(index, place) for peer, index in item.contributions if peer == rank]
        out += [(place, index) for peer, index in item.destinations if peer == rank]
    return tuple(into), tuple(out)


def chunk_elements(hosts: Hosts, collective: Collective, count: int, itemsize: int, bytes_per_s: float) -> int:
    """Elements of a block that one chunk has; at least 1."""
    blocks = window_blocks(collective)
    wanted = min(MOST_CHUNK, max(LEAST_CHUNK, int(bytes_per_s * CHUNK_S))) * len(hosts.members) // 2
    if blocks > 1:
        wanted *= 2  # of which a part stays on its host
    most = max(1, min(wanted, WINDOW_BYTES) // (blocks * itemsize))
    chunks = -(-count // most)
    even = -(-count // max(1, chunks))
    # Of nearly one size, which each host's ranks can share without a rest.
    step = lcm(16, *map(len, hosts.members))
    whole = -(-even // step) * step
    return whole if whole <= most else min(most, even)


def rounds(hosts: Hosts, collective: Collective, count: int, scattered: bool) -> tuple[Round, ...]:
    """Phase 2 of a chunk with ``count`` elements per block; ``scattered``: in two rounds, where there are such."""
    every = range(len(hosts.members))
    name = collective.name
    blocks = [(first * count, (first + len(of)) * count) for first, of in zip(hosts.first, hosts.members, strict=True)]
    pairs = [(a, b) for a in every for b in every if a != b]
    if name in ("allreduce", "reduce", "broadcast"):
        root = None if collective.root is None else hosts.host_of[collective.root]
        return _whole(name, count, len(every), root, scattered)
    if name == "sendrecv":
        assert collective.src is not None
        assert collective.dst is not None
        a, b = hosts.host_of[collective.src], hosts.host_of[collective.dst]
        return (() if a == b else (Transfer(a, b, 0, count),),)
    if name == "alltoall":
        return (tuple(Transfer(a, b, *_pair_range(hosts, a, b, count)) for a, b in pairs),)
    if name == "reduce_scatter":
        return (tuple(Transfer(a, b, *blocks[b], True) for a, b in pairs),)
    if name == "allgather":
        return (tuple(Transfer(a, b, *blocks[a]) for a, b in pairs),)
    assert collective.root is not None
    root = hosts.host_of[collective.root]
    if name == "gather":
        return (tuple(Transfer(a, root, *blocks[a]) for a in every if a != root),)
    return (tuple(Transfer(root, b, *blocks[b]) for b in every if b != root),)


def _whole(name: str, count: int, hosts: int, root: int | None, scattered: bool) -> tuple[Round, ...]:
    """The rounds of collectives with one block."""
    every = range(hosts)
    pairs = [(a, b) for a in every for b in every if a != b]
    ends = pairs if root is None else [(a, root) for a in every if a != root]
    if not scattered or hosts < 3:
        if name == "broadcast":
            return (tuple(Transfer(b, a, 0, count) for a, b in ends),)
        return (tuple(Transfer(a, b, 0, count, True) for a, b in ends),)
    if name == "broadcast":
        others = [b for b in every if b != root]
        part = dict(zip(others, pairwise(count * i // len(others) for i in range(hosts)), strict=True))
        spread = tuple(Transfer(a, b, *part[b]) for a, b in pairs if a == root)
        return spread, tuple(Transfer(a, b, *part[a]) for a, b in pairs if root not in (a, b))
    cuts = list(pairwise(count * h // hosts for h in range(hosts + 1)))
    sums = tuple(Transfer(a, b, *cuts[b], True) for a, b in pairs)
    return sums, tuple(Transfer(a, b, *cuts[a]) for a, b in ends)


def _pair_range(hosts: Hosts, a: int, b: int, count: int) -> tuple[int, int]:
    start = window_block(hosts, (hosts.members[a][0], hosts.members[b][0])) * count
    return start, start + len(hosts.members[a]) * len(hosts.members[b]) * count


class Piece(NamedTuple):
    """What one rank sends another of a transfer."""

    start: int
    stop: int
    giver: int
    taker: int


def pieces(hosts: Hosts, transfer: Transfer, itemsize: int) -> Iterator[Piece]:
    """The pieces of a transfer: cut so that the ranks of either host have equal shares."""
    n = transfer.stop - transfer.start
    shared = n * itemsize >= SHARED_FROM
    sides = [hosts.members[host] if shared else hosts.members[host][:1] for host in (transfer.src, transfer.dst)]
    starts = [[n * i // len(side) for i in range(len(side))] for side in sides]
    for low, high in pairwise(sorted({0, n, *starts[0], *starts[1]})):
        giver, taker = (side[bisect_right(cut, low) - 1] for side, cut in zip(sides, starts, strict=True))
        yield Piece(transfer.start + low, transfer.start + high, giver, taker)


def partners(hosts: Hosts, rank: int) -> tuple[int, ...]:
    """The ranks of other hosts that a rank ever exchanges pieces with, rising."""
    found = set()
    mine = hosts.host_of[rank]
    for other in range(len(hosts.members)):
        if other != mine:
            whole = Transfer(mine, other, 0, SHARED_FROM * hosts.size * hosts.size)
            for piece in (*pieces(hosts, whole, 1), *pieces(hosts, whole._replace(src=other, dst=mine), 1)):
                if rank in (piece.giver, piece.taker):
                    found.add(piece.giver if piece.taker == rank else piece.taker)
    return tuple(sorted(found))


class Fold(NamedTuple):
    """A rank's share of what is combined at its host: a range of the window, and the pieces from each other host."""

    start: int
    stop: int
    parts: tuple[tuple[int, tuple[Piece, ...]], ...]


@dataclass(frozen=True, slots=True)
class RankRound:
    """What one rank does in a round."""

    sends: tuple[Piece, ...]
    receives: tuple[Piece, ...]
    fold: Fold | None


def rank_round(hosts: Hosts, transfers: Round, rank: int, itemsize: int) -> RankRound:
    """The pieces that ``rank`` sends, receives into its window, and combines."""
    sends: list[Piece] = []
    receives: list[Piece] = []
    parts: dict[int, list[Piece]] = {}
    for transfer in transfers:
        if hosts.host_of[rank] not in (transfer.src, transfer.dst):
            continue
        for piece in pieces(hosts, transfer, itemsize):
            if piece.giver == rank:
                sends.append(piece)
            elif piece.taker == rank and transfer.combine:
                parts.setdefault(transfer.src, []).append(piece)
            elif piece.taker == rank:
                receives.append(piece)
    fold = None
    if parts:
        ranges = [piece for of_host in parts.values() for piece in of_host]
        fold = Fold(
            min(piece.start for piece in ranges),
            max(piece.stop for piece in ranges),
            tuple((host, tuple(of_host)) for host, of_host in sorted(parts.items())),
        )
    return RankRound(tuple(sends), tuple(receives), fold)


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """What the network between hosts costs, agreed by all ranks: seconds per message, bytes per second of a host."""

    message_s: float
    bytes_per_s: float

    def seconds(self, hosts: Hosts, transfers: Sequence[Round], itemsize: int) -> float:
        """The predicted time of these rounds: a message each, and the most that an interface carries one way."""
        total = 0.0
        for one in transfers:
            carried: dict[tuple[str, int], int] = {}
            for transfer in one:
                for end in (("out", transfer.src), ("in", transfer.dst)):
                    carried[end] = carried.get(end, 0) + (transfer.stop - transfer.start) * itemsize
            if carried:
                total += self.message_s + max(carried.values()) / self.bytes_per_s
        return total


@dataclass(frozen=True, slots=True)
class HierarchyPlan:
    """One call on one rank: chunks of ``chunk`` elements of a block and, by a chunk's elements, its rounds."""

    chunk: int
    into: tuple[tuple[int, int], ...]
    out: tuple[tuple[int, int], ...]
    rounds: dict[int, tuple[RankRound, ...]]
    #: Whether each host's first rank does all that crosses, and the others need no window: an AllReduce of few bytes,
    #: with no more than ``FIRST_CHUNKS`` chunks.
    by_first: bool = False


def plan(
    hosts: Hosts, collective: Collective, rank: int, count: int, itemsize: int, cost: NetworkCost
) -> HierarchyPlan:
    """The predicted fastest of what there is; the same rounds for all chunks."""
    by_first = collective.name == "allreduce" and count <= FIRST_CHUNKS * ((SHARED_FROM - 1) // itemsize)
    if by_first:
        chunk = -(-count // min(FIRST_CHUNKS, -(-count * itemsize // FIRST_CHUNK)))
    else:
        chunk = chunk_elements(hosts, collective, count, itemsize, cost.bytes_per_s)
    ways = [rounds(hosts, collective, chunk, scattered) for scattered in (False, True)]
    scattered = cost.seconds(hosts, ways[1], itemsize) < cost.seconds(hosts, ways[0], itemsize)
    sizes = {min(chunk, count), count % chunk or chunk}
    by_size = {
        size: tuple(rank_round(hosts, one, rank, itemsize) for one in rounds(hosts, collective, size, scattered))
        for size in sizes
    }
    into, out = copies(hosts, collective, rank)
    return HierarchyPlan(chunk, into, out, by_size, by_first)
