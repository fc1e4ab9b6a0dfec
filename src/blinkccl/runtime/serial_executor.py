"""A serial executor: it runs calls in the order of submission, on one thread that the first call starts."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from blinkccl.errors import CommunicationError

_Task = tuple[Callable[[], None], "Future[None]"]


class Steps(Protocol):
    """A call that runs in steps, in any thread, and stores its error."""

    ended: bool

    def go_on(self, wait: bool) -> None:
        """Continue until the call would have to wait, or (``wait``) to its end."""


class SerialExecutor:
    """A queue of calls, and the thread ``name`` that runs them one after another.

    A caller that holds :attr:`lock` may run a call itself while the queue is :attr:`idle`. Calls in steps run in their
    callers' threads as long as there are no others.
    """

    def __init__(self, name: str) -> None:
        # Reentrant: the endpoint refuses a call from a signal handler inside a call, which must not wait for itself.
        self.lock = threading.RLock()
        self.idle = True  # no call is queued or running; read without the lock on the fast path
        self._name = name
        self._count = 0
        self._counting = threading.Lock()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._by_steps: deque[Steps] = deque()  # before all tasks
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queue ``call``; its future is done when the call has ended."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # a collective cannot be cancelled, because other ranks take part
        with self._counting:
            if self._closed:
                raise CommunicationError("the group is closed")
            if self._by_steps:
                self._put(self._finish_steps, Future())
            self._put(call, future)
        return future

    def start(self, call: Steps) -> None:
        """Queue ``call`` and continue the queued calls in steps; behind other calls it runs as one of them."""
        with self._counting:
            by_steps = self._count == len(self._by_steps) and not self._closed
            if by_steps:
                self._count += 1
                self.idle = False
                self._by_steps.append(call)
        if not by_steps:
            self.submit(lambda: call.go_on(True))
        elif self.lock.acquire(blocking=False):
            try:
                self._go_on(wait=False)
            finally:
                self.lock.release()

    def finish(self, call: Steps) -> None:
        """Return when ``call``, which was started here, has ended."""
        self._finish_steps()
        if not call.ended:
            self.submit(_nothing).result()

    @property
    def busy(self) -> bool:
        """True if a call is queued or running, in any thread."""
        if not self.idle or not self.lock.acquire(blocking=False):
            return True
        self.lock.release()
        return False

    def close(self) -> None:
        """Run the queued calls, then end the thread."""
        self._finish_steps()
        with self._counting:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._tasks.put(None)
            thread.join()

    def _put(self, call: Callable[[], None], future: Future[None]) -> None:
        self._count += 1
        self.idle = False
        self._tasks.put((call, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _finish_steps(self) -> None:
        with self.lock:
            self._go_on(wait=True)

    def _go_on(self, wait: bool) -> None:
        while self._by_steps:
            self._by_steps[0].go_on(wait)
            if not self._by_steps[0].ended:
                return
            with self._counting:
                self._by_steps.popleft()
                self._count -= 1
                self.idle = self._count == 0

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            call, future = task
            error: BaseException | None = None
            try:
                with self.lock:
                    call()
            except BaseException as raised:
                error = raised
            with self._counting:
                self._count -= 1
                self.idle = self._count == 0
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
            del task, call, future, error  # they refer to arrays, and the next call may come much later


def _nothing() -> None:
    return
