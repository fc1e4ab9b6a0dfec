"""Three-stage hierarchical AllReduce over socket leaders (multi-path UCX, for Mist).

1. Intra-socket reduce: the GPUs of a socket send their data to its leader.
2. The leaders exchange and reduce.
3. Intra-socket broadcast: the leaders send the result to the GPUs of their sockets.

In tree form the exchange among L leaders is L shares of 1/L, one rooted at each leader; for two sockets that
puts the same load on each link as sending the whole sum both ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice, product

from blinkccl.algorithms.registry import Request
from blinkccl.algorithms.shapes import (
    Paths,
    cyclic,
    flipped,
    forest_on,
    require_collective,
    require_one_server,
    transit_paths,
)
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Forest, Share, Tree, attained_rate
from blinkccl.topology.model import Topology

#: How many choices of leaders are compared; two sockets of eight GPUs have 64.
LEADER_LIMIT = 512


def plan(request: Request) -> Forest:
    """One share per socket, rooted at its leader.

    The article takes GPUs 1 and 2 of Mist as leaders "without loss of generality". On other machines the
    choice matters, so the leaders of the highest rate are taken, then those of the first ranks. On Mist the rate is
    that of the X-bus between the sockets, 32 GB/s.

    Raises
    ------
    UnsupportedError
        If the collective is not AllReduce, the ranks are on several servers or on one socket, or no leaders
        are one hop from each other and from their sockets.

    Notes
    -----
    Cost: depth 2 up and 2 down, so 4 steps; a leader of m GPUs sends m·S. Where we differ: the exchange reduces each
    half at one leader, not both at both; and a hop is one path, not the article's multi-path copy.
    """
    require_collective(request, "three_stage", ("allreduce",), "use --algo optimal")
    require_one_server(request, "three_stage")
    groups = sockets(request.topology, request.ranks)
    if len(groups) < 2 or sum(map(len, groups)) < len(request.ranks):
        raise UnsupportedError(
            "three_stage needs every rank on a socket, and at least two sockets, but "
            f"{_where(request, groups)}; use --algo flat or --algo optimal"
        )
    network = request.network
    paths = transit_paths(network, request.ranks)
    choices = [list(_shares(paths, groups, leaders)) for leaders in islice(product(*groups), LEADER_LIMIT)]
    served = [shares for shares in choices if shares]
    if not served:
        raise UnsupportedError(
            f"three_stage: on {network.name} no choice of one leader per socket is one hop from each other leader and "
            "from the other ranks of its socket; use --algo optimal"
        )
    best = max(served, key=lambda shares: attained_rate(network, shares))
    return forest_on(request, "three_stage", network, best)


def sockets(topology: Topology, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks by the host processor that is fewest links away, in the order of ranks.

    Ranks from which no links lead to a host, except through other GPUs or a NIC, belong to none.
    """
    following: dict[int, list[int]] = {}
    for link in sorted(topology.links, key=lambda x: (x.src, x.dst)):
        following.setdefault(link.src, []).append(link.dst)
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        host = _nearest_host(topology, following, rank)
        if host is not None:
            groups.setdefault(host, []).append(rank)
    return tuple(map(tuple, groups.values()))


def _nearest_host(topology: Topology, following: dict[int, list[int]], rank: int) -> int | None:
    layer, seen = [rank], {rank}
    while layer:
        hosts = [v for v in layer if topology.vertex[v].kind == "host"]
        if hosts:
            return min(hosts)
        beyond = [w for v in layer if v == rank or topology.vertex[v].kind == "switch" for w in following.get(v, ())]
        layer = sorted({w for w in beyond if w not in seen and topology.vertex[w].kind in ("switch", "host")})
        seen.update(layer)
    return None


def _where(request: Request, groups: Sequence[Sequence[int]]) -> str:
    placed = [rank for group in groups for rank in group]
    name = request.topology.name
    if not placed:
        return f"{name} says nothing of host processors"
    homeless = [rank for rank in request.ranks if rank not in placed]
    if homeless:
        return f"no link of {name} joins {','.join(map(str, homeless))} to a host processor"
    return f"all ranks of this job hang on one host processor of {name}"


def _shares(paths: Paths, groups: Sequence[Sequence[int]], leaders: Sequence[int]) -> Iterator[Share]:
    """One share per leader; none at all where a hop is missing."""
    hops = [(leader, other) for leader in leaders for other in leaders if other != leader]
    hops += [
        (leader, member) for leader, group in zip(leaders, groups, strict=True) for member in group if member != leader
    ]
    if not all((u, v) in paths and (v, u) in paths for u, v in hops):
        return
    own = {leader: cyclic(group, leader)[1:] for leader, group in zip(leaders, groups, strict=True)}
    for i, root in enumerate(leaders):
        others = cyclic(leaders, root)[1:]
        edges = [paths[root, leader] for leader in others]
        edges += [paths[leader, member] for leader in (root, *others) for member in own[leader]]
        down = Tree(root, tuple(edges))
        yield Share(Fraction(1, len(leaders)), i, None, root, flipped(paths, down), down)
