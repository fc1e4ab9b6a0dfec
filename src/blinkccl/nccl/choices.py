"""The calls that Blink runs: a table by collective, root and size, the same on all ranks.

Sizes S, as defined by nccl-tests, form classes of a power of two from 1 KiB to 4 GiB. Smaller and larger sizes belong
to the first and the last class. Each class selects the program and protocol with the least predicted time
(:mod:`~blinkccl.cost.choice.costs`) at its smallest size. Blink runs the class if NCCL's predicted time
(:mod:`~blinkccl.nccl.nccl_predictor`) is at least :data:`PREDICTED_MARGIN` times as long. Otherwise NCCL runs it.
BLINK_ALGO=<name> selects Blink for all calls of this algorithm, BLINK_PROTOCOL=<name> for all with this protocol.

Measurements of ``blink tune`` on this machine (:mod:`~blinkccl.trees.algorithms.tables`) replace predictions. A class
with measured times compares them, among programs and with NCCL's, at the measured size. If both sides were measured,
:data:`MARGIN` is enough.

With BLINK_ALGO=hybrid, a prediction only selects the classes to try: those whose split over NVLink and PCIe is
predicted faster than NVLink alone have both programs. Their first calls run and time one after the other
(``chunk_searches.h``). The split stays if it was faster by more than the noise on the slowest rank. Eq 8's part for
PCIe is therefore 0 where the start of its transfers, which the prediction lacks, costs more than the split gains.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from blinkccl.codegen.layout import Geometry
from blinkccl.codegen.text import COPIES
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.nccl_server import NcclPrediction
from blinkccl.cost.choice.auto import floor_of
from blinkccl.cost.choice.costs import BUDGET, PredictedTime, architecture, ll128_fault
from blinkccl.cost.choice.programs import CandidateProgram, Gpu
from blinkccl.cost.choice.timed import KernelPlan
from blinkccl.cost.simulate.translate import Settings
from blinkccl.errors import LaunchError, UnsupportedError
from blinkccl.nccl.copies import fault_of_program
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import CandidatePrograms, collectives, key_of
from blinkccl.trees.algorithms.hybrid import ALGORITHM as HYBRID
from blinkccl.trees.algorithms.tables import NCCL, Cell, Row, cell_at
from blinkccl.units import size_text

#: Values of BLINK_PROTOCOL; "" leaves the choice to the predictions.
PROTOCOLS = ("simple", "ll", "ll128", COPIES)
#: log2 of the smallest sizes of the first and the last class.
FIRST_CLASS, LAST_CLASS = 10, 32
#: More than any size.
BEYOND = 2**63
#: Ratio below which times are equal: the first program is selected, and a class measured beside NCCL stays with NCCL.
MARGIN = 1.03
#: Minimum predicted gain, because the kernels' costs are NCCL's own constants and no GPU has run the kernels yet.
PREDICTED_MARGIN = 1.3

#: A candidate, its protocol and its time.
TimedWay = tuple[CandidateProgram, str, PredictedTime]
#: Minimum size for a search of the chunk across calls.
SEARCH_FROM_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ProgramWay:
    """A way to run a call; ``chunk_bytes`` is the chunk of one part's message."""

    candidate: CandidateProgram
    protocol: str
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class ChoiceRow(Row[ProgramWay]):
    """The programs of a collective for S in [``least``, ``below``); without ways NCCL runs it.

    With two ways, the first calls try the second beside the first and keep it if it is faster. ``search`` allows the
    chunk to change. ``measured``: the choice rests on measurements. ``margin``: the minimum ratio of NCCL's time to
    Blink's.
    """

    collective: str
    root: int
    why: str = ""
    search: bool = False
    measured: bool = False
    margin: float = PREDICTED_MARGIN

    @property
    def candidate(self) -> CandidateProgram | None:
        """The first way's program."""
        return self.ways[0].candidate if self.ways else None

    @property
    def protocol(self) -> str:
        return self.ways[0].protocol if self.ways else "-"


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The result of one class; with a ``cell`` its times are measured, and its size is the compared size.

    ``forced``: Blink runs the class at any time of NCCL.
    """

    size: int
    blink: TimedWay | None
    nccl: NcclPrediction | None
    forced: bool
    other: TimedWay | None
    cell: Cell | None = None

    @property
    def taken(self) -> bool:
        """True if Blink runs it."""
        if self.blink is None or self.forced:
            return self.blink is not None
        return self.nccl is not None and self.blink[2].seconds * self.margin < self.nccl.seconds

    @property
    def compared(self) -> int:
        """The size of all times."""
        return self.size if self.cell is None else self.cell.size_bytes

    @property
    def margin(self) -> float:
        """The minimum ratio of NCCL's time to Blink's for Blink to run the class, smaller if both were measured."""
        return PREDICTED_MARGIN if self.cell is None or self.cell.best(NCCL) is None else MARGIN


@dataclass(frozen=True)
class ChoiceTable:
    """All rows; the first row that matches a call applies."""

    choices: tuple[ChoiceRow, ...]

    @property
    def taken(self) -> tuple[ChoiceRow, ...]:
        return tuple(row for row in self.choices if row.ways)

    @property
    def candidates(self) -> tuple[CandidateProgram, ...]:
        """The candidates that are selected for some size, each once."""
        return tuple(dict.fromkeys(way.candidate for row in self.choices for way in row.ways))

    def protocols(self, candidate: CandidateProgram) -> tuple[str, ...]:
        """The protocols with which a candidate is selected; with copies also simple, for captured calls."""
        chosen = {way.protocol for row in self.choices for way in row.ways if way.candidate is candidate}
        return tuple(sorted(chosen | ({"simple"} if COPIES in chosen else set())))

    @property
    def copies(self) -> bool:
        """True if copy engines run any of the calls."""
        return any(way.protocol == COPIES for row in self.choices for way in row.ways)


def wanted_protocol(setting: str) -> str:
    """The protocol of BLINK_PROTOCOL, "" if unset; LaunchError for an unknown one."""
    if setting and setting not in PROTOCOLS:
        raise LaunchError(f"BLINK_PROTOCOL={setting[:40]}: expected one of {', '.join(PROTOCOLS)}")
    return setting


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions of choices: capability of the oldest GPU (90 for 9.0), and blocks of each rank.

    Each program has all blocks and the largest messages, because memory is allocated to the selected programs later.
    ``algorithm`` and ``protocol`` select Blink for all calls that they serve; "" leaves the choice to the predictions.
    ``no_copies`` is the reason that copy engines run nothing. ``measured`` holds the cells of these ranks.
    ``deterministic`` is "order" if all sums have one order, so that NCCL may run none.
    """

    capability: int
    blocks: int
    algorithm: str = ""
    protocol: str = ""
    no_copies: str | None = None
    measured: tuple[Cell, ...] = ()
    deterministic: str = ""

    @property
    def forced(self) -> str:
        """The forcing settings in words, "" without any."""
        named = (
            ("BLINK_ALGO", self.algorithm),
            ("BLINK_PROTOCOL", self.protocol),
            ("BLINK_DETERMINISTIC", self.deterministic),
        )
        return " ".join(f"{name}={value}" for name, value in named if value)

    def of(self, collective: Collective) -> Terms:
        """The terms of one collective: an order concerns sums alone, and measured plans have no fixed order."""
        if not self.deterministic:
            return self
        return replace(self, measured=()) if collective.reduces else replace(self, deterministic="")

    def fault(self, candidate: CandidateProgram) -> str | None:
        """The reason that the forced protocol cannot run the program; None if it can or if none is forced."""
        if self.protocol == "ll128":
            return ll128_fault(candidate, self.capability)
        return (self.no_copies or fault_of_program(candidate.program)) if self.protocol == COPIES else None


