"""What ran here, and by what: the counters of all process groups that this process has made.

Counters are what their transports count (:meth:`Transport.stats`), summed. They prove that a collective went
through our engine and not through another library that was asked for help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol


class Counting(Protocol):
    """Whatever counts."""

    def stats(self) -> Mapping[str, int]: ...


_open: list[Counting] = []
_closed: Counter[str] = Counter()


def watch(counting: Counting) -> None:
    """Adds ``counting`` to what :func:`stats` sums."""
    _open.append(counting)


def settle(counting: Counting) -> None:
    """Keeps the counters of one that ends."""
    if counting in _open:
        _open.remove(counting)
        _closed.update(counting.stats())


def stats() -> dict[str, int]:
    """The sums over all process groups of this process, also of those that are gone.

    Examples
    --------
    >>> import blinkccl, torch.distributed as dist
    >>> dist.init_process_group("blink", store=dist.HashStore(), rank=0, world_size=1)
    >>> sorted(blinkccl.torch.stats())[:3]
    ['calls', 'crossed_bytes', 'direct_read_bytes']
    >>> dist.destroy_process_group()
    """
    total = Counter(_closed)
    for counting in _open:
        total.update(counting.stats())
    return dict(total)
