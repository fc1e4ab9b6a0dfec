"""The output of PyTorch's watchdog when a collective of NCCL times out, rank by rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from blinkccl.apps.doctor.evidence import Evidence, Location, RankReport
from blinkccl.apps.doctor.readers import Listener

_TIMEOUT = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"(?:, NumelIn=(\d+))?"
)
_WORK = re.compile(
    r"\[PG (?:ID )?(\w+)[^\]]*?Rank (\d{1,7})\].*?last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL "
    r")?work: (-?\d+)"
)


@dataclass
class TorchLog(Listener):
    """Reader of the watchdog's lines; :meth:`end` returns the first report of each rank."""

    title = "PyTorch's watchdog"
    ranks: dict[int, RankReport] = field(default_factory=dict)

    def hear(self, line: str, place: Location) -> Iterable[Evidence]:
        timeout, work = _TIMEOUT.search(line), _WORK.search(line)
        if timeout is not None:
            known = self._known(int(timeout[1]), place)
            if not known.doing:
                doing = f"{timeout[3]} number {timeout[2]}" + (f" of {timeout[4]} elements" if timeout[4] else "")
                self.ranks[known.rank] = replace(known, state="timed out", doing=doing)
        if work is not None:
            known = self._known(int(work[2]), place)
            if known.done is None:
                group, calls = f"process group {work[1]}", (("", int(work[3])),)
                self.ranks[known.rank] = replace(known, group=group, calls=calls, done=int(work[4]))
        return ()

    def _known(self, rank: int, place: Location) -> RankReport:
        return self.ranks.get(rank) or RankReport(place, "process group", rank)

    def end(self) -> Iterable[Evidence]:
        return self.ranks.values()
