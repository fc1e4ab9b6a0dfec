"""All-to-all: the greatest equal flow between every ordered pair of terminals at once, exactly.

A linear program over flows aggregated by source (N·|arcs| variables instead of N²·|arcs|). Several commodities
have no integrality theorem, so the numbers are the LP's; they are rounded to Fractions with small denominators,
re-checked exactly against conservation, capacities and the prices' bound, and refused if they do not meet.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.errors import InternalError, PackingError
from blinkccl.packing.network import Arc, FlowNetwork, followed
from blinkccl.packing.oracles import cheapest_ways
from blinkccl.packing.solver import Entries, Model, solve_with_duals

LARGEST_DENOMINATOR = 5000


@dataclass(frozen=True, slots=True)
class Multiflow:
    """``rate`` per ordered pair, prices that prove it, and each pair's paths: their units sum to ``rate × scale``."""

    rate: Fraction
    scale: int
    prices: dict[Arc, Fraction]
    paths: dict[Arc, list[UnitPath]]


def all_to_all(network: FlowNetwork) -> Multiflow:
    """The maximum concurrent flow of equal demands between all terminals; PackingError if they are not connected."""
    rate, flows, raw_prices = _solved(network)
    if rate < 1e-9:
        raise PackingError("some terminal cannot reach another")
    prices = _exact_prices(network, raw_prices, rate)
    bound = price_bound(network, prices)
    exact = _exact_flows(network, flows, bound)
    if exact is None:
        raise InternalError(f"the all-to-all flow of about {rate:.6f} has no small exact form under {bound}")
    scale, per_source = exact
    units = int(bound * scale)
    paths: dict[Arc, list[UnitPath]] = {}
    for source, flow in enumerate(per_source):
        backward = {(v, u): f for (u, v), f in flow.items()}
        supply = {t: units for t in range(network.terminals) if t != source}
        for sink, ways in decompose(backward, supply, source).items():
            paths[source, sink] = [(way[::-1], width) for way, width in ways]
    return Multiflow(bound, scale, prices, paths)


def price_bound(network: FlowNetwork, prices: Mapping[Arc, Fraction]) -> Fraction:
    """Σ c·y / Σ over ordered pairs of their distance under y: no equal all-to-all flow is faster."""
    value = sum((network.capacity[arc] * y for arc, y in prices.items()), Fraction(0))
    cost = _service_cost(network, prices)
    if cost <= 0:
        raise InternalError("prices that cost nothing prove nothing")
    return value / cost


def _service_cost(network: FlowNetwork, prices: Mapping[Arc, Fraction]) -> Fraction:
    """What it costs under ``prices`` to send one unit between every ordered pair of terminals."""
    terminals = range(network.terminals)
    distances = [cheapest_ways(network, prices, source)[0] for source in terminals]
    return sum((distances[s][t][0] for s in terminals for t in terminals), Fraction(0))


def _solved(network: FlowNetwork) -> tuple[float, list[dict[Arc, float]], dict[Arc, float]]:
    """The LP: columns are the flow of each source on each arc, then the rate; rows conservation, then capacity."""
    arcs = [(u, v) for u, v, _ in network.arcs]
    count, sources = len(arcs), network.terminals
    hop_cost = 1e-6  # among optima prefer short ways; too small to move the optimum, which is re-checked
    columns: list[Entries] = []
    for s in range(sources):
        for e, (u, v) in enumerate(arcs):
            column = {sources * network.n + e: 1}
            if u != s:
                column[s * network.n + u] = -1
            if v != s:
                column[s * network.n + v] = 1
            columns.append(column)
    columns.append({s * network.n + t: -1 for s in range(sources) for t in range(sources) if t != s})
    # A source's own conservation row stays empty (0 = 0): its supply is whatever the others take.
    lower: list[int | None] = [0] * (sources * network.n) + [None] * count
    upper: list[int | None] = [*[0] * (sources * network.n), *(c for _, _, c in network.arcs)]
    cost = [hop_cost / max(1, count)] * (sources * count) + [-1.0]
    values, duals = solve_with_duals(Model(columns, lower, upper, cost))
    flows = [
        {arcs[e]: values[s * count + e] for e in range(count) if values[s * count + e] > 1e-9} for s in range(sources)
    ]
    prices = {arc: max(0.0, -duals[sources * network.n + e]) for e, arc in enumerate(arcs)}
    return values[-1], flows, prices


