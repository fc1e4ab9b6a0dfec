"""Three-phase AllReduce over several servers (Blink, MLSys 2020, §3.5, Fig 10).

1. Each server reduces each partition of the data to a local root, over its own spanning trees.
2. The n local roots of a partition, one per server, reduce and broadcast it over n one-hop trees.
3. Each local root broadcasts the result inside its server.

In tree form a partition is n shares of equal weight, one rooted at each of its local roots: up the local trees and one
hop to the root, then down in reverse. Each server cuts the data by the weights of its own trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, permutations
from operator import attrgetter

from blinkccl.collectives.spec import Collective
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology.connectivity import parts
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES
from blinkccl.trees.algorithms import optimal
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import Paths, by_server, laid_over, require_collective, transit_paths
from blinkccl.trees.forest.model import Forest, Path, Share, Tree, attained_rate, tree_depth

ALGORITHM = "three_phase"

#: The capacity out of its server for each rank that has such a path, in units of the network.
Gateways = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A weighted pair of trees inside one server with one root, the local root of this part of the data."""

    weight: Fraction
    up: Tree
    down: Tree

    @property
    def root(self) -> int:
        """The local root."""
        return self.down.root

    @property
    def movable(self) -> bool:
        """True if both stages use the same hops, so another root changes no load."""
        return sorted(self.up.edges) == sorted(path[::-1] for path in self.down.edges)

    def rooted(self, root: int) -> LocalTree:
        """The same hops with the root ``root``; the tree must be :attr:`movable`."""
        if root == self.root:
            return self
        near: dict[int, list[Path]] = {}
        for path in self.down.edges:
            near.setdefault(path[0], []).append(path)
            near.setdefault(path[-1], []).append(path[::-1])
        edges: list[Path] = []
        reached, queue = {root}, [root]
        for u in queue:
            for path in near.get(u, ()):
                if path[-1] not in reached:
                    reached.add(path[-1])
                    queue.append(path[-1])
                    edges.append(path)
        down = Tree(root, tuple(edges))
        return LocalTree(self.weight, down.reversed(), down)


def plan(request: Request) -> Forest:
    """The three phases as one forest, with the bound of ``optimal`` on the whole network as one graph.

    A server's local trees are those of ``optimal`` for an AllReduce inside it: a maximum packing of undirected trees if
    links join its GPUs, stars behind an NVSwitch. Only roots send through a NIC, so the roots determine the rate across
    servers. Two variants are compared: each tree has one root; or trees are cut so that each GPU is the root of a part
    in proportion to its capacity out of the server. The second is better if NICs belong to GPUs. The faster variant is
    selected, of equal ones the one with fewer shares.

    Raises
    ------
    UnsupportedError
        For other collectives, and for ranks on one server. Links must connect the ranks of each server, and the local
        roots of a part must be one hop from each other.

    Notes
    -----
    Cost: each of n servers sends 2(n−1)/n · S; at most n (T − n + 1) shares for a total of T local trees (or pieces of
    them); one hop more than the deepest local tree, up and down again. Differences from the paper, which cuts the data
    by the number of trees: trees have weights, servers may have different numbers of trees, and a tree may have several
    roots, one per piece. The paper has AllReduce only, and so does this module.
    """
    require_collective(request, ALGORITHM, ("allreduce",), "use --algo optimal")
    network = request.network
    servers = by_server(network, request.ranks)
    if len(servers) < 2:
        raise UnsupportedError(
            f"{ALGORITHM} is for ranks on several servers, but all ranks of this job are on one server of "
            f"{network.name}; use --algo blink or --algo optimal"
        )
    paths = transit_paths(network, request.ranks)
    ways = [_gateways(network, paths, servers, i) for i in range(len(servers))]
    packed = [local_trees(request, members) for members in servers]
    choices = [
        _shares(paths, [placed(trees, gateways) for trees, gateways in zip(packed, ways, strict=True)])
        for placed in (whole_trees, cut_trees)
    ]
    rated = [(attained_rate(network, shares), -len(shares), shares) for shares in choices if shares]
    if not rated:
        raise UnsupportedError(
            f"{ALGORITHM}: on {network.name} the local roots of different servers are not all one hop from each "
            "other; use --algo optimal"
        )
    rate, _, best = max(rated, key=lambda one: one[:2])
    certificate = optimal.plan(request).certificate
    return Forest(request.collective, request.ranks, ALGORITHM, network, best, rate, certificate)


def local_trees(request: Request, members: Sequence[int]) -> list[LocalTree]:
    """The best packing of one server's own links, heaviest tree first; one tree without edges for a single rank.

    If only the network joins a server's ranks, the UnsupportedError names the parts and the options that join them.
    """
    if len(members) == 1:
        alone = Tree(members[0], ())
        return [LocalTree(Fraction(1), alone, alone)]
    apart = _parts(request.network, members)
    if len(apart) > 1:
        raise UnsupportedError(_why_apart(request, members, apart))
    inside = _inside(request.network, members)
    local = Request(inside, Collective("allreduce", len(members)), tuple(members), "all", relays=True)
    trees = []
    for share in optimal.plan(local).shares:
        assert share.reduce is not None
        assert share.broadcast is not None
        trees.append(LocalTree(share.weight, share.reduce, share.broadcast))
    return sorted(trees, key=lambda tree: -tree.weight)


