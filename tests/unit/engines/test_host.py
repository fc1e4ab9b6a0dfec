"""The host engine from Python: refusals, failures, messages of errors, and counters.

The conformance suite and tests/property check that it executes Programs correctly.
"""

import itertools
import mmap
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import addressof, c_char
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic, sleep

import numpy as np
import pytest
from programs_by_hand import one_message_held_back

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import Collective
from blinkccl.engines import host, native_library
from blinkccl.engines.host import Endpoint, NativeOp, to_exception
from blinkccl.engines.host_plan import Area, HostPlan, checksum
from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    ScheduleError,
    UnsupportedError,
    UsageError,
)
from blinkccl.native import absent
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support import local_host
from support.engines import ENGINES
from support.execution import difference
from support.faults import FAULTS
from support.forests import random_forest
from support.local_host import HostOptions, local_endpoints
from support.planned import asked

NEEDED = pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))


def allreduce(n: int = 2) -> Program:
    return lower(ALGORITHMS["one_hop"].plan(asked(f"clique:{n}", "allreduce")))


# ---- programs


@NEEDED
@pytest.mark.parametrize("way", [{}, {"shared": True}, {"cross_memory": True}])
def test_no_value_is_held_back_for_another_queue(way: dict[str, bool]) -> None:
    run = partial(local_host.run, options=HostOptions(**way))
    assert difference(run, one_message_held_back(), count=900, chunk_bytes=16, deadline_s=20) is None


@NEEDED
def test_a_deadlock_ends_and_names_the_waits() -> None:
    forest = random_forest(Random(1), Collective("allreduce", 4), one_shot=False)
    program = FAULTS["deadlock"].plant(lower(forest), Random(0))
    with pytest.raises(DeadlineError, match=r"rank \d waited \d+\.\d s for (chunk \d+ of channel \d|rank \d to read)"):
        difference(local_host.run, program, count=4000, chunk_bytes=16, deadline_s=0.3)


@NEEDED
@pytest.mark.parametrize("chunk_bytes", [1, 3, 1 << 40, 1 << 62])
def test_any_size_of_chunks_is_accepted(chunk_bytes: int) -> None:
    assert difference(local_host.run, allreduce(3), count=1001, dtype="float16", chunk_bytes=chunk_bytes) is None


@NEEDED
def test_integer_scales_that_a_double_does_not_hold_are_refused() -> None:
    program, inputs = allreduce(), [np.ones(3, np.int64)] * 2
    run = partial(local_host.run, program, inputs, CollectiveCall.of(program.collective, "int64", 3, "premul_sum"))
    with pytest.raises(UnsupportedError, match=f"integers up to 2.53, which doubles hold exactly, got {2**53 + 1}; "):
        run(scales=[1, 2**53 + 1])
    assert [out is not None and out.tolist() for out in run(scales=[1, 2**60])] == [[2**60 + 1] * 3] * 2


# ---- ends of a segment


def op_on(endpoint: Endpoint, count: int = 100, op: str = "sum") -> NativeOp:
    plan = HostPlan(allreduce(2))
    return NativeOp(endpoint, plan, CollectiveCall("allreduce", "float32", count, op), 1 << 16)


