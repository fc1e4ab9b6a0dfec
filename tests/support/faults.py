"""Faults for valid Programs, each with the cause that the verifier must name.

A fault returns the damaged program, or None if this program offers no place for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from blinkccl.schedule.chunking import placements
from blinkccl.schedule.program import Program, Role

Plant = Callable[[Program, Random], Program | None]


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """``cause``: a text that one of the verifier's sentences must contain."""

    cause: str
    plant: Plant


def _with_role(program: Program, index: int, role: Role) -> Program:
    return replace(program, roles=(*program.roles[:index], role, *program.roles[index + 1 :]))


def _pick(random: Random, program: Program, wanted: Callable[[Role], bool]) -> int | None:
    """Return the index of a random role that ``wanted`` accepts."""
    indexes = [index for index, role in enumerate(program.roles) if wanted(role)]
    return random.choice(indexes) if indexes else None


def _alone(program: Program, role: Role) -> bool:
    """True if no other role receives from this one's queues: moving it then breaks no order of messages."""
    return not any(queue in other.receives for other in program.roles if other is not role for queue in role.receives)


def deadlock(program: Program, random: Random) -> Program | None:
    """A rank waits for the result before it has sent its contribution to it."""
    asks = {
        (role.rank, role.share): i
        for i, role in enumerate(program.roles)
        if role.stage == "broadcast" and _alone(program, role)
    }
    gives = {(role.rank, role.share): i for i, role in enumerate(program.roles) if role.stage == "reduce"}
    both = [key for key in asks if key in gives]
    if not both:
        return None
    key = random.choice(both)
    ask, give = program.roles[asks[key]], program.roles[gives[key]]
    late = max(role.offset for role in program.roles) + 1
    # All roles except the receiver move to later ticks: it now waits a tick before it sends.
    moved = tuple(replace(role, offset=role.offset + late) for role in program.roles)
    return _with_role(replace(program, roles=moved), asks[key], replace(ask, offset=give.offset + late - 1))


def skew(program: Program, random: Random) -> Program | None:
    """A rank delays one of two receives from the same rank by more ticks than the queue has slots."""
    index = _pick(
        random,
        program,
        lambda role: (
            len(role.receives) == 1
            and _alone(program, role)
            and any(
                other is not role
                and other.receives
                and other.rank == role.rank
                and program.queues[other.receives[0]].src == program.queues[role.receives[0]].src
                for other in program.roles
            )
        ),
    )
    if index is None:
        return None
    role = program.roles[index]
    far = 2 * max(channel.slots for channel in program.channels) + 2 * max(r.offset for r in program.roles) + 2
    return _with_role(program, index, replace(role, offset=role.offset + far))


def double_contribution(program: Program, random: Random) -> Program | None:
    """A rank that only forwards a result adds its own input, which the result already contains."""
    known = placements(program.collective)
    index = _pick(
        random,
        program,
        lambda role: (
            not role.contributes
            and bool(role.sends or role.keeps)
            and role.rank in known[program.slices[role.slice].block].sources
            and role.stage == "broadcast"
        ),
    )
    return None if index is None else _with_role(program, index, replace(program.roles[index], contributes=True))


def wrong_block(program: Program, random: Random) -> Program | None:
    """A rank adds a block that it does not have."""
    known = placements(program.collective)
    index = _pick(
        random,
        program,
        lambda role: not role.contributes and role.rank not in known[program.slices[role.slice].block].sources,
    )
    return None if index is None else _with_role(program, index, replace(program.roles[index], contributes=True))


def missing_contribution(program: Program, random: Random) -> Program | None:
    """A rank on the way up forwards its messages without its own input."""
    index = _pick(random, program, lambda role: role.contributes and bool(role.receives))
    return (
        None
        if index is None
        else _with_role(program, index, replace(program.roles[index], contributes=False, own_operand_index=0))
    )


def stray_write(program: Program, random: Random) -> Program | None:
    """A relay keeps data for another rank."""
    known = placements(program.collective)
    index = _pick(
        random,
        program,
        lambda role: not role.keeps and role.rank not in known[program.slices[role.slice].block].targets,
    )
    return None if index is None else _with_role(program, index, replace(program.roles[index], keeps=True))


def never_written(program: Program, random: Random) -> Program | None:
    """A destination forwards the result but does not keep it."""
    index = _pick(random, program, lambda role: role.keeps)
    return None if index is None else _with_role(program, index, replace(program.roles[index], keeps=False))


def lost_chunk(program: Program, random: Random) -> Program | None:
    """A send has no receive."""
    index = _pick(random, program, lambda role: len(role.receives) > 1 or (bool(role.receives) and role.contributes))
    if index is None:
        return None
    role = program.roles[index]
    left = role.receives[1:]
    return _with_role(
        program, index, replace(role, receives=left, own_operand_index=min(role.own_operand_index, len(left)))
    )


