"""torch's collectives as our calls, one function each: the table behind both generations of method names.

Collectives that only move data do so in bytes, with any element type. Properties that may differ by rank (the layout of
a list of tensors in memory) never change the group's calls; properties on which all ranks agree (sizes) may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import PlanMismatchError
from blinkccl.runtime.group import Group
from blinkccl.torch_backend.issue import AddressedCall, Message, TorchCall, moved
from blinkccl.torch_backend.memory import Memory, Scratch, copy
from blinkccl.torch_backend.plain import plain, plain_all, writable
from blinkccl.torch_backend.types import element_type, reduction

_ONE_DEVICE = "give all tensors of a call on one device"


class CallTable:
    """The calls of one group."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._scratch = Scratch()

    def memory(self) -> Memory:
        """Memory for one call."""
        return Memory(self._scratch)

    def all_reduce(self, tensors: Sequence[Tensor], operation: Any) -> TorchCall:
        """AllReduce of each tensor separately, in place."""
        _check_device("all_reduce", tensors)
        memory, operation = self.memory(), reduction(operation)
        calls = []
        for tensor in tensors:
            address = memory.updates(tensor)
            calls.append(_reducing("allreduce", tensor, operation, address, address))
        return TorchCall("all_reduce", list(tensors), memory, calls, shown=tensors)

    def reduce(self, tensor: Tensor, operation: Any, root: int) -> TorchCall:
        """Reduce into the root's tensor; the others' stay unchanged."""
        memory, tensors = self.memory(), writable([tensor])  # on all ranks, or only the root would refuse it
        send = memory.updates(tensors[0]) if self.rank == root else memory.reads_all(tensors)
        recv = send if self.rank == root else None
        call = _reducing("reduce", tensor, reduction(operation), send, recv, root)
        return TorchCall("reduce", [tensor], memory, [call], shown=[tensor])

    def broadcast(self, tensors: Sequence[Tensor], root: int) -> TorchCall:
        """Broadcast of each tensor separately, in place."""
        _check_device("broadcast", tensors)
        memory = self.memory()
        calls = []
        for tensor in tensors:
            address = memory.updates(tensor) if self.rank == root else memory.writes(tensor)
            calls.append(moved("broadcast", address, address, tensor.nbytes, root))
        return TorchCall("broadcast", list(tensors), memory, calls, shown=tensors)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> TorchCall:
        """Rank r's ``tensor`` into ``outputs[r]`` on all ranks. If the ranks' sizes differ, by broadcasts."""
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
        return TorchCall("all_gather", list(outputs), memory, calls, shown=[tensor])

    def all_gather_single(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> TorchCall:
        """Each pair separately: all ranks' ``tensors[i]`` one after the other into ``outputs[i]``."""
        memory = self.memory()
        calls = []
        for output, tensor in self._pairs("all_gather_single", "output", outputs, tensors):
            calls.append(moved("allgather", memory.reads(tensor), memory.writes(output), tensor.nbytes))
        return TorchCall("_allgather_base", list(outputs), memory, calls, shown=tensors)

    def all_gather_coalesced(self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor]) -> TorchCall:
        """Each tensor separately: rank r's ``tensors[i]`` into ``outputs[r][i]`` on all ranks; equal sizes."""
        self._check_length("all_gather_coalesced", "output list", outputs)
        _check_device("all_gather_coalesced", tensors)
        memory = self.memory()
        calls = []
        for index, tensor in enumerate(tensors):
            targets = [of_rank[index] for of_rank in outputs]
            self._check_list("all_gather_coalesced", "output", targets, tensor)
            self._check_equal("all_gather_coalesced", "output", targets, tensor)
            calls.append(moved("allgather", memory.reads(tensor), memory.writes_all(targets), tensor.nbytes))
        result = [tensor for of_rank in outputs for tensor in of_rank]
        return TorchCall("all_gather", result, memory, calls, shown=tensors)

    def reduce_scatter(self, output: Tensor, tensors: Sequence[Tensor], operation: Any) -> TorchCall:
        """All ranks' ``tensors[r]`` reduced into rank r's ``output``. If sizes differ, by reduces."""
        self._check_list("reduce_scatter", "input", tensors, output)
        memory, operation = self.memory(), reduction(operation)
        target = memory.writes(output)
        if output.numel() != tensors[self.rank].numel():
            raise ValueError(
                f"reduce_scatter on rank {self.rank}: the output has {output.numel()} elements, the input for it "
                f"{tensors[self.rank].numel()}; give every rank's input the size of that rank's output"
            )
        if len({each.numel() for each in tensors}) == 1:
            calls = [_reducing("reduce_scatter", output, operation, memory.reads_all(tensors), target)]
        else:
            calls = [
                _reducing("reduce", each, operation, memory.reads(each), target if root == self.rank else None, root)
                for root, each in enumerate(tensors)
            ]
        return TorchCall("reduce_scatter", [output], memory, calls, shown=tensors)

    def reduce_scatter_single(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], operation: Any) -> TorchCall:
        """Each pair separately: block r of all ranks' ``tensors[i]`` reduced into rank r's ``outputs[i]``."""
        memory, operation = self.memory(), reduction(operation)
        calls = []
        for tensor, output in self._pairs("reduce_scatter_single", "input", tensors, outputs):
            send = memory.reads(tensor)
            calls.append(_reducing("reduce_scatter", output, operation, send, memory.writes(output)))
        return TorchCall("_reduce_scatter_base", list(outputs), memory, calls, shown=tensors)

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> TorchCall:
        """Rank r's ``tensor`` into the root's ``outputs[r]``; equal sizes."""
        memory = self.memory()
        target = None
        if self.rank == root:
            self._check_list("gather", "output", outputs, tensor)
            self._check_equal("gather", "output", outputs, tensor)
            target = memory.writes_all(outputs)
        call = moved("gather", memory.reads(tensor), target, tensor.nbytes, root)
        return TorchCall("gather", list(outputs), memory, [call], shown=[tensor])

    def scatter(self, output: Tensor, tensors: Sequence[Tensor], root: int) -> TorchCall:
        """The root's ``tensors[r]`` into rank r's ``output``; equal sizes."""
        memory = self.memory()
        source = None
        if self.rank == root:
            self._check_list("scatter", "input", tensors, output)
            self._check_equal("scatter", "input", tensors, output)
            source = memory.reads_all(tensors)
        call = moved("scatter", source, memory.writes(output), output.nbytes, root)
        return TorchCall("scatter", [output], memory, [call], shown=tensors or [output])

    def all_to_all(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> TorchCall:
        """``tensors[r]`` into rank r's ``outputs[our rank]``; only the two ends know a block's size."""
        self._check_length("all_to_all", "input list", tensors)
        self._check_list("all_to_all", "input", tensors, tensors[0])
        self._check_list("all_to_all", "output", outputs, tensors[0])
        return self._exchange(outputs, tensors)

    def _exchange(self, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> TorchCall:
        outputs, tensors = writable(outputs), plain_all(tensors)
        tensors = _apart(outputs, tensors)
        call = AllToAll("all_to_all", list(outputs), self.memory(), shown=tensors)
        call.rank, call.outputs, call.inputs = self.rank, outputs, tensors
        return call

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> TorchCall:
        """Block r of ``tensor`` into block (our rank) of rank r's ``output``; blocks are rows of dimension 0."""
        _check_device("all_to_all_single", [output, tensor])
        output, tensor = plain(output), plain(tensor)
        call = self._exchange(self._blocks(output, output_splits), self._blocks(tensor, input_splits))
        call.result, call.shown = [output], [tensor]
        return call

    def barrier(self, token: Tensor) -> TorchCall:
        """A barrier, which ends after all ranks have begun it: a sum of each rank's ``token``, a byte of value 0."""
        call = self.all_reduce([token], dist.ReduceOp.SUM)
        return TorchCall("barrier", [], call.memory, call.calls)

    def send(self, tensor: Tensor, peer: int, tag: int) -> TorchCall:
        """The elements of ``tensor``, as one message."""
        memory = self.memory()
        message = Message(False, memory.reads(tensor), tensor.nbytes, peer, tag)
        return TorchCall("send", [tensor], memory, message=message, shown=[tensor])

    def receive(self, tensor: Tensor, peer: int | None, tag: int) -> TorchCall:
        """One message, at most as long as ``tensor``."""
        memory = self.memory()
        message = Message(True, memory.writes(tensor), tensor.nbytes, peer, tag)
        title = "recv" if peer is not None else "recvAnySource"
        return TorchCall(title, [tensor], memory, message=message, shown=[tensor])

    def _blocks(self, tensor: Tensor, splits: Sequence[int]) -> list[Tensor]:
        """``tensor`` cut along its first dimension, equally without given sizes."""
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

    def _check_length(self, title: str, what: str, entries: Sequence[object]) -> None:
        if len(entries) != self.size:
            raise ValueError(f"{title}: expected an {what} with one entry per rank, {self.size}, got {len(entries)}")

    def _check_list(self, title: str, what: str, tensors: Sequence[Tensor], other: Tensor) -> None:
        self._check_length(title, f"{what} list", tensors)
        for peer, tensor in enumerate(tensors):
            if tensor.dtype != other.dtype or tensor.device != other.device:
                raise ValueError(
                    f"{title}: {what} {peer} is {tensor.dtype} on {tensor.device}; expected {other.dtype} on "
                    f"{other.device}, as the other side"
                )

    def _pairs(
        self, title: str, what: str, wholes: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Each whole (``what``: input or output) with its part, the other of the two."""
        other = "input" if what == "output" else "output"
        if len(wholes) != len(parts):
            raise ValueError(f"{title}: {len(wholes)} {what}s for {len(parts)} {other}s; expected equal numbers")
        _check_device(title, wholes)
        for whole, part in zip(wholes, parts, strict=True):
            if whole.dtype != part.dtype:
                raise ValueError(f"{title}: the {what} is {whole.dtype}, the {other} {part.dtype}; expected the same")
            if whole.device != part.device:
                raise ValueError(
                    f"{title}: the {what} is on {whole.device}, the {other} on {part.device}; {_ONE_DEVICE}"
                )
            if whole.numel() != part.numel() * self.size:
                raise ValueError(
                    f"{title}: expected an {what} of {self.size} x {part.numel()} elements, got {whole.numel()}"
                )
            yield whole, part

    def _check_equal(self, title: str, what: str, tensors: Sequence[Tensor], other: Tensor) -> None:
        for peer, tensor in enumerate(tensors):
            if tensor.numel() != other.numel():
                raise ValueError(
                    f"{title}: {what} {peer} has {tensor.numel()} elements; expected {other.numel()}, as the other side"
                )


def _apart(outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """An AllToAll's inputs, copied if an output has the memory of one."""
    targets = {output.data_ptr() for output in outputs if output.numel()}
    return [each.clone() for each in tensors] if any(each.data_ptr() in targets for each in tensors) else tensors


def _check_device(title: str, tensors: Sequence[Tensor]) -> None:
    device = tensors[0].device
    for index, tensor in enumerate(tensors[1:], start=1):
        if tensor.device != device:
            raise ValueError(f"{title}: tensor {index} is on {tensor.device}, tensor 0 on {device}; {_ONE_DEVICE}")


def _reducing(
    name: str, tensor: Tensor, operation: tuple[str, float | None], send: int, recv: int | None, root: int = 0
) -> AddressedCall:
    """A collective on elements like those of ``tensor``, with its number of elements per block.

    Complex numbers are pairs of reals, which is right for sums, the only reduction that torch allows on them.
    """
    op, scale = operation
    dtype, elements = element_type(tensor.real if tensor.is_complex() else tensor), tensor.numel()
    if tensor.is_complex():
        elements *= 2
    return AddressedCall(CollectiveCall(name, dtype, elements, op, root), send, recv, scale)


#: The tag of messages here: torch's own tags are not negative.
TAG = -1
#: Largest ratio of padded to real bytes in one collective, because messages cost more than copying.
PADDING = 4


@dataclass(slots=True)
class AllToAll(TorchCall):
    """AllToAll when each rank knows only its own blocks. ``outputs[r]`` comes from rank r, ``inputs[r]`` goes there.

    First all ranks exchange the sizes that they send and expect, in a small AllGather. From these numbers all ranks
    select the same method:

    - equal blocks: one AllToAll, directly between tensors that are contiguous;
    - unequal blocks: one AllToAll of blocks as long as the longest, up to a limit of padding (:data:`PADDING`);
    - else messages.

    Sizes that do not match raise an error here, on all ranks, before a rank hangs. No output shares memory with an
    input.
    """

    rank: int = 0
    outputs: Sequence[Tensor] = ()
    inputs: Sequence[Tensor] = ()

    def run(self, transport: Group, timeout_s: float) -> None:
        """Run the call; PlanMismatchError, on all ranks, if one sends another number of bytes than its peer expects."""
        sizes = self._agreed(transport, timeout_s)
        longest, total = int(sizes.max()), int(sizes.sum())
        if (sizes == longest).all():
            source, target = self.memory.reads_all(self.inputs), self.memory.writes_all(self.outputs)
            moved("alltoall", source, target, longest).run(transport, timeout_s)
        elif longest * sizes.size <= PADDING * total:
            self._padded(longest, transport, timeout_s)
        else:
            self._by_messages(transport, timeout_s)

    def _agreed(self, transport: Group, timeout_s: float) -> NDArray[np.int64]:
        """Bytes from rank to rank."""
        own = np.array([[tensor.nbytes for tensor in side] for side in (self.inputs, self.outputs)])
        everybodys = np.empty((len(self.inputs), *own.shape), np.int64)
        moved("allgather", own.ctypes.data, everybodys.ctypes.data, own.nbytes).run(transport, timeout_s)
        sent, expected = everybodys[:, 0], everybodys[:, 1].T
        for source, target in np.argwhere(sent != expected):
            raise PlanMismatchError(
                f"all_to_all: rank {source} sends {int(sent[source, target])} bytes to rank {target}, which expects "
                f"{int(expected[source, target])}; both must give the same split sizes and element type"
            )
        return sent

    def _padded(self, block: int, transport: Group, timeout_s: float) -> None:
        ranks = len(self.inputs)
        sent, received = (self.memory.room(ranks * block).view(ranks, block) for _ in range(2))
        for row, tensor in zip(sent, self.inputs, strict=True):
            copy(_as(row, tensor), tensor)
        moved("alltoall", sent.data_ptr(), received.data_ptr(), block).run(transport, timeout_s)
        for row, tensor in zip(received, self.outputs, strict=True):
            copy(tensor, _as(row, tensor))

    def _by_messages(self, transport: Group, timeout_s: float) -> None:
        ranks = len(self.inputs)
        # Starting with the next rank keeps all ranks from sending to the same one at once.
        peers = [(self.rank + step) % ranks for step in range(1, ranks)]
        receives = [
            transport.irecv(self.memory.writes(tensor), tensor.nbytes, peer, TAG, timeout_s)
            for peer in peers
            if (tensor := self.outputs[peer]).nbytes
        ]
        sends = [
            transport.isend(self.memory.reads(tensor), tensor.nbytes, peer, TAG, timeout_s)
            for peer in peers
            if (tensor := self.inputs[peer]).nbytes
        ]
        copy(self.outputs[self.rank], self.inputs[self.rank])
        for received in receives:
            received.result()
        for sent in sends:
            sent.result()


def _as(row: Tensor, tensor: Tensor) -> Tensor:
    """The beginning of ``row``, which are bytes, as a tensor like ``tensor``."""
    return row[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
