"""The links of the kernel, which transfers share one after the other, or max-min fairly.

The kernel requests a transfer, and an event reports its end. The kernel calls ``ask`` when a transfer wants to move
from a time on, ``begin`` at its event MOVE and ``end`` at its event LANDED. It ignores events that a change of shares
has ``overtaken``. While links are ``stale``, ``share`` must be called before time advances.
:mod:`~blinkccl.cost.simulate.workload` defines both kinds of links.
"""

from itertools import pairwise
from typing import Protocol

from blinkccl.cost.simulate.workload import Floats, Ints, Workload
from blinkccl.errors import InternalError

#: Events of links: a transfer begins to move (on a fifo link that has another after it), and the end of its last byte.
MOVE, LANDED = range(2)


class Transfers(Protocol):
    """The part of a run that links use: its clock, and the data of each task."""

    workload: Workload
    now: float
    #: Number of scheduled events, which is the number of the next one.
    scheduled: int
    hop: list[int]
    move_s: list[float]
    holder: list[int]
    held_s: list[float]

    def schedule(self, at_s: float, kind: int, what: int) -> None: ...

    def bytes_of(self, task: int) -> float: ...


class FifoLinks:
    """Links that serve one transfer after the other: the first of a path in the order of requests, others on arrival.

    The state of a moving transfer is stored by hop, because a stream has one at a time.
    """

    stale = False

    def __init__(self, state: Transfers) -> None:
        self.state = state
        hops = state.workload.hops
        self.path = rows(hops.path_of, hops.path)
        self.rate = state.workload.rates.tolist()
        self.free_s = [0.0] * len(self.rate)
        self.last = [-1] * len(self.rate)
        #: Number of links that a transfer has reserved, and its end on them.
        self.place = [0] * len(self.path)
        self.end_s = [0.0] * len(self.path)
        #: The last wait on its path: its end, and the transfer waited for.
        self.wait: list[tuple[float, int]] = [(0.0, -1)] * len(self.path)

    def ask(self, task: int, ready_s: float) -> None:
        hop = self.state.hop[task]
        self.place[hop], self.end_s[hop], self.wait[hop] = 0, ready_s, (0.0, -1)
        if self.path[hop]:
            self._take(task, ready_s)
        else:
            self.state.move_s[task] = ready_s
            self.state.schedule(ready_s, LANDED, task)

    def begin(self, task: int) -> None:
        """Move on one link and reach the next."""
        self._take(task, self.state.now)

    def _take(self, task: int, at_s: float) -> None:
        """Reserve the next link of its path from ``at_s`` on."""
        state, hop = self.state, self.state.hop[task]
        path, place = self.path[hop], self.place[hop]
        link = path[place]
        start = at_s
        if self.free_s[link] > start:
            start = self.free_s[link]
            self.wait[hop] = start, self.last[link]
        if place == 0:
            state.move_s[task] = start
        until = start + state.bytes_of(task) / self.rate[link]
        self.free_s[link], self.last[link] = until, task
        if until > self.end_s[hop]:
            self.end_s[hop] = until
            state.held_s[task], state.holder[task] = self.wait[hop]
        self.place[hop] = place + 1
        if place + 1 == len(path):
            state.schedule(self.end_s[hop], LANDED, task)
        else:
            state.schedule(start, MOVE, task)

    def end(self, task: int) -> None:
        """Do nothing: the reservation determined the end."""

    def overtaken(self, task: int, number: int) -> bool:
        return False

    def share(self) -> None:
        raise InternalError("fifo links share nothing")


class FairLinks:
    """Links that transfers share max-min fairly by weight."""

    def __init__(self, state: Transfers) -> None:
        self.state = state
        hops = state.workload.hops
        self.path = rows(hops.path_of, hops.path)
        self.weight = hops.weight.tolist()
        self.rate = state.workload.rates.tolist()
        #: Transfers that move on each link, in the order in which they began.
        self.moving: list[list[int]] = [[] for _ in self.rate]
        self.left: dict[int, float] = {}
        self.speed: dict[int, float] = {}
        self.since: dict[int, float] = {}
        #: The event of each transfer's end; earlier ones are overtaken.
        self.number: dict[int, int] = {}
        self.dirty: list[int] = []
        self.marked = [False] * len(self.rate)

    @property
    def stale(self) -> bool:
        """Return whether transfers began or ended since the last sharing."""
        return bool(self.dirty)

    def ask(self, task: int, ready_s: float) -> None:
        self.state.schedule(ready_s, MOVE, task)

    def begin(self, task: int) -> None:
        state = self.state
        state.move_s[task] = state.now
        path = self.path[state.hop[task]]
        size = state.bytes_of(task)
        if not path or size == 0.0:
            self.number[task] = state.scheduled
            state.schedule(state.now, LANDED, task)
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
        """Compute new speeds for all transfers on links connected to the changed ones by transfers."""
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
            state.schedule(state.now + self.left[task] / speed, LANDED, task)

    def _joined(self) -> tuple[list[int], list[int]]:
        """Return the dirty links with all links connected to them by transfers, and these transfers."""
        links, tasks, seen = self.dirty, [], set()
        self.dirty = []
        for link in links:  # grows during the loop
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
        level = 0.0  # never decreases from round to round, except by rounding
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


#: Links of either kind.
Links = FifoLinks | FairLinks


def rows(starts: Ints, values: Ints | Floats) -> list[list[int]]:
    """Return the rows of a table in compressed form."""
    bounds = starts.tolist()
    flat = values.tolist()
    return [flat[a:b] for a, b in pairwise(bounds)]
