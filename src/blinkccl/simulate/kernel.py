"""The kernel: discrete events over a :class:`~blinkccl.simulate.workload.Workload`, in plain Python.

This is the definition. :mod:`~blinkccl.simulate.native_kernel` runs the same steps in the same order in native code
and gives the same bits, about 20 times faster. There is no closed form in either: every transfer ends in an event.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from blinkccl.errors import InternalError
from blinkccl.simulate.workload import SHARINGS, Floats, Outcome, Trace, Workload

#: Kinds of events; a number may follow in ``what``.
_START, _FIRED, _MOVE, _LANDED, _ARRIVED = range(5)
_RECEIVING, _FIRING, _SENDING, _DONE = range(4)


def run(workload: Workload, sharing: str = "fifo", traced: bool = False) -> Outcome:
    """Times ``workload``.

    Parameters
    ----------
    sharing
        ``"fifo"`` or ``"fair"``, as the workload's module defines them.
    traced
        Also say what was done when; needs memory for every task.

    Raises
    ------
    InternalError
        If the workload stops before its end, which one made from a lawful Program never does.

    Notes
    -----
    Cost: fifo O(tasks · log tasks); fair also, per begin or end of a transfer, the sharing of all links that its own
    are joined to by other transfers.
    """
    if sharing not in SHARINGS:
        raise InternalError(f"unknown sharing {sharing!r}; expected one of {', '.join(SHARINGS)}")
    state = _Run(workload, sharing == "fair", traced)
    state.loop()
    return state.outcome()


class _Run:
    """One run. Lists instead of arrays: single elements of these are twice as fast."""

    def __init__(self, workload: Workload, fair: bool, traced: bool) -> None:
        self.workload, self.traced = workload, traced
        actors, hops = workload.actors, workload.hops
        count = len(actors.chunks)
        self.chunks = actors.chunks.tolist()
        self.size, self.last_size = actors.bytes.tolist(), actors.last_bytes.tolist()
        self.actor_stream = actors.stream.tolist()
        self.launch, self.pace = actors.launch_s.tolist(), actors.pace_s_per_byte.tolist()
        self.receives = _rows(actors.receives_of, actors.receives)
        self.sends = _rows(actors.sends_of, actors.sends)
        self.tail, self.head = hops.tail.tolist(), hops.head.tolist()
        self.hop_stream, self.pool = hops.stream.tolist(), hops.pool.tolist()
        self.slots = hops.slots.tolist()
        self.latency, self.signal = hops.latency_s.tolist(), hops.signal_s.tolist()
        # Progress of actors and hops.
        self.chunk, self.step = [0] * count, [0] * count
        self.stage = [_DONE if n == 0 else _RECEIVING for n in self.chunks]
        self.done_s = [0.0] * count
        self.arrived, self.taken, self.appended = ([0] * len(self.tail) for _ in range(3))
        # Streams and pools.
        self.waiting: list[deque[int]] = [deque() for _ in range(workload.streams)]
        self.busy = [False] * workload.streams
        self.engines = workload.pools.tolist()
        self.asking: list[deque[int]] = [deque() for _ in self.engines]
        # Tasks, by number; a firing's hop is -1.
        self.hop: list[int] = []
        self.actor: list[int] = []
        self.task_chunk: list[int] = []
        self.begin_s: list[float] = []
        self.move_s: list[float] = []
        self.end_s: list[float] = []
        self.cause: list[int] = []
        self.holder: list[int] = []
        self.now, self.current = 0.0, -1
        self.events: list[tuple[float, int, int, int]] = []
        #: Actors that a slot was freed for; they go on before the next event.
        self.ready: deque[int] = deque()
        self.scheduled = self.landed = self.fired = 0
        self.links = _Fair(self) if fair else _Fifo(self)
        for actor, start_s in enumerate(actors.start_s.tolist()):
            if self.stage[actor] != _DONE:
                self.schedule(start_s, _START, actor)

    def schedule(self, at_s: float, kind: int, what: int) -> None:
        heappush(self.events, (at_s, self.scheduled, kind, what))
        self.scheduled += 1

    def loop(self) -> None:
        """Takes up event after event until none is left."""
        while True:
            if self.links.stale and (not self.events or self.events[0][0] > self.now):
                self.links.share()
            if not self.events:
                break
            at_s, number, kind, what = heappop(self.events)
            if kind == _LANDED and self.links.overtaken(what, number):
                continue
            self.now = at_s
            if kind == _START:
                self.current = -1
                self.advance(what)
            elif kind == _MOVE:
                self.links.begin(what)
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
        """A transfer's last byte is over."""
        self.current = task
        self.landed += 1
        self.end_s[task] = self.now
        hop = self.hop[task]
        self.links.end(task)
        pool = self.pool[hop]
        if pool >= 0:
            if self.asking[pool]:
                self.transfer(self.asking[pool].popleft())
            else:
                self.engines[pool] += 1
        self.release(self.hop_stream[hop])
        if self.signal[hop] > 0.0:
            self.schedule(self.now + self.signal[hop], _ARRIVED, task)
        else:
            self.arrived[hop] += 1
            self.advance(self.head[hop])

    def advance(self, actor: int) -> None:
        """Lets an actor go on until it has to wait."""
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
                    self.slot_freed(hop)
                self.step[actor] = 0
                stream = self.actor_stream[actor]
                if stream >= 0:
                    self.stage[actor] = _FIRING
                    self.append(stream, -1, actor)
                    return
                self.stage[actor] = _SENDING
            elif stage == _SENDING:
                sends = self.sends[actor]
                while self.step[actor] < len(sends):
                    hop = sends[self.step[actor]]
                    if self.appended[hop] - self.taken[hop] >= self.slots[hop]:
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

    def slot_freed(self, hop: int) -> None:
        """The sender goes on, soon, where it waited for just this slot."""
        tail = self.tail[hop]
        if self.stage[tail] == _SENDING and self.sends[tail][self.step[tail]] == hop:
            self.ready.append(tail)

    def append(self, stream: int, hop: int, actor: int) -> None:
        """A new task at the end of a stream."""
        task = len(self.hop)
        self.hop.append(hop)
        self.actor.append(actor)
        self.task_chunk.append(self.chunk[actor])
        for times in (self.begin_s, self.move_s, self.end_s):
            times.append(0.0)
        self.cause.append(-1)
        self.holder.append(-1)
        if self.busy[stream]:
            self.waiting[stream].append(task)
        else:
            self.busy[stream] = True
            self.take_up(task)

    def release(self, stream: int) -> None:
        """The stream is through with a task and takes up the next."""
        if self.waiting[stream]:
            self.take_up(self.waiting[stream].popleft())
        else:
            self.busy[stream] = False

    def take_up(self, task: int) -> None:
        """The stream has come to this task."""
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
        """A transfer that has its stream and its engine begins."""
        self.begin_s[task] = self.now
        self.cause[task] = self.current
        self.links.ask(task, self.now + self.latency[self.hop[task]])

    def bytes_of(self, task: int) -> float:
        actor = self.actor[task]
        is_last = self.task_chunk[task] == self.chunks[actor] - 1
        size: float = self.last_size[actor] if is_last else self.size[actor]
        return size

    def outcome(self) -> Outcome:
        """What came out, or an error if the run stopped before its end."""
        stuck = [actor for actor, stage in enumerate(self.stage) if stage != _DONE]
        if stuck:
            actor = stuck[0]
            raise InternalError(
                f"the simulation stopped at {self.now} s with {len(stuck)} actors unfinished; actor {actor} is in "
                f"chunk {self.chunk[actor]} of {self.chunks[actor]}: the workload is not live"
            )
        actor_s = np.asarray(self.done_s, dtype=np.float64)
        last = max(float(actor_s.max(initial=0.0)), max(self.end_s, default=0.0))
        busy_s = self.workload.link_bytes / self.workload.rates
        return Outcome(last, self.landed, self.fired, busy_s, actor_s, self.trace() if self.traced else None)

    def trace(self) -> Trace:
        ints, floats = np.int32, np.float64
        return Trace(
            np.asarray(self.hop, ints),
            np.asarray(self.actor, ints),
            np.asarray(self.task_chunk, ints),
            np.asarray(self.begin_s, floats),
            np.asarray(self.move_s, floats),
            np.asarray(self.end_s, floats),
            np.asarray(self.cause, ints),
            np.asarray(self.holder, ints),
        )


