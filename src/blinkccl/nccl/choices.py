"""The calls that Blink takes: a table by collective, root and size, the same for all ranks.

S, as nccl-tests counts it, is looked at in classes of a power of two from 1 KiB to 4 GiB; smaller and larger sizes go
with the first and the last class. In each class the program and the protocol that are predicted fastest
(:mod:`~blinkccl.cost.choice.costs`) are taken if NCCL is predicted (:mod:`~blinkccl.nccl.nccl_predictor`) to take
:data:`PREDICTED_MARGIN` times as long at least, both at the class's smallest size; else the call is NCCL's.
BLINK_ALGO=<name> takes all calls that this algorithm serves, BLINK_PROTOCOL=<name> all that can run with this protocol.

What ``blink tune`` measured here (:mod:`~blinkccl.trees.algorithms.tables`) takes the place of predictions: in a class
that it has times of, those are compared, ours among themselves and with NCCL's, at the size that was measured. Where
both were measured :data:`MARGIN` is enough.

With BLINK_ALGO=hybrid a prediction decides only which classes are worth a try: where the split over NVLink and PCIe is
predicted faster than NVLink alone, the class has both programs. Its first calls run and time one after the other
(``chunk_searches.h``), and the split is kept if it was faster by more than the noise, on the rank that took longest. So
Eq 8's part for PCIe is 0 wherever the start of its transfers, which the prediction does not know, takes what it gains.
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

#: What BLINK_PROTOCOL may be; "" leaves the choice to the predictions.
PROTOCOLS = ("simple", "ll", "ll128", COPIES)
#: log2 of the smallest sizes of the first and the last class.
FIRST_CLASS, LAST_CLASS = 10, 32
#: More than any size.
BEYOND = 2**63
#: What is nearer counts as equally fast: among ours the first is taken, and what was measured beside NCCL stays NCCL's.
MARGIN = 1.03
#: What a prediction must promise, as the costs of our kernels are NCCL's own constants, and no GPU has run them yet.
PREDICTED_MARGIN = 1.3

#: What is fastest of ours, by which protocol.
Ours = tuple[CandidateProgram, str, PredictedTime]
#: From here on the chunk is worth a search across calls.
SEARCH_FROM_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ProgramWay:
    """How a call may run; ``chunk_bytes`` is that of one part's message."""

    candidate: CandidateProgram
    protocol: str
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class ChoiceRow(Row[ProgramWay]):
    """What runs a collective for S in [``least``, ``below``); without ways it is left to NCCL.

    Of two ways first calls try the second beside the first, and keep it where it is faster; ``search`` lets the chunk
    change. ``measured``: not only predictions say so. ``margin``: how many times as long NCCL must take for a call to
    be ours.
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
    """What one class came to; ``cell``, where there is one, says what ours take, and its size is what was compared.

    ``forced``: ours is taken however long NCCL takes.
    """

    size: int
    ours: Ours | None
    theirs: NcclPrediction | None
    forced: bool
    other: Ours | None
    cell: Cell | None = None

    @property
    def taken(self) -> bool:
        """True if Blink runs it."""
        if self.ours is None or self.forced:
            return self.ours is not None
        return self.theirs is not None and self.ours[2].seconds * self.margin < self.theirs.seconds

    @property
    def compared(self) -> int:
        """The size that all times are of."""
        return self.size if self.cell is None else self.cell.size_bytes

    @property
    def margin(self) -> float:
        """The ratio of NCCL's time to ours from which a call is ours: smaller where both were measured."""
        return PREDICTED_MARGIN if self.cell is None or self.cell.best(NCCL) is None else MARGIN


@dataclass(frozen=True)
class ChoiceTable:
    """All rows. ``first`` of them that matches a call is in force."""

    choices: tuple[ChoiceRow, ...]

    @property
    def taken(self) -> tuple[ChoiceRow, ...]:
        return tuple(row for row in self.choices if row.ways)

    @property
    def candidates(self) -> tuple[CandidateProgram, ...]:
        """Those that are chosen for some size, each once."""
        return tuple(dict.fromkeys(way.candidate for row in self.choices for way in row.ways))

    def protocols(self, candidate: CandidateProgram) -> tuple[str, ...]:
        """Those in which it is chosen; with copies also simple, by which captured calls run."""
        chosen = {way.protocol for row in self.choices for way in row.ways if way.candidate is candidate}
        return tuple(sorted(chosen | ({"simple"} if COPIES in chosen else set())))

    @property
    def copies(self) -> bool:
        """Whether copy engines run any of them."""
        return any(way.protocol == COPIES for row in self.choices for way in row.ways)


def wanted_protocol(setting: str) -> str:
    """The protocol that BLINK_PROTOCOL asks for, "" if none."""
    if setting and setting not in PROTOCOLS:
        raise LaunchError(f"BLINK_PROTOCOL={setting[:40]}: expected one of {', '.join(PROTOCOLS)}")
    return setting


