"""What ranks of the host engine recorded, as a timeline: calls, what each consists of, and the waits in between.

The native library keeps events as numbers (``blink_event`` in host.h). With the plans that a rank's calls ran they
become a :class:`Recording`, which goes from process to process as bytes, and then spans: a thread per rank, a call with
its executions inside, waits inside of these, and an arrow from each message's sending to its taking.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines import native_library as native
from blinkccl.engines.host import Endpoint
from blinkccl.engines.host_plan import HostPlan
from blinkccl.schedule.program import Role
from blinkccl.schedule.text import from_json, to_json
from blinkccl.trace_events import TraceEvents, TracePlace

_EVENT = np.dtype(native.Event)
_WAITS = {
    "entry": "wait for rank {} to call",
    "message": "wait for a message of rank {}",
    "slot": "wait for rank {} to take what was sent",
    "reader": "wait for rank {} to have read",
}


class RecordedOperation(msgspec.Struct, frozen=True):
    """What calls with one signature ran: the call, and the number of its program among the recording's."""

    call: CollectiveCall
    program: int
    cross_memory: bool


class Recording(msgspec.Struct, frozen=True):
    """One rank's events, ``dropped`` of which are gone, the oldest; ``programs`` are JSON; operations by signature."""

    rank: int
    events: bytes
    dropped: int
    programs: tuple[str, ...]
    operations: dict[int, RecordedOperation]

    def rows(self) -> NDArray[Any]:
        """The events as rows."""
        return np.frombuffer(self.events, _EVENT)

    def plan(self, operation: RecordedOperation) -> HostPlan:
        """What the operation ran."""
        return _plan(self.programs[operation.program])


def recording_of(endpoint: Endpoint, events: int) -> Recording:
    """What the endpoint's rank has recorded, at most so many events."""
    kept, dropped = endpoint.recorded(events)
    wanted = set(np.frombuffer(kept, _EVENT)["signature"].tolist())
    found = {signature: bound for signature, bound in endpoint.bound.items() if signature in wanted}
    plans = list(dict.fromkeys(bound.plan for bound in found.values()))
    operations = {
        signature: RecordedOperation(bound.call, plans.index(bound.plan), bound.cross_memory)
        for signature, bound in found.items()
    }
    return Recording(endpoint.rank, kept, dropped, tuple(to_json(plan.program) for plan in plans), operations)


@lru_cache(maxsize=64)
def _plan(program: str) -> HostPlan:
    return HostPlan(from_json(program))


def add_recording(events: TraceEvents, recording: Recording, process: int, from_ns: int, name: str = "") -> None:
    """Adds a rank's calls to ``process``, on a thread of their own; ``from_ns`` is 0 on the timeline's axis.

    Recordings with one ``name`` are of one group: arrows go between them.
    """
    if recording.dropped:
        events.leave_out(f"the first {recording.dropped:,} events of rank {recording.rank}")
    thread = events.thread(process, ("calls", name), f"calls of {name}" if name else "calls")
    rows = recording.rows()
    calls = {int(row["sequence"]): row for row in rows[rows["kind"] == native.CALL]}
    for row in rows:
        call = calls.get(int(row["sequence"]))
        if call is None or row["begin_ns"] < call["begin_ns"]:
            continue  # it has not ended
        begin, end = int(row["begin_ns"]) - from_ns, int(row["end_ns"]) - from_ns
        operation = recording.operations.get(int(call["signature"]))
        sequence, chunk = int(row["sequence"]), int(row["chunk"])
        if row["kind"] == native.CALL:
            how = "" if operation is None or not operation.cross_memory else ", by the system's copies"
            title = "a call" if operation is None else f"{operation.call}{how}"
            failed = {"failed": int(row["detail"])} if row["detail"] != native.OK else {}
            events.span(process, thread, title, "call", begin, end, call=sequence, **failed)
        elif row["kind"] == native.WAIT:
            title = _WAITS[native.WAITS[row["detail"]]].format(row["peer"])
            events.span(process, thread, title, "wait", begin, end, chunk=chunk)
        else:
            role = None if operation is None else recording.plan(operation).role(recording.rank, int(row["role"]))
            what = "execute" if role is None else f"{_verb(role)} share {role.share}"
            events.span(process, thread, f"{what} chunk {chunk}", "execution", begin, end, bytes=int(row["amount"]))
            if role is not None:
                for queue, sends in _messages(role):
                    key = name, sequence, queue, role.slice, chunk
                    if sends:
                        events.leaves(key, TracePlace(process, thread, begin))
                    else:
                        events.arrives(key, TracePlace(process, thread, max(begin, end - 1)))


def _messages(role: Role) -> Iterator[tuple[int, bool]]:
    """The queues of an execution, and whether it sends into them."""
    yield from ((queue, True) for queue in role.sends)
    yield from ((queue, False) for queue in role.receives)


def _verb(role: Role) -> str:
    """What an execution of a role does."""
    if len(role.receives) + role.contributes > 1:
        return "combine"
    if not role.receives:
        return "send" if role.sends else "keep"
    return "pass on" if role.sends else "receive"
