"""What ``ncclras`` prints as text: communicators, and ranks that are missing or elsewhere than the others."""

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
    """NCCL lists the ranks of smaller sets; of the others only the number is known."""

    title = "ncclras"
    group: str = ""
    members: tuple[int, ...] = ()
    operation: str = ""
    #: Calls begun → how many ranks have; of those that are listed one by one, none is left here.
    unlisted: dict[int, tuple[int, Location]] = field(default_factory=dict)
    calls: int | None = None
    missing: bool = False

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        if (found := _TABLE.match(line)) is not None:
            self.members = tuple(range(int(found[1])))
        elif (found := _COMM.match(line)) is not None:
            yield from self.end()
            self.group, self.calls, self.missing = f"communicator {found[1]}", None, False
        elif not self.group:
            return
        elif (found := _COUNTS.match(line)) is not None:
            yield from self.end()
            self.operation, self.missing = found[1], False
        elif (found := _LAUNCHED.match(line)) is not None:
            self.calls = int(found[2])
            self.unlisted[self.calls] = int(found[1]), place
        elif _MISSING.match(line) is not None:
            self.missing = True
        elif (found := _RANK.match(line)) is not None:
            if self.missing:
                yield RankReport(place, self.group, int(found[1]), "missing", members=self.members)
            elif self.calls is not None:
                self.unlisted.pop(self.calls, None)
                yield self._state(place, int(found[1]), self.calls)

    def end(self) -> Iterator[Evidence]:
        """Ranks that are not listed, as one: rank -n for n of them."""
        for calls, (ranks, place) in self.unlisted.items():
            yield self._state(place, -ranks, calls)
        self.unlisted = {}

    def _state(self, place: Location, rank: int, calls: int) -> RankReport:
        return RankReport(place, self.group, rank, calls=((self.operation, calls),), members=self.members)
