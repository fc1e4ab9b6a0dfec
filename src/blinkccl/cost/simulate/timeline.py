"""The timeline of a simulation: spans per rank and link, busy shares, and the critical path.

The file (:mod:`blinkccl.trace_events`) has one process per rank, with a thread per sending stream and a thread per peer
that sends to it. An arrow leads from each message's sending to its arrival. One more process has a counter per link
with its load. Spans of a thread never overlap, because a stream runs its tasks one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from blinkccl.cost.simulate.run import Simulation
from blinkccl.cost.simulate.translate import Translation
from blinkccl.cost.simulate.workload import Ints, Trace
from blinkccl.errors import InternalError
from blinkccl.trace_events import TraceEvents, TracePlace

_NS = 1e9
#: Parts of a critical path in the order of output.
PARTS = ("move", "issue", "reduce", "signal", "start")


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The use of a link: its bytes, its rate, and the time of the bytes at full rate as a part of the whole."""

    src: int
    dst: int
    bytes: float
    gb_per_s: float
    busy: float


@dataclass(frozen=True, slots=True)
class Decider:
    """A piece of the critical path, which decides the time from ``begin_s`` to ``end_s``.

    ``what`` is "issue" (latency before the first byte), "move", "reduce", "signal" or "start" (launch of a kernel).
    """

    begin_s: float
    end_s: float
    what: str
    src: int
    dst: int
    share: int
    chunk: int


def link_use(simulation: Simulation) -> list[LinkUse]:
    """The use of each link, the fullest first."""
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
    """The chain of waits up to the last event, in the order of time.

    Every piece begins at the end of the previous one, so the sum of their lengths is the whole time. If a transfer
    waited for a link, the chain continues with the transfer that used the link, until the link was free.
    """
    trace, translation = _trace(simulation), simulation.translation
    hops = translation.workload.hops
    if len(trace.end_s) == 0:
        return []
    arrived_s = trace.end_s.copy()
    sent = trace.hop >= 0
    arrived_s[sent] += hops.signal_s[trace.hop[sent]]
    task = int(arrived_s.argmax())
    until = float(arrived_s[task])
    if simulation.seconds > until:
        # A rank started after all data had arrived, so its start decides the time.
        vertex, share = translation.actors[int(simulation.outcome.actor_s.argmax())]
        return [Decider(0.0, simulation.seconds, "start", vertex, vertex, share, 0)]
    path: list[Decider] = []
    while True:
        pieces, until, task = _pieces(translation, trace, task, until)
        path += pieces
        if task < 0:
            return path[::-1]


def _pieces(translation: Translation, trace: Trace, task: int, until: float) -> tuple[list[Decider], float, int]:
    """A task's pieces of the chain up to ``until``, latest first; their begin; and the task before it, -1 for none."""
    begin, move, end = float(trace.begin_s[task]), float(trace.move_s[task]), float(trace.end_s[task])
    _, share = translation.actors[int(trace.actor[task])]
    of = (*_ends(translation, trace, task), share, int(trace.chunk[task]))
    pieces: list[Decider] = []
    if until > end:
        pieces.append(Decider(end, until, "signal", *of))
        until = end
    holder, held = int(trace.holder[task]), float(trace.held_s[task])
    if holder >= 0 and held < until:
        pieces.append(Decider(held, until, "move", *of))
        return pieces, held, holder
    if trace.hop[task] < 0:
        pieces.append(Decider(begin, until, "reduce", *of))
    else:
        # A later task may have waited for a link that this task left before it waited for another link itself.
        move = min(move, until)
        pieces.append(Decider(move, until, "move", *of))
        if move > begin:
            pieces.append(Decider(begin, move, "issue", *of))
    cause = int(trace.cause[task])
    if cause < 0 and begin > 0.0:
        pieces.append(Decider(0.0, begin, "start", *of))
    return pieces, begin, cause


def add_simulation(events: TraceEvents, simulation: Simulation) -> None:
    """Add a run."""
    _Writer(events, simulation).write()


