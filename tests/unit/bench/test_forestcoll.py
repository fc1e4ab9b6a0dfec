"""Both halves of ``benchmarks/forestcoll.py`` plan on the same links, and the rates of trees are measured."""

from fractions import Fraction
from types import SimpleNamespace

import forestcoll
import forestcoll_ours
import forestcoll_theirs
import networkx as nx
import pytest

from blinkccl.topology.json_format import from_fields
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_gpus, parse_spec

#: A chain 0 – 1 – 2 with two lanes per direction, on which a tree from every rank fills every link.
CHAIN = [(0, 1, [(0, 1), (1, 2)]), (1, 1, [(1, 0), (1, 2)]), (2, 1, [(2, 1), (1, 0)])]
LANES = dict.fromkeys([(0, 1), (1, 0), (1, 2), (2, 1)], 2)


def fields(spec, gpus=None):
    machine = parse_spec(spec)
    return forestcoll.fields_of(network_for(machine, parse_gpus(gpus, machine)))


@pytest.mark.parametrize(
    ("spec", "gpus", "gb_per_s"),
    [
        ("dgx-1v", None, "1200/7"),
        ("dgx-1v", "0,3,4", "75"),  # Both links have two lanes, so the planner's unit differs from the job's.
        ("2x dgx-a100", None, "1040/3"),
        ("2x mi250", None, "5312/15"),
    ],
)
def test_both_halves_see_the_same_links(spec, gpus, gb_per_s):
    job = fields(spec, gpus)
    graph, ranks = forestcoll_theirs.graph_of(job)
    request = forestcoll_ours.request(forestcoll.job_of(forestcoll.Row(spec)), job)
    assert tuple(ranks) == request.ranks
    unit = job["unit_gb_per_s"]
    assert {(u, v): graph[u][v]["capacity"] * unit for u, v in graph.edges()} == forestcoll_ours.rates(request.network)
    assert forestcoll_ours.planned(request, trees=True)["optimum"] == gb_per_s


def test_links_that_the_planner_leaves_out_are_noticed():
    machine = parse_spec("dgx-1v")
    with pytest.raises(SystemExit, match="dgx-1v: the planner's links are not those"):
        forestcoll_ours.request(forestcoll.job_of(forestcoll.Row("dgx-1v")), forestcoll.fields_of(machine))


def test_one_of_its_own_topologies_becomes_ours():
    """The graph has two servers of two GPUs on a switch, and NICs to one network, named by ForestColl's tuples."""
    graph = nx.DiGraph()
    gpus = [(server, "GPU", i) for server in range(2) for i in range(2)]
    for gpu in gpus:
        nic = (gpu[0], "mlx5", gpu[2])
        for a, b, capacity in ((gpu, (gpu[0], "NVSwitch", 0), 300), (gpu, nic, 20), (nic, (-1, "IB", 0), 20)):
            graph.add_edge(a, b, capacity=capacity)
            graph.add_edge(b, a, capacity=capacity)
    drawn = forestcoll_theirs.drawn(SimpleNamespace(a100_topology=lambda servers: (graph, gpus)), "a100_topology", 2)
    topology = from_fields(drawn, "drawn")
    assert topology.unit_gb_per_s == 20
    assert topology.ranks == (0, 1, 2, 3)
    assert sorted(link.gb_per_s for link in topology.links) == [20.0] * 16 + [300.0] * 8
    request = forestcoll_ours.request(forestcoll.job_of(forestcoll.Row("drawn")), drawn)
    # Two blocks enter a server through its two NICs.
    assert forestcoll_ours.planned(request, trees=False)["optimum"] == "80"


def test_trees_are_measured():
    assert forestcoll_theirs.rate_of(CHAIN, 1, 3, LANES) == 3
    assert forestcoll_theirs.rate_of(CHAIN, 1, 3, LANES | {(1, 0): 1}) == Fraction(3, 2)
    assert forestcoll_theirs.depth_of(CHAIN) == 2
    assert forestcoll_theirs.depth_of([(1, 1, [(1, 9, 0), (1, 9, 2)])]) == 1, "a switch on the way is no hop"
    assert forestcoll_theirs.checked_trees(CHAIN, 1, {0, 1, 2}) == CHAIN


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        (CHAIN[:2], "carry .* of 1 units"),
        ([*CHAIN, CHAIN[0]], "carry .* of 1 units"),
        ([CHAIN[0], CHAIN[1], (2, 1, [(2, 1)])], "from 2 does not reach every rank once"),
        ([(0, 1, [(0, 1), (1, 2), (0, 2)]), *CHAIN[1:]], "from 0 does not reach every rank once"),
    ],
)
def test_trees_that_are_no_allgather_are_refused(trees, message):
    with pytest.raises(SystemExit, match=message):
        forestcoll_theirs.checked_trees(trees, 1, {0, 1, 2})


def test_rates_that_differ_end_the_run():
    one, other = ({"answers": [{"optimum": rate}]} for rate in ("75", "75/2"))
    forestcoll.agreed("here", one, one)
    with pytest.raises(SystemExit, match=r"here: the optimum is \['75'\] by ours, \['75/2'\] by theirs"):
        forestcoll.agreed("here", one, other)


def test_there_are_180_allocations():
    names = [fields["name"] for fields in forestcoll.allocations()]
    assert len(names) == len(set(names)) == 180
