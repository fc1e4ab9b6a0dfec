"""Ranked sets of GPUs, against planning each set on its own."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl import ring_baseline
from blinkccl.errors import TopologyError, UsageError
from blinkccl.show.beside import ring_sentence
from blinkccl.show.pick import rank_sets, ranking_text
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request


def _optimum(topology, ranks):
    request = Request(topology, Collective("allreduce", len(ranks)), ranks)
    try:
        forest = algorithm("optimal").plan(request)
    except TopologyError:
        forest = algorithm("optimal").plan(replace(request, links="pcie"))
    return forest.rate * exact_unit(forest.topology)


@pytest.mark.parametrize(("spec", "size"), [("dgx-1v", 3), ("dgx-1p", 5), ("pcie-4gpu-nvlink-pairs", 2), ("mist", 3)])
def test_every_set_has_its_own_optimum(spec, size):
    topology = parse_spec(spec)
    ranking = rank_sets(topology, topology.ranks, size)
    rates = {pick.ranks: pick.reach.gb_per_s for pick in ranking.picks}
    assert rates == {ranks: _optimum(topology, ranks) for ranks in combinations(topology.ranks, size)}
    order = [(-pick.reach.gb_per_s, -pick.left_gb_per_s, pick.ranks) for pick in ranking.picks]
    assert order == sorted(order)


def test_the_best_remaining_set_is_reported():
    topology = parse_spec("dgx-1v")
    for pick in rank_sets(topology, topology.ranks, 4).picks:
        [rest] = [tuple(v for v in topology.ranks if v not in pick.ranks)]
        assert pick.left == rest
        assert pick.left_gb_per_s == _optimum(topology, rest)
    for pick in rank_sets(topology, topology.ranks, 3).picks[:5]:
        rest = [v for v in topology.ranks if v not in pick.ranks]
        assert pick.left_gb_per_s == max(_optimum(topology, ranks) for ranks in combinations(rest, 3))


def test_too_few_remaining_gpus_have_no_rate():
    topology = parse_spec("ring:4")
    assert {(pick.left, pick.left_gb_per_s) for pick in rank_sets(topology, topology.ranks, 3).picks} == {
        ((), Fraction(0))
    }


def test_equal_sets_are_planned_once(monkeypatch):
    planned = []
    row = type(algorithm("optimal"))
    plan = row.plan

    def counted(self, request):
        planned.append(request.ranks)
        return plan(self, request)

    monkeypatch.setattr(row, "plan", counted)
    topology = parse_spec("dgx-2")
    ranking = rank_sets(topology, topology.ranks, 4)
    assert len(ranking.picks) == 1820
    assert len(planned) == 1


def test_gpus_that_are_not_connected():
    ranking = rank_sets(parse_spec("chain:4"), (0, 1, 3), 2)
    assert [float(pick.reach.gb_per_s) for pick in ranking.picks] == [25.0, 0.0, 0.0]
    assert "not connected" in ranking_text(ranking, 5)
    assert ranking.document(5)["best"][2]["links"] is None


def test_chosen_links_are_used():
    topology = parse_spec("dgx-1v")
    reached = {links: rank_sets(topology, (1, 4, 6), 3, links=links).picks[0].reach for links in (None, "fast", "all")}
    assert {links: reach.links for links, reach in reached.items()} == {None: "pcie", "fast": "", "all": "all"}
    assert reached["all"].gb_per_s > reached[None].gb_per_s > reached["fast"].gb_per_s == 0
    with pytest.raises(TopologyError, match="unknown links 'slow'"):
        rank_sets(topology, (1, 4, 6), 3, links="slow")


def test_limits():
    topology = parse_spec("8x dgx-a100")
    with pytest.raises(UsageError, match="name fewer GPUs with --free"):
        rank_sets(topology, topology.ranks, 20)
    with pytest.raises(UsageError, match="expected 2 to 2, the number of free GPUs"):
        rank_sets(topology, (0, 1), 1)


def test_progress_counts_sets():
    calls = []
    rank_sets(parse_spec("ring:4"), (0, 1, 2, 3), 2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i + 1, 6) for i in range(6)]


def _request(spec, ranks, name="allreduce", **ends):
    return Request(parse_spec(spec), Collective(name, len(ranks), **ends), ranks)


def test_the_ring_beside_a_plan():
    fast = ring_baseline(_request("dgx-1v", tuple(range(8))))
    assert (fast.fast, fast.rings, fast.gb_per_s) == (True, 6, pytest.approx(6 * 25 * 8 / 14))
    slow = ring_baseline(_request("dgx-1v", (1, 4, 5, 6)))
    assert (slow.fast, slow.gb_per_s) == (False, pytest.approx(20 / 3))
    none = ring_baseline(_request("dgx-1v", (0, 1, 2, 3), "alltoall"))
    assert none.gb_per_s is None
    assert "alltoall" in none.reason
    unjoined = ring_baseline(_request("chain:4", (0, 1, 2, 3)))
    assert unjoined.reason == "no NVLink ring through all ranks, and no ring over PCIe"


def test_a_ring_is_not_compared_with_itself():
    request = _request("dgx-1v", tuple(range(8)))
    forest = algorithm("ring").plan(request)
    assert ring_sentence(ring_baseline(request), forest) == ""
