"""Plans with in-network reduction and multicast in switches, as in NVLink SHARP and SHARP.

Other plans of this package only forward data through switches and reduce at ranks. In these plans, switches that
``combine`` may be vertices of trees, and their roots. These are the NVSwitches of Hopper and later, and all switches of
``"SPEC @ switches=sharp"``. The plan is like any other: ``blink check`` proves it, the reference engine runs it, the
simulator times it. No other engine runs it, so it is not tried for a job.

ForestColl (arXiv 2402.06787) has 450 GB/s for an AllReduce of the eight GPUs of an H100 server, 200 for two DGX A100.
Broadcast and AllGather gain nothing if the outbound rate of switches equals their inbound rate. Trees that branch at
ranks then reach the same cut (Edmonds 1973; Bang-Jensen, Frank and Jackson 1995); multicast only saves inbound links.
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
#: Collective → True for up-trees, True for down-trees.
_STAGES = {
    "allreduce": (True, True),
    "broadcast": (False, True),
    "allgather": (False, True),
    "reduce": (True, False),
    "reduce_scatter": (True, False),
}
#: The most ranks of a plan; 256 take two seconds.
MOST_RANKS = 256
#: The most links without an equivalent by symmetry. Four servers of which one lacks a NIC have 128: seven seconds.
MOST_UNLIKE = 160


def plan(request: Request) -> Forest:
    """The trees through switches with in-network reduction. UnsupportedError if the job has no such switches."""
    forest = in_switch_forest(request.network, request.collective, request.ranks)
    if forest is None:
        raise UnsupportedError(
            f"no switch between these ranks of {request.topology.name} has in-network reduction; to assume it for "
            'every switch: --topo "SPEC @ switches=sharp"'
        )
    return forest


def in_switch_forest(topology: Topology, collective: Collective, ranks: Sequence[int]) -> Forest | None:
    """The plan with in-network reduction on the links of ``topology``; None if no such switch joins three vertices.

    Its certificate is a cut if the plan reaches it, which bounds every schedule, else prices with sets.
    UnsupportedError for another collective, and for more ranks than :data:`MOST_RANKS`. Cost: a second for 128 ranks.
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
        raise UnsupportedError(f"in_switch supports {', '.join(_STAGES)}, not {collective.name}; use --algo optimal")
    task = TreeTask(view.network, combining, *_STAGES[collective.name], _roots(collective))
    if len(ranks) > MOST_RANKS:
        raise UnsupportedError(
            f"{len(ranks)} ranks are too many to plan with in-network reduction, expected at most {MOST_RANKS}; use "
            "--algo optimal"
        )
    cut = _cut(collective, view)
    rate, trees = _two_way_trees(task, cut) or _trees(task, cut)
    shares = tuple(_share(view, task, number, tree) for number, tree in enumerate(trees))
    proof: Certificate = cut if rate == cut.bound else _proof(task, view, cut)
    return Forest(collective, tuple(ranks), NAME, topology, shares, rate, proof)


def _roots(collective: Collective) -> tuple[int, ...]:
    """The roots of the trees; () if any vertex may be one."""
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
            f"in_switch plans at most {MOST_UNLIKE} different links, got {unlike} (counting links that are equal "
            "by symmetry once); use --algo optimal"
        )
    return in_network_trees(task, cut.bound)


def _two_way_trees(task: TreeTask, cut: Cut) -> tuple[Fraction, tuple[InNetworkTree, ...]] | None:
    """The trees of an AllReduce, which has more symmetry, in one direction for one root; None if below the cut."""
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
    """A cut that bounds any schedule; for an AllReduce the minimum cut between two ranks, which S crosses once."""
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
    """The tighter bound: the cut, or prices with sets."""
    proof = in_network_proof(task)
    if proof.bound >= cut.bound:
        return cut
    prices = tuple((u, v, price) for (u, v), price in sorted(view.prices(proof.prices).items()))
    return Dual(prices, proof.value, proof.cost, _named(view, proof.entered), _named(view, proof.left))


def _named(view: RankNetwork, sets: Sets) -> WeighedSets:
    return tuple((weight, tuple(sorted(view.ids[v] for v in some))) for some, weight in sets.items())
