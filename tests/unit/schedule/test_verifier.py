"""Every kind of invalid program, and the sentence that reports it."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random

import pytest
from small_forests import chain_allreduce, clique, one_shot_allreduce, ring_allreduce

from blinkccl.errors import VerificationError
from blinkccl.schedule import liveness, verifier
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Channel, Program, Queue, Role
from blinkccl.schedule.verifier import verify, violations
from blinkccl.topology.memories import memory_inside
from blinkccl.topology.model import Topology
from support.faults import FAULTS
from support.forests import random_forest
from support.planned import plan
from support.programs import random_program

CHAIN = lower(chain_allreduce(), slots=1)
TOPOLOGY = chain_allreduce().topology


def role(program: Program, index: int, **changes: object) -> Program:
    roles = list(program.roles)
    roles[index] = replace(roles[index], **changes)
    return replace(program, roles=tuple(roles))


def test_a_right_program_passes() -> None:
    verify(CHAIN, TOPOLOGY)
    assert violations(CHAIN, TOPOLOGY) == []
    assert [r.own_operand_index for r in CHAIN.roles if r.contributes] == [1, 1, 0]
    assert violations(role(CHAIN, 2, own_operand_index=0), TOPOLOGY) == []


def test_the_error_lists_every_violation() -> None:
    wrong = replace(role(CHAIN, 0, keeps=False), rate=Fraction(99))
    with pytest.raises(VerificationError, match="is invalid in 5 place") as caught:
        verify(wrong, TOPOLOGY)
    assert caught.value.violations == violations(wrong, TOPOLOGY)


TABLES: list[tuple[Callable[[Program], Program], str]] = [
    (lambda p: replace(p, ranks=(0, 1)), r"allreduce on 3 ranks needs 3 different vertices, got \[0, 1\]"),
    (lambda p: replace(p, ranks=(0, 1, 1)), "needs 3 different vertices"),
    (lambda p: replace(p, ranks=(0, 1, 9)), "rank 2 is vertex 9, which clique:3 does not have"),
    (lambda p: replace(p, rate=Fraction(0)), "rate must be positive, got 0"),
    (lambda p: replace(p, slices=(replace(p.slices[0], block=4),)), "slice 0: allreduce on 3 ranks has no block 4"),
    (
        lambda p: replace(p, queues=(Queue(0, 7, (0, 7), 7), *p.queues[1:])),
        "queue 0 ends at rank 7, outside 0 … 2",
    ),
    (lambda p: replace(p, queues=(Queue(1, 1, (1, 1), 1), *p.queues[1:])), "queue 0 joins rank 1 to itself"),
    (lambda p: replace(p, channels=(Channel((0,), 0),)), "channel 0 has 0 slots"),
    (lambda p: replace(p, channels=(Channel((0,)), Channel((0,)))), "share 0 is carried by channels 0 and 1"),
    (lambda p: role(p, 0, rank=5), "role 0 runs on rank 5"),
    (lambda p: role(p, 0, rank=-1), "role 0 runs on rank -1"),
    (lambda p: role(p, 0, channel=3), "share 0 is not carried by this channel"),
    (lambda p: role(p, 0, share=3), "share 3 is not carried by this channel"),
    (lambda p: role(p, 0, slice=1), "slice 1 is outside the table of 1"),
    (lambda p: role(p, 0, slice=-1), "slice -1 is outside the table of 1"),
    (lambda p: role(p, 0, offset=-1), "offset -1 is negative"),
    (lambda p: role(p, 0, receives=(99,)), "receives from queue 99, outside the table of 4"),
    (lambda p: role(p, 1, sends=(-1,)), "sends into queue -1, outside the table of 4"),
    (lambda p: role(p, 0, receives=(1, 1)), "receives from one queue twice"),
    (lambda p: role(p, 4, contributes=False), "neither contributes nor receives"),
    (
        lambda p: role(p, 2, own_operand_index=2),
        "role 2 on rank 2, channel 0: own_operand_index 2 is outside 0 … 1, its number of messages",
    ),
    (lambda p: role(p, 2, own_operand_index=-1), "own_operand_index -1 is outside 0 … 1"),
    (lambda p: role(p, 4, own_operand_index=1), "role 4 on rank 0, channel 0: own_operand_index 1 is outside 0 … 0"),
    (
        lambda p: role(p, 0, own_operand_index=1),
        "role 0 on rank 0, channel 0: own_operand_index 1, expected 0: it contributes no operand",
    ),
]


@pytest.mark.parametrize(("change", "message"), TABLES)
def test_tables(change: Callable[[Program], Program], message: str) -> None:
    faults = violations(change(CHAIN), TOPOLOGY)
    assert faults
    with pytest.raises(VerificationError, match=message):
        verify(change(CHAIN), TOPOLOGY)


MEANING: list[tuple[Callable[[Program], Program], str]] = [
    (
        lambda p: role(p, 3, receives=(), own_operand_index=0),
        "lost chunk: rank 0, channel 0, step 1 (reduce of share 0) sends into queue 2 "
        "from rank 0 to rank 1, and no step of rank 1 receives it",
    ),
    (
        lambda p: role(p, 4, sends=()),
        "rank 1, channel 0, step 1 (reduce of share 0) starves: it receives from queue 2",
    ),
    (
        lambda p: role(p, 0, rank=2),
        "rank 2, channel 0, step 0 (broadcast of share 0) receives from queue 1 from rank 1 "
        "to rank 0, which does not end there",
    ),
    (
        lambda p: role(p, 3, contributes=False, own_operand_index=0),
        "rank 2, channel 0, step 0 (root of share 0): it completes the reduction without the contribution of rank 1",
    ),
    (
        lambda p: role(p, 1, contributes=True),
        "rank 1, channel 0, step 0 (broadcast of share 0): double contribution: "
        "slice 0 of the buffer gets the contribution of rank 1 twice",
    ),
    (lambda p: role(p, 2, completes=False), "it keeps a reduction that no step has completed"),
    (lambda p: role(p, 1, completes=True), "it completes a reduction that was completed before"),
    (
        lambda p: role(p, 3, completes=True),
        "rank 1, channel 0, step 1 (reduce of share 0): it completes the reduction without the contribution of rank 2",
    ),
    (
        lambda p: role(p, 3, keeps=True),
        "missing contribution: it keeps slice 0 of the buffer without the contribution of rank 2",
    ),
    (lambda p: role(p, 3, keeps=True), "it writes slice 0 of the buffer, which step 1 writes too"),
    (lambda p: role(p, 0, keeps=False), "rank 0 never gets slice 0 of the buffer"),
    (
        lambda p: replace(p, queues=(*p.queues, Queue(0, 2, (0, 2), 2))),
        "queue 4 from rank 0 to rank 2 is used by no step",
    ),
    (lambda p: replace(p, slices=(replace(p.slices[0], stop=Fraction(1, 2)),)), "end at 1/2, expected 1"),
    (lambda p: replace(p, slices=(replace(p.slices[0], stop=Fraction(3, 2)),)), "end at 3/2, expected 1"),
    (
        lambda p: replace(p, slices=(replace(p.slices[0], start=Fraction(1, 4)),)),
        "starts at 1/4, expected 0: it leaves",
    ),
    (
        lambda p: replace(p, slices=(*p.slices, p.slices[0])),
        "slice 1 of the buffer starts at 0, expected 1: it overlaps",
    ),
    (
        lambda p: replace(p, slices=(*p.slices, replace(p.slices[0], start=Fraction(1)))),
        "from 1 to 1: it is empty",
    ),
    (
        lambda p: replace(p, queues=(replace(p.queues[0], path=(2, 0, 1)), *p.queues[1:])),
        "passes through vertex 0, a rank of the job",
    ),
    (
        lambda p: replace(p, queues=(replace(p.queues[0], path=(2, 0)), *p.queues[1:])),
        "lies on path [2, 0], which must lead from vertex 2 to vertex 1",
    ),
    (
        lambda p: replace(p, queues=(replace(p.queues[0], path=(2, 5, 1)), *p.queues[1:])),
        "link 2 → 5 is used, but clique:3 has no such link",
    ),
    (
        lambda p: replace(p, rate=Fraction(3, 2)),
        "overload: link 0 → 1 carries 3/2 at rate 3/2, above its capacity 1",
    ),
]


@pytest.mark.parametrize(("change", "message"), MEANING)
def test_meaning(change: Callable[[Program], Program], message: str) -> None:
    faults = violations(change(CHAIN), TOPOLOGY)
    assert any(message in text for text in faults), faults


def test_a_deadlock_is_reported_as_a_cycle_of_waits() -> None:
    wrong = role(role(CHAIN, 0, offset=0), 4, offset=1)
    assert violations(wrong, TOPOLOGY)[0] == (
        "deadlock: a cycle of waits in which no step can start (-2 tokens, expected 1): "
        "rank 0, channel 0, step 0 (broadcast of share 0) waits for a chunk from "
        "rank 1, channel 0, step 0 (broadcast of share 0); "
        "rank 1, channel 0, step 0 (broadcast of share 0) runs after "
        "rank 1, channel 0, step 1 (reduce of share 0); "
        "rank 1, channel 0, step 1 (reduce of share 0) waits for a chunk from "
        "rank 0, channel 0, step 1 (reduce of share 0); "
        "rank 0, channel 0, step 1 (reduce of share 0) runs after "
        "rank 0, channel 0, step 0 (broadcast of share 0)"
    )


def test_shared_queue_with_another_order_at_its_end() -> None:
    program = lower(ring_allreduce(3), slots=8, channels=1)
    merged = share_queues(program)
    assert violations(merged, clique(3)) == []
    body = [i for i, r in enumerate(merged.roles) if r.rank == 0 and r.receives and r.offset == 4]
    later = role(merged, body[0], offset=merged.roles[body[0]].offset + 1)
    assert any(text.startswith("wrong order") and "ticks after" in text for text in violations(later, clique(3)))


def share_queues(program: Program) -> Program:
    """The program with one queue per path instead of several."""
    first = {queue.path: index for index, queue in reversed(list(enumerate(program.queues)))}
    renamed = [first[queue.path] for queue in program.queues]
    used = sorted(set(renamed))
    number = [used.index(i) for i in renamed]
    roles = tuple(
        replace(r, receives=tuple(number[q] for q in r.receives), sends=tuple(number[q] for q in r.sends))
        for r in program.roles
    )
    return replace(program, queues=tuple(program.queues[i] for i in used), roles=roles)


def test_queues_belong_to_one_channel() -> None:
    merged = share_queues(lower(ring_allreduce(3)))
    assert any("is shared by channels 0, 1, 2" in text for text in violations(merged, clique(3)))


def test_reading_after_overwriting_in_place() -> None:
    program = lower(one_shot_allreduce())
    late = [role_ if role_.share != 1 else replace(role_, offset=role_.offset + 5) for role_ in program.roles]
    faults = violations(replace(program, roles=tuple(late)), clique(3))
    assert any(
        "reads chunks of slice 0 at offset 5 after" in text and "in place at offset 1" in text for text in faults
    )


def test_reading_and_overwriting_in_two_channels_has_no_order() -> None:
    program = lower(one_shot_allreduce())
    split = replace(
        program,
        channels=(Channel((0, 1)), Channel((2,))),
        roles=tuple(replace(r, channel=1) if r.share == 2 else r for r in program.roles),
    )
    assert any("in another channel, in no fixed order" in text for text in violations(split, clique(3)))


def test_one_slot_and_the_order_of_the_tick() -> None:
    program = lower(chain_allreduce(), slots=1)
    assert violations(program, TOPOLOGY) == []
    reverse = replace(program, roles=program.roles[::-1])
    assert violations(reverse, TOPOLOGY) == []  # a chain of single waits still ends
    ring = lower(ring_allreduce(4), slots=1)
    backward = replace(ring, roles=ring.roles[::-1])
    assert any(
        text.startswith("deadlock: a cycle of waits in which no") and "frees one of 1 slot(s)" in text
        for text in violations(backward, clique(4))
    )
    assert violations(lower(ring_allreduce(4), slots=1), clique(4)) == []


@cache
def random_programs(odd: bool) -> list[tuple[Program, Topology]]:
    if odd:
        return [random_program(Random(seed)) for seed in range(100)]
    made = []
    for seed in range(100):
        random = Random(seed)
        forest = random_forest(random)
        made.append((lower(forest, random.choice([1, 2]), random.choice([None, 1])), forest.topology))
    return made


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_refused_with_their_cause(name: str, odd: bool) -> None:
    """Faults are planted in lowered programs, and in odd ones that lowering would never produce."""
    planted = 0
    for seed, (program, topology) in enumerate(random_programs(odd)):
        damaged = FAULTS[name].plant(program, Random(seed))
        if damaged is not None:
            planted += 1
            faults = violations(damaged, topology)
            assert any(FAULTS[name].cause in text for text in faults), (seed, faults)
    assert planted >= 10


def test_a_role_without_a_rank_of_its_own_body_is_named_by_step() -> None:
    lone = Role(0, 0, 0, "root", 0, 0, True, True, True, (), ())
    program = replace(CHAIN, roles=(*CHAIN.roles, lone))
    assert any(
        "rank 0, channel 0, step 2 (root of share 0): it completes the reduction without" in text
        for text in violations(program, TOPOLOGY)
    )


def test_no_graph_is_searched_if_the_order_of_roles_excludes_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "_cycle", None)  # a call would fail
    for slots in (1, 2):
        forest = random_forest(Random(slots))
        assert violations(lower(forest, slots=slots), forest.topology) == []


def test_a_valid_path_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = plan("optimal", "2x dgx-a100", None, "allgather")
    program = lower(forest)
    checked: list[tuple[int, ...]] = []

    def counted(topology: Topology, path: tuple[int, ...]) -> int | None:
        checked.append(path)
        return memory_inside(topology, path)

    monkeypatch.setattr(verifier, "memory_inside", counted)
    assert violations(program, forest.topology) == []
    assert sorted(checked) == sorted({queue.path for queue in program.queues})
    assert len(checked) < len(program.queues)
    wrong = replace(program, queues=tuple(replace(queue, home=-1) for queue in program.queues))
    assert sum("its home -1 is not on its path" in text for text in violations(wrong, forest.topology)) == len(
        program.queues
    )
