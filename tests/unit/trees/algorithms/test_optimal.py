"""The exact optimum: known values, every kind of network, and the three objectives among optima."""

from fractions import Fraction
from itertools import permutations
from random import Random

import pytest
from reference import IN_GB_PER_S, IN_LANES

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.request import OBJECTIVES
from blinkccl.trees.forest.model import Dual, Partition, Tree, tree_depth
from support.planned import asked, digraph, planned

#: Pairs with the same optimum on symmetric links: a collective and its mirror image on the reversed network.
ROWS = {"broadcast": ("broadcast", "reduce"), "allreduce": ("allreduce",), "allgather": ("allgather", "reduce_scatter")}


@pytest.mark.parametrize(("spec", "gpus"), IN_LANES)
def test_reference_values_in_lanes(spec: str, gpus: str | None) -> None:
    for names, value in zip(ROWS.values(), IN_LANES[spec, gpus], strict=True):
        for name in names:
            forest = planned("optimal", asked(spec, name, gpus))
            assert forest.rate == forest.bound == Fraction(value)
            assert forest.topology.unit_gb_per_s == (25 if spec == "dgx-1v" else 20)
            numerator = forest.rate.numerator
            size = len(forest.ranks) if name in ROWS["allgather"] else 1
            assert all((share.weight * numerator * size).denominator == 1 for share in forest.shares)


@pytest.mark.parametrize("spec", IN_GB_PER_S)
def test_reference_values_in_gb_per_s(spec: str) -> None:
    for names, value in zip(ROWS.values(), IN_GB_PER_S[spec], strict=True):
        if value is not None:
            forest = planned("optimal", asked(spec, names[0], objective="exact"))
            assert forest.optimal
            assert forest.algbw_gb_per_s == pytest.approx(float(Fraction(value)))


@pytest.mark.parametrize(
    ("spec", "name", "rate", "trees"),
    [
        ("dgx-1v", "broadcast", 156, 9),
        ("dgx-1v", "reduce", 156, 9),
        ("dgx-1p", "broadcast", 86, 7),
        ("dgx-1v", "allreduce", Fraction(624, 7), 20),
    ],
)
def test_link_classes_with_additive_optima_keep_their_few_trees(
    spec: str, name: str, rate: Fraction, trees: int
) -> None:
    """A basis over both NVLink and PCIe has 31 to 39 trees, the smallest with 1/31,824 of the data."""
    forest = planned("optimal", asked(spec, name, links="all", objective="exact"))
    assert forest.rate == forest.bound
    assert forest.algbw_gb_per_s == pytest.approx(float(rate))
    assert len(forest.shares) <= trees


def test_a_one_way_ring_needs_several_roots() -> None:
    forest = planned("optimal", asked("oneway:6", "allreduce"))
    assert forest.rate == forest.bound == Fraction(3, 5)
    assert len({share.root for share in forest.shares}) > 1


#: The least depth of a DGX-1V broadcast at rate 6. From the other roots, depth 4 reaches 23/4 (test_shallow.py).
LEAST_DEPTH = {0: 4, 1: 4, 2: 5, 3: 5, 4: 4, 5: 4, 6: 5, 7: 5}


@pytest.mark.parametrize("root", LEAST_DEPTH)
def test_a_dgx_1v_broadcast_takes_four_or_six_trees(root: int) -> None:
    few = planned("optimal", asked("dgx-1v", "broadcast", root=root, objective="fewest-trees"))
    flat = planned("optimal", asked("dgx-1v", "broadcast", root=root, objective="least-depth"))
    assert (few.rate, len(few.shares)) == (Fraction(6), 4)
    assert (flat.rate, len(flat.shares), flat.depth) == (Fraction(6), 6, LEAST_DEPTH[root])


def test_shallow_by_default() -> None:
    assert planned("optimal", asked("dgx-1v", "allgather")).depth == 2
    assert planned("optimal", asked("dgx-1v", "reduce_scatter")).depth == 2
    assert planned("optimal", asked("dgx-1v", "allreduce")).depth == 2
    assert planned("optimal", asked("dgx-a100", "allgather")).depth == 1


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("gather", "fewest-trees"),
        ("alltoall", "least-depth"),
        ("allgather", "fewest-trees"),
        ("allreduce", "fewest-trees"),
    ],
)
def test_an_unsupported_objective_is_refused(name: str, objective: str) -> None:
    with pytest.raises(UnsupportedError, match=f"--objective {objective} "):
        planned("optimal", asked("2x dgx-a100 @ 200Gbps", name, objective=objective))
    with pytest.raises(UnsupportedError, match=f"--objective {objective} needs --algo optimal"):
        planned("ring", asked("dgx-1v", "allreduce", objective=objective))


