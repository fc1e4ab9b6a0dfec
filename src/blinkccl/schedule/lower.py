"""Lowering of a forest to a Program: the sender, receiver, chunk and tick of every message.

Lowering translates and does not judge: an invalid forest becomes a program that the verifier refuses, with rank,
channel and step. Lowering only refuses forests that have no form as a Program.

**Offsets.** The roots of all shares of one slice work in the same tick H, the height of the highest up-tree among them.
A vertex at depth d has offset H − d in an up-tree and H + d in a down-tree. Every queue takes one tick. A rank reads
its own input of a slice no later than any share writes the slice's output, since in place these are the same memory.

**Order of roles.** In one tick, roles run by descending offset: receivers before their senders. A receiver frees its
slot before the sender needs it in the same tick, so one slot per queue is enough. In the folded graph every arc without
a token then leads from a higher offset to a lower one, or down the list: no cycle.

**Order of reduction.** Every vertex reduces its operands in the order of the lowest rank in them: of a child's message,
its lowest contributor; of the own contribution, its rank. So the order depends only on the sets of contributions that
are reduced together. A star reduces in rank order for any root, and N stars over one slice give all ranks the same
bits. So do trees that differ only in the root of a group (:mod:`blinkccl.schedule.order`).

**Memories and switches.** An edge whose path leads through one memory is a queue staged there. Through more memories it
is several queues: at every second memory a relay receives from one queue and sends into the next. Switches with
in-network reduction are relays too, with the roles of their places in the trees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, zip_longest

from blinkccl.collectives.spec import Block
from blinkccl.errors import ScheduleError, UsageError
from blinkccl.schedule.chunking import placements
from blinkccl.schedule.program import Channel, Program, Queue, Role, Slice
from blinkccl.topology.memories import memories_on
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest, Path, Share, Tree, forest_hash, topology_hash


def lower(forest: Forest, slots: int = 2, channels: int | None = None) -> Program:
    """The program that runs ``forest``: a queue per tree edge and relay on it, roles in one list by descending offset.

    Each queue holds ``slots`` messages. Slices are assigned round robin to ``channels`` parallel channels; None: one
    channel per slice. A ScheduleError reports a forest that has no program: an unknown block, a tree vertex outside the
    job, an edge with fewer than two vertices or equal ends, or shares of one slice with different weights.
    """
    if slots < 1 or (channels is not None and channels < 1):
        raise UsageError(f"slots and channels must be at least 1, got {slots} and {channels}")
    _check_paths(forest)
    slices, slice_of = _slices(forest)
    channel_count = min(channels or len(slices), max(1, len(slices)))
    pieces = _pieces(forest)
    relays = tuple(sorted({*forest.combining, *(part[0][0] for parts in pieces.values() for part in parts[1:])}))
    builder = _Builder(forest, channel_count, pieces, relays)
    summits = _summits(forest, slice_of, pieces)
    for index, share in enumerate(forest.shares):
        builder.add(index, share, slice_of[index], summits[slice_of[index]])
    carried: list[list[int]] = [[] for _ in range(channel_count)]
    for index in range(len(forest.shares)):
        carried[slice_of[index] % channel_count].append(index)
    return Program(
        forest.collective,
        forest.ranks,
        forest.rate,
        slices,
        tuple(builder.queues),
        tuple(Channel(tuple(shares), slots) for shares in carried),
        builder.in_order(),
        forest_hash(forest),
        topology_hash(forest.topology),
        relays,
    )


#: The queues on each path, as the path and home of each.
_Pieces = dict[Path, tuple[tuple[Path, int], ...]]


def _pieces(forest: Forest) -> _Pieces:
    """The queues on every path of the forest, in the direction of the data."""
    paths = dict.fromkeys(path for share in forest.shares for tree in share.trees() for path in tree.edges)
    return {path: tuple(_queues_on(forest.topology, path)) for path in paths}


def _queues_on(topology: Topology, path: Path) -> Iterator[tuple[Path, int]]:
    """The queues on ``path``: pushed or pulled as its links require, or staged at every first of two memories."""
    exists = all(pair in topology.link for pair in pairwise(path))  # else the verifier reports it
    memories = memories_on(topology, path) if exists else ()
    begin = 0
    for home, end in zip_longest(memories[::2], memories[1::2], fillvalue=path[-1]):
        stop = path.index(end, begin)
        yield path[begin : stop + 1], home
        begin = stop
    if begin < len(path) - 1:
        read = exists and any(topology.link[pair].by == "read" for pair in pairwise(path[begin:]))
        yield path[begin:], path[begin] if read else path[-1]


def _check_paths(forest: Forest) -> None:
    """Raise a ScheduleError unless edges join two vertices; the verifier checks all other properties of trees."""
    for index, share in enumerate(forest.shares):
        for tree in share.trees():
            for path in tree.edges:
                if len(path) < 2 or path[0] == path[-1]:
                    raise ScheduleError(
                        f"share {index}: edge {list(path)} is no path between two vertices; expected at least two "
                        "vertices, with different ends"
                    )


def _slices(forest: Forest) -> tuple[tuple[Slice, ...], list[int]]:
    """The slice table, by block in the collective's order, and the index of each share's slice in it."""
    by_block: dict[Block, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    position = forest.position
    for index, share in enumerate(forest.shares):
        by_block[_positions(share, position, index)][share.slice].append(index)
    table: list[Slice] = []
    slice_of = [0] * len(forest.shares)
    for item in forest.collective.items():
        start = Fraction(0)
        for name, members in sorted(by_block.pop(item.block, {}).items()):
            weights = [forest.shares[i].weight for i in members]
            if weights.count(weights[0]) != len(weights):
                raise ScheduleError(
                    f"shares {members} carry the same slice {name} of block {item.block}, but with "
                    f"weights {', '.join(map(str, weights))}; give them one weight"
                )
            for i in members:
                slice_of[i] = len(table)
            stop = start + weights[0] / item.weight
            table.append(Slice(item.block, start, stop))
            start = stop
    for block, slices in by_block.items():
        raise ScheduleError(
            f"share {min(min(m) for m in slices.values())} carries block {block!r} (positions), which "
            f"{forest.collective.name} on {len(forest.ranks)} ranks does not have"
        )
    return tuple(table), slice_of


def _positions(share: Share, position: dict[int, int], index: int) -> Block:
    """The share's block, with positions instead of vertex ids."""
    try:
        if share.block is None:
            return None
        if isinstance(share.block, int):
            return position[share.block]
        return position[share.block[0]], position[share.block[1]]
    except KeyError as missing:
        raise ScheduleError(
            f"share {index} carries block {share.block!r}, but vertex {missing} is no rank of the job"
        ) from None