@dataclass(frozen=True, slots=True)
class Terms:
    """What choices are made under: the oldest GPU (90 for 9.0), and the blocks of each rank.

    Each program has all of them, with messages as large as they may get: memory is dealt out to what is chosen.
    ``algorithm`` and ``protocol`` take all calls that they serve, "" leaves the choice to the predictions;
    ``no_copies`` says why copy engines run nothing, ``measured`` are the cells of these ranks. ``deterministic``:
    "order" where all sums have one, so that none may be left to NCCL.
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
        """In words, "" where nothing is."""
        named = (
            ("BLINK_ALGO", self.algorithm),
            ("BLINK_PROTOCOL", self.protocol),
            ("BLINK_DETERMINISTIC", self.deterministic),
        )
        return " ".join(f"{name}={value}" for name, value in named if value)

    def of(self, collective: Collective) -> Terms:
        """For one collective: an order is of sums alone, and what was measured is of plans without one."""
        if not self.deterministic:
            return self
        return replace(self, measured=()) if collective.reduces else replace(self, deterministic="")

    def fault(self, candidate: CandidateProgram) -> str | None:
        """Why the protocol that is forced cannot run the program; None: it can, or none is forced."""
        if self.protocol == "ll128":
            return ll128_fault(candidate, self.capability)
        return (self.no_copies or fault_of_program(candidate.program)) if self.protocol == COPIES else None


def table(planned: CandidatePrograms, size: int, terms: Terms, nccl: NcclPredictor | None) -> ChoiceTable:
    """The rows of all collectives on ``size`` ranks; without NCCL the fastest of ours is taken at any size.

    Cost: one to three simulations of 1 to 4 ms per class and candidate that may be the fastest: 2.5 s for 8 GPUs.
    """
    rows = [row for collective in collectives(size) for row in rows_of(collective, planned, terms, nccl)]
    return ChoiceTable(tuple(rows))


def rows_of(
    collective: Collective, planned: CandidatePrograms, terms: Terms, nccl: NcclPredictor | None
) -> list[ChoiceRow]:
    """The rows of one collective and root."""
    key, terms = key_of(collective), terms.of(collective)
    faults = {one: terms.fault(one) for one in planned.found.get(key, [])}
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
    """The first candidate that is as fast as the fastest, and whether it is taken.

    The split over NVLink and PCIe is measured beside NVLink alone, if it is predicted faster.
    """
    found = [row for one in timed if (row := one.measured(cell, size_bytes)) is not None]
    cell, found = (cell, found) if found else (None, _predicted(timed, size_bytes))
    alone = [row for row in found if row[0].algorithm != HYBRID] or found
    least_s = min(timing.seconds for _, _, timing in alone)
    other = next((row for row in found if row not in alone and row[2].seconds < least_s), None)
    # The order of candidates decides between equals, so that fewer programs are compiled and loaded.
    ours = next((row for row in alone if row[2].seconds <= least_s * MARGIN), None)
    theirs = None if nccl is None else _theirs(timed[0].plan.candidate.collective, size_bytes, nccl, cell)
    return _Verdict(size_bytes, ours, theirs, forced or nccl is None, other, cell)


def _predicted(timed: Sequence[_TimedCandidate], size_bytes: int) -> list[Ours]:
    """What the candidates take; without what is no faster than one before it: it is not chosen, nor decides what is."""
    found, least_s = [], inf
    for one in timed:
        if one.is_split or one.least_s(size_bytes) < least_s:
            found.append(one.at(size_bytes))
            least_s = least_s if one.is_split else min(least_s, found[-1][2].seconds)
    return found


def _theirs(collective: Collective, size_bytes: int, nccl: NcclPredictor, cell: Cell | None) -> NcclPrediction | None:
    """What NCCL takes for what ours are compared at; None where nothing is known."""
    time = None if cell is None else cell.best(NCCL)
    if time is not None:
        return NcclPrediction(time.seconds, "NCCL")
    with suppress(UnsupportedError):
        return nccl.at(collective, size_bytes if cell is None else cell.size_bytes)
    return None


class _TimedCandidate:
    """A candidate in its protocols, asked for rising sizes; one that is forced is the only one, at any size."""

    def __init__(self, candidate: CandidateProgram, terms: Terms) -> None:
        gpu = Gpu(architecture(terms.capability), terms.capability, terms.blocks, candidate.counted)
        self.plan = KernelPlan(candidate, gpu, Settings(budget=BUDGET), terms.protocol)
        self._links_s, self._before_s = floor_of(self.plan), 0.0

    @property
    def is_split(self) -> bool:
        """Whether it takes PCIe beside NVLink."""
        return self.plan.name == HYBRID

    def measured(self, cell: Cell | None, size_bytes: int) -> Ours | None:
        """With the seconds that a cell has of it, and the chunk for a size; None where it has none."""
        time = None if cell is None else cell.best(self.plan.name, self.plan.own_protocols)
        if time is None:
            return None
        found = self.plan.timing(time.protocol, size_bytes)
        return self.plan.candidate, time.protocol, replace(found, seconds=time.seconds, simulation=None)

    def least_s(self, size_bytes: int) -> float:
        """What it takes at least: as long as for fewer bytes, and as its fullest link."""
        return max(self._before_s, self._links_s(size_bytes))

    def at(self, size_bytes: int) -> Ours:
        protocol, found = self.plan.protocols.at(size_bytes)
        self._before_s = found.seconds
        return self.plan.candidate, protocol, replace(found, simulation=None)  # a table has hundreds


def _merged(
    key: tuple[str, int], verdicts: Sequence[_Verdict], nccl: NcclPredictor | None, forced: str
) -> Iterator[ChoiceRow]:
    """Runs of equal classes, as rows; where anything is measured a class stays alone, as it compares like calls."""
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
    """Without limits and words, so that rows of classes which come to the same are equal."""
    taken = [one for one in (verdict.ours, verdict.other) if one is not None] if verdict.taken else []
    ways = tuple(ProgramWay(candidate, protocol, found.chunk_bytes) for candidate, protocol, found in taken)
    search = verdict.size >= SEARCH_FROM_BYTES and any(way.protocol in ("simple", COPIES) for way in ways)
    return ChoiceRow(0, 0, ways, *key, "", search, verdict.cell is not None, verdict.margin)


def _why(run: Sequence[_Verdict], nccl: NcclPredictor | None, forced: str) -> str:
    """In words: "blink optimal simple 63 GB/s, NCCL ring Simple 13 GB/s predicted at 16 MiB"."""
    ends = [run[0]] if len(run) == 1 else [run[0], run[-1]]
    said = "; ".join(dict.fromkeys(map(_at, ends)))
    if forced:
        return f"{forced}; {said}"
    if nccl is None:
        return f"no NCCL to compare with; {said}"
    return f"{said} (no model of NCCL here: {nccl.caveat})" if nccl.caveat else said


def _at(verdict: _Verdict) -> str:
    parts, size, cell = [], verdict.compared, verdict.cell
    # Where theirs alone is predicted, ours says that it is not.
    mixed = cell is not None and cell.best(NCCL) is None
    if verdict.ours is not None:
        candidate, protocol, found = verdict.ours
        seen = " measured" if mixed else ""
        parts.append(f"blink {candidate.algorithm} {protocol} {_speed(size, found.seconds)}{seen}")
        if verdict.other is not None:
            candidate, protocol, found = verdict.other
            parts.append(f"first calls try {candidate.algorithm} {protocol} {_speed(size, found.seconds)}")
    if verdict.theirs is not None:
        parts.append(f"{verdict.theirs.words} {_speed(size, verdict.theirs.seconds)}")
    else:
        parts.append("nothing known of NCCL")
    return f"{', '.join(parts)} {'measured' if cell is not None and not mixed else 'predicted'} at {size_text(size)}"


def _speed(size_bytes: int, seconds: float) -> str:
    """GB/s where bytes count, µs where latency does."""
    return f"{size_bytes / seconds / 1e9:.3g} GB/s" if size_bytes >= 1 << 20 else f"{seconds * 1e6:.3g} us"


def clamped(rows: ChoiceTable, geometry: Geometry) -> ChoiceTable:
    """The same choices with messages that fit into ``geometry``, as memory was dealt out after they were made."""

    def fitted(way: ProgramWay) -> ProgramWay:
        return replace(way, chunk_bytes=min(way.chunk_bytes, geometry.capacity_bytes(way.protocol) // 16 * 16))

    return ChoiceTable(tuple(replace(row, ways=tuple(map(fitted, row.ways))) for row in rows.choices))


def without(rows: ChoiceTable, compiled: Container[tuple[str, str]]) -> ChoiceTable:
    """The same choices, but NCCL's where there is no code for ours; ``compiled``: (candidate's name, protocol).

    Of two programs that were to be compared the one is taken that there is.
    """
    left = []
    for row in rows.choices:
        there = tuple(way for way in row.ways if (way.candidate.name, way.protocol) in compiled)
        lacks = [f"{way.candidate.algorithm} {way.protocol}" for way in row.ways if way not in there]
        if lacks:
            why = f"{' and '.join(lacks)} was not compiled in time, the next job may have it; {row.why}"
            row = replace(row, ways=there, why=why, search=row.search and bool(there))
        left.append(row)
    return ChoiceTable(tuple(left))


def left_sums(rows: ChoiceTable) -> str | None:
    """Why a sum is left to NCCL, in a sentence without full stop; None where none is."""
    left = (row for row in rows.choices if not row.ways and COLLECTIVES[row.collective].reduces)
    return next((f"{row.collective}: {row.why}" for row in left), None)


def nothing_taken(rows: ChoiceTable, terms: Terms, has_nccl: bool) -> str:
    """Why no row is ours, in a sentence without full stop; for tables of which that is true."""
    shown = next((f"{row.collective}: {row.why}" for row in rows.choices), "there are no rows")
    if terms.forced:
        return f"nothing can run with {terms.forced} ({shown.replace(f'{terms.forced}; ', '', 1)})"
    if not has_nccl:
        return f"nothing can be planned ({shown})"
    measured = "measured to be faster than NCCL or " if any(row.measured for row in rows.choices) else ""
    return f"nothing is {measured}predicted to be {PREDICTED_MARGIN} times as fast as NCCL ({shown})"
