"""Which chunk is fastest for a program and a size? Found by simulating it.

:func:`search` is what a job does that has nothing but its own iterations (:mod:`~blinkccl.simulate.miad`).
:func:`best_chunk` is for who may simulate as often as they like: it starts from the closed form of
:func:`~blinkccl.simulate.run.best_chunk_bytes` and looks around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from blinkccl.schedule.chunking import ALIGNMENT_BYTES
from blinkccl.schedule.program import Program
from blinkccl.simulate.calibration import Calibration
from blinkccl.simulate.miad import Miad
from blinkccl.simulate.run import (
    EVENT_BUDGET,
    ITEMSIZE,
    LEAST_CHUNK_BYTES,
    MOST_CHUNK_BYTES,
    best_chunk_bytes,
    bind_bytes,
    count_tasks,
    simulate,
)
from blinkccl.simulate.translate import Settings
from blinkccl.topology.model import Topology

#: Chunks that would make a run of more tasks than this are not tried: a trial takes less than half a second.
TRIAL_BUDGET = 1_000_000
#: How far the climb goes at a time, from coarse to fine.
_STRIDES = (2.0, 2.0**0.5, 2.0**0.25)


@dataclass(frozen=True, slots=True)
class Trial:
    """One iteration: the chunk and the throughput that it gave, which is algbw where nothing else is said."""

    chunk_bytes: int
    gb_per_s: float


def search(
    program: Program,
    network: Topology,
    calibration: Calibration,
    size_bytes: int,
    start: Miad | None = None,
    settings: Settings | None = None,
    even_chunks: bool = True,
    budget: int = EVENT_BUDGET,
    coarser: bool = False,
) -> tuple[Trial, ...]:
    """Blink's chunk-size search, an iteration of the collective per trial (MLSys 2020, §4.2.1, Fig 12).

    Parameters
    ----------
    size_bytes
        S, as nccl-tests counts it.
    start
        The search before its first iteration; None for ``Miad()``, which starts at 1 MiB.
    settings, even_chunks, budget, coarser
        As of :func:`~blinkccl.simulate.run.simulate`.

    Returns
    -------
    tuple[Trial, …]
        All iterations in order; the last is the first of the steady state, with the best chunk of all.

    Raises
    ------
    UsageError, TopologyError
        As :func:`~blinkccl.simulate.run.simulate`.

    Notes
    -----
    Cost: at most ``start.most_observations`` + 1 simulations.
    """
    state = start or Miad()
    trials: list[Trial] = []
    while True:
        timed = simulate(
            program,
            network,
            calibration,
            size_bytes,
            chunk_bytes=state.chunk_bytes,
            even_chunks=even_chunks,
            settings=settings,
            budget=budget,
            coarser=coarser,
        )
        trials.append(Trial(state.chunk_bytes, timed.algbw_gb_per_s))
        if state.steady:
            return tuple(trials)
        state = state.observe(timed.algbw_gb_per_s)


def best_chunk(
    program: Program,
    network: Topology,
    calibration: Calibration,
    size_bytes: int,
    settings: Settings | None = None,
    budget: int = TRIAL_BUDGET,
    even_chunks: bool = True,
) -> int:
    """The fastest chunk found, in bytes.

    From the closed form √(S·α·β / (d − 1)) it climbs by factors of 2, √2 and ⁴√2 while that is faster. Time is not
    smooth in the chunk: it has a step wherever the number of chunks changes. So it ends with chunks that cut the
    largest slice into equal parts, a few parts more or fewer.

    Parameters
    ----------
    budget
        Chunks that make more tasks than this are not tried. Where the closed form already does, it is the answer.

    Raises
    ------
    UsageError, TopologyError
        As :func:`~blinkccl.simulate.run.simulate`.

    Notes
    -----
    Never slower than the closed form. Cost: 10 to 20 simulations. Over the 46 allocations of a DGX-1V it saves about
    1 % of the closed form's time up to 16 MB and less above, and up to a tenth in single cases.
    """
    seconds_of: dict[int, float] = {}

    def seconds(chunk_bytes: int) -> float:
        if chunk_bytes not in seconds_of:
            seconds_of[chunk_bytes] = inf
            if count_tasks(bind_bytes(program, size_bytes, chunk_bytes, even_chunks)) <= budget:
                timed = simulate(
                    program,
                    network,
                    calibration,
                    size_bytes,
                    chunk_bytes=chunk_bytes,
                    even_chunks=even_chunks,
                    settings=settings,
                )
                seconds_of[chunk_bytes] = timed.seconds
        return seconds_of[chunk_bytes]

    found = _climb(seconds, best_chunk_bytes(program, network, calibration, size_bytes))
    for chunk_bytes in _equal_parts(program, size_bytes, found):
        if seconds(chunk_bytes) < seconds(found):
            found = chunk_bytes
    return found


def _climb(seconds: Callable[[int], float], start: int) -> int:
    """The chunk where no stride up or down is faster."""
    best = start
    for stride in _STRIDES:
        while True:
            around = min((_clamp(best * stride), _clamp(best / stride)), key=seconds)
            if seconds(around) >= seconds(best):
                break
            best = around
    return best


def _equal_parts(program: Program, size_bytes: int, near_bytes: int) -> list[int]:
    """Chunks that cut the largest slice into equal parts, about as large as ``near_bytes``."""
    bound = bind_bytes(program, size_bytes, near_bytes)
    largest = max((extent.length for extent in bound.extents), default=0) * ITEMSIZE
    parts = largest // near_bytes
    chunks = []
    for count in range(max(1, parts - 2), parts + 4):
        groups = -(-largest // (count * ALIGNMENT_BYTES))
        chunks.append(_clamp(groups * ALIGNMENT_BYTES))
    return list(dict.fromkeys(chunks))


def _clamp(chunk_bytes: float) -> int:
    return int(min(MOST_CHUNK_BYTES, max(LEAST_CHUNK_BYTES, chunk_bytes)))
