"""AllToAll with equivalent ranks, and on random links: the rate, its proof, and the work of the solver."""

from fractions import Fraction

import networkx as nx
import pytest

from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.bounds import all_pairs_flow
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.forest.document import to_document
from blinkccl.trees.packing import maxflow, solver
from support.examples import ALL_TESTS
from support.planned import asked, plan

ALIKE = [
    "ring:16",
    "torus:4x4",
    "torus:3x5",
    "torus:2x3x4",
    "hypercube:4",
    "clique:8",
    "4x dgx-a100",
    "2x dgx-1v @ 40Gbps",
]
ALIKE_TOO = [
    *("ring:32", "ring:64", "clique:32", "torus:5x5", "torus:4x8", "torus:6x6", "torus:8x8", "torus:4x4x4"),
    *("torus:6x6x6", "hypercube:5", "hypercube:6", "dgx-a100", "2x dgx-a100", "8x dgx-a100", "16x dgx-a100"),
    *("32x dgx-a100", "8x dgx-1v @ 100Gbps", "2x mi250", "gb200-nvl72"),
]
RANDOM = ["random:16:seed=1", "random:9:seed=2:directed"]
RANDOM_TOO = [f"random:{n}:seed={seed}" for n in (16, 24, 32, 40) for seed in (1, 2, 3)]


@pytest.mark.parametrize("spec", [*ALIKE, *(ALIKE_TOO if ALL_TESTS else ())])
def test_equivalent_ranks_get_the_optimum_on_shortest_paths(spec: str) -> None:
    forest = plan("optimal", spec, None, "alltoall")
    assert forest.rate == forest.bound
    assert forest.longest_weight <= 2


@pytest.mark.parametrize("spec", [*RANDOM, *(RANDOM_TOO if ALL_TESTS else ())])
def test_random_links_get_the_bound_but_for_a_hundredth(spec: str) -> None:
    forest = plan("optimal", spec, None, "alltoall")
    assert forest.rate >= forest.bound * Fraction(99, 100)


@pytest.mark.parametrize("spec", ["ring:7", "ring:12", "torus:5x5", "torus:3x3x3", "hypercube:5", "clique:9"])
def test_all_links_are_full_if_they_are_equivalent_too(spec: str) -> None:
    """S is N blocks, and the path of a block is at least as long as the distance of its ends."""
    topology = parse_spec(spec)
    graph = nx.DiGraph([(link.src, link.dst) for link in topology.links])
    apart = sum(sum(lengths.values()) for _, lengths in nx.all_pairs_shortest_path_length(graph))
    forest = plan("optimal", spec, None, "alltoall")
    assert forest.rate == Fraction(len(topology.links) * len(topology.ranks), apart)
    assert forest.depth == nx.diameter(graph)


@pytest.mark.parametrize("spec", ["torus:6x6", "hypercube:5", "8x dgx-a100"])
def test_one_source_stands_for_all(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, flows = [], []
    lowered, flow = solver._lowered, maxflow.FlowGraph.max_flow
    monkeypatch.setattr(solver, "_lowered", lambda model: columns.append(len(model.columns)) or lowered(model))
    monkeypatch.setattr(maxflow.FlowGraph, "max_flow", lambda *arguments: flows.append(arguments) or flow(*arguments))
    request = asked(spec, "alltoall")
    network = rank_network_of(request.network, request.ranks).network
    all_pairs_flow.__wrapped__(network)
    assert sum(columns) == 2 * len(network.arcs) + 1
    assert len(flows) == 1


def test_a_plan_of_many_pairs_is_written_by_orbits() -> None:
    document = to_document(plan("optimal", "torus:8x8", None, "alltoall"))
    assert len(document["shares"]) == 64
    assert len(document["link_load"]) == 4
