"""Plans with one order: checker and verifier accept them, their price is known, and bits depend on nothing else."""

import re
from dataclasses import replace
from fractions import Fraction
from math import exp, log
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.proof.check import check_plan
from blinkccl.schedule.lower import lower
from blinkccl.schedule.order import order_faults, order_of
from blinkccl.schedule.verifier import violations
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest import order as forest_order
from blinkccl.trees.forest.document import dumps, from_document, loads, to_document
from blinkccl.trees.forest.model import Forest
from support.examples import examples
from support.forests import random_topology
from support.orders import evaluated, rough, same_bits
from support.planned import asked, assert_sound

REDUCING = [name for name, row in COLLECTIVES.items() if row.reduces]


def ordered(request: Request, algorithm: str = "optimal") -> Forest:
    """The plan with one order, accepted by all checks."""
    forest = ALGORITHMS[algorithm].plan(replace(request, deterministic="order"))
    assert_sound(forest)
    program = lower(forest)
    assert violations(program, forest.topology) == []
    assert forest.order == order_of(program) == forest_order.order_of(forest)
    assert order_faults(program, forest.order) == []
    assert from_document(loads(dumps(to_document(forest)).encode())) == forest
    return forest


def check_bits(forest: Forest, counts: list[int], dtype: str = "bfloat16", op: str = "sum", slots: int = 2) -> None:
    """Check that each element has the bits of the order, for every count, chunk and number of channels."""
    assert forest.order
    collective, row, chosen = forest.collective, element_type(dtype), operation(op)
    size = collective.world_size
    values = rough(row, size, max(counts) * collective.input_blocks(0), seed=size)
    scales = [0.5 + rank for rank in range(size)] if chosen.scales else None
    factors = None if scales is None else dict(zip(forest.ranks, map(row.scalar, scales), strict=True))
    expected = evaluated(forest.order, dict(zip(forest.ranks, values, strict=True)), row, chosen, factors)
    for count in counts:
        for chunk_bytes, channels in ((16, None), (256, 1)):
            total = count * collective.input_blocks(0)
            inputs = [each[:total].copy() for each in values]
            call = CollectiveCall.of(collective, dtype, count, op)
            program = lower(forest, slots, channels)
            outputs = reference.run(program, inputs, call, scales=scales, chunk_bytes=chunk_bytes)
            for rank, output in enumerate(outputs):
                if output is not None and collective.output_blocks(rank):
                    at = rank * count if collective.name == "reduce_scatter" else 0
                    assert same_bits(output, expected[at : at + len(output)]), (count, chunk_bytes, rank)


@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ("dgx-1v", None),
        ("dgx-1v", "1,4,5,6"),
        ("dgx-1v", "0,1,2,4,6"),
        ("hgx-h100", None),
        ("dgx-1v", "0,4"),
        ("dgx-1v", "6,2,3"),
        ("2x dgx-1v @ 100Gbps", "0-2+4-5"),
        ("ring:6", None),
        ("oneway:4", None),
    ],
)
def test_plans_have_one_order_and_its_bits(spec: str, gpus: str | None, name: str) -> None:
    forest = ordered(asked(spec, name, gpus, root=-1))
    check_bits(forest, [1, 3, 64, 1001])


def test_the_order_is_that_of_all_three_collectives() -> None:
    orders = [ordered(asked("dgx-1v", name, "0,1,2,4,6")).order for name in REDUCING]
    assert len(set(orders)) == 1


@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "avg"), ("bfloat16", "premul_sum"), ("float16", "avg"), ("float16", "min")]
)
def test_averages_and_scales_keep_the_order(dtype: str, op: str) -> None:
    check_bits(ordered(asked("dgx-1v", "allreduce", "0-3,6")), [5, 333], dtype, op)


def test_collectives_without_a_reduction_have_the_free_optimum() -> None:
    for name in COLLECTIVES:
        if name not in REDUCING:
            free = ALGORITHMS["optimal"].plan(asked("dgx-1v", name))
            assert ordered(asked("dgx-1v", name)) == replace(free, order="")


@examples(12)
@given(st.integers(0, 2**32))
def test_random_topologies(seed: int) -> None:
    random = Random(seed)
    topology, ranks = random_topology(random, random.randint(2, 6))
    name = random.choice(REDUCING)
    collective = Collective(name, len(ranks), root=0 if name == "reduce" else None)
    forest = ordered(Request(topology, collective, ranks))
    check_bits(forest, [1, 200], random.choice(["float32", "float16", "bfloat16"]), slots=random.choice([1, 2, 4]))


# ---- prices


