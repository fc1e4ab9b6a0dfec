"""A ``Work`` that has ended, and one in progress: waiting, futures, errors."""

import copy
import pickle
import threading
import time
from importlib import import_module

import pytest

from blinkccl import errors
from blinkccl.errors import (
    BlinkError,
    DeadlineError,
    PeerLostError,
    RendezvousTimeout,
    StalledError,
    UnsupportedError,
    VerificationError,
)
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
work = import_module("blinkccl.torch_backend.work")
for_torch = import_module("blinkccl.torch_backend.failure").for_torch


def ended_later(pending, **how):
    threading.Timer(0.05, lambda: pending.end(**how)).start()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_future_completes_by_itself(when):
    pending = work.PendingWork([torch.ones(2)], "all_reduce")
    if when == "before":
        pending.end()
    seen = []
    future = pending.get_future().then(lambda done: seen.append(threading.current_thread().name) or done.value()[0] + 1)
    if when == "after":
        pending.end()
    assert future.wait().tolist() == [2, 2]
    assert pending.get_future() is pending.get_future()
    assert seen[0] == (threading.current_thread().name if when == "before" else "blink-future-0_0")


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_reaches_all_who_wait(when):
    pending = work.PendingWork([torch.ones(2)], "all_reduce")
    error = for_torch(PeerLostError(1, "it ended"))
    if when == "before":
        pending.end(error)
    future = pending.get_future()
    chained = future.then(lambda done: done.value())
    if when == "after":
        ended_later(pending, error=error)
    for wait in (pending.wait, pending.result, future.wait, chained.wait):
        with pytest.raises(RuntimeError, match="rank 1 was lost"):
            wait()
    assert pending.exception() is error
    assert pending.is_completed()
    assert not pending.is_success()


def test_only_a_received_message_has_a_source():
    pending = work.PendingWork([], "send")
    pending.end()
    with pytest.raises(RuntimeError, match="send has no source rank"):
        pending.source_rank()
    received = work.PendingWork([], "recvAnySource")
    received.end(source=3)
    assert received._source_rank() == 3


def test_ending_does_not_wait_for_callbacks():
    """The transport's thread ends a work, and others wait for this thread."""
    pending, slow = work.PendingWork([torch.ones(1)], "all_reduce"), threading.Event()
    future = pending.get_future().then(lambda done: slow.wait(10))
    begun = time.monotonic()
    pending.end()
    assert time.monotonic() - begun < 5
    assert pending.wait()
    assert not future.done()
    slow.set()
    assert future.wait()


# ---- our errors are torch's too, without any loss

ERRORS = [
    BlinkError("plain"),
    PeerLostError(2, "its process ended", pid=77),
    RendezvousTimeout([1, 3], [0, 2], "waited 5 s"),
    UnsupportedError("no such thing"),
    VerificationError(["rank 0 sends nothing", "rank 1 waits"]),
    StalledError("stuck"),
]
ERRORS += [
    kind("what, where, what to do")
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BlinkError) and kind not in map(type, ERRORS)
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_both_classes_one_message_also_after_it_travelled(error):
    """The error alone, as one of torch's, and twice; and its class, of which DataLoader makes an error."""
    made = for_torch(error)
    assert type(made).__name__ == type(error).__name__
    assert for_torch(made) is made
    assert pickle.loads(pickle.dumps(type(made))) is type(made)
    for each in (made, pickle.loads(pickle.dumps(made)), copy.copy(made), pickle.loads(pickle.dumps(copy.copy(made)))):
        assert isinstance(each, type(error))
        assert isinstance(each, torch.distributed.DistBackendError)
        assert (str(each), vars(each)) == (str(error), vars(error))
    plain = pickle.loads(pickle.dumps(error))
    assert (type(plain), str(plain), vars(plain)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_worker_of_torchs_hands_its_error_on(error):
    try:
        raise for_torch(error)
    except BlinkError:
        wrapped = torch._utils.ExceptionWrapper(where="in a worker")
    with pytest.raises(RuntimeError, match=r"(?s)^Caught .* in a worker.*Original Traceback") as arrived:
        pickle.loads(pickle.dumps(wrapped)).reraise()
    again = pickle.loads(pickle.dumps(arrived.value))
    assert (type(again), str(again)) == (type(arrived.value), str(arrived.value))


def test_a_timeout_says_so_in_torchs_words():
    assert str(for_torch(DeadlineError("rank 0 waited"), "barrier")) == "barrier: Timed out - rank 0 waited"
    assert str(for_torch(BlinkError("lost"), "barrier")) == "lost"
    late = for_torch(DeadlineError("is the deadline (BLINK_TIMEOUT) too short?"), "barrier")
    assert str(late).endswith("is the deadline (torch's timeout) too short?")
