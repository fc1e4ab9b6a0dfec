"""Paths of messages between two ranks (ncclSend, ncclRecv): the rows of a path table for libblink.so.

``BLINK_PATHS`` names the table, which ``blink sim sendrecv --algo multi_path -o`` fills. A table for another machine, a
damaged one, or one measured in a laboratory is ignored with a warning. Copy engines move a message in parts, each over
its own path. The sender copies into slots, and the receiver copies from the slots to the destination. The slots of a
direct path are on the receiver's GPU. Other paths have slots in their memory: a processor's, or that of a GPU of the
job, whose rank takes no part. A row with a path through two memories, or through a GPU outside the job, is refused.

Blink runs only rows with more than the direct path, which NCCL uses itself. With ``BLINK_PROTOCOL=copies`` copy engines
run everything, so every pair has the direct path for sizes without a row.
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

#: The denominator of the ends of parts: ``kWhole`` in ``bundle.h``.
WHOLE = 1 << 20
MOST_SIZE = 2**63 - 1
#: The part of the staging memory for messages, if a job has any.
PORTION = Fraction(1, 4)


@dataclass(frozen=True, slots=True)
class MessagePath:
    """One stream of a path from rank to rank; ``home`` has its slots, a rank or, if ``on_host``, a memory's vertex."""

    src: int
    dst: int
    home: int
    on_host: bool
    stream: int


@dataclass(frozen=True, slots=True)
class MessageSplit:
    """The split of messages of ``least`` to ``most`` bytes: each part's path, and its end in :data:`WHOLE`-ths."""

    src: int
    dst: int
    least: int
    most: int
    chunks: int
    parts: tuple[tuple[MessagePath, int], ...]
    why: str


@dataclass(frozen=True, slots=True)
class PlacedPath:
    """A path with byte offsets in a segment, as for copy engines in ``layout.Connection``."""

    path: MessagePath
    segment: int
    ring: int
    tail: int
    head: int


@dataclass(frozen=True)
class MessagePlan:
    """All splits, and the places of their paths' slots."""

    splits: tuple[MessageSplit, ...] = ()
    slot_bytes: int = 0
    placed: tuple[PlacedPath, ...] = ()

    @property
    def paths(self) -> tuple[MessagePath, ...]:
        """Each path once; its index is its number."""
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
    """The splits of all pairs of ranks; ``every`` includes splits with the direct path alone.

    ``bad`` has ordered pairs of ranks that must not write to each other, with reasons; ``tell`` gets refused rows.
    """
    if table is None and not every:
        return MessagePlan()
    splits: list[MessageSplit] = []
    for src, dst in permutations(range(len(where.ranks)), 2):
        row = None if table is None else table.pair(where.ranks[src], where.ranks[dst])
        if row is not None or every:
            splits += _Ends(where, src, dst, bad).splits(row, every, tell)
    return MessagePlan(tuple(splits))


def limits_beside(messages: MessagePlan, limits: Budget) -> Budget:
    """The budget that messages leave for collectives."""
    taken = int(limits.staging_bytes * PORTION) if messages.splits else 0
    return replaced(limits, staging_bytes=limits.staging_bytes - taken)


def place(
    messages: MessagePlan, layout: SegmentLayout, memories: Sequence[int], limits: Budget
) -> tuple[MessagePlan, SegmentLayout]:
    """The plan with its slots after the rest of the segments; ``memories`` are the vertices of the layout's memories.

    UnsupportedError if the slots do not fit into :data:`PORTION` of the memory.
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
            f"messages over {rings} paths need at least {rings * SLOTS * LEAST_COPY_BYTES} bytes in one memory, but a "
            f"quarter of BLINK_STAGING_BYTES is {least}; raise BLINK_STAGING_BYTES"
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
        """The splits by size; a split that cannot run is replaced by the direct path."""
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
                tell(
                    f"messages {name} of {least} bytes and more use the direct path instead of {split.text()}: {error}"
                )
                split, parts = direct, self._direct(flow, direct, every, tell)
            if parts:
                why = f"{name} {split.text()}{_rates(split)}"
                yield MessageSplit(self.src, self.dst, least, most, split.chunks, parts, why)
            least = most + 1

    def _direct(
        self, flow: Forest, direct: Split, every: bool, tell: Callable[[str], None]
    ) -> tuple[tuple[MessagePath, int], ...]:
        """The direct path if Blink runs it, or a path through the host if the pair must not write to each other."""
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
        """Each stream of each path, with its end."""
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
        return tuple(one for one, before in zip(parts.items(), stops, strict=False) if one[1] > before)

    def _home(self, topology: Topology, path: Path) -> tuple[int, bool]:
        """The place of a path's slots: a rank, or the vertex of a processor's memory."""
        for pair in pairwise(path):
            if pair not in topology.link:
                raise UnsupportedError(f"path {list(path)} needs a link {pair[0]} → {pair[1]}, which does not exist")
        stored = memories_on(topology, path)
        if len(stored) > 1:
            raise UnsupportedError(f"path {list(path)} crosses {len(stored)} memories, but copy engines allow one")
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
    """Rates like ": 141 GB/s, 71.8 directly"; "" if the table has none."""
    if not split.gb_per_s or not split.direct_gb_per_s:
        return ""
    return f": {split.gb_per_s:.4g} GB/s, {split.direct_gb_per_s:.4g} directly"