def beyond_own_operand_index(program: Program, random: Random) -> Program | None:
    """A rank waits for more messages than it gets before it adds its own input."""
    index = _pick(random, program, lambda role: role.contributes)
    if index is None:
        return None
    role = program.roles[index]
    return _with_role(program, index, replace(role, own_operand_index=len(role.receives) + 1))


def starving(program: Program, random: Random) -> Program | None:
    """A receive has no send."""
    index = _pick(random, program, lambda role: bool(role.sends))
    if index is None:
        return None
    return _with_role(program, index, replace(program.roles[index], sends=program.roles[index].sends[1:]))


def wrong_order(program: Program, random: Random) -> Program | None:
    """A rank receives two slices from one rank in another order than they are sent."""
    pairs = [
        (i, j)
        for i, a in enumerate(program.roles)
        for j, b in enumerate(program.roles)
        if i < j
        and a.rank == b.rank
        and a.slice != b.slice
        and a.channel == b.channel
        and a.receives
        and b.receives
        and program.queues[a.receives[0]].src == program.queues[b.receives[0]].src
        and a.receives[0] != b.receives[0]
    ]
    if not pairs:
        return None
    i, j = random.choice(pairs)
    a, b = program.roles[i], program.roles[j]
    swapped = _with_role(program, i, replace(a, receives=(b.receives[0], *a.receives[1:])))
    return _with_role(swapped, j, replace(b, receives=(a.receives[0], *b.receives[1:])))


def overload(program: Program, random: Random) -> Program | None:
    """The rate exceeds the links' capacities."""
    return replace(program, rate=program.rate * 1000) if program.queues else None


def gap(program: Program, random: Random) -> Program | None:
    """A slice ends too early, so no slice has the elements after it."""
    index = random.randrange(len(program.slices))
    part = program.slices[index]
    short = replace(part, stop=part.stop - (part.stop - part.start) * Fraction(1, 3))
    return replace(program, slices=(*program.slices[:index], short, *program.slices[index + 1 :]))


def undivided(program: Program, random: Random) -> Program | None:
    """No step completes the reduction, so an average would stay a sum."""
    index = _pick(random, program, lambda role: role.completes and program.collective.reduces)
    return None if index is None else _with_role(program, index, replace(program.roles[index], completes=False))


def no_such_link(program: Program, random: Random) -> Program | None:
    """A queue uses a path that the machine does not have."""
    if not program.queues:
        return None
    index = random.randrange(len(program.queues))
    queue = program.queues[index]
    absent = max(max(q.path) for q in program.queues) + 1000
    bent = replace(queue, path=(queue.path[0], absent, queue.path[-1]))
    return replace(program, queues=(*program.queues[:index], bent, *program.queues[index + 1 :]))


def overwritten(program: Program, random: Random) -> Program | None:
    """In place, a rank overwrites input that it has not read yet."""
    readers = {(role.rank, role.slice) for role in program.roles if role.contributes and not role.keeps}
    index = _pick(random, program, lambda role: role.keeps and (role.rank, role.slice) in readers)
    if index is None or program.collective.name == "alltoall":  # alltoall never runs in place
        return None
    late = max(role.offset for role in program.roles) + 1
    moved = replace(
        program,
        roles=tuple(
            replace(role, offset=role.offset + (0 if i == index else late)) for i, role in enumerate(program.roles)
        ),
    )
    return _with_role(moved, index, replace(moved.roles[index], offset=0))


#: The registry, by name.
FAULTS: dict[str, PlantedFault] = {
    "deadlock": PlantedFault("deadlock: ", deadlock),
    "skew": PlantedFault("deadlock: ", skew),
    "double_contribution": PlantedFault("double contribution", double_contribution),
    "wrong_block": PlantedFault("wrong block", wrong_block),
    "missing_contribution": PlantedFault("without the contribution", missing_contribution),
    "stray_write": PlantedFault("which this rank must not get", stray_write),
    "never_written": PlantedFault("never gets slice", never_written),
    "lost_chunk": PlantedFault("lost chunk", lost_chunk),
    "beyond_own_operand_index": PlantedFault("its number of messages", beyond_own_operand_index),
    "starving": PlantedFault("starves", starving),
    "wrong_order": PlantedFault("wrong order", wrong_order),
    "overload": PlantedFault("overload", overload),
    "gap": PlantedFault("expected", gap),
    "undivided": PlantedFault("no step has completed", undivided),
    "no_such_link": PlantedFault("has no such link", no_such_link),
    "overwritten": PlantedFault("in place", overwritten),
}
