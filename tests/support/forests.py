"""Random forests, valid by construction: any collective, relays, one-shot shares, switches.

Their rates are those of random trees, not optimal. Equal seeds give equal forests.
"""

import itertools
from fractions import Fraction
from random import Random

from blinkccl.collectives.spec import COLLECTIVES, Collective, Item
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.trees.forest.model import Cut, Forest, Path, Share, Tree, attained_rate, to_ids


def random_collective(random: Random, world_size: int, name: str | None = None) -> Collective:
    """Return a collective on ``world_size`` ≥ 2 ranks, with a random root or random ends if it has them."""
    chosen = name or random.choice(list(COLLECTIVES))
    ends = random.sample(range(world_size), 2)
    values = {"root": ends[0], "src": ends[0], "dst": ends[1]}
    wanted = {key: values[key] for key in COLLECTIVES[chosen].parameters}
    return Collective(chosen, world_size, **wanted)


def random_topology(random: Random, world_size: int) -> tuple[Topology, tuple[int, ...]]:
    """Return a strongly connected topology, sometimes with a switch, and the vertex ids of the ranks in order."""
    ids = random.sample(range(3 * world_size), world_size)
    switch = max(ids) + 1
    vertices = [Vertex(i, "gpu") for i in sorted(ids)]
    pairs = {(a, b): random.randint(1, 4) for a, b in zip(ids, ids[1:] + ids[:1], strict=True)}
    for a in ids:
        for b in ids:
            if a != b and random.random() < 0.4:
                pairs[a, b] = random.randint(1, 4)
    if random.random() < 0.4:
        vertices.append(Vertex(switch, "switch"))
        for a in ids:
            pairs[a, switch] = pairs[switch, a] = random.randint(1, 4)
    links = tuple(Link(a, b, c, "nvlink", 25.0 * c, "synthetic") for (a, b), c in sorted(pairs.items()))
    return Topology("random", 25.0, tuple(vertices), links), tuple(ids)


def random_forest(random: Random, collective: Collective | None = None, one_shot: bool = True) -> Forest:
    """Return a valid forest of random trees on a random topology; ``collective`` None: drawn, on 2 to 6 ranks.

    ``one_shot``: a reduced slice may have one share per destination.
    """
    collective = collective or random_collective(random, random.randint(2, 6))
    topology, ranks = random_topology(random, collective.world_size)
    shares: list[Share] = []
    for item in collective.items():
        inner = random.sample([Fraction(k, 7) for k in range(1, 7)] + [Fraction(1, 2)], random.randint(0, 2))
        for number, (start, stop) in enumerate(itertools.pairwise([Fraction(0), *sorted(inner), Fraction(1)])):
            shares += _shares(random, topology, ranks, item, (stop - start) * item.weight, number, one_shot)
    if not any(tree.edges for share in shares for tree in share.trees()):
        return random_forest(random, collective, one_shot)
    return Forest(
        collective,
        ranks,
        "random",
        topology,
        tuple(shares),
        attained_rate(topology, shares),
        single_rank_cut(collective, ranks, topology),
    )


def single_rank_cut(collective: Collective, ranks: tuple[int, ...], topology: Topology) -> Cut:
    """Return the tightest bound of a single rank: the data that must leave it, over its outgoing links."""
    cuts = []
    for rank, vertex in enumerate(ranks):
        demand = sum(
            (
                item.weight
                for item in collective.items()
                if any(r == rank for r, _ in item.contributions) and any(r != rank for r, _ in item.destinations)
            ),
            Fraction(0),
        )
        capacity = sum(link.capacity for link in topology.links if link.src == vertex)
        if demand:
            cuts.append(Cut((vertex,), Fraction(capacity), demand))
    return min(cuts, key=lambda cut: (cut.bound, cut.side))


def _shares(
    random: Random,
    topology: Topology,
    ranks: tuple[int, ...],
    item: Item,
    weight: Fraction,
    number: int,
    one_shot: bool,
) -> list[Share]:
    """Return the share or, one-shot, the shares of one slice."""
    sources = [ranks[r] for r, _ in item.contributions]
    targets = [ranks[r] for r, _ in item.destinations]
    block = to_ids(item.block, ranks)
    if one_shot and len(sources) > 1 and random.random() < 0.25:
        return [
            Share(weight, number, block, t, _tree(random, topology, t, sources, upward=True), None) for t in targets
        ]
    root = random.choice(sources if random.random() < 0.6 else list(ranks))
    up = None if sources == [root] else _tree(random, topology, root, sources, upward=True)
    if up is not None and len(sources) == 1 and random.random() < 0.5:
        targets = [t for t in targets if t not in sources]  # the source keeps its own data before it sends them
    down = None if targets in ([root], []) else _tree(random, topology, root, targets, upward=False)
    return [Share(weight, number, block, root, up, down)]


def _tree(random: Random, topology: Topology, root: int, leaves: list[int], upward: bool) -> Tree:
    """Return a random tree on ranks that reaches ``leaves``; other ranks on the way are relays."""
    hops = _hops(topology, upward)
    above: dict[int, Path] = {}
    reached = [root]
    while len(reached) < len(topology.ranks):
        choices = [
            (near, far) for near in reached for far in topology.ranks if far not in reached and (near, far) in hops
        ]
        near, far = random.choice(choices)
        above[far] = random.choice(hops[near, far])
        reached.append(far)
    needed = set()
    for leaf in leaves:
        vertex = leaf
        while vertex != root:
            needed.add(vertex)
            vertex = above[vertex][0]
    paths = [above[v] for v in reached if v in needed]
    random.shuffle(paths)
    return Tree(root, tuple(path[::-1] if upward else path for path in paths))


def _hops(topology: Topology, upward: bool) -> dict[tuple[int, int], list[Path]]:
    """Return paths by (vertex nearer the root, farther vertex), from near to far, direct or through the switch."""
    hops: dict[tuple[int, int], list[Path]] = {}
    switches = [v.id for v in topology.vertices if topology.is_transit(v.id)]
    for near in topology.ranks:
        for far in topology.ranks:
            for path in [(near, far)] + [(near, s, far) for s in switches]:
                flow = path[::-1] if upward else path
                if near != far and all(arc in topology.link for arc in itertools.pairwise(flow)):
                    hops.setdefault((near, far), []).append(path)
    return hops
