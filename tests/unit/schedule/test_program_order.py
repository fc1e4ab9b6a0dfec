"""The order in which a Program sums: it predicts the engine's bits, and every change of it is noticed."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_forests import chain_allreduce, clique, one_shot_allreduce, ring_allreduce

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.spec import Collective
from blinkccl.engines import reference
from blinkccl.schedule.chunking import bind, placements
from blinkccl.schedule.lower import lower
from blinkccl.schedule.order import kept_orders, order_faults, order_of
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import violations
from blinkccl.trees.forest import order as forest_order
from blinkccl.trees.forest.model import Forest, Share, Tree
from support.examples import examples
from support.forests import random_collective, random_forest
from support.orders import evaluated, rough, same_bits
from support.planned import by_hand, with_homes


def two_groups(*heads: int) -> Forest:
    """Five ranks: 0 and 1 reduce at one of them (a share per head), and its sum goes to a star among 2, 3 and 4."""
    shares = []
    for number, head in enumerate(heads):
        top = 2 + number % 3
        up = Tree(top, ((1 - head, head), (head, top), *((v, top) for v in (4, 3, 2) if v != top)))
        down = Tree(top, tuple((top, v) for v in range(5) if v != top))
        shares.append(Share(Fraction(1, len(heads)), number, None, top, up, down))
    return by_hand(Collective("allreduce", 5), clique(5), shares)


@pytest.mark.parametrize(
    ("forest", "expected"),
    [
        (chain_allreduce(), "(0+1)+2"),
        (one_shot_allreduce(4), "0+1+2+3"),
        (two_groups(0, 1, 1), "(0+1)+2+3+4"),
    ],
)
def test_a_forest_and_its_program_have_one_order(forest: Forest, expected: str) -> None:
    assert forest_order.order_of(forest) == order_of(lower(forest)) == expected
    assert order_faults(lower(forest)) == order_faults(lower(forest), expected) == []
    assert forest_order.departure(forest) is None


def test_a_ring_sums_every_part_in_an_order_of_its_own() -> None:
    ring = ring_allreduce(4)
    assert forest_order.order_of(ring) is order_of(lower(ring)) is None
    assert forest_order.departure(ring) == "share 1 (root 1) sums in the order (0+(2+3))+1, but share 0 in 0+((1+2)+3)"
    faults = order_faults(lower(ring))
    assert len(faults) == 12  # three slices that differ, kept by four ranks
    assert "expected 0+((1+2)+3)" in faults[0]
    assert "departs" in faults[0]


def test_operands_are_ordered_by_the_lowest_rank_in_them_for_any_sender() -> None:
    """The sum of 0 and 3, sent by 3, comes before 1 and 2."""
    share = Share(Fraction(1), 0, None, 1, Tree(1, ((0, 3), (3, 1), (2, 1))), None)
    forest = by_hand(Collective("reduce", 4, root=1), clique(4), [share])
    assert order_of(lower(forest)) == "(0+3)+1+2"


def test_a_collective_without_reduction_has_no_order() -> None:
    share = Share(Fraction(1), 0, None, 0, None, Tree(0, ((0, 1), (0, 2))))
    forest = by_hand(Collective("broadcast", 3, root=0), clique(3), [share])
    assert forest_order.order_of(forest) == order_of(lower(forest)) == ""
    assert order_faults(lower(forest), "0+1+2") == ["broadcast sums nothing, so it has no order 0+1+2"]


@examples(60)
@given(st.integers(0, 2**32))
def test_the_order_of_every_value_gives_its_bits(seed: int) -> None:
    """Engine and expression agree on any forest, also if its shares have different orders."""
    random = Random(seed)
    name = random.choice(["allreduce", "reduce", "reduce_scatter"])
    forest = random_forest(random, random_collective(random, random.randint(2, 6), name))
    program = lower(forest, random.choice([1, 2]))
    dtype = random.choice(["float32", "bfloat16", "float16", "float64", "int8"])
    op = random.choice(["sum", "avg", "min", "premul_sum"])
    check_bits(program, dtype, op, 37, seed)
    texts = tuple(dict.fromkeys(kept_orders(program).values()))
    assert order_of(program) == (texts[0] if len(texts) == 1 else None)
    assert forest_order.order_of(forest) == order_of(program)
    assert bool(order_faults(program)) == (len(texts) > 1) == (forest_order.departure(forest) is not None)


def check_bits(program: Program, dtype: str, op: str, count: int, seed: int) -> None:
    """Check that the reference engine gives the bits of the program's orders."""
    row, chosen, collective = element_type(dtype), operation(op), program.collective
    size = collective.world_size
    inputs = rough(row, size, collective.input_blocks(0) * count, seed)
    scales = [(-1.0) ** rank * (2 + rank) for rank in range(size)] if chosen.scales else None
    outputs = reference.run(
        program, inputs, CollectiveCall.of(collective, dtype, count, op), scales=scales, chunk_bytes=64
    )
    bound = bind(program, count, row.itemsize, 64)
    for (rank, index), order in kept_orders(program).items():
        extent = bound.extents[index]
        start = bound.target(rank, index)
        assert start is not None
        place = placements(collective)[program.slices[index].block]
        operands = {}
        for source in place.sources:
            at = bound.source(source, index)
            assert at is not None
            operands[program.ranks[source]] = inputs[source][at : at + extent.length]
        factors = None if scales is None else {v: row.scalar(s) for v, s in zip(program.ranks, scales, strict=True)}
        output = outputs[rank]
        assert output is not None
        expected_bits = evaluated(order, operands, row, chosen, factors)
        assert same_bits(output[start : start + extent.length], expected_bits), (rank, index, order)


