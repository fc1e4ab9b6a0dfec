"""Double binary trees: NCCL's rule by hand for small n, its invariants for all n, and refusals."""

from fractions import Fraction

import pytest

from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms.double_binary_tree import binary_tree, rooted_second_tree, second_tree
from blinkccl.trees.packing.two_trees import two_trees
from support.planned import plan


def _depths(parents: dict[int, int]) -> list[int]:
    def depth(r: int) -> int:
        return 0 if r not in parents else 1 + depth(parents[r])

    return [depth(r) for r in range(len(parents) + 1)]


def _inner(parents: dict[int, int]) -> set[int]:
    return set(parents.values())


def test_first_tree_by_hand() -> None:
    assert binary_tree(8) == {1: 2, 2: 4, 3: 2, 4: 0, 5: 6, 6: 4, 7: 6}
    assert binary_tree(6) == {1: 2, 2: 4, 3: 2, 4: 0, 5: 4}
    assert binary_tree(2) == {1: 0}


def test_second_tree_mirrors_even_and_shifts_odd() -> None:
    assert second_tree(4) == {2: 1, 1: 3, 0: 1}
    assert second_tree(3) == {2: 0, 0: 1}


@pytest.mark.parametrize("n", range(2, 70))
def test_invariants(n: int) -> None:
    """Depth ⌊log₂(n−1)⌋ + 1, at most two children; for even n no rank but roots is inner in both."""
    first, second = binary_tree(n), second_tree(n)
    for parents in (first, second):
        assert max(_depths(parents)) == (n - 1).bit_length()
        assert all(list(parents.values()).count(r) <= 2 for r in range(n))
    assert first[max(1, 1 << ((n - 1).bit_length() - 1))] == 0
    assert list(first.values()).count(0) == 1
    if n % 2 == 0:
        assert _inner(first) & _inner(second) == set()


@pytest.mark.parametrize("n", range(3, 70))
def test_rooted_pair_shares_its_root_and_no_other_inner_rank(n: int) -> None:
    first, second = binary_tree(n), rooted_second_tree(n)
    assert sorted(second) == list(range(1, n))
    assert max(_depths(second)) == (n - 1).bit_length()
    assert _inner(first) & _inner(second) == {0}
    order = [(7 * i) % 71 for i in range(n)]
    for arcs, parents in zip(two_trees(order), (first, second), strict=True):
        assert sorted(arcs) == sorted((order[above], order[below]) for below, above in parents.items())


@pytest.mark.parametrize(("spec", "depth"), [("dgx-2", 4), ("dgx-a100", 3), ("star:5", 3)])
def test_allreduce_through_a_switch(spec: str, depth: int) -> None:
    """An inner rank receives from two children and its parent, and once as a leaf of the other tree."""
    forest = plan("double_binary_tree", spec, None, "allreduce")
    assert [share.weight for share in forest.shares] == [Fraction(1, 2)] * 2
    assert (forest.rate, forest.depth) == (Fraction(1, 2), depth)
    assert forest.shares[0].root != forest.shares[1].root


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("spec", ["dgx-2", "star:5", "star:6", "star:2"])
def test_rooted_collectives_run_at_full_rate(collective: str, spec: str) -> None:
    forest = plan("double_binary_tree", spec, None, collective, root=1)
    assert forest.optimal
    assert {share.root for share in forest.shares} == {1}


def test_several_servers_are_chains_behind_a_tree() -> None:
    forest = plan("double_binary_tree", "4x dgx-a100", "0-3+0-3+0-3+0-3", "allreduce")
    crossing = [
        path
        for share in forest.shares
        for tree in share.trees()
        for path in tree.edges
        if path[0] // 8 != path[-1] // 8
    ]
    assert len(crossing) == 2 * 2 * 3, "each tree crosses between servers three times up and three times down"
    heads = [
        {path[0] for path in share.reduce.edges if path[0] // 8 != path[-1] // 8}
        for share in forest.shares
        if share.reduce is not None
    ]
    assert heads[0] & heads[1] == set(), "the second tree's chains begin at the other end"
    rooted = plan("double_binary_tree", "2x dgx-1v @ 40Gbps", None, "broadcast", root=11)
    assert {share.root for share in rooted.shares} == {11}


def test_missing_hop_is_named_with_the_pcie_alternative() -> None:
    with pytest.raises(UnsupportedError, match=r"a hop between GPUs 4 and 2, but no link .* use --links pcie"):
        plan("double_binary_tree", "dgx-1v", None, "allreduce")
    assert plan("double_binary_tree", "dgx-1v", None, "allreduce", links="pcie").depth == 3
