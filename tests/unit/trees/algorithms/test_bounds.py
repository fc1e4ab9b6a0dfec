"""Certificates: correct by definition on small networks, and on real links after contraction of chains."""

from fractions import Fraction
from itertools import combinations
from random import Random

import pytest

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.bounds import (
    certificate_for,
    cut_certificate,
    halves_proof,
    near_optimum,
    price_certificate,
    reverse_of,
)
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.forest.model import Certificate, Cut, Dual, Partition
from blinkccl.trees.packing.network import FlowNetwork
from support.forests import random_collective, random_topology
from support.planned import asked, digraph


def bound_of_cut(collective: Collective, ranks: tuple[int, ...], topology: Topology, side: frozenset[int]) -> Cut:
    """The cut ``side``: the demand that must leave it, directly from the items, and the capacity that leads out."""
    capacity = sum(link.capacity for link in topology.links if link.src in side and link.dst not in side)
    demand = Fraction(0)
    for item in collective.items():
        givers = [ranks[r] in side for r, _ in item.contributions]
        takers = [ranks[r] in side for r, _ in item.destinations]
        demand += item.weight if any(givers) and not all(takers) else 0
    return Cut(tuple(sorted(side)), Fraction(capacity), demand)


def best_cut(collective: Collective, ranks: tuple[int, ...], topology: Topology) -> Fraction:
    vertices = [v.id for v in topology.vertices]
    cuts = [
        bound_of_cut(collective, ranks, topology, frozenset(side))
        for size in range(1, len(vertices))
        for side in combinations(vertices, size)
    ]
    return min(cut.bound for cut in cuts if cut.demand)


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - {"allreduce", "alltoall"}))
@pytest.mark.parametrize("seed", range(6))
def test_no_cut_is_tighter_than_the_one_given(seed: int, name: str) -> None:
    dice = Random(seed)
    topology, ranks = random_topology(dice, dice.randint(2, 5))
    collective = random_collective(dice, len(ranks), name)
    certificate = certificate_for(collective, ranks, topology)
    assert isinstance(certificate, Cut)
    assert certificate == bound_of_cut(collective, ranks, topology, frozenset(certificate.side))
    assert certificate.bound == best_cut(collective, ranks, topology)


@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
@pytest.mark.parametrize("seed", range(6))
def test_prices_and_partitions_are_at_least_as_tight_as_any_cut(seed: int, name: str) -> None:
    dice = Random(seed)
    topology, ranks = random_topology(dice, dice.randint(2, 5))
    certificate = certificate_for(Collective(name, len(ranks)), ranks, topology)
    assert isinstance(certificate, Partition | Dual)
    assert certificate.bound <= best_cut(Collective(name, len(ranks)), ranks, topology)


def kind_and_demand(spec: str, name: str, root: int = 0) -> tuple[str, Fraction]:
    request = asked(spec, name, root=root)
    certificate: Certificate = certificate_for(request.collective, request.ranks, request.network)
    return certificate.kind, certificate.demand if isinstance(certificate, Cut) else Fraction(0)


def test_the_kind_of_each_certificate() -> None:
    assert kind_and_demand("dgx-1v", "broadcast") == ("cut", Fraction(1))
    assert kind_and_demand("dgx-1v", "reduce") == ("cut", Fraction(1))
    assert kind_and_demand("dgx-1v", "sendrecv") == ("cut", Fraction(1))
    for name in ("allgather", "reduce_scatter", "gather", "scatter"):
        assert kind_and_demand("dgx-1v", name) == ("ratio", Fraction(7, 8))
    assert kind_and_demand("dgx-1v", "allreduce")[0] == "partition"
    assert kind_and_demand("oneway:4", "allreduce")[0] == "dual"
    assert kind_and_demand("dgx-1v", "alltoall")[0] == "dual"


def test_a_partition_of_a_dgx_1v_is_all_its_gpus() -> None:
    request = asked("dgx-1v", "allreduce")
    certificate = certificate_for(request.collective, request.ranks, request.network)
    assert certificate == Partition(tuple((v,) for v in range(8)), Fraction(24))


@pytest.mark.parametrize(("spec", "bound"), [("3x dgx-a100 @ 40Gbps", Fraction(30)), ("torus:4x5", Fraction(40, 19))])
def test_narrow_links_bound_allreduce_on_many_ranks(spec: str, bound: Fraction) -> None:
    topology = parse_spec(spec)
    network = rank_network_of(topology, tuple(topology.ranks)).network
    near, halves = near_optimum(network), halves_proof(network)
    assert near is not None
    assert halves is not None
    assert near[0].bound == halves.bound == bound
    assert near[1].near(bound)


def test_a_cut_over_a_contracted_chain_counts_its_narrowest_link() -> None:
    """The capacity of 0 → switch 2 is 5, and of switch 2 → 1 it is 3: the switch is on the side of 0."""
    topology = digraph({(0, 2): 5, (2, 1): 3, (1, 2): 4, (2, 0): 4}, 2, 1)
    view = rank_network_of(topology, (0, 1))
    assert view.network == FlowNetwork(2, 2, ((0, 1, 3), (1, 0, 4)))
    certificate = cut_certificate(Collective("broadcast", 2, root=0), view, (0,))
    assert certificate == Cut((0, 2), Fraction(3), Fraction(1))
    back = cut_certificate(Collective("broadcast", 2, root=1), view, (1,))
    assert back.capacity == 4


def test_chains_narrow_at_different_ends_need_prices() -> None:
    """The contracted network is symmetric, but no partition of the three real vertices has capacity 3."""
    topology = digraph({(0, 2): 3, (2, 1): 5, (1, 2): 3, (2, 0): 5}, 2, 1)
    certificate = certificate_for(Collective("allreduce", 2), (0, 1), topology)
    assert certificate.bound == 3
    assert isinstance(certificate, Dual)


def test_prices_are_paid_on_real_links_once_per_chain() -> None:
    topology = digraph({(0, 2): 5, (2, 1): 3, (1, 2): 4, (2, 0): 4}, 2, 1)
    dual = price_certificate(rank_network_of(topology, (0, 1)), {(0, 1): Fraction(1, 2)}, Fraction(3))
    assert dual == Dual(((2, 1, Fraction(1, 2)),), Fraction(3, 2), Fraction(1, 2))


def test_a_symmetric_network_is_its_own_reverse() -> None:
    both, one = FlowNetwork(2, 2, ((0, 1, 1), (1, 0, 1))), FlowNetwork(2, 2, ((0, 1, 2), (1, 0, 1)))
    assert reverse_of(both) == both
    assert reverse_of(one) == FlowNetwork(2, 2, ((1, 0, 2), (0, 1, 1)))
