"""Calls run in the order of submission, on one thread."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from blinkccl.errors import CommunicationError
from blinkccl.runtime.serial_executor import SerialExecutor

WAIT_S = 10.0


@pytest.fixture
def executor() -> Iterator[SerialExecutor]:
    made = SerialExecutor("test")
    yield made
    made.close()


def test_calls_are_made_in_order_by_one_thread(executor: SerialExecutor) -> None:
    before = set(threading.enumerate())
    assert executor.idle
    made: list[tuple[int, int]] = []
    futures = [executor.submit(lambda n=n: made.append((n, threading.get_ident()))) for n in range(100)]
    for future in futures:
        future.result(WAIT_S)
    assert len(set(threading.enumerate()) - before) == 1
    assert [n for n, _ in made] == list(range(100))
    assert len({thread for _, thread in made}) == 1
    assert made[0][1] != threading.get_ident()


def test_idle_and_busy_show_running_calls(executor: SerialExecutor) -> None:
    go = threading.Event()
    future = executor.submit(lambda: go.wait(WAIT_S) and None)
    assert not executor.idle
    assert executor.busy
    go.set()
    future.result(WAIT_S)
    assert executor.idle
    assert not executor.busy


def test_busy_while_a_caller_makes_a_call_itself(executor: SerialExecutor) -> None:
    inside, go = threading.Event(), threading.Event()

    def call() -> None:
        with executor.lock:
            inside.set()
            go.wait(WAIT_S)

    caller = threading.Thread(target=call)
    caller.start()
    assert inside.wait(WAIT_S)
    assert executor.idle
    assert executor.busy
    go.set()
    caller.join(WAIT_S)
    assert not executor.busy


def test_an_error_is_its_calls_own_and_the_next_is_made(executor: SerialExecutor) -> None:
    def fail() -> None:
        raise KeyboardInterrupt("so")

    failed, next_one = executor.submit(fail), executor.submit(lambda: None)
    with pytest.raises(KeyboardInterrupt, match="so"):
        failed.result(WAIT_S)
    assert next_one.result(WAIT_S) is None
    assert executor.idle


def test_close_lets_queued_calls_be_made_and_takes_no_more() -> None:
    executor = SerialExecutor("test")
    go = threading.Event()
    made: list[int] = []
    executor.submit(lambda: go.wait(WAIT_S) and None)
    for n in range(3):
        executor.submit(lambda n=n: made.append(n))
    threading.Timer(0.05, go.set).start()
    executor.close()
    assert made == [0, 1, 2]
    with pytest.raises(CommunicationError, match="closed"):
        executor.submit(lambda: None)
    executor.close()


def test_close_without_work_and_from_its_own_thread() -> None:
    SerialExecutor("test").close()
    executor = SerialExecutor("test")
    executor.submit(executor.close).result(WAIT_S)
    executor.close()


class Steps:
    """A call in steps that can end when ``ready``, and records the threads of its steps."""

    def __init__(self, log: list[tuple[str, int]], name: str) -> None:
        self.log, self.name = log, name
        self.ready, self.ended = threading.Event(), False

    def go_on(self, patience_us: int | None) -> None:
        assert not self.ended
        if self.ready.wait(WAIT_S if patience_us is None else patience_us / 1e6):
            self.ended = True
            self.log.append((self.name, threading.get_ident()))


def test_calls_by_steps_are_made_in_order_where_somebody_asks(executor: SerialExecutor) -> None:
    log: list[tuple[str, int]] = []
    first, second, third = (Steps(log, name) for name in ("first", "second", "third"))
    second.ready.set()
    executor.start(first)
    executor.start(second)
    assert executor.busy
    assert not log
    first.ready.set()
    executor.start(third)
    assert [name for name, _ in log] == ["first", "second"]
    third.ready.set()
    executor.finish(third)
    assert executor.idle
    assert {thread for _, thread in log} == {threading.get_ident()}


def test_calls_by_steps_finish_before_later_submissions(executor: SerialExecutor) -> None:
    log: list[tuple[str, int]] = []
    first, second = Steps(log, "first"), Steps(log, "second")
    executor.start(first)
    between = executor.submit(lambda: log.append(("between", 0)))
    executor.start(second)  # behind another call, so it runs on the thread
    threading.Timer(0.05, first.ready.set).start()
    second.ready.set()
    between.result(WAIT_S)
    executor.finish(second)
    assert [name for name, _ in log] == ["first", "between", "second"]
    assert threading.get_ident() not in {thread for _, thread in log}
    assert executor.submit(lambda: None).result(WAIT_S) is None
    assert executor.idle


def test_a_call_by_steps_is_left_to_the_thread_where_another_holds_the_lock(executor: SerialExecutor) -> None:
    log: list[tuple[str, int]] = []
    call = Steps(log, "call")
    call.ready.set()
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with executor.lock:
            locked.set()
            done.wait(WAIT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait(WAIT_S)
    executor.start(call)
    executor.go_on()
    assert executor.busy
    assert executor.wakes == 0
    executor.finish(call)  # does not wait for the lock
    assert not call.ended
    assert executor.wakes == 1
    done.set()
    holder.join()
    executor.submit(lambda: None).result(WAIT_S)
    assert log == [("call", executor._thread.ident)]  # type: ignore[union-attr]


def test_a_signal_handler_within_a_step_neither_steps_nor_waits(executor: SerialExecutor) -> None:
    refusals: list[str] = []

    class Interrupted(Steps):
        def go_on(self, patience_us: int | None) -> None:
            executor.go_on()
            for use in (executor.finish_steps, executor.close):
                with pytest.raises(CommunicationError, match="this signal handler runs during a call") as refused:
                    use()
                refusals.append(str(refused.value))
            self.ended = True

    executor.start(Interrupted([], "outer"))
    assert len(refusals) == 2
    assert not executor.busy


def test_close_finishes_calls_by_steps() -> None:
    executor = SerialExecutor("test")
    left = Steps([], "left")
    executor.start(left)
    left.ready.set()
    executor.close()
    assert left.ended
    with pytest.raises(CommunicationError, match="closed"):
        executor.start(left)


def test_nothing_of_a_call_is_kept_once_it_is_done(executor: SerialExecutor) -> None:
    class Large:
        pass

    held = Large()
    watched = weakref.ref(held)
    executor.submit(lambda held=held: None).result(WAIT_S)
    del held
    executor.submit(lambda: None).result(WAIT_S)  # now the thread has finished the first
    gc.collect()
    assert watched() is None
