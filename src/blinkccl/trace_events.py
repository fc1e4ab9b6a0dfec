"""Timelines in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is one JSON object with a list of events ("Trace Event Format", the Chromium project). Processes and threads
have names. Spans (``ph`` X) follow each other or nest on a thread. Arrows (``s``, ``f``) lead from a span to a span.
Counters (``C``) have values. Times are whole nanoseconds on one clock in this module, microseconds in the file.
Events are in the order of time. Of events that begin together the longest is first, since viewers nest spans in that
order. The latest events beyond :data:`MOST_EVENTS` are left out, with a note in the file, as viewers cannot show them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

#: Some 25 MB of JSON, which opens in seconds.
MOST_EVENTS = 200_000
#: The order of events at the same time: a span precedes the arrows that bind to it.
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
    """A timeline under construction: first the names, then the events in any order."""

    most_events: int = MOST_EVENTS
    _names: list[Event] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)
    _processes: dict[str, int] = field(default_factory=dict)
    _threads: dict[int, dict[Hashable, int]] = field(default_factory=dict)
    _left_out: list[str] = field(default_factory=list)

    def process(self, name: str, number: int | None = None) -> int:
        """The process of this name, with ``number`` or the next number; viewers list processes in order of calls."""
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
        """The thread of ``key`` in a process; the first call gives it ``name`` and a number."""
        threads = self._threads[process]
        if key not in threads:
            threads[key] = len(threads) + 1 if number is None else number
            self._names.append(_named("thread_name", process, threads[key], {"name": name}))
        return threads[key]

    def span(
        self, process: int, thread: int, name: str, category: str, begin_ns: int, end_ns: int, **details: object
    ) -> None:
        """Add an activity of a thread from ``begin_ns`` to ``end_ns``; viewers show ``details`` when it is selected."""
        times = {"ts": begin_ns, "dur": end_ns - begin_ns}
        self._add("X", process, thread, name, category, {**times, "args": details} if details else times)

    def leaves(self, key: Hashable, at: TracePlace) -> None:
        """Begin an arrow, which ends where the same ``key`` :meth:`arrives`."""
        self._add("s", at.process, at.thread, "message", "message", {"ts": at.ns, "id": _number(key)})

    def arrives(self, key: Hashable, at: TracePlace) -> None:
        """End the arrow of ``key``."""
        self._add("f", at.process, at.thread, "message", "message", {"ts": at.ns, "id": _number(key), "bp": "e"})

    def counter(self, process: int, name: str, unit: str, ns: int, value: float) -> None:
        """Set a counter to ``value`` from ``ns`` on."""
        self._add("C", process, 0, name, "counter", {"ts": ns, "args": {unit: value}})

    def leave_out(self, part: str) -> None:
        """Note in the file that ``part`` is not in it."""
        self._left_out.append(part)

    @property
    def left_out(self) -> str:
        """The parts that the document does not show, "" if it is complete; known once the document is made."""
        return "; ".join(self._left_out)

    def events(self, whole: bool = True) -> list[Event]:
        """The names, then at most ``most_events`` events in the order of time.

        If this is the ``whole`` timeline and not a part of one, arrows without both ends are dropped.
        """
        ordered = sorted(self._events, key=lambda event: (event["ts"], -event.get("dur", 0), _ORDER[event["ph"]]))
        if len(ordered) > self.most_events:
            first_ns, cut_ns = ordered[0]["ts"], ordered[self.most_events]["ts"]
            self.leave_out(
                f"the last {len(ordered) - self.most_events:,} of {len(ordered):,} events, from "
                f"{(cut_ns - first_ns) / 1e6:.3f} ms after the first event on"
            )
            ordered = ordered[: self.most_events]
        ends = Counter(event["id"] for event in ordered if "id" in event)
        shown = [event for event in ordered if "id" not in event or not whole or ends[event["id"]] == 2]
        return self._names + [_in_microseconds(event) for event in shown]

    def document(self) -> dict[str, Any]:
        """The complete JSON object, for ``json.dumps``."""
        events = self.events()
        notes = {"otherData": {"left out": self.left_out}} if self.left_out else {}
        return {"displayTimeUnit": "ns", **notes, "traceEvents": events}

    def _add(self, phase: str, process: int, thread: int, name: str, category: str, more: Event) -> None:
        self._events.append({"ph": phase, "name": name, "cat": category, "pid": process, "tid": thread, **more})


def _named(field: str, process: int, thread: int, value: Event) -> Event:
    return {"ph": "M", "name": field, "pid": process, "tid": thread, "args": value}


def _in_microseconds(event: Event) -> Event:
    return {key: value / 1000 if key in ("ts", "dur") else value for key, value in event.items()}


def _number(key: Hashable) -> int:
    """A number of 52 bits, which every reader of JSON keeps; equal keys get equal numbers in every process."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8]) >> 12
