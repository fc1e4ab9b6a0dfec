"""One message over several paths in parallel: direct, through the host's memory, and through GPUs with spare links.

The paths are those of a maximum flow on all links (``--links all``: PCIe parallel to NVLink leads through the hosts'
memories). Relays are GPUs outside the job and other ranks of it, so the paths together are as fast as any plan. A
forest has no sizes: :func:`plan` is the split of large messages, in proportion to the paths' rates. The start-up time
of a path grows with the number of memories on it. :func:`water_filling` is the split for a size: all selected paths end
at the same time, and paths with too long a start-up get no data. The best splits by size are stored in a table
(:mod:`blinkccl.trees.algorithms.path_table`).

Source: multi-path GPU-to-GPU copies with UCX ("The Multi-Path Communication"), with two paths, one of them through the
host, and tables of splits that the article does not print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, permutations

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.topology.memories import memories_on
from blinkccl.trees.algorithms import optimal, stars, three_stage
from blinkccl.trees.algorithms.path_table import Part, Split
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import require_collective, transit_paths
from blinkccl.trees.algorithms.three_stage import sockets
from blinkccl.trees.forest.model import Forest, Path, Share, Tree, attained_rate, link_use

ALGORITHM = "multi_path"
#: The denominator of weights in splits.
FINEST = 10_000


@dataclass(frozen=True, slots=True)
class WeightedPath:
    """A path from the source to the destination, and its part of the total rate of all paths.

    ``path`` has all its vertices, including relays; ``legs`` is the number of times that data is moved on it: one more
    than the number of memories between.
    """

    path: Path
    weight: Fraction
    legs: int


@dataclass(frozen=True, slots=True)
class PathCost:
    """The time of a path for x bytes: ``start_s`` + x / ``bytes_per_s``."""

    start_s: float
    bytes_per_s: float


def plan(request: Request) -> Forest:
    """A share per path of a maximum flow: the split of large messages.

    It uses the requested links, but all links for the default (``--links fast``). Its rate is the bound.

    Raises
    ------
    UnsupportedError
        If the collective is not sendrecv, or no links join its two ends.
    """
    require_collective(request, ALGORITHM, ("sendrecv",), "use --algo optimal --links all")
    with_relays = replace(request, links="all" if request.links == "fast" else request.links, relays=True)
    return replace(optimal.plan(with_relays), algorithm=ALGORITHM)


def ways(flow: Forest) -> tuple[WeightedPath, ...]:
    """The paths of a plan of one message, in order of their number of memories, then by descending rate."""
    weighted: list[WeightedPath] = []
    for share in flow.shares:
        if share.broadcast is None:
            raise UsageError(f"{flow.collective.name} is not a message from one rank to another: give a sendrecv")
        edges = share.broadcast.edges
        path = (share.root, *(vertex for edge in edges for vertex in edge[1:]))
        stored = len(edges) - 1 + sum(len(memories_on(flow.topology, edge)) for edge in edges)
        weighted.append(WeightedPath(path, share.weight, stored + 1))
    return tuple(sorted(weighted, key=lambda way: (way.legs, -way.weight, way.path)))


def direct_path(flow: Forest) -> Path:
    """The path of a plain copy: the fewest links without other GPUs, or the plan's first path if it has fewer memories.

    It has a memory if no fast link or switch joins both ends, since PCIe parallel to fast links is staged.
    """
    first = ways(flow)[0]
    ends = first.path[0], first.path[-1]
    around = transit_paths(flow.topology, flow.topology.ranks).get(ends)
    return first.path if around is None or len(memories_on(flow.topology, around)) + 1 > first.legs else around


def on_one_path(path: Path) -> Split:
    """The split with the whole message on one path, as one copy."""
    return Split(parts=(Part(path, Fraction(1)),))


def forest_of(flow: Forest, split: Split) -> Forest:
    """The forest of a split, on the links of ``flow``: a share per stream of each path.

    Raises
    ------
    UnsupportedError
        If the split is for other ends, or uses a missing link.
    """
    src, dst = (flow.ranks[end] for end in (flow.collective.src or 0, flow.collective.dst or 0))
    shares: list[Share] = []
    for part in split.parts:
        if (part.path[0], part.path[-1]) != (src, dst):
            raise UnsupportedError(f"path {list(part.path)} has other ends, expected from {src} to {dst}")
        for pair in pairwise(part.path):
            if pair not in flow.topology.link:
                raise UnsupportedError(f"path {[*part.path]}: {flow.topology.name} has no link {pair[0]} → {pair[1]}")
        tree = _tree(part.path, flow.ranks)
        for _ in range(part.streams):
            shares.append(Share(part.weight / part.streams, len(shares), None, src, None, tree))
    return replace(flow, shares=tuple(shares), rate=attained_rate(flow.topology, shares))


def _tree(path: Path, ranks: Sequence[int]) -> Tree:
    """The tree of a path, with hops from rank to rank of the job."""
    stops = [place for place, vertex in enumerate(path) if vertex in ranks]
    return Tree(path[0], tuple(path[a : b + 1] for a, b in pairwise(stops)))


def portions(flow: Forest) -> dict[tuple[Path, tuple[int, int]], Fraction]:
    """By path and link, the path's part of the link's rate, which it shares with the other paths of the plan."""
    use = link_use(flow.shares)
    return {(way.path, pair): way.weight / use[pair] for way in ways(flow) for pair in pairwise(way.path)}


def water_filling(size_bytes: int, costs: Sequence[PathCost]) -> tuple[Fraction, ...]:
    """The part of a message for each path with the earliest end of the message.

    All paths with data end at the same time T, the least with Σ max(0, (T − start) · rate) = S. A path that starts at T
    or later gets 0. Parts are multiples of 1/:data:`FINEST` and sum to 1.

    Raises
    ------
    UsageError
        For a negative size, no path, or a cost that is out of range.

    Notes
    -----
    Exact except for the rounding of parts. Cost: O(n log n) for n paths.
    """
    if size_bytes < 0 or not costs or any(cost.start_s < 0 or cost.bytes_per_s <= 0 for cost in costs):
        raise UsageError(f"{size_bytes} bytes over {list(costs)}: expected paths, rates above 0, sizes and starts ≥ 0")
    if size_bytes == 0:
        first = min(range(len(costs)), key=lambda place: costs[place].start_s)
        return tuple(Fraction(place == first) for place in range(len(costs)))
    level, rate, begun = Fraction(0), Fraction(0), Fraction(0)
    for cost in sorted(costs, key=lambda cost: cost.start_s):
        start, speed = Fraction(cost.start_s), Fraction(cost.bytes_per_s)
        if rate and level <= start:
            break
        rate, begun = rate + speed, begun + start * speed
        level = (size_bytes + begun) / rate
    exact = [max(Fraction(0), (level - Fraction(x.start_s)) * Fraction(x.bytes_per_s) / size_bytes) for x in costs]
    return _rounded(exact)


def _rounded(exact: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Multiples of 1/FINEST with the sum 1: the remainder goes to the largest part."""
    units = [int(part * FINEST) for part in exact]
    units[max(range(len(units)), key=lambda place: exact[place])] += FINEST - sum(units)
    return tuple(Fraction(unit, FINEST) for unit in units)


