"""The kernel: discrete events over a :class:`~blinkccl.cost.simulate.workload.Workload`, in plain Python.

Tests compare :mod:`blinkccl.cost.simulate.kernel` with this definition: the same steps in the same order, and the same
bits, about 20 times slower. Links serve one transfer after the other (fifo): the first link of a path in the order of
requests, others on arrival. SimGrid is the oracle for fair sharing (``tests/simgrid``).
"""

from collections import deque
from dataclasses import fields
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from blinkccl.cost.simulate.workload import Floats, Ints, Outcome, Trace, Workload, dtype_of, not_live

#: Kinds of events. MOVE: a transfer begins on a link that has another after it; LANDED: its last byte has arrived.
_START, _FIRED, _ARRIVED, _MOVE, _LANDED = range(5)
_OUTSIDE, _RECEIVING, _EXECUTING, _SENDING, _DONE = range(5)


def run(workload: Workload, traced: bool = False) -> Outcome:
    """Time ``workload``; ``traced`` also records every task. Cost: O(tasks · log tasks)."""
    state = _Run(workload, traced)
    state.loop()
    return state.outcome()


class _Run:
    """One run. It uses lists instead of arrays: access to single elements is twice as fast."""

    def __init__(self, workload: Workload, traced: bool) -> None:
        self.workload, self.traced = workload, traced
        actors, hops = workload.actors, workload.hops
        count = len(actors.chunks)
        self.chunks = actors.chunks.tolist()
        self.size, self.last_size = actors.bytes.tolist(), actors.last_bytes.tolist()
        self.actor_stream = actors.stream.tolist()
        self.launch, self.pace = actors.launch_s.tolist(), actors.pace_s_per_byte.tolist()
        self.receives = rows(actors.receives_of, actors.receives)
        self.sends = rows(actors.sends_of, actors.sends)
        self.tail, self.head = hops.tail.tolist(), hops.head.tolist()
        self.hop_stream, self.pool = hops.stream.tolist(), hops.pool.tolist()
        self.slots, self.frees = hops.slots.tolist(), hops.frees.tolist()
        self.latency, self.signal = hops.latency_s.tolist(), hops.signal_s.tolist()
        # Progress of actors and hops.
        self.chunk, self.step = [0] * count, [0] * count
        self.stage = [_DONE if n == 0 else _OUTSIDE for n in self.chunks]
        self.done_s = [0.0] * count
        self.arrived, self.taken, self.appended, self.freed = ([0] * len(self.tail) for _ in range(4))
        self.is_read = [False] * len(self.tail)  # True if another hop frees its slots
        for hop in self.frees:
            if hop >= 0:
                self.is_read[hop] = True
        # Links. The state of a moving transfer is stored by hop, because a stream has one at a time.
        self.path, self.rate = rows(hops.path_of, hops.path), workload.rates.tolist()
        self.free_s, self.last = [0.0] * len(self.rate), [-1] * len(self.rate)
        #: Number of links that a transfer has reserved, and its end on them.
        self.place, self.reserved_s = [0] * len(self.path), [0.0] * len(self.path)
        #: The last wait on its path: its end, and the transfer waited for.
        self.wait: list[tuple[float, int]] = [(0.0, -1)] * len(self.path)
        # Streams and pools.
        self.waiting: list[deque[int]] = [deque() for _ in range(workload.streams)]
        self.busy = [False] * workload.streams
        self.engines = workload.pools.tolist()
        self.asking: list[deque[int]] = [deque() for _ in self.engines]
        # Tasks, by number; an execution's hop is -1.
        self.hop: list[int] = []
        self.actor: list[int] = []
        self.task_chunk: list[int] = []
        self.begin_s: list[float] = []
        self.move_s: list[float] = []
        self.end_s: list[float] = []
        self.cause: list[int] = []
        self.holder: list[int] = []
        self.held_s: list[float] = []
        self.now, self.current = 0.0, -1
        self.events: list[tuple[float, int, int, int]] = []
        #: Actors that got a free slot; they continue before the next event.
        self.ready: deque[int] = deque()
        self.scheduled = self.landed = self.fired = 0
        for actor, start_s in enumerate(actors.start_s.tolist()):
            if self.stage[actor] != _DONE:
                self.schedule(start_s, _START, actor)

    def schedule(self, at_s: float, kind: int, what: int) -> None:
        heappush(self.events, (at_s, self.scheduled, kind, what))
        self.scheduled += 1

    def loop(self) -> None:
        """Process the events in order until none is left."""
        while self.events:
            at_s, _, kind, what = heappop(self.events)
            self.now = at_s
            if kind == _START:
                self.current = -1
                self.stage[what] = _RECEIVING
                self.advance(what)
            elif kind == _MOVE:
                self.reserve(what, self.now)
            elif kind == _ARRIVED:
                self.current = what
                hop = self.hop[what]
                self.arrived[hop] += 1
                self.advance(self.head[hop])
            elif kind == _FIRED:
                self.current = what
                self.fired += 1
                self.end_s[what] = at_s
                actor = self.actor[what]
                self.stage[actor] = _SENDING
                self.release(self.actor_stream[actor])
                self.advance(actor)
            else:
                self.land(what)
            while self.ready:
                self.advance(self.ready.popleft())

    def land(self, task: int) -> None:
        """Finish a transfer: its last byte has arrived."""
        self.current = task
        self.landed += 1
        self.end_s[task] = self.now
        hop = self.hop[task]
        pool = self.pool[hop]
        if pool >= 0:
            if self.asking[pool]:
                self.transfer(self.asking[pool].popleft())
            else:
                self.engines[pool] += 1
        self.release(self.hop_stream[hop])
        if self.frees[hop] >= 0:
            self.free_slot(self.frees[hop])
        if self.signal[hop] > 0.0:
            self.schedule(self.now + self.signal[hop], _ARRIVED, task)
        else:
            self.arrived[hop] += 1
            self.advance(self.head[hop])

    def advance(self, actor: int) -> None:
        """Advance an actor until it has to wait."""
        while True:
            stage = self.stage[actor]
            if stage == _RECEIVING:
                receives = self.receives[actor]
                while self.step[actor] < len(receives):
                    hop = receives[self.step[actor]]
                    if self.taken[hop] == self.arrived[hop]:
                        return
                    self.taken[hop] += 1
                    self.step[actor] += 1
                    if not self.is_read[hop]:
                        self.free_slot(hop)
                self.step[actor] = 0
                stream = self.actor_stream[actor]
                if stream >= 0:
                    self.stage[actor] = _EXECUTING
                    self.append(stream, -1, actor)
                    return
                self.stage[actor] = _SENDING
            elif stage == _SENDING:
                sends = self.sends[actor]
                while self.step[actor] < len(sends):
                    hop = sends[self.step[actor]]
                    if self.appended[hop] - self.freed[hop] >= self.slots[hop]:
                        return
                    self.appended[hop] += 1
                    self.step[actor] += 1
                    self.append(self.hop_stream[hop], hop, actor)
                self.step[actor] = 0
                self.chunk[actor] += 1
                if self.chunk[actor] == self.chunks[actor]:
                    self.stage[actor] = _DONE
                    self.done_s[actor] = self.now
                    return
                self.stage[actor] = _RECEIVING
            else:
                return

    def free_slot(self, hop: int) -> None:
        """Free a slot; a sender that waited only for it continues soon."""
        self.freed[hop] += 1
        tail = self.tail[hop]
        if self.stage[tail] == _SENDING and self.sends[tail][self.step[tail]] == hop:
            self.ready.append(tail)

    def append(self, stream: int, hop: int, actor: int) -> None:
        """Add a new task at the end of a stream."""
        task = len(self.hop)
        self.hop.append(hop)
        self.actor.append(actor)
        self.task_chunk.append(self.chunk[actor])
        for times in (self.begin_s, self.move_s, self.end_s, self.held_s):
            times.append(0.0)
        self.cause.append(-1)
        self.holder.append(-1)
        if self.busy[stream]:
            self.waiting[stream].append(task)
        else:
            self.busy[stream] = True
            self.take_up(task)

    def release(self, stream: int) -> None:
        """End a task of a stream, which then starts the next."""
        if self.waiting[stream]:
            self.take_up(self.waiting[stream].popleft())
        else:
            self.busy[stream] = False

    def take_up(self, task: int) -> None:
        """Start this task of a stream."""
        hop = self.hop[task]
        if hop < 0:
            self.begin_s[task] = self.move_s[task] = self.now
            self.cause[task] = self.current
            actor = self.actor[task]
            cost_s = self.launch[actor] + self.bytes_of(task) * self.pace[actor]
            self.schedule(self.now + cost_s, _FIRED, task)
            return
        pool = self.pool[hop]
        if pool >= 0:
            if self.engines[pool] == 0:
                self.asking[pool].append(task)
                return
            self.engines[pool] -= 1
        self.transfer(task)

    def transfer(self, task: int) -> None:
        """Begin a transfer that has its stream and its engine."""
        self.begin_s[task] = self.now
        self.cause[task] = self.current
        hop, ready_s = self.hop[task], self.now + self.latency[self.hop[task]]
        self.place[hop], self.reserved_s[hop], self.wait[hop] = 0, ready_s, (0.0, -1)
        if self.path[hop]:
            self.reserve(task, ready_s)
        else:
            self.move_s[task] = ready_s
            self.schedule(ready_s, _LANDED, task)

    def reserve(self, task: int, at_s: float) -> None:
        """Reserve the next link of a transfer's path from ``at_s`` on."""
        hop = self.hop[task]
        path, place = self.path[hop], self.place[hop]
        link = path[place]
        start = at_s
        if self.free_s[link] > start:
            start = self.free_s[link]
            self.wait[hop] = start, self.last[link]
        if place == 0:
            self.move_s[task] = start
        until = start + self.bytes_of(task) / self.rate[link]
        self.free_s[link], self.last[link] = until, task
        if until > self.reserved_s[hop]:
            self.reserved_s[hop] = until
            self.held_s[task], self.holder[task] = self.wait[hop]
        self.place[hop] = place + 1
        if place + 1 == len(path):
            self.schedule(self.reserved_s[hop], _LANDED, task)
        else:
            self.schedule(start, _MOVE, task)

    def bytes_of(self, task: int) -> float:
        actor = self.actor[task]
        is_last = self.task_chunk[task] == self.chunks[actor] - 1
        size: float = self.last_size[actor] if is_last else self.size[actor]
        return size

    def outcome(self) -> Outcome:
        """Return the outcome; raise an error if the run got stuck."""
        for actor, stage in enumerate(self.stage):
            if stage != _DONE:
                raise not_live(self.now, actor, self.chunk[actor], self.chunks[actor])
        actor_s = np.asarray(self.done_s, dtype=np.float64)
        last = max(float(actor_s.max(initial=0.0)), max(self.end_s, default=0.0))
        busy_s = self.workload.link_bytes / self.workload.rates
        return Outcome(last, self.landed, self.fired, busy_s, actor_s, self.trace() if self.traced else None)

    def trace(self) -> Trace:
        times = (self.hop, self.actor, self.task_chunk, self.begin_s, self.move_s, self.end_s)
        named = zip(fields(Trace), (*times, self.cause, self.holder, self.held_s), strict=True)
        columns: list[Any] = [np.asarray(values, dtype_of(column)) for column, values in named]
        return Trace(*columns)


def rows(starts: Ints, values: Ints | Floats) -> list[list[int]]:
    """Return the rows of a table in compressed form."""
    bounds = starts.tolist()
    flat = values.tolist()
    return [flat[a:b] for a, b in pairwise(bounds)]
