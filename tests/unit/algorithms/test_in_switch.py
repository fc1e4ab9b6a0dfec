"""AllReduce with what switches combine: published rates, trees that are trees, and a bound by another way."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from blinkccl.algorithms.bounds import certificate_for
from blinkccl.algorithms.in_switch import in_switch_allreduce
from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Cut
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.json_format import parse, write
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec


def switches_of(network: Topology) -> list[int]:
    return [v.id for v in network.vertices if v.kind == "switch"]


def flow_bound(network: Topology) -> float:
    """ForestColl's LP (arXiv 2402.06787): flows of every rank to and from the roots, switches need not keep what comes.

    Per rank one flow in what carries the broadcast and one in what carries the reduction; each arc splits between both.
    """
    arcs, ranks = sorted(network.link), network.ranks
    vertices = [v.id for v in network.vertices]
    n, a = len(ranks), len(arcs)
    size = n + a + 2 * n * (a + n)  # x by root; what of each arc is for the broadcast; flows with arcs of the source
    rows, right, equal, zero = [], [], [], []

    def flow(rank: int, way: int) -> int:
        return n + a + (2 * rank + way) * (a + n)

    for index in range(n):
        for way in range(2):
            at = flow(index, way)
            for k, arc in enumerate(arcs):
                row = np.zeros(size)
                row[at + k], row[n + k] = 1, (-1 if way == 0 else 1)
                rows.append(row)
                right.append(0 if way == 0 else network.link[arc].capacity)
            for k in range(n):
                row = np.zeros(size)
                row[at + a + k], row[k] = 1, -1
                rows.append(row)
                right.append(0)
            for vertex in vertices:
                if vertex == ranks[index]:
                    continue
                row = np.zeros(size)
                for k, (u, v) in enumerate(arcs):
                    sign = int(v == vertex) - int(u == vertex)
                    row[at + k] = sign if way == 0 else -sign
                if vertex in ranks:
                    row[at + a + ranks.index(vertex)] = 1
                equal.append(row)
                zero.append(0)
            row = np.zeros(size)  # all of the source's flow is used
            row[at + a : at + a + n], row[:n] = 1, -1
            equal.append(row)
            zero.append(0)
    for k, arc in enumerate(arcs):
        row = np.zeros(size)
        row[n + k] = 1
        rows.append(row)
        right.append(network.link[arc].capacity)
    cost = np.zeros(size)
    cost[:n] = -1
    found = linprog(cost, rows, right, equal, zero)
    assert found.status == 0
    return -float(found.fun)


def check(network: Topology, found) -> None:
    """Trees over all ranks, branching at ranks and combining switches only, within the capacities, and the proof."""
    joints = {*network.ranks, *found.switches}
    load: Counter[tuple[int, int]] = Counter()
    for tree in found.trees:
        for paths, ahead in ((tree.up, True), (tree.down, False)):
            parent: dict[int, int] = {}
            for path in paths:
                inner, outer = (path[-1], path[0]) if ahead else (path[0], path[-1])
                assert {inner, outer} <= joints
                assert not set(path[1:-1]) & set(network.ranks)
                assert outer not in parent
                parent[outer] = inner
                for arc in pairwise(path):
                    load[arc] += tree.weight * found.rate
            for rank in network.ranks:
                at, seen = rank, set()
                while at != tree.root:
                    assert at not in seen
                    seen.add(at)
                    at = parent[at]
    assert sum(tree.weight for tree in found.trees) == 1
    assert all(used <= network.link[arc].capacity for arc, used in load.items())
    assert found.proof.bound == found.rate
    if isinstance(found.proof, Cut):
        side = set(found.proof.side)
        assert 0 < len(side & set(network.ranks)) < len(network.ranks)
        crossing = sum(x.capacity for x in network.links if x.src in side and x.dst not in side)
        assert crossing == found.proof.capacity


@pytest.mark.parametrize(
    ("spec", "every", "gb_per_s"),
    [
        ("hgx-h100", False, 450),  # ForestColl's LP with multicast
        ("2x dgx-a100", True, 200),  # the same
        ("2x hgx-h100", False, 400),
        ("dgx-a100", True, 300),
        ("dgx-2", True, 150),
    ],
)
def test_published_rates(spec, every, gb_per_s):
    machine = parse_spec(spec)
    network = network_for(machine, machine.ranks)
    found = in_switch_allreduce(network, network.ranks, switches_of(network) if every else None)
    assert found.rate * Fraction(network.unit_gb_per_s) == gb_per_s
    check(network, found)


def test_what_says_nothing_combines_nothing():
    for name in ("dgx-a100", "dgx-1v", "pcie-8gpu"):
        machine = parse_spec(name)
        assert not any(v.combines for v in machine.vertices)
        assert in_switch_allreduce(network_for(machine, machine.ranks), machine.ranks) is None


def test_the_property_survives_a_file_and_belongs_to_switches_of_wide_ports():
    machine = parse_spec("hgx-h100")
    assert [v.name for v in machine.vertices if v.combines] == ["NVSwitch"]
    assert parse(write(machine)).vertices == machine.vertices
    assert write(machine).count("combines") == 1
    assert sum(v.combines for v in parse_spec("3x hgx-h100").vertices) == 3


def test_more_than_can_be_looked_at_is_refused():
    machine = parse_spec("8x hgx-h100")
    network = network_for(machine, machine.ranks)
    with pytest.raises(UnsupportedError, match="8 switches that combine among 64 ranks"):
        in_switch_allreduce(network, machine.ranks)


@st.composite
def machines(draw) -> Topology:
    """Three or four GPUs on one or two switches, with some direct links."""
    box = Assembly("random", "synthetic")
    gpus = box.add_many("gpu", draw(st.integers(3, 4)), "GPU")
    switches = box.add_many("switch", draw(st.integers(1, 2)), "SW")
    for gpu in gpus:
        box.join(gpu, switches[draw(st.integers(0, len(switches) - 1))], draw(st.integers(1, 4)), "nvlink")
    for a, b in draw(st.lists(st.sampled_from(list(pairwise(gpus))), max_size=3, unique=True)):
        box.join(a, b, draw(st.integers(1, 3)), "nvlink")
    if len(switches) > 1:
        box.arc(switches[0], switches[1], draw(st.integers(1, 5)), "nvlink")
        box.arc(switches[1], switches[0], draw(st.integers(1, 5)), "nvlink")
    return box.finish()


@given(machines())
def test_between_what_ranks_reach_and_what_flows_allow(machine):
    network = network_for(machine, machine.ranks)
    combining = switches_of(network)
    found = in_switch_allreduce(network, network.ranks, combining)
    alone = certificate_for(Collective("allreduce", len(network.ranks)), network.ranks, network).bound
    if found is None:
        return
    check(network, found)
    assert found.rate >= alone
    assert float(found.rate) <= flow_bound(network) * (1 + 1e-9)
