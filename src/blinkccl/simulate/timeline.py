"""What happened when: spans per rank and link, busy shares, and the hops that decided the time.

Chrome's trace format (``chrome://tracing``, Perfetto): JSON with one process per server, and in it one track per stream
of a rank and one per link. On no track do spans overlap: a stream does one thing after the other, and a link's spans
are the times in which some transfer that crosses it was moving, be it on this link or on another of its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blinkccl.errors import InternalError
from blinkccl.simulate.run import Simulation
from blinkccl.simulate.translate import Translation
from blinkccl.simulate.workload import Trace

_NS = 1e9
#: The order in which parts of a critical path are listed.
PARTS = ("move", "issue", "reduce", "signal", "start")


@dataclass(frozen=True, slots=True)
class LinkUse:
    """How full a link was: bytes, their time at its full rate as a part of the whole, and how fast it can go."""

    src: int
    dst: int
    bytes: float
    gb_per_s: float
    busy: float


@dataclass(frozen=True, slots=True)
class Decider:
    """A piece of the critical path: from ``begin_s`` to ``end_s`` everything waited for this.

    ``what`` is "issue" (latency before the first byte), "move", "reduce", "signal" or "start" (until a rank began: its
    start skew, and the launch of a kernel).
    """

    begin_s: float
    end_s: float
    what: str
    src: int
    dst: int
    share: int
    chunk: int


def link_use(simulation: Simulation) -> list[LinkUse]:
    """How full each link was, the fullest first."""
    workload, seconds = simulation.translation.workload, simulation.seconds
    rows = [
        LinkUse(src, dst, carried, rate / 1e9, busy_s / seconds if seconds else 0.0)
        for (src, dst), carried, rate, busy_s in zip(
            simulation.translation.links,
            workload.link_bytes.tolist(),
            workload.rates.tolist(),
            simulation.outcome.busy_s.tolist(),
            strict=True,
        )
    ]
    return sorted(rows, key=lambda row: (-row.busy, row.src, row.dst))


def critical_path(simulation: Simulation) -> list[Decider]:
    """The chain of waits that ends with the last thing done, in the order of time.

    Every piece begins when the one before it ends, so their lengths add up to the whole time. Where a transfer waited
    for a link, the chain goes on with the transfer that had it, up to the time when the link was free.
    """
    trace, translation = _trace(simulation), simulation.translation
    hops = translation.workload.hops
    if len(trace.end_s) == 0:
        return []
    there_s = trace.end_s.copy()
    sent = trace.hop >= 0
    there_s[sent] += hops.signal_s[trace.hop[sent]]
    task = int(there_s.argmax())
    until = float(there_s[task])
    if simulation.seconds > until:
        # A rank came so late that all was there: it decides everything.
        vertex, share = translation.actors[int(simulation.outcome.actor_s.argmax())]
        return [Decider(0.0, simulation.seconds, "start", vertex, vertex, share, 0)]
    found: list[Decider] = []
    while True:
        pieces, until, task = _pieces(translation, trace, task, until)
        found += pieces
        if task < 0:
            return found[::-1]


def _pieces(translation: Translation, trace: Trace, task: int, until: float) -> tuple[list[Decider], float, int]:
    """What a task adds to the chain up to ``until``, latest first; when that began; the task before it, -1 for none."""
    begin, move, end = float(trace.begin_s[task]), float(trace.move_s[task]), float(trace.end_s[task])
    _, share = translation.actors[int(trace.actor[task])]
    of = (*_ends(translation, trace, task), share, int(trace.chunk[task]))
    found: list[Decider] = []
    if until > end:
        found.append(Decider(end, until, "signal", *of))
        until = end
    holder, held = int(trace.holder[task]), float(trace.held_s[task])
    if holder >= 0 and held < until:
        found.append(Decider(held, until, "move", *of))
        return found, held, holder
    if trace.hop[task] < 0:
        found.append(Decider(begin, until, "reduce", *of))
    else:
        # A later task may have waited for a link that this one left before it began to wait for another itself.
        move = min(move, until)
        found.append(Decider(move, until, "move", *of))
        if move > begin:
            found.append(Decider(begin, move, "issue", *of))
    cause = int(trace.cause[task])
    if cause < 0 and begin > 0.0:
        found.append(Decider(0.0, begin, "start", *of))
    return found, begin, cause


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """The timeline in Chrome's trace format, as an object for ``json.dumps``."""
    translation, trace = simulation.translation, _trace(simulation)
    network = translation.network
    hops, actors = translation.workload.hops, translation.workload.actors
    tracks: dict[tuple[int, str], int] = {}
    events: list[dict[str, Any]] = []
    moving: dict[int, list[tuple[float, float]]] = {}
    columns = (trace.hop, trace.actor, trace.chunk, trace.begin_s, trace.move_s, trace.end_s)
    for hop, actor, chunk, begin_s, move_s, end_s in zip(*(column.tolist() for column in columns), strict=True):
        vertex, share = translation.actors[actor]
        stream = int(hops.stream[hop]) if hop >= 0 else int(actors.stream[actor])
        if hop >= 0:
            name = f"share {share} chunk {chunk} to {network.vertex[translation.legs[hop].path[-1]].label}"
            first, last = int(hops.path_of[hop]), int(hops.path_of[hop + 1])
            for link in hops.path[first:last].tolist():
                moving.setdefault(link, []).append((move_s, end_s))
        else:
            name = f"reduce share {share} chunk {chunk}"
        server = network.vertex[vertex].server
        track = tracks.setdefault((server, f"{network.vertex[vertex].label} stream {stream}"), len(tracks))
        events.append(_event(name, "copy" if hop >= 0 else "reduce", server, track, begin_s, end_s))
    for link, intervals in sorted(moving.items()):
        src, dst = translation.links[link]
        server = network.vertex[src].server
        label = f"link {network.vertex[src].label} → {network.vertex[dst].label}"
        track = tracks.setdefault((server, label), len(tracks))
        for begin_s, end_s in _merged(intervals):
            events.append(_event("under way", "link", server, track, begin_s, end_s))
    names = [
        {"ph": "M", "name": "thread_name", "pid": server, "tid": track, "args": {"name": label}}
        for (server, label), track in tracks.items()
    ]
    return {"displayTimeUnit": "ns", "traceEvents": names + events}


