"""What a collective could reach where switches add up and multicast what crosses them: NVLink SHARP, SHARP.

Plans of this package pass through switches and add up at ranks. Here switches that say that they ``combine``
(NVSwitches of Hopper and later do, and all of ``"SPEC @ switches=sharp"``) may stand in trees too, and be their roots.
It is a plan like any other: ``blink check`` proves it, the reference engine runs it, the simulator times it. No other
engine does, so it is none of the algorithms that are tried for a job.

ForestColl (arXiv 2402.06787) has 450 GB/s for an AllReduce of the eight GPUs of an H100 server, 200 for two DGX A100.
A broadcast, and an AllGather, gain nothing where switches give out what they take in: trees that branch at ranks reach
the same cut (Edmonds 1973; Bang-Jensen, Frank and Jackson 1995). What a switch then spares is links on the way into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.bounds import certificate_for, cut_certificate
from blinkccl.trees.algorithms.rank_network import RankNetwork, rank_network_of
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Certificate, Cut, Dual, Forest, Share, Tree, WeighedSets
from blinkccl.trees.packing.in_network import InNetworkTree, Sets, TreeTask, in_network_proof, in_network_trees
from blinkccl.trees.packing.maxflow import min_cut
from blinkccl.trees.packing.network import rooted_at, turned

NAME = "in_switch"
#: Collective → which trees it has, up and down.
_STAGES = {
    "allreduce": (True, True),
    "broadcast": (False, True),
    "allgather": (False, True),
    "reduce": (True, False),
    "reduce_scatter": (True, False),
}
#: Ranks that are planned for: 256 take two seconds.
MOST_RANKS = 256
#: Links that no symmetry makes alike: the 128 of four servers of which one lacks a NIC take seven seconds.
MOST_UNLIKE = 160


def plan(request: Request) -> Forest:
    """The trees for the switches of the job's links that combine. UnsupportedError where there are none."""
    found = in_switch_forest(request.network, request.collective, request.ranks)
    if found is None:
        raise UnsupportedError(
            f"no switch between these ranks of {request.topology.name} says that it combines; to take "
            'every switch for one that does: --topo "SPEC @ switches=sharp"'
        )
    return found


def in_switch_forest(topology: Topology, collective: Collective, ranks: Sequence[int]) -> Forest | None:
    """The plan with what switches combine, on the links of ``topology``; None where none does that joins three.

    Its certificate is a cut where that is reached, which nothing passes whatever combines, else prices with sets.
    UnsupportedError for another collective, and for more ranks than are planned for. Cost: a second for 128 ranks.
    """
    switches = frozenset(v.id for v in topology.vertices if v.combines)
    near: dict[int, set[int]] = {switch: set() for switch in switches}
    for u, v in (arc for link in topology.link for arc in (link, link[::-1]) if arc[0] in switches):
        near[u].add(v)
    if all(len(neighbours) < 3 for neighbours in near.values()):
        return None
    view = rank_network_of(topology, tuple(ranks), switches)
    combining = tuple(i for i, vertex in enumerate(view.ids) if vertex in switches)
    if collective.name not in _STAGES:
        raise UnsupportedError(f"{collective.name} has no trees in which a switch could combine or multicast")
    task = TreeTask(view.network, combining, *_STAGES[collective.name], _roots(collective))
    if len(ranks) > MOST_RANKS:
        raise UnsupportedError(
            f"{len(ranks)} ranks are too many to plan with switches that combine: at most {MOST_RANKS}"
        )
    cut = _cut(collective, view)
    rate, trees = _two_way_trees(task, cut) or _trees(task, cut)
    shares = tuple(_share(view, task, number, tree) for number, tree in enumerate(trees))
    proof: Certificate = cut if rate == cut.bound else _proof(task, view, cut)
    return Forest(collective, tuple(ranks), NAME, topology, shares, rate, proof)


def _roots(collective: Collective) -> tuple[int, ...]:
    """Those that are given; none where any vertex may be one."""
    if collective.name == "allreduce":
        return ()
    return tuple(range(collective.world_size)) if collective.root is None else (collective.root,)


def _share(view: RankNetwork, task: TreeTask, number: int, tree: InNetworkTree) -> Share:
    root = view.ids[tree.root]
    up, down = (Tree(root, tuple(map(view.path, hops))) for hops in (tree.up, tree.down))
    block = root if len(task.roots) > 1 else None
    return Share(tree.weight, number, block, root, up if task.up else None, down if task.down else None)


def _trees(task: TreeTask, cut: Cut) -> tuple[Fraction, tuple[InNetworkTree, ...]]:
    unlike = len(dict.fromkeys(task.orbit.values()))
    if unlike > MOST_UNLIKE:
        raise UnsupportedError(
            f"{unlike} links that are not alike are too many to plan with switches that combine: at most {MOST_UNLIKE}"
        )
    return in_network_trees(task, cut.bound)


def _two_way_trees(task: TreeTask, cut: Cut) -> tuple[Fraction, tuple[InNetworkTree, ...]] | None:
    """Of one root, the trees of an AllReduce used one way, where these reach the cut: they are found by symmetry."""
    if len(task.roots) != 1 or not task.network.symmetric:
        return None
    rate, trees = _trees(TreeTask(task.network, task.combining, True, True), cut)
    if rate < cut.bound:
        return None
    root = task.roots[0]
    downs = [rooted_at(root, tree.down) for tree in trees]
    return rate, tuple(
        replace(tree, root=root, up=turned(down), down=down) for tree, down in zip(trees, downs, strict=True)
    )


def _cut(collective: Collective, view: RankNetwork) -> Cut:
    """A cut that bounds any schedule: for an AllReduce the narrowest between two ranks, which all data leaves once."""
    if collective.name != "allreduce":
        proof = certificate_for(collective, tuple(view.ids[: view.network.terminals]), view.topology)
        assert isinstance(proof, Cut)
        return proof
    network = view.network
    pairs = [(0, other) for other in range(1, network.terminals)]
    pairs += [] if network.symmetric else [(other, 0) for _, other in pairs]
    return cut_certificate(
        collective, view, min((min_cut(network, *pair) for pair in pairs), key=lambda cut: cut[0])[1]
    )


def _proof(task: TreeTask, view: RankNetwork, cut: Cut) -> Certificate:
    """The better one of the cut and of prices with sets."""
    found = in_network_proof(task)
    if found.bound >= cut.bound:
        return cut
    prices = tuple((u, v, price) for (u, v), price in sorted(view.prices(found.prices).items()))
    return Dual(prices, found.value, found.cost, _named(view, found.entered), _named(view, found.left))


def _named(view: RankNetwork, sets: Sets) -> WeighedSets:
    return tuple((weight, tuple(sorted(view.ids[v] for v in some))) for some, weight in sets.items())
