"""What no order of summation exceeds, where links join all terminals directly: a bound by cuts.

Take any terminals A and any order, and of its groups (:mod:`~blinkccl.trees.packing.nested_groups`) the lowest with
operands on both sides. Whoever is the head of a group in some tree is sent to by all its other members, so the heads of
a group are a *clique*, linked both ways. Either all members of that group are on one side: then an operand of the other
one is a group below, and everything goes from the clique of its heads to the clique of this group's. Or they are on
both: then a head is sent to by every member of the other side, heads or not. So the widest way across A between two
cliques bounds the rate, whatever the order is, and the narrowest such A counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blinkccl.trees.packing.network import FlowNetwork

#: Networks with more are left without a bound.
MOST_CLIQUES = 500

_Clique = frozenset[int]


def order_bound(network: FlowNetwork) -> int | None:
    """An upper bound of the rate of every group; None where there are transit vertices, or too many cliques.

    Looked at are single terminals, and what links of some width join. Cost: pairs of cliques per set.
    """
    cliques = _cliques(network)
    if network.n != network.terminals or cliques is None:
        return None
    return min((_across(network, side, cliques) for side in _sides(network)), default=None)


def _cliques(network: FlowNetwork) -> list[_Clique] | None:
    near = [{v for v in network.successors[u] if (v, u) in network.capacity} for u in range(network.n)]
    found = [frozenset({v}) for v in range(network.n)]
    for clique in found:
        for v in range(max(clique) + 1, network.n):
            if clique <= near[v]:
                found.append(clique | {v})
        if len(found) > MOST_CLIQUES:
            return None
    return found


def _sides(network: FlowNetwork) -> Iterator[_Clique]:
    """Single terminals, and the components of the links that are at least so wide."""
    everybody = frozenset(range(network.n))
    seen = {everybody}
    for width in [None, *sorted(set(network.capacity.values()))]:
        left = dict.fromkeys(range(network.n))
        while left:
            side = [next(iter(left))]
            del left[side[0]]
            for u in side:
                fresh = [v for v in left if width is not None and _widest(network, u, v) >= width]
                side += fresh
                for v in fresh:
                    del left[v]
            if frozenset(side) not in seen:
                seen.add(frozenset(side))
                yield frozenset(side)


def _widest(network: FlowNetwork, u: int, v: int) -> int:
    return max(network.capacity.get((u, v), 0), network.capacity.get((v, u), 0))


def _across(network: FlowNetwork, side: _Clique, cliques: Sequence[_Clique]) -> int:
    """The widest way across between two cliques, or among the heads of a group that is on both sides."""
    inside = [clique for clique in cliques if clique <= side]
    outside = [clique for clique in cliques if not clique & side]
    ways = [max(_between(network, a, b), _between(network, b, a)) for a in inside for b in outside]
    mixed = [clique for clique in cliques if clique & side and not clique <= side]
    return max([*ways, *(_among(network, clique, side) for clique in mixed)], default=0)


def _between(network: FlowNetwork, senders: _Clique, receivers: _Clique) -> int:
    return sum(network.capacity.get((u, v), 0) for u in senders for v in receivers)


def _among(network: FlowNetwork, heads: _Clique, side: _Clique) -> int:
    """Each is sent to by all on the other side."""
    return sum(
        min(network.capacity.get((u, head), 0) for u in heads if (u in side) != (head in side)) for head in heads
    )
