"""Properties of plans on any topology: a proof, no faster plan, and no effect of names and units."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.trees.algorithms.optimal import FLOWS
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.equal_trees import LOSS
from support.examples import examples
from support.planned import asked, assert_sound, plan_or_reason, renumbered

UNIT_GB_PER_S = 25.0
seldom = examples(40)


@st.composite
def topologies(draw: st.DrawFn, switch: bool = True) -> Topology:
    """2 to 5 GPUs in a cycle with more links, sometimes one-way, and sometimes a switch for all."""
    n = draw(st.integers(2, 5))
    ids = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n, unique=True))
    symmetric = draw(st.booleans())
    width = st.integers(1, 4)
    links: dict[tuple[int, int], int] = {}
    pairs = list(zip(ids, ids[1:] + ids[:1], strict=True))
    pairs += draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)).filter(lambda p: p[0] != p[1])))
    vertices = [Vertex(i, "gpu") for i in sorted(ids)]
    if switch and draw(st.booleans()):
        vertices.append(Vertex(21, "switch"))
        pairs += [(i, 21) for i in ids] + [(21, i) for i in ids]
    for u, v in pairs:
        links[u, v] = draw(width)
        if symmetric:
            links[v, u] = links[u, v]
    return Topology("drawn", UNIT_GB_PER_S, tuple(vertices), links_of(links))


def links_of(capacity: dict[tuple[int, int], int]) -> tuple[Link, ...]:
    return tuple(Link(u, v, c, "nvlink", UNIT_GB_PER_S * c, "synthetic") for (u, v), c in sorted(capacity.items()))


@st.composite
def requests(draw: st.DrawFn, switch: bool = True) -> Request:
    topology = draw(topologies(switch))
    ranks = tuple(draw(st.permutations(topology.ranks)))
    name = draw(st.sampled_from(sorted(COLLECTIVES)))
    return asked(topology, name, ranks, draw(st.integers(0, len(ranks) - 1)))


@examples(200)
@given(requests(switch=False))
def test_without_switches_the_optimum_is_exact(request: Request) -> None:
    forest = ALGORITHMS["optimal"].plan(request)
    assert_sound(forest)
    assert forest.optimal


@seldom
@given(requests())
def test_every_plan_is_right_and_none_is_faster_than_the_optimum(request: Request) -> None:
    best = ALGORITHMS["optimal"].plan(request)
    assert_sound(best)
    for algorithm in ALGORITHMS:
        forest = plan_or_reason(algorithm, request)
        if isinstance(forest, Forest):
            assert_sound(forest)
            assert forest.rate * Fraction(forest.topology.unit_gb_per_s) <= best.rate * Fraction(
                best.topology.unit_gb_per_s
            )


@seldom
@given(requests(), st.data())
def test_names_of_vertices_do_not_change_the_rate(request: Request, data: st.DataObject) -> None:
    old = [v.id for v in request.topology.vertices]
    new = dict(zip(old, data.draw(st.permutations(range(30)))[: len(old)], strict=True))
    moved = renumbered(request.topology, new)
    before = ALGORITHMS["optimal"].plan(request)
    after = ALGORITHMS["optimal"].plan(replace(request, topology=moved, ranks=tuple(new[r] for r in request.ranks)))
    assert (after.rate, after.bound) == (before.rate, before.bound)


@seldom
@given(requests(), st.data())
def test_the_order_of_ranks_does_not_change_the_rate(request: Request, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(request.ranks))))
    ranks = tuple(request.ranks[i] for i in order)
    coll = request.collective
    place = {key: order.index(at) for key in ("root", "src", "dst") if (at := getattr(coll, key)) is not None}
    moved = replace(request, ranks=ranks, collective=Collective(coll.name, coll.world_size, **place))
    assert ALGORITHMS["optimal"].plan(moved).rate == ALGORITHMS["optimal"].plan(request).rate


@seldom
@given(requests())
def test_links_twice_as_wide_are_twice_as_fast(request: Request) -> None:
    """The GB/s double. The common divisor of links becomes the unit, so the rate in units stays the same."""
    topology = request.topology
    doubled = {(x.src, x.dst): 2 * x.capacity for x in topology.links}
    wide = replace(request, topology=replace(topology, links=links_of(doubled)))
    before, after = ALGORITHMS["optimal"].plan(request), ALGORITHMS["optimal"].plan(wide)
    assert after.algbw_gb_per_s == pytest.approx(2 * before.algbw_gb_per_s)


@seldom
@given(requests(switch=False))
def test_blink_is_near_the_optimum_through_one_root(request: Request) -> None:
    if request.collective.name not in ("broadcast", "reduce", "allreduce"):
        request = replace(request, collective=Collective("broadcast", len(request.ranks), root=0))
    forest = plan_or_reason("blink", request)
    if isinstance(forest, str):
        assert request.collective.name == "allreduce"
    else:
        assert_sound(forest)
        assert forest.rate >= Fraction(9, 10) * ALGORITHMS["optimal"].plan(request).rate


@seldom
@given(requests(), st.sampled_from(["fewest-trees", "least-depth"]))
def test_objectives_select_among_the_fastest_plans(request: Request, objective: str) -> None:
    plain = ALGORITHMS["optimal"].plan(request)
    chosen = plan_or_reason("optimal", replace(request, objective=objective))
    if isinstance(chosen, str):
        view = rank_network_of(request.network, request.ranks).network
        one_way = request.collective.name == "allreduce" and not view.symmetric
        switched = objective == "fewest-trees" and (one_way or not view.switchless)
        assert request.collective.name in FLOWS or switched
        return
    assert_sound(chosen)
    if objective == "least-depth":
        assert chosen.rate >= chosen.bound * (1 - LOSS)
        assert chosen.depth <= plain.depth
    else:
        assert chosen.rate >= plain.rate
        assert len(chosen.shares) <= len(plain.shares) or not plain.optimal
