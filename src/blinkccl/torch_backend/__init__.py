"""The ``torch.distributed`` backend ``"blink"``; importing this package registers it.

    import torch.distributed as dist
    import blinkccl.torch_backend            # not needed where the package is installed: torch finds it by itself
    dist.init_process_group("blink")         # or "cpu:blink,cuda:nccl"

What torch calls is :class:`~blinkccl.torch_backend.process_group.BlinkProcessGroup`, a Python subclass of
``ProcessGroup``; the dispatcher of a C++ backend costs more than this Python call. From there a call goes

    process_group   c10d's method names, old and new, and their options; which device?
    call_table      one table: each of these methods as collectives of ours on flat memory
    memory          tensors as flat memory: as they lie, or through a scratch buffer and a copy
    issue           in order, at once or in the background, with a deadline

to a group of ranks of this host (runtime/host_group) or of several (runtime/spanning_group), and back as a ``Work``
(:mod:`~blinkccl.torch_backend.work`). What promises hold:

- The calls of one process group run in the order in which they were issued, whatever thread issued them.
- ``async_op=False`` runs in the caller's thread. ``async_op=True`` returns before the call has run, always: it may
  wait for a peer that first waits for us in another group.
- Messages (send, recv, all_to_all) are no part of that order.
- Every call ends by its timeout (the group's, or that in its options). What it raises is an error of
  :mod:`blinkccl.errors` and a ``torch.distributed.DistBackendError`` at once.
- ``"blink"`` serves CPU tensors. A string with devices decides who serves others: ``"cpu:blink,cuda:nccl"``. What NCCL
  is asked for goes to our trees where the program is started by ``blink run``.

:mod:`~blinkccl.torch_backend.hooks` is for programs that keep gloo or NCCL as their backend.
Written for torch 2.11 to 2.15; docs/pytorch.md says what was tested where.
"""

from __future__ import annotations

from typing import Any

from blinkccl.torch_backend.counters import stats

__all__ = ["register", "stats"]

NAME = "blink"


def register() -> None:
    """Registers ``"blink"`` for CPU tensors; does nothing where that is done or ``distributed`` lacks."""
    import torch.distributed as dist

    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: object, _backend_options: object) -> Any:
    """What ``init_process_group`` and ``new_group`` call, with torch's ``_DistributedBackendOptions``."""
    from blinkccl.torch_backend.process_group import create  # torch may call us while it is being imported

    return create(options)


register()
