"""Switches between servers by rule: their rates, against closed forms of AllGather."""

from fractions import Fraction

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.errors import TopologyError
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.bounds import certificate_for
from support.planned import plan


def switches(topology: Topology) -> dict[str, dict[str, float]]:
    """Neighbours of each network switch by label (servers' NICs are summed), and GB/s to each."""
    neighbours: dict[str, dict[str, float]] = {}
    label = {v.id: v.label for v in topology.vertices}
    for v in topology.vertices:
        if v.kind == "switch" and all(x.kind == "net" for x in topology.links if x.src == v.id):
            for x in topology.links:
                if x.src == v.id:
                    other = label[x.dst].split("/")[0] if topology.vertex[x.dst].kind == "nic" else label[x.dst]
                    ends = neighbours.setdefault(v.label, {})
                    ends[other] = ends.get(other, 0) + x.gb_per_s
    return neighbours


def allgather_gb_per_s(spec: str) -> Fraction:
    topology = parse_spec(spec)
    network = network_for(topology, topology.ranks)
    rate = certificate_for(Collective("allgather", len(topology.ranks)), topology.ranks, network).bound
    return rate * Fraction(network.unit_gb_per_s)


def test_rails_join_nics_of_one_position() -> None:
    neighbours = switches(parse_spec("3x hgx-h100 @ fabric=rails"))
    assert set(neighbours) == {f"RAIL{i}" for i in range(8)}
    assert all(ends == {"0": 50, "1": 50, "2": 50} for ends in neighbours.values())


def test_a_spine_over_rails_and_leaves() -> None:
    assert switches(parse_spec("3x hgx-h100 @ fabric=rails:3"))["SPINE"] == {f"RAIL{i}": 50 for i in range(8)}
    neighbours = switches(parse_spec("5x dgx-a100 @ fabric=tree:2:4"))
    assert neighbours["LEAF0"] == {"0": 200, "1": 200, "SPINE": 100}
    assert neighbours["LEAF2"] == {"4": 200, "SPINE": 50}
    assert neighbours["SPINE"] == {"LEAF0": 100, "LEAF1": 100, "LEAF2": 50}
    assert switches(parse_spec("2x dgx-a100 @ fabric=tree:1:3/2"))["LEAF0"]["SPINE"] == pytest.approx(400 / 3)


def test_a_dragonfly_joins_all_groups_equally() -> None:
    neighbours = switches(parse_spec("6x dgx-a100 @ fabric=dragonfly:2"))
    assert neighbours["GROUP1"] == {"2": 200, "3": 200, "GROUP0": 200, "GROUP2": 200}
    assert switches(parse_spec("6x dgx-a100 @ fabric=dragonfly:2:2"))["GROUP1"]["GROUP0"] == 100


def test_servers_that_fit_one_switch_have_no_spine() -> None:
    one = parse_spec("2x dgx-a100")
    for rule in ("tree:2:4", "dragonfly:2"):
        same = parse_spec(f"2x dgx-a100 @ fabric={rule}")
        assert [(x.src, x.dst, x.capacity) for x in same.links] == [(x.src, x.dst, x.capacity) for x in one.links]


@pytest.mark.parametrize(
    ("fabric", "narrowest"),
    [
        # n servers of 8 NICs of 25 GB/s: every group of servers receives the data of all others.
        ("rails", Fraction(200, 24)),
        ("rails:4", Fraction(200, 24)),  # the spine is not needed
        ("tree:2", Fraction(200, 24)),
        ("tree:2:4", Fraction(400, 4 * 16)),
        ("tree:1:2", Fraction(200, 2 * 24)),
        ("dragonfly:2:8", Fraction(400, 8 * 16)),
    ],
)
def test_allgather_is_as_fast_as_the_narrowest_switch(fabric: str, narrowest: Fraction) -> None:
    assert allgather_gb_per_s(f"4x dgx-a100 @ fabric={fabric}") == 32 * narrowest


@pytest.mark.parametrize(
    ("spec", "gpus", "collective"),
    [
        ("4x hgx-h100 @ fabric=rails", None, "allgather"),
        ("4x dgx-a100 @ fabric=rails:2", "0-2+0-2+0-2+0-1", "allgather"),
        ("4x dgx-a100 @ fabric=rails:2", "0-2+0-2+0-2+0-1", "allreduce"),
        ("4x dgx-a100 @ fabric=tree:2:4", "0-3+0-3+0-3+0-2", "allreduce"),
        ("4x dgx-1v @ fabric=tree:2:3, 100Gbps", "0,1,2+0,1,2+1,4,5+2,3", "allgather"),
        ("4x dgx-1v @ fabric=dragonfly:2:2, 100Gbps", "0,1,2+0,1,2+1,4,5+2,3", "allreduce"),
        ("6x dgx-a100 @ fabric=dragonfly:2:2", "0,1+0,1+0,1+0,1+0,1+0", "reduce_scatter"),
        ("4x dgx-a100 @ fabric=tree:2:4", "0-3+0-3+0-3+0-2", "broadcast"),
    ],
)
def test_plans_reach_the_bound_with_small_denominators(spec: str, gpus: str | None, collective: str) -> None:
    ends = {"root": 0} if collective == "broadcast" else {}
    forest = plan("optimal", spec, gpus, collective, **ends)
    assert forest.rate >= forest.bound * Fraction(99, 100)
    assert max(share.weight.denominator for share in forest.shares) <= 128 * len(forest.ranks)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "4x dgx-a100 @ fabric=rail",
            "no known fabric (did you mean 'rails'?); expected one of rails, rails:K, tree:L",
        ),
        ("4x dgx-a100 @ fabric=tree", "lacks the number of servers per switch"),
        ("4x dgx-a100 @ fabric=tree:0", "expected tree:L, tree:L:K with positive numbers"),
        ("4x dgx-a100 @ fabric=tree:2:0", "with positive numbers"),
        ("4x dgx-a100 @ fabric=rails:2:2", "expected rails, rails:K"),
        ("4x dgx-a100 @ fabric=tree:2:1/0", "with positive numbers"),
        ("4x dgx-1v @ fabric=rails, 40Gbps", "rails need several NICs per server, but these servers have 1"),
        ("dgx-a100 @ fabric=rails", 'a fabric joins servers; add their number: "4x'),
        ("2x dgx-a100 @ fabric=rails, cables=ring", "give one of them"),
        ("2x dgx-a100 @ fabric=rails, fabric=tree:2", "fabric is stated twice"),
        ("2x dgx-1v @ fabric=tree:1", "has no NIC; add the rate of the network"),
    ],
)
def test_bad_fabrics(spec: str, message: str) -> None:
    with pytest.raises(TopologyError) as error:
        parse_spec(spec)
    assert message in str(error.value)