def _summits(forest: Forest, slice_of: list[int], pieces: _Pieces) -> dict[int, int]:
    """Per slice the height of the highest up-tree among its shares, which is the tick of its roots."""
    summits: dict[int, int] = defaultdict(int)
    for index, share in enumerate(forest.shares):
        height = 0
        if share.reduce is not None:
            height = max(_depths(share.reduce.edges, share.root, pieces, upward=True).values())
        summits[slice_of[index]] = max(summits[slice_of[index]], height)
    return summits


def _depths(edges: tuple[Path, ...], root: int, pieces: _Pieces, upward: bool) -> dict[int, int]:
    """The number of queues between the root and each vertex of a tree; unreachable vertices are below all others."""
    near: dict[int, list[Path]] = defaultdict(list)
    for path in edges:
        near[path[-1] if upward else path[0]].append(path)
    depth = {root: 0}
    queue = [root]
    for vertex in queue:
        for path in near[vertex]:
            child = path[0] if upward else path[-1]
            if child not in depth:
                depth[child] = depth[vertex] + len(pieces[path])
                queue.append(child)
    below = max(depth.values()) + 1
    for path in edges:
        for end in (path[0], path[-1]):
            depth.setdefault(end, below)
    return depth


@dataclass(slots=True)
class _Draft:
    """A role under construction."""

    rank: int
    stage: str
    offset: int
    contributes: bool = False
    keeps: bool = False
    completes: bool = False
    #: The place of each message among the operands, and its queue.
    receives: list[tuple[int, int]] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)


