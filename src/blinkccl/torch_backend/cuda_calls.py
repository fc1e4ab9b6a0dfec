"""torch's collectives on CUDA tensors as calls of ours, and such tensors as flat memory.

The same table as for the CPU, where a GPU can do the same. What is not flat is copied by the stream in its turn.
Scratch memory comes from torch's allocator while the call's stream is current, and goes back as soon as the call is
enqueued: what is allocated on that stream later comes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import UnsupportedError
from blinkccl.torch_backend.call_table import CallTable
from blinkccl.torch_backend.cuda_runtime import CudaRuntime
from blinkccl.torch_backend.issue import AddressedCall, TorchCall, moved
from blinkccl.torch_backend.memory import Memory, Scratch
from blinkccl.torch_backend.plain import plain_all, writable

#: torch's own allocator keeps what is given back.
_NOTHING_KEPT = Scratch(0)


class CudaMemory(Memory):
    """The memory of one call on ``device``; made, used and finished while its stream is current.

    ``foreign`` is that stream where the caller's tensors belong to another: their memory is kept for it.
    """

    __slots__ = ("_device", "_foreign", "_runtime")

    def __init__(self, runtime: CudaRuntime, device: torch.device, foreign: Any = None) -> None:
        super().__init__(_NOTHING_KEPT)
        self._runtime = runtime
        self._device = device
        self._foreign = foreign

    def hold(self, tensors: Sequence[Tensor]) -> None:
        super().hold(tensors)
        if self._foreign is not None:
            for tensor in tensors:
                self._runtime.record_stream(tensor, self._foreign)

    def room(self, nbytes: int) -> Tensor:
        buffer = self._runtime.empty(nbytes, self._device)
        self._taken.append(buffer)
        return buffer

    def _copy(self, target: Tensor, source: Tensor) -> None:
        self._runtime.copy(target, source)


class CudaCallTable(CallTable):
    """Makes the calls of one group on one device."""

    def __init__(self, rank: int, size: int, runtime: CudaRuntime, device: torch.device) -> None:
        super().__init__(rank, size)
        self._runtime = runtime
        self._device = device
        #: For the call that is made next: its stream, where that is not the caller's.
        self.foreign: Any = None

    def memory(self) -> CudaMemory:
        """For one call."""
        return CudaMemory(self._runtime, self._device, self.foreign)

    def _exchange(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> TorchCall:
        """Blocks of one size: a stream cannot ask other ranks for theirs."""
        outputs, tensors = writable(outputs), plain_all(tensors)
        sizes = [tensor.nbytes for tensor in (*tensors, *outputs)]
        if len(dict.fromkeys(sizes)) > 1:
            raise UnsupportedError(
                f"all_to_all on GPUs takes blocks of one size, rank {self.rank} has blocks of {min(sizes)} to "
                f"{max(sizes)} bytes; make them equal, or give CUDA tensors to NCCL"
            )
        memory = self.memory()
        tensors = self._apart(outputs, tensors, lambda tensor: self._copied(memory, tensor))
        call = moved("alltoall", memory.reads_all(tensors), memory.writes_all(outputs), sizes[0])
        return TorchCall("all_to_all", list(outputs), memory, [call], shown=tensors)

    def barrier(self) -> TorchCall:
        """Ends, on the GPU, when all ranks have begun it."""
        memory = self.memory()
        token = memory.room(1).data_ptr()
        return TorchCall(
            "barrier", [], memory, [AddressedCall(CollectiveCall("allreduce", "uint8", 1, "max"), token, token)]
        )

    def _copied(self, memory: CudaMemory, tensor: Tensor) -> Any:
        """A copy that the call holds."""
        flat = memory.room(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        memory.hold([tensor])
        self._runtime.copy(flat, tensor)
        return flat
