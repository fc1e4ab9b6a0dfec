"""DDP communication hooks: gradients in shared memory, and AllReduce by blink in a program on gloo or NCCL.

    blinkccl.torch.shared_buckets(model)                      # after init_process_group("blink")

    group = blinkccl.torch_backend.hooks.group()              # on all ranks, after init_process_group("gloo")
    blinkccl.torch.shared_buckets(model, group)
    model.register_comm_hook(group, blinkccl.torch_backend.hooks.average)
    model.register_comm_hook(group, blinkccl.torch_backend.hooks.average_in_bfloat16)

torch's own hooks (``fp16_compress_hook``, PowerSGD) also work on such a group. torch compares these functions'
annotations as objects: no ``from __future__ import annotations`` here.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.runtime.heap import empty, process_heap
from blinkccl.torch_backend import register
from blinkccl.torch_backend.eager import eager
from blinkccl.torch_backend.issue import SteppedWork
from blinkccl.torch_backend.process_group import BlinkProcessGroup
from blinkccl.torch_backend.types import element_type

#: Number of cached buckets: a model's, and those that DDP made before it knew the order of gradients.
_KEPT_BUCKETS = 4096
_after_backward = torch.autograd.Variable._execution_engine.queue_callback


def group(ranks: Sequence[int] | None = None, **options: Any) -> Any:
    """A process group of backend blink beside those of the program: the state of the hooks.

    Parameters
    ----------
    ranks
        Its ranks in the world; None: all. Every rank of the world calls this.
    options
        Of ``torch.distributed.new_group``, e.g. ``timeout``.

    Examples
    --------
    >>> import blinkccl, torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ones = torch.ones(2)
    >>> dist.all_reduce(ones, group=blinkccl.torch.group())
    >>> ones
    tensor([1., 1.])
    >>> dist.destroy_process_group()
    """
    register()
    return dist.new_group(None if ranks is None else list(ranks), backend="blink", **options)


def shared_buckets(model: Any, group: Any = None, in_background: bool | None = None) -> None:
    """Keep the buffers of DDP or FSDP2 in memory that all ranks of a host share, so that nothing is copied.

    Model and training loop stay unchanged. A bucket of DDP's moves when it is first reduced: the storage under its
    tensor and all its views gets memory of :func:`blinkccl.empty`, so gradients that are views of buckets move too. DDP
    makes new buckets after the first step, and these move as well. The mean is that of :func:`average`. With FSDP2 the
    buffers are those of gathered parameters and scattered gradients, if torch requests memory from the backend.

    Parameters
    ----------
    model
        A ``DistributedDataParallel`` without a communication hook, or a result of ``fully_shard``, with its parameters
        on the CPU. All ranks call this.
    group
        For DDP: a group of backend blink with the ranks of ``model.process_group``; None: that group itself.
    in_background
        For DDP: reduce buckets in another thread during the backward pass; None: only if there are cores for such
        threads beside those of the ranks' torch.

    Raises
    ------
    UsageError
        If ``model`` is neither, or the group is not blink's.
    UnsupportedError
        If the parameters are not on the CPU, or torch is older than 2.12 and cannot move a storage.

    Examples
    --------
    >>> import blinkccl, torch, torch.distributed as dist
    >>> dist.init_process_group("blink", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    >>> blinkccl.torch.shared_buckets(model)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> model.module.weight.grad
    tensor([[1., 1.]])
    >>> dist.destroy_process_group()
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
        raise UnsupportedError(f"shared_buckets needs gradients on the CPU, got gradients on {model.device_type}")
    if not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
        raise UnsupportedError(f"shared_buckets needs torch 2.12 or newer, this is {torch.__version__}")
    if in_background is None:
        in_background = len(os.sched_getaffinity(0)) >= group.size() * (torch.get_num_threads() + 1)
    model.register_comm_hook(Buckets(group, in_background, model.static_graph), average_in_shared_memory)


def average_in_shared_memory(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """:func:`average` for buckets in shared memory; :func:`shared_buckets` registers it."""
    average: torch.futures.Future[torch.Tensor] = state.average(bucket.buffer())
    return average


@eager
class Buckets:
    """A model's buckets: the state of :func:`average_in_shared_memory`.

    Without ``in_background`` no other thread takes part. A bucket's AllReduce begins in its hook and continues in the
    hooks of later buckets, as far as peers are ready. It ends with the backward pass, in an autograd callback before
    the one in which DDP reads the results. If all cores compute, threads that wake each other cost several times the
    AllReduce itself. A model with a ``static_graph`` has its first buckets reduced in such a callback, so its hooks
    wait.
    """

    def __init__(self, group: BlinkProcessGroup, in_background: bool, static_graph: bool) -> None:
        self._group = group
        self._in_background, self._waits = in_background, static_graph
        self._known: dict[tuple[int, int, torch.dtype], CollectiveCall] = {}  # all in shared memory

    def average(self, gradients: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket."""
        if gradients.layout is not torch.strided:
            return _averaged(self._group, gradients)
        key = gradients.data_ptr(), gradients.numel(), gradients.dtype
        call = self._known.get(key) or self._shared(gradients)
        direct = call.elements and not self._in_background
        work = self._group.start_in_place(call, gradients) if direct else None
        if work is None:
            return _averaged(self._group, gradients)
        future: Any = torch._C.Future([])
        end = partial(self._end, work, future, gradients)
        if work.ended or self._waits:
            end()
            return future
        try:
            _after_backward(end)
        except RuntimeError:  # no backward pass: a rank in DDP's join that has no more inputs
            end()
        return future

    def _end(self, work: SteppedWork, future: Any, gradients: torch.Tensor) -> None:
        work.wait()
        future.set_result(gradients)

    def _shared(self, gradients: torch.Tensor) -> CollectiveCall:
        """Move a new bucket to shared memory, and return its AllReduce."""
        if not process_heap().holds(gradients.data_ptr()):
            _share(gradients)
        if len(self._known) >= _KEPT_BUCKETS:
            self._known.clear()
        call = CollectiveCall("allreduce", element_type(gradients), gradients.numel(), "avg")
        self._known[gradients.data_ptr(), gradients.numel(), gradients.dtype] = call
        return call


def average(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the gradients: one AllReduce in place; ``state`` is a group from :func:`group`.

    DDP without a hook divides by the number of ranks before the sum, this hook after it. If the number is a power of
    two, the bits are the same; otherwise there is one rounding fewer.
    """
    return _averaged(state, bucket.buffer())


def average_in_bfloat16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the gradients, transferred as bfloat16: half the bytes, with 8 bits of precision.

    Sums of several gradients are computed in float32. torch's ``bf16_compress_hook`` is similar, for NCCL only.
    """
    gradients = bucket.buffer()

    def restore(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        return gradients.copy_(future.value())

    return _averaged(state, gradients.to(torch.bfloat16)).then(restore)


def _averaged(state: Any, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    op = dist.ReduceOp.AVG
    if tensor.layout is not torch.strided:  # gloo serves it, without averages
        tensor, op = tensor.div_(state.size()), dist.ReduceOp.SUM
    work = dist.all_reduce(tensor, op=op, group=state, async_op=True)
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return averaged


def _share(tensor: torch.Tensor) -> None:
    """Move the storage of ``tensor``, and so all its views, to shared memory, with its contents."""
    storage = tensor.untyped_storage()
    shared = empty(storage.nbytes(), torch.uint8).untyped_storage()
    shared.copy_(storage)
    storage._swap_data_ptr_(shared)
