"""Tensors as torch's dispatcher would pass them to a backend in C++: with memory of their own, or refused.

torch calls a process group in Python without its dispatcher. So this module does the dispatcher's work: it waits for
the result of a functional collective, and distinguishes wrapper tensors from plain ones before any rank is involved.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from blinkccl.errors import UnsupportedError
from blinkccl.torch_backend.failure import for_torch

_FUNCTIONAL = "torch.distributed._functional_collectives"
_HINTS = {
    "DTensor": "give its local part, tensor.to_local()",
    "FakeTensor": "it has a shape and no elements; leave the fake mode, or use torch's backend fake",
    "NestedTensor": "give its values and its offsets, each in a call of its own",
    "MaskedTensor": "give its data and its mask, each in a call of its own",
}


def plain(tensor: Tensor) -> Tensor:
    """``tensor``, or the tensor that it wraps when available; UnsupportedError if it has no memory of its own."""
    if _has_memory(tensor):
        return tensor
    functional: Any = sys.modules.get(_FUNCTIONAL)
    while functional is not None and isinstance(tensor, functional.AsyncCollectiveTensor):
        tensor = tensor.trigger_wait()
    if not _has_memory(tensor) and not tensor._is_zerotensor():
        raise _refused(tensor)
    return tensor


def plain_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """:func:`plain` of each."""
    return [plain(tensor) for tensor in tensors]


def writable(tensors: Sequence[Tensor]) -> list[Tensor]:
    """:func:`plain` of each; UnsupportedError also for a ZeroTensor, which has no memory."""
    bare = plain_all(tensors)
    for tensor in bare:
        if tensor.data_ptr() == 0 and tensor._is_zerotensor():
            raise for_torch(
                UnsupportedError(
                    f"backend blink cannot write into the ZeroTensor of shape {tuple(tensor.shape)}, which has no "
                    "memory: give tensor.clone()"
                )
            )
    return bare


def address_of(tensor: Tensor) -> int:
    """The address of a tensor whose elements are contiguous and stored with their values; 0 for others and wrappers."""
    try:
        address: int = tensor.data_ptr()
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj() or tensor.is_nested:
            return 0
    except RuntimeError:  # it has no storage
        return 0
    return 0 if address & 15 and address % tensor.itemsize else address


def address_in_order(tensors: Sequence[Tensor]) -> int:
    """The :func:`address_of` tensors that follow each other in memory, like the chunks of one; 0 if they do not.

    They have one element type.
    """
    address = after = address_of(tensors[0])
    for before, tensor in pairwise(tensors) if address else ():
        after += before.nbytes
        if address_of(tensor) != after:
            return 0
    return address


def _has_memory(tensor: Tensor) -> bool:
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # it has no storage
        return False
    return not tensor.is_nested and (address != 0 or _is_empty(tensor))


def _is_empty(tensor: Tensor) -> bool:
    """True if it lacks an address only because it has no elements."""
    stands_for_others = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return not tensor.numel() and tensor.is_cpu and not stands_for_others


def _refused(tensor: Tensor) -> UnsupportedError:
    name = type(tensor).__name__
    hint = _HINTS.get(name, "give the plain tensors that it is made of")
    if not tensor.is_cpu:
        name, hint = f"{name} on {tensor.device}", "all tensors of a call must be on one device that the group serves"
    elif tensor.layout is not torch.strided and not tensor.is_nested:
        name, hint = f"{name} of layout {tensor.layout}", "make it dense"
    elif type(tensor) is Tensor:
        name = "nested tensor" if tensor.is_nested else "tensor that a function transform (vmap, grad) stands for"
        hint = _HINTS["NestedTensor"] if tensor.is_nested else "call the collective outside of the transform"
    return for_torch(
        UnsupportedError(
            f"backend blink needs tensors with memory of their own, got a {name}: {hint}; this call was sent to no rank"
        )
    )
