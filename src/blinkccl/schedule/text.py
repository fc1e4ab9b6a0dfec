"""Programs as text, for reading and comparison, and as JSON, for other software.

Both are canonical: equal programs give equal bytes in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from fractions import Fraction
from operator import attrgetter
from typing import Annotated

import msgspec

from blinkccl.collectives.spec import Block, Collective
from blinkccl.errors import ScheduleError, UsageError
from blinkccl.schedule.program import Channel, Program, Queue, Role, Slice
from blinkccl.schema import READABLE, SCHEMA_VERSION
from blinkccl.trees.forest.model import digest

_ROLE = attrgetter(*(field.name for field in fields(Role)))


def to_text(program: Program) -> str:
    """One line per slice, queue, channel and role, in the program's order.

    A role's line has its rank, channel, share, stage, ``@offset`` and slice, then the actions of one execution.
    """
    return "\n".join(_lines(program)) + "\n"


def program_hash(program: Program) -> str:
    """A hash of :func:`to_text`, 16 hexadecimal digits."""
    return digest(_lines(program))


def _lines(program: Program) -> list[str]:
    coll = program.collective
    ends = [
        f"{key} {value}"
        for key, value in (("root", coll.root), ("src", coll.src), ("dst", coll.dst))
        if value is not None
    ]
    relays = f" relays {_list(program.relays)}" if program.relays else ""
    lines = [
        " ".join([f"program {coll.name}", *ends, f"ranks {_list(program.ranks)}{relays} rate {program.rate}"]),
        f"made from forest {program.forest_hash or '-'} topology {program.topology_hash or '-'}",
    ]
    lines += [f"slice {i} block {_block(s.block)} from {s.start} to {s.stop}" for i, s in enumerate(program.slices)]
    lines += [
        f"queue {i} rank {q.src} to {q.dst} path {_list(q.path)}{f' home {q.home}' if q.home != q.path[-1] else ''}"
        for i, q in enumerate(program.queues)
    ]
    lines += [
        f"channel {i} slots {c.slots} protocol {c.protocol} shares {_list(c.shares)}"
        for i, c in enumerate(program.channels)
    ]
    lines += [_role(role) for role in program.roles]
    return lines


def _role(role: Role) -> str:
    early = role.own_operand_index if role.contributes else len(role.receives)
    actions = []
    if role.receives[:early]:
        actions.append(f"receive {_list(role.receives[:early])}")
    if role.contributes:
        actions.append("own input")
    if role.receives[early:]:
        actions.append(f"receive {_list(role.receives[early:])}")
    if role.own_operand_index != (min(max(role.own_operand_index, 0), len(role.receives)) if role.contributes else 0):
        actions.append(
            f"own operand {role.own_operand_index}"
        )  # an invalid index, which the verifier refuses: different programs must have different texts
    if role.completes:
        actions.append("complete")
    if role.keeps:
        actions.append("keep")
    if role.sends:
        actions.append(f"send {_list(role.sends)}")
    return (
        f"rank {role.rank} channel {role.channel} share {role.share} {role.stage} @{role.offset} "
        f"slice {role.slice}: {', '.join(actions) or 'nothing'}"
    )


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def _block(block: Block) -> str:
    if block is None:
        return "-"
    return str(block) if isinstance(block, int) else f"{block[0]}>{block[1]}"


_UNSET = msgspec.UNSET
_Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Ratio = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]+(/[0-9]+)?$", max_length=400)]
_Name = Annotated[str, msgspec.Meta(max_length=100)]


class _CollectiveForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: _Name
    root: _Number | None = None
    src: _Number | None = None
    dst: _Number | None = None


class _SliceForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    # An int without limits: msgspec 0.22.0 corrupts memory on a constrained int beside a fixed-length tuple.
    block: int | tuple[int, int] | None
    start: _Ratio
    stop: _Ratio


class _QueueForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    src: _Number
    dst: _Number
    path: tuple[_Number, ...]
    home: _Number | msgspec.UnsetType = _UNSET  # set unless it is the receiver


class _ChannelForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    shares: tuple[_Number, ...]
    slots: _Number
    protocol: _Name


class _RoleForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    rank: _Number
    channel: _Number
    share: _Number
    stage: _Name
    offset: _Number
    slice: _Number
    contributes: bool
    keeps: bool
    completes: bool
    receives: tuple[_Number, ...]
    sends: tuple[_Number, ...]
    own_operand_index: _Number = 0
    turn: _Number | msgspec.UnsetType = _UNSET  # its name in schema_version 1


class _ProgramForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    schema_version: int
    collective: _CollectiveForm
    ranks: tuple[_Number, ...]
    rate: _Ratio
    slices: tuple[_SliceForm, ...]
    queues: tuple[_QueueForm, ...]
    channels: tuple[_ChannelForm, ...]
    roles: tuple[_RoleForm, ...]
    forest_hash: _Name = ""
    topology_hash: _Name = ""
    relays: tuple[_Number, ...] | msgspec.UnsetType = _UNSET


#: Constructed on import: msgspec 0.22.0 crashes if two threads decode a type for the first time at once.
_DECODER = msgspec.json.Decoder(_ProgramForm)


def to_json(program: Program) -> str:
    """The program as one JSON object with ``schema_version``; fractions are strings, ranks are positions."""
    coll = program.collective
    form = _ProgramForm(
        SCHEMA_VERSION,
        _CollectiveForm(coll.name, coll.root, coll.src, coll.dst),
        program.ranks,
        str(program.rate),
        tuple(_SliceForm(s.block, str(s.start), str(s.stop)) for s in program.slices),
        tuple(_QueueForm(q.src, q.dst, q.path, _UNSET if q.home == q.path[-1] else q.home) for q in program.queues),
        tuple(_ChannelForm(c.shares, c.slots, c.protocol) for c in program.channels),
        tuple(_RoleForm(*_ROLE(r)) for r in program.roles),
        program.forest_hash,
        program.topology_hash,
        program.relays or _UNSET,
    )
    return msgspec.json.encode(form).decode()


def from_json(text: str | bytes) -> Program:
    """The program that :func:`to_json` wrote, valid or not; a ScheduleError states the JSON path of the fault."""
    try:
        form = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ScheduleError(f"not a program: {error}") from None
    if form.schema_version not in READABLE:
        versions = " or ".join(map(str, READABLE))
        raise ScheduleError(
            f"not a program: expected schema_version {versions}, got {form.schema_version} - at `$.schema_version`"
        )
    spec = form.collective
    try:
        collective = Collective(spec.name, len(form.ranks), spec.root, spec.src, spec.dst)
    except UsageError as error:
        raise ScheduleError(f"not a program: {error} - at `$.collective`") from None
    # Version 1 called the field turn.
    roles = (r if r.turn is _UNSET else msgspec.structs.replace(r, own_operand_index=r.turn) for r in form.roles)
    return Program(
        collective,
        form.ranks,
        _fraction(form.rate, "$.rate"),
        tuple(
            Slice(s.block, _fraction(s.start, f"$.slices[{i}].start"), _fraction(s.stop, f"$.slices[{i}].stop"))
            for i, s in enumerate(form.slices)
        ),
        tuple(Queue(q.src, q.dst, q.path, _home(q)) for q in form.queues),
        tuple(Channel(c.shares, c.slots, c.protocol) for c in form.channels),
        tuple(Role(*_ROLE(role)) for role in roles),
        form.forest_hash,
        form.topology_hash,
        () if form.relays is _UNSET else form.relays,
    )


def _home(queue: _QueueForm) -> int:
    if queue.home is not _UNSET:
        return queue.home
    return queue.path[-1] if queue.path else -1  # the verifier refuses an empty path


def _fraction(text: str, where: str) -> Fraction:
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise ScheduleError(f"not a program: {text!r} divides by zero - at `{where}`") from None
