"""A timeline that is written down can be read by a strict reader, whatever the order in which it was told."""

from __future__ import annotations

import json

import pytest

from blinkccl.trace_events import TraceEvents, TracePlace
from support.trace_reader import read_trace


def told(events: TraceEvents) -> TraceEvents:
    first, second = events.process("first"), events.process("second")
    there = events.thread(second, "b", "it arrives")
    here = events.thread(first, "a", "it leaves")
    events.span(second, there, "take", "x", 2000, 2500)
    events.arrives(("m", 1), TracePlace(second, there, 2400))
    events.span(first, here, "inner", "x", 1000, 1500, bytes=4)
    events.span(first, here, "outer", "x", 1000, 3001)
    events.leaves(("m", 1), TracePlace(first, here, 1000))
    events.leaves(("m", 2), TracePlace(first, here, 1400))
    events.counter(second, "load", "GB/s", 1, 2.5)
    return events


def test_spans_nest_and_arrows_bind_to_the_innermost() -> None:
    read = read_trace(json.dumps(told(TraceEvents()).document()))
    assert read.processes == {1: "first", 2: "second"}
    assert read.threads == {(1, 1): "it leaves", (2, 1): "it arrives"}
    [(sent, taken)] = read.arrows  # the other one never arrives
    assert (sent["name"], taken["name"]) == ("inner", "take")
    assert read.spans[1, 1][0][:2] == (1000, 3001)
    assert read.counters[2, "load"] == [(1, 2.5)]


def test_names_are_kept_and_numbers_may_be_given() -> None:
    events = TraceEvents()
    assert events.process("one", 4711) == events.process("one") == 4711
    assert events.thread(4711, "k", "n") == events.thread(4711, "k", "n") == 1
    assert len([event for event in events.events() if event["name"] == "thread_name"]) == 1


def test_the_latest_are_left_out() -> None:
    events = told(TraceEvents(most_events=4))
    document = events.document()
    assert document["otherData"]["left out"] == events.left_out
    assert "3 of 7 events" in events.left_out
    assert not read_trace(json.dumps(document)).arrows


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda events: events.span(1, 1, "late", "x", 2900, 4000), "overlaps another"),
        (
            lambda events: events.leaves("m", TracePlace(1, 1, 9000)) or events.arrives("m", TracePlace(1, 1, 9000)),
            "in the air",
        ),
        (lambda events: events.span(1, 7, "nobody's", "x", 1, 2), "thread without a name"),
    ],
)
def test_the_reader_finds_what_readers_would_misread(change, says) -> None:
    events = told(TraceEvents())
    change(events)
    with pytest.raises(AssertionError, match=says):
        read_trace(json.dumps(events.document()))
