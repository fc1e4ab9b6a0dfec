"""Which paths messages between two ranks take (ncclSend, ncclRecv): the rows of a path table, as libblink.so runs them.

The table is the one that ``BLINK_PATHS`` names, filled by ``blink sim sendrecv --algo multi_path -o``; one that is for
another machine, damaged, or measured in a laboratory is ignored with a line. Copy engines carry a message in parts,
each over a path of its own; the sender copies into slots, and the receiver from there to where it is wanted. They lie
on the receiver's GPU where the path has no memory, or in the memory that it has: a processor's, or that of a GPU of the
job, whose rank need not do anything. What crosses two memories, or that of a GPU outside the job, is refused, and with
it the row.

Only rows that are more than the direct path are ours, as NCCL sends over that one. Where copy engines are to run all
(``BLINK_PROTOCOL=copies``) every pair has the direct path for sizes that no row serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any

from blinkccl.codegen.layout import LINE_BYTES, SegmentLayout
from blinkccl.collectives.spec import Collective
from blinkccl.cost.choice.programs import MOST_COPY_BYTES, SLOTS
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.nccl.geometry import LEAST_COPY_BYTES, Budget
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.memories import memories_on, store_fault
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms import multi_path
from blinkccl.trees.algorithms.path_table import PairSplits, PathTable, Split
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest, Path

#: Ends of parts are multiples of 1/this: ``kWhole`` in ``bundle.h``.
WHOLE = 1 << 20
MOST_SIZE = 2**63 - 1
#: What part of the staging memory is for messages where there are any.
PORTION = Fraction(1, 4)


@dataclass(frozen=True, slots=True)
class MessagePath:
    """One stream of a path, from rank to rank; ``home`` has its slots: a rank, or a memory's vertex if ``on_host``."""

    src: int
    dst: int
    home: int
    on_host: bool
    stream: int


@dataclass(frozen=True, slots=True)
class MessageSplit:
    """How messages of ``least`` to ``most`` bytes go: each part's path, and where it ends in :data:`WHOLE`-ths."""

    src: int
    dst: int
    least: int
    most: int
    chunks: int
    parts: tuple[tuple[MessagePath, int], ...]
    why: str


@dataclass(frozen=True, slots=True)
class PlacedPath:
    """A path's places, in bytes from the start of a segment: as those of copy engines in ``layout.Connection``."""

    path: MessagePath
    segment: int
    ring: int
    tail: int
    head: int


@dataclass(frozen=True)
class MessagePlan:
    """All splits, and where their paths' slots lie."""

    splits: tuple[MessageSplit, ...] = ()
    slot_bytes: int = 0
    placed: tuple[PlacedPath, ...] = ()

    @property
    def paths(self) -> tuple[MessagePath, ...]:
        """Each once; its place is its number."""
        return tuple(dict.fromkeys(path for split in self.splits for path, _ in split.parts))

    def connections(self) -> Iterator[dict[str, int]]:
        """The paths as connections of ``blink/gpu_bundle.h``."""
        for one in self.placed:
            counters = {"tail": one.tail, "copy_tail": one.tail, "head": one.head, "copy_head": one.head}
            ends = {"src": one.path.src, "dst": one.path.dst, "home": one.segment, "on_host": int(one.path.on_host)}
            yield ends | counters | {"copy_ring": one.ring}

    def rows(self, first_path: int) -> Iterator[tuple[dict[str, Any], list[dict[str, int]]]]:
        """Each split and its parts; the first path is connection ``first_path``."""
        number = {one.path: first_path + place for place, one in enumerate(self.placed)}
        for split in self.splits:
            row = {name: getattr(split, name) for name in ("src", "dst", "least", "most", "chunks", "why")}
            yield row, [{"path": number[path], "stop": stop} for path, stop in split.parts]


def plan(
    where: JobPlacement,
    table: PathTable | None,
    every: bool,
    bad: Mapping[tuple[int, int], str],
    tell: Callable[[str], None] = lambda text: None,
) -> MessagePlan:
    """The splits of all pairs of ranks; ``every``: also those that are the direct path alone.

    ``bad`` are ordered pairs of ranks that must not write to each other, and why; ``tell`` is told what is left out.
    """
    if table is None and not every:
        return MessagePlan()
    found: list[MessageSplit] = []
    for src, dst in permutations(range(len(where.ranks)), 2):
        row = None if table is None else table.pair(where.ranks[src], where.ranks[dst])
        if row is not None or every:
            found += _Ends(where, src, dst, bad).splits(row, every, tell)
    return MessagePlan(tuple(found))


def limits_beside(messages: MessagePlan, limits: Budget) -> Budget:
    """What is left of a rank's memory for collectives."""
    taken = int(limits.staging_bytes * PORTION) if messages.splits else 0
    return replaced(limits, staging_bytes=limits.staging_bytes - taken)


