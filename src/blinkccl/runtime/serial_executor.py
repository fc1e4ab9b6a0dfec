"""A serial executor: it runs calls in the order of submission, on one thread that the first call starts.

A call in *steps* needs no thread. It advances in the threads that start it, look at it and wait for it.
"""

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

    def go_on(self, patience_us: int | None) -> None:
        """Continue until the call would have to wait for longer than this, or (None) to its end."""


class SerialExecutor:
    """A queue of calls, and the thread ``name`` that runs them one after another.

    A caller that holds :attr:`lock` may run a call itself while the queue is :attr:`idle`, after
    :meth:`finish_steps`. Calls in steps run before the queue. ``wakes`` counts the calls for the thread.
    """

    def __init__(self, name: str, lock: threading.RLock | None = None) -> None:
        # Reentrant: the endpoint refuses a call from a signal handler inside a call, which must not wait for itself.
        self.lock = threading.RLock() if lock is None else lock
        self.idle = True  # no call is queued, or runs in the thread; read without the lock on the fast path
        self.by_steps: deque[Steps] = deque()
        self.wakes = 0
        self._name = name
        self._count = 0
        self._counting = threading.Lock()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._stepping = False  # a thread that holds the lock continues calls in steps
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queue ``call``; its future is done when the call has ended."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # a collective cannot be cancelled, because other ranks take part
        with self._counting:
            if self._closed:
                raise CommunicationError("the group is closed")
            self._put(call, future)
        return future

    def start(self, call: Steps) -> None:
        """Begin ``call`` after the other calls in steps; behind queued calls it runs as one of them."""
        with self._counting:
            by_steps = self.idle and not self._closed
            if by_steps:
                self.by_steps.append(call)
        if by_steps:
            self.go_on()
        else:
            self.submit(lambda: call.go_on(None))

    def go_on(self, patience_us: int = 0) -> None:
        """Continue the calls in steps until one would have to wait for longer than this, unless a thread does so."""
        if self.by_steps and self.lock.acquire(blocking=False):
            try:
                self._go_on(patience_us)
            finally:
                self.lock.release()

    def finish(self, call: Steps) -> None:
        """Continue ``call`` to its end, or leave that to the thread if another thread holds the lock."""
        if self.lock.acquire(blocking=False):
            try:
                self._go_on(None, call)
            finally:
                self.lock.release()
        if not call.ended:
            self.hand_over()

    def hand_over(self) -> None:
        """Let the thread finish the calls in steps."""
        with self._counting:
            if self.by_steps and not self._closed:
                self._put(lambda: None, Future())

    def adopt(self, call: Steps) -> None:
        """Take over ``call``, which its caller began while it held the lock and there were no calls in steps."""
        with self._counting:
            self.by_steps.appendleft(call)  # another thread may have appended one that has not begun

    def finish_steps(self) -> None:
        """Finish the calls in steps; CommunicationError in a signal handler during one of them."""
        if self.by_steps:
            with self.lock:
                self._go_on(None)

    @property
    def busy(self) -> bool:
        """True if a call is queued or running, in any thread."""
        if not self.idle or self.by_steps or not self.lock.acquire(blocking=False):
            return True
        self.lock.release()
        return False

    def close(self) -> None:
        """Run the queued calls, then end the thread."""
        self.finish_steps()
        with self._counting:
            self._closed = True
            thread = self._thread
        self.finish_steps()  # begun meanwhile
        if thread is not None and thread is not threading.current_thread():
            self._tasks.put(None)
            thread.join()

    def _put(self, call: Callable[[], None], future: Future[None]) -> None:
        self._count += 1
        self.wakes += 1
        self.idle = False
        self._tasks.put((call, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _go_on(self, patience_us: int | None, last: Steps | None = None) -> None:
        """Continue the calls in steps up to ``last``; the caller holds the lock."""
        if self._stepping:
            if patience_us is None:
                raise CommunicationError(
                    "this signal handler runs during a call on the group, so it cannot use or close it; abort it, or "
                    "raise an exception"
                )
            return
        self._stepping = True
        try:
            while self.by_steps and not (last is not None and last.ended):
                first = self.by_steps[0]
                if not first.ended:
                    first.go_on(patience_us)
                if not first.ended:
                    return
                with self._counting:
                    self.by_steps.popleft()
        finally:
            self._stepping = False

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            call, future = task
            error: BaseException | None = None
            try:
                with self.lock:
                    self.finish_steps()
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
