"""DDP communication hooks: gradients in shared memory, and by blink in a program whose backend is gloo or NCCL.

    blinkccl.torch.shared_buckets(model)                      # after init_process_group("blink")

    group = blinkccl.torch_backend.hooks.group()              # on all ranks, after init_process_group("gloo")
    blinkccl.torch.shared_buckets(model, group)
    model.register_comm_hook(group, blinkccl.torch_backend.hooks.average)
    model.register_comm_hook(group, blinkccl.torch_backend.hooks.average_in_bfloat16)

torch's own hooks (``fp16_compress_hook``, PowerSGD) work on such a group as well. torch compares these functions'
annotations as objects: no ``from __future__ import annotations`` here.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.runtime.heap import empty, process_heap
from blinkccl.torch_backend import register
from blinkccl.torch_backend.process_group import BlinkProcessGroup


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


def shared_buckets(model: Any, group: Any = None) -> None:
    """Keeps what DDP or FSDP2 communicates in memory that all ranks of a host share: nothing is copied on the way.

    Model and training loop stay as they are. A bucket of DDP's moves when it is first reduced: the storage under its
    tensor and all views of that gets memory of :func:`blinkccl.empty`, so gradients that are views of buckets move with
    it. DDP makes new buckets after the first step, and these move too. The mean is that of :func:`average`. With FSDP2
    it is the memory in which parameters are gathered and gradients scattered, where torch asks the backend for it.

    Parameters
    ----------
    model
        A ``DistributedDataParallel`` without a communication hook, or what ``fully_shard`` returned, its parameters on
        the CPU. All ranks call this.
    group
        For DDP: of backend blink, with the ranks of ``model.process_group``; None: that group itself.

    Raises
    ------
    UsageError
        If ``model`` is neither, or the group is not blink's.
    UnsupportedError
        If the parameters are not on the CPU, or torch is older than 2.12 and has no way to move a storage.
    """
    from torch.distributed.fsdp import FSDPModule  # half a second

    if isinstance(model, FSDPModule):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
        return
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise UsageError(f"shared_buckets takes a DistributedDataParallel or FSDP2 model, got {type(model).__name__}")
    group = model.process_group if group is None else group
    if not isinstance(group, BlinkProcessGroup):
        raise UsageError(
            "the model's process group is not of backend blink; make one on all ranks and pass it: "
            "shared_buckets(model, blinkccl.torch.group())"
        )
    if model.device_type != "cpu":
        raise UnsupportedError(f"gradients on {model.device_type} are no memory that processes of a host share")
    if not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
        raise UnsupportedError(f"shared_buckets needs torch 2.12 or newer, this is {torch.__version__}")
    model.register_comm_hook(group, average_in_shared_memory)


def average_in_shared_memory(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """:func:`average`, of buckets in shared memory: what :func:`shared_buckets` registers."""
    gradients = bucket.buffer()
    if gradients.layout is torch.strided and not process_heap().holds(gradients.data_ptr()):
        _share(gradients)
    return _averaged(state, gradients)


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
    op = dist.ReduceOp.AVG
    if tensor.layout is not torch.strided:  # gloo's, which has no averages
        tensor, op = tensor.div_(state.size()), dist.ReduceOp.SUM
    work = dist.all_reduce(tensor, op=op, group=state, async_op=True)
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return averaged


def _share(tensor: torch.Tensor) -> None:
    """Moves the storage of ``tensor``, and so all views of it, to shared memory; what it holds stays the same."""
    storage = tensor.untyped_storage()
    shared = empty(storage.nbytes(), torch.uint8).untyped_storage()
    shared.copy_(storage)
    storage._swap_data_ptr_(shared)
