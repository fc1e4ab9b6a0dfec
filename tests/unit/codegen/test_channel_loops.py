"""Loops of GPU blocks: accepted programs never get stuck, refused ones do, and every role is executed once."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from blinkccl.codegen.channels import MAX_CHANNEL_ENDS, MAX_DENOMINATOR, MAX_ENDS, ChannelLoop, channel_loops, merged
from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program, Role, Slice
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.model import Forest, Share, Tree
from support.planned import by_hand
from support.programs import random_program

SEEDS = range(150)


def allreduce(ranks: int, shares: tuple[Share, ...]) -> Forest:
    return by_hand(Collective("allreduce", ranks), parse_spec(f"clique:{ranks}"), shares)


def bodies(program: Program) -> list[list[Role]]:
    """The roles of each rank and channel, one execution each."""
    roles: dict[tuple[int, int], list[Role]] = {}
    for role in program.roles:
        roles.setdefault((role.rank, role.channel), []).append(role)
    return list(roles.values())


def roles_of(loops: tuple[ChannelLoop, ...]) -> list[list[Role]]:
    return [[execution.role for execution in loop.executions] for loop in loops]


def gets_stuck(program: Program, blocks: list[list[Role]], chunks: list[int], seed: int = 0) -> bool:
    """True if blocks in random order get stuck. A role waits for all messages and slots, then moves all at once."""
    ticks = max(chunks) + max(role.offset for role in program.roles) + 1
    todo = [
        [role for tick in range(ticks) for role in roles if 0 <= tick - role.offset < chunks[role.slice]]
        for roles in blocks
    ]
    slots = {queue: program.channels[role.channel].slots for role in program.roles for queue in role.sends}
    held: Counter[int] = Counter()
    at, order, random = [0] * len(todo), list(range(len(todo))), Random(seed)
    moved = True
    while moved:
        moved = False
        random.shuffle(order)
        for index in order:
            while at[index] < len(todo[index]):
                role = todo[index][at[index]]
                if not all(held[q] for q in role.receives) or any(held[q] >= slots[q] for q in role.sends):
                    break
                held.subtract(role.receives)
                held.update(role.sends)
                at[index] += 1
                moved = True
    return any(done < len(roles) for done, roles in zip(at, todo, strict=True))


def test_what_is_accepted_is_live_and_what_is_refused_is_not() -> None:
    refused = 0
    for seed in SEEDS:
        random = Random(seed)
        program, _ = random_program(random)
        for slots in (None, 1, 2):
            if slots is not None:
                program = replace(program, channels=tuple(replace(c, slots=slots) for c in program.channels))
            many = [12] * len(program.slices)
            if gets_stuck(program, bodies(program), many):
                refused += 1
                with pytest.raises(UnsupportedError, match=r"would deadlock: .*rank \d+, channel \d+, step \d+"):
                    channel_loops(program)
                continue
            loops = channel_loops(program)
            assert not gets_stuck(program, roles_of(loops), many, seed), (seed, slots)
            for other in range(3):
                few = [random.randint(0, 5) for _ in many]
                assert not gets_stuck(program, roles_of(loops), few, other), (seed, slots, few)
    assert refused > 10, refused


def test_every_role_with_something_to_do_is_done_once() -> None:
    for seed in SEEDS:
        program, _ = random_program(Random(seed))
        loops = channel_loops(program)
        assert len({(loop.rank, loop.channel) for loop in loops}) == len(loops)
        served = Counter(share for loop in loops for execution in loop.executions for share in execution.shares)
        expected = Counter(role.share for role in program.roles if role.receives or role.sends or role.keeps)
        assert served == expected
        for loop in loops:
            assert len(loop.receives) + len(loop.sends) <= MAX_CHANNEL_ENDS
            for execution in loop.executions:
                role = execution.role
                assert (role.rank, role.channel) == (loop.rank, loop.channel)
                assert (execution.method == "recv" or "copy" in execution.method) == role.keeps
                assert ("recv" in execution.method) == bool(role.receives)
                assert set(role.receives) <= set(loop.receives)
                assert set(role.sends) <= set(loop.sends)
                if "reduce" not in execution.method:
                    assert len(role.receives) + role.contributes == 1


def star(root: int, ranks: int, copies: int = 1) -> tuple[Share, ...]:
    """A star of each rank around ``root``, ``copies`` times: shares of the one slice that all use."""
    others = [rank for rank in range(ranks) if rank != root]
    up = Tree(root, tuple((rank, root) for rank in others))
    return tuple(Share(Fraction(1, copies), index, None, root, up, up.reversed()) for index in range(copies))


def test_sends_of_one_chunk_in_one_tick_are_one_execution() -> None:
    """One-shot: every rank sends its data to all others, and reduces its own with theirs."""
    shares = tuple(
        Share(Fraction(1), 0, None, root, Tree(root, tuple((r, root) for r in range(4) if r != root)), None)
        for root in range(4)
    )
    program = lower(allreduce(4, shares), slots=1)
    assert len(program.roles) == 16
    for loop in channel_loops(program):
        assert sorted(execution.method for execution in loop.executions) == ["recv_reduce_copy", "send"]
        assert [len(execution.role.sends) for execution in loop.executions if execution.method == "send"] == [3]
        assert sorted(share for execution in loop.executions for share in execution.shares) == [0, 1, 2, 3]
    joined, served = merged(program, most_ends=2)
    assert sorted(len(role.sends) for role in joined.roles if role.sends) == [1, 1, 1, 1, 2, 2, 2, 2]
    assert sum(map(len, served)) == 16


def test_too_many_ends_and_too_fine_fractions_are_refused() -> None:
    wide = lower(allreduce(MAX_ENDS, star(0, MAX_ENDS)))
    with pytest.raises(UnsupportedError, match=r"root of share 0.* receives from 31 and sends to 31 .*32 connections"):
        channel_loops(wide)
    many = lower(allreduce(15, star(0, 15, copies=6)), channels=1)
    with pytest.raises(UnsupportedError, match=r"rank 0 has 168 connections in channel 0.*128 per channel"):
        channel_loops(many)
    assert channel_loops(lower(allreduce(15, star(0, 15, copies=6)), channels=2))
    program = lower(allreduce(3, star(0, 3)))
    cut = Fraction(1, MAX_DENOMINATOR)
    fine = replace(program, slices=(Slice(None, Fraction(0), cut), Slice(None, cut, Fraction(1))))
    with pytest.raises(UnsupportedError, match=r"slice 0 goes from 0 to 1/268435456.*below 2\^28"):
        channel_loops(fine)
