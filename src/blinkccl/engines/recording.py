"""Timelines of the host engine's ranks: calls, their executions, and waits.

The native library records events as numbers (``blink_event`` in host.h). Together with the plans of a rank's calls they
are a :class:`Recording`. A timeline shows it as spans, with a thread per rank: calls contain executions, executions
contain waits, and an arrow joins the sender and the receiver of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.engines import native_library as native
from blinkccl.engines.host import BoundPlan, Endpoint
from blinkccl.schedule.program import Role
from blinkccl.trace_events import TraceEvents, TracePlace

_EVENT = np.dtype(native.Event)
_WAITS = {
    "entry": "wait for rank {} to make the call",
    "message": "wait for a message from rank {}",
    "slot": "wait for rank {} to read earlier messages",
    "reader": "wait for rank {} to finish reading",
}


@dataclass(frozen=True, slots=True)
class Recording:
    """One rank's events, without the ``dropped`` oldest; ``operations`` are those of the calls, by signature."""

    rank: int
    rows: NDArray[Any]
    dropped: int
    operations: Mapping[int, BoundPlan]


def recording_of(endpoint: Endpoint, events: int) -> Recording:
    """The recording of the endpoint's rank, with at most ``events`` events."""
    recorded, dropped = endpoint.recorded(events)
    return Recording(endpoint.rank, np.frombuffer(recorded, _EVENT), dropped, dict(endpoint.bound))


def add_recording(events: TraceEvents, recording: Recording, process: int, from_ns: int, name: str = "") -> None:
    """Add a rank's calls to ``process``, on a thread of their own; ``from_ns`` is the zero of the timeline.

    Arrows join recordings of the same ``name``, which are those of one group.
    """
    if recording.dropped:
        events.leave_out(f"the first {recording.dropped:,} events of rank {recording.rank}")
    thread = events.thread(process, ("calls", name), f"calls of {name}" if name else "calls")
    rows = recording.rows
    calls = {int(row["sequence"]): row for row in rows[rows["kind"] == native.CALL]}
    for row in rows:
        call = calls.get(int(row["sequence"]))
        if call is None or row["begin_ns"] < call["begin_ns"]:
            continue  # The call has not ended.
        begin, end = int(row["begin_ns"]) - from_ns, int(row["end_ns"]) - from_ns
        operation = recording.operations.get(int(call["signature"]))
        sequence, chunk = int(row["sequence"]), int(row["chunk"])
        if row["kind"] == native.CALL:
            copies = "" if operation is None or not operation.cross_memory else ", by the system's copies"
            title = "a call" if operation is None else f"{operation.call}{copies}"
            failed = {"failed": int(row["detail"])} if row["detail"] != native.OK else {}
            events.span(process, thread, title, "call", begin, end, call=sequence, **failed)
        elif row["kind"] == native.WAIT:
            title = "wait for messages to leave this host"
            if row["peer"] >= 0:
                title = _WAITS[native.WAITS[row["detail"]]].format(row["peer"])
            events.span(process, thread, title, "wait", begin, end, chunk=chunk)
        else:
            role = None if operation is None else operation.plan.role(recording.rank, int(row["role"]))
            work = "execute" if role is None else f"{_verb(role)} share {role.share}"
            events.span(process, thread, f"{work} chunk {chunk}", "execution", begin, end, bytes=int(row["amount"]))
            if role is not None:
                for queue, sends in _messages(role):
                    key = name, sequence, queue, role.slice, chunk
                    if sends:
                        events.leaves(key, TracePlace(process, thread, begin))
                    else:
                        events.arrives(key, TracePlace(process, thread, max(begin, end - 1)))


def _messages(role: Role) -> Iterator[tuple[int, bool]]:
    """The queues of an execution, each with True if it sends and False if it receives."""
    yield from ((queue, True) for queue in role.sends)
    yield from ((queue, False) for queue in role.receives)


def _verb(role: Role) -> str:
    """The verb for an execution of a role."""
    if len(role.receives) + role.contributes > 1:
        return "reduce"
    if not role.receives:
        return "send" if role.sends else "copy"
    return "forward" if role.sends else "receive"
