"""Rounds from the definition: what a firing needs is there, slots suffice, nothing is overwritten too early."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.engines.buffers import check_roles
from blinkccl.engines.torch_p2p_actors import actors_of
from blinkccl.engines.torch_p2p_rounds import Rounds, firing_order, plan_rounds
from blinkccl.errors import ScheduleError, UnsupportedError
from blinkccl.schedule.liveness import liveness_fault
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Channel, Program, Queue, Role, Slice
from blinkccl.schedule.verifier import violations
from blinkccl.schedule.wiring import connect, steps_of
from blinkccl.testing.faults import FAULTS
from blinkccl.testing.forests import random_forest
from blinkccl.testing.programs import random_program
from blinkccl.topology.spec import parse_spec

CHUNKS = 5


def walk(program: Program, rounds: Rounds) -> Counter[int]:
    """Runs all ranks round by round; the most messages that each queue ever held.

    A message is posted in its sender's round and is there ``ahead`` rounds later, in a slot until it is taken.
    """
    fires = defaultdict(list)
    for rank in range(len(program.ranks)):
        for index in firing_order(program, rank):
            for chunk in range(CHUNKS):
                fires[rounds.start[index] + rounds.period * chunk].append((index, chunk))
    writer = {(role.rank, role.slice): index for index, role in enumerate(program.roles) if role.keeps}
    there: dict[tuple[int, int], int] = {}
    held: Counter[int] = Counter()
    most: Counter[int] = Counter()
    written: dict[tuple[int, int, int], int] = {}
    for now in sorted(fires):
        for index, chunk in fires[now]:
            role = program.roles[index]
            for number, arc in enumerate(rounds.messages):
                if arc.head == index:
                    assert there.pop((number, chunk)) <= now
                    held[arc.queue] -= 1
            key = role.rank, role.slice, chunk
            if role.contributes and writer.get(key[:2]) != index:
                assert key not in written, f"role {index} reads chunk {chunk} of what was overwritten"
            if role.keeps:
                written[key] = now
        for index, chunk in fires[now]:
            for number, arc in enumerate(rounds.messages):
                if arc.tail == index:
                    there[number, chunk] = now + rounds.ahead
                    held[arc.queue] += 1
                    most[arc.queue] = max(most[arc.queue], held[arc.queue])
    assert not there, "messages that nobody has taken"
    return most


def slots_of(program: Program) -> dict[int, int]:
    return {queue: program.channels[role.channel].slots for role in program.roles for queue in role.sends}


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_run_in_rounds(seed: int, ahead: int) -> None:
    program, topology = random_program(Random(seed))
    assert violations(program, topology) == []
    most = walk(program, plan_rounds(program, ahead))
    assert all(most[queue] <= slots for queue, slots in slots_of(program).items())


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_a_tick_of_lowered_programs_is_a_round(seed: int, slots: int) -> None:
    program = lower(random_forest(Random(seed)), slots)
    rounds = plan_rounds(program)
    first = min(role.offset for role in program.roles)
    assert rounds.period == 1
    assert rounds.start == tuple(role.offset - first for role in program.roles)


def chain(offsets: tuple[int, int, int], slots: int) -> Program:
    """A reduction 0 → 1 → 2."""
    whole = Collective("reduce", 3, root=2)
    queues = (Queue(0, 1, (0, 1)), Queue(1, 2, (1, 2)))
    roles = (
        Role(0, 0, 0, "reduce", offsets[0], 0, True, False, False, (), (0,)),
        Role(1, 0, 0, "reduce", offsets[1], 0, True, False, False, (0,), (1,)),
        Role(2, 0, 0, "root", offsets[2], 0, True, True, True, (1,), ()),
    )
    part = Slice(None, Fraction(0), Fraction(1))
    return Program(whole, (0, 1, 2), Fraction(1), (part,), queues, (Channel((0,), slots),), roles)


def test_hops_within_a_tick_get_a_round_each() -> None:
    program = chain((0, 0, 0), slots=1)
    assert violations(program, parse_spec("chain:3")) == []
    rounds = plan_rounds(program)
    assert (rounds.period, rounds.start) == (1, (0, 1, 2))


def test_the_clocks_of_ranks_do_not_matter() -> None:
    assert plan_rounds(chain((7, 2, 4), slots=6)).start == (0, 1, 2)


def test_one_slot_and_two_rounds_of_travel_halve_the_rate() -> None:
    assert plan_rounds(chain((0, 1, 2), slots=1), ahead=2).period == 2
    assert plan_rounds(chain((0, 1, 2), slots=2), ahead=2).period == 1


def test_few_slots_for_unequal_ways_take_several_rounds_per_chunk() -> None:
    """Rank 0 sends to 2 and, through 1, once more: the short way holds its message while the other goes round."""
    program = chain((0, 0, 0), slots=1)
    first, second, last = program.roles
    program = replace(
        program,
        queues=(*program.queues, Queue(0, 2, (0, 2))),
        roles=(replace(first, sends=(0, 2)), second, replace(last, receives=(1, 2))),
    )
    rounds = plan_rounds(program)
    assert rounds.period == 2
    assert max(walk(program, rounds).values()) == 1
    assert plan_rounds(replace(program, channels=(Channel((0,), 2),))).period == 1


def test_slots_freed_in_the_middle_of_a_firing() -> None:
    """Live with one slot only because rank 1 empties queue 0 before it waits for queue 3: firings in rounds are whole.

    Queue 0 carries b, then a; queue 2 carries a, then b. Rank 1's b waits in queue 3 for rank 3's b, that in queue 2
    for a to make room, that in queue 1 for rank 0's a, which fires when b has left queue 0.
    """
    parts = tuple(Slice(None, Fraction(i, 2), Fraction(i + 1, 2)) for i in range(2))
    queues = tuple(Queue(src, dst, (src, dst)) for src, dst in ((0, 1), (0, 2), (2, 3), (3, 1)))

    def role(rank: int, part: int, receives: tuple[int, ...], sends: tuple[int, ...]) -> Role:
        return Role(rank, 0, part, "reduce", 0, part, not receives, False, False, receives, sends)

    a, b = 0, 1
    roles = (
        *(role(0, b, (), (0,)), role(0, a, (), (0, 1))),
        *(role(2, a, (1,), (2,)), role(2, b, (), (2,))),
        *(role(3, a, (2,), ()), role(3, b, (2,), (3,))),
        *(role(1, b, (0, 3), ()), role(1, a, (0,), ())),
    )
    whole = Collective("allreduce", 4)
    program = Program(whole, (0, 1, 2, 3), Fraction(1), parts, queues, (Channel((a, b), 1),), roles)
    wiring = connect(program)
    assert wiring.faults == ()
    assert liveness_fault(program, steps_of(program), wiring) is None
    assert max(walk(program, plan_rounds(program)).values()) == 2


def test_a_circle_of_messages_is_refused() -> None:
    program = chain((0, 0, 0), slots=1)
    first, second, last = program.roles
    circle = replace(
        program,
        queues=(*program.queues, Queue(2, 0, (2, 0))),
        roles=(replace(first, receives=(2,)), second, replace(last, sends=(2,))),
    )
    with pytest.raises(UnsupportedError, match="wait for each other in a circle"):
        plan_rounds(circle)


def test_ends_that_do_not_fit_are_refused() -> None:
    program = chain((0, 1, 2), slots=1)
    with pytest.raises(ScheduleError, match="lost chunk"):
        plan_rounds(replace(program, roles=(*program.roles[:2], replace(program.roles[2], receives=()))))


@pytest.mark.parametrize("seed", range(20))
def test_both_ends_list_a_batch_in_the_same_order(seed: int) -> None:
    program, _ = random_program(Random(seed))
    rounds = plan_rounds(program)
    sent, received = defaultdict(list), defaultdict(list)
    for rank in range(len(program.ranks)):
        for actor in actors_of(program, rounds, rank):
            for outlet in actor.outlets:
                sent[rank, outlet.peer].append((outlet.order, actor.start, actor.role.slice))
            for inlet in actor.inlets:
                received[inlet.peer, rank].append((inlet.order, inlet.start, actor.role.slice))
    assert sent.keys() == received.keys()
    assert all(sorted(sent[pair]) == sorted(received[pair]) for pair in sent)


def test_roles_that_cannot_fire_are_refused() -> None:
    program = chain((0, 1, 2), slots=1)
    first = program.roles[0]
    for change, message in (
        ({"keeps": True}, "keeps block None, which its rank does not have"),
        ({"contributes": False}, "neither contributes nor receives"),
    ):
        with pytest.raises(ScheduleError, match=message):
            check_roles(replace(program, roles=(replace(first, **change), *program.roles[1:])))


def test_the_order_within_a_rank_cannot_block() -> None:
    """The planted fault is one of order only: a rank asks for the result before it gives its part. Rounds have none."""
    planted = [FAULTS["deadlock"].plant(lower(random_forest(Random(seed))), Random(seed)) for seed in range(20)]
    damaged = [program for program in planted if program is not None]
    assert damaged
    for program in damaged:
        walk(program, plan_rounds(program))
