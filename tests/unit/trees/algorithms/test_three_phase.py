"""Three-phase AllReduce over servers: Fig 10, uneven servers, places of local roots, refusals."""

from fractions import Fraction
from itertools import groupby
from operator import attrgetter

import pytest

from blinkccl.errors import UnsupportedError
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.fabric import compose
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.shapes import laid_over
from blinkccl.trees.algorithms.three_phase import LocalTree, cut_trees, local_trees, whole_trees
from blinkccl.trees.forest.model import Forest, Share, Tree
from support.planned import asked, assert_sound, plan, planned


def partitions(forest: Forest) -> list[list[Share]]:
    """The shares grouped by part of the data: as many per part as servers, in sequence."""
    servers = len({forest.topology.vertex[rank].server for rank in forest.ranks})
    return [list(forest.shares[i : i + servers]) for i in range(0, len(forest.shares), servers)]


def ends(tree: Tree | None) -> set[tuple[int, int]]:
    assert tree is not None
    return {(path[0], path[-1]) for path in tree.edges}


def server_of(forest: Forest, rank: int) -> int:
    return forest.topology.vertex[rank].server


def clique_with_nics(gpus: int, nic_gb_per_s: int, *, chain: bool = False) -> Topology:
    """GPUs with links of 25 GB/s between all pairs (or in a row), and one NIC each."""
    box = Assembly("drawn", "synthetic")
    ids = box.add_many("gpu", gpus, "GPU")
    for i in ids:
        for j in ids[i + 1 : i + 2 if chain else None]:
            box.join(i, j, 25, "nvlink")
    for gpu, nic in zip(ids, box.add_many("nic", gpus, "NIC"), strict=True):
        box.join(gpu, nic, nic_gb_per_s, "net")
    return box.finish()


def joined(links: dict[tuple[int, int], str], servers: list[list[int]]) -> Topology:
    """GPUs on servers, with links of 25 GB/s in both directions."""
    box = Assembly("drawn", "synthetic")
    for server, members in enumerate(servers):
        for _ in members:
            box.add("gpu", server=server)
    for (u, v), kind in links.items():
        box.join(u, v, 25, kind)
    return box.finish()


def test_the_example_of_fig_10() -> None:
    """Two servers of four GPUs have four partitions, each with its own root on each server and two one-hop trees."""
    forest = plan("three_phase", "2x star:4 @ 100Gbps", None, "allreduce")
    parts = partitions(forest)
    assert [[share.root for share in part] for part in parts] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert {share.weight for share in forest.shares} == {Fraction(1, 8)}
    first, second = parts[2]
    local = {(0, 2), (1, 2), (3, 2), (4, 6), (5, 6), (7, 6)}
    assert ends(first.reduce) == local | {(6, 2)}
    assert ends(second.reduce) == local | {(2, 6)}
    assert ends(first.broadcast) == {(v, u) for u, v in ends(first.reduce)}


@pytest.mark.parametrize(
    ("spec", "gpus", "gb_per_s", "shares", "roots"),
    [
        ("2x dgx-1v @ 40Gbps", "0,1,2+0,3,4,5,6", "5", 4, 4),
        ("2x dgx-1v @ 40Gbps", "3+0-6", "5", 6, 4),
        ("2x dgx-1v @ 40Gbps", "5+2", "5", 2, 2),
        ("3x dgx-1v @ 40Gbps", "0,1+2,3+0,1,2,3", "15/4", 12, 7),
        ("2x dgx-a100", None, "1200/7", 16, 16),
        ("2x dgx-a100", "0-2+0-4", "75", 14, 8),
        ("4x dgx-a100", None, "400/3", 32, 32),
        ("2x mist @ 100Gbps", None, "25/2", 8, 8),
        ("2x mi250", "0-2+0-4", "48", 14, 8),
    ],
)
def test_even_and_uneven_servers(spec: str, gpus: str | None, gb_per_s: str, shares: int, roots: int) -> None:
    forest = plan("three_phase", spec, gpus, "allreduce")
    assert forest.algbw_gb_per_s == pytest.approx(float(Fraction(gb_per_s)))
    assert (len(forest.shares), len({share.root for share in forest.shares})) == (shares, roots)


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [("2x dgx-a100", "0-2+0-4"), ("3x dgx-1v @ 40Gbps", "0,1+2,3+0,1,2,3"), ("2x cedar @ 9Gbps", "0+0-3")],
)
def test_each_part_has_a_root_and_a_one_hop_tree_per_server(spec: str, gpus: str) -> None:
    forest = plan("three_phase", spec, gpus, "allreduce")
    servers = sorted({server_of(forest, rank) for rank in forest.ranks})
    for part in partitions(forest):
        roots = [share.root for share in part]
        assert [server_of(forest, root) for root in roots] == servers
        assert len({share.weight for share in part}) == 1
        for share in part:
            across = {(u, v) for u, v in ends(share.reduce) if server_of(forest, u) != server_of(forest, v)}
            assert across == {(root, share.root) for root in roots if root != share.root}
            assert ends(share.broadcast) == {(v, u) for u, v in ends(share.reduce)}