def _event(name: str, category: str, server: int, track: int, begin_s: float, end_s: float) -> dict[str, Any]:
    # Whole nanoseconds at both ends: spans that meet do not overlap by a rounding.
    begin, end = round(begin_s * _NS), round(end_s * _NS)
    times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
    return {"ph": "X", "name": name, "cat": category, "pid": server, "tid": track} | times


def _merged(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of intervals, as ascending intervals with gaps between them."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _ends(translation: Translation, trace: Trace, task: int) -> tuple[int, int]:
    """The vertices from and to which a transfer goes; of a reduction twice the one at which it is."""
    hop = int(trace.hop[task])
    if hop < 0:
        vertex, _ = translation.actors[int(trace.actor[task])]
        return vertex, vertex
    return translation.legs[hop].path[0], translation.legs[hop].path[-1]


def _trace(simulation: Simulation) -> Trace:
    if simulation.outcome.trace is None:
        raise InternalError("this simulation kept no trace; simulate with traced=True")
    return simulation.outcome.trace


@dataclass(frozen=True)
class HopTime:
    """What one ordered pair of vertices adds to the critical path."""

    src: int
    dst: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """``links``: the fullest first. ``parts``, ``hops``: seconds of the critical path, by what and by where."""

    links: tuple[LinkUse, ...]
    parts: dict[str, float]
    hops: tuple[HopTime, ...]


def summarise(simulation: Simulation) -> Summary:
    """The summary of a simulation that kept its trace."""
    path = critical_path(simulation)
    parts = {name: sum(piece.end_s - piece.begin_s for piece in path if piece.what == name) for name in PARTS}
    seconds: dict[tuple[int, int], float] = {}
    for piece in path:
        ends = piece.src, piece.dst
        seconds[ends] = seconds.get(ends, 0.0) + piece.end_s - piece.begin_s
    hops = [HopTime(*ends, s) for ends, s in sorted(seconds.items(), key=lambda item: (-item[1], item[0]))]
    return Summary(tuple(link_use(simulation)), {k: v for k, v in parts.items() if v > 0.0}, tuple(hops))