class _Writer:
    """The writer of one simulation into a timeline."""

    def __init__(self, events: TraceEvents, simulation: Simulation) -> None:
        self._events, self._trace, self._translation = events, _trace(simulation), simulation.translation
        self._network, self._workload = self._translation.network, self._translation.workload
        program = self._translation.bound.program
        self._titles = {vertex: f"rank {rank}: " for rank, vertex in enumerate(program.ranks)}
        self._titles |= dict.fromkeys(program.relays, "relay ")
        at_work = dict.fromkeys((*program.ranks, *(vertex for vertex, _ in self._translation.actors)))
        self._processes = {vertex: events.process(self._name(vertex)) for vertex in at_work}
        self._links = events.process("links")

    def write(self) -> None:
        trace = self._trace
        columns = (trace.hop, trace.actor, trace.chunk, trace.begin_s, trace.move_s, trace.end_s)
        shown = self._shown()
        for hop, actor, chunk, *times in zip(*(column[shown].tolist() for column in columns), strict=True):
            begin, move, end = (round(second * _NS) for second in times)
            if hop < 0:
                self._reduction(actor, chunk, begin, end)
            else:
                self._transfer(hop, actor, chunk, begin, move, end)
        self._loads(shown)

    def _shown(self) -> Ints:
        """The earliest tasks that fit into the file."""
        trace, hops = self._trace, self._workload.hops
        lengths = np.diff(hops.path_of)
        # A transfer has two spans, an arrow, and two changes of every link's load, at its begin and at its end.
        needed = np.where(trace.hop < 0, 1, 4 + 2 * lengths[trace.hop] if len(lengths) else 4)
        order = np.argsort(trace.begin_s, kind="stable")
        fit = int(np.searchsorted(np.cumsum(needed[order]), self._events.most_events, side="right"))
        if fit < len(order):
            self._events.leave_out(
                f"{len(order) - fit:,} of {len(order):,} transfers and reductions, from "
                f"{trace.begin_s[order[fit]] * 1e3:.3f} ms on"
            )
        return np.sort(order[:fit]).astype(np.int32)

    def _reduction(self, actor: int, chunk: int, begin: int, end: int) -> None:
        vertex, share = self._translation.actors[actor]
        process, stream = self._processes[vertex], int(self._workload.actors.stream[actor])
        name = self._stream_names.get(stream, f"reduces, share {share}")
        thread = self._events.thread(process, (stream, name), name)
        self._events.span(process, thread, f"reduce chunk {chunk}", "reduce", begin, end, share=share, chunk=chunk)

    def _transfer(self, hop: int, actor: int, chunk: int, begin: int, move: int, end: int) -> None:
        """Write a span at the sender from the start in its stream, a span at the receiver, and an arrow between."""
        leg, stream = self._translation.legs[hop], int(self._workload.hops.stream[hop])
        vertex, share = self._translation.actors[actor]
        process, peer = self._processes[vertex], self._processes[leg.path[-1]]
        name = self._stream_names[stream]
        thread = self._events.thread(process, (stream, name), name)
        details = {"share": share, "chunk": chunk, "issue_us": (move - begin) / 1000}
        self._events.span(process, thread, f"send chunk {chunk}", "copy", begin, end, **details)
        name = f"from {self._network.vertex[vertex].label}, share {share}"
        at_peer = self._events.thread(peer, (hop, name), name)
        self._events.span(peer, at_peer, f"receive chunk {chunk}", "arrival", move, end, share=share, chunk=chunk)
        message = hop, chunk
        self._events.leaves(message, TracePlace(process, thread, begin))
        self._events.arrives(message, TracePlace(peer, at_peer, move))

    @cached_property
    def _stream_names(self) -> dict[int, str]:
        """The name of each stream, from the peers and the shares of its sends."""
        hops, sends = self._workload.hops, dict[int, tuple[dict[str, None], dict[int, None]]]()
        for number, leg in enumerate(self._translation.legs):
            ends, shares = sends.setdefault(int(hops.stream[number]), ({}, {}))
            ends[self._network.vertex[leg.path[-1]].label] = None
            shares[self._translation.actors[int(hops.tail[number])][1]] = None
        return {
            stream: f"to {', '.join(ends)}, share{'s' if len(shares) > 1 else ''} {', '.join(map(str, shares))}"
            for stream, (ends, shares) in sends.items()
        }

    def _loads(self, shown: Ints) -> None:
        """Write the load of each link, with the mean rate of every transfer while it moves.

        The true rate may vary, because other transfers share its links and a path of several links may wait for one of
        them. The sum of two transfers may therefore exceed a link's rate for moments; their bytes are correct.
        """
        hops, trace = self._workload.hops, self._trace
        changes: dict[int, dict[int, float]] = {}
        for task in shown[trace.hop[shown] >= 0].tolist():
            hop = int(trace.hop[task])
            begin, end = (round(float(column[task]) * _NS) for column in (trace.move_s, trace.end_s))
            if end <= begin:
                continue
            rate = self._bytes(int(hops.tail[hop]), int(trace.chunk[task])) / (end - begin)
            for link in hops.path[int(hops.path_of[hop]) : int(hops.path_of[hop + 1])].tolist():
                of_link = changes.setdefault(link, {})
                of_link[begin] = of_link.get(begin, 0.0) + rate
                of_link[end] = of_link.get(end, 0.0) - rate
        for link, of_link in sorted(changes.items()):
            load = 0.0
            for ns, change in sorted(of_link.items()):
                load += change
                shown_load = abs(round(load, 6))
                self._events.counter(self._links, self._link_name(link), "GB/s", ns, shown_load)

    def _bytes(self, actor: int, chunk: int) -> float:
        actors = self._workload.actors
        return float((actors.bytes if chunk + 1 < actors.chunks[actor] else actors.last_bytes)[actor])

    def _name(self, vertex: int) -> str:
        return self._titles.get(vertex, "memory of ") + self._network.vertex[vertex].label

    def _link_name(self, link: int) -> str:
        src, dst = (self._network.vertex[end].label for end in self._translation.links[link])
        return f"memory of {src}" if src == dst else f"{src} → {dst}"