def whole_trees(trees: Sequence[LocalTree], gateways: Gateways) -> list[LocalTree]:
    """Each tree with one root, so that the loads out of the server are balanced by capacity.

    Heaviest tree first, the root is the rank with the least load; of equal ones the rank with the shallowest tree.
    """
    load = dict.fromkeys(gateways, Fraction(0))
    placed = []
    for tree in trees:
        if tree.movable:
            best = min(gateways, key=lambda v: ((load[v] + tree.weight) / gateways[v], _depth_from(tree, v)))
            tree = tree.rooted(best)
        load[tree.root] = load.get(tree.root, Fraction(0)) + tree.weight
        placed.append(tree)
    return placed


def cut_trees(trees: Sequence[LocalTree], gateways: Gateways) -> list[LocalTree]:
    """Pieces of trees, fewer than trees plus ranks; each rank is a root in proportion to its capacity out."""
    movable = sum((tree.weight for tree in trees if tree.movable), Fraction(0))
    total = sum(gateways.values())
    room = {v: movable * width / total for v, width in gateways.items()}
    placed = []
    for tree in trees:
        remaining = tree.weight if tree.movable else Fraction(0)
        if not remaining:
            placed.append(tree)
        while remaining:
            root = min((v for v in room if room[v]), key=lambda v: (_depth_from(tree, v), -room[v]))
            part = min(remaining, room[root])
            placed.append(replace(tree.rooted(root), weight=part))
            room[root] -= part
            remaining -= part
    return sorted(placed, key=lambda tree: -tree.weight)


def _depth_from(tree: LocalTree, root: int) -> int:
    return tree_depth(Tree(root, tree.down.edges))


def _shares(paths: Paths, servers: Sequence[Sequence[LocalTree]]) -> tuple[Share, ...]:
    """The n one-hop trees of every part, with the local trees below them; () if a hop is missing."""
    shares: list[Share] = []
    for weight, trees in laid_over(servers, attrgetter("weight")):
        if any((a.root, b.root) not in paths for a, b in permutations(trees, 2)):
            return ()
        inward = tuple(path for tree in trees for path in tree.up.edges)
        for i, own in enumerate(trees):
            # The network is slower than a server's own links, so data that crosses it is sent first.
            others = (*trees[i + 1 :], *trees[:i])
            outward = tuple(path for each in (own, *others) for path in each.down.edges)
            up = Tree(own.root, (*inward, *(paths[each.root, own.root] for each in others)))
            down = Tree(own.root, (*(paths[own.root, each.root] for each in others), *outward))
            shares.append(Share(weight / len(trees), len(shares), None, own.root, up, down))
    return tuple(shares)


def _gateways(network: Topology, paths: Paths, servers: Sequence[Sequence[int]], home: int) -> dict[int, int]:
    """The ranks of one server that are one hop from every other server, with their least capacity to one of these."""
    gateways: dict[int, int] = {}
    others = [members for i, members in enumerate(servers) if i != home]
    for v in servers[home]:
        widths = [
            max((min(_width(network, paths, v, w), _width(network, paths, w, v)) for w in members), default=0)
            for members in others
        ]
        if min(widths) > 0:
            gateways[v] = min(widths)
    if not gateways:
        raise UnsupportedError(
            f"{ALGORITHM}: on {network.name} none of the ranks {_listed(servers[home])} is one hop from a rank of "
            "every other server; use --algo optimal"
        )
    return gateways


def _width(network: Topology, paths: Paths, u: int, v: int) -> int:
    """The capacity of the narrowest link of the hop from u to v; 0 without a hop."""
    if (u, v) not in paths:
        return 0
    return min(network.link[arc].capacity for arc in pairwise(paths[u, v]))


def _inside(network: Topology, members: Sequence[int]) -> Topology:
    """The part of ``network`` inside one server: without NICs and network links."""
    server = network.vertex[members[0]].server
    vertices = tuple(v for v in network.vertices if v.server == server and v.kind != "nic")
    inside = {v.id for v in vertices}
    links = tuple(x for x in network.links if x.src in inside and x.dst in inside and x.kind != "net")
    return Topology(network.name, network.unit_gb_per_s, vertices, links)


def _parts(network: Topology, members: Sequence[int]) -> list[tuple[int, ...]]:
    return parts(members, _inside(network, members).link)


def _why_apart(request: Request, members: Sequence[int], apart: Sequence[Sequence[int]]) -> str:
    named = " and ".join("{" + _listed(part) + "}" for part in apart)
    others = [links for links in LINK_CHOICES if links != "staged"]
    remedies = [f"--links {links}" for links in others if _joins(replace(request, links=links), members)]
    if _joins(replace(request, relays=True), members):
        remedies.append("--relays")
    return (
        f"{ALGORITHM} reduces inside each server first, but --links {request.links} joins the ranks {named} of one "
        f"server of {request.topology.name} only over the network; use {' or '.join([*remedies, '--algo optimal'])}"
    )


def _joins(request: Request, members: Sequence[int]) -> bool:
    try:
        return len(_parts(request.network, members)) == 1
    except TopologyError:  # these links do not connect the job
        return False


def _listed(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))
