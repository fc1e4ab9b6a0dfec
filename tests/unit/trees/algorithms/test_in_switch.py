"""In-network reduction: published rates, plans that checker and reference engine accept, and a bound by scipy."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from blinkccl.collectives.spec import Collective
from blinkccl.engines import reference
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.proof.check import check_plan
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.json_format import parse, write
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec, with_every_switch
from blinkccl.trees.algorithms.bounds import certificate_for
from blinkccl.trees.algorithms.in_switch import in_switch_forest, plan
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.registry import ALGORITHMS, algorithm
from blinkccl.trees.forest.document import dumps, from_document, to_document
from blinkccl.trees.forest.model import Cut, Dual, Forest
from blinkccl.trees.packing.in_network import TreeTask, in_network_proof
from support.execution import difference
from support.planned import asked, with_ends

TREES = ("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter")


def planned(machine: Topology, name: str = "allreduce") -> Forest | None:
    network = network_for(machine, machine.ranks)
    return in_switch_forest(network, with_ends(name, len(network.ranks)), network.ranks)


def assert_right(forest: Forest) -> None:
    """Check a plan by the independent checker, the verifier and the reference engine, also read from its file."""
    document = json.loads(dumps(to_document(forest)))
    verdict = check_plan(document)
    assert (verdict.violations, verdict.rate, verdict.bound) == ([], forest.rate, forest.bound)
    assert from_document(document) == forest
    program = lower(forest)
    assert violations(program, forest.topology) == []
    for count in (1, 37):
        assert difference(reference.run, program, count=count) is None


@pytest.mark.parametrize(
    ("spec", "every", "gb_per_s"),
    [
        ("hgx-h100", False, 450),  # ForestColl's figures with multicast
        ("2x dgx-a100", True, 200),
        ("2x hgx-h100", False, 400),
        ("dgx-a100", True, 300),
        ("dgx-2", True, 150),
        # Two network hops between servers, 2(n − 1) times, over 2n·400 GB/s: 400·n / (2(n − 1)) if only switches of
        # servers reduce, the full 400 if the network's switches do too.
        ("4x hgx-h100 @ fabric=rails", False, Fraction(800, 3)),
        ("4x hgx-h100 @ fabric=rails", True, 400),
        ("4x hgx-h100 @ fabric=tree:2", False, Fraction(800, 3)),
        ("4x hgx-h100 @ fabric=tree:2", True, 400),
        ("4x hgx-h100 @ fabric=rails:2", True, 400),
        ("4x dgx-a100 @ 200Gbps", True, 200),
    ],
)
def test_published_rates(spec, every, gb_per_s):
    machine = parse_spec(spec)
    forest = planned(with_every_switch(machine) if every else machine)
    assert forest is not None
    assert forest.rate * Fraction(forest.topology.unit_gb_per_s) == gb_per_s
    assert forest.optimal
    assert isinstance(forest.certificate, Cut if gb_per_s != Fraction(800, 3) else Dual)
    assert_right(forest)


@pytest.mark.parametrize("servers", [8, 16])
def test_clusters_have_a_tree_per_nic(servers):
    forest = planned(with_every_switch(parse_spec(f"{servers}x dgx-a100 @ 200Gbps")))
    assert forest is not None
    assert forest.optimal
    assert forest.algbw_gb_per_s == 200
    assert (len(forest.shares), forest.depth) == (8, 3)
    assert check_plan(to_document(forest)).violations == []


def test_gpus_joined_by_links_with_a_network_that_reduces():
    forest = planned(with_every_switch(parse_spec("2x mi300x")))
    assert forest is not None
    assert forest.optimal
    assert_right(forest)


@pytest.mark.parametrize("name", TREES[1:])
@pytest.mark.parametrize("spec", ["hgx-h100", "2x dgx-a100 @ 200Gbps"])
def test_collectives_in_one_direction_gain_links_but_no_rate(name, spec):
    """A cut bounds such a collective with any switches, and trees of ranks reach it through balanced switches."""
    machine = with_every_switch(parse_spec(spec))
    forest = planned(machine, name)
    assert forest is not None
    without = ALGORITHMS["optimal"].plan(asked(spec, name, objective="exact"))
    assert forest.rate == forest.bound == without.rate
    used, before = (sum(each.link_load.values()) / each.rate for each in (forest, without))
    assert used < before
    assert_right(forest)


def test_a_switch_with_more_outbound_than_inbound_capacity_gains_by_multicast():
    """A unicast hop uses one unit in and one unit out, so the inbound capacity limits it; a multicast enters once."""
    box = Assembly("narrow", "synthetic")
    gpus, (switch,) = box.add_many("gpu", 3, "GPU"), box.add_many("switch", 1, "SW")
    box.arc(gpus[0], switch, 1, "nvlink")
    for gpu in gpus[1:]:
        box.arc(switch, gpu, 1, "nvlink")
        box.arc(gpu, gpus[0], 1, "nvlink")
    machine = box.finish()
    without = ALGORITHMS["optimal"].plan(asked(machine, "broadcast"))
    forest = planned(with_every_switch(machine), "broadcast")
    assert forest is not None
    assert (without.rate, forest.rate) == (Fraction(1, 2), 1)
    assert_right(forest)


def test_a_switch_without_the_property_does_not_reduce():
    for name in ("dgx-a100", "dgx-1v", "pcie-8gpu"):
        machine = parse_spec(name)
        assert not any(v.combines for v in machine.vertices)
        assert planned(machine) is None
    with pytest.raises(UnsupportedError, match="no switch between these ranks of dgx-a100"):
        plan(asked("dgx-a100", "allreduce"))


def test_it_is_not_tried_for_a_job():
    assert "in_switch" not in ALGORITHMS
    assert algorithm("in_switch").plan(asked("hgx-h100", "allreduce")).algorithm == "in_switch"
    with pytest.raises(UnsupportedError, match=r"in_switch supports allreduce, .*, not alltoall"):
        algorithm("in_switch").plan(asked("hgx-h100", "alltoall"))
    with pytest.raises(UnsupportedError, match="a switch does not guarantee the order"):
        algorithm("in_switch").plan(replace(asked("hgx-h100", "allreduce"), deterministic="order"))


def test_the_property_survives_a_file_and_belongs_to_switches_of_wide_ports():
    machine = parse_spec("hgx-h100")
    assert [v.name for v in machine.vertices if v.combines] == ["NVSwitch"]
    assert parse(write(machine)).vertices == machine.vertices
    assert write(machine).count("combines") == 1
    assert sum(v.combines for v in parse_spec("3x hgx-h100").vertices) == 3


def test_more_ranks_than_the_limit_are_refused():
    machine = parse_spec("33x hgx-h100")
    with pytest.raises(
        UnsupportedError, match="264 ranks are too many to plan with in-network reduction, expected at most 256"
    ):
        planned(machine)


def without_a_nic(machine: Topology) -> Topology:
    gone = next(v.id for v in machine.vertices if v.kind == "nic")
    links = tuple(x for x in machine.links if gone not in (x.src, x.dst))
    return replace(machine, links=links, vertices=tuple(v for v in machine.vertices if v.id != gone))


def test_unequal_servers():
    """One server has seven of eight NICs."""
    forest = planned(without_a_nic(with_every_switch(parse_spec("2x dgx-a100"))))
    assert forest is not None
    assert forest.optimal
    assert forest.algbw_gb_per_s == 175
    assert_right(forest)
    with pytest.raises(UnsupportedError, match=r"in_switch plans at most 160 different links, got \d+"):
        planned(without_a_nic(with_every_switch(parse_spec("8x dgx-a100"))))


def flow_bound(network: Topology, combining: set[int]) -> float:
    """ForestColl's LP (arXiv 2402.06787): flows from the roots to every rank, and back.

    Joints are the ranks and the combining switches; only ranks have a demand. The columns are the part of the data
    rooted at each joint, the capacity of each arc by stage, and a flow per rank and stage. Other switches have equal
    inbound and outbound capacity in every stage.
    """
    arcs, ranks, vertices = sorted(network.link), network.ranks, [v.id for v in network.vertices]
    joints = [*ranks, *sorted(combining)]
    a, j = len(arcs), len(joints)
    size = j + 2 * a + 2 * len(ranks) * (a + j)
    upper: list[tuple[np.ndarray, float]] = []
    equal: list[np.ndarray] = []
    flows = itertools.count(j + 2 * a, a + j)
    for stage, rank in itertools.product(range(2), ranks):
        at = next(flows)
        for k in range(a):
            row = np.zeros(size)
            row[at + k], row[j + stage * a + k] = 1, -1
            upper.append((row, 0))
        for k in range(j):
            row = np.zeros(size)
            row[at + a + k], row[k] = 1, -1
            upper.append((row, 0))
        for vertex in vertices:
            row = np.zeros(size)
            for k, (u, v) in enumerate(arcs):
                row[at + k] = (int(v == vertex) - int(u == vertex)) * (1 if stage == 0 else -1)
            if vertex in joints:
                row[at + a + joints.index(vertex)] = 1
            if vertex == rank:
                row[:j] -= 1
            equal.append(row)
    for stage, vertex in itertools.product(range(2), (v for v in vertices if v not in joints)):
        row = np.zeros(size)
        for k, (u, v) in enumerate(arcs):
            row[j + stage * a + k] = int(v == vertex) - int(u == vertex)
        equal.append(row)
    for k, arc in enumerate(arcs):
        row = np.zeros(size)
        row[j + k] = row[j + a + k] = 1
        upper.append((row, network.link[arc].capacity))
    cost = np.zeros(size)
    cost[:j] = -1
    solution = linprog(cost, [row for row, _ in upper], [most for _, most in upper], equal, np.zeros(len(equal)))
    assert solution.status == 0
    return -float(solution.fun)


@st.composite
def machines(draw) -> Topology:
    """Three to five GPUs on one to three switches, some with in-network reduction, and some direct links."""
    box = Assembly("random", "synthetic")
    gpus = box.add_many("gpu", draw(st.integers(3, 5)), "GPU")
    switches = box.add_many("switch", draw(st.integers(1, 3)), "SW")
    both_ways = draw(st.booleans())

    def join(a: int, b: int, most: int) -> None:
        if both_ways:
            box.join(a, b, draw(st.integers(1, most)), "nvlink")
        else:
            box.arc(a, b, draw(st.integers(1, most)), "nvlink")
            box.arc(b, a, draw(st.integers(1, most)), "nvlink")

    for gpu in gpus:
        join(gpu, switches[draw(st.integers(0, len(switches) - 1))], 4)
    for a, b in draw(st.lists(st.sampled_from(list(itertools.pairwise(gpus))), max_size=3, unique=True)):
        join(a, b, 3)
    for a, b in itertools.pairwise(switches):
        join(a, b, 5)
    machine = box.finish()
    some = draw(st.sets(st.sampled_from(switches), min_size=1))
    return replace(machine, vertices=tuple(replace(v, combines=v.id in some) for v in machine.vertices))


@given(machines(), st.sampled_from(TREES))
def test_every_plan_is_right_and_no_slower_than_trees_of_ranks(machine, name):
    try:
        forest = planned(machine, name)
    except TopologyError:  # the links do not connect the ranks
        return
    if forest is None:
        return
    assert_right(forest)
    if name == "allreduce":
        proof = certificate_for(
            Collective(name, len(machine.ranks)), machine.ranks, network_for(machine, machine.ranks)
        )
        assert forest.rate >= proof.bound  # trees over ranks reach this bound


@given(machines())
def test_the_proof_is_the_best_that_flows_give(machine):
    """The flow program confirms the bound, also if a narrow cut would be sufficient."""
    try:
        network = network_for(machine, machine.ranks)
    except TopologyError:
        return
    combining = {v.id for v in network.vertices if v.combines}
    view = rank_network_of(network, network.ranks, frozenset(v.id for v in network.vertices))
    at = tuple(view.ids.index(v) for v in sorted(combining))
    proof = in_network_proof(TreeTask(view.network, at, True, True))
    assert float(proof.bound) == pytest.approx(flow_bound(network, combining), rel=1e-4)
    best = planned(machine)
    assert best is None or best.rate <= proof.bound
