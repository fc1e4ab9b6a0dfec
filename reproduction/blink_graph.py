"""Blink's claims about trees and rings on given links (§2.1, §3.1 to §3.3, §5.1): graph mathematics, exact.

No row here depends on a calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import ceil, floor, log

import numpy as np

from blinkccl.errors import TopologyError
from blinkccl.trees.algorithms.blink import ApproximatePacking, pack_multiplicative
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.ring import ring_count
from blinkccl.trees.forest.model import link_use
from blinkccl.trees.packing.maxflow import broadcast_rate
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import out_tree_oracle
from blinkccl.trees.packing.undirected import strength, undirected_widths
from reproduction.claim import Context, Page, Value
from reproduction.jobs import EIGHT, Gpus, connected_allocations, geometric_mean, plan, request
from reproduction.laboratory import speedup_values

PAGE = Page("A")

MACHINES = ("dgx-1v", "dgx-1p")
#: Width of a ring over PCIe in Fig 14, in NVLink lanes (§5.1: "half as much bandwidth as NVLink").
PCIE_LANES = Fraction(1, 2)
#: Accuracies of multiplicative weights; the paper prints none.
EPSILONS = (Fraction(1, 10), Fraction(1, 20), Fraction(1, 50))


def network(name: str, gpus: Gpus) -> FlowNetwork:
    """The NVLinks between these GPUs, in lanes."""
    job = request(name, "allreduce", gpus)
    return rank_network_of(job.network, job.ranks).network


def rings(name: str, gpus: Gpus) -> int:
    """Number of NVLink rings of NCCL 2.4, in lanes."""
    return ring_count(request(name, "allreduce", gpus))


def broadcast_optimum(links: FlowNetwork, root: int = 0) -> int:
    """The least cut between ``root`` and any other rank, in lanes."""
    return broadcast_rate(links, root)[0]


def allreduce_optimum(name: str, gpus: Gpus) -> Fraction:
    """The most undirected spanning trees, in lanes (Tutte 1961, Nash-Williams 1961)."""
    links = network(name, gpus)
    return strength(links.n, undirected_widths(links))[0]


def ring_allreduce(lanes: Fraction, ranks: int) -> Fraction:
    """Rate of an AllReduce over rings of ``lanes``: 4 rings of 8 GPUs make 32/14 (§5.1)."""
    return lanes * ranks / (2 * (ranks - 1))


def every_setting() -> Iterator[tuple[str, Gpus]]:
    """The 60 allocations of both machines."""
    return ((name, gpus) for name in MACHINES for gpus in connected_allocations(name))


@PAGE.claim("B2", "§1, Fig 2")
def _three_gpus(_: Context) -> tuple[Value, ...]:
    """On a DGX-1P, GPUs 0, 1, 3 have two NVLink rings, and GPUs 0, 1, 4 have none.

    The bars of Fig 2 are a picture; rates of trees have no printed numbers.
    """
    joined, apart = (0, 1, 3), (0, 1, 4)
    trees = "trees of optimal from GPU 0"
    return (
        Value("rings of GPUs 0, 1, 3", 2, rings("dgx-1p", joined), basis="NCCL 2.4's rule for rings"),
        Value("rings of GPUs 0, 1, 4", 0, rings("dgx-1p", apart), basis="NCCL 2.4's rule for rings"),
        Value("trees' rate, 0, 1, 3", None, _rate("dgx-1p", joined), "lanes", basis=trees),
        Value("trees' rate, 0, 1, 4", None, _rate("dgx-1p", apart), "lanes", basis=trees),
    )


def _rate(name: str, gpus: Gpus, collective: str = "broadcast", how: str = "optimal") -> float:
    return float(plan(how, name, collective, gpus).rate)


@PAGE.claim("B4", "§1, Fig 4")
def _six_gpus(_: Context) -> tuple[Value, ...]:
    """For six GPUs of a DGX-1P NCCL builds two rings and Blink three trees.

    This holds for four of the 28 sets of six: 012456, 013457, 023467, 123567.
    """
    matching = []
    for gpus in combinations(range(8), 6):
        try:
            rate = broadcast_optimum(network("dgx-1p", gpus))
        except TopologyError:  # NVLink leaves these six in parts
            continue
        if rate == 3:
            matching.append(gpus)
    trees = [len(plan("optimal", "dgx-1p", "broadcast", gpus).shares) for gpus in matching]
    counts = [rings("dgx-1p", gpus) for gpus in matching]
    return (
        Value("sets of six GPUs with three trees", None, len(matching), basis="minimum cuts of all 28 sets"),
        Value("trees of each", 3, _farthest(trees, 3), basis="optimal plans for broadcast"),
        Value("rings of each", 2, _farthest(counts, 2), basis="NCCL 2.4's rule for rings"),
    )


def _farthest(numbers: Iterable[int], wanted: int) -> int:
    """The number farthest from ``wanted``: a claim about each of them holds only if it holds for the worst."""
    return max(numbers, key=lambda number: abs(number - wanted))


@PAGE.claim("B10", "§3.1, Eq 1–3")
def _fills_the_cut(_: Context) -> tuple[Value, ...]:
    """The largest packing of arborescences reaches the minimum cut.

    Edmonds 1973. With ≤ in Eq 2 (see E1), and the same rate for every root, because NVLinks are symmetric.
    """
    least = Fraction(1)
    for name, gpus in every_setting():
        rate = plan("optimal", name, "broadcast", gpus).rate
        links = network(name, gpus)
        least = min(least, *(rate / broadcast_optimum(links, root) for root in range(links.n)))
    basis = "optimal plans for broadcast; a maximum flow from every root to every rank"
    return (Value("least rate / minimum cut, 60 allocations, every root", 1, float(least), basis=basis),)


@lru_cache(maxsize=8)
def _weights(epsilon: Fraction) -> ApproximatePacking:
    links = network("dgx-1v", EIGHT)
    return pack_multiplicative(links.capacity, out_tree_oracle(links, [0]), epsilon)


@PAGE.claim("B11", "§3.2")
def _approximation(_: Context) -> tuple[Value, ...]:
    """Multiplicative weights come within ε of the optimum in O(ln m / ε²) iterations of O(m).

    The guarantee is checked during the run. O( ) has no constant; ours stays near 1.
    """
    values = []
    for epsilon in EPSILONS:
        packing, basis = _weights(epsilon), f"multiplicative weights, ε = {epsilon}, 8 GPUs of a DGX-1V"
        rate = float(packing.rate / 6)
        values.append(Value(f"rate / optimum at ε = {epsilon}", float(1 - epsilon), rate, relation=">=", basis=basis))
        theory = log(len(network("dgx-1v", EIGHT).arcs)) / float(epsilon) ** 2
        values.append(Value(f"iterations × ε² / ln m at ε = {epsilon}", None, packing.iterations / theory, basis=basis))
    return tuple(values)


@PAGE.claim("B12", "§3.2")
def _tree_counts(_: Context) -> tuple[Value, ...]:
    """Multiplicative weights return 181 trees with weights from 0.002 to 0.899 for 8 GPUs of a DGX-1V.

    The number depends on ε and on ties, which are not stated. Ours is far above the minimum too.
    """
    packings = {epsilon: _weights(epsilon) for epsilon in EPSILONS}
    most = max(packings.values(), key=lambda packing: len(packing.columns))
    weights = [float(weight) for _, weight in most.columns]
    basis = "multiplicative weights on 8 GPUs of a DGX-1V"
    return (
        Value("trees, the most of three ε", 181, len(most.columns), basis=f"{basis}, ε = 1/10, 1/20, 1/50"),
        *(Value(f"trees at ε = {e}", None, len(packing.columns), basis=basis) for e, packing in packings.items()),
        Value("least weight of those", 0.002, min(weights), "lanes", basis=basis),
        Value("largest weight of those", 0.899, max(weights), "lanes", basis=basis),
    )


@PAGE.claim("B13", "§3.2.1", wrong=True)
def _fewest(_: Context) -> tuple[Value, ...]:
    """6 trees are the fewest for 8 GPUs of a DGX-1V; each has a rate of 1 and 166 of 1000 MB.

    6 is the fewest for weights of 0 or 1. With weights 2, 2, 1, 1 four trees have the same rate; fewer cannot, because
    four links leave the root and all must be full.
    """
    fewest = plan("optimal", "dgx-1v", "broadcast", None, "fewest-trees")
    paper = plan("blink", "dgx-1v", "broadcast")
    weights = [share.weight * paper.rate for share in paper.shares]
    whole = "blink plan for broadcast, 8 GPUs of a DGX-1V"
    return (
        Value("fewest trees of rate 6", 6, len(fewest.shares), basis="optimal plan with the fewest trees, proved"),
        Value("their rate", 6, float(fewest.rate), "lanes", basis="optimal plan with the fewest trees"),
        Value("trees of the integer program", 6, len(paper.shares), basis=whole),
        Value("largest rate of one of these", 1, float(max(weights)), "lanes", basis=whole),
        Value("of 1000 MB, through each", 166, 1000 * float(paper.shares[0].weight), "MB", 0.005, basis=whole),
    )


@PAGE.claim("B14", "§3.2.1, Eq 4–7")
def _within_five_percent(_: Context) -> tuple[Value, ...]:
    """The integer program, relaxed step by step, comes within 5 % of the optimal rate.

    Relaxation is needed: whole lanes alone are not enough for AllReduce.
    """
    parts = []
    for name, gpus in every_setting():
        optimum = {"broadcast": Fraction(broadcast_optimum(network(name, gpus)))}
        optimum["allreduce"] = allreduce_optimum(name, gpus)
        parts += [plan("blink", name, c, gpus).rate / most for c, most in optimum.items()]
    trees = [allreduce_optimum("dgx-1v", gpus) for gpus in connected_allocations("dgx-1v")]
    basis = "blink plans for broadcast and allreduce, threshold 5 %; optima by cuts and partitions"
    exact = "partitions of the 46 allocations of a DGX-1V"
    return (
        Value("least rate / optimum, 60 allocations", 0.95, float(min(parts)), relation=">=", basis=basis),
        Value("AllReduces that whole lanes cannot fill", None, sum(x.denominator > 1 for x in trees), basis=exact),
        Value("least part that whole lanes reach", None, float(min(floor(x) / x for x in trees)), basis=exact),
    )


@PAGE.claim("B15", "§3.3")
def _both_ways(_: Context) -> tuple[Value, ...]:
    """AllReduce reduces to a root and broadcasts along the same tree in reverse.

    True of undirected packings, whose rate is 24/7 on 8 GPUs and not Broadcast's 6 (see E3).
    """
    mirrored = total = 0
    for name, gpus in every_setting():
        for share in plan("blink", name, "allreduce", gpus).shares:
            assert share.reduce is not None
            assert share.broadcast is not None
            total += 1
            mirrored += sorted(p[::-1] for p in share.reduce.edges) == sorted(share.broadcast.edges)
    basis = "blink plans for allreduce, 60 allocations"
    return (
        Value("part of trees used both ways", 1, mirrored / total, basis=basis),
        Value("rate on 8 GPUs of a DGX-1V", None, _rate("dgx-1v", EIGHT, "allreduce", "blink"), "lanes", basis=basis),
    )


@PAGE.claim("B16", "§3.3, §5.1", wrong=True)
def _messages(_: Context) -> tuple[Value, ...]:
    """A process sends at least 2⌈(N−1)/N⌉ messages in an AllReduce.

    E2: the ceiling makes it 2 for every N. The bound is 2(N−1)/N, which §5.1 itself uses: 8/14 for 8 GPUs.
    """
    sent = {vertex: Fraction(0) for vertex in range(8)}
    for (src, _dst), use in link_use(plan("ring", "ring:8", "allreduce").shares).items():
        sent[src] += use
    printed = 2 * ceil(Fraction(7, 8))
    return (Value("times S that each of 8 ranks sends", printed, float(max(sent.values())), basis="a ring's plan"),)


@PAGE.claim("B23", "§5.1, Fig 14")
def _fig_14(_: Context) -> tuple[Value, ...]:
    """In theory trees are at least as fast as rings in all cases, and up to 6× as fast.

    6 is the end of the whisker, at the 95th percentile; the maximum is above it.
    """
    boxes = {(collective, name): fig_14_speedups(name, collective) for collective in FIG_14 for name in MACHINES}
    v100 = boxes["allreduce", "dgx-1v"]
    low, high = np.percentile(v100, [5, 95])
    basis = "optimal rates over NCCL 2.4's rings, a PCIe ring as half a lane"
    return (
        Value("least speed-up of all four boxes", 1, min(map(min, boxes.values())), "×", relation=">=", basis=basis),
        Value("AllReduce, V100, 95th percentile", 6, float(high), "×", basis=basis),
        Value("AllReduce, V100, 5th percentile", None, float(low), "×", basis=basis),
        Value("AllReduce, V100, largest", None, v100[-1], "×", basis=basis),
        Value("AllReduce, V100, geometric mean", None, geometric_mean(v100), "×", basis=basis),
        *(
            Value(f"{collective}, {name}, geometric mean", None, geometric_mean(box), "×", basis=basis)
            for (collective, name), box in boxes.items()
            if box is not v100
        ),
        *(value for collective, name in boxes for value in speedup_values(name, collective)),
    )


FIG_14 = ("allreduce", "broadcast")


def fig_14_speedups(name: str, collective: str) -> list[float]:
    """Speed-ups over a machine's allocations, ascending: one box of Fig 14."""
    return sorted(fig_14_speedup(name, collective, gpus) for gpus in connected_allocations(name))


def fig_14_speedup(name: str, collective: str, gpus: Gpus) -> float:
    """Theoretical speed-up of trees over rings.

    A ring broadcasts at its own rate. The text's ⌈(N−1)/N⌉ messages mean the same, because the ceiling is 1.
    """
    lanes = Fraction(rings(name, gpus)) or PCIE_LANES
    if collective == "allreduce":
        return float(allreduce_optimum(name, gpus) / ring_allreduce(lanes, len(gpus)))
    return float(broadcast_optimum(network(name, gpus)) / lanes)


@PAGE.claim("B24", "§5.2")
def _settings(_: Context) -> tuple[Value, ...]:
    """There are 46 topology settings for a DGX-1V and 14 for a DGX-1P.

    Sets that NVLink does not connect are not counted; with them there would be 53 and 17.
    """
    basis = "isomorphism classes of NVLink-connected sets of 3 to 8 GPUs"
    return (
        Value("DGX-1V", 46, len(connected_allocations("dgx-1v")), basis=basis),
        Value("DGX-1P", 14, len(connected_allocations("dgx-1p")), basis=basis),
    )
