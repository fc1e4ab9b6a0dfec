"""Forest → Program: roles, offsets, order, and forests without a program."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from small_forests import (
    chain_allreduce,
    clique,
    one_shot_allreduce,
    ring_allreduce,
    two_slices_broadcast,
)

from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError, UsageError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.verifier import violations
from blinkccl.trees.forest.model import Forest, Share, Tree
from support.forests import random_forest
from support.planned import by_hand


def brief(role: Role) -> tuple[int, str, int, str]:
    does = "".join(
        letter
        for letter, on in (
            ("i", role.contributes),
            ("r", role.receives),
            ("c", role.completes),
            ("k", role.keeps),
            ("s", role.sends),
        )
        if on
    )
    return role.rank, role.stage, role.offset, does


def test_chain_allreduce_by_eye() -> None:
    program = lower(chain_allreduce())
    assert [brief(role) for role in program.roles] == [
        (0, "broadcast", 4, "rk"),
        (1, "broadcast", 3, "rks"),
        (2, "root", 2, "ircks"),
        (1, "reduce", 1, "irs"),
        (0, "reduce", 0, "is"),
    ]
    assert [(q.src, q.dst, q.path) for q in program.queues] == [
        (2, 1, (2, 1)),
        (1, 0, (1, 0)),
        (0, 1, (0, 1)),
        (1, 2, (1, 2)),
    ]
    assert [(s.block, s.start, s.stop) for s in program.slices] == [(None, 0, 1)]


def test_one_shot_reads_before_it_writes_in_place() -> None:
    program = lower(one_shot_allreduce())
    assert len(program.slices) == len(program.channels) == 1
    assert program.channels[0].shares == (0, 1, 2)
    for rank in range(3):
        body = [role for role in program.roles if role.rank == rank]
        writes = [role.offset for role in body if role.keeps]
        assert writes == [1]
        assert all(role.offset == 0 for role in body if role.contributes and not role.keeps)
        assert sum(role.keeps for role in body) == 1


def test_unequal_one_shot_trees_are_aligned_at_their_roots() -> None:
    shares = [
        Share(Fraction(1), 0, None, 0, Tree(0, ((2, 1), (1, 0))), None),
        Share(Fraction(1), 0, None, 1, Tree(1, ((0, 1), (2, 1))), None),
        Share(Fraction(1), 0, None, 2, Tree(2, ((0, 2), (1, 2))), None),
    ]
    forest = by_hand(Collective("allreduce", 3), clique(3), shares)
    program = lower(forest)
    assert {role.offset for role in program.roles if role.keeps} == {2}
    assert violations(program, forest.topology) == []


def test_slices_lie_in_ascending_order_of_their_names() -> None:
    program = lower(two_slices_broadcast())
    assert [(s.start, s.stop) for s in program.slices] == [(0, Fraction(2, 3)), (Fraction(2, 3), 1)]
    swapped = two_slices_broadcast()
    swapped = replace(swapped, shares=(replace(swapped.shares[0], slice=9), swapped.shares[1]))
    program = lower(swapped)
    assert [(s.start, s.stop) for s in program.slices] == [(0, Fraction(1, 3)), (Fraction(1, 3), 1)]
    assert {role.share: role.slice for role in program.roles} == {0: 1, 1: 0}


def operands(program: Program, rank: int, stage: str) -> list[int]:
    """Ranks in the order in which a role reduces their messages, with its own rank if it contributes."""
    (role,) = (r for r in program.roles if (r.rank, r.stage) == (rank, stage))
    order = [program.queues[queue].src for queue in role.receives]
    return [*order[: role.own_operand_index], rank, *order[role.own_operand_index :]] if role.contributes else order


@pytest.mark.parametrize("size", [2, 3, 5])
def test_stars_reduce_in_rank_order_on_every_rank(size: int) -> None:
    """The order of the edges in the tree makes no difference."""
    for forest in (one_shot_allreduce(size), reversed_edges(one_shot_allreduce(size))):
        program = lower(forest)
        assert [operands(program, rank, "root") for rank in range(size)] == [list(range(size))] * size


def reversed_edges(forest: Forest) -> Forest:
    shares = tuple(replace(s, reduce=Tree(s.root, s.reduce.edges[::-1])) for s in forest.shares if s.reduce)
    return replace(forest, shares=shares)


def test_inner_vertices_reduce_in_rank_order_too() -> None:
    share = Share(Fraction(1), 0, None, 4, Tree(4, ((3, 1), (0, 1), (2, 1), (1, 4))), None)
    forest = by_hand(Collective("reduce", 5, root=4), clique(5), [share])
    program = lower(forest)
    assert operands(program, 1, "reduce") == [0, 1, 2, 3]
    assert operands(program, 4, "root") == [1, 4]
    assert violations(program, forest.topology) == []


def test_reduction_order_is_by_position() -> None:
    shares = [Share(Fraction(1), 0, None, 0, Tree(0, ((5, 0), (2, 0))), None)]
    forest = by_hand(Collective("reduce", 3, root=1), clique(6), shares, ranks=(5, 0, 2))
    assert operands(lower(forest), 1, "root") == [0, 1, 2]


def test_a_role_that_does_not_contribute_has_own_operand_index_0() -> None:
    forest = chain_allreduce()
    assert [role.own_operand_index for role in lower(forest).roles if not role.contributes] == [0, 0]
    share = Share(Fraction(1), 0, None, 1, Tree(1, ((0, 1),)), Tree(1, ((1, 2),)))
    relayed = lower(by_hand(Collective("sendrecv", 3, src=0, dst=2), clique(3), [share]))
    assert [(role.rank, role.own_operand_index) for role in relayed.roles] == [(2, 0), (1, 0), (0, 0)]


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        (None, [(0,), (1,), (2,), (3,)]),
        (1, [(0, 1, 2, 3)]),
        (3, [(0, 3), (1,), (2,)]),
        (9, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_slices_are_dealt_to_channels_in_turn(channels: int | None, expected: list[tuple[int, ...]]) -> None:
    program = lower(ring_allreduce(4), channels=channels)
    assert [channel.shares for channel in program.channels] == expected


def test_a_block_that_stays_is_one_copying_role() -> None:
    shares = [
        Share(Fraction(1, 2), 0, (s, d), s, None, Tree(s, ((s, d),)) if s != d else None)
        for s in (0, 1)
        for d in (0, 1)
    ]
    program = lower(by_hand(Collective("alltoall", 2), clique(2), shares))
    stays = [role for role in program.roles if not role.sends and not role.receives]
    assert [(role.rank, brief(role)[3]) for role in stays] == [(0, "ick"), (1, "ick")]


def test_relays_neither_contribute_nor_keep() -> None:
    share = Share(Fraction(1), 0, None, 0, None, Tree(0, ((0, 1), (1, 2))))
    program = lower(by_hand(Collective("sendrecv", 3, src=0, dst=2), clique(3), [share]))
    assert [brief(role) for role in program.roles] == [
        (2, "broadcast", 2, "rk"),
        (1, "broadcast", 1, "rs"),
        (0, "root", 0, "ics"),
    ]


def test_a_source_below_a_relay_root_keeps_its_own_block() -> None:
    shares = [
        Share(
            Fraction(1, 3),
            0,
            j,
            1,
            Tree(1, ((j, 1),)) if j != 1 else None,
            Tree(1, tuple((1, v) for v in (0, 2) if v != j)),
        )
        for j in range(3)
    ]
    forest = by_hand(Collective("allgather", 3), clique(3), shares)
    program = lower(forest)
    assert violations(program, forest.topology) == []
    assert [(r.rank, brief(r)[3]) for r in program.roles if r.stage == "reduce"] == [(0, "iks"), (2, "iks")]


def test_positions_and_ids_are_distinguished() -> None:
    topology = clique(6)
    shares = [Share(Fraction(1, 2), 0, v, v, None, Tree(v, ((v, w),))) for v, w in ((5, 2), (2, 5))]
    forest = by_hand(Collective("allgather", 2), topology, shares, ranks=(5, 2))
    program = lower(forest)
    assert [s.block for s in program.slices] == [0, 1]
    assert [(q.src, q.dst, q.path) for q in program.queues] == [(0, 1, (5, 2)), (1, 0, (2, 5))]
    assert violations(program, topology) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 2}, "carries block 2 .positions., which allreduce on 3 ranks does not have"),
        ({"block": 77}, "vertex 77 is no rank"),
        ({"block": (0, 77)}, "vertex 77 is no rank"),
        ({"root": 77}, "visits vertex 77"),
        ({"reduce": Tree(2, ((0, 9), (9, 2)))}, "its reduce visits vertex 9, which is no rank"),
        ({"reduce": Tree(2, ((0,),))}, "is no path between two vertices"),
        ({"broadcast": Tree(2, ((1, 1),))}, "is no path between two vertices"),
        ({"broadcast": Tree(2, ((),))}, "is no path between two vertices"),
    ],
)
def test_a_forest_without_a_program_is_an_error(change: dict[str, object], message: str) -> None:
    forest = chain_allreduce()
    with pytest.raises(ScheduleError, match=message):
        lower(replace(forest, shares=(replace(forest.shares[0], **change),)))


def test_shares_of_one_slice_have_one_weight() -> None:
    forest = one_shot_allreduce()
    with pytest.raises(ScheduleError, match=r"same slice 0 of block None, but with weights 1/2, 1, 1"):
        lower(replace(forest, shares=(replace(forest.shares[0], weight=Fraction(1, 2)), *forest.shares[1:])))


@pytest.mark.parametrize(("slots", "channels"), [(0, None), (1, 0), (-1, 2)])
def test_numbers_out_of_range(slots: int, channels: int | None) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        lower(chain_allreduce(), slots, channels)


BROKEN_TREES = [
    ("cycle", Tree(2, ((0, 1), (1, 0), (1, 2))), "deadlock"),
    ("apart", Tree(2, ((0, 1),)), "without the contribution"),
    ("two parents", Tree(2, ((0, 1), (0, 2), (1, 2))), "double contribution"),
    ("missing rank", Tree(2, ((1, 2),)), "without the contribution of rank 0"),
    ("doubled edge", Tree(2, ((0, 1), (0, 1), (1, 2))), "double contribution"),
    ("away from the root", Tree(2, ((2, 1), (1, 0))), "lost|without the contribution"),
    ("other root", Tree(0, ((2, 1), (1, 0))), "lost|without the contribution"),
    ("empty", Tree(2, ()), "without the contributions of ranks 0, 1"),
]


@pytest.mark.parametrize(("tree", "cause"), [pytest.param(t, c, id=n) for n, t, c in BROKEN_TREES])
def test_broken_up_trees_lower_and_are_invalid(tree: Tree, cause: str) -> None:
    forest = chain_allreduce()
    program = lower(replace(forest, shares=(replace(forest.shares[0], reduce=tree),)))
    faults = violations(program, forest.topology)
    assert any(word in text for text in faults for word in cause.split("|")), faults


def test_broken_forests_never_crash() -> None:
    for seed in range(300):
        random = Random(seed)
        forest = random_forest(random)
        index = random.randrange(len(forest.shares))
        share = forest.shares[index]
        tree = share.broadcast or share.reduce or Tree(share.root, ())
        edges = list(tree.edges)
        for _ in range(random.randint(1, 3)):
            a, b = random.choice(forest.ranks), random.choice(forest.ranks)
            edges.insert(random.randint(0, len(edges)), (a, b))
        random.shuffle(edges)
        bent = replace(
            share,
            broadcast=Tree(share.root, tuple(edges)),
            weight=share.weight * random.choice([1, 1, 2, -1]),
            root=random.choice([share.root, random.choice(forest.ranks)]),
        )
        shares = (*forest.shares[:index], bent, *forest.shares[index + 1 :])
        try:
            program = lower(replace(forest, shares=shares), random.choice([1, 2]))
        except ScheduleError:
            continue
        assert isinstance(violations(program, forest.topology), list)
