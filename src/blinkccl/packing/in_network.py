"""AllReduce where some transit vertices combine and multicast too: NVLink SHARP, SHARP of InfiniBand.

Such a vertex may be an inner vertex of a tree, or its root, or not be in it at all. So a column is an in-tree and an
out-tree over the terminals and *some* of the combining vertices: over any set of them the cheapest pair is found as
without, with its vertices as terminals. The sets are tried all, which is exact, and why there may be few of them.
ForestColl (arXiv 2402.06787) has the same bound by a flow problem in which switches need not keep what they get.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

from blinkccl.errors import PackingError, UnsupportedError
from blinkccl.packing.columns import Column, ExactPacking, Oracle, Prices, pack_columns
from blinkccl.packing.network import FlowNetwork, Hops
from blinkccl.packing.oracles import column_of, in_and_out_oracle, loads_of

#: Sets of combining vertices times terminals, at most: two servers of 16 take a second, three of 24 would take twenty.
MOST_WORK = 128


def in_network_allreduce(network: FlowNetwork, combining: Sequence[int], target: Fraction) -> ExactPacking:
    """The exact optimum; payloads are (root, hops of the in-tree, of the out-tree).

    ``target`` is a proved upper bound. Where it is not reached, prices prove the optimum. UnsupportedError for more
    than :data:`MOST_WORK`; PackingError if terminals are not joined.
    """
    if network.terminals << len(combining) > MOST_WORK:
        raise UnsupportedError(
            f"{len(combining)} switches that combine among {network.terminals} ranks are "
            f"{network.terminals << len(combining):,} trees to look at a time; at most {MOST_WORK} are"
        )
    return pack_columns(network.capacity, [Fraction(1)], _oracle(network, combining), target=target)


def _oracle(network: FlowNetwork, combining: Sequence[int]) -> Oracle:
    sets = [some for size in range(len(combining) + 1) for some in itertools.combinations(combining, size)]
    parts = [_Renumbered(network, some) for some in sets]

    def oracle(prices: Prices) -> list[Column]:
        return [column for part in parts for column in part.columns(prices)]

    return oracle


class _Renumbered:
    """The network with some transit vertices as terminals, which have to be the first."""

    def __init__(self, network: FlowNetwork, terminals: Sequence[int]) -> None:
        others = [v for v in range(network.terminals, network.n) if v not in terminals]
        self.old = (*range(network.terminals), *terminals, *others)
        self.new = {old: new for new, old in enumerate(self.old)}
        arcs = tuple(sorted((self.new[u], self.new[v], c) for u, v, c in network.arcs))
        self.oracle = in_and_out_oracle(FlowNetwork(network.n, network.terminals + len(terminals), arcs))
        self.joined = not terminals or self._is_joined()

    def _is_joined(self) -> bool:
        """Whether these vertices reach each other and the terminals; else no tree is over them."""
        try:
            self.oracle({})
        except PackingError:
            return False
        return True

    def columns(self, prices: Prices) -> Iterator[Column]:
        if not self.joined:
            return
        for column in self.oracle({(self.new[u], self.new[v]): price for (u, v), price in prices.items()}):
            root, up, down = column.payload
            ways = self._back(up), self._back(down)
            yield column_of(0, loads_of(ways[0] + ways[1]), (self.old[root], *ways))

    def _back(self, hops: Hops) -> Hops:
        return tuple(tuple(self.old[v] for v in hop) for hop in hops)
