"""The memory that ranks run on: input and output buffers, separate or in place, and one chunk of each by role.

In place as in nccl.h: a rank's input and output block of one item are the same memory. AllReduce,
Broadcast and Reduce have one buffer; AllGather's and Gather's input is the rank's own block of the
output; ReduceScatter's and Scatter's output is the rank's own block of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.ops import DType, Operation, Scale, element_type
from blinkccl.collectives.oracle import check_inputs
from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError, UnsupportedError, UsageError
from blinkccl.schedule.chunking import Bound, placements
from blinkccl.schedule.program import Program, Role

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RankBuffers:
    """Per rank the input and the output, one-dimensional, or None; views of one array in place."""

    inputs: tuple[Array | None, ...]
    outputs: tuple[Array | None, ...]


def allocate(collective: Collective, count: int, dtype: DType, in_place: bool) -> RankBuffers:
    """Zeroed buffers for every rank.

    Raises
    ------
    UnsupportedError
        If ``in_place`` is asked of AllToAll, whose input and output blocks belong to different items: a rank
        would overwrite what it still has to send. NCCL has it out of place only, too.
    """
    if in_place and collective.name == "alltoall":
        raise UnsupportedError("alltoall runs out of place only: its output would overwrite what is still to be sent")
    inputs: list[Array | None] = []
    outputs: list[Array | None] = []
    for rank in range(collective.world_size):
        held, wanted = collective.input_blocks(rank), collective.output_blocks(rank)
        if in_place and held and wanted:
            memory = np.zeros(max(held, wanted) * count, dtype.storage)
            source, target = _shared_blocks(collective, rank)
            first = max(source, target)
            inputs.append(memory[(first - source) * count : (first - source + held) * count])
            outputs.append(memory[(first - target) * count : (first - target + wanted) * count])
        else:
            inputs.append(np.zeros(held * count, dtype.storage) if held else None)
            outputs.append(np.zeros(wanted * count, dtype.storage) if wanted else None)
    return RankBuffers(tuple(inputs), tuple(outputs))


def _shared_blocks(collective: Collective, rank: int) -> tuple[int, int]:
    """Block indexes, in input and output, of an item that ``rank`` both contributes to and keeps."""
    for item in collective.items():
        source, target = dict(item.contributions).get(rank), dict(item.destinations).get(rank)
        if source is not None and target is not None:
            return source, target
    return 0, 0


def filled(
    collective: Collective, inputs: Sequence[Array | None], count: int, dtype: str, in_place: bool
) -> tuple[RankBuffers, DType]:
    """Buffers that hold a copy of ``inputs``, and the row of their element type.

    Raises
    ------
    UsageError
        If a buffer does not fit the collective, ``count`` or ``dtype``.
    UnsupportedError
        As :func:`allocate`, or if the element type is unknown.
    """
    row = element_type(dtype)
    _, found = check_inputs(collective, inputs, count)
    if found is not row:
        raise UsageError(f"the inputs are {found.name}, but the call says {row.name}")
    buffers = allocate(collective, count, row, in_place)
    for target, source in zip(buffers.inputs, inputs, strict=True):
        if target is not None and source is not None:
            target[...] = source
    return buffers, row


@dataclass(frozen=True, slots=True)
class RoleViews:
    """A role's slice in its rank's own buffers; ``divisor`` > 1 where it ends an average.

    ``scale`` is what its own contribution is multiplied by, or None.
    """

    source: Array | None
    target: Array | None
    chunks: int
    divisor: int
    scale: Scale


def role_views(
    bound: Bound, buffers: RankBuffers, role: Role, chosen: Operation, factors: tuple[Scale, ...] | None
) -> RoleViews:
    """The memory that ``role`` reads and writes, and how it finishes values.

    Parameters
    ----------
    factors
        Every rank's scalar, as :func:`blinkccl.collectives.ops.scalars` gives them. Without effect on collectives
        that do not reduce.

    Raises
    ------
    ScheduleError
        If it contributes or keeps a block that its rank does not have, or has no value at all.
    """
    extent = bound.extents[role.slice]
    part = bound.program.slices[role.slice]
    where = f"rank {role.rank}, channel {role.channel}, share {role.share} ({role.stage})"
    if not (role.contributes or role.receives):
        raise ScheduleError(f"{where} neither contributes nor receives, so it has no value")
    views: list[Array | None] = []
    for used, at, memory, verb in (
        (role.contributes, bound.source(role.rank, role.slice), buffers.inputs[role.rank], "contributes"),
        (role.keeps, bound.target(role.rank, role.slice), buffers.outputs[role.rank], "keeps"),
    ):
        if used and (at is None or memory is None):
            raise ScheduleError(f"{where} {verb} block {part.block}, which its rank does not have")
        views.append(memory[at : at + extent.length] if used and memory is not None and at is not None else None)
    divisor = bound.contributions(role.slice) if role.completes and chosen.averages else 1
    scaled = factors is not None and role.contributes and bound.program.collective.reduces
    scale = factors[role.rank] if factors is not None and scaled else None
    return RoleViews(views[0], views[1], extent.chunks, divisor, scale)


def check_overlap(collective: Collective, rank: int, source: Array, target: Array, count: int) -> None:
    """Refuses a rank's buffers that share memory other than in place, as nccl.h says it.

    Raises
    ------
    UsageError, UnsupportedError
        Saying what the two must be.
    """
    if not np.may_share_memory(source, target):
        return
    name = collective.name
    if name == "alltoall":
        raise UnsupportedError("alltoall runs out of place only: its output would overwrite what is still to be sent")
    block = count * source.itemsize
    shared = [
        (place.sources[rank], place.targets[rank])
        for place in placements(collective).values()
        if rank in place.sources and rank in place.targets
    ]
    start, other = source.ctypes.data, target.ctypes.data
    if not shared or any(start + s * block != other + t * block for s, t in shared):
        raise UsageError(
            f"{name}: rank {rank}'s input and output overlap, but not as in place: an item's input and output "
            "block must be the same memory"
        )


def check_roles(program: Program) -> None:
    """Refuses a program that has a role without a value, or with a block that its rank does not have.

    The verifier does so, too; here it is because a rank that fails alone would let all others wait.

    Raises
    ------
    ScheduleError
        Naming rank, channel and share.
    """
    for role in program.roles:
        where = f"rank {role.rank}, channel {role.channel}, share {role.share} ({role.stage})"
        if not (role.contributes or role.receives):
            raise ScheduleError(f"{where} neither contributes nor receives, so it has no value")
        block = program.slices[role.slice].block
        place = placements(program.collective).get(block)
        for used, ranks, verb in (
            (role.contributes, place.sources if place else {}, "contributes"),
            (role.keeps, place.targets if place else {}, "keeps"),
        ):
            if used and role.rank not in ranks:
                raise ScheduleError(f"{where} {verb} block {block}, which its rank does not have")