def test_dgx_1v_pays_nothing_and_its_allocations_little() -> None:
    """The order on all 8 GPUs has the optimal rate."""
    assert ordered(asked("dgx-1v")).price == 1
    prices = []
    for gpus in connected_allocations("dgx-1v")[::6]:
        prices.append(float(ordered(asked("dgx-1v", "allreduce", gpus)).price))
    assert max(prices) < 1.43
    assert exp(sum(map(log, prices)) / len(prices)) < 1.1


@pytest.mark.parametrize(
    ("spec", "price"),
    [
        ("dgx-1p", Fraction(1)),
        ("dgx-a100", Fraction(1)),
        ("2x dgx-a100 @ 200Gbps", Fraction(91, 90)),
        ("3x dgx-a100 @ 200Gbps", Fraction(3, 2)),
        ("5x dgx-a100", Fraction(5, 4)),
        ("dgx-2", Fraction(1)),
        ("random:20", Fraction(5, 2)),
    ],
)
def test_prices(spec: str, price: Fraction) -> None:
    assert ordered(asked(spec)).price <= price


def test_servers_in_a_chain_have_a_tree_for_every_place_and_every_block() -> None:
    """The plan of 32 ranks needs no search."""
    for name, trees, price in (("allreduce", 8, Fraction(4, 3)), ("reduce_scatter", 32, Fraction(5, 3))):
        forest = ordered(asked("4x dgx-a100 @ 200Gbps", name))
        assert (len(forest.shares), forest.price) == (trees, price)
        assert (
            forest.order
            == "(((0+1+2+3+4+5+6+7)+8+9+10+11+12+13+14+15)+16+17+18+19+20+21+22+23)+24+25+26+27+28+29+30+31"
        )


# ---- refusals


def test_algorithms_with_several_orders_are_refused_and_stars_accepted() -> None:
    with pytest.raises(UnsupportedError, match=r"ring sums elements in several orders: share 1 \(root 1\) sums .*0"):
        ordered(asked("dgx-1v"), "ring")
    for name in ("one_hop", "flat", "one_shot"):
        assert ordered(asked("hgx-h100"), name).order == "0+1+2+3+4+5+6+7"


def test_other_objectives_are_refused() -> None:
    for wish in ({"objective": "fewest-trees"}, {"max_trees": 2}):
        with pytest.raises(UnsupportedError, match="leave out --objective and --max-trees"):
            ordered(asked("dgx-1v", **wish))
    with pytest.raises(UsageError, match="--deterministic 'bits': expected order"):
        asked("dgx-1v", deterministic="bits")
    with pytest.raises(UnsupportedError, match="at most 64 ranks if"):
        ordered(asked("torus:9x9"))


# ---- the checker


def planted(document: dict[str, Any], **changes: Any) -> list[str]:
    return check_plan({**document, **changes}).violations


def test_the_checker_names_the_vertex_at_which_a_share_departs() -> None:
    document = to_document(ordered(asked("dgx-1v", "allreduce", "0,1,2,4,6")))
    assert document["order"] == "0+1+2+(4+6)"
    assert planted(document, order=None) == []
    wrong = planted(document, order="0+1+2+4+6")
    assert len(wrong) == len(document["shares"])
    assert re.fullmatch(
        r"shares\[0\]: its order differs at vertex \d, which sums \(4\+6\); expected the order 0\+1\+2\+4\+6, "
        r"got 0\+1\+2\+\(4\+6\)",
        wrong[0],
    )
    assert planted(document, order="0+1+4+(2+6)") != []  # another order of the same length
    assert planted(document, price="1") == ["price: 1 is stated, bound / rate is 10/7"]
    broadcast = to_document(ordered(asked("dgx-1v", "broadcast")))
    assert planted(broadcast, order="0+1") == ["order: '0+1' is stated, but broadcast sums nothing: expected ''"]


def test_the_checker_notices_another_tree() -> None:
    """The plan has one share with another up-tree, but the same links and total loads."""
    forest = ordered(asked("clique:4"))
    share = forest.shares[0]
    assert share.reduce is not None
    a, b, c = (path[0] for path in share.reduce.edges)
    up = replace(share.reduce, edges=((a, b), (b, share.root), (c, share.root)))
    document = to_document(replace(forest, shares=(replace(share, reduce=up), *forest.shares[1:])))
    wrong = [text for text in check_plan(document).violations if "its order differs" in text]
    assert len(wrong) == 1
    assert wrong[0].startswith(f"shares[0]: its order differs at vertex {b}, which sums ({min(a, b)}+{max(a, b)})")


def test_a_plan_with_a_malformed_order_is_refused() -> None:
    document = to_document(ordered(asked("clique:3")))
    with pytest.raises(Exception, match="order"):
        from_document({**document, "order": "0+x"})
    with pytest.raises(Exception, match="order"):
        check_plan({**document, "order": 7})
    assert parse_spec("clique:3").ranks == (0, 1, 2)
