"""Rows of the table, one per size, and their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.spec import Collective
from blinkccl.units import algbw_gb_per_s, bus_factor

Seconds = NDArray[np.float64]
#: Largest relative difference of a tie: the next run could have the other winner.
TIE = 0.05


@dataclass(frozen=True, slots=True)
class SizeTiming:
    """Mean time of one run, and wrong elements over all ranks and checked runs.

    ``bound_percent`` is the time that memory alone would take, in percent of the measured time
    (:mod:`blinkccl.bench.bound`); None without a probe. ``variant`` is the chosen execution, if there was a choice.
    ``ratio`` is a peer's time over blink's in the same run, paired by round. ``median_s`` is the median of the rounds'
    medians.
    """

    seconds: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int
    bound_percent: float | None = None
    variant: str = ""
    ratio: float | None = None
    median_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One size: nccl-tests' S in bytes, and ``count`` elements per block; alltoall has None ``in_place``.

    ``peers`` has each peer's times out of place and in place; None if it cannot run the call or was left out.
    """

    size: int
    count: int
    out_of_place: SizeTiming
    in_place: SizeTiming | None
    peers: tuple[tuple[str, SizeTiming | None, SizeTiming | None], ...] = ()


@dataclass(slots=True)
class Series:
    """Times of one candidate at one size: an array per round, one number per iteration."""

    rounds: list[Seconds]
    wrong: int = 0
    variant: str = ""

    def mean_s(self) -> float:
        """The median over rounds of the mean over iterations, which is nccl-tests' statistic."""
        return float(median(float(np.mean(values)) for values in self.rounds))

    def medians_s(self) -> list[float]:
        """The median of each round."""
        return [float(np.median(values)) for values in self.rounds]

    def median_s(self) -> float:
        """The median of the rounds' medians."""
        return float(median(self.medians_s()))


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of ratios within rounds, which cancels changes between rounds, such as load of other guests."""
    return float(median(a / b for a, b in zip(numerators, denominators, strict=True)))


def timing(
    collective: Collective,
    size: int,
    series: Series,
    floors_s: Sequence[float] | None = None,
) -> SizeTiming:
    """The table's numbers for ``series``; ``floors_s`` are the bounds of the rounds in seconds."""
    seconds = series.mean_s()
    algbw = algbw_gb_per_s(size, seconds)
    bound = 100 * paired(floors_s, series.medians_s()) if floors_s is not None else None
    return SizeTiming(
        seconds,
        algbw,
        algbw * float(bus_factor(collective.name, collective.world_size)),
        series.wrong,
        bound,
        series.variant,
        median_s=series.median_s(),
    )


def timings(rows: Sequence[SizeRow]) -> list[SizeTiming]:
    """Blink's timings of all rows, each out of place and in place."""
    return [one for row in rows for one in (row.out_of_place, row.in_place) if one is not None]


def failed(rows: Sequence[SizeRow], algorithms: Sequence[str] = ()) -> int:
    """The number of blink's measurements with wrong elements: nccl-tests' "out of bounds values".

    Peers that are ``algorithms`` count as blink's.
    """
    others = [one for row in rows for name, *both in row.peers if name in algorithms for one in both]
    return sum(1 for one in (*timings(rows), *others) if one is not None and one.wrong)


def average_busbw(rows: Sequence[SizeRow]) -> float:
    """The mean busbw over all sizes, out of place and in place, in GB/s."""
    measured = timings(rows)
    return sum(one.busbw_gb_per_s for one in measured) / len(measured)


def by_candidate(row: SizeRow, own: str) -> dict[str, SizeTiming | None]:
    """The timings of all candidates, blink's (named ``own``) first; in place, as in training, except for alltoall."""
    rows = ((own, row.out_of_place, row.in_place), *row.peers)
    return {name: out if row.in_place is None else into for name, out, into in rows}


@dataclass(frozen=True, slots=True)
class Crossover:
    """A change of the fastest candidate to ``name`` at ``size`` bytes; ``before`` takes ``ratio`` times as long there.

    The first has no ``before`` (None). ``ratio`` needs a time of ``before`` at this size, else None.
    """

    size: int
    name: str
    before: str | None = None
    ratio: float | None = None


def crossovers(rows: Sequence[SizeRow], own: str) -> list[Crossover]:
    """The fastest candidate by size; it changes only if another is faster by more than a tie."""
    changes: list[Crossover] = []
    for row in rows:
        seconds = medians_s(row, own)
        best = min(seconds, key=lambda name: seconds[name])
        if not changes:
            changes.append(Crossover(row.size, best))
            continue
        holder = changes[-1].name
        if holder not in seconds or seconds[holder] > seconds[best] * (1 + TIE):
            ratio = seconds[holder] / seconds[best] if holder in seconds else None
            changes.append(Crossover(row.size, best, holder, ratio))
    return changes


def medians_s(row: SizeRow, own: str) -> dict[str, float]:
    """Median seconds of the measured candidates; one interrupted run does not change a median."""
    return {name: timing.median_s for name, timing in by_candidate(row, own).items() if timing is not None}