@pytest.mark.parametrize("rate_gbit", [40, 100, 200, 400, 800])
def test_odd_sizes_follow_the_network_until_nvlink_is_full(rate_gbit: int) -> None:
    """The paper's Fig 22(b): two lanes bound the local trees of GPUs 0,1,2 and of 0,3,4,5,6."""
    forest = plan("three_phase", f"2x dgx-1v @ {rate_gbit}Gbps", "0,1,2+0,3,4,5,6", "allreduce")
    assert forest.algbw_gb_per_s == pytest.approx(min(rate_gbit / 8, 50))


def test_a_single_tree_is_cut_so_that_every_nic_is_used() -> None:
    """A chain of three GPUs is one tree; with one root its NIC would limit the rate to 4 GB/s."""
    forest = planned("three_phase", asked(compose(clique_with_nics(3, 4, chain=True), 2), "allreduce"))
    assert forest.algbw_gb_per_s == pytest.approx(12)
    assert [share.root for share in forest.shares] == [1, 4, 0, 3, 2, 5]
    assert {share.weight for share in forest.shares} == {Fraction(1, 6)}


def test_trees_are_not_cut_without_a_gain() -> None:
    """With one NIC per server, more roots gain nothing."""
    forest = plan("three_phase", "2x chain:3 @ 32Gbps", None, "allreduce")
    assert forest.algbw_gb_per_s == pytest.approx(4)
    assert [(share.weight, share.root) for share in forest.shares] == [(Fraction(1, 2), 1), (Fraction(1, 2), 4)]


def test_a_nic_per_gpu_is_used_evenly() -> None:
    forest = planned("three_phase", asked(compose(clique_with_nics(4, 3), 2), "allreduce"))
    net = [load for arc, load in forest.link_load.items() if forest.topology.link[arc].kind == "net"]
    assert net == [3] * (2 * 2 * 8), "both directions of both links of eight NICs, full"


def tree(weight: str, hops: list[tuple[int, ...]], root: int) -> LocalTree:
    down = Tree(root, tuple(hops))
    return LocalTree(Fraction(weight), down.reversed(), down)


def test_another_root_reverses_hops_and_adds_none() -> None:
    chain = tree("1", [(1, 0), (1, 9, 2), (2, 3)], 1)
    moved = chain.rooted(3)
    assert moved.down == Tree(3, ((3, 2), (2, 9, 1), (1, 0)))
    assert moved.up == Tree(3, ((2, 3), (1, 9, 2), (0, 1)))
    assert chain.movable
    one_way = LocalTree(Fraction(1), Tree(0, ((2, 1), (1, 0))), Tree(0, ((0, 2), (2, 1))))
    assert not one_way.movable


def test_whole_trees_have_roots_in_proportion_to_capacity_out() -> None:
    stars = [tree("1/3", [(0, 1), (0, 2)], 0)] * 3
    assert [x.root for x in whole_trees(stars, {0: 1, 1: 1, 2: 1})] == [0, 1, 2]
    assert [x.root for x in whole_trees(stars, {0: 1, 1: 2, 2: 1})] == [1, 0, 1]
    assert [x.root for x in whole_trees(stars, {2: 1})] == [2, 2, 2]


def test_trees_of_one_way_links_keep_their_roots() -> None:
    fixed = LocalTree(Fraction(1), Tree(0, ((2, 1), (1, 0))), Tree(0, ((0, 2), (2, 1))))
    assert whole_trees([fixed], {0: 1, 1: 1, 2: 1}) == [fixed]
    assert cut_trees([fixed], {0: 1, 1: 1, 2: 1}) == [fixed]
    plan("three_phase", "2x random:5:seed=3:directed @ 100Gbps", None, "allreduce")


def test_cuts_are_laid_over_each_other() -> None:
    three = [tree("1/2", [], 0), tree("1/4", [], 1), tree("1/4", [], 2)]
    two = [tree("2/3", [], 5), tree("1/3", [], 6)]
    rows = [three, two, [tree("1", [], 9)]]
    cuts = [(weight, [x.root for x in trees]) for weight, trees in laid_over(rows, attrgetter("weight"))]
    assert cuts == [
        (Fraction(1, 2), [0, 5, 9]),
        (Fraction(1, 6), [1, 5, 9]),
        (Fraction(1, 12), [1, 6, 9]),
        (Fraction(1, 4), [2, 6, 9]),
    ]
    assert len(list(laid_over([three, three], attrgetter("weight")))) == 3


