"""A serial executor: calls in the order in which they were handed in, on one thread, started when first needed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from blinkccl.errors import CommunicationError

_Task = tuple[Callable[[], None], "Future[None]"]


class SerialExecutor:
    """A queue of calls and the thread, called ``name``, that makes them one after another.

    A caller may make a call itself, holding :attr:`lock`, as long as the queue is :attr:`idle`.
    """

    def __init__(self, name: str) -> None:
        # Reentrant: a signal handler in the middle of a call is refused by the endpoint, and does not wait for itself.
        self.lock = threading.RLock()
        self.idle = True  # nothing is queued or running here; read without the lock on the fast path
        self._name = name
        self._count = 0
        self._counting = threading.Lock()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queues ``call``; its future is done when it has been made."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # a collective that others take part in cannot be taken back
        with self._counting:
            if self._closed:
                raise CommunicationError("the group is closed")
            self._count += 1
            self.idle = False
            self._tasks.put((call, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        return future

    @property
    def busy(self) -> bool:
        """Whether a call is queued or being made, by whatever thread."""
        if not self.idle or not self.lock.acquire(blocking=False):
            return True
        self.lock.release()
        return False

    def close(self) -> None:
        """Lets queued calls be made and ends the thread."""
        with self._counting:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._tasks.put(None)
            thread.join()

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
            del task, call, future, error  # the next may be long in coming, and arrays hang on these
