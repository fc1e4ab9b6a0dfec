"""Workloads written down row by row, and as JSON for programs that know nothing of this package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blinkccl.simulate.workload import Actors, Hops, Workload


@dataclass(frozen=True)
class ActorRow:
    """One actor; ``last_bytes`` is ``bytes`` where None, ``receives`` and ``sends`` all its hops in their order."""

    chunks: int = 1
    bytes: int = 0
    last_bytes: int | None = None
    stream: int = -1
    launch_s: float = 0.0
    pace_s_per_byte: float = 0.0
    start_s: float = 0.0
    receives: tuple[int, ...] | None = None
    sends: tuple[int, ...] | None = None


@dataclass(frozen=True)
class HopRow:
    """One hop; where ``stream`` is None it has one of its own, with the hop's number."""

    tail: int
    head: int
    path: tuple[int, ...] = (0,)
    stream: int | None = None
    pool: int = -1
    slots: int = 2
    latency_s: float = 0.0
    signal_s: float = 0.0
    weight: float = 1.0


def workload(
    actors: Sequence[ActorRow], hops: Sequence[HopRow], rates: Sequence[float], engines: Sequence[int] = ()
) -> Workload:
    """The workload of these rows."""
    heads, tails = [hop.head for hop in hops], [hop.tail for hop in hops]
    receives = [_order(row.receives, heads, number) for number, row in enumerate(actors)]
    sends = [_order(row.sends, tails, number) for number, row in enumerate(actors)]
    streams = [h if hop.stream is None else hop.stream for h, hop in enumerate(hops)]
    return Workload(
        Actors(
            _ints(row.chunks for row in actors),
            _floats(row.bytes for row in actors),
            _floats(row.bytes if row.last_bytes is None else row.last_bytes for row in actors),
            _ints(row.stream for row in actors),
            _floats(row.launch_s for row in actors),
            _floats(row.pace_s_per_byte for row in actors),
            _floats(row.start_s for row in actors),
            *_compressed(receives),
            *_compressed(sends),
        ),
        Hops(
            _ints(hop.tail for hop in hops),
            _ints(hop.head for hop in hops),
            _ints(streams),
            _ints(hop.pool for hop in hops),
            _ints(hop.slots for hop in hops),
            _floats(hop.latency_s for hop in hops),
            _floats(hop.signal_s for hop in hops),
            _floats(hop.weight for hop in hops),
            *_compressed([hop.path for hop in hops]),
        ),
        _floats(rates),
        _ints(engines),
        1 + max([*streams, *(row.stream for row in actors)], default=-1),
    )


def as_json(given: Workload) -> dict[str, Any]:
    """Plain lists, for ``answers.py``: an object per actor and per hop, with the workload's own names and units."""
    actors, hops = given.actors, given.hops
    columns = ("chunks", "bytes", "last_bytes", "stream", "launch_s", "pace_s_per_byte", "start_s")
    rows = [{name: getattr(actors, name)[a].item() for name in columns} for a in range(len(actors.chunks))]
    for a, row in enumerate(rows):
        row["receives"] = actors.receives[actors.receives_of[a] : actors.receives_of[a + 1]].tolist()
        row["sends"] = actors.sends[actors.sends_of[a] : actors.sends_of[a + 1]].tolist()
    columns = ("tail", "head", "stream", "pool", "slots", "latency_s", "signal_s", "weight")
    ways = [{name: getattr(hops, name)[h].item() for name in columns} for h in range(len(hops.tail))]
    for h, way in enumerate(ways):
        way["path"] = hops.path[hops.path_of[h] : hops.path_of[h + 1]].tolist()
    return {
        "actors": rows,
        "hops": ways,
        "rates": given.rates.tolist(),
        "engines": given.pools.tolist(),
        "streams": given.streams,
    }


def _order(wanted: tuple[int, ...] | None, ends: list[int], actor: int) -> list[int]:
    """The hops that end at ``actor``, in the wanted order."""
    there = [hop for hop, end in enumerate(ends) if end == actor]
    assert wanted is None or sorted(wanted) == there, f"{wanted} are not the hops of actor {actor}, {there}"
    return there if wanted is None else list(wanted)


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.asarray(list(values), np.int32)


def _floats(values: Iterable[float]) -> np.ndarray:
    return np.asarray(list(values), np.float64)


def _compressed(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    return _ints([0, *np.cumsum([len(row) for row in rows]).tolist()]), _ints(v for row in rows for v in row)
