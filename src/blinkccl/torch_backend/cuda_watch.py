"""The failure detector of calls on a GPU: a thread per group, as nobody else may be looking.

A host that waits in ``torch.cuda.synchronize()`` sees nothing, and other ranks learn that a kernel has given up only
from the rank that looks. So this thread looks: whether kernels have given up, and whether the oldest call has run by
its timeout. Either ends the group.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from blinkccl.errors import BlinkError, DeadlineError
from blinkccl.torch_backend.cuda_runtime import CudaRuntime

LOOK_EVERY_S = 0.1


class Watch:
    """Watches the calls of one group on one device.

    Parameters
    ----------
    look
        What kernels have said: None, or an error.
    fail
        Called once, in the watching thread, with what ends the group.
    """

    def __init__(
        self,
        runtime: CudaRuntime,
        look: Callable[[], BlinkError | None],
        fail: Callable[[BlinkError], None],
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._runtime = runtime
        self._look = look
        self._fail = fail
        self._every_s = every_s
        self._calls: deque[tuple[Any, str, float, float]] = deque()  # appended and popped at its ends: needs no lock
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, event: Any, title: str, timeout_s: float) -> None:
        """A call that was enqueued; calls run in the order in which they are added."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="blink-cuda-watch", daemon=True)
            self._thread.start()
        self._calls.append((event, title, timeout_s, time.monotonic() + timeout_s))

    def close(self) -> None:
        """Watches no more."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._calls.clear()

    def _run(self) -> None:
        self._runtime.begin_watching()
        while not self._closing.wait(self._every_s):
            error = self._look() or self._overdue()
            if error is not None:
                self._fail(error)
                return

    def _overdue(self) -> BlinkError | None:
        calls = self._calls
        while calls and self._runtime.done(calls[0][0]):
            calls.popleft()
        if not calls or time.monotonic() < calls[0][3]:
            return None
        _, title, timeout_s, _ = calls[0]
        return DeadlineError(
            f"{title} has not ended on the GPU within {timeout_s:g} s; a rank has not made this call, or the streams "
            "of two groups wait for each other; the group is aborted on all ranks"
        )
