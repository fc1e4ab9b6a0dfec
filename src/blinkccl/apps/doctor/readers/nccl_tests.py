"""The text of nccl-tests, line by line: the run, its GPUs, and the rows of its table.

Column titles differ by version and may be cut off, so rows are read without them: a size and a count, then words, then
a time and two bandwidths once or twice. A row whose numbers contradict each other is omitted with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from blinkccl.apps.doctor.evidence import Evidence, Location, MeasuredCall, Started
from blinkccl.apps.doctor.readers import Listener
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.units import algbw_gb_per_s, bus_factor

#: Our names of collectives, if they differ from those of nccl-tests.
NAMES = {"all_reduce": "allreduce", "all_gather": "allgather"}
_PROGRAM = re.compile(r"(?:^|[\s/:])([a-z_]+)_perf\b")
_RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S*)\s+device\s+(\d{1,3})\s+\[[^\]]*\]\s*(.*)"
)
_COMMA = re.compile(r"(\d+),(\d+)")
_TIME_OF_SIZE = 0.1


@dataclass
class NcclTests(Listener):
    """Reader of nccl-tests' output. Earlier lines give the collective and the ranks of a row."""

    title = "nccl-tests' text"
    collective: str | None = None
    ranks: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    first: Location | None = None
    rows: int = 0
    skipped: int = 0

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        rank = _RANK.search(line)
        if rank is not None:
            if self.rows or self.first is None:  # the list of the next run begins
                self.ranks, self.rows, self.first = {}, 0, place
            self.ranks[int(rank[1])] = (rank[2], int(rank[3]), rank[4].strip())
            return
        program = _PROGRAM.search(line)
        if program is not None and (name := NAMES.get(program[1], program[1])) in COLLECTIVES:
            self.collective = name
        words = line.split()
        if len(words) >= 6 and words[0].isdigit() and words[1].isdigit() and len(words[0]) <= 18:
            yield from self._row(words, place)

    def end(self) -> Iterator[Evidence]:
        """The last run, if it printed no result."""
        if self.ranks and not self.rows and self.first is not None:
            yield Started(self.first, len(self.ranks), next(iter(self.ranks.values()))[2])

    def _row(self, words: list[str], place: Location) -> Iterator[MeasuredCall]:
        groups = self._groups(words)
        size = int(words[0])
        if size == 0:
            return
        for time, algbw, busbw, wrong in groups:
            seconds = time * 1e-6
            if seconds <= 0:
                continue
            follows = algbw_gb_per_s(size, seconds)
            if abs(follows - algbw) > _TIME_OF_SIZE * max(follows, algbw) + 0.02:
                self._leave_out(place, f"{size} bytes in {time:g} us are {follows:.2f} GB/s, not {algbw:g}")
                continue
            collective, ranks = self._which(algbw, busbw)
            if collective is None or ranks is None:
                self._leave_out(place, "the log names neither the collective nor the number of ranks")
                continue
            self.rows += 1
            listed = [self.ranks[r] for r in sorted(self.ranks)]
            names = {name for _, _, name in listed if name}
            gpus = tuple(device for _, device, _ in listed)
            hosts = len({host for host, _, _ in listed}) or 1
            name = names.pop() if len(names) == 1 else ""
            yield MeasuredCall(place, collective, ranks, size, seconds, busbw, wrong, gpus, name, hosts)
        if not groups:
            self._leave_out(place, "it has no time with two bandwidths")

    def _groups(self, words: list[str]) -> list[tuple[float, float, float, float]]:
        """(time, algbw, busbw, wrong) of the row's out-of-place and in-place results, if present."""
        rest = words[2:]
        while rest and self._number(rest[0]) is None and rest[0] != "N/A":
            rest = rest[1:]  # the type, and the operation
        numbers = [self._number(word) for word in rest]
        if len(numbers) in (5, 7, 9) or (numbers and numbers[0] is not None and numbers[0] < 0):
            numbers = numbers[1:]  # the root
        groups = []
        step = 4 if len(numbers) in (4, 8) else 3
        for start in range(0, len(numbers) - 2, step):
            time, algbw, busbw = numbers[start : start + 3]
            wrong = numbers[start + 3] if step == 4 else 0.0
            if time is not None and algbw is not None and busbw is not None:
                groups.append((time, algbw, busbw, wrong or 0.0))
        return groups

    def _number(self, word: str) -> float | None:
        if _COMMA.fullmatch(word):
            self._say("decimal commas are read as points")
            word = word.replace(",", ".")
        try:
            number = float(word)
        except ValueError:
            return None
        return number if abs(number) < 1e18 else None

    def _which(self, algbw: float, busbw: float) -> tuple[str | None, int | None]:
        """The collective and its ranks; if the log states only one, the ratio of the bandwidths gives the other."""
        ranks = len(self.ranks) or None
        if self.collective is not None and ranks is not None:
            return self.collective, ranks
        if algbw < 1:
            return self.collective, ranks
        ratio = busbw / algbw
        if ranks is not None and abs(ratio - 2 * (ranks - 1) / ranks) < 0.02 and ranks > 2:
            self._say("the log names no collective; busbw / algbw is that of allreduce")
            return "allreduce", ranks
        if self.collective is not None:
            fits = [n for n in range(2, 1025) if abs(float(bus_factor(self.collective, n)) - ratio) < 0.01]
            if len(fits) == 1:
                self._say(f"the log lists no ranks; busbw / algbw is that of {fits[0]} ranks")
                return self.collective, fits[0]
        return self.collective, ranks

    def _say(self, what: str) -> None:
        note = f"nccl-tests: {what}"
        if note not in self.notes:
            self.notes.append(note)

    def _leave_out(self, place: Location, why: str) -> None:
        self.skipped += 1
        if self.skipped <= 3:
            self.notes.append(f"{place}: a row of numbers is skipped: {why}")
