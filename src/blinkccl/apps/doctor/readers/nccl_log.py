"""The lines that NCCL prints with ``NCCL_DEBUG=INFO``: hardware, settings and choices.

Every version since 2.4 is read; lines that match no pattern are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from blinkccl.apps.doctor.evidence import (
    ChannelCounts,
    ChannelHop,
    Evidence,
    Failure,
    Location,
    NcclVersion,
    NetworkInUse,
    PeerAccess,
    Processor,
    RankReport,
    RingGraph,
    Setting,
    SocketBus,
    SystemLink,
)
from blinkccl.apps.doctor.readers import Listener

_TEXT = re.compile(r"NCCL (?:INFO|WARN|version)\b.*")
_VENDORS = {"1": "GenuineIntel", "2": "AuthenticAMD"}
Make = Callable[[Location, re.Match[str]], Evidence | None]


def _hop(place: Location, match: re.Match[str]) -> Evidence | None:
    how = match[3].strip().rstrip(".")
    transport = "SHM" if "shared memory" in how or how.startswith("SHM") else how.partition("/")[0]
    if transport not in ("P2P", "SHM", "NET") or "[receive]" in match[0]:  # the sender's line has the same hop
        return None
    return ChannelHop(place, int(match[1]), int(match[2]), transport, how)


def _no_p2p(why: str) -> Make:
    return lambda place, match: PeerAccess(
        place, f"GPU{match['a']}", f"GPU{match['b']}", False, "NVLINK" in match[0], why
    )


def _processor(place: Location, match: re.Match[str]) -> Evidence | None:
    return Processor(place, _VENDORS[match[1]], int(match[2])) if match[1] in _VENDORS else None


def _cards(place: Location, match: re.Match[str]) -> Evidence:
    return NetworkInUse(place, "IB", tuple(re.findall(r"\[\d+\](\S+?)(?::\d+)?/(?:IB|RoCE)", match[1])))


#: Patterns of lines, and the piece that each becomes.
PATTERNS: tuple[tuple[str, Make], ...] = (
    (r"NCCL version (\d+\.\d+\.\d+)", lambda place, match: NcclVersion(place, tuple(map(int, match[1].split("."))))),
    (r"(NCCL_\w+) set by environment to (\S+)", lambda place, match: Setting(place, match[1], match[2].rstrip("."))),
    (r"(?:Channel|Ring) [\d/]+ : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[(?:send|receive)\] )?via (.+)", _hop),
    (r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) ([\d.]+)/[\d.]+, type (\w+)/\w+",
     lambda place, match: RingGraph(place, int(match[1]), int(match[2]), float(match[3]), match[4])),
    (r"P2P is disabled between (NVLINK )?connected GPUs (?P<a>\d+) and (?P<b>\d+)",
     _no_p2p("CUDA says that P2P is disabled")),
    (r"Could not enable P2P between dev (?P<a>\d+)\(=\w+\) and dev (?P<b>\d+)", _no_p2p("CUDA could not enable P2P")),
    (r"(\d+) coll channels, (?:\d+ collnet channels, )?(\d+) nvls channels",
     lambda place, match: ChannelCounts(place, int(match[1]), int(match[2]))),
    (r"\+ SYS\[([\d.]+)\] - CPU", lambda place, match: SocketBus(place, float(match[1]))),
    (r"INFO CPU/\S+ \(1/(\d+)/(-?\d+)\)", _processor),
    (r"NET/IB : Using (.+)", _cards),
    (r"Using network (\S+)", lambda place, match: NetworkInUse(place, match[1])),
    (r"GPU Direct RDMA Disabled for (.+)", lambda place, match: Failure(place, "gpudirect", match[1])),
    (r"((?:posix_fallocate failed|Error while creating shared memory segment|failed to extend /dev/shm).*)",
     lambda place, match: Failure(place, "shm", match[1])),
    (r"NCCL WARN (.+)", lambda place, match: Failure(place, "warning", match[1])),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), make) for pattern, make in PATTERNS)
_MEMBERS = re.compile(r"INFO +\d+ :(?: NET/\S+)?((?: GPU/\S+)+)")
#: Most ranks whose trees are read at the same time.
MAX_TREES = 4096
#: A line of the tree below ``=== System ===``: a processor, or a link to the next device.
_ROOT = re.compile(r"NCCL INFO (CPU/\S+)")
_LINK = re.compile(r"NCCL INFO ( *)\+ (\w+)\[([\d.]+)\] - (\w+/[\w-]+)")
_INIT = re.compile(r"comm(?:Id)? (\w+)?.*?rank (\d+) n[rR]anks (\d+) .*?(?:commId (\w+) )?- Init (START|COMPLETE)")
#: Lines that a rank prints after all ranks have joined its communicator, and the process and device in front of a line.
_JOINED = re.compile(r"INFO (?:(?:Channel|Ring) [\d/]+ :|Trees \[|Connected all|\d+ coll channels)")
_PROCESS = re.compile(r"(\S+:\d+):\d+ (\[\d+\])\s*$")


@dataclass
class SystemTree:
    """The tree that NCCL prints of a server; the depth of a line gives the upper end of its link."""

    links: list[SystemLink] = field(default_factory=list)
    #: By depth: the number of a link in the list, or the name of the processor.
    open: list[tuple[int, int | str]] = field(default_factory=list)

    def hear(self, text: str, place: Location) -> None:
        root, link = _ROOT.match(text), _LINK.match(text)
        if root is not None:
            self.open = [(-1, root[1])]
        elif link is not None and self.open:
            depth = len(link[1])
            self.open = [one for one in self.open if one[0] < depth] or self.open[:1]
            above = self.open[-1][1]
            upper = above if isinstance(above, str) else self.links[above].node
            self.links.append(SystemLink(place, link[2], float(link[3]), link[4], upper, 0))
            self.open.append((depth, len(self.links) - 1))
            if link[4].startswith("GPU/"):
                for _, number in self.open[1:]:
                    if isinstance(number, int):
                        one = self.links[number]
                        self.links[number] = replace(one, gpus=one.gpus + 1)


@dataclass
class NcclLog(Listener):
    """Reader of NCCL's log; a piece that all ranks print is returned once."""

    title = "NCCL_DEBUG=INFO lines"
    seen: set[tuple[object, ...]] = field(default_factory=set)
    #: By communicator and rank: where its setup began, and the number of ranks.
    begun: dict[tuple[str, int], tuple[Location, int]] = field(default_factory=dict)
    complete: set[tuple[str, int]] = field(default_factory=set)
    #: By process and device: the communicator that it began last; those whose ranks have all joined.
    last: dict[tuple[str, ...], str] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    graph: RingGraph | None = None
    #: By the beginning of the lines (host, process, thread), since ranks print at the same time.
    trees: dict[str, SystemTree] = field(default_factory=dict)

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        text = _TEXT.search(line)
        if text is None:
            return
        process = _PROCESS.search(line[: text.start()])
        if process is not None and _JOINED.search(text[0]) and process.groups() in self.last:
            self.joined.add(self.last[process.groups()])
        members = _MEMBERS.search(text[0])
        if self.graph is not None:  # the next lines list its channels
            graph, self.graph = self.graph, None
            yield replace(graph, ranks=len(members[1].split())) if members is not None else graph
        if members is not None:
            return
        yield from self._in_tree(line[: text.start()], text[0], place)
        for number, (pattern, make) in enumerate(_COMPILED):
            match = pattern.search(text[0])
            if match is not None:
                piece = make(place, match)
                if piece is not None and (number, *match.groups()) not in self.seen:
                    self.seen.add((number, *match.groups()))
                    if isinstance(piece, RingGraph):
                        self.graph = piece
                    else:
                        yield piece
                return
        init = _INIT.search(text[0])
        if init is not None:
            rank = init[4] or "", int(init[2])
            self.begun.setdefault(rank, (place, int(init[3])))
            if process is not None:
                self.last[process.groups()] = rank[0]
            if init[5] == "COMPLETE":
                self.complete.add(rank)

    def _in_tree(self, rank: str, text: str, place: Location) -> Iterator[Evidence]:
        """The links of the tree that ends with this line, which all ranks of a server print."""
        if _ROOT.match(text) and len(self.trees) < MAX_TREES:
            self.trees.setdefault(rank, SystemTree()).hear(text, place)
        elif rank in self.trees:
            self.trees[rank].hear(text, place)
            if "====" in text:
                yield from self._new(self.trees.pop(rank))

    def _new(self, tree: SystemTree) -> Iterator[Evidence]:
        for link in tree.links:
            key = "tree", link.kind, link.gb_per_s, link.node, link.above
            if key not in self.seen:
                self.seen.add(key)
                yield link

    def end(self) -> Iterator[Evidence]:
        """Ranks whose setup of a communicator has not ended, unless a rank's later lines show that all have joined."""
        if self.graph is not None:
            yield self.graph
        for tree in self.trees.values():
            yield from self._new(tree)
        if len(self.complete) < len(self.begun):
            full = {comm for comm, _ in self.complete}  # a rank completes after all have joined
            waiting = {key: begun for key, begun in self.begun.items() if key[0] not in self.joined}
            for (comm, rank), (place, size) in waiting.items():
                state = "" if (comm, rank) in self.complete else "initialising"
                yield RankReport(
                    place,
                    f"communicator {comm}".strip(),
                    rank,
                    state,
                    members=() if comm in full else tuple(range(size)),
                )