def _exact_prices(network: FlowNetwork, raw: Mapping[Arc, float], rate: float) -> dict[Arc, Fraction]:
    """The rounding of the duals, normalised to the largest, that proves the least bound."""
    top = max(raw.values())
    best: tuple[Fraction, dict[Arc, Fraction]] | None = None
    for denominator in (1, 2, 3, 4, 6, 12, 60, 120, 840, LARGEST_DENOMINATOR):
        prices = {arc: Fraction(y / top).limit_denominator(denominator) for arc, y in raw.items()}
        prices = {arc: y for arc, y in prices.items() if y > 0}
        if not _service_cost(network, prices):
            continue  # every price that mattered was rounded away
        bound = price_bound(network, prices)
        if best is None or bound < best[0]:
            best = (bound, prices)
        if abs(float(bound) - rate) <= 1e-9 * rate:
            break
    assert best is not None
    return best[1]


def _exact_flows(
    network: FlowNetwork, flows: list[dict[Arc, float]], rate: Fraction
) -> tuple[int, list[dict[Arc, int]]] | None:
    """The least scale at which the rounded flows are whole and right."""
    for multiple in range(1, 1 + LARGEST_DENOMINATOR // rate.denominator):
        scale = rate.denominator * multiple
        if all(abs(x * scale - round(x * scale)) < 1e-3 for flow in flows for x in flow.values()):
            rounded = [{arc: round(x * scale) for arc, x in flow.items() if round(x * scale)} for flow in flows]
            if _right(network, rounded, int(rate * scale), scale):
                return scale, rounded
    return None


def _right(network: FlowNetwork, flows: list[dict[Arc, int]], units: int, scale: int) -> bool:
    load: dict[Arc, int] = {}
    for source, flow in enumerate(flows):
        excess = [0] * network.n
        for (u, v), f in flow.items():
            excess[u] -= f
            excess[v] += f
            load[u, v] = load.get((u, v), 0) + f
        wanted = [units if t < network.terminals else 0 for t in range(network.n)]
        if any(excess[t] != wanted[t] for t in range(network.n) if t != source):
            return False
    return all(used <= network.capacity[arc] * scale for arc, used in load.items())


# Taking a flow apart into paths.
#: Vertices from the first to the last, and how many units take this way.
UnitPath = tuple[tuple[int, ...], int]


def decompose(flow: Mapping[Arc, int], supply: Mapping[int, int], sink: int) -> dict[int, list[UnitPath]]:
    """Paths of ``supply[v]`` units from each ``v`` to ``sink`` within ``flow``; shortest ones, so without cycles."""
    left = {arc: units for arc, units in flow.items() if units > 0}
    successors: dict[int, list[int]] = {}
    for u, v in sorted(left):
        successors.setdefault(u, []).append(v)
    return {source: _paths_from(source, units, sink, left, successors) for source, units in sorted(supply.items())}


def _paths_from(
    source: int, units: int, sink: int, left: dict[Arc, int], successors: dict[int, list[int]]
) -> list[UnitPath]:
    paths: list[UnitPath] = []
    while units > 0:
        path = _shortest(source, sink, left, successors)
        width = min([units, *(left[arc] for arc in itertools.pairwise(path))])
        for arc in itertools.pairwise(path):
            left[arc] -= width
        units -= width
        paths.append((path, width))
    return paths


def _shortest(source: int, sink: int, left: Mapping[Arc, int], successors: Mapping[int, list[int]]) -> tuple[int, ...]:
    parent: dict[int, int] = {source: source}
    queue = [source]
    for u in queue:
        if u == sink:
            break
        for v in successors.get(u, ()):
            if v not in parent and left[u, v] > 0:
                parent[v] = u
                queue.append(v)
    if sink not in parent:
        raise InternalError(f"the flow from {source} to {sink} is not conserved")
    return tuple(reversed(followed(parent, sink, source)))
