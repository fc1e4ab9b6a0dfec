"""The ``torch.distributed`` backend ``"blink"``; importing this package registers it.

    import torch.distributed as dist
    import blinkccl.torch_backend            # needless if the package is installed: torch loads it by its entry point
    dist.init_process_group("blink")         # or "cpu:blink,cuda:nccl"

torch calls :class:`~blinkccl.torch_backend.process_group.BlinkProcessGroup`, a Python subclass of ``ProcessGroup``,
because the dispatcher of a C++ backend costs more than this Python call. From there a call passes these modules:

    process_group   c10d's method names, old and new, and their options; selection by device
    call_table      one table: each of these methods as our collectives on flat memory
    memory          tensors as flat memory: in place, or through a scratch buffer and a copy
    issue           in order, at once, in steps or in the background, with a timeout
    shown           calls for profilers and other tools that watch torch's dispatcher

It ends at a group of ranks: of this host (runtime/host_group) or of several (runtime/spanning_group). The result is a
``Work`` (:mod:`~blinkccl.torch_backend.work`). Guarantees:

- The calls of one process group run in the order of issue, from any thread.
- ``async_op=False`` runs in the caller's thread. ``async_op=True`` waits for no peer longer than it takes to wake a
  thread, because a peer may first wait for this rank in another group. A small call then sends where it is made and
  receives where it is awaited.
- Messages (send, recv, all_to_all) are not part of that order.
- Every call ends within its timeout: that of its options, or else that of its group. The error is both an error of
  :mod:`blinkccl.errors` and a ``torch.distributed.DistBackendError``.
- ``"blink"`` serves CPU tensors. A string with devices names the backends for others: ``"cpu:blink,cuda:nccl"``. Calls
  of NCCL use our trees if ``blink run`` starts the program.

:mod:`~blinkccl.torch_backend.hooks` is for programs that keep gloo or NCCL as their backend.
Written for torch 2.11 to 2.15; docs/pytorch.md lists the tests by version.
"""

from __future__ import annotations

from typing import Any

from blinkccl.torch_backend.counters import stats

__all__ = ["register", "stats"]

NAME = "blink"


def register() -> None:
    """Register ``"blink"`` for CPU tensors, unless it is registered or torch lacks ``distributed``."""
    import torch.distributed as dist

    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: object, _backend_options: object) -> Any:
    """Create a group for ``init_process_group`` and ``new_group``, with torch's ``_DistributedBackendOptions``."""
    from blinkccl.torch_backend.process_group import create  # torch may call us while it is being imported

    return create(options)


register()
