"""A strict reader of Chrome's trace format; Perfetto is tolerant and drops unreadable events."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Thread = tuple[int, int]


@dataclass
class TraceRead:
    """The content of a trace, in whole nanoseconds. ``arrows``: the spans at both ends of each."""

    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[Thread, str] = field(default_factory=dict)
    spans: dict[Thread, list[tuple[int, int, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[tuple[int, str], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    arrows: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)

    def of(self, category: str) -> list[dict[str, Any]]:
        """Return the spans of a category."""
        return [event for spans in self.spans.values() for _, _, event in spans if event["cat"] == category]


def read_trace(text: str) -> TraceRead:
    """Return the content of ``text``; AssertionError for anything that readers could misunderstand."""
    document = json.loads(text)
    assert set(document) <= {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] == "ns"
    read, ends = TraceRead(), defaultdict(dict)
    last: dict[object, int] = {}
    for event in document["traceEvents"]:
        assert event["ph"] in "MXsfC", event
        assert type(event["pid"]) is type(event["tid"]) is int, event
        if event["ph"] == "M":
            _name(read, event)
            continue
        assert event["pid"] in read.processes, f"process without a name: {event}"
        ts = _ns(event["ts"])
        thread = event["pid"], event["tid"]
        line = (event["pid"], event["name"]) if event["ph"] == "C" else thread
        assert ts >= last.get(line, 0), f"goes back in time: {event}"
        last[line] = ts
        if event["ph"] == "C":
            [value] = event["args"].values()
            assert value >= 0, event
            read.counters[event["pid"], event["name"]].append((ts, value))
            continue
        assert thread in read.threads, f"thread without a name: {event}"
        if event["ph"] == "X":
            read.spans[thread].append((ts, ts + _ns(event["dur"]), event))
        else:
            assert event["ph"] == "s" or event["bp"] == "e", event
            assert event["ph"] not in ends[event["id"]], f"an arrow twice: {event}"
            ends[event["id"]][event["ph"]] = (thread, ts)
    for spans in read.spans.values():
        _check_nesting(spans)
    _connect(read, ends)
    return read


def _ns(microseconds: float) -> int:
    ns = round(microseconds * 1000)
    assert ns >= 0
    assert abs(microseconds * 1000 - ns) < 1e-2, f"no whole nanosecond: {microseconds}"
    return ns


def _name(read: TraceRead, event: dict[str, Any]) -> None:
    if event["name"] == "process_sort_index":
        assert type(event["args"]["sort_index"]) is int
        return
    known, key = (
        (read.processes, event["pid"])
        if event["name"] == "process_name"
        else (read.threads, (event["pid"], event["tid"]))
    )
    assert event["name"] in ("process_name", "thread_name"), event
    assert known.setdefault(key, event["args"]["name"]) == event["args"]["name"], f"named twice: {event}"
    assert event["args"]["name"].strip(), event


def _check_nesting(spans: list[tuple[int, int, dict[str, Any]]]) -> None:
    """Check that each span is within the open one, or begins after its end."""
    open_until: list[int] = []
    for begin, end, event in spans:
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert not open_until or end <= open_until[-1], f"overlaps another: {event}"
        open_until.append(end)


def _connect(read: TraceRead, ends: dict[int, dict[str, tuple[Thread, int]]]) -> None:
    for number, arrow in ends.items():
        assert set(arrow) == {"s", "f"}, f"arrow {number} has one end"
        assert arrow["s"][1] <= arrow["f"][1], f"arrow {number} goes back in time"
        read.arrows.append((_innermost(read, *arrow["s"]), _innermost(read, *arrow["f"])))


def _innermost(read: TraceRead, thread: Thread, ts: int) -> dict[str, Any]:
    around = [event for begin, end, event in read.spans[thread] if begin <= ts < max(end, begin + 1)]
    assert around, f"an arrow hangs in the air on {read.threads[thread]} at {ts} ns"
    return around[-1]
