"""What AllReduce could reach where switches add up and multicast what crosses them.

Plans of this package pass through switches and add up at ranks, so this is no plan that an engine runs: it is the
bound beside one, with the trees that reach it and prices that prove it. NVSwitches of Hopper and later combine (NVLink
SHARP), and InfiniBand's switches with SHARP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.algorithms.bounds import price_certificate
from blinkccl.algorithms.rank_network import rank_network_of
from blinkccl.forest.model import Cut, Dual, Path
from blinkccl.packing.in_network import in_network_allreduce
from blinkccl.packing.maxflow import min_cut
from blinkccl.packing.network import FlowNetwork
from blinkccl.topology.model import Topology


@dataclass(frozen=True, slots=True)
class SwitchTree:
    """A share of the data: combined over ``up`` at ``root``, a rank or a switch, and spread over ``down``."""

    weight: Fraction
    root: int
    up: tuple[Path, ...]
    down: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class InSwitch:
    """The best rate, in units of the topology.

    ``proof``: a cut that all data leaves once, or prices that make every pair of trees, through any switch, too dear.
    """

    rate: Fraction
    gb_per_s: float
    switches: tuple[int, ...]
    trees: tuple[SwitchTree, ...]
    proof: Cut | Dual


def in_switch_allreduce(
    topology: Topology, ranks: Sequence[int], switches: Sequence[int] | None = None
) -> InSwitch | None:
    """The optimum with what ``switches`` combine (default: those that say so); None where there is none of them.

    UnsupportedError for more switches than can be planned with. ForestColl (arXiv 2402.06787): 450 GB/s for the eight
    GPUs of an H100 server, 200 for two DGX A100.
    """
    view = rank_network_of(topology, tuple(ranks))
    known = [v.id for v in topology.vertices if v.combines] if switches is None else switches
    combining = [view.ids.index(switch) for switch in known if switch in view.ids]
    if not combining:
        return None
    narrowest, side = _narrowest_cut(view.network)
    found = in_network_allreduce(view.network, combining, narrowest)
    trees = []
    for column, weight in found.columns:
        root, up, down = column.payload
        ways = (tuple(map(view.path, up)), tuple(map(view.path, down)))
        trees.append(SwitchTree(weight / found.rate, view.ids[root], *ways))
    gb_per_s = float(found.rate) * topology.unit_gb_per_s
    if found.rate == narrowest:
        real = frozenset(view.side(side))
        capacity = sum(x.capacity for x in topology.links if x.src in real and x.dst not in real)
        proof: Cut | Dual = Cut(tuple(sorted(real)), Fraction(capacity), Fraction(1))
    else:
        proof = price_certificate(view, found.prices, found.bound)
    return InSwitch(found.rate, gb_per_s, tuple(view.ids[v] for v in combining), tuple(trees), proof)


def _narrowest_cut(network: FlowNetwork) -> tuple[Fraction, tuple[int, ...]]:
    """The narrowest cut between terminals, and its side: what all of the data must leave, combined or not."""
    pairs = [pair for other in range(1, network.terminals) for pair in ((0, other), (other, 0))]
    value, side = min((min_cut(network, *pair) for pair in pairs), key=lambda found: found[0])
    return Fraction(value), side
