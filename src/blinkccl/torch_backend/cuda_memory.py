"""Tensors on a GPU as flat memory: as they lie, or by copies that the stream makes in its turn.

Scratch memory comes from torch's allocator while the call's stream is current, and goes back as soon as the call is
enqueued: what is allocated on that stream later comes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blinkccl.torch_backend.cuda_runtime import CudaRuntime
from blinkccl.torch_backend.memory import Memory, Scratch

#: torch's own allocator keeps what is given back.
_NOTHING_KEPT = Scratch(0)


class CudaMemory(Memory):
    """The memory of one call on ``device``; made, used and finished while its stream is current.

    Parameters
    ----------
    foreign
        The stream, where it is not the one that the caller's tensors belong to: their memory is kept for it.
    """

    __slots__ = ("_device", "_foreign", "_runtime")

    def __init__(self, runtime: CudaRuntime, device: torch.device, foreign: Any = None) -> None:
        super().__init__(_NOTHING_KEPT)
        self._runtime = runtime
        self._device = device
        self._foreign = foreign

    def reads(self, tensor: Tensor) -> int:
        self.uses([tensor])
        return super().reads(tensor)

    def writes(self, tensor: Tensor) -> int:
        self.uses([tensor])
        return super().writes(tensor)

    def reads_all(self, tensors: Sequence[Tensor]) -> int:
        self.uses(tensors)
        return super().reads_all(tensors)

    def writes_all(self, tensors: Sequence[Tensor]) -> int:
        self.uses(tensors)
        return super().writes_all(tensors)

    def uses(self, tensors: Sequence[Tensor]) -> None:
        """The stream reads or writes these tensors of the caller's."""
        if self._foreign is not None:
            for tensor in tensors:
                self._runtime.record_stream(tensor, self._foreign)

    def room(self, nbytes: int) -> Tensor:
        buffer = self._runtime.empty(nbytes, self._device)
        self._taken.append(buffer)
        return buffer

    def finish(self, succeeded: bool) -> None:
        """Has the stream copy out of scratch memory, and gives it back."""
        if succeeded:
            for tensor, flat in self._copies:
                self._copy(tensor, flat)
        self._taken, self._held, self._copies = [], [], []

    def _copy(self, target: Tensor, source: Tensor) -> None:
        self._runtime.copy(target, source)
