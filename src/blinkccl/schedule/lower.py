"""Lowering of a forest to a Program: who sends which chunk to whom, in which tick.

Lowering translates and does not judge: a forest that is wrong becomes a program that the verifier refuses, naming
rank, channel and step. Only what cannot be written down as a Program at all is an error here.

**Offsets.** All shares of one slice meet in the same tick: with H the height of the highest up-tree among
them, a vertex at depth d of an up-tree has offset H − d, every root H, a vertex at depth d of a down-tree
H + d. Every queue takes one tick, and a rank reads its own input of a slice no later than any share writes
the slice's output (in place these are the same memory).

**Order.** In one tick, roles run by falling offset: receivers before their senders. So a message that a
sender appends finds the slot that the receiver freed earlier in the same tick, and one slot per queue is
enough. In the folded graph every arc without a token then goes from a higher offset to a lower one, or
down the list: no cycle.

**Order of reduction.** At every vertex operands are combined by the lowest rank in them: a child's message stands where
the lowest of its contributors would, the own contribution at its rank. So the order depends on who is combined with
whom and on nothing else: a star reduces in rank order wherever its root is, N stars over one slice give all ranks the
same bits, and so do trees that differ in which member of a group collects it (:mod:`blinkccl.schedule.order`).

**Memories on the way.** An edge whose path leads through one memory is a queue staged there. Through more, it is
several queues: at every second memory a relay takes from one and puts into the next.

**Switches that combine** are relays too, with the roles that their places in the trees give them.
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
    """The program that runs ``forest``: a queue per tree edge and relay on it, roles in one list, by falling offset.

    Each queue may hold ``slots`` messages. Slices are dealt round robin to so many parallel ``channels``; None: one
    channel per slice. A ScheduleError says what cannot be written down: a block that is none of the collective's, a
    tree that visits a vertex that is no rank of the job, an edge that joins nothing, shares of one slice with different
    weights.
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


#: What becomes of each path: the queues on it, as the path and home of each.
_Pieces = dict[Path, tuple[tuple[Path, int], ...]]


def _pieces(forest: Forest) -> _Pieces:
    """The queues on every path of the forest, in the direction of the data."""
    paths = dict.fromkeys(path for share in forest.shares for tree in share.trees() for path in tree.edges)
    return {path: tuple(_queues_on(forest.topology, path)) for path in paths}


def _queues_on(topology: Topology, path: Path) -> Iterator[tuple[Path, int]]:
    """A queue is pushed or pulled, as the plan's links want, or staged at the first memory on its way to the second."""
    exists = all(pair in topology.link for pair in pairwise(path))  # else the verifier says so
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
    """Edges must join two vertices; everything else about trees is the verifier's business."""
    for index, share in enumerate(forest.shares):
        for tree in share.trees():
            for path in tree.edges:
                if len(path) < 2 or path[0] == path[-1]:
                    raise ScheduleError(
                        f"share {index}: edge {list(path)} joins nothing; an edge is a path of at least two "
                        "vertices with different ends"
                    )


def _slices(forest: Forest) -> tuple[tuple[Slice, ...], list[int]]:
    """The slice table, block by block in the collective's order, and each share's index into it."""
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
    """The share's block by positions instead of vertex ids."""
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
    """Per slice, the height of the highest up-tree among its shares: the tick in which its roots work."""
    summits: dict[int, int] = defaultdict(int)
    for index, share in enumerate(forest.shares):
        height = 0
        if share.reduce is not None:
            height = max(_depths(share.reduce.edges, share.root, pieces, upward=True).values())
        summits[slice_of[index]] = max(summits[slice_of[index]], height)
    return summits


def _depths(edges: tuple[Path, ...], root: int, pieces: _Pieces, upward: bool) -> dict[int, int]:
    """Queues between the root and each vertex of a tree; what no edge joins to the root lies below all else."""
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
    """A role in the making."""

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
    """Collects queues and roles share by share."""

    forest: Forest
    channel_count: int
    pieces: _Pieces
    relays: tuple[int, ...]
    queues: list[Queue] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)

    def add(self, index: int, share: Share, part: int, summit: int) -> None:
        """The roles of one share, whose root works ``summit`` ticks after its slice's first tick."""
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
            # A source above which nothing is added (a lone contributor on its way to a relay root) already
            # holds the result; it keeps it here if the down-tree does not bring it back.
            if vertex in full and vertex not in down:
                draft.keeps = draft.rank in placement.targets
        del down[share.root]
        self.roles += [self._role(index, part, draft) for draft in (*up.values(), *down.values(), *relayed)]

    def _role(self, index: int, part: int, draft: _Draft) -> Role:
        """The role of a draft that is complete, with its operands by the lowest rank in them."""
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
        """Adds a role for every vertex of ``tree`` to ``drafts``, which has the root's, and its queues.

        ``lowest`` is the lowest rank in what a vertex sends, where it says so. Returns the roles of relays.
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
                number = len(self.queues)  # One object for both: of a million queues they take 30 MB.
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
                f"{list(self.forest.ranks)} and does not combine; a vertex that only passes data on belongs into the "
                "interior of a path"
            )
        return self.forest.position[vertex]

    def in_order(self) -> tuple[Role, ...]:
        """All roles by the one global stamp; in one tick, readers of a slice precede its keeper."""
        return tuple(sorted(self.roles, key=lambda r: (-r.offset, r.channel, r.keeps, r.share, r.rank, r.stage)))


def _lowest(tree: Tree, root: int, sources: list[tuple[int, int]]) -> dict[int, int]:
    """The lowest of the sources, each a rank and its vertex, that are combined at each vertex of an up-tree."""
    parent = {path[0]: path[-1] for path in tree.edges}
    lowest: dict[int, int] = {}
    for rank, vertex in sorted(sources):
        while vertex not in lowest:  # so a cycle, which only broken trees have, ends too
            lowest[vertex] = rank
            if vertex == root or vertex not in parent:
                break
            vertex = parent[vertex]
    return lowest


def _complete(tree: Tree, root: int, sources: list[int]) -> set[int]:
    """Vertices of an up-tree at which every source has been combined already."""
    parent = {path[0]: path[-1] for path in tree.edges}
    needed = len(sources)
    counts: dict[int, int] = defaultdict(int)
    for source in sources:
        vertex = source
        for _ in range(len(parent) + 1):  # a bound instead of a test: broken trees may hold a cycle
            counts[vertex] += 1
            if vertex == root or vertex not in parent:
                break
            vertex = parent[vertex]
    return {vertex for vertex, count in counts.items() if count == needed}