#: The AllReduce algorithms of the article, in which a share may use two paths.
_INSIDE = {"three_stage": three_stage.plan, "flat": stars.flat}


def inside_sockets(request: Request, algorithm: str, host_part: Fraction | None = None) -> Forest:
    """An AllReduce with multi-path copies inside sockets, as in the article for ``three_stage`` and ``flat``.

    Each share is split in two: one uses its planned hops, the other the host between GPUs of a socket. ``host_part`` is
    the second part of the data, 0 < part < 1. None: in proportion to the rates of both paths, for the pair with the
    smallest part. UnsupportedError if no two GPUs of a socket are joined by both a link and their host.
    """
    request = replace(request, links="all")
    forest = _INSIDE[algorithm](request)
    staged: dict[tuple[int, int], Path] = {}
    parts: list[Fraction] = []
    for src, dst in (pair for group in sockets(request.topology, request.ranks) for pair in permutations(group, 2)):
        ends = Collective("sendrecv", len(request.ranks), src=request.ranks.index(src), dst=request.ranks.index(dst))
        direct, *others = ways(optimal.plan(replace(request, collective=ends)))
        through = [way for way in others if not set(way.path[1:-1]) & set(request.ranks)]
        if through and direct.legs == 1:
            staged[src, dst] = through[0].path
            parts.append(through[0].weight / (direct.weight + through[0].weight))
    if not staged:
        raise UnsupportedError(
            f"multi-path copies inside {algorithm} need two GPUs of a socket with both a link and their host between "
            f"them, but {request.topology.name} has none among {','.join(map(str, request.ranks))}; "
            f"use --algo {algorithm}"
        )
    part = min(parts) if host_part is None else host_part
    split = [
        one for x in forest.shares for one in (replace(x, weight=x.weight * (1 - part)), _through(x, part, staged))
    ]
    shares = tuple(replace(share, slice=number) for number, share in enumerate(split))
    rate = attained_rate(forest.topology, shares)
    return replace(forest, algorithm=f"{algorithm}_multi_path", shares=shares, rate=rate)


def _through(share: Share, part: Fraction, staged: Mapping[tuple[int, int], Path]) -> Share:
    up, down = (
        None if tree is None else replace(tree, edges=tuple(staged.get((p[0], p[-1]), p) for p in tree.edges))
        for tree in (share.reduce, share.broadcast)
    )
    return replace(share, weight=share.weight * part, reduce=up, broadcast=down)
