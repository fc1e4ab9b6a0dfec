"""What PyTorch's watchdog prints when a collective of NCCL does not end, rank by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from blinkccl.doctor.evidence import Piece, Place, RankState

_TIMEOUT = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"(?:, NumelIn=(\d+))?"
)
_WORK = re.compile(
    r"\[PG (?:ID )?(\w+)[^\]]*?Rank (\d{1,7})\].*?last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL "
    r")?work: (-?\d+)"
)


class TorchLog:
    """A listener of lines; each rank's first report counts, and is given at the end with all that it says."""

    title = "PyTorch's watchdog"

    def __init__(self, notes: list[str]) -> None:
        self.ranks: dict[int, RankState] = {}

    def hear(self, line: str, place: Place) -> Iterator[Piece]:
        """Nothing yet: a rank's report has several lines."""
        timeout = _TIMEOUT.search(line)
        if timeout is not None:
            rank = int(timeout[1])
            doing = f"{timeout[3]} number {timeout[2]}" + (f" of {timeout[4]} elements" if timeout[4] else "")
            known = self.ranks.get(rank)
            if known is None or not known.doing:
                before = known or RankState(place, "process group", rank)
                self.ranks[rank] = replace(before, state="timed out", doing=doing)
        work = _WORK.search(line)
        if work is not None:
            rank = int(work[2])
            known = self.ranks.get(rank) or RankState(place, "process group", rank)
            if known.done is None:
                calls = (("", int(work[3])),)
                self.ranks[rank] = replace(known, group=f"process group {work[1]}", calls=calls, done=int(work[4]))
        yield from ()

    def end(self) -> Iterator[Piece]:
        yield from self.ranks.values()
