"""What a call on CUDA tensors returns, and the thread that notices when one does not end.

A call has been enqueued, and an event says when it has run. As with NCCL's: ``wait()`` lets the caller's current stream
wait, and not the caller, unless he gives a timeout or it is a barrier; a future is complete at once, and who takes its
value has his stream wait.

A host that waits in ``torch.cuda.synchronize()`` sees nothing, and other ranks learn that a kernel has given up only
from the rank that looks. So a thread per group looks: whether kernels have given up, and whether the oldest call has
run by its timeout. Either ends the group.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from blinkccl.errors import BlinkError, DeadlineError
from blinkccl.torch_backend.cuda_runtime import CudaRuntime
from blinkccl.torch_backend.eager import eager
from blinkccl.torch_backend.failure import for_torch
from blinkccl.torch_backend.work import BlinkWork

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 1e-3


@eager
class CudaWork(BlinkWork):
    """A call enqueued on ``stream``, with ``event`` behind it; nothing runs that could be asked for if ``captured``."""

    def __init__(
        self,
        runtime: CudaRuntime,
        device: torch.device,
        title: str,
        result: list[Tensor],
        stream: Any,
        event: Any,
        failed: Callable[[], BlinkError | None],
        *,
        captured: bool = False,
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._device = device
        self._title = title
        self._result = result
        self._stream = stream
        self._event = event
        self._failed = failed
        self._blocks = title == "barrier"  # its wait makes the host wait
        self._captured = captured
        self._ended = False
        self._succeeded = False  # the group had not failed when this call had run: later failures are others'
        self._error: BlinkError | None = None
        self._future: Any = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Lets the current stream wait for the call; with a ``timeout``, and after a barrier, the host too.

        DeadlineError if the timeout passes first: the call goes on. CommunicationError if a kernel of this group has
        given up.
        """
        self._raise_if_failed()
        self._runtime.wait_event(self._runtime.current_stream(self._device), self._event)
        if (self._blocks or timeout > timedelta(0)) and not self._captured:
            self._wait_here(timeout.total_seconds())
            self._raise_if_failed()  # kernels that give up end as well
        return True

    def is_completed(self) -> bool:
        return self._has_run() or self.exception() is not None

    def exception(self) -> BlinkError | None:
        if self._error is None and not self._succeeded:
            error = self._failed()
            self._error = None if error is None else for_torch(error, self._title)
            self._succeeded = self._ended and error is None
        return self._error

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """Complete at once, with the tensors."""
        if self._future is None:
            self._future = self._runtime.future(self._result, self._device, self._stream)
        return self._future

    def _has_run(self) -> bool:
        if not self._ended:
            self._ended = self._captured or self._runtime.done(self._event)
        return self._ended

    def _raise_if_failed(self) -> None:
        error = self.exception()
        if error is not None:
            raise error

    def _wait_here(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s if timeout_s > 0 else float("inf")
        pause = _FIRST_PAUSE_S
        while not self._has_run():
            self._raise_if_failed()
            if time.monotonic() >= end:
                text = f"waited {timeout_s:g} s for {self._title}, which has not ended; is the peer there?"
                raise for_torch(DeadlineError(text))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


LOOK_EVERY_S = 0.1


class Watch:
    """Watches the calls of one group on one device.

    ``look`` says what kernels have said; ``fail`` is called once, in the watching thread, with what ends the group.
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