def at_once(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Run the calls concurrently; the exception of each, or None."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.exception(60) for future in futures]


@pytest.fixture
def ends() -> Iterator[list[Endpoint]]:
    if ENGINES["host"].missing is not None:
        pytest.skip(ENGINES["host"].missing)
    with local_endpoints(2, Area()) as endpoints:
        yield endpoints


def test_a_timed_loop_gives_a_time_per_iteration(ends: list[Endpoint]) -> None:
    buffers = [np.ones(100, np.float32) for _ in range(2)]
    times: list[np.ndarray] = []
    ops = [(op_on(end), op_on(end, count=1)) for end in ends]

    def time(rank: int) -> None:
        (op, barrier), at = ops[rank], buffers[rank].ctypes.data
        times.append(op.time(barrier, at, at, 7, 10**7))

    assert at_once(partial(time, 0), partial(time, 1)) == [None, None]
    assert [end.stats()["calls"] for end in ends] == [14, 14]
    for op in itertools.chain(*ops):
        op.close()
    assert [seconds.shape for seconds in times] == [(7,), (7,)]
    assert all((seconds > 0).all() for seconds in times)


@pytest.mark.parametrize("with_barrier", [False, True])
def test_a_barrier_is_timed_on_request(ends: list[Endpoint], with_barrier: bool) -> None:
    """Rank 0 waits 0.4 s in the barrier, so the timed part is nearly all of its loop, or hardly any."""
    at = np.ones(100, np.float32).ctypes.data
    ops = [(op_on(end), op_on(end, count=1)) for end in ends]
    begun, parts = Event(), []

    def early() -> None:
        (op, barrier) = ops[0]
        begun.set()
        began = monotonic()
        seconds = op.time(barrier, at, at, 1, 10**7, with_barrier)
        parts.append(seconds.sum() / (monotonic() - began))

    def late() -> None:
        begun.wait(10)
        sleep(0.4)
        (op, barrier) = ops[1]
        op.time(barrier, at, at, 1, 10**7, with_barrier)

    assert at_once(early, late) == [None, None]
    assert bool(parts[0] > 0.5) is with_barrier


def test_an_error_of_different_calls_names_both(ends: list[Endpoint]) -> None:
    x = np.ones(100, np.float32).ctypes.data
    ops = [op_on(ends[0]), op_on(ends[1], op="max")]
    for raised in at_once(*(partial(op.run, x, x, 10**7) for op in ops)):
        assert isinstance(raised, PlanMismatchError)
        assert "call 1" in str(raised)
        for rank, name in enumerate(("sum", "max")):
            assert f"rank {rank} calls allreduce of 100 × float32, {name}" in str(raised)
    for op in ops:
        op.close()


def test_an_abort_reaches_the_others_with_its_reason(ends: list[Endpoint]) -> None:
    x = np.ones(100, np.float32).ctypes.data
    op = op_on(ends[0])
    (raised, _) = at_once(partial(op.run, x, x, 10**7), partial(ends[1].abort, "the user left"))
    assert isinstance(raised, CommunicationError)
    assert "the communicator was aborted: the user left (detected by rank 1)" in str(raised)
    op.close()


def test_buffers_off_their_elements_are_refused(ends: list[Endpoint]) -> None:
    memory = np.ones(101, np.float32)
    op = op_on(ends[0])
    for place in (memory.ctypes.data + 1, None):
        with pytest.raises(UsageError, match=r"buffer.* the group is still usable"):
            op.run(place, memory.ctypes.data, 10**6)
    op.close()


@NEEDED
def test_a_segment_accepts_only_its_own_ranks() -> None:
    shape, token = host.shape_of(2, Area()), secrets.token_bytes(16)
    size = host.segment_bytes(shape)
    memory = mmap.mmap(-1, size)
    view = (c_char * 1).from_buffer(memory)
    at = addressof(view)
    with pytest.raises(CommunicationError, match=r"rank 0 cannot join .* belongs to another job or another version"):
        Endpoint(at, size, 0, token)
    host.format_segment(at, size, shape, token)
    with pytest.raises(CommunicationError, match="token"):
        Endpoint(at, size, 0, secrets.token_bytes(16))
    with pytest.raises(CommunicationError, match="expected a rank from 0 to 1, got 2"):
        Endpoint(at, size, 2, token)
    end = Endpoint(at, size, 0, token)
    with pytest.raises(CommunicationError, match="another process has already joined as this rank"):
        Endpoint(at, size, 0, token)
    end.close()
    end.close()
    with pytest.raises(CommunicationError, match="rank 0's communicator is closed"):
        end.stats()
    with pytest.raises(UnsupportedError, match="a shared segment of 4096 bytes for 2 ranks cannot be created"):
        host.format_segment(at, 4096, shape, token)
    del view
    with suppress(BufferError):
        memory.close()


# ---- messages


def error(code: int, **fields: object) -> native_library.Error:
    native = native_library.Error(
        code=code, rank=1, peer=2, sequence=7, channel=3, share=4, stage=1, chunk=5, seconds_us=1_500_000
    )
    for name, value in fields.items():
        setattr(native, name, value)
    return native


@pytest.mark.parametrize(
    ("code", "fields", "kind", "text"),
    [
        (native_library.DEADLINE, {"waits": 1}, DeadlineError, "rank 1 waited 1.5 s for rank 2 to make the same call;"),
        (native_library.DEADLINE, {"waits": 2}, DeadlineError, "for chunk 5 of channel 3 from rank 2 (root of"),
        (
            native_library.DEADLINE,
            {"waits": 3},
            DeadlineError,
            "for rank 2 to read earlier messages, before it can send",
        ),
        (native_library.DEADLINE, {"waits": 4}, DeadlineError, "for rank 2 to finish reading its buffer;"),
        (native_library.DEADLINE, {"waits": 4, "peer": -1}, DeadlineError, "for its messages to leave this host; a"),
        (native_library.PEER_LOST, {}, PeerLostError, "its process ended during call 7 (a test) (detected by rank 1)"),
        (native_library.PEER_LOST, {"left": 1}, PeerLostError, "it closed its communicator during call 7"),
        (native_library.ABORTED, {"text": b"why"}, CommunicationError, "the communicator was aborted: why"),
        (native_library.INVALID, {"text": b"why"}, CommunicationError, "native code 5: why"),
        (native_library.SYSTEM, {}, CommunicationError, "native code 6"),
    ],
)
def test_every_code_has_its_error(code: int, fields: dict[str, object], kind: type[BlinkError], text: str) -> None:
    raised = to_exception(error(code, **fields), 0, "a test")
    assert type(raised) is kind
    assert text in str(raised)
    assert "call 7 (a test)" in str(raised)
    if isinstance(raised, PeerLostError):
        assert raised.rank == 2


def test_a_refused_call_is_a_usage_error() -> None:
    raised = to_exception(error(native_library.REFUSED, text=b"a buffer is missing"), 1, "a test")
    assert type(raised) is UsageError
    assert str(raised) == "a test: a buffer is missing; the call did not start, and the group is still usable"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (native_library.DEADLINE, CommunicationError),
        (native_library.PEER_LOST, PeerLostError),
        (native_library.MISMATCH, PlanMismatchError),
        (native_library.ABORTED, CommunicationError),
    ],
)
def test_after_a_failure_calls_name_it_and_not_themselves(code: int, kind: type[BlinkError]) -> None:
    first = CollectiveCall("allreduce", "float32", 5)
    raised = to_exception(error(code, heard=1, what=(first.number(), 0), count=(5, 0)), 0, "a test")
    assert type(raised) is kind
    assert code == native_library.MISMATCH or "call 7 (allreduce of 5 × float32, sum)" in str(raised)
    assert "call 7 (a test)" not in str(raised)
    assert code == native_library.PEER_LOST or str(raised).startswith("a test: the group had ended already: call 7")


