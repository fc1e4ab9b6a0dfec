"""Counters of all process groups of this process, summed over their transports (:meth:`Group.stats`).

They prove that a collective used our engine and not another library.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Protocol


class Counting(Protocol):
    """The part of a process group that has counters."""

    def stats(self) -> dict[str, int]:
        """Counters since the group was made."""


_open: list[Counting] = []
_closed: Counter[str] = Counter()


def watch(group: Counting) -> None:
    """Add ``group`` to the sums of :func:`stats`."""
    _open.append(group)


def settle(group: Counting) -> None:
    """Keep the counters of a group that ends."""
    if group in _open:
        _open.remove(group)
        _closed.update(group.stats())


def stats() -> dict[str, int]:
    """The sums over all process groups of this process, including those that have ended.

    Examples
    --------
    >>> import blinkccl, torch.distributed as dist
    >>> dist.init_process_group("blink", store=dist.HashStore(), rank=0, world_size=1)
    >>> sorted(blinkccl.torch.stats())[:3]
    ['calls', 'crossed_bytes', 'direct_read_bytes']
    >>> dist.destroy_process_group()
    """
    total = Counter(_closed)
    for group in _open:
        total.update(group.stats())
    return dict(total)


def _forget() -> None:
    """Count from zero in a forked child, which has no rank in its parent's groups."""
    _open.clear()
    _closed.clear()


os.register_at_fork(after_in_child=_forget)