def table(planned: CandidatePrograms, size: int, terms: Terms, nccl: NcclPredictor | None) -> ChoiceTable:
    """The rows of all collectives on ``size`` ranks; without NCCL, Blink's fastest program runs at every size.

    Cost: one to three simulations of 1 to 4 ms per class and candidate that may be the fastest, 2.5 s for 8 GPUs.
    """
    rows = [row for collective in collectives(size) for row in rows_of(collective, planned, terms, nccl)]
    return ChoiceTable(tuple(rows))


def rows_of(
    collective: Collective, planned: CandidatePrograms, terms: Terms, nccl: NcclPredictor | None
) -> list[ChoiceRow]:
    """The rows of one collective and root."""
    key, terms = key_of(collective), terms.of(collective)
    faults = {one: terms.fault(one) for one in planned.by_key.get(key, [])}
    timed = [_TimedCandidate(one, terms) for one, fault in faults.items() if fault is None]
    if not timed:
        why = "; ".join(dict.fromkeys(fault for fault in faults.values() if fault))
        why = f"{terms.forced}; {why}" if why else planned.why_not(key)
        return [ChoiceRow(0, BEYOND, (), *key, why)]
    verdicts = [
        _verdict(timed, 1 << k, nccl, bool(terms.forced), cell_at(terms.measured, collective, 1 << k))
        for k in range(FIRST_CLASS, LAST_CLASS + 1)
    ]
    return list(_merged(key, verdicts, nccl, terms.forced))


