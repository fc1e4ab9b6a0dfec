"""Results of calls for torch: a ``Work`` that has ended, or one in progress.

DDP never calls ``wait``: it chains its work on a bucket to the future. So a future must complete by itself. A callback
may issue and await further collectives (PowerSGD does), so it must not run in the thread that these wait for.
Therefore separate threads complete futures. One completes, in order, the futures of calls by the program; a second one
those of calls by callbacks in the first, and so on. So all ranks' callbacks run in one order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Event, Lock, local
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from blinkccl.errors import DeadlineError
from blinkccl.torch_backend.eager import eager
from blinkccl.torch_backend.failure import for_torch


@eager
class BlinkWork(dist.Work):
    """Common base of all works."""

    __slots__ = ()

    def synchronize(self) -> None:
        self.wait()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None


@eager
class DoneWork(BlinkWork):
    """A call that has succeeded; ``tensors`` are its results. A constructor would double its cost."""

    __slots__ = ("tensors",)

    tensors: list[Tensor]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return self.tensors

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        return future


@eager
class PendingWork(BlinkWork):
    """A call in the background: its result tensors, which are its future's value, and its description."""

    ended = False
    _end: Event | None = None  # made by the first thread that has to wait
    _error: BaseException | None = None
    _source: int | None = None
    _promise: Any = None
    _future: Any = None

    def __init__(self, result: list[Tensor], what: str) -> None:
        super().__init__()
        self._result, self._what = result, what
        self._depth: int = getattr(_here, "depth", 0)

    def end(self, error: BaseException | None = None, source: int | None = None) -> None:
        """End the work; called once, in the thread that detects the end. ``source``: the rank that sent a message."""
        with _changing:
            self._error, self._source, self.ended = error, source, True
            promise = self._promise
        if self._end is not None:
            self._end.set()
        if promise is not None:
            _completer(self._depth).submit(promise.set_result, None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end, at most for ``timeout`` (DeadlineError: the call continues); raises its error."""
        if not self.ended:
            self._await(timeout.total_seconds() if timeout > timedelta(0) else None)
        if self._error is not None:
            raise self._error
        return True

    def _await(self, seconds: float | None) -> None:
        with _changing:
            if self._end is None:
                self._end = Event()
        if not self.ended and not self._end.wait(seconds):
            text = f"waited {seconds:g} s for {self._what}, which has not ended; is the peer there?"
            raise for_torch(DeadlineError(text))

    def is_completed(self) -> bool:
        return self.ended

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """The rank in the group that sent a received message; RuntimeError if none was received."""
        if self._source is None:
            raise RuntimeError(f"{self._what} has no source rank: only a receive that has ended has one")
        return self._source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """A future that completes by itself, with the tensors or with the error."""
        with _changing:
            if self._future is not None:
                return self._future
            self._promise = torch.futures.Future()
            # An error that then() raises is one for C++ too; set_exception's is a value that DDP cannot read.
            self._future = self._promise.then(self._settle())
            ended = self.ended
        if ended:
            self._promise.set_result(None)
        return self._future

    def _settle(self) -> Callable[[Any], list[Tensor]]:
        def settled(_: Any) -> list[Tensor]:
            if self._error is not None:
                raise self._error
            return self._result

        return settled


#: Held while a work changes its state; short, and never while another lock is taken.
_changing = Lock()

#: ``depth``: the number of nested callbacks that this thread runs.
_here = local()

_completers: dict[int, ThreadPoolExecutor] = {}
_making = Lock()


def _completer(depth: int) -> ThreadPoolExecutor:
    """The thread that completes futures of calls issued at ``depth``; its callbacks run at the next depth."""
    with _making:
        if depth not in _completers:
            deeper = partial(setattr, _here, "depth", depth + 1)
            _completers[depth] = ThreadPoolExecutor(1, f"blink-future-{depth}", deeper)
        return _completers[depth]


def _forget() -> None:
    """Clear the threads in a forked child, which has none of them."""
    global _changing, _making
    _changing, _making = Lock(), Lock()
    _completers.clear()


os.register_at_fork(after_in_child=_forget)


@eager
class AllWork(BlinkWork):
    """Several calls as one, which ends after all of them."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> Any:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Any:
        futures = torch.futures.collect_all([work.get_future() for work in self._works])
        return futures.then(lambda done: [tensor for future in done.value() for tensor in future.value()])
