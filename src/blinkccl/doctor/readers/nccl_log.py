"""The lines that NCCL prints with ``NCCL_DEBUG=INFO``: what it found, what it was told, and what it chose.

Every version since 2.4 is read; lines that none of the patterns knows are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from blinkccl.doctor.evidence import (
    Failure,
    Graph,
    Hop,
    NcclVersion,
    Network,
    NoGpuDirect,
    PeerAccess,
    Piece,
    Place,
    Processor,
    RankState,
    Setting,
    SocketBus,
)

_TEXT = re.compile(r"NCCL (?:INFO|WARN|version)\b.*")
_VENDORS = {1: "GenuineIntel", 2: "AuthenticAMD"}
#: From a version's own lines: all ranks print the same, so each piece is told once.
Make = Callable[[Place, re.Match[str]], Piece | None]


def _hop(place: Place, found: re.Match[str]) -> Piece | None:
    how = found[3].strip().rstrip(".")
    if "[receive]" in found[0]:
        return None  # the sender says it too
    transport = "SHM" if "shared memory" in how or how.startswith("SHM") else how.partition("/")[0]
    if transport not in ("P2P", "SHM", "NET"):
        return None
    return Hop(place, int(found[1]), int(found[2]), transport, how)


def _graph(place: Place, found: re.Match[str]) -> Piece:
    return Graph(place, int(found[1]), int(found[2]), float(found[3]), found[4])


def _setting(place: Place, found: re.Match[str]) -> Piece:
    return Setting(place, found[1], found[2].strip().rstrip("."))


def _version(place: Place, found: re.Match[str]) -> Piece:
    return NcclVersion(place, tuple(map(int, found[1].split("."))))


def _no_p2p(place: Place, found: re.Match[str]) -> Piece:
    nvlink = found[1] is not None
    return PeerAccess(place, f"GPU{found[2]}", f"GPU{found[3]}", False, nvlink, "CUDA says that P2P is disabled")


def _could_not(place: Place, found: re.Match[str]) -> Piece:
    return PeerAccess(place, f"GPU{found[1]}", f"GPU{found[2]}", False, False, "CUDA could not enable P2P")


def _cards(place: Place, found: re.Match[str]) -> Piece:
    return Network(place, "IB", tuple(re.findall(r"\[\d+\](\S+?)(?::\d+)?/(?:IB|RoCE)", found[1])))


def _processor(place: Place, found: re.Match[str]) -> Piece | None:
    vendor = _VENDORS.get(int(found[2]))
    return Processor(place, vendor, int(found[3])) if int(found[1]) == 1 and vendor else None


#: What a line holds, and the piece that it becomes.
PATTERNS: tuple[tuple[str, Make], ...] = (
    (r"NCCL version (\d+\.\d+\.\d+)", _version),
    (r"(NCCL_\w+) set by environment to (\S+)", _setting),
    (r"(?:Channel|Ring) [\d/]+ : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[(?:send|receive)\] )?via (.+)", _hop),
    (r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) ([\d.]+)/[\d.]+, type (\w+)/\w+", _graph),
    (r"P2P is disabled between (NVLINK )?connected GPUs (\d+) and (\d+)", _no_p2p),
    (r"Could not enable P2P between dev (\d+)\(=\w+\) and dev (\d+)", _could_not),
    (r"\+ SYS\[([\d.]+)\] - CPU", lambda place, found: SocketBus(place, float(found[1]))),
    (r"INFO CPU/\S+ \((\d+)/(\d+)/(-?\d+)\)", _processor),
    (r"NET/IB : Using (.+)", _cards),
    (r"Using network (\S+)", lambda place, found: Network(place, found[1])),
    (r"GPU Direct RDMA Disabled for (.+)", lambda place, found: NoGpuDirect(place, found[1])),
    (
        r"((?:posix_fallocate failed|Error while creating shared memory segment|failed to extend /dev/shm).*)",
        lambda place, found: Failure(place, "shm", found[1]),
    ),
    (r"NCCL WARN (.+)", lambda place, found: Failure(place, "warning", found[1])),
)
_COMPILED = tuple((re.compile(pattern), make) for pattern, make in PATTERNS)
_MEMBERS = re.compile(r"INFO +\d+ :((?: GPU/\S+)+)")
_INIT = re.compile(r"comm(?:Id)? (\w+)?.*?rank (\d+) n[rR]anks (\d+) .*?(?:commId (\w+) )?- Init (START|COMPLETE)")


@dataclass(slots=True)
class _Init:
    place: Place
    size: int
    complete: bool


class NcclLog:
    """A listener of lines. Pieces that all ranks print alike are given once."""

    title = "NCCL_DEBUG=INFO lines"

    def __init__(self, notes: list[str]) -> None:
        self.seen: set[tuple[object, ...]] = set()
        self.inits: dict[tuple[str, int], _Init] = {}
        self.graph: Graph | None = None

    def hear(self, line: str, place: Place) -> Iterator[Piece]:
        """The pieces of one line."""
        text = _TEXT.search(line)
        if text is None:
            return
        members = _MEMBERS.search(text[0])
        if self.graph is not None:  # the lines behind it list its channels
            graph, self.graph = self.graph, None
            yield replace(graph, ranks=len(members[1].split())) if members is not None else graph
        if members is not None:
            return
        for pattern, make in _COMPILED:
            found = pattern.search(text[0])
            if found is not None:
                piece = make(place, found)
                key = (pattern.pattern, *found.groups()) if pattern.groups else (pattern.pattern,)
                if piece is not None and key not in self.seen:
                    self.seen.add(key)
                    if isinstance(piece, Graph):
                        self.graph = piece
                    else:
                        yield piece
                return
        init = _INIT.search(text[0])
        if init is not None:
            known = self.inits.setdefault((init[4] or "", int(init[2])), _Init(place, int(init[3]), False))
            known.complete = known.complete or init[5] == "COMPLETE"

    def end(self) -> Iterator[Piece]:
        """Ranks that have begun to set up a communicator and not ended, if any has."""
        if self.graph is not None:
            yield self.graph
        if not self.inits or all(init.complete for init in self.inits.values()):
            return
        for (comm, rank), init in self.inits.items():
            state = "" if init.complete else "initialising"
            yield RankState(init.place, f"communicator {comm}".strip(), rank, state, members=tuple(range(init.size)))
