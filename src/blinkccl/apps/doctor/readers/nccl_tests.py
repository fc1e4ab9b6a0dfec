"""The text of nccl-tests as evidence: the run, its GPUs, and the rows of its table.

A row whose numbers contradict each other is omitted with a note. If the log does not state the collective or the number
of ranks, the ratio of the bandwidths gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blinkccl.apps.doctor.evidence import Evidence, Location, MeasuredCall, Started
from blinkccl.apps.doctor.readers import Listener
from blinkccl.errors import TopologyError
from blinkccl.formats.nccl_tests import BenchmarkLog, BenchmarkRow
from blinkccl.units import bus_factor


@dataclass
class NcclTests(Listener):
    """Reader of nccl-tests' output. Earlier lines give the collective and the ranks of a row."""

    title = "nccl-tests' text"
    first: Location | None = None
    skipped: int = 0
    _log: BenchmarkLog | None = None

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        if self._log is None:
            self._log = BenchmarkLog(place.source, self.notes)
        listed = len(self._log.ranks)
        try:
            rows = self._log.hear(line, place.line or 0)
        except TopologyError as error:
            self._leave_out(str(error))
            return
        if len(self._log.ranks) == 1 != listed:
            self.first = place
        for row in rows:
            collective, ranks = self._which(row)
            if collective and ranks and row.busbw_gb_per_s is not None:
                yield measured_call(row, place, collective, ranks)
            else:
                self._leave_out(f"{place}: the log names neither the collective nor the number of ranks")

    def end(self) -> Iterator[Evidence]:
        """The last run, if it printed no result."""
        if self._log is not None and self._log.ranks and not self._log.rows and self.first is not None:
            yield Started(self.first, len(self._log.ranks), next(iter(self._log.ranks.values()))[2])

    def _which(self, row: BenchmarkRow) -> tuple[str, int]:
        """The collective and its ranks; if the log states only one, the ratio of the bandwidths gives the other."""
        collective, ranks, algbw, busbw = row.run.collective, row.run.ranks, row.algbw_gb_per_s, row.busbw_gb_per_s
        if (collective and ranks) or not algbw or busbw is None or algbw < 1:
            return collective, ranks
        ratio = busbw / algbw
        if ranks > 2 and abs(ratio - 2 * (ranks - 1) / ranks) < 0.02:
            self._say("the log names no collective; busbw / algbw is that of allreduce")
            return "allreduce", ranks
        fits = [n for n in range(2, 1025) if collective and abs(float(bus_factor(collective, n)) - ratio) < 0.01]
        if len(fits) == 1:
            self._say(f"the log lists no ranks; busbw / algbw is that of {fits[0]} ranks")
            return collective, fits[0]
        return collective, ranks

    def _say(self, what: str) -> None:
        note = f"nccl-tests: {what}"
        if note not in self.notes:
            self.notes.append(note)

    def _leave_out(self, why: str) -> None:
        self.skipped += 1
        if self.skipped <= 3:
            self.notes.append(f"a row of numbers is skipped: {why}")


def measured_call(row: BenchmarkRow, place: Location, collective: str, ranks: int) -> MeasuredCall:
    """The row as evidence."""
    return MeasuredCall(
        place,
        collective,
        ranks,
        row.size_bytes,
        row.seconds,
        row.busbw_gb_per_s or 0.0,
        row.wrong,
        row.run.gpus,
        row.run.model,
        row.run.hosts,
        row.limit_gb_per_s,
    )