def _verdict(
    timed: Sequence[_TimedCandidate], size_bytes: int, nccl: NcclPredictor | None, forced: bool, cell: Cell | None
) -> _Verdict:
    """The selected candidate of a class, the first that is as fast as the fastest, beside NCCL's time.

    The split over NVLink and PCIe is tried beside NVLink alone if it is predicted faster.
    """
    ways = [row for one in timed if (row := one.measured(cell, size_bytes)) is not None]
    cell, ways = (cell, ways) if ways else (None, _predicted(timed, size_bytes))
    alone = [row for row in ways if row[0].algorithm != HYBRID] or ways
    least_s = min(timing.seconds for _, _, timing in alone)
    other = next((row for row in ways if row not in alone and row[2].seconds < least_s), None)
    # Of equal candidates the first is selected, so that fewer programs are compiled and loaded.
    blink = next((row for row in alone if row[2].seconds <= least_s * MARGIN), None)
    prediction = None if nccl is None else _nccl(timed[0].plan.candidate.collective, size_bytes, nccl, cell)
    return _Verdict(size_bytes, blink, prediction, forced or nccl is None, other, cell)


def _predicted(timed: Sequence[_TimedCandidate], size_bytes: int) -> list[TimedWay]:
    """Times of the candidates, without those that an earlier one beats: they cannot be selected."""
    ways, least_s = [], inf
    for one in timed:
        if one.is_split or one.least_s(size_bytes) < least_s:
            ways.append(one.at(size_bytes))
            least_s = least_s if one.is_split else min(least_s, ways[-1][2].seconds)
    return ways


def _nccl(collective: Collective, size_bytes: int, nccl: NcclPredictor, cell: Cell | None) -> NcclPrediction | None:
    """NCCL's time at the compared size; None if unknown."""
    time = None if cell is None else cell.best(NCCL)
    if time is not None:
        return NcclPrediction(time.seconds, "NCCL")
    with suppress(UnsupportedError):
        return nccl.at(collective, size_bytes if cell is None else cell.size_bytes)
    return None


class _TimedCandidate:
    """A candidate in its protocols, timed for ascending sizes; a forced protocol is the only one at every size."""

    def __init__(self, candidate: CandidateProgram, terms: Terms) -> None:
        gpu = Gpu(architecture(terms.capability), terms.capability, terms.blocks, candidate.counted)
        self.plan = KernelPlan(candidate, gpu, Settings(budget=BUDGET), terms.protocol)
        self._links_s, self._before_s = floor_of(self.plan), 0.0

    @property
    def is_split(self) -> bool:
        """True if it uses PCIe beside NVLink."""
        return self.plan.name == HYBRID

    def measured(self, cell: Cell | None, size_bytes: int) -> TimedWay | None:
        """The candidate with its seconds in a cell, and its chunk for a size; None if the cell lacks it."""
        time = None if cell is None else cell.best(self.plan.name, self.plan.own_protocols)
        if time is None:
            return None
        predicted = self.plan.timing(time.protocol, size_bytes)
        return self.plan.candidate, time.protocol, replace(predicted, seconds=time.seconds, simulation=None)

    def least_s(self, size_bytes: int) -> float:
        """A lower bound in seconds: the time of fewer bytes, and the time of its fullest link."""
        return max(self._before_s, self._links_s(size_bytes))

    def at(self, size_bytes: int) -> TimedWay:
        protocol, predicted = self.plan.protocols.at(size_bytes)
        self._before_s = predicted.seconds
        return self.plan.candidate, protocol, replace(predicted, simulation=None)  # a table has hundreds


def _merged(
    key: tuple[str, int], verdicts: Sequence[_Verdict], nccl: NcclPredictor | None, forced: str
) -> Iterator[ChoiceRow]:
    """One row per run of equal classes; a class with a search or two ways stays alone to compare equal calls."""
    rows: list[tuple[list[_Verdict], ChoiceRow]] = []
    for verdict in verdicts:
        row = _row(key, verdict)
        if rows and not row.search and len(row.ways) < 2 and rows[-1][1] == row:
            rows[-1][0].append(verdict)
        else:
            rows.append(([verdict], row))
    limits = [0, *(run[0].size for run, _ in rows[1:]), BEYOND]
    for (run, row), (least, below) in zip(rows, pairwise(limits), strict=True):
        yield replace(row, least=least, below=below, why=_why(run, nccl, forced))