def test_equal_servers_are_cut_no_further() -> None:
    forest = plan("three_phase", "2x dgx-1v @ 40Gbps", None, "allreduce")
    trees = local_trees(asked("2x dgx-1v @ 40Gbps", "allreduce", None), range(8))
    assert [part[0].weight * 2 for part in partitions(forest)] == [x.weight for x in trees]


def test_roots_are_ranks_with_a_path_out() -> None:
    """Only 0 and 3 have a hop to the other server: 1 is not one hop from 3, since 0 is a rank."""
    chains = {(0, 1): "nvlink", (1, 2): "nvlink", (3, 4): "nvlink", (4, 5): "nvlink", (0, 3): "net"}
    forest = planned("three_phase", asked(joined(chains, [[0, 1, 2], [3, 4, 5]]), "allreduce"))
    assert [share.root for share in forest.shares] == [0, 3]
    assert forest.optimal


def test_rails_without_a_common_switch() -> None:
    """GPU k of a server reaches only GPU k of the others, so the local roots of a part are on one rail."""
    pairs = {(0, 1): "nvlink", (2, 3): "nvlink", (0, 2): "net", (1, 3): "net"}
    forest = planned("three_phase", asked(joined(pairs, [[0, 1], [2, 3]]), "allreduce"))
    rails = [[share.root % 2 for share in part] for part in partitions(forest)]
    assert all(len(set(rail)) == 1 for rail in rails)


def test_ranks_may_be_given_in_any_order() -> None:
    mixed = plan("three_phase", "2x dgx-1v @ 40Gbps", "9,0,2,8,1,10", "allreduce")
    assert mixed.algbw_gb_per_s == pytest.approx(5)
    assert [server for server, _ in groupby(server_of(mixed, share.root) for share in mixed.shares[:2])] == [1, 0]


@pytest.mark.parametrize("links", ["pcie", "all"])
def test_other_links_join_a_server_that_nvlink_does_not_connect(links: str) -> None:
    plan("three_phase", "2x dgx-1v @ 40Gbps", "0,1,6+0,1", "allreduce", links=links)


def test_a_server_without_nvlink_uses_pcie() -> None:
    forest = plan("three_phase", "2x dgx-1v @ 40Gbps", "0,6+0,1", "allreduce")
    kinds = {forest.topology.link[arc].kind for arc in forest.link_load}
    assert kinds == {"pcie", "smp", "net", "nvlink"}


def test_relays_may_join_a_server() -> None:
    asked_ = asked("2x dgx-1v @ 40Gbps", "allreduce", "0,1,6+0,1", relays=True)
    forest = ALGORITHMS["three_phase"].plan(asked_)
    assert_sound(forest)
    inside = {vertex for path in forest.link_load for vertex in path} - set(forest.ranks)
    assert any(forest.topology.vertex[vertex].kind == "gpu" for vertex in inside)


@pytest.mark.parametrize(
    ("spec", "gpus", "reason"),
    [
        ("dgx-1v", None, "three_phase is for ranks on several servers.*one server of dgx-1v; use --algo blink"),
        ("2x dgx-1v @ 40Gbps", "8,9,10", "three_phase is for ranks on several servers"),
        (
            "2x dgx-1v @ 40Gbps",
            "0,1,6+0,1",
            r"--links fast joins the ranks \{0,1\} and \{6\} of one server of 2x dgx-1v @ 40Gbps only over the "
            "network; use --links pcie or --links all or --relays or --algo optimal",
        ),
    ],
)
def test_reasons(spec: str, gpus: str | None, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        plan("three_phase", spec, gpus, "allreduce")


def test_parts_that_nothing_else_joins_name_optimal_alone() -> None:
    split = {(0, 1): "net", (0, 2): "net", (1, 2): "net"}
    with pytest.raises(UnsupportedError, match=r"\{0\} and \{1\} of one server.*; use --algo optimal$"):
        planned("three_phase", asked(joined(split, [[0, 1], [2]]), "allreduce"))


def test_a_server_that_reaches_no_common_root_is_named() -> None:
    """With servers in a row, no rank of the first is one hop from the third."""
    row = {(0, 1): "net", (1, 2): "net"}
    with pytest.raises(UnsupportedError, match="none of the ranks 0 is one hop from a rank of every other server"):
        planned("three_phase", asked(joined(row, [[0], [1], [2]]), "allreduce"))


def test_roots_that_cannot_be_matched_are_refused() -> None:
    """The second server has its rails in another order: 0 and 3, 1 and 2."""
    pairs = {(0, 1): "nvlink", (2, 3): "nvlink", (0, 3): "net", (1, 2): "net"}
    with pytest.raises(UnsupportedError, match="local roots of different servers are not all one hop"):
        planned("three_phase", asked(joined(pairs, [[0, 1], [2, 3]]), "allreduce"))
