"""Timelines as Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

One JSON object with a list of events ("Trace Event Format", the Chromium project): processes and threads with names,
spans (``ph`` X) that on a thread follow each other or nest, arrows from a span to a span (``s``, ``f``), and counters
(``C``). Times are whole nanoseconds on any one clock here, microseconds in the file. Events stand in the order of time,
those that begin together with the longest first, since readers nest spans in that order.

What a page cannot show is no use: beyond :data:`MOST_EVENTS` the latest are left out, and the file says so.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

#: Some 25 MB of JSON, which opens in seconds.
MOST_EVENTS = 200_000
#: In the order of one moment: what arrows bind to stands before them.
_ORDER = {"X": 0, "C": 1, "s": 2, "f": 3}

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TracePlace:
    """A thread of a process at ``ns``: where an arrow begins or ends, inside of a span."""

    process: int
    thread: int
    ns: int


@dataclass(slots=True)
class TraceEvents:
    """A timeline that is written down: first names, then what happened, in any order."""

    most_events: int = MOST_EVENTS
    _names: list[Event] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)
    _processes: dict[str, int] = field(default_factory=dict)
    _threads: dict[int, dict[Hashable, int]] = field(default_factory=dict)
    _left_out: list[str] = field(default_factory=list)

    def process(self, name: str, number: int | None = None) -> int:
        """The process of this name, numbered in the order of calls if not by ``number``; readers list them so."""
        if name in self._processes:
            return self._processes[name]
        place = len(self._threads) + 1
        number = place if number is None else number
        self._threads[number] = {}
        self._processes[name] = number
        self._names.append(_named("process_name", number, 0, {"name": name}))
        self._names.append(_named("process_sort_index", number, 0, {"sort_index": place}))
        return number

    def thread(self, process: int, key: Hashable, name: str, number: int | None = None) -> int:
        """The thread of ``key`` in a process, which gets ``name`` and a number when it is asked for first."""
        threads = self._threads[process]
        if key not in threads:
            threads[key] = len(threads) + 1 if number is None else number
            self._names.append(_named("thread_name", process, threads[key], {"name": name}))
        return threads[key]

    def span(
        self, process: int, thread: int, name: str, category: str, begin_ns: int, end_ns: int, **details: object
    ) -> None:
        """What a thread did from ``begin_ns`` to ``end_ns``; ``details`` are shown where it is selected."""
        times = {"ts": begin_ns, "dur": end_ns - begin_ns}
        self._add("X", process, thread, name, category, {**times, "args": details} if details else times)

    def leaves(self, key: Hashable, at: TracePlace) -> None:
        """An arrow begins, that ends where the same ``key`` :meth:`arrives`."""
        self._add("s", at.process, at.thread, "message", "message", {"ts": at.ns, "id": _number(key)})

    def arrives(self, key: Hashable, at: TracePlace) -> None:
        """An arrow ends."""
        self._add("f", at.process, at.thread, "message", "message", {"ts": at.ns, "id": _number(key), "bp": "e"})

    def counter(self, process: int, name: str, unit: str, ns: int, value: float) -> None:
        """From ``ns`` on a counter has this value."""
        self._add("C", process, 0, name, "counter", {"ts": ns, "args": {unit: value}})

    def leave_out(self, what: str) -> None:
        """Says in the file what is not in it."""
        self._left_out.append(what)

    @property
    def left_out(self) -> str:
        """What the document does not show; "" if it shows everything. Known when the document is made."""
        return "; ".join(self._left_out)

    def events(self, whole: bool = True) -> list[Event]:
        """Names, and the rest in the order of time, at most as many as may be.

        An arrow only with both its ends, if this is the ``whole`` timeline and not a part of one.
        """
        found = sorted(self._events, key=lambda event: (event["ts"], -event.get("dur", 0), _ORDER[event["ph"]]))
        if len(found) > self.most_events:
            self.leave_out(
                f"what begins {(found[self.most_events]['ts'] - found[0]['ts']) / 1e6:.3f} ms after the first event or "
                f"later: {len(found) - self.most_events:,} of {len(found):,} events"
            )
            found = found[: self.most_events]
        ends = Counter(event["id"] for event in found if "id" in event)
        shown = [event for event in found if "id" not in event or not whole or ends[event["id"]] == 2]
        return self._names + [_in_microseconds(event) for event in shown]

    def document(self) -> dict[str, Any]:
        """All of it, for ``json.dumps``."""
        events = self.events()
        said = {"otherData": {"left out": self.left_out}} if self.left_out else {}
        return {"displayTimeUnit": "ns", **said, "traceEvents": events}

    def _add(self, phase: str, process: int, thread: int, name: str, category: str, more: Event) -> None:
        self._events.append({"ph": phase, "name": name, "cat": category, "pid": process, "tid": thread, **more})


def _named(what: str, process: int, thread: int, said: Event) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": said}


def _in_microseconds(event: Event) -> Event:
    return {key: value / 1000 if key in ("ts", "dur") else value for key, value in event.items()}


def _number(key: Hashable) -> int:
    """52 bits, which every reader of JSON keeps; the same for the same key in every process."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8]) >> 12
