"""Rows of the table, one per size, and the statistics that make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.spec import Collective
from blinkccl.units import algbw_gb_per_s, bus_factor

Seconds = NDArray[np.float64]
#: What makes one number of the ranks' times of an iteration, by the number that nccl-tests' -a has for it.
ACROSS_RANKS: dict[int, str] = {
    0: "rank 0",
    1: "mean of ranks",
    2: "fastest rank",
    3: "slowest rank",
    4: "mean of ranks and with the barrier before it",
}
#: Who is faster by less than this part is not another winner: it would be the other one in the next run.
TIE = 0.05
#: The one that counts the barrier before each run, too: of ranks that share cores some only get one when others wait,
#: and whether they do in the barrier or in the call differs between libraries.
WITH_BARRIER = 4


@dataclass(frozen=True, slots=True)
class SizeTiming:
    """Mean time of one run, and elements that were wrong over all ranks and checked runs.

    ``bound_percent`` is the time that memory alone would take, in percent of ours (:mod:`blinkccl.bench.bound`), None
    where that was not measured. ``variant`` says how it was run, where there was a choice. Of a peer, ``ratio`` is how
    many times as long as ours it took in the same run, paired by round. ``median_s`` is the median of the rounds'
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
    """One size: ``size`` bytes are nccl-tests' S, ``count`` elements per block; ``in_place`` is None for alltoall.

    ``peers`` has each peer's times out of place and in place, None where it cannot do this or was left out.
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
        """The mean over iterations, as nccl-tests has it; of rounds the median."""
        return float(median(float(np.mean(values)) for values in self.rounds))

    def medians_s(self) -> list[float]:
        """The median of each round."""
        return [float(np.median(values)) for values in self.rounds]

    def median_s(self) -> float:
        """The median of the rounds' medians."""
        return float(median(self.medians_s()))


def across_ranks(seconds: Seconds, how: int) -> Seconds:
    """One number per iteration from ``seconds``, by rank and iteration, as :data:`ACROSS_RANKS` says."""
    mean = 1 if how == WITH_BARRIER else how
    by: dict[int, Any] = {0: lambda s: s[0], 1: lambda s: s.mean(0), 2: lambda s: s.min(0), 3: lambda s: s.max(0)}
    found: Seconds = by[mean](seconds)
    return found


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of ratios within rounds: what changes between rounds, as other guests of a host do, cancels."""
    return float(median(a / b for a, b in zip(numerators, denominators, strict=True)))


def timing(
    collective: Collective,
    size: int,
    series: Series,
    floors_s: Sequence[float] | None = None,
) -> SizeTiming:
    """The table's numbers for ``series``; ``floors_s`` are the rounds' least times."""
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
    """Ours, out of place and in place, one after the other."""
    return [found for row in rows for found in (row.out_of_place, row.in_place) if found is not None]


def failed(rows: Sequence[SizeRow], algorithms: Sequence[str] = ()) -> int:
    """How many of our measurements had wrong elements: nccl-tests' "out of bounds values".

    Ours are also those of ``peers`` that are ``algorithms``.
    """
    beside = [found for row in rows for name, *both in row.peers if name in algorithms for found in both]
    return sum(1 for found in (*timings(rows), *beside) if found is not None and found.wrong)


def average_busbw(rows: Sequence[SizeRow]) -> float:
    """The mean over all sizes, out of place and in place, in GB/s."""
    measured = timings(rows)
    return sum(found.busbw_gb_per_s for found in measured) / len(measured)


def by_candidate(row: SizeRow, own: str) -> dict[str, SizeTiming | None]:
    """What all candidates took, ours (called ``own``) first; in place, as in training, where there is such a thing."""
    rows = ((own, row.out_of_place, row.in_place), *row.peers)
    return {name: out if row.in_place is None else into for name, out, into in rows}


@dataclass(frozen=True, slots=True)
class Crossover:
    """From ``size`` bytes on ``name`` is the fastest; ``before``, which was until there, takes ``ratio`` times as long.

    The first has nobody before it: ``before`` is None; and ``ratio`` where that one was not measured here.
    """

    size: int
    name: str
    before: str | None = None
    ratio: float | None = None


def crossovers(rows: Sequence[SizeRow], own: str) -> list[Crossover]:
    """Who is the fastest from which size on; who holds that keeps it until somebody is faster by more than a tie."""
    found: list[Crossover] = []
    for row in rows:
        taken = medians_s(row, own)
        best = min(taken, key=lambda name: taken[name])
        if not found:
            found.append(Crossover(row.size, best))
            continue
        holder = found[-1].name
        if holder not in taken or taken[holder] > taken[best] * (1 + TIE):
            ratio = taken[holder] / taken[best] if holder in taken else None
            found.append(Crossover(row.size, best, holder, ratio))
    return found


def medians_s(row: SizeRow, own: str) -> dict[str, float]:
    """Seconds of those that were measured: medians, which one interrupted run does not move."""
    return {name: timing.median_s for name, timing in by_candidate(row, own).items() if timing is not None}
