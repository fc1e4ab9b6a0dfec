"""All-to-all among many terminals that are not alike, near the optimum: a linear program would take hours.

Prices of arcs grow with what they carry (Garg and Könemann 1998, Fleischer 2000). In each round every source sends a
unit to every terminal along the cheapest ways, and those that come later avoid what has become dear. The mean of a
stage's rounds is a flow. A stage begins with the prices of the one before, which have learnt which arcs are narrow.
How far from the optimum the flow is, its prices prove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blinkccl.trees.packing.network import Arc, FlowNetwork
from blinkccl.trees.packing.oracles import cheapest_ways

#: By how much the price of the fullest arc grows in a round of a stage, and the stage's part of all rounds.
STAGES = ((0.5, 0.05), (0.1, 0.15), (0.03, 0.3), (0.01, 0.5))
#: Rounds of these stages: at most, at least, and as many arcs as all rounds may look at, half a minute of a core.
MOST_ROUNDS, LEAST_ROUNDS, MOST_ARCS = 240, 20, 30_000_000
#: A flow of this part of what its prices prove is near enough: in whole units it loses up to a hundredth.
NEAR = 0.965


@dataclass(frozen=True, slots=True)
class NearFlows:
    """``by_root``: each root's flow by arc, a unit to every terminal; ``busy``: how long the fullest arc takes."""

    busy: float
    by_root: list[dict[Arc, float]]
    prices: dict[Arc, float]


def near_flows(
    network: FlowNetwork, roots: Sequence[int], orbit: Mapping[Arc, Arc], times: Mapping[Arc, int]
) -> NearFlows:
    """Flows from one root per orbit, of which each unit on an arc of orbit o is ``times[o]`` on all arcs of o.

    The prices are equal in an orbit. Where :data:`STAGES` do not come near, longer stages like the last follow.
    Cost: a Dijkstra per root and round.
    """
    market = _Market(network, roots, orbit, times)
    left = MOST_ARCS // (len(roots) * len(network.arcs))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, left))
    stages = [market.stage(growth, max(1, round(part * rounds))) for growth, part in STAGES]
    while True:
        best, left = min(stages, key=lambda flows: flows.busy), left - rounds
        if market.busy >= NEAR * best.busy or left < rounds:
            return best
        rounds = min(2 * rounds, left)
        stages.append(market.stage(STAGES[-1][0], rounds))


class _Market:
    """The price of each orbit, and the best proof so far of how long the fullest arc is ``busy`` at least."""

    def __init__(
        self, network: FlowNetwork, roots: Sequence[int], orbit: Mapping[Arc, Arc], times: Mapping[Arc, int]
    ) -> None:
        self.network, self.roots, self.orbit = network, roots, orbit
        self.room = {name: network.capacity[name] / times[name] for name in times}
        self.price = {name: 1 / room for name, room in self.room.items()}
        self.busy = 0.0

    def stage(self, growth: float, rounds: int) -> NearFlows:
        """The mean of so many rounds, and of their prices."""
        flows: list[dict[Arc, float]] = [{} for _ in self.roots]
        mean = dict.fromkeys(self.room, 0.0)
        for _ in range(rounds):
            paid = sum(self._send(root, flow, growth) for root, flow in zip(self.roots, flows, strict=True))
            worth = sum(room * self.price[name] for name, room in self.room.items())
            self.busy = max(self.busy, paid / worth)
            for name, price in self.price.items():
                self.price[name] = max(price / worth, 1e-30)
                mean[name] += price / worth
        load = dict.fromkeys(self.room, 0.0)
        for flow in flows:
            for arc, units in flow.items():
                load[self.orbit[arc]] += units / rounds
        return NearFlows(
            max(load[name] / room for name, room in self.room.items()),
            [{arc: units / rounds for arc, units in flow.items()} for flow in flows],
            {arc: mean[name] for arc, name in self.orbit.items()},
        )

    def _send(self, root: int, flow: dict[Arc, float], growth: float) -> float:
        """A unit to every terminal along a tree of cheapest ways is added to ``flow``; what that costs."""
        prices = {arc: self.price[name] for arc, name in self.orbit.items()}
        distance, parent = cheapest_ways(self.network, prices, root)
        below = {v: int(v < self.network.terminals) for v in distance}
        for v in sorted(parent, key=distance.__getitem__, reverse=True):
            if below[v]:
                u = parent[v]
                below[u] += below[v]
                flow[u, v] = flow.get((u, v), 0.0) + below[v]
                if self.busy:  # else nothing says yet how full an arc may be
                    name = self.orbit[u, v]
                    self.price[name] *= 1 + growth * below[v] / (self.room[name] * self.busy)
        return float(sum(cost for v, (cost, _) in distance.items() if v < self.network.terminals))