def _row(key: tuple[str, int], verdict: _Verdict) -> ChoiceRow:
    """A row without limits and reason, so that rows of classes with the same result are equal."""
    taken = [one for one in (verdict.blink, verdict.other) if one is not None] if verdict.taken else []
    ways = tuple(ProgramWay(candidate, protocol, time.chunk_bytes) for candidate, protocol, time in taken)
    search = verdict.size >= SEARCH_FROM_BYTES and any(way.protocol in ("simple", COPIES) for way in ways)
    return ChoiceRow(0, 0, ways, *key, "", search, verdict.cell is not None, verdict.margin)


def _why(run: Sequence[_Verdict], nccl: NcclPredictor | None, forced: str) -> str:
    """The reason, like "blink optimal simple 63 GB/s, NCCL ring Simple 13 GB/s predicted at 16 MiB"."""
    ends = [run[0]] if len(run) == 1 else [run[0], run[-1]]
    times = "; ".join(dict.fromkeys(map(_at, ends)))
    if forced:
        return f"{forced}; {times}"
    if nccl is None:
        return f"not compared with NCCL; {times}"
    return f"{times} (no model of NCCL here: {nccl.caveat})" if nccl.caveat else times


def _at(verdict: _Verdict) -> str:
    parts, size, cell = [], verdict.compared, verdict.cell
    # If only NCCL's time is predicted, Blink's time is marked as measured.
    mixed = cell is not None and cell.best(NCCL) is None
    if verdict.blink is not None:
        candidate, protocol, time = verdict.blink
        source = " measured" if mixed else ""
        parts.append(f"blink {candidate.algorithm} {protocol} {_speed(size, time.seconds)}{source}")
        if verdict.other is not None:
            candidate, protocol, time = verdict.other
            parts.append(f"first calls try {candidate.algorithm} {protocol} {_speed(size, time.seconds)}")
    if verdict.nccl is not None:
        parts.append(f"{verdict.nccl.words} {_speed(size, verdict.nccl.seconds)}")
    else:
        parts.append("NCCL's time unknown")
    return f"{', '.join(parts)} {'measured' if cell is not None and not mixed else 'predicted'} at {size_text(size)}"


def _speed(size_bytes: int, seconds: float) -> str:
    """GB/s from 1 MiB on, µs below."""
    return f"{size_bytes / seconds / 1e9:.3g} GB/s" if size_bytes >= 1 << 20 else f"{seconds * 1e6:.3g} us"


def clamped(rows: ChoiceTable, geometry: Geometry) -> ChoiceTable:
    """The same choices with messages that fit into ``geometry``, because memory is allocated after the choices."""

    def fitted(way: ProgramWay) -> ProgramWay:
        return replace(way, chunk_bytes=min(way.chunk_bytes, geometry.capacity_bytes(way.protocol) // 16 * 16))

    return ChoiceTable(tuple(replace(row, ways=tuple(map(fitted, row.ways))) for row in rows.choices))


def without(rows: ChoiceTable, compiled: Container[tuple[str, str]]) -> ChoiceTable:
    """The same choices without ways that have no code; ``compiled`` has pairs of candidate's name and protocol.

    Of two programs to compare, the compiled one is selected. NCCL runs rows without any.
    """
    left = []
    for row in rows.choices:
        ways = tuple(way for way in row.ways if (way.candidate.name, way.protocol) in compiled)
        lacks = [f"{way.candidate.algorithm} {way.protocol}" for way in row.ways if way not in ways]
        if lacks:
            why = f"not compiled in time, but perhaps for the next job: {' and '.join(lacks)}; {row.why}"
            row = replace(row, ways=ways, why=why, search=row.search and bool(ways))
        left.append(row)
    return ChoiceTable(tuple(left))


def left_sums(rows: ChoiceTable) -> str | None:
    """The reason that NCCL runs a sum, as a sentence without full stop; None if it runs none."""
    left = (row for row in rows.choices if not row.ways and COLLECTIVES[row.collective].reduces)
    return next((f"{row.collective}: {row.why}" for row in left), None)


def nothing_taken(rows: ChoiceTable, terms: Terms, has_nccl: bool) -> str:
    """The reason that Blink runs no row of a table, as a sentence without full stop."""
    shown = next((f"{row.collective}: {row.why}" for row in rows.choices), "the table has no rows")
    if terms.forced:
        return f"nothing can run with {terms.forced} ({shown.replace(f'{terms.forced}; ', '', 1)})"
    if not has_nccl:
        return f"nothing can be planned ({shown})"
    measured = "measured to be faster than NCCL or " if any(row.measured for row in rows.choices) else ""
    return f"nothing is {measured}predicted to be {PREDICTED_MARGIN} times as fast as NCCL ({shown})"
