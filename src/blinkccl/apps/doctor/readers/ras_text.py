"""The text output of ``ncclras``: communicators, and ranks that are missing or at another call than the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from blinkccl.apps.doctor.evidence import Evidence, Location, RankReport
from blinkccl.apps.doctor.readers import Listener

_COMM = re.compile(r"^#\d+-\d+ \((\w+)\) [A-Z,]+")
_COUNTS = re.compile(r"^\s+Communicator ranks have different (\w+) operation counts")
_LAUNCHED = re.compile(r"^\s+(\d+) ranks? (?:have|has) launched up to operation (\d+)")
_MISSING = re.compile(r"^\s+Missing communicator data from (\d+) rank")
_RANK = re.compile(r"^\s+Rank (\d+) -- GPU")
_TABLE = re.compile(r"^\s*\d+\s+\d+\s+\d+\s+\d+\s+(\d+)\s+\d+\s+[A-Z]+\s+(?:OK|[A-Z,]+)\s*$")


@dataclass
class RasText(Listener):
    """Reader of ``ncclras``. NCCL lists the ranks of small sets; of large sets it prints only the number."""

    title = "ncclras"
    group: str = ""
    members: tuple[int, ...] = ()
    operation: str = ""
    #: Calls begun → (number of ranks, place), for sets whose ranks are not listed.
    unlisted: dict[int, tuple[int, Location]] = field(default_factory=dict)
    calls: int | None = None
    missing: bool = False

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        if (match := _TABLE.match(line)) is not None:
            self.members = tuple(range(int(match[1])))
        elif (match := _COMM.match(line)) is not None:
            yield from self.end()
            self.group, self.calls, self.missing = f"communicator {match[1]}", None, False
        elif not self.group:
            return
        elif (match := _COUNTS.match(line)) is not None:
            yield from self.end()
            self.operation, self.missing = match[1], False
        elif (match := _LAUNCHED.match(line)) is not None:
            self.calls = int(match[2])
            self.unlisted[self.calls] = int(match[1]), place
        elif _MISSING.match(line) is not None:
            self.missing = True
        elif (match := _RANK.match(line)) is not None:
            if self.missing:
                yield RankReport(place, self.group, int(match[1]), "missing", members=self.members)
            elif self.calls is not None:
                self.unlisted.pop(self.calls, None)
                yield self._state(place, int(match[1]), self.calls)

    def end(self) -> Iterator[Evidence]:
        """The sets of unlisted ranks, each as one report: rank -n for n ranks."""
        for calls, (ranks, place) in self.unlisted.items():
            yield self._state(place, -ranks, calls)
        self.unlisted = {}

    def _state(self, place: Location, rank: int, calls: int) -> RankReport:
        return RankReport(place, self.group, rank, calls=((self.operation, calls),), members=self.members)
