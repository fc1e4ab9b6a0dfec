"""What ran here, and by what: the counters of all process groups that this process has made.

Counters are what their transports count (:meth:`Group.stats`), summed. They prove that a collective went
through our engine and not through another library that was asked for help.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinkccl.runtime.group import Group

_open: list[Group] = []
_closed: Counter[str] = Counter()


def watch(group: Group) -> None:
    """Adds ``group`` to what :func:`stats` sums."""
    _open.append(group)


def settle(group: Group) -> None:
    """Keeps the counters of one that ends."""
    if group in _open:
        _open.remove(group)
        _closed.update(group.stats())


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
    for group in _open:
        total.update(group.stats())
    return dict(total)
