"""Calls on CUDA tensors: on which stream, after what, kept how long, and what a failure does. CUDA is a script."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module

import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import CommunicationError, DeadlineError, UnsupportedError
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
dist = torch.distributed
scripted = import_module("scripted_cuda")
cuda_group = import_module("blinkccl.torch_backend.cuda_group")

SUM = dist.ReduceOp.SUM
DEVICE = torch.device("cpu")


@pytest.fixture
def runtime():
    return scripted.ScriptedRuntime()


@pytest.fixture
def engine(runtime):
    return scripted.ScriptedEngine(runtime)


@pytest.fixture
def opened():
    return []


@pytest.fixture
def group(runtime, engine, opened):
    def open_engine(*asked):
        opened.append(asked)
        return engine

    made = cuda_group.CudaGroup(0, 2, open_engine, runtime)
    yield made
    runtime.ran = True
    made.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.005)


def sum_of(group, tensor, asynchronous, timeout_s=50.0):
    return group.issue(DEVICE, lambda table: table.all_reduce([tensor], SUM), asynchronous, timeout_s)


def test_a_synchronous_call_goes_to_the_current_stream(group, engine, runtime):
    tensor = torch.ones(3)
    work = sum_of(group, tensor, False)
    address = tensor.data_ptr()
    assert engine.calls == [(CollectiveCall("allreduce", "float32", 3), address, address, None, 1)]
    assert runtime.log == [("run", "allreduce", 1), ("record", "current")]
    assert work.wait()
    assert runtime.log[2:] == [("wait", "current", "current")]


def test_an_asynchronous_call_goes_to_the_groups_stream(group, runtime):
    tensor = torch.ones(3)
    work = sum_of(group, tensor, True)
    assert runtime.log == [
        ("record", "current"),
        ("wait", "group", "current"),
        ("keep", tensor.data_ptr(), "group"),
        ("run", "allreduce", 2),
        ("record", "group"),
    ]
    runtime.current = "other"
    assert work.wait()
    assert runtime.log[5:] == [("wait", "other", "group")], "the stream that is current then waits, not the host"


def test_all_tensors_are_kept_for_the_groups_stream(group, runtime):
    parts, whole = [torch.zeros(2), torch.zeros(2)], torch.arange(4.0)
    group.issue(DEVICE, lambda table: table.reduce_scatter(parts[0], list(whole.chunk(2)), SUM), True, 5.0)
    kept = {entry[1] for entry in runtime.log if entry[0] == "keep"}
    assert kept == {parts[0].data_ptr(), *(chunk.data_ptr() for chunk in whole.chunk(2))}


def test_copies_are_made_on_the_same_stream_around_the_call(group, runtime):
    tensor = torch.arange(6.0).view(2, 3).t()
    group.issue(DEVICE, lambda table: table.all_reduce([tensor], SUM), True, 5.0)
    on_stream = [entry for entry in runtime.log if entry[0] in ("empty", "copy", "run")]
    assert on_stream == [("empty", 24, "group"), ("copy", "group"), ("run", "allreduce", 2), ("copy", "group")]
    assert tensor.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_first_call_on_a_device_makes_its_engine(group, opened):
    for _ in range(2):
        sum_of(group, torch.ones(1), False, 7.0)
    assert opened == [(0, 3, 7.0)]
    group.issue(torch.device("meta"), lambda table: table.barrier(), False, 8.0)
    assert opened[1:] == [(1, 3, 8.0)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_callers_stream_waits_for_a_functional_result(group, engine, runtime, monkeypatch, asynchronous):
    functional = import_module("torch.distributed._functional_collectives")
    tensor = torch.ones(3)
    monkeypatch.setattr(
        functional.AsyncCollectiveTensor,
        "trigger_wait",
        lambda wrapper: runtime.log.append(("functional", runtime.current)) or wrapper.elem,
    )
    sum_of(group, functional.AsyncCollectiveTensor(tensor), asynchronous)
    assert runtime.log[0] == ("functional", "current"), "what the caller enqueues next comes after it, too"
    assert [entry for entry in runtime.log if entry[0] == "functional"] == runtime.log[:1]
    assert engine.calls[0][1] == tensor.data_ptr()


def test_a_wrapper_is_refused_before_the_ranks_meet(group, opened):
    pairs = import_module("torch.testing._internal.two_tensor")
    wrapper = pairs.TwoTensor(torch.ones(3), torch.ones(3))
    with pytest.raises(dist.DistBackendError, match=r"TwoTensor.*no rank has heard of this call"):
        sum_of(group, wrapper, True)
    with pytest.raises(dist.DistBackendError, match="TwoTensor"):
        group.issue(DEVICE, lambda table: table.all_to_all([torch.ones(3)] * 2, [torch.ones(3), wrapper]), True, 5.0)
    assert opened == []


def test_what_is_empty_is_not_run(group, engine):
    assert sum_of(group, torch.zeros(0), True).wait()
    assert engine.calls == []


def test_all_to_all_takes_equal_blocks_only(group, engine):
    outputs, inputs = torch.zeros(4), torch.arange(4.0)
    group.issue(DEVICE, lambda table: table.all_to_all_single(outputs, inputs, [], []), False, 5.0)
    assert engine.calls[0][:3] == (CollectiveCall("alltoall", "uint8", 8), inputs.data_ptr(), outputs.data_ptr())
    with pytest.raises(UnsupportedError, match="blocks of 4 to 12 bytes"):
        group.issue(DEVICE, lambda table: table.all_to_all_single(outputs, inputs, [1, 3], [2, 2]), False, 5.0)
    assert len(engine.calls) == 1


def test_all_to_all_in_place_sends_a_copy(group, engine, runtime):
    tensor = torch.arange(4.0)
    group.issue(DEVICE, lambda table: table.all_to_all_single(tensor, tensor, [], []), True, 5.0)
    assert engine.calls[0][1] != tensor.data_ptr()
    assert ("keep", tensor.data_ptr(), "group") in runtime.log


def test_a_future_is_complete_at_once(group, runtime):
    tensor = torch.ones(2)
    runtime.ran = False
    work = sum_of(group, tensor, True)
    assert work.get_future().done()
    assert work.get_future() is work.get_future()
    assert work.get_future().value()[0] is tensor
    assert runtime.log[-1] == ("future", "group")


def test_a_work_has_run_when_its_event_has_come(group, runtime):
    runtime.ran = False
    work = sum_of(group, torch.ones(2), True)
    assert not work.is_completed()
    assert work.wait(), "the host does not wait"
    with pytest.raises(DeadlineError, match=r"waited 0\.02 s for all_reduce"):
        work.wait(timedelta(seconds=0.02))
    threading.Timer(0.05, lambda: setattr(runtime, "ran", True)).start()
    assert work.wait(timedelta(seconds=30))
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert len(work.result()) == 1


def test_a_barrier_makes_the_host_wait(group, runtime):
    runtime.ran = False
    work = group.issue(DEVICE, lambda table: table.barrier(), False, 5.0)
    threading.Timer(0.05, lambda: setattr(runtime, "ran", True)).start()
    work.wait()
    assert runtime.ran


def test_what_cannot_be_enqueued_fails_at_once_and_is_torchs(group, engine):
    engine.fails = UnsupportedError("no program of the plan serves it")
    with pytest.raises(dist.DistBackendError, match="no program") as failed:
        sum_of(group, torch.ones(1), True)
    assert isinstance(failed.value, UnsupportedError)
    engine.fails = None
    assert sum_of(group, torch.ones(1), True).wait(), "nothing was enqueued: the group goes on"


def test_a_kernel_that_gives_up_ends_the_group(group, engine, runtime):
    before = sum_of(group, torch.ones(1), True)
    assert before.is_success()
    runtime.ran = False
    work = sum_of(group, torch.ones(1), True)
    engine.says = CommunicationError("a kernel gave up waiting")
    until(lambda: "abort" in engine.ended)  # the watching thread looks by itself
    assert runtime.watching
    with pytest.raises(dist.DistBackendError, match="gave up"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), CommunicationError)
    assert before.exception() is None, "it had ended before"
    with pytest.raises(dist.DistBackendError, match="gave up"):
        sum_of(group, torch.ones(1), False)


def test_a_wait_in_the_host_ends_with_the_kernels_error(group, engine, runtime):
    runtime.ran = False
    work = group.issue(DEVICE, lambda table: table.barrier(), False, 50.0)
    threading.Timer(0.05, lambda: setattr(engine, "says", CommunicationError("gave up"))).start()
    with pytest.raises(RuntimeError, match="gave up"):
        work.wait()


def test_a_call_that_does_not_run_in_time_ends_the_group(group, engine, runtime):
    runtime.ran = False
    work = sum_of(group, torch.ones(1), True, timeout_s=0.05)
    until(lambda: "abort" in engine.ended)
    with pytest.raises(dist.DistBackendError, match=r"all_reduce: Timed out - .*not ended on the GPU within 0\.05 s"):
        work.wait()


def test_calls_that_run_in_time_do_not(group, engine):
    for _ in range(3):
        sum_of(group, torch.ones(1), True, timeout_s=0.05)
    time.sleep(0.4)
    assert engine.ended == []


def test_nothing_is_made_or_asked_for_in_a_capture(group, engine, runtime):
    runtime.captures = True
    with pytest.raises(UnsupportedError, match="make one call before the capture"):
        sum_of(group, torch.ones(1), False)
    runtime.captures = False
    sum_of(group, torch.ones(1), False)
    runtime.captures, runtime.ran = True, False
    work = sum_of(group, torch.ones(1), True, timeout_s=0.01)
    assert work.wait(timedelta(seconds=1))
    assert work.is_completed()
    runtime.captures = False
    time.sleep(0.3)
    assert engine.ended == [], "a recorded call has no deadline"


def test_an_abort_tells_the_engine_and_refuses_what_follows(group, engine):
    sum_of(group, torch.ones(1), False)
    group.abort()
    assert engine.ended == ["abort", "close"]
    with pytest.raises(CommunicationError, match="closed"):
        sum_of(group, torch.ones(1), False)


def test_while_a_profiler_runs_calls_are_recorded(group):
    with torch.profiler.profile(record_shapes=True) as profile:
        sum_of(group, torch.ones(2, 3), True).wait()
    found = [(event.name, event.input_shapes) for event in profile.events() if event.name.startswith("blink")]
    assert found == [("blink:all_reduce", [[2, 3]])]


def test_one_rank_alone_copies(runtime):
    group = cuda_group.CudaGroup(0, 1, cuda_group.opener(dist.HashStore(), 0, 1, runtime), runtime)
    source, target = torch.ones(2), torch.zeros(2)
    group.issue(DEVICE, lambda table: table.all_gather_single([target], [source]), False, 5.0)
    group.issue(DEVICE, lambda table: table.all_reduce([target], SUM), False, 5.0)
    copies = [entry for entry in runtime.log if entry[0] == "copy_bytes"]
    assert copies == [("copy_bytes", target.data_ptr(), source.data_ptr(), 8, 1)]
    factor = dist._make_nccl_premul_sum(2.0)
    with pytest.raises(UnsupportedError, match="multiply the tensor"):
        group.issue(DEVICE, lambda table: table.all_reduce([target], factor), False, 5.0)
    group.close()