# ---- the library


def test_an_installation_without_library_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "find", lambda: None)
    with pytest.raises(UnsupportedError, match=r"lacks libblink_host.so, .* reinstall blink-ccl$"):
        native_library.load.__wrapped__()


def test_another_system_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "find", lambda: None)
    on_linux = "this installation lacks libblink_host.so: it is built on Linux with the GNU C library, and this is"
    monkeypatch.setattr("os.confstr", refuse)
    with pytest.raises(UnsupportedError, match=f"{on_linux} Linux with another C library$"):
        native_library.load.__wrapped__()
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UnsupportedError, match=f"{on_linux} darwin$"):
        native_library.load.__wrapped__()
    assert absent("libblink_packing.so").endswith("which is part of blink-ccl on darwin: reinstall blink-ccl")


def refuse(name: str) -> str:
    """Fail like musl, which lacks glibc's names."""
    raise ValueError("unrecognized configuration name")


def test_a_file_that_is_no_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "libblink_host.so"
    path.write_bytes(b"no library")
    monkeypatch.setenv(native_library.OVERRIDE, str(path))
    assert native_library.find() == path
    with pytest.raises(UnsupportedError, match=f"{path} cannot be used: "):
        native_library.load.__wrapped__()


def test_invalid_plans_are_refused_by_the_library(ends: list[Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, of_three = HostPlan(allreduce(2)).rows, HostPlan(allreduce(3)).rows
    call = CollectiveCall("allreduce", "float32", 100)
    for wrong, message in (
        (rows[:-8], "words"),
        (rows[:100], "has 100 bytes; expected"),
        (rows[:80] + b"x" + rows[81:], "checksum"),
    ):
        monkeypatch.setattr(HostPlan, "rows", wrong)
        with pytest.raises(ScheduleError, match=f"refuses the program's plan: .*{message}"):
            NativeOp(ends[0], HostPlan(allreduce(2)), call, 64)
    for field, value in ((-2, 7), (-1, 1 << 16)):  # The block of a reader's output, and its rail.
        words = np.frombuffer(rows, np.int64).copy()
        words[field] = value
        words[4 - 1] = np.array([checksum(words[4:])], np.uint64).view(np.int64)[0]
        monkeypatch.setattr(HostPlan, "rows", words.tobytes())
        with pytest.raises(ScheduleError, match="the plan is invalid: a reader is wrong"):
            NativeOp(ends[0], HostPlan(allreduce(2)), call, 64)
    monkeypatch.setattr(HostPlan, "rows", of_three)
    with pytest.raises(ScheduleError, match="allreduce of 100 × float32, sum: the plan is for 3 ranks, but"):
        NativeOp(ends[0], HostPlan(allreduce(2)), call, 64)
