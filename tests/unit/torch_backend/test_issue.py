"""Scheduling of calls: at once, in the background, together; and the state after a failure."""

import ctypes
import threading
from importlib import import_module
from typing import Any

import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import BlinkError, DeadlineError
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
issue = import_module("blinkccl.torch_backend.issue")
requests = import_module("blinkccl.torch_backend.call_table")

SUM = CollectiveCall("allreduce", "float32", 1)
BACKGROUND = "blink-torch"


def sum_now(issuer):
    """The short way of a sum; None if it is not open."""
    tensor = torch.zeros(1)
    address = tensor.data_ptr()
    return issuer.shortly(issuer.short("all_reduce", SUM), address, address, (tensor,), False, 5.0)


class Scripted:
    """A transport that records calls; collectives wait while :attr:`free` is clear."""

    size = 2
    lock = threading.RLock()

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: list[str] = []
        self.free = threading.Event()
        self.free.set()
        self.fails: BlinkError | None = None
        self.fill = 0  # the result of collectives on bytes

    def run(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        self.threads.append(threading.current_thread().name)
        assert self.free.wait(20)
        if self.fails is not None:
            raise self.fails
        call, _, recv = arguments[:3]
        if self.fill and recv and call.dtype == "uint8":
            ctypes.memset(recv, self.fill, call.elements)

    def names(self) -> list[str]:
        """The collectives that ran."""
        return [call[0].collective for call in self.calls]


@pytest.fixture
def transport():
    return Scripted()


@pytest.fixture
def issuer(transport):
    made = issue.Issuer(transport)
    yield made
    transport.free.set()
    made.close()


@pytest.fixture
def table():
    return requests.CallTable(rank=0, size=2)


def test_a_synchronous_call_runs_at_once(issuer, transport, table):
    tensor = torch.zeros(3, dtype=torch.uint8)
    transport.fill = 7
    work = issuer.issue(table.broadcast([tensor], root=1), False, 5.0)
    assert work.is_completed()
    address = tensor.data_ptr()
    assert transport.calls == [(CollectiveCall("broadcast", "uint8", 3, root=1), address, address, None, 5.0)]
    assert transport.threads == [threading.current_thread().name]
    assert tensor.tolist() == [7, 7, 7]


def test_an_asynchronous_call_does_not(issuer, transport, table):
    tensor = torch.zeros(2, 3, dtype=torch.uint8).t()
    transport.fill = 7
    transport.free.clear()
    work = issuer.issue(table.broadcast([tensor, torch.ones(1)], root=1), True, 5.0)
    assert not work.is_completed()
    assert not work.is_success()
    assert not tensor.any()
    transport.free.set()
    assert work.wait()
    assert transport.threads == [BACKGROUND] * 2
    assert tensor.flatten().tolist() == [7] * 6


def test_a_synchronous_call_waits_for_its_turn(issuer, transport, table):
    transport.free.clear()
    first = issuer.issue(table.broadcast([torch.ones(1)], root=1), True, 5.0)
    assert not sum_now(issuer)
    threading.Timer(0.05, transport.free.set).start()
    second = issuer.issue(table.barrier(torch.zeros(1, dtype=torch.uint8)), False, 5.0)
    assert first.is_completed()
    assert second.is_completed()
    assert transport.names() == ["broadcast", "allreduce"]
    assert transport.threads == [BACKGROUND] * 2
    assert sum_now(issuer), "afterwards calls run at once again"
    assert transport.threads[-1] == threading.current_thread().name


def test_nothing_to_do_is_done(issuer, transport, table):
    for asynchronous in (False, True):
        work = issuer.issue(table.all_reduce([torch.zeros(0)], torch.distributed.ReduceOp.SUM), asynchronous, 5.0)
        assert work.wait()
        assert work.is_completed()
    assert transport.calls == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failure_is_torchs_and_leaves_the_tensor(issuer, transport, table, asynchronous):
    tensor = torch.zeros(2, 3, dtype=torch.uint8).t()
    transport.fill, transport.fails = 7, DeadlineError("waited")
    request = table.broadcast([tensor], root=1)
    with pytest.raises(RuntimeError, match="broadcast: Timed out - waited") as failed:
        issuer.issue(request, asynchronous, 5.0).wait()
    assert isinstance(failed.value, DeadlineError)
    assert not tensor.any()


def test_the_steps_of_a_call_end_with_the_first_failure(issuer, transport, table):
    transport.fails = BlinkError("first")
    work = issuer.issue(table.broadcast([torch.ones(1), torch.ones(1)], root=1), True, 5.0)
    with pytest.raises(BlinkError, match="first"):
        work.wait()
    assert transport.names() == ["broadcast"]


def test_after_the_end_nothing_is_taken(issuer, transport, table):
    issuer.close()
    with pytest.raises(RuntimeError, match="closed"):
        issuer.issue(table.broadcast([torch.ones(1)], root=1), True, 5.0)


def test_coalesced_calls_are_one_work(issuer, transport, table):
    transport.free.clear()
    issuer.start_coalescing()
    for number in range(3):
        request = table.broadcast([torch.full((1,), float(number))], root=1)
        assert not issuer.issue(request, False, 5.0).is_completed()
    assert not sum_now(issuer)
    together = issuer.end_coalescing()
    assert not together.is_completed()
    transport.free.set()
    assert together.wait()
    assert transport.names() == ["broadcast"] * 3
    assert sum_now(issuer), "coalescing has ended"


def test_the_short_way_fails_as_the_long_one(issuer, transport):
    transport.fails = DeadlineError("waited")
    with pytest.raises(RuntimeError, match="all_reduce: Timed out - waited"):
        sum_now(issuer)
