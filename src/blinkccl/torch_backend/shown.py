"""Calls of a group for tools that watch torch's dispatcher: profilers, and modes such as ``CommDebugMode``.

torch calls a process group in Python without its dispatcher. While a tool watches, each call is shown to it. A profile
gets an event with the name of torch's operator. A mode gets the operator itself, on a group whose backend is torch's
"fake": that sends nothing, and writes at most into outputs that the call writes afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.profiler as profiler
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

#: Method → torch's operator in the namespace c10d; others add "_" to their name.
_OPERATORS = {
    "allreduce_coalesced": "allreduce_coalesced_",
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "all_to_all_single": "alltoall_base_",
    "barrier": "barrier",
    "send": "send",
    "recv_anysource": "recv_any_source_",
}
_modes = torch._C._len_torch_dispatch_stack


def watched() -> bool:
    """True if a tool watches this thread's calls."""
    return profiler._is_profiler_enabled or bool(_modes())


class ShownCalls:
    """The calls of one group for tools."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._group: Any = None

    @contextmanager
    def call(self, name: str, arguments: Sequence[Any], tensors: Sequence[Tensor]) -> Iterator[None]:
        """Show the call of the method ``name``; its ``tensors`` have the shapes that a profile records."""
        if not _modes():
            with torch._C._profiler._RecordFunctionFast(f"c10d::{_OPERATORS.get(name, name + '_')}", list(tensors)):
                yield
            return
        # A wrapper is seen by its own dispatch, and then served or refused.
        if all(type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__ for tensor in tensors):
            self._show(name, arguments)
        yield

    def _show(self, name: str, arguments: Sequence[Any]) -> None:
        fake = getattr(torch._C._distributed_c10d, "FakeProcessGroup", None)
        with _disable_current_modes():
            if self._group is None and fake is not None:
                self._group = dist.ProcessGroup(dist.HashStore(), self._rank, self._size)
                kind = dist.ProcessGroup.BackendType.CUSTOM
                self._group._set_default_backend(kind)
                self._group._register_backend(torch.device("cpu"), kind, fake._create_internal(self._rank, self._size))
            if name in ("alltoall", "all_to_all_single"):  # its outputs may be its inputs
                arguments = [tree_map_only(Tensor, Tensor.clone, arguments[0]), *arguments[1:]]
        if self._group is not None:
            older = _OPERATORS.get(name, name).removesuffix("_")  # before torch 2.13
            method: Any = getattr(self._group, name, getattr(self._group, older, None))
            method(*arguments)
