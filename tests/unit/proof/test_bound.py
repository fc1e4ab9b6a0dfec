"""Trees, paths and cuts of the checker against networkx, on random graphs."""

import random
from fractions import Fraction
from itertools import permutations

import networkx as nx
import pytest

from blinkccl.proof.bound import arborescence_costs, cheapest_service, hop_costs, refute
from blinkccl.proof.meaning import meaning
from blinkccl.proof.reading import ClaimedProof, GivenLinks

NO_ENDS = {"root": None, "src": None, "dst": None}


def random_costs(rng: random.Random, size: int, density: float) -> list[list[int | None]]:
    # Few different costs make many ties, and ties are the hard case for contractions.
    return [
        [rng.choice((0, 1, 1, 2, 3, 7, 50)) if u != v and rng.random() < density else None for v in range(size)]
        for u in range(size)
    ]


def cost_by_networkx(costs: list[list[int | None]], root: int) -> int | None:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(costs)))
    graph.add_weighted_edges_from(
        (u, v, c) for u, row in enumerate(costs) for v, c in enumerate(row) if c is not None and v != root
    )
    if len(nx.descendants(graph, root)) < len(costs) - 1:
        return None
    tree = nx.minimum_spanning_arborescence(graph)
    return int(tree.size(weight="weight"))


@pytest.mark.parametrize("seed", range(60))
def test_minimum_arborescences_from_every_root(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(2, 9)
    costs = random_costs(rng, size, rng.choice((0.3, 0.6, 1.0)))
    assert arborescence_costs(costs) == [cost_by_networkx(costs, root) for root in range(size)]


def test_a_single_vertex_costs_nothing() -> None:
    assert arborescence_costs([[None]]) == [0]


def test_nested_contractions() -> None:
    """Two rings of two vertices, joined by expensive arcs: each ring is contracted, then both."""
    costs: list[list[int | None]] = [
        [None, 1, None, 10],
        [1, None, None, None],
        [None, None, None, 2],
        [20, None, 2, None],
    ]
    assert arborescence_costs(costs) == [1 + 10 + 2, 1 + 10 + 2, 2 + 20 + 1, 2 + 20 + 1]


def random_network(rng: random.Random, ranks: int, transit: int) -> GivenLinks:
    kinds = {v: "gpu" if v < ranks else "switch" for v in range(ranks + transit)}
    capacity = {(u, v): rng.randint(1, 4) for u, v in permutations(kinds, 2) if rng.random() < 0.5}
    return GivenLinks(1.0, kinds, set(), {}, {}, {}, capacity, {arc: float(c) for arc, c in capacity.items()})


@pytest.mark.parametrize("seed", range(30))
def test_hops_run_through_transit_only(seed: int) -> None:
    rng = random.Random(seed)
    ranks = (2, 0, 3, 1)
    network = random_network(rng, 4, 3)
    prices = {arc: rng.randint(0, 5) for arc in network.capacity}
    hops = hop_costs(ranks, network, prices)
    for i, u in enumerate(ranks):
        for j, v in enumerate(ranks):
            graph = nx.DiGraph()
            graph.add_nodes_from((u, v))
            graph.add_weighted_edges_from(
                (a, b, p) for (a, b), p in prices.items() if all(x in (u, v) or x >= 4 for x in (a, b))
            )
            joined = nx.has_path(graph, u, v)
            assert hops[i][j] == (nx.shortest_path_length(graph, u, v, "weight") if joined else None)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_service_of_each_collective_by_networkx(seed: int) -> None:
    rng = random.Random(seed)
    ranks = (0, 1, 2, 3)
    network = random_network(rng, 4, 0)
    for arc in permutations(ranks, 2):
        network.capacity.setdefault(arc, 1)
    prices = {arc: rng.randint(0, 5) for arc in network.capacity}
    costs: list[list[int | None]] = [[prices.get((u, v)) for v in ranks] for u in ranks]
    out = [cost_by_networkx(costs, r) or 0 for r in ranks]
    into = [cost_by_networkx([list(row) for row in zip(*costs, strict=True)], r) or 0 for r in ranks]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((u, v, p) for (u, v), p in prices.items())
    way = dict(nx.all_pairs_dijkstra_path_length(graph))

    def served(collective: str, **ends: int) -> Fraction | None:
        items = meaning(collective, ranks, {**NO_ENDS, **ends})
        return cheapest_service(items, ranks, network, prices)

    quarter = Fraction(1, 4)
    assert served("broadcast", root=2) == out[2]
    assert served("reduce", root=1) == into[1]
    assert served("allreduce") == min(a + b for a, b in zip(out, into, strict=True))
    assert served("allgather") == quarter * sum(out)
    assert served("reduce_scatter") == quarter * sum(into)
    assert served("gather", root=3) == quarter * sum(way[r][3] for r in ranks)
    assert served("scatter", root=3) == quarter * sum(way[3][r] for r in ranks)
    assert served("alltoall") == quarter * sum(way[s][d] for s in ranks for d in ranks)
    assert served("sendrecv", src=0, dst=3) == way[0][3]


@pytest.mark.parametrize("seed", range(30))
def test_cut_capacity_by_networkx(seed: int) -> None:
    rng = random.Random(seed)
    ranks = (0, 1, 2, 3)
    network = random_network(rng, 4, 2)
    side = tuple(v for v in network.kinds if rng.random() < 0.5)
    inside = sum(1 for v in side if v in ranks)
    graph = nx.DiGraph()
    graph.add_nodes_from(network.kinds)
    graph.add_weighted_edges_from((u, v, c) for (u, v), c in network.capacity.items())
    # cut_size of networkx counts both directions; edge_boundary is directed.
    capacity = sum(c for _, _, c in nx.edge_boundary(graph, side, data="weight"))
    claim = ClaimedProof("ratio", (side,), (), {"capacity": Fraction(capacity), "demand": Fraction(inside, 4)})
    bound, wrong = refute(claim, "allgather", meaning("allgather", ranks, NO_ENDS), ranks, network)
    if 0 < inside < 4:
        assert (bound, wrong) == (Fraction(4 * capacity, inside), [])
    else:
        assert bound is None
