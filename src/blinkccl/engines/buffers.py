"""The memory that ranks run on: input and output buffers, separate or in place, and one chunk of each by role.

In place as in nccl.h: a rank's input and output block of one item are the same memory. AllReduce,
Broadcast and Reduce have one buffer; AllGather's and Gather's input is the rank's own block of the
output; ReduceScatter's and Scatter's output is the rank's own block of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DType, Operation, Scale, element_type, fold, operation, scalars
from blinkccl.collectives.oracle import check_inputs
from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError, UnsupportedError, UsageError
from blinkccl.schedule.chunking import Bound, placements
from blinkccl.schedule.program import Program, Role

Array = NDArray[Any]
#: Makes zeroed memory for so many elements of a type.
Zeros = Callable[[int, np.dtype[Any]], Array]


@dataclass(frozen=True, slots=True)
class RankBuffers:
    """Per rank the input and the output, one-dimensional, or None; views of one array in place."""

    inputs: tuple[Array | None, ...]
    outputs: tuple[Array | None, ...]


def allocate(collective: Collective, count: int, dtype: DType, in_place: bool, zeros: Zeros = np.zeros) -> RankBuffers:
    """Zeroed buffers for every rank."""
    if in_place and collective.name == "alltoall":
        _refuse_alltoall()
    inputs: list[Array | None] = []
    outputs: list[Array | None] = []
    for rank in range(collective.world_size):
        held, wanted = collective.input_blocks(rank), collective.output_blocks(rank)
        if in_place and held and wanted:
            memory = zeros(max(held, wanted) * count, dtype.storage)
            source, target = next(shared_blocks(collective, rank), (0, 0))
            first = max(source, target)
            inputs.append(memory[(first - source) * count : (first - source + held) * count])
            outputs.append(memory[(first - target) * count : (first - target + wanted) * count])
        else:
            inputs.append(zeros(held * count, dtype.storage) if held else None)
            outputs.append(zeros(wanted * count, dtype.storage) if wanted else None)
    return RankBuffers(tuple(inputs), tuple(outputs))


def _refuse_alltoall() -> NoReturn:
    """Its input and output blocks belong to different items. NCCL has it out of place only, too."""
    raise UnsupportedError("alltoall runs out of place only: its output would overwrite what is still to be sent")


def shared_blocks(collective: Collective, rank: int) -> Iterator[tuple[int, int]]:
    """Block indexes, in input and output, of the items that ``rank`` both contributes to and keeps."""
    for place in placements(collective).values():
        if rank in place.sources and rank in place.targets:
            yield place.sources[rank], place.targets[rank]


def filled(
    collective: Collective,
    inputs: Sequence[Array | None],
    count: int,
    dtype: str,
    in_place: bool,
    zeros: Zeros = np.zeros,
) -> RankBuffers:
    """Buffers made by ``zeros`` that hold a copy of ``inputs``.

    A UsageError if an input does not fit the collective, ``count`` or ``dtype``; AllToAll in place is an
    UnsupportedError.
    """
    row = element_type(dtype)
    _, found = check_inputs(collective, inputs, count)
    if found is not row:
        raise UsageError(f"the inputs are {found.name}, but the call says {row.name}")
    buffers = allocate(collective, count, row, in_place, zeros)
    for target, source in zip(buffers.inputs, inputs, strict=True):
        if target is not None and source is not None:
            target[...] = source
    return buffers


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A call's element type and operation; ``factors``: of a reduction, the scalars of all ranks, if it has some."""

    dtype: DType
    chosen: Operation
    factors: tuple[Scale, ...] | None

    @classmethod
    def of(cls, collective: Collective, call: CollectiveCall, scales: Sequence[float] | None) -> Arithmetic:
        """Refuses, before anything runs, what the type does not have and scales that do not fit."""
        dtype, chosen = element_type(call.dtype), operation(call.op)
        dtype.combine(chosen)
        factors = scalars(chosen, dtype, scales, collective.world_size)
        return cls(dtype, chosen, factors if collective.reduces else None)


@dataclass(frozen=True, slots=True)
class RoleViews:
    """A role's slice in its rank's buffers; ``divisor`` > 1 ends an average, ``scale`` is for what it contributes."""

    source: Array | None
    target: Array | None
    chunks: int
    divisor: int
    scale: Scale


def role_views(bound: Bound, buffers: RankBuffers, role: Role, values: Arithmetic) -> RoleViews:
    """The memory that ``role``, checked by :func:`check_roles`, reads and writes."""
    extent = bound.extents[role.slice]
    views: list[Array | None] = []
    for used, at, memories in (
        (role.contributes, bound.source(role.rank, role.slice), buffers.inputs),
        (role.keeps, bound.target(role.rank, role.slice), buffers.outputs),
    ):
        memory = memories[role.rank] if used else None  # a relay has none
        views.append(memory[at : at + extent.length] if memory is not None and at is not None else None)
    divisor = bound.contributions(role.slice) if role.completes and values.chosen.averages else 1
    scale = values.factors[role.rank] if values.factors is not None and role.contributes else None
    return RoleViews(views[0], views[1], extent.chunks, divisor, scale)


def execute(role: Role, memory: RoleViews, span: slice, messages: Sequence[Array], values: Arithmetic) -> Array:
    """The value of one execution, as :mod:`blinkccl.schedule.program` says; it is kept where the role keeps it."""
    operands = list(messages)
    factors: list[Scale] = [None] * len(operands)
    if memory.source is not None:
        # A copy: where it is sent as it is, a later execution may overwrite its memory in place.
        operands.insert(role.own_operand_index, memory.source[span].copy())
        factors.insert(role.own_operand_index, memory.scale)
    value = fold(values.dtype, values.chosen, operands, factors, memory.divisor)
    if memory.target is not None:
        memory.target[span] = value
    return value


def check_overlap(collective: Collective, rank: int, source: Array, target: Array, count: int) -> None:
    """Refuses a rank's buffers that share memory other than in place, as nccl.h says it."""
    if not np.may_share_memory(source, target):
        return
    if collective.name == "alltoall":
        _refuse_alltoall()
    block = count * source.itemsize
    shared = list(shared_blocks(collective, rank))
    start, other = source.ctypes.data, target.ctypes.data
    if not shared or any(start + s * block != other + t * block for s, t in shared):
        raise UsageError(
            f"{collective.name}: rank {rank}'s input and output overlap, but not as in place: an item's input and "
            "output block must be the same memory"
        )


def check_roles(program: Program, relays: bool = False, switches: bool = False) -> None:
    """Refuses roles without a value, or with a block that the rank lacks: who fails alone lets all others wait.

    And those outside the job, unless this engine has ``relays``, of which some combine if it has ``switches``.
    """
    if program.combining and not switches:
        raise UnsupportedError(
            f"the program combines at switches {list(program.combining)}, which engine reference alone does; plan with "
            "another algorithm than in_switch"
        )
    if program.relays and not relays:
        raise UnsupportedError(
            f"the program has roles at vertices {list(program.relays)} outside the job, which this engine does not "
            "run; take engine reference, host or sockets, or plan without --relays"
        )
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
