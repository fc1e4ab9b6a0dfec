"""DDP communication hooks: gradients by blink in a program whose backend is gloo or NCCL.

    group = blinkccl.torch_backend.hooks.group()              # on all ranks, after init_process_group("gloo")
    model.register_comm_hook(group, blinkccl.torch_backend.hooks.average)
    model.register_comm_hook(group, blinkccl.torch_backend.hooks.average_in_bfloat16)

torch's own hooks (``fp16_compress_hook``, PowerSGD) work on such a group as well. torch compares these functions'
annotations as objects: no ``from __future__ import annotations`` here.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from blinkccl.torch_backend import register


def group(ranks: Sequence[int] | None = None, **options: Any) -> Any:
    """A process group of backend blink beside those that the program has: the state of the hooks.

    Parameters
    ----------
    ranks
        Its ranks in the world; None: all. Every rank of the world calls this.
    options
        Of ``torch.distributed.new_group``, e.g. ``timeout``.
    """
    register()
    return dist.new_group(None if ranks is None else list(ranks), backend="blink", **options)


def average(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the gradients: one AllReduce in place; ``state`` is a group from :func:`group`.

    DDP without a hook divides by the number of ranks before the sum, we after it: the same bits where that number is a
    power of two, one rounding fewer where it is not.
    """
    return _averaged(state, bucket.buffer())


def average_in_bfloat16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the gradients, which travel as bfloat16: half the bytes, with 8 bits of precision.

    Sums are taken in float32 where several gradients meet. torch's ``bf16_compress_hook`` does the like, on NCCL only.
    """
    gradients = bucket.buffer()

    def restore(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        return gradients.copy_(future.value())

    return _averaged(state, gradients.to(torch.bfloat16)).then(restore)


def _averaged(state: Any, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=state, async_op=True)
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return averaged
