"""Timelines of the host engine: executions are spans, messages are arrows, and dropped events are reported."""

import json
from threading import Barrier, Thread

import numpy as np
import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines import native_library as native
from blinkccl.engines.host import NativeOp
from blinkccl.engines.host_plan import HostPlan
from blinkccl.engines.recording import Recording, add_recording, recording_of
from blinkccl.errors import UsageError
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.trace_events import TraceEvents
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.engines import ENGINES
from support.local_host import local_endpoints
from support.planned import asked
from support.trace_reader import TraceRead, read_trace

pytestmark = pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))
COUNT, CHUNK_BYTES, CALLS = 5000, 1024, 3


def recorded(program: Program, events: int = 10_000) -> list[Recording]:
    """The recordings of all ranks of CALLS calls."""
    plan, ranks = HostPlan(program), len(program.ranks)
    call = CollectiveCall.of(program.collective, "float32", COUNT)
    together = Barrier(ranks)
    with local_endpoints(ranks, plan.area) as endpoints:

        def run(rank: int) -> None:
            endpoints[rank].record(events)
            op = NativeOp(endpoints[rank], plan, call, CHUNK_BYTES)
            buffers = [
                np.ones(blocks * COUNT, np.float32) if blocks else None
                for blocks in (program.collective.input_blocks(rank), program.collective.output_blocks(rank))
            ]
            addresses = [None if buffer is None else buffer.ctypes.data for buffer in buffers]
            together.wait(60)
            for _ in range(CALLS):
                op.run(*addresses, timeout_us=60_000_000)
            op.close()

        threads = [Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [recording_of(endpoint, events) for endpoint in endpoints]


def shown(recordings: list[Recording]) -> TraceRead:
    events = TraceEvents()
    began = min(int(one.rows["begin_ns"].min()) for one in recordings)
    for one in recordings:
        add_recording(events, one, events.process(f"rank {one.rank}"), began)
    return read_trace(json.dumps(events.document()))


@pytest.mark.parametrize(
    ("algorithm", "collective"), [("one_hop", "allreduce"), ("ring", "allgather"), ("optimal", "broadcast")]
)
@pytest.mark.parametrize("topology", ["clique:2", "clique:3"])
def test_every_execution_is_a_span_and_every_message_an_arrow(algorithm: str, collective: str, topology: str) -> None:
    program = lower(ALGORITHMS[algorithm].plan(asked(topology, collective)))
    trace = shown(recorded(program))
    extents = bind(program, COUNT, 4, CHUNK_BYTES, even_chunks=False).extents
    messages = sum(extents[role.slice].chunks * len(role.receives) for role in program.roles)
    assert len(trace.arrows) == CALLS * messages
    assert messages > len(program.ranks)
    assert len(trace.of("call")) == CALLS * len(program.ranks)
    assert {span["name"].split(" of ")[0] for span in trace.of("call")} == {collective}
    for sent, taken in trace.arrows:
        assert sent["cat"] == taken["cat"] == "execution"
        assert sent["pid"] != taken["pid"]
        assert sent["args"]["bytes"] == taken["args"]["bytes"]
        assert sent["name"].rpartition(" chunk ")[2] == taken["name"].rpartition(" chunk ")[2]


def test_dropped_events_are_reported_and_leave_no_arrow_with_one_end() -> None:
    program = lower(ALGORITHMS["one_hop"].plan(asked("clique:2", "allreduce")))
    recordings = recorded(program, events=40)
    assert all(one.dropped > 0 and len(one.rows) == 40 for one in recordings)
    events = TraceEvents()
    for one in recordings:
        add_recording(events, one, events.process(f"rank {one.rank}"), 0)
    trace = read_trace(json.dumps(events.document()))
    assert len(trace.of("call")) == sum(int((one.rows["kind"] == native.CALL).sum()) for one in recordings)
    assert trace.arrows
    assert events.left_out == "; ".join(f"the first {one.dropped:,} events of rank {one.rank}" for one in recordings)


def test_an_invalid_number_of_events_is_refused() -> None:
    program = lower(ALGORITHMS["one_hop"].plan(asked("clique:2", "allreduce")))
    with local_endpoints(2, HostPlan(program).area) as [endpoint, _]:
        for events in (-1, native.MOST_EVENTS + 1):
            with pytest.raises(UsageError, match=r"expected 0 to 16,777,216 events"):
                endpoint.record(events)
        assert endpoint.recorded(10) == (b"", 0)
