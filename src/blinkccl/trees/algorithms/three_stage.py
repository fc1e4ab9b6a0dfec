"""Three-stage hierarchical AllReduce over socket leaders (multi-path UCX, for Mist).

1. Intra-socket reduce: the GPUs of a socket send their data to its leader.
2. The leaders exchange and reduce.
3. Intra-socket broadcast: the leaders send the result to the GPUs of their sockets.

In tree form the exchange among L leaders is L shares of 1/L, one rooted at each leader. For two sockets this puts the
same load on each link as sending the whole sum in both directions.

On several servers ("The Hierarchical Multi-Node GPU-based MPI Allreduce") the leaders of a server reduce-scatter. Each
part is reduced among the leaders that have it, one per server. The result is sent back on the same paths. In tree form
a part has one share per server, so the AllReduce between servers uses one-hop trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice, product

from blinkccl.errors import UnsupportedError
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import (
    Paths,
    by_server,
    cyclic,
    flipped,
    forest_on,
    require_collective,
    transit_paths,
)
from blinkccl.trees.forest.model import Forest, Share, Tree, attained_rate

#: A server's ranks by socket.
Groups = Sequence[Sequence[int]]
#: The most choices of leaders that are compared; two sockets of eight GPUs have 64.
LEADER_LIMIT = 512


def plan(request: Request) -> Forest:
    """The forest with one share per leader, which is its root.

    The article selects GPUs 1 and 2 of Mist as leaders "without loss of generality". On other machines the choice
    matters, so the leaders with the highest rate are selected, of equal ones those of the first ranks. On Mist the rate
    is that of the X-bus between the sockets, 32 GB/s.

    Raises
    ------
    UnsupportedError
        For other collectives. Each server needs two sockets or more, all servers the same number, and some choice of
        leaders must be one hop from each other and from their sockets.

    Notes
    -----
    Cost: depth 2 up and 2 down, so 4 steps, 6 between servers; a leader of m GPUs sends m·S. Differences from the
    article: the exchange reduces each half at one leader, not both at both. All stages are one pipeline, while the
    article's stages do not overlap between servers. A hop is one path; for several see ``multi_path.inside_sockets``.
    """
    require_collective(request, "three_stage", ("allreduce",), "use --algo optimal")
    servers = [sockets(request.topology, ranks) for ranks in by_server(request.topology, request.ranks)]
    placed = sum(len(group) for groups in servers for group in groups)
    if min(map(len, servers)) < 2 or placed < len(request.ranks):
        raise UnsupportedError(
            "three_stage needs every rank on a socket, and at least two sockets, but "
            f"{_where(request, [group for groups in servers for group in groups])}; use --algo flat or --algo optimal"
        )
    if len({len(groups) for groups in servers}) > 1:
        raise UnsupportedError(
            "three_stage needs the same number of sockets on each server, but the ranks are on "
            f"{', '.join(str(len(groups)) for groups in servers)}; use --algo three_phase or --algo optimal"
        )
    network = request.network
    # Inside a server no hop uses a NIC, even on the shortest path.
    inside = replace(network, links=tuple(link for link in network.links if link.kind != "net"))
    paths = {**transit_paths(network, request.ranks), **transit_paths(inside, request.ranks)}
    # All servers use the same positions, since the article's servers are equal.
    places = product(*(range(max(map(len, sides))) for sides in zip(*servers, strict=True)))
    choices = [list(_shares(paths, servers, _leaders(servers, place))) for place in islice(places, LEADER_LIMIT)]
    served = [shares for shares in choices if shares]
    if not served:
        raise UnsupportedError(
            f"three_stage: on {network.name} no choice of one leader per socket is one hop from each other leader and "
            "from the other ranks of its socket; use --algo optimal"
        )
    best = max(served, key=lambda shares: attained_rate(network, shares))
    return forest_on(request, "three_stage", network, best)


def _leaders(servers: Sequence[Groups], places: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The rank at ``places[i]`` of socket i on each server, or the last rank if the socket has fewer."""
    return tuple(
        tuple(group[min(place, len(group) - 1)] for group, place in zip(groups, places, strict=True))
        for groups in servers
    )


def sockets(topology: Topology, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks by the nearest host processor in links, in the order of ranks.

    Ranks without links to a host, except through other GPUs or a NIC, are left out.
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
    layer, visited = [rank], {rank}
    while layer:
        hosts = [v for v in layer if topology.vertex[v].kind == "host"]
        if hosts:
            return min(hosts)
        beyond = [w for v in layer if v == rank or topology.vertex[v].kind == "switch" for w in following.get(v, ())]
        layer = sorted({w for w in beyond if w not in visited and topology.vertex[w].kind in ("switch", "host")})
        visited.update(layer)
    return None


def _where(request: Request, groups: Sequence[Sequence[int]]) -> str:
    placed = [rank for group in groups for rank in group]
    name = request.topology.name
    if not placed:
        return f"{name} has no host processors"
    homeless = [rank for rank in request.ranks if rank not in placed]
    if homeless:
        return f"no link of {name} joins {','.join(map(str, homeless))} to a host processor"
    owner = "this job" if len(by_server(request.topology, request.ranks)) == 1 else "a server"
    return f"all ranks of {owner} are on one host processor of {name}"


def _shares(paths: Paths, servers: Sequence[Groups], leaders: Sequence[Sequence[int]]) -> Iterator[Share]:
    """One share per leader; no share at all if a hop is missing."""
    own = {
        leader: cyclic(group, leader)[1:]
        for groups, chosen in zip(servers, leaders, strict=True)
        for group, leader in zip(groups, chosen, strict=True)
    }
    drawn: list[Share] = []
    for number, (place, socket) in enumerate(product(range(len(leaders)), range(len(leaders[0])))):
        root = leaders[place][socket]
        # Hops to the leader of the part on every server, then to the other leaders, then to their sockets.
        across = [chosen[socket] for chosen in cyclic(leaders, leaders[place])[1:]]
        hops = [(root, leader) for leader in across]
        sides = [cyclic(chosen, chosen[socket]) for chosen in cyclic(leaders, leaders[place])]
        hops += [(side[0], leader) for side in sides for leader in side[1:]]
        hops += [(leader, member) for side in sides for leader in side for member in own[leader]]
        if not all((u, v) in paths and (v, u) in paths for u, v in hops):
            return
        down = Tree(root, tuple(paths[hop] for hop in hops))
        weight = Fraction(1, len(leaders) * len(leaders[0]))
        drawn.append(Share(weight, number, None, root, flipped(paths, down), down))
    yield from drawn
