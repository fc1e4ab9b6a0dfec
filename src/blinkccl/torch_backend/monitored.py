"""A barrier that names missing ranks: ``torch.distributed.monitored_barrier``.

It uses the group's store, so a rank that hangs in a collective cannot block it. Rank 0 waits for a key of each other
rank and announces the result. torch 2.11 to 2.13 offer this only for a backend named gloo; with these versions
call it on the group: ``dist.group.WORLD.monitored_barrier(timedelta(seconds=10))``.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from blinkccl.errors import DeadlineError
from blinkccl.torch_backend.failure import for_torch


class MonitoredBarrier:
    """The monitored barriers of one group, one after the other."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._number = 0

    def __call__(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Wait for all ranks, all together for ``timeout``.

        With ``wait_all_ranks`` rank 0 continues after the first missing rank, to name all of them. DeadlineError on
        rank 0 with the missing ranks, and on the others if rank 0 did not announce success.
        """
        self._number += 1
        prefix = f"blink/monitored/{self._number}"
        if self._rank == 0:
            self._lead(prefix, timeout, wait_all_ranks)
        else:
            self._follow(prefix, timeout)

    # The messages use gloo's words, which programs search for.

    def _lead(self, prefix: str, timeout: timedelta, wait_all_ranks: bool) -> None:
        end = time.monotonic() + timeout.total_seconds()
        milliseconds = f"{timeout / timedelta(milliseconds=1):g} ms"
        missing = []
        for peer in range(1, self._size):
            left = end - time.monotonic()
            if self._comes(f"{prefix}/{peer}", left):
                continue
            if left <= 0 and not wait_all_ranks:
                text = f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds}: {peer - 1} ranks joined"
                raise for_torch(DeadlineError(f"{text} by then, rank {peer} did not"))
            missing.append(peer)
            if not wait_all_ranks:
                break
        if not missing:
            self._store.set(f"{prefix}/passed", b"1")
            return
        named = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
        text = f"[Rank 0]: {named} failed to pass monitoredBarrier in {milliseconds}"
        raise for_torch(DeadlineError(f"{text}; see the output of these ranks"))

    def _follow(self, prefix: str, timeout: timedelta) -> None:
        self._store.set(f"{prefix}/{self._rank}", b"1")
        if not self._comes(f"{prefix}/passed", timeout.total_seconds()):
            text = f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received errors "
            text += "while waiting for send/recv from rank 0: no word from it within "
            text += f"{timeout / timedelta(milliseconds=1):g} ms; its own output names the ranks that did not come"
            raise for_torch(DeadlineError(text))

    def _comes(self, key: str, seconds: float) -> bool:
        """True if ``key`` is set within this time; returns at once if it is set already."""
        if self._store.check([key]):
            return True
        if seconds <= 0:
            return False
        try:
            # Torch counts in whole milliseconds, and 0 means no limit.
            self._store.wait([key], timedelta(seconds=max(0.001, seconds)))
        except RuntimeError:  # torch has a class of its own for each kind of store
            return False
        return True