@pytest.mark.parametrize("spec", ["star:6", "dgx-2"])
def test_broadcast_through_one_switch_is_shallow(spec: str) -> None:
    deep = {o: planned("optimal", asked(spec, "broadcast", objective=o)) for o in OBJECTIVES}
    assert all(forest.optimal for forest in deep.values())
    assert deep["shallow"].depth == deep["least-depth"].depth == 2
    assert len(deep["fewest-trees"].shares) == 1


@pytest.mark.parametrize(("spec", "depth"), [("4x dgx-1v @ 40Gbps", 6), ("16x dgx-a100 @ 200Gbps", 6)])
def test_broadcast_over_servers_crosses_them_by_two_trees(spec: str, depth: int) -> None:
    forest = planned("optimal", asked(spec, "broadcast"))
    assert forest.optimal
    assert forest.depth <= depth


def test_allreduce_trees_are_rooted_at_their_centres() -> None:
    for spec, gpus in IN_LANES:
        forest = planned("optimal", asked(spec, "allreduce", gpus))
        assert isinstance(forest.certificate, Partition)
        for share in forest.shares:
            assert share.reduce is not None
            assert share.broadcast is not None
            assert {path[::-1] for path in share.reduce.edges} == set(share.broadcast.edges)
            depth = tree_depth(share.broadcast)
            assert depth == min(tree_depth(Tree(rank, share.broadcast.edges)) for rank in forest.ranks)


SWITCHED: dict[str, Topology] = {
    "no hop between two of three": digraph(
        {(0, 2): 4, (2, 0): 1, (0, 4): 5, (4, 0): 4, (0, 5): 2, (5, 0): 3, (1, 2): 1, (2, 1): 4,
         (3, 2): 3, (2, 4): 2, (4, 3): 3, (3, 5): 3, (4, 5): 4}, 3, 3),
    "more leaves the switch than enters": digraph(
        {(i, 4): 1 for i in range(4)} | {(4, i): 3 for i in range(4)} | {(0, 1): 1}, 4, 1),
    "more enters the switch than leaves": digraph(
        {(i, 4): 3 for i in range(4)} | {(4, i): 1 for i in range(4)} | {(1, 0): 2}, 4, 1),
    "the root has the widest port": digraph(
        {(0, 3): 6, (3, 0): 6} | {(i, 3): 2 for i in (1, 2)} | {(3, i): 2 for i in (1, 2)}, 3, 1),
    "two switches and a narrow way between": digraph(
        {(i, 4 + i // 2): 2 for i in range(4)} | {(4 + i // 2, i): 2 for i in range(4)} | {(4, 5): 1, (5, 4): 1}, 4, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("network", SWITCHED)
def test_balanced_and_unbalanced_switches_have_a_proved_optimum(network: str, name: str) -> None:
    for root in range(len(SWITCHED[network].ranks)):
        assert planned("optimal", asked(SWITCHED[network], name, root=root)).optimal


def test_a_switch_that_cannot_multicast_is_proved_by_prices() -> None:
    """One unit enters the switch and three leave: the cut allows 3 to every port, but unicast hops do not."""
    forest = planned("optimal", asked(SWITCHED["more leaves the switch than enters"], "broadcast"))
    assert isinstance(forest.certificate, Dual)
    assert forest.bound < 2 + 1


@pytest.mark.parametrize("name", ["broadcast", "allgather", "allreduce", "alltoall"])
def test_links_of_many_digits_stay_exact(name: str) -> None:
    """Measured bandwidths have such capacities, since the unit is their common divisor."""
    dice = Random(7)
    wide = {arc: dice.randint(10**8, 10**9) for arc in permutations(range(4), 2)}
    assert planned("optimal", asked(digraph(wide, 4), name, objective="exact")).optimal
    if name in ("broadcast", "allgather"):
        vast = {arc: c * 4 * 10**9 + 1 for arc, c in wide.items()}
        assert planned("optimal", asked(digraph(vast, 4), name, objective="exact")).optimal


@pytest.mark.parametrize("name", COLLECTIVES)
def test_relays_can_only_help(name: str) -> None:
    without = planned("optimal", asked("dgx-1p", name, "0,1,3"))
    helped = planned("optimal", asked("dgx-1p", name, "0,1,3", relays=True))
    assert helped.rate >= without.rate
    assert helped.optimal


def test_blocks_that_stay_have_no_edges() -> None:
    for name in ("gather", "scatter", "alltoall"):
        forest = planned("optimal", asked("dgx-1v", name, "0,1,2,3", root=2))
        still = {share.block for share in forest.shares if not any(tree.edges for tree in share.trees())}
        assert still == ({(v, v) for v in range(4)} if name == "alltoall" else {2})


def test_gpus_that_no_link_joins_are_refused_by_name() -> None:
    with pytest.raises(TopologyError, match=r"\{1\}.*--links all"):
        planned("optimal", asked("dgx-1v", "allreduce", "1,4,6"))