def place(
    messages: MessagePlan, layout: SegmentLayout, memories: Sequence[int], limits: Budget
) -> tuple[MessagePlan, SegmentLayout]:
    """The plan with its slots behind all else in the segments; ``memories`` are the vertices of those of ``layout``.

    UnsupportedError where :data:`PORTION` of the memory has no room for them.
    """
    if not messages.splits:
        return messages, layout
    homes = [*range(layout.ranks), *memories]
    homes += sorted({path.home for path in messages.paths if path.on_host} - set(homes[layout.ranks :]))

    def segment(path: MessagePath) -> int:
        return homes.index(path.home, layout.ranks if path.on_host else 0)

    rings = max(Counter(map(segment, messages.paths)).values())
    least = int(limits.staging_bytes * PORTION)
    slot_bytes = min(MOST_COPY_BYTES, least // (rings * SLOTS) // LEAST_COPY_BYTES * LEAST_COPY_BYTES)
    if slot_bytes < LEAST_COPY_BYTES:
        raise UnsupportedError(
            f"{rings} paths of messages have slots in one memory and need {rings * SLOTS * LEAST_COPY_BYTES} bytes at "
            f"least; a quarter of BLINK_STAGING_BYTES is {least}"
        )
    ends = [*layout.segment_bytes, *[0] * (len(homes) - len(layout.segment_bytes))]

    def take(at: int, size: int) -> int:
        begin = -(-ends[at] // LINE_BYTES) * LINE_BYTES
        ends[at] = begin + size
        return begin

    placed = []
    for path in messages.paths:
        home = segment(path)
        ring = take(home, SLOTS * slot_bytes)
        tail, head = (take(home if path.on_host else end, LINE_BYTES) for end in (path.dst, path.src))
        placed.append(PlacedPath(path, home, ring, tail, head))
    return MessagePlan(messages.splits, slot_bytes, tuple(placed)), replaced(layout, segment_bytes=tuple(ends))


@dataclass(frozen=True)
class _Ends:
    """Messages from one rank to another."""

    where: JobPlacement
    src: int
    dst: int
    bad: Mapping[tuple[int, int], str]

    def splits(self, row: PairSplits | None, every: bool, tell: Callable[[str], None]) -> Iterator[MessageSplit]:
        """By size; what a row says that cannot be done goes directly."""
        name = f"from rank {self.src} to rank {self.dst}"
        try:
            flow = self._flow("all")
            direct = multi_path.on_one_path(multi_path.direct_path(flow))
        except BlinkError as error:
            tell(f"messages {name}: {' '.join(str(error).split())}")
            return
        least = 1
        for split in (direct,) if row is None else row.splits:
            most = MOST_SIZE if split.up_to_bytes is None else split.up_to_bytes
            alone = split.parts == direct.parts
            try:
                parts = self._parts(flow, direct if alone else split) if every or not alone else ()
            except UnsupportedError as error:
                tell(f"messages {name} of {least} bytes and more do not go {split.text()}: {error}")
                split, parts = direct, self._direct(flow, direct, every, tell)
            if parts:
                why = f"{name} {split.text()}{_rates(split)}"
                yield MessageSplit(self.src, self.dst, least, most, split.chunks, parts, why)
            least = most + 1

    def _direct(
        self, flow: Forest, direct: Split, every: bool, tell: Callable[[str], None]
    ) -> tuple[tuple[MessagePath, int], ...]:
        """The direct path where it is ours, or by way of the host where that pair must not write to each other."""
        if not every:
            return ()
        try:
            return self._parts(flow, direct)
        except UnsupportedError:
            pass
        try:
            staged = self._flow("staged")
            return self._parts(staged, multi_path.on_one_path(multi_path.ways(staged)[0].path))
        except BlinkError as error:
            tell(f"no messages from rank {self.src} to rank {self.dst}: {' '.join(str(error).split())}")
            return ()

    def _flow(self, links: str) -> Forest:
        ranks = self.where.ranks
        ends = Collective("sendrecv", len(ranks), src=self.src, dst=self.dst)
        return multi_path.plan(Request(self.where.topology, ends, ranks, links))

    def _parts(self, flow: Forest, split: Split) -> tuple[tuple[MessagePath, int], ...]:
        """Each stream of each path, and where it ends."""
        parts: dict[MessagePath, int] = {}
        reached, streams = Fraction(0), Counter[tuple[int, bool]]()
        for part in split.parts:
            home, on_host = self._home(flow.topology, part.path)
            for _ in range(part.streams):
                reached += part.weight / part.streams
                path = MessagePath(self.src, self.dst, home, on_host, streams[home, on_host])
                streams[home, on_host] += 1
                parts[path] = round(reached * WHOLE)
        stops = [0, *parts.values()]
        kept = [one for one, before in zip(parts.items(), stops, strict=False) if one[1] > before]
        return tuple(kept)

    def _home(self, topology: Topology, path: Path) -> tuple[int, bool]:
        """Where the slots of a path are: a rank, or the vertex of a processor's memory."""
        for pair in pairwise(path):
            if pair not in topology.link:
                raise UnsupportedError(f"its path {list(path)} takes a link {pair[0]} → {pair[1]}, which is not there")
        stored = memories_on(topology, path)
        if len(stored) > 1:
            raise UnsupportedError(f"path {list(path)} crosses {len(stored)} memories; copy engines take one")
        if stored and stored[0] not in self.where.ranks:
            if topology.vertex[stored[0]].kind == "gpu":
                raise UnsupportedError(f"path {list(path)} has its slots on GPU {stored[0]}, which is not in the job")
            return stored[0], True
        stops = [path[0], *stored, path[-1]]
        ranks = [self.where.ranks.index(stop) for stop in stops]
        for (begin, end), (a, b) in zip(pairwise(stops), pairwise(ranks), strict=True):
            fault = store_fault(topology, path[path.index(begin) : path.index(end) + 1])
            fault = fault or self.bad.get((a, b)) or self.bad.get((b, a))
            if fault:
                raise UnsupportedError(fault)
        return ranks[1], False


def _rates(split: Split) -> str:
    """ ", 141 GB/s, 71.8 directly", where the table knows."""
    if not split.gb_per_s or not split.direct_gb_per_s:
        return ""
    return f": {split.gb_per_s:.4g} GB/s, {split.direct_gb_per_s:.4g} directly"
