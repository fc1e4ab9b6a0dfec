"""torch's collectives on CUDA tensors as calls: the same table as for the CPU, where a GPU can do the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import UnsupportedError
from blinkccl.torch_backend.cuda_memory import CudaMemory
from blinkccl.torch_backend.cuda_runtime import CudaRuntime
from blinkccl.torch_backend.issue import AddressedCall, Request, moved
from blinkccl.torch_backend.requests import Requests


class CudaRequests(Requests):
    """Makes the requests of one group on one device.

    Parameters
    ----------
    rank, size
        This rank in the group, and how many there are.
    """

    def __init__(self, rank: int, size: int, runtime: CudaRuntime, device: torch.device) -> None:
        super().__init__(rank, size)
        self._runtime = runtime
        self._device = device
        #: For the request that is made next: its stream, where that is not the caller's.
        self.foreign: Any = None

    def memory(self) -> CudaMemory:
        """For one request."""
        return CudaMemory(self._runtime, self._device, self.foreign)

    def all_to_all(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Request:
        """``tensors[r]`` to rank r's ``outputs[our rank]``; blocks of one size.

        Raises
        ------
        UnsupportedError
            If the blocks differ in size: a stream cannot ask other ranks for theirs.
        """
        self._check_length("all_to_all", "output list", outputs)
        self._check_length("all_to_all", "input list", tensors)
        sizes = [tensor.nbytes for tensor in (*tensors, *outputs)]
        if len(dict.fromkeys(sizes)) > 1:
            raise UnsupportedError(
                f"all_to_all on GPUs takes blocks of one size, rank {self.rank} has blocks of {min(sizes)} to "
                f"{max(sizes)} bytes; make them equal, or give CUDA tensors to NCCL"
            )
        memory = self.memory()
        targets = {output.data_ptr() for output in outputs if output.numel()}
        if any(tensor.data_ptr() in targets for tensor in tensors):
            tensors = [self._copied(memory, tensor) for tensor in tensors]
        call = moved("alltoall", memory.reads_all(tensors), memory.writes_all(outputs), sizes[0])
        return Request("all_to_all", list(outputs), memory, [call], shown=tensors)

    def barrier(self) -> Request:
        """Ends, on the GPU, when all ranks have begun it."""
        memory = self.memory()
        token = memory.room(1).data_ptr()
        return Request(
            "barrier", [], memory, [AddressedCall(CollectiveCall("allreduce", "uint8", 1, "max"), token, token)]
        )

    def _copied(self, memory: CudaMemory, tensor: Tensor) -> Any:
        """A copy that the request holds."""
        flat = memory.room(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        memory.uses([tensor])
        self._runtime.copy(flat, tensor)
        return flat