def test_other_orders_have_other_bits() -> None:
    """Without this, the previous test could not fail."""
    row, chosen = element_type("float32"), operation("sum")
    values = dict(enumerate(rough(row, 4, 200)))
    sums = [evaluated(order, values, row, chosen) for order in ("0+1+2+3", "0+(1+2)+3", "(0+1)+(2+3)", "0+1+3+2")]
    assert not any(same_bits(a, b) for i, a in enumerate(sums) for b in sums[:i])
    row = element_type("bfloat16")
    values = dict(enumerate(rough(row, 4, 200)))
    assert not same_bits(evaluated("0+1+2+3", values, row, chosen), evaluated("(0+1)+2+3", values, row, chosen))


INVARIANT = lower(two_groups(0, 1, 1))


def changed(program: Program, matches: Callable[[object], bool], **changes: object) -> Program:
    """The program with ``changes`` in the first role that ``matches``."""
    roles = list(program.roles)
    index = next(i for i, role in enumerate(roles) if matches(role))
    roles[index] = replace(roles[index], **changes)
    return replace(program, roles=tuple(roles))


def swapped(program: Program) -> Program:
    """The program with two operands of one root exchanged."""
    root = next(role for role in program.roles if role.stage == "root" and role.share == 2)
    turned = (root.receives[1], root.receives[0], *root.receives[2:])
    return changed(program, lambda role: role is root, receives=turned)


def moved(program: Program) -> Program:
    """The program with a root's own contribution first."""
    return changed(program, lambda r: r.stage == "root" and r.share == 1, own_operand_index=0)


def other_grouping() -> Program:
    """A program with one more rounding: 2 sends to the root 3 through 4."""
    forest = two_groups(0, 1)
    share = forest.shares[1]
    up = Tree(3, ((0, 1), (1, 3), (2, 4), (4, 3)))
    return lower(replace(forest, shares=(forest.shares[0], replace(share, reduce=up))))


def another_tree() -> Program:
    """A program with a chain instead of the two groups for one root."""
    forest = two_groups(0, 1)
    up = Tree(3, ((0, 1), (1, 2), (2, 4), (4, 3)))
    return lower(replace(forest, shares=(forest.shares[0], replace(forest.shares[1], reduce=up))))


def test_a_completion_apart_is_one_rounding_more() -> None:
    """A rank that divides a value rounded by another one: correct, but with other bits than a division at once."""
    share = Share(Fraction(1), 0, None, 2, Tree(2, ((0, 2), (1, 2))), Tree(2, ((2, 0),)))
    program = lower(by_hand(Collective("reduce", 3, root=0), clique(3), [share]))
    assert order_of(program) == "0+1+2"
    late = changed(program, lambda r: r.completes, completes=False)
    late = changed(late, lambda r: r.keeps, completes=True)
    assert violations(late, clique(3)) == []
    assert order_of(late) == "(0+1+2)"


def test_a_premul_sum_has_the_same_bits_at_every_root() -> None:
    """The product of a sent message is rounded, and so is the product of the own contribution."""
    values, results = rough(element_type("bfloat16"), 3, 99), []
    for root in (0, 1):
        star = Share(Fraction(1), 0, None, root, Tree(root, tuple((v, root) for v in range(3) if v != root)), None)
        program = lower(by_hand(Collective("reduce", 3, root=root), clique(3), [star]))
        assert order_of(program) == "0+1+2"
        call = CollectiveCall.of(program.collective, "bfloat16", 99, "premul_sum")
        results.append(reference.run(program, values, call, scales=[0.3, 0.7, 1.1])[root])
    assert same_bits(*results)


@pytest.mark.parametrize(
    ("program", "expected", "departs"),
    [
        (swapped(INVARIANT), r"expected \(0\+1\)\+2\+3\+4", "root of share 2"),
        (moved(INVARIANT), r"summed as 3\+\(0\+1\)\+2\+4, expected \(0\+1\)\+2\+3\+4", "root of share 1"),
        (other_grouping(), r"summed as \(0\+1\)\+\(2\+4\)\+3, expected", r"reduce of share 1\) departs: 2\+4"),
        (another_tree(), r"summed as \(\(\(0\+1\)\+2\)\+4\)\+3, expected", "departs"),
    ],
)
def test_planted_departures_are_named(program: Program, expected: str, departs: str) -> None:
    assert violations(program, clique(5)) == []  # all of them compute the collective
    assert order_of(program) is None
    faults = order_faults(program, "(0+1)+2+3+4")
    assert len(faults) == 5  # one slice, kept by five ranks
    for fault in faults:
        assert re.search(expected, fault), fault
        assert re.search(departs, fault), fault


def test_faults_are_departures_from_the_stated_order() -> None:
    faults = order_faults(INVARIANT, "0+1+2+3+4")
    assert len(faults) == 15
    assert faults[0].endswith("it keeps slice 0 summed as (0+1)+2+3+4, expected 0+1+2+3+4")


def test_relays_and_homes_pass_an_order_on() -> None:
    assert order_of(with_homes(INVARIANT)) == "(0+1)+2+3+4"


def test_a_chain_of_thousands_is_written_without_recursion() -> None:
    orders = forest_order.Orders(range(5000))
    chain = 0
    for rank in range(1, 5000):
        chain = orders.listed((chain, rank))
    assert orders.text(chain).startswith("(" * 4998 + "0+1)+2)")
    assert len(orders.parts(chain)) == 9999
    assert np.iinfo(np.int64).max > chain
