"""Workloads from rows, and as JSON for programs that do not import this package."""

from collections.abc import Iterable, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import Any

import numpy as np

from blinkccl.cost.simulate.workload import Actors, Hops, Workload, dtype_of

LISTS = ("receives_of", "receives", "sends_of", "sends", "path_of", "path")


@dataclass(frozen=True)
class ActorRow:
    """One actor; ``last_bytes`` None means ``bytes``, ``receives`` and ``sends`` None all its hops in order."""

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
    """One hop; with ``stream`` None it has its own stream, with the hop's number."""

    tail: int
    head: int
    path: tuple[int, ...] = (0,)
    stream: int | None = None
    pool: int = -1
    slots: int = 2
    frees: int = -1
    latency_s: float = 0.0
    signal_s: float = 0.0
    weight: float = 1.0


def workload(
    actors: Sequence[ActorRow], hops: Sequence[HopRow], rates: Sequence[float], engines: Sequence[int] = ()
) -> Workload:
    """Return the workload of these rows."""
    receives = [_order(row.receives, [hop.head for hop in hops], number) for number, row in enumerate(actors)]
    sends = [_order(row.sends, [hop.tail for hop in hops], number) for number, row in enumerate(actors)]
    actors = [replace(row, last_bytes=row.bytes if row.last_bytes is None else row.last_bytes) for row in actors]
    hops = [replace(hop, stream=number if hop.stream is None else hop.stream) for number, hop in enumerate(hops)]
    return Workload(
        Actors(*_arrays(Actors, actors), *_compressed(receives), *_compressed(sends)),
        Hops(*_arrays(Hops, hops), *_compressed([hop.path for hop in hops])),
        np.asarray(rates, np.float64),
        _ints(engines),
        1 + max((row.stream for row in (*hops, *actors)), default=-1),
    )


def as_json(given: Workload) -> dict[str, Any]:
    """Return plain lists for ``answers.py``: an object per actor and per hop, with the workload's names and units."""
    actors, hops = given.actors, given.hops
    rows, ways = _objects(actors), _objects(hops)
    for a, row in enumerate(rows):
        row["receives"] = actors.receives[actors.receives_of[a] : actors.receives_of[a + 1]].tolist()
        row["sends"] = actors.sends[actors.sends_of[a] : actors.sends_of[a + 1]].tolist()
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
    """Return the hops that end at ``actor``, in the wanted order."""
    present = [hop for hop, end in enumerate(ends) if end == actor]
    assert wanted is None or sorted(wanted) == present, f"{wanted} are not the hops of actor {actor}, {present}"
    return present if wanted is None else list(wanted)


def _columns(table: Any) -> list[Field[Any]]:
    """Return the columns with one number per row."""
    return [column for column in fields(table) if column.name not in LISTS]


def _arrays(table: type, rows: Sequence[object]) -> list[np.ndarray]:
    return [np.asarray([getattr(row, c.name) for row in rows], dtype_of(c)) for c in _columns(table)]


def _objects(table: Actors | Hops) -> list[dict[str, Any]]:
    columns = {column.name: getattr(table, column.name).tolist() for column in _columns(table)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.asarray(list(values), np.int32)


def _compressed(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    return _ints([0, *np.cumsum([len(row) for row in rows]).tolist()]), _ints(v for row in rows for v in row)