def _ends(translation: Translation, trace: Trace, task: int) -> tuple[int, int]:
    """The source and destination vertices of a transfer, or twice the vertex of a reduction."""
    hop = int(trace.hop[task])
    if hop < 0:
        vertex, _ = translation.actors[int(trace.actor[task])]
        return vertex, vertex
    return translation.legs[hop].path[0], translation.legs[hop].path[-1]


def _trace(simulation: Simulation) -> Trace:
    if simulation.outcome.trace is None:
        raise InternalError("this simulation has no trace; simulate with traced=True")
    return simulation.outcome.trace


@dataclass(frozen=True)
class HopTime:
    """Seconds of the critical path on one ordered pair of vertices."""

    src: int
    dst: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """A summary: ``links``, the fullest first, and seconds of the critical path by part and by hop.

    ``labels`` names the vertices of the plan's own links, which are parts of the machine's vertices in a staged plan.
    """

    links: tuple[LinkUse, ...]
    parts: dict[str, float]
    hops: tuple[HopTime, ...]
    labels: Mapping[int, str]


def summarise(simulation: Simulation) -> Summary:
    """The summary of a traced simulation."""
    path = critical_path(simulation)
    parts = {name: sum(piece.end_s - piece.begin_s for piece in path if piece.what == name) for name in PARTS}
    seconds: dict[tuple[int, int], float] = {}
    for piece in path:
        ends = piece.src, piece.dst
        seconds[ends] = seconds.get(ends, 0.0) + piece.end_s - piece.begin_s
    hops = [HopTime(*ends, s) for ends, s in sorted(seconds.items(), key=lambda item: (-item[1], item[0]))]
    labels = {vertex.id: vertex.label for vertex in simulation.translation.network.vertices}
    return Summary(tuple(link_use(simulation)), {k: v for k, v in parts.items() if v > 0.0}, tuple(hops), labels)
