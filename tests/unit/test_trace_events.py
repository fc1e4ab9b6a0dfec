"""Timelines that a strict reader accepts, with events added in any order."""

import json

import pytest

from blinkccl.trace_events import TraceEvents, TracePlace
from support.trace_reader import read_trace


def described(events: TraceEvents) -> TraceEvents:
    first, second = events.process("first"), events.process("second")
    receiver = events.thread(second, "b", "it arrives")
    sender = events.thread(first, "a", "it leaves")
    events.span(second, receiver, "take", "x", 2000, 2500)
    events.arrives(("m", 1), TracePlace(second, receiver, 2400))
    events.span(first, sender, "inner", "x", 1000, 1500, bytes=4)
    events.span(first, sender, "outer", "x", 1000, 3001)
    events.leaves(("m", 1), TracePlace(first, sender, 1000))
    events.leaves(("m", 2), TracePlace(first, sender, 1400))
    events.counter(second, "load", "GB/s", 1, 2.5)
    return events


def test_spans_nest_and_arrows_bind_to_the_innermost() -> None:
    read = read_trace(json.dumps(described(TraceEvents()).document()))
    assert read.processes == {1: "first", 2: "second"}
    assert read.threads == {(1, 1): "it leaves", (2, 1): "it arrives"}
    [(sent, receiving)] = read.arrows  # the other one never arrives
    assert (sent["name"], receiving["name"]) == ("inner", "take")
    assert read.spans[1, 1][0][:2] == (1000, 3001)
    assert read.counters[2, "load"] == [(1, 2.5)]


def test_names_are_kept_and_numbers_may_be_given() -> None:
    events = TraceEvents()
    assert events.process("one", 4711) == events.process("one") == 4711
    assert events.thread(4711, "k", "n") == events.thread(4711, "k", "n") == 1
    assert len([event for event in events.events() if event["name"] == "thread_name"]) == 1


def test_the_latest_are_left_out() -> None:
    events = described(TraceEvents(most_events=4))
    document = events.document()
    assert document["otherData"]["left out"] == events.left_out
    assert "3 of 7 events" in events.left_out
    assert not read_trace(json.dumps(document)).arrows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda events: events.span(1, 1, "late", "x", 2900, 4000), "overlaps another"),
        (
            lambda events: events.leaves("m", TracePlace(1, 1, 9000)) or events.arrives("m", TracePlace(1, 1, 9000)),
            "in the air",
        ),
        (lambda events: events.span(1, 7, "nobody's", "x", 1, 2), "thread without a name"),
    ],
)
def test_the_reader_refuses_timelines_that_viewers_would_misread(change, message) -> None:
    events = described(TraceEvents())
    change(events)
    with pytest.raises(AssertionError, match=message):
        read_trace(json.dumps(events.document()))