class _Fifo:
    """Links that serve one transfer after the other, in the order of asking."""

    stale = False

    def __init__(self, state: _Run) -> None:
        self.state = state
        hops = state.workload.hops
        self.path = _rows(hops.path_of, hops.path)
        self.rate = state.workload.rates.tolist()
        self.free_s = [0.0] * len(self.rate)
        self.last = [-1] * len(self.rate)

    def ask(self, task: int, ready_s: float) -> None:
        """Reserves each link of the path; the end is known at once."""
        state = self.state
        size = state.bytes_of(task)
        start = end = ready_s
        first = True
        for link in self.path[state.hop[task]]:
            if self.free_s[link] > start:
                start = self.free_s[link]
                state.holder[task] = self.last[link]
            if first:
                state.move_s[task] = start
                first = False
            until = start + size / self.rate[link]
            self.free_s[link] = until
            self.last[link] = task
            if until > end:
                end = until
        if first:
            state.move_s[task] = ready_s
        state.schedule(end, _LANDED, task)

    def begin(self, task: int) -> None:
        raise InternalError("fifo links begin transfers when they are asked")

    def end(self, task: int) -> None:
        """Nothing: the reservation said when."""

    def overtaken(self, task: int, number: int) -> bool:
        return False

    def share(self) -> None:
        raise InternalError("fifo links share nothing")


