"""Double binary trees: two complementary binary trees, half of the data each.

Sanders, Speck and Träff (2009) pair two binary trees so that an inner rank of one is a leaf of the other. Every rank
then sends and receives about as much as in a ring, in a logarithmic number of steps. NCCL (2.4 and later) builds them
from the bits of the rank number, but only between servers; inside a server it always uses a chain.

The shapes are in :mod:`blinkccl.trees.packing.two_trees`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinkccl.errors import UnsupportedError
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import (
    Paths,
    by_server,
    cyclic,
    flipped,
    forest_on,
    line_up,
    require_collective,
    transit_paths,
)
from blinkccl.trees.forest.model import Forest, Share, Tree
from blinkccl.trees.packing.two_trees import binary_tree, rooted_second_tree, second_tree

#: A tree by ranks' vertex ids: child → parent, parents before their children.
Parents = dict[int, int]


def plan(request: Request) -> Forest:
    """Two shares of 1/2, one per tree; AllReduce uses each tree up and down, Broadcast and Reduce in one direction.

    On one server the trees span the ranks in their order. On several servers they span the servers, and each server is
    a chain that begins at one of its ranks, as in NCCL. The chain of the second tree begins at the other end.

    Raises
    ------
    UnsupportedError
        For other collectives, and if a tree needs a hop between two ranks without a link or switch. The message names
        these ranks.

    Notes
    -----
    Cost: depth ⌊log₂(n−1)⌋ + 1 for n ranks, AllReduce twice that many steps; no rank sends more than 2·S.
    Difference from NCCL, which has trees for AllReduce only: in Broadcast and Reduce both trees need the same root. So
    they are the pair of Sanders, Speck and Träff: the root above two complementary trees of the n−1 others.
    """
    require_collective(
        request,
        "double_binary_tree",
        ("allreduce", "broadcast", "reduce"),
        "use --algo ring or --algo optimal",
    )
    network, ranks = request.network, request.ranks
    paths = transit_paths(network, ranks)
    root = None if request.collective.root is None else ranks[request.collective.root]
    name = request.collective.name
    shares = []
    for i, parents in enumerate(_both_trees(network, paths, ranks, root)):
        down = _tree(network, paths, parents)
        shares.append(
            Share(
                Fraction(1, 2),
                i,
                None,
                down.root,
                None if name == "broadcast" else flipped(paths, down),
                None if name == "reduce" else down,
            )
        )
    return forest_on(request, "double_binary_tree", network, shares)


def _both_trees(network: Topology, paths: Paths, ranks: Sequence[int], root: int | None) -> list[Parents]:
    servers = by_server(network, ranks)
    first, second = binary_tree, second_tree if root is None else rooted_second_tree
    if len(servers) == 1:
        order = cyclic(ranks, ranks[0] if root is None else root)
        return [{order[child]: order[parent] for child, parent in tree(len(order)).items()} for tree in (first, second)]
    at = 0 if root is None else next(i for i, members in enumerate(servers) if root in members)
    turned = servers[at:] + servers[:at]
    chains = [_chain(network, paths, members, root if root in members else None) for members in turned]
    others = [chain if root in chain else chain[::-1] for chain in chains]
    return [_over_servers(first(len(chains)), chains), _over_servers(second(len(chains)), others)]


def _chain(network: Topology, paths: Paths, members: Sequence[int], start: int | None) -> tuple[int, ...]:
    """The ranks of one server as a chain; over any links if the links inside the server form none."""
    return line_up(network, paths, members, start) or cyclic(members, members[0] if start is None else start)


def _over_servers(tree: dict[int, int], chains: Sequence[tuple[int, ...]]) -> Parents:
    """A tree over servers, joined at the first rank of each chain."""
    parents = {chains[child][0]: chains[parent][0] for child, parent in tree.items()}
    for chain in chains:
        parents.update(zip(chain[1:], chain, strict=False))
    return parents


def _tree(network: Topology, paths: Paths, parents: Parents) -> Tree:
    """The down-tree, breadth first from its root, with children in ascending order of their place in the tree."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    root = next(vertex for vertex in children if vertex not in parents)
    edges, queue = [], [root]
    for vertex in queue:
        for child in children.get(vertex, ()):
            if (vertex, child) not in paths or (child, vertex) not in paths:
                raise UnsupportedError(
                    f"double_binary_tree needs a hop between GPUs {vertex} and {child}, but no link or switch of "
                    f"{network.name} joins them; use --links pcie, which joins all pairs, or --algo optimal"
                )
            edges.append(paths[vertex, child])
            queue.append(child)
    return Tree(root, tuple(edges))
