"""torch's collectives as calls of ours, one function each: the table behind both generations of method names.

Collectives that only move data do so in bytes, so that any element type will do. What torch leaves to each rank
(how a list of tensors lies in memory) never changes what the group runs; what all ranks must agree on anyway (sizes)
may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from blinkccl.collectives.call import CollectiveCall
from blinkccl.torch_backend.alltoall import AllToAll
from blinkccl.torch_backend.issue import AddressedCall, Message, Request, moved
from blinkccl.torch_backend.memory import Memory, Scratch
from blinkccl.torch_backend.types import element_type, reduction


class Requests:
    """Makes the requests of one group.

    Parameters
    ----------
    rank, size
        This rank in the group, and how many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._scratch = Scratch()

    def memory(self) -> Memory:
        """For one request."""
        return Memory(self._scratch)

    def all_reduce(self, tensors: Sequence[Tensor], operation: Any) -> Request:
        """Each tensor on its own, in place."""
        memory = self.memory()
        name, scale = reduction(operation)
        calls = []
        for tensor in tensors:
            real = _real(tensor)
            address = memory.updates(real)
            calls.append(
                AddressedCall(
                    CollectiveCall("allreduce", element_type(real), real.numel(), name), address, address, scale
                )
            )
        return Request("all_reduce", list(tensors), memory, calls, shown=tensors)

    def reduce(self, tensor: Tensor, operation: Any, root: int) -> Request:
        """The root's tensor is replaced by the result; the others' stay."""
        memory = self.memory()
        name, scale = reduction(operation)
        real = _real(tensor)
        send = memory.updates(real) if self.rank == root else memory.reads(real)
        recv = send if self.rank == root else None
        call = AddressedCall(CollectiveCall("reduce", element_type(real), real.numel(), name, root), send, recv, scale)
        return Request("reduce", [tensor], memory, [call], shown=[tensor])

    def broadcast(self, tensors: Sequence[Tensor], root: int) -> Request:
        """Each tensor on its own, in place."""
        memory = self.memory()
        calls = []
        for tensor in tensors:
            address = memory.updates(tensor) if self.rank == root else memory.writes(tensor)
            calls.append(moved("broadcast", address, address, tensor.nbytes, root))
        return Request("broadcast", list(tensors), memory, calls, shown=tensors)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Request:
        """Rank r's ``tensor`` into everybody's ``outputs[r]``. Ranks' sizes may differ: then by broadcasts."""
        self._check_list("all_gather", "output", outputs, tensor)
        memory = self.memory()
        sizes = [output.nbytes for output in outputs]
        if sizes[self.rank] != tensor.nbytes:
            raise ValueError(
                f"all_gather on rank {self.rank}: the input has {tensor.nbytes} bytes, its place in the output list "
                f"{sizes[self.rank]}; give every rank's output the size of that rank's input"
            )
        source = memory.reads(tensor)
        if len(set(sizes)) == 1:
            calls = [moved("allgather", source, memory.writes_all(outputs), tensor.nbytes)]
        else:
            calls = [
                moved("broadcast", source if peer == self.rank else None, memory.writes(output), sizes[peer], peer)
                for peer, output in enumerate(outputs)
            ]
        return Request("all_gather", list(outputs), memory, calls, shown=[tensor])

    def all_gather_single(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Request:
        """Each pair on its own: all ranks' ``tensors[i]`` one after the other into ``outputs[i]``."""
        memory = self.memory()
        calls = []
        for output, tensor in _pairs("all_gather_single", outputs, tensors):
            if output.numel() != tensor.numel() * self.size:
                raise ValueError(
                    f"all_gather_single: expected an output of {self.size} x {tensor.numel()} elements, "
                    f"got {output.numel()}"
                )
            calls.append(moved("allgather", memory.reads(tensor), memory.writes(output), tensor.nbytes))
        return Request("_allgather_base", list(outputs), memory, calls, shown=tensors)

    def all_gather_coalesced(self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor]) -> Request:
        """Each tensor on its own: rank r's ``tensors[i]`` into everybody's ``outputs[r][i]``; equal sizes."""
        self._check_length("all_gather_coalesced", "output list", outputs)
        memory = self.memory()
        calls = []
        for index, tensor in enumerate(tensors):
            targets = [of_rank[index] for of_rank in outputs]
            self._check_list("all_gather_coalesced", "output", targets, tensor)
            self._check_equal("all_gather_coalesced", "output", targets, tensor)
            calls.append(moved("allgather", memory.reads(tensor), memory.writes_all(targets), tensor.nbytes))
        result = [tensor for of_rank in outputs for tensor in of_rank]
        return Request("all_gather", result, memory, calls, shown=tensors)

    def reduce_scatter(self, output: Tensor, tensors: Sequence[Tensor], operation: Any) -> Request:
        """Everybody's ``tensors[r]`` combined into rank r's ``output``. Sizes may differ: then by reduces."""
        self._check_list("reduce_scatter", "input", tensors, output)
        memory = self.memory()
        name, scale = reduction(operation)
        output_real, reals = _real(output), [_real(tensor) for tensor in tensors]
        dtype, target = element_type(output_real), memory.writes(output_real)
        if output.numel() != tensors[self.rank].numel():
            raise ValueError(
                f"reduce_scatter on rank {self.rank}: the output has {output.numel()} elements, the input for it "
                f"{tensors[self.rank].numel()}; give every rank's input the size of that rank's output"
            )
        if len({real.numel() for real in reals}) == 1:
            source = memory.reads_all(reals)
            calls = [
                AddressedCall(CollectiveCall("reduce_scatter", dtype, output_real.numel(), name), source, target, scale)
            ]
        else:
            calls = []
            for root, real in enumerate(reals):
                recv = target if root == self.rank else None
                calls.append(
                    AddressedCall(
                        CollectiveCall("reduce", dtype, real.numel(), name, root), memory.reads(real), recv, scale
                    )
                )
        return Request("reduce_scatter", [output], memory, calls, shown=tensors)

    def reduce_scatter_single(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], operation: Any) -> Request:
        """Each pair on its own: block r of everybody's ``tensors[i]`` combined into rank r's ``outputs[i]``."""
        memory = self.memory()
        name, scale = reduction(operation)
        calls = []
        for output, tensor in _pairs("reduce_scatter_single", outputs, tensors):
            if tensor.numel() != output.numel() * self.size:
                raise ValueError(
                    f"reduce_scatter_single: expected an input of {self.size} x {output.numel()} elements, "
                    f"got {tensor.numel()}"
                )
            target, source = _real(output), _real(tensor)
            send, recv = memory.reads(source), memory.writes(target)
            calls.append(
                AddressedCall(
                    CollectiveCall("reduce_scatter", element_type(target), target.numel(), name), send, recv, scale
                )
            )
        return Request("_reduce_scatter_base", list(outputs), memory, calls, shown=tensors)

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> Request:
        """Rank r's ``tensor`` into the root's ``outputs[r]``; equal sizes."""
        memory = self.memory()
        target = None
        if self.rank == root:
            self._check_list("gather", "output", outputs, tensor)
            self._check_equal("gather", "output", outputs, tensor)
            target = memory.writes_all(outputs)
        call = moved("gather", memory.reads(tensor), target, tensor.nbytes, root)
        return Request("gather", list(outputs), memory, [call], shown=[tensor])

    def scatter(self, output: Tensor, tensors: Sequence[Tensor], root: int) -> Request:
        """The root's ``tensors[r]`` into rank r's ``output``; equal sizes."""
        memory = self.memory()
        source = None
        if self.rank == root:
            self._check_list("scatter", "input", tensors, output)
            self._check_equal("scatter", "input", tensors, output)
            source = memory.reads_all(tensors)
        call = moved("scatter", source, memory.writes(output), output.nbytes, root)
        return Request("scatter", [output], memory, [call], shown=tensors or [output])

    def all_to_all(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Request:
        """``tensors[r]`` to rank r's ``outputs[our rank]``; only the two ends know a block's size."""
        self._check_length("all_to_all", "output list", outputs)
        self._check_length("all_to_all", "input list", tensors)
        targets = {output.data_ptr() for output in outputs if output.numel()}
        if any(tensor.data_ptr() in targets for tensor in tensors):
            tensors = [tensor.clone() for tensor in tensors]
        request = AllToAll("all_to_all", list(outputs), self.memory(), shown=tensors)
        request.rank, request.outputs, request.inputs = self.rank, outputs, tensors
        return request

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Request:
        """Block r of ``tensor`` to block (our rank) of rank r's ``output``; blocks are rows of the first dimension."""
        request = self.all_to_all(self._blocks(output, output_splits), self._blocks(tensor, input_splits))
        request.result, request.shown = [output], [tensor]
        return request

    def barrier(self) -> Request:
        """Ends when all ranks have begun it."""
        memory = self.memory()
        token = memory.updates(torch.ones(1, dtype=torch.uint8))
        return Request(
            "barrier", [], memory, [AddressedCall(CollectiveCall("allreduce", "uint8", 1, "max"), token, token)]
        )

    def send(self, tensor: Tensor, peer: int, tag: int) -> Request:
        """The elements of ``tensor``, as one message."""
        memory = self.memory()
        message = Message(False, memory.reads(tensor), tensor.nbytes, peer, tag)
        return Request("send", [tensor], memory, messages=[message], shown=[tensor])

    def receive(self, tensor: Tensor, peer: int | None, tag: int) -> Request:
        """One message, at most as long as ``tensor``."""
        memory = self.memory()
        message = Message(True, memory.writes(tensor), tensor.nbytes, peer, tag)
        title = "recv" if peer is not None else "recvAnySource"
        return Request(title, [tensor], memory, messages=[message], shown=[tensor])

    def _blocks(self, tensor: Tensor, splits: Sequence[int]) -> list[Tensor]:
        """``tensor`` cut along its first dimension, equally where no sizes are given."""
        rows = tensor.size(0) if tensor.dim() else 0
        if splits:
            self._check_length("all_to_all_single", "list of split sizes", splits)
        elif rows % self.size == 0:
            splits = [rows // self.size] * self.size
        if sum(splits) != rows or not splits:
            raise ValueError(
                f"all_to_all_single: the first dimension has {rows} rows; expected split sizes that sum to it, or a "
                f"multiple of {self.size} rows and none, got {list(splits)}"
            )
        return list(torch.split(tensor, list(splits)))

    def _check_length(self, title: str, what: str, given: Sequence[object]) -> None:
        if len(given) != self.size:
            raise ValueError(f"{title}: expected an {what} with one entry per rank, {self.size}, got {len(given)}")

    def _check_list(self, title: str, what: str, tensors: Sequence[Tensor], other: Tensor) -> None:
        self._check_length(title, f"{what} list", tensors)
        for peer, tensor in enumerate(tensors):
            if tensor.dtype != other.dtype or tensor.device != other.device:
                raise ValueError(
                    f"{title}: {what} {peer} is {tensor.dtype} on {tensor.device}; expected {other.dtype} on "
                    f"{other.device}, as the other side"
                )

    def _check_equal(self, title: str, what: str, tensors: Sequence[Tensor], other: Tensor) -> None:
        for peer, tensor in enumerate(tensors):
            if tensor.numel() != other.numel():
                raise ValueError(
                    f"{title}: {what} {peer} has {tensor.numel()} elements; expected {other.numel()}, as the other side"
                )


def _pairs(title: str, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    if len(outputs) != len(tensors):
        raise ValueError(f"{title}: {len(outputs)} outputs for {len(tensors)} inputs; expected as many")
    for output, tensor in zip(outputs, tensors, strict=True):
        if output.dtype != tensor.dtype:
            raise ValueError(f"{title}: the output is {output.dtype}, the input {tensor.dtype}; expected the same")
        yield output, tensor


def _real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs: right for what torch allows on them, sums."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
