"""The bound proved by a certificate, recomputed from the certificate, the topology and the collective.

Each argument can be checked by hand:

* **cut, ratio**: data in ``side`` that is needed outside must cross the links that leave ``side``. This holds for any
  schedule, also if relays copy or reduce.
* **partition** (allreduce): every element crosses between k blocks at least 2(k−1) times: k−1 times before one block
  has the sum, and k−1 times after. The links between the blocks, both directions together, carry all crossings.
* **dual**: every link has a price. At rate x, all links together sell at most ``value`` per second, and x × S costs at
  least ``cost`` per S. Hence x ≤ value / cost. ``cost`` prices unicast store-and-forward trees over the ranks.
  If the topology has GPUs outside the job, the claim holds for relays that pass on unicast data. Relays that copy or
  reduce may be faster (Steiner packing); only a cut or a partition bounds those.
* **dual with sets**: prices for trees that may also contain switches with in-network reduction. These switches and the
  ranks are the *joints*. Every set holds a rank. So data sent to all ranks enters each set without the root, and data
  reduced from all ranks leaves it. Every hop between joints must cost at least the weight of the sets that it enters,
  and at least the weight of the sets that it leaves. Then one S with root r costs at least the weight of all sets
  without r. ``cost`` is the cost of the cheapest possible root.

Sources: Edmonds 1973; Tutte 1961, Nash-Williams 1961; arXiv 2402.06787; LP duality. Minimum arborescences
of all roots at once are the dual of Fulkerson 1974, found by Chu-Liu's and Edmonds' contractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from math import lcm

from blinkccl.proof.meaning import Block, Requirement
from blinkccl.proof.reading import Arc, ClaimedProof, GivenLinks

Ranks = tuple[int, ...]
#: Cost from every tail to every head; None without a path.
Costs = list[list[int | None]]


def refute(
    claim: ClaimedProof, collective: str, items: Mapping[Block, Requirement], ranks: Ranks, network: GivenLinks
) -> tuple[Fraction | None, list[str]]:
    """The bound proved by the certificate (None if it proves none), and every false statement in it.

    Cost: O(links) for cuts and partitions; N Dijkstra runs and O(N³) for the contractions of a dual.
    """
    for vertex in (v for group in claim.vertices for v in group):
        if vertex not in network.kinds:
            return None, [f"certificate: {vertex} is no vertex of the topology"]
    if claim.kind == "partition":
        return _partition(claim, collective, ranks, network)
    if claim.kind == "dual":
        return _dual(claim, items, ranks, network)
    return _cut(claim, items, network)


def _cut(
    claim: ClaimedProof, items: Mapping[Block, Requirement], network: GivenLinks
) -> tuple[Fraction | None, list[str]]:
    side = frozenset(claim.vertices[0])
    if len(side) != len(claim.vertices[0]):
        return None, ["certificate.side: names a vertex twice"]
    capacity = sum(c for (u, v), c in network.capacity.items() if u in side and v not in side)
    demand = sum(
        (
            item.weight
            for item in items.values()
            if any(s in side for s in item.sources) and any(k not in side for k in item.keepers)
        ),
        Fraction(0),
    )
    wrong = _differing(claim, {"capacity": Fraction(capacity), "demand": demand})
    if demand == 0:
        return None, [*wrong, "certificate.side: nothing needs to leave it, so the cut bounds no rate"]
    if (claim.kind == "cut") != (demand == 1):
        wrong.append(
            f"certificate.kind: a demand of {demand} makes it a {'cut' if demand == 1 else 'ratio'}, not a {claim.kind}"
        )
    return capacity / demand, wrong


def _partition(
    claim: ClaimedProof, collective: str, ranks: Ranks, network: GivenLinks
) -> tuple[Fraction | None, list[str]]:
    if collective != "allreduce":
        return None, [f"certificate.kind: a partition bounds allreduce only, this is {collective}"]
    blocks = claim.vertices
    if len(blocks) < 2:
        return None, [f"certificate.blocks: expected at least two blocks, got {len(blocks)}"]
    home: dict[int, int] = {}
    for i, block in enumerate(blocks):
        for vertex in block:
            if vertex in home:
                return None, [f"certificate.blocks[{i}]: vertex {vertex} lies in block {home[vertex]} too"]
            home[vertex] = i
        if not any(rank in block for rank in ranks):
            return None, [f"certificate.blocks[{i}]: holds no rank of the job, so nothing has to reach it"]
    missing = [vertex for vertex in network.kinds if vertex not in home]
    if missing:
        return None, [f"certificate.blocks: vertices {missing[:8]} lie in no block; each must lie in one"]
    capacity = Fraction(sum(c for (u, v), c in network.capacity.items() if home[u] != home[v]), 2)
    return capacity / (len(blocks) - 1), _differing(claim, {"capacity": capacity})


def _dual(
    claim: ClaimedProof, items: Mapping[Block, Requirement], ranks: Ranks, network: GivenLinks
) -> tuple[Fraction | None, list[str]]:
    stated: dict[Arc, Fraction] = {}
    for i, (u, v, price) in enumerate(claim.prices):
        where = f"certificate.prices[{i}]: {u} → {v}"
        if (u, v) not in network.capacity:
            return None, [f"{where} is no link of the topology"]
        if (u, v) in stated:
            return None, [f"{where} is priced twice"]
        if price < 0:
            return None, [f"{where} has a negative price {price}; prices must be ≥ 0"]
        stated[u, v] = price
    value = sum((network.capacity[arc] * price for arc, price in stated.items()), Fraction(0))
    if claim.sets:
        return _with_sets(claim, items, ranks, network, stated, value)
    # Integers over one common denominator are faster than Fractions; the division follows at the end.
    scale = lcm(*(price.denominator for price in stated.values())) if stated else 1
    scaled = cheapest_service(items, ranks, network, {a: int(p * scale) for a, p in stated.items()})
    if scaled is None:
        return None, ["certificate: some data cannot reach its destination on these links, so no price bounds it"]
    cost = scaled / scale
    wrong = _differing(claim, {"value": value, "cost": cost})
    if cost == 0:
        return None, [*wrong, "certificate.prices: the data of a call costs 0 at these prices: they prove no bound"]
    return value / cost, wrong


def combining(network: GivenLinks) -> frozenset[int]:
    """Vertices that may stand in a tree beside ranks: switches with ``combines`` in the topology."""
    return frozenset(vertex for vertex in network.combining if network.kinds[vertex] == "switch")


def _with_sets(
    claim: ClaimedProof,
    items: Mapping[Block, Requirement],
    ranks: Ranks,
    network: GivenLinks,
    prices: Mapping[Arc, Fraction],
    value: Fraction,
) -> tuple[Fraction | None, list[str]]:
    joints = (*ranks, *sorted(combining(network) - set(ranks)))
    for key, family in claim.sets.items():
        for i, (weight, some) in enumerate(family):
            where = f"certificate.{key}[{i}]"
            if weight <= 0 or len(set(some)) != len(some):
                return None, [f"{where}: expected a positive weight and different vertices"]
            if not set(some) & set(ranks) or not set(some) <= set(joints):
                return None, [f"{where}: expected ranks and switches with in-network reduction, at least one rank"]
    too_cheap = _too_cheap(claim, joints, network, prices)
    if too_cheap:
        return None, [too_cheap]
    cost = sum((item.weight * _least_weight(claim, item, joints) for item in items.values()), Fraction(0))
    wrong = _differing(claim, {"value": value, "cost": cost})
    if cost == 0:
        return None, [*wrong, "certificate: the weights of the sets sum to 0 for some root, so they prove no bound"]
    return value / cost, wrong


def _too_cheap(claim: ClaimedProof, joints: Ranks, network: GivenLinks, prices: Mapping[Arc, Fraction]) -> str:
    """A sentence on the first hop that costs less than its sets weigh, or "". The bits of integers are sets."""
    families = [claim.sets.get(key, ()) for key in ("entered", "left")]
    scale = lcm(*(price.denominator for price in prices.values()), *(w.denominator for f in families for w, _ in f))
    costs = hop_costs(joints, network, {arc: int(price * scale) for arc, price in prices.items()})
    tables: list[dict[int, list[int]]] = []
    place = {vertex: i for i, vertex in enumerate(joints)}
    for family in families:
        table: dict[int, list[int]] = {}
        for number, (weight, some) in enumerate(family):
            row = table.setdefault(int(weight * scale), [0] * len(joints))
            for vertex in some:
                row[place[vertex]] += 1 << number
        tables.append(table)
    for i, costs_from in enumerate(costs):
        for j, cost in enumerate(costs_from):
            if i == j or cost is None:
                continue
            entered = sum(weight * (holds[j] & ~holds[i]).bit_count() for weight, holds in tables[0].items())
            left = sum(weight * (holds[i] & ~holds[j]).bit_count() for weight, holds in tables[1].items())
            if cost < max(entered, left):
                return (
                    f"certificate: hop {joints[i]} → {joints[j]} has price {Fraction(cost, scale)}, but sets that it "
                    f"{'enters' if entered > left else 'leaves'} need at least {Fraction(max(entered, left), scale)}"
                )
    return ""


def _least_weight(claim: ClaimedProof, item: Requirement, joints: Ranks) -> Fraction:
    """Least cost of an item: the sets without its root that must be entered for a keeper, or left by a source."""
    roots: Ranks = joints
    if len(item.sources) == 1:
        roots = item.sources
    elif len(item.keepers) == 1:
        roots = item.keepers
    total, spared = Fraction(0), dict.fromkeys(roots, Fraction(0))
    for key, ends in (("entered", frozenset(item.keepers)), ("left", frozenset(item.sources))):
        for weight, some in claim.sets.get(key, ()):
            if not ends.isdisjoint(some):
                total += weight
                for vertex in some:
                    if vertex in spared:
                        spared[vertex] += weight
    return total - max(spared.values())


def _differing(claim: ClaimedProof, truth: dict[str, Fraction]) -> list[str]:
    return [
        f"certificate.{key}: {claim.parts[key]} is stated, recomputed {number}"
        for key, number in truth.items()
        if claim.parts[key] != number
    ]


def cheapest_service(
    items: Mapping[Block, Requirement], ranks: Ranks, network: GivenLinks, prices: Mapping[Arc, int]
) -> Fraction | None:
    """The least cost of one S under ``prices`` (absent links are free); None if some item cannot be served.

    Every item has one rank or all ranks as sources, and one or all as keepers. Its cost is that of a shortest path, of
    an out-arborescence, of an in-arborescence, or of both with the root at which their sum is least.
    """
    services = _Services(hop_costs(ranks, network, prices))
    position = {rank: i for i, rank in enumerate(ranks)}
    total = Fraction(0)
    for item in items.values():
        source, keeper = position[item.sources[0]], position[item.keepers[0]]
        if len(item.sources) == 1:
            cost = services.direct[source][keeper] if len(item.keepers) == 1 else services.out[source]
        else:
            cost = services.into[keeper] if len(item.keepers) == 1 else services.joint
        if cost is None:
            return None
        total += item.weight * cost
    return total


class _Services:
    """Costs of the cheapest paths and trees over given hops, by position; each is computed at its first use."""

    def __init__(self, hops: Costs) -> None:
        self.hops = hops

    @cached_property
    def direct(self) -> Costs:
        return _closure(self.hops)

    @cached_property
    def out(self) -> list[int | None]:
        return arborescence_costs(self.hops)

    @cached_property
    def into(self) -> list[int | None]:
        return arborescence_costs([list(row) for row in zip(*self.hops, strict=True)])

    @cached_property
    def joint(self) -> int | None:
        both = [a + b for a, b in zip(self.out, self.into, strict=True) if a is not None and b is not None]
        return min(both, default=None)


def hop_costs(ranks: Ranks, network: GivenLinks, prices: Mapping[Arc, int]) -> Costs:
    """Cost of the cheapest hop between ranks, by position, through vertices that are no ranks; None without a path."""
    leaving: dict[int, list[tuple[int, int]]] = {vertex: [] for vertex in network.kinds}
    for u, v in network.capacity:
        leaving[u].append((v, prices.get((u, v), 0)))
    position = {rank: i for i, rank in enumerate(ranks)}
    return [_hops_from(rank, leaving, position) for rank in ranks]


def _hops_from(start: int, leaving: dict[int, list[tuple[int, int]]], position: dict[int, int]) -> list[int | None]:
    best: dict[int, int] = {start: 0}
    settled: dict[int, int] = {}
    heap = [(0, start)]
    while heap:
        cost, u = heappop(heap)
        if u in settled:
            continue
        settled[u] = cost
        if u in position and u != start:
            continue  # A hop ends at the first rank; beyond it begins the next hop.
        for v, price in leaving[u]:
            if v not in best or cost + price < best[v]:
                best[v] = cost + price
                heappush(heap, (cost + price, v))
    return [settled.get(rank) for rank in position]


def _closure(costs: Costs) -> Costs:
    """Cost of the cheapest path between ranks over any number of hops (Floyd 1962, Warshall 1962)."""
    size = len(costs)
    best = [list(row) for row in costs]
    for k in range(size):
        via = best[k]
        for row in best:
            first = row[k]
            if first is None:
                continue
            for j, (last, known) in enumerate(zip(via, row, strict=True)):
                if last is not None and (known is None or first + last < known):
                    row[j] = first + last
    return best


def arborescence_costs(costs: Costs) -> list[int | None]:
    """Cost of the cheapest spanning out-arborescence from every root; None if the root cannot reach every vertex.

    ``costs[u][v]`` ≥ 0 is the cost of u → v. One series of contractions serves all roots. Each set S in it pays y(S),
    the least reduced cost of an arc into S. The cost from root r is the sum of y(S) over all S without r (Chu-Liu 1965,
    Edmonds 1967; Fulkerson 1974). Cost: O(N²) per round, at most N rounds, in practice about log N.
    """
    size = len(costs)
    # A missing arc costs more than any tree of real arcs, so a higher total means that no tree exists.
    absent = 1 + sum(c for row in costs for c in row if c is not None)
    reduced = {u: {v: absent if c is None else c for v, c in enumerate(row) if v != u} for u, row in enumerate(costs)}
    parent: list[int | None] = [None] * size
    paid = [0] * size
    while len(reduced) > 1:
        entering = _pay_cheapest(reduced, paid)
        for cycle in _cycles(entering):
            _contract(reduced, cycle, len(parent))
            for member in cycle:
                parent[member] = len(parent)
            parent.append(None)
            paid.append(0)
    total = sum(paid)
    tree_costs = [total - _ancestry(root, parent, paid) for root in range(size)]
    return [cost if cost < absent else None for cost in tree_costs]


def _pay_cheapest(reduced: dict[int, dict[int, int]], paid: list[int]) -> dict[int, int]:
    """Subtract the cheapest arc into each set from all arcs into it, add it to ``paid``, and return its tail by set."""
    entering = {}
    for v in reduced:
        price, tail = min((row[v], u) for u, row in reduced.items() if u != v)
        entering[v] = tail
        if price:
            paid[v] += price
            for u, row in reduced.items():
                if u != v:
                    row[v] -= price
    return entering


def _cycles(entering: dict[int, int]) -> list[list[int]]:
    """The cycles of a graph in which exactly one arc enters each vertex."""
    visited: dict[int, int] = {}
    cycles = []
    for start in entering:
        vertex = start
        while vertex not in visited:
            visited[vertex] = start
            vertex = entering[vertex]
        if visited[vertex] == start:
            cycle = [vertex]
            while entering[cycle[-1]] != vertex:
                cycle.append(entering[cycle[-1]])
            cycles.append(cycle)
    return cycles


def _contract(reduced: dict[int, dict[int, int]], cycle: list[int], name: int) -> None:
    """Contract the vertices of ``cycle`` into one vertex, ``name``."""
    rows = [reduced.pop(member) for member in cycle]
    leaving = {v: min(row[v] for row in rows) for v in reduced}
    for row in reduced.values():
        row[name] = min(row.pop(member) for member in cycle)
    reduced[name] = leaving


def _ancestry(vertex: int, parent: list[int | None], paid: list[int]) -> int:
    """Total paid by ``vertex`` and all sets that contain it."""
    total, at = 0, vertex
    while True:
        total += paid[at]
        above = parent[at]
        if above is None:
            return total
        at = above