@dataclass
class _Builder:
    """The queues and roles of the program, collected share by share."""

    forest: Forest
    channel_count: int
    pieces: _Pieces
    relays: tuple[int, ...]
    queues: list[Queue] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)

    def add(self, index: int, share: Share, part: int, summit: int) -> None:
        """Add the roles of one share, whose root works ``summit`` ticks after its slice's first tick."""
        placement = placements(self.forest.collective)[_positions(share, self.forest.position, index)]
        root = _Draft(self._rank(index, "root", share.root), "root", summit, completes=True)
        up, down = {share.root: root}, {share.root: root}
        full = {share.root}
        relayed: list[_Draft] = []
        if share.broadcast is not None:
            relayed += self._stage(index, share.broadcast, share.root, down, {})
        if share.reduce is not None:
            lowest = _lowest(share.reduce, share.root, [(rank, self.forest.ranks[rank]) for rank in placement.sources])
            relayed += self._stage(index, share.reduce, share.root, up, lowest, upward=True)
            full |= _complete(share.reduce, share.root, [self.forest.ranks[r] for r in placement.sources])
        for draft in down.values():
            draft.keeps = draft.rank in placement.targets
        for vertex, draft in up.items():
            draft.contributes = draft.rank in placement.sources
            # If nothing is reduced above a source (a single contributor below a relay as root), the source already
            # holds the result; it keeps it in this role if the down-tree does not bring it back.
            if vertex in full and vertex not in down:
                draft.keeps = draft.rank in placement.targets
        del down[share.root]
        self.roles += [self._role(index, part, draft) for draft in (*up.values(), *down.values(), *relayed)]

    def _role(self, index: int, part: int, draft: _Draft) -> Role:
        """The role of a complete draft, with its operands in the order of the lowest rank in them."""
        receives = draft.receives
        if len(receives) > 1:
            receives = sorted(receives)
        own_operand_index = sum(place < draft.rank for place, _ in receives) if draft.contributes else 0
        return Role(
            draft.rank,
            part % self.channel_count,
            index,
            draft.stage,
            draft.offset,
            part,
            draft.contributes,
            draft.keeps,
            draft.completes,
            tuple(queue for _, queue in receives),
            tuple(draft.sends),
            own_operand_index,
        )

    def _stage(
        self,
        index: int,
        tree: Tree,
        root: int,
        drafts: dict[int, _Draft],
        lowest: dict[int, int],
        *,
        upward: bool = False,
    ) -> list[_Draft]:
        """Add a role for every vertex of ``tree`` to ``drafts``, which has the root's, and add its queues.

        ``lowest`` has the lowest rank in the message of a vertex, by default its own rank. Returns the roles of relays.
        """
        stage, sign = ("reduce", -1) if upward else ("broadcast", 1)
        summit = drafts[root].offset
        for vertex, depth in _depths(tree.edges, root, self.pieces, upward).items():
            if vertex not in drafts:
                drafts[vertex] = _Draft(self._rank(index, stage, vertex), stage, summit + sign * depth)
        relayed: list[_Draft] = []
        for path in tree.edges:
            sender = drafts[path[0]]
            for piece, home in self.pieces[path]:
                receiver = drafts[path[-1]]
                if piece[-1] != path[-1]:
                    rank = len(self.forest.ranks) + self.relays.index(piece[-1])
                    receiver = _Draft(rank, "relay", sender.offset + 1)
                    relayed.append(receiver)
                number = len(self.queues)  # one object for both: for a million queues these integers take 30 MB
                sender.sends.append(number)
                receiver.receives.append((lowest.get(path[0], drafts[path[0]].rank), number))
                self.queues.append(Queue(sender.rank, receiver.rank, piece, home))
                sender = receiver
        return relayed

    def _rank(self, index: int, stage: str, vertex: int) -> int:
        if vertex in self.forest.combining:
            return len(self.forest.ranks) + self.relays.index(vertex)
        if vertex not in self.forest.position:
            raise ScheduleError(
                f"share {index}: its {stage} visits vertex {vertex}, which is no rank of the job "
                f"{list(self.forest.ranks)} and has no in-network reduction; put a vertex that only forwards data into "
                "the interior of a path"
            )
        return self.forest.position[vertex]

    def in_order(self) -> tuple[Role, ...]:
        """All roles by descending offset; in one tick, readers of a slice precede its keeper."""
        return tuple(sorted(self.roles, key=lambda r: (-r.offset, r.channel, r.keeps, r.share, r.rank, r.stage)))


def _lowest(tree: Tree, root: int, sources: list[tuple[int, int]]) -> dict[int, int]:
    """The lowest rank among the sources below each vertex of an up-tree; ``sources`` are pairs of rank and vertex."""
    parent = {path[0]: path[-1] for path in tree.edges}
    lowest: dict[int, int] = {}
    for rank, vertex in sorted(sources):
        while vertex not in lowest:  # this also ends on a cycle in an invalid tree
            lowest[vertex] = rank
            if vertex == root or vertex not in parent:
                break
            vertex = parent[vertex]
    return lowest


def _complete(tree: Tree, root: int, sources: list[int]) -> set[int]:
    """Vertices of an up-tree that hold the reduction of all sources."""
    parent = {path[0]: path[-1] for path in tree.edges}
    needed = len(sources)
    counts: dict[int, int] = defaultdict(int)
    for source in sources:
        vertex = source
        for _ in range(len(parent) + 1):  # bounded, since an invalid tree may have a cycle
            counts[vertex] += 1
            if vertex == root or vertex not in parent:
                break
            vertex = parent[vertex]
    return {vertex for vertex, count in counts.items() if count == needed}
