"""Buffers of ranks: input and output, separate or in place, and the views of roles.

In place means the same as in nccl.h: a rank's input and output block of one item are the same memory. AllReduce,
Broadcast and Reduce have one buffer; AllGather's and Gather's input is the rank's own block of the output;
ReduceScatter's and Scatter's output is the rank's own block of the input.
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
#: Allocator of zeroed memory: number of elements, type.
Zeros = Callable[[int, np.dtype[Any]], Array]


@dataclass(frozen=True, slots=True)
class RankBuffers:
    """Input and output of every rank, one-dimensional or None; in place, both are views of one array."""

    inputs: tuple[Array | None, ...]
    outputs: tuple[Array | None, ...]


def allocate(collective: Collective, count: int, dtype: DType, in_place: bool, zeros: Zeros = np.zeros) -> RankBuffers:
    """Zeroed buffers of every rank, ``count`` elements per block."""
    if in_place and collective.name == "alltoall":
        _refuse_alltoall()
    inputs: list[Array | None] = []
    outputs: list[Array | None] = []
    for rank in range(collective.world_size):
        in_blocks, out_blocks = collective.input_blocks(rank), collective.output_blocks(rank)
        if in_place and in_blocks and out_blocks:
            memory = zeros(max(in_blocks, out_blocks) * count, dtype.storage)
            source, target = next(shared_blocks(collective, rank), (0, 0))
            first = max(source, target)
            inputs.append(memory[(first - source) * count : (first - source + in_blocks) * count])
            outputs.append(memory[(first - target) * count : (first - target + out_blocks) * count])
        else:
            inputs.append(zeros(in_blocks * count, dtype.storage) if in_blocks else None)
            outputs.append(zeros(out_blocks * count, dtype.storage) if out_blocks else None)
    return RankBuffers(tuple(inputs), tuple(outputs))


def _refuse_alltoall() -> NoReturn:
    """Raise UnsupportedError: in place, blocks of different items overlap. NCCL has no in-place alltoall either."""
    raise UnsupportedError("alltoall runs out of place only: in place, its output would overwrite input not yet sent")


def shared_blocks(collective: Collective, rank: int) -> Iterator[tuple[int, int]]:
    """Block indexes, in input and output, of the items to which ``rank`` contributes and which it keeps."""
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
    """Buffers from ``zeros`` with a copy of ``inputs``.

    UsageError if an input does not fit the collective, ``count`` or ``dtype``; UnsupportedError for alltoall in place.
    """
    row = element_type(dtype)
    _, input_type = check_inputs(collective, inputs, count)
    if input_type is not row:
        raise UsageError(f"inputs: expected {row.name}, as in the call, got {input_type.name}")
    buffers = allocate(collective, count, row, in_place, zeros)
    for target, source in zip(buffers.inputs, inputs, strict=True):
        if target is not None and source is not None:
            target[...] = source
    return buffers


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A call's element type and operation; ``factors`` are the scalars of all ranks of a reduction with scales."""

    dtype: DType
    chosen: Operation
    factors: tuple[Scale, ...] | None

    @classmethod
    def of(cls, collective: Collective, call: CollectiveCall, scales: Sequence[float] | None) -> Arithmetic:
        """The arithmetic of a call; an error, before any run, for bad scales or an operation that the type lacks."""
        dtype, chosen = element_type(call.dtype), operation(call.op)
        dtype.combine(chosen)
        factors = scalars(chosen, dtype, scales, collective.world_size)
        return cls(dtype, chosen, factors if collective.reduces else None)


@dataclass(frozen=True, slots=True)
class RoleViews:
    """A role's slice in its rank's buffers; ``divisor`` > 1 completes an average, ``scale`` is that of its input."""

    source: Array | None
    target: Array | None
    chunks: int
    divisor: int
    scale: Scale


def role_views(bound: Bound, buffers: RankBuffers, role: Role, values: Arithmetic) -> RoleViews:
    """The memory of ``role``, which :func:`check_roles` must have checked."""
    extent = bound.extents[role.slice]
    views: list[Array | None] = []
    for used, at, memories in (
        (role.contributes, bound.source(role.rank, role.slice), buffers.inputs),
        (role.keeps, bound.target(role.rank, role.slice), buffers.outputs),
    ):
        memory = memories[role.rank] if used else None  # A relay has no buffers.
        views.append(memory[at : at + extent.length] if memory is not None and at is not None else None)
    divisor = bound.contributions(role.slice) if role.completes and values.chosen.averages else 1
    scale = values.factors[role.rank] if values.factors is not None and role.contributes else None
    return RoleViews(views[0], views[1], extent.chunks, divisor, scale)


def execute(role: Role, memory: RoleViews, span: slice, messages: Sequence[Array], values: Arithmetic) -> Array:
    """Compute the value of one execution (:mod:`blinkccl.schedule.program`), and store it if the role keeps it."""
    operands = list(messages)
    factors: list[Scale] = [None] * len(operands)
    if memory.source is not None:
        # Copied, because a later execution may overwrite the input in place before an unreduced message is read.
        operands.insert(role.own_operand_index, memory.source[span].copy())
        factors.insert(role.own_operand_index, memory.scale)
    value = fold(values.dtype, values.chosen, operands, factors, memory.divisor)
    if memory.target is not None:
        memory.target[span] = value
    return value


def check_roles(program: Program, switches: bool = False) -> None:
    """Refuse, on all ranks, roles that would fail on one: without a value, or with a block that their rank lacks.

    UnsupportedError for in-network reduction, unless the engine has ``switches``.
    """
    if program.combining and not switches:
        raise UnsupportedError(
            f"the program reduces data at switches {list(program.combining)}, which ranks cannot run; plan with "
            "another algorithm than in_switch"
        )
    for role in program.roles:
        where = f"rank {role.rank}, channel {role.channel}, share {role.share} ({role.stage})"
        if not (role.contributes or role.receives):
            raise ScheduleError(f"{where}: expected to contribute or to receive data, but it does neither")
        block = program.slices[role.slice].block
        place = placements(program.collective).get(block)
        for used, ranks, verb in (
            (role.contributes, place.sources if place else {}, "contributes"),
            (role.keeps, place.targets if place else {}, "keeps"),
        ):
            if used and role.rank not in ranks:
                raise ScheduleError(f"{where} {verb} block {block}, which its rank does not have")
