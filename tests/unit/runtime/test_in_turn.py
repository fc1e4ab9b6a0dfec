"""Calls in the order in which they were handed in, on one thread."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from blinkccl.errors import CommunicationError
from blinkccl.runtime.in_turn import InTurn

WAIT_S = 10.0


@pytest.fixture
def turns() -> Iterator[InTurn]:
    made = InTurn("test")
    yield made
    made.close()


def test_no_thread_before_there_is_work_and_one_afterwards(turns: InTurn) -> None:
    before = threading.active_count()
    assert turns.idle
    for _ in range(5):
        turns.submit(lambda: None).result(WAIT_S)
    assert threading.active_count() == before + 1


def test_calls_are_made_in_order_by_one_thread(turns: InTurn) -> None:
    made: list[tuple[int, int]] = []
    futures = [turns.submit(lambda n=n: made.append((n, threading.get_ident()))) for n in range(100)]
    for future in futures:
        future.result(WAIT_S)
    assert [n for n, _ in made] == list(range(100))
    assert len({thread for _, thread in made}) == 1
    assert made[0][1] != threading.get_ident()


def test_idle_and_busy_say_whether_something_is_under_way(turns: InTurn) -> None:
    go = threading.Event()
    future = turns.submit(lambda: go.wait(WAIT_S) and None)
    assert not turns.idle
    assert turns.busy
    go.set()
    future.result(WAIT_S)
    assert turns.idle
    assert not turns.busy


def test_busy_while_a_caller_makes_a_call_itself(turns: InTurn) -> None:
    inside, go = threading.Event(), threading.Event()

    def call() -> None:
        with turns.lock:
            inside.set()
            go.wait(WAIT_S)

    caller = threading.Thread(target=call)
    caller.start()
    assert inside.wait(WAIT_S)
    assert turns.idle
    assert turns.busy
    go.set()
    caller.join(WAIT_S)
    assert not turns.busy


def test_an_error_is_its_calls_own_and_the_next_is_made(turns: InTurn) -> None:
    def fail() -> None:
        raise KeyboardInterrupt("so")

    failed, next_one = turns.submit(fail), turns.submit(lambda: None)
    with pytest.raises(KeyboardInterrupt, match="so"):
        failed.result(WAIT_S)
    assert next_one.result(WAIT_S) is None
    assert turns.idle


def test_close_lets_queued_calls_be_made_and_takes_no_more() -> None:
    turns = InTurn("test")
    go = threading.Event()
    made: list[int] = []
    turns.submit(lambda: go.wait(WAIT_S) and None)
    for n in range(3):
        turns.submit(lambda n=n: made.append(n))
    threading.Timer(0.05, go.set).start()
    turns.close()
    assert made == [0, 1, 2]
    with pytest.raises(CommunicationError, match="closed"):
        turns.submit(lambda: None)
    turns.close()


def test_close_without_work_and_from_its_own_thread() -> None:
    InTurn("test").close()
    turns = InTurn("test")
    turns.submit(turns.close).result(WAIT_S)
    turns.close()


def test_nothing_of_a_call_is_kept_once_it_is_done(turns: InTurn) -> None:
    class Large:
        pass

    held = Large()
    watched = weakref.ref(held)
    turns.submit(lambda held=held: None).result(WAIT_S)
    del held
    turns.submit(lambda: None).result(WAIT_S)  # the thread is past the first by now
    gc.collect()
    assert watched() is None
