"""Do a caller's tensors fit a collective, and how are they seen as flat blocks?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.schedule.chunking import placements


@dataclass(frozen=True, slots=True)
class Tensors:
    """A rank's input and output as one-dimensional tensors, or None.

    ``kept`` is the caller's output where that is not contiguous and ``output`` is a stand-in for it.
    """

    dtype: torch.dtype
    input: torch.Tensor | None
    output: torch.Tensor | None
    kept: torch.Tensor | None = None

    def store(self) -> None:
        """Puts the result into the caller's tensor, if it is not there already."""
        if self.kept is not None and self.output is not None:
            self.kept.copy_(self.output.view(self.kept.shape))


def bound_tensors(
    collective: Collective,
    rank: int,
    input_tensor: torch.Tensor | None,
    output_tensor: torch.Tensor | None,
    count: int,
    dtype: torch.dtype | None,
    device: torch.device,
) -> Tensors:
    """Checks a rank's tensors and flattens them; one that is not contiguous is copied.

    ``dtype`` is their type; it may be left out where there is a tensor to ask.

    Raises
    ------
    UsageError
        If a tensor is missing or superfluous, on another device, of another type, or does not
        have the collective's number of blocks of ``count`` elements; or if the two overlap other than in place.
    UnsupportedError
        If AllToAll is to run in place, or a tensor is sparse or complex.
    """
    for tensor, blocks, side in (
        (input_tensor, collective.input_blocks(rank), "input"),
        (output_tensor, collective.output_blocks(rank), "output"),
    ):
        _check(collective, rank, tensor, blocks, count, device, side)
    types = [tensor.dtype for tensor in (input_tensor, output_tensor) if tensor is not None]
    types += [dtype] if dtype is not None else []
    if not types:
        raise UsageError(f"{collective.name}: rank {rank} has neither input nor output: give the dtype")
    if types.count(types[0]) != len(types):
        raise UsageError(f"rank {rank}: input, output and dtype are {', '.join(map(str, types))}; give one type")
    flat = None if input_tensor is None else input_tensor.detach().contiguous().view(-1)
    if output_tensor is None:
        return Tensors(types[0], flat, None)
    output = output_tensor.detach()
    if not output.is_contiguous():
        stand_in = torch.empty(output.numel(), dtype=output.dtype, device=output.device)
        return Tensors(types[0], flat, stand_in, output)
    if flat is not None:
        _check_overlap(collective, rank, flat, output.view(-1), count)
    return Tensors(types[0], flat, output.view(-1))


def _check(
    collective: Collective,
    rank: int,
    tensor: torch.Tensor | None,
    blocks: int,
    count: int,
    device: torch.device,
    side: str,
) -> None:
    if (tensor is None) != (blocks == 0):
        wanted, got = ("none", "one") if blocks == 0 else (f"{blocks} block(s)", "none")
        raise UsageError(f"{collective.name}: rank {rank}'s {side}: expected {wanted}, got {got}")
    if tensor is None:
        return
    if tensor.layout != torch.strided or tensor.is_complex():
        kind = "sparse" if tensor.layout != torch.strided else "complex"
        raise UnsupportedError(f"rank {rank}'s {side} is {kind}: give its values, or view it as real numbers")
    if tensor.device.type != device.type or (device.index is not None and tensor.device != device):
        raise UsageError(f"rank {rank}'s {side} is on {tensor.device}, expected {device}")
    if tensor.numel() != blocks * count:
        raise UsageError(
            f"{collective.name}: rank {rank}'s {side} has {tensor.numel()} elements, "
            f"expected {blocks} block(s) of {count}"
        )


def _check_overlap(collective: Collective, rank: int, source: torch.Tensor, target: torch.Tensor, count: int) -> None:
    """Two buffers that share memory must do so as nccl.h says."""
    first, other = source.data_ptr(), target.data_ptr()
    if first + source.nbytes <= other or other + target.nbytes <= first:
        return
    if collective.name == "alltoall":
        raise UnsupportedError("alltoall runs out of place only: its output would overwrite what is still to be sent")
    shared = [
        (place.sources[rank], place.targets[rank])
        for place in placements(collective).values()
        if rank in place.sources and rank in place.targets
    ]
    block = count * source.element_size()
    if not shared or any(first + s * block != other + t * block for s, t in shared):
        raise UsageError(
            f"{collective.name}: rank {rank}'s input and output overlap, but not as in place: an item's input and "
            "output block must be the same memory"
        )