class _Fair:
    """Links whose transfers share them max-min fairly by weight."""

    def __init__(self, state: _Run) -> None:
        self.state = state
        hops = state.workload.hops
        self.path = _rows(hops.path_of, hops.path)
        self.weight = hops.weight.tolist()
        self.rate = state.workload.rates.tolist()
        #: Transfers that move on each link, in the order in which they began.
        self.moving: list[list[int]] = [[] for _ in self.rate]
        self.left: dict[int, float] = {}
        self.speed: dict[int, float] = {}
        self.since: dict[int, float] = {}
        #: The event that tells each transfer's end; earlier ones are overtaken.
        self.number: dict[int, int] = {}
        self.dirty: list[int] = []
        self.marked = [False] * len(self.rate)

    @property
    def stale(self) -> bool:
        """Whether transfers began or ended since links were shared."""
        return bool(self.dirty)

    def ask(self, task: int, ready_s: float) -> None:
        self.state.schedule(ready_s, _MOVE, task)

    def begin(self, task: int) -> None:
        state = self.state
        state.move_s[task] = state.now
        path = self.path[state.hop[task]]
        size = state.bytes_of(task)
        if not path or size == 0.0:
            self.number[task] = state.scheduled
            state.schedule(state.now, _LANDED, task)
            return
        self.left[task], self.speed[task], self.since[task] = size, 0.0, state.now
        self.number[task] = -1
        for link in path:
            self.moving[link].append(task)
            self._touch(link)

    def end(self, task: int) -> None:
        del self.number[task]
        if task in self.left:
            del self.left[task], self.speed[task], self.since[task]
            for link in self.path[self.state.hop[task]]:
                self.moving[link].remove(task)
                self._touch(link)

    def overtaken(self, task: int, number: int) -> bool:
        return self.number.get(task) != number

    def _touch(self, link: int) -> None:
        if not self.marked[link]:
            self.marked[link] = True
            self.dirty.append(link)

    def share(self) -> None:
        """New speeds for all transfers on links that the changed ones are joined to by transfers."""
        links, tasks = self._joined()
        speeds = self._fill(links, tasks)
        state = self.state
        for task in tasks:
            speed = speeds[task]
            if speed == self.speed[task]:
                continue
            left = self.left[task] - self.speed[task] * (state.now - self.since[task])
            self.left[task] = left if left > 0.0 else 0.0
            self.speed[task], self.since[task] = speed, state.now
            self.number[task] = state.scheduled
            state.schedule(state.now + self.left[task] / speed, _LANDED, task)

    def _joined(self) -> tuple[list[int], list[int]]:
        """The dirty links and all that transfers join to them; and these transfers."""
        links, tasks, seen = self.dirty, [], set()
        self.dirty = []
        for link in links:  # grows while it is read
            for task in self.moving[link]:
                if task not in seen:
                    seen.add(task)
                    tasks.append(task)
                    for other in self.path[self.state.hop[task]]:
                        if not self.marked[other]:
                            self.marked[other] = True
                            links.append(other)
        for link in links:
            self.marked[link] = False
        return links, tasks

    def _fill(self, links: list[int], tasks: list[int]) -> dict[int, float]:
        """Progressive filling: the link with the least rate per weight sets the speed of its transfers, and so on."""
        hop = self.state.hop
        left = {link: self.rate[link] for link in links}
        load = dict.fromkeys(links, 0.0)
        for task in tasks:
            for link in self.path[hop[task]]:
                load[link] += self.weight[hop[task]]
        open_on = {link: len(self.moving[link]) for link in links}
        speeds: dict[int, float] = {}
        level = 0.0  # never falls from round to round, but for rounding
        while len(speeds) < len(tasks):
            tightest, least = -1, 0.0
            for link in links:
                if open_on[link]:
                    per_weight = left[link] / load[link]
                    if tightest < 0 or per_weight < least:
                        tightest, least = link, per_weight
            level = max(level, least)
            for task in self.moving[tightest]:
                if task in speeds:
                    continue
                weight = self.weight[hop[task]]
                speed = speeds[task] = level * weight
                for link in self.path[hop[task]]:
                    open_on[link] -= 1
                    left[link] = left[link] - speed if left[link] > speed else 0.0
                    load[link] -= weight
        return speeds


def _rows(starts: object, values: Floats | object) -> list[list[int]]:
    """The rows of a table in compressed form."""
    bounds = np.asarray(starts).tolist()
    flat = np.asarray(values).tolist()
    return [flat[a:b] for a, b in pairwise(bounds)]
