"""Blink's claims on its features, and its printed errors: E1, E3 to E6 and E8.

Errors that affect a claim are in that claim's row: E2 in B16, E7 in B18, E9 in B36.
"""

from __future__ import annotations

from fractions import Fraction

from blinkccl.collectives.ops import OPS
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.formats.registry import FORMATS
from blinkccl.trees.algorithms.blink import one_root_optimum
from blinkccl.trees.algorithms.hybrid import hybrid_split
from blinkccl.trees.packing.network import FlowNetwork
from blinkccl.trees.packing.oracles import minimum_arborescence
from blinkccl.trees.packing.undirected import most_central
from blinkccl.units import GB
from reproduction.blink_graph import allreduce_optimum, broadcast_optimum, network, ring_allreduce, rings
from reproduction.blink_microbenchmarks import COSTS, throughput
from reproduction.blink_protocols import PCIE_GB_PER_S, SPLIT_BASIS, eq_8_as_printed, nvlink_gb_per_s, t_dpa_s
from reproduction.claim import BY_CONSTRUCTION, Context, Page, Value
from reproduction.jobs import EIGHT, MB, connected_allocations, plan, topology_of

PAGE = Page("A")

#: NCCL 2.4's reductions and collectives.
NCCL_REDUCTIONS = ("sum", "prod", "max", "min")
NCCL_COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter")


@PAGE.claim("B35", "§1, §2.3, §4.1", agrees=BY_CONSTRUCTION)
def _features(_: Context) -> tuple[Value, ...]:
    """Blink probes links at run time, generates CUDA code for NCCL's collectives and reductions, and is preloaded under
    NCCL's API by LD_PRELOAD, without changes to programs.

    This package was made to do the same, which proves nothing about Blink. topology/probe.py probes links; NCCL's API
    is libblink.so, which is preloaded. Both and the generated code are tested on CPUs, against a double of CUDA's
    driver; on a GPU they have not run yet.
    """
    basis = "registries of this package"
    return (
        Value("NCCL's reduction functions", 4, sum(name in OPS for name in NCCL_REDUCTIONS), basis=basis),
        Value("NCCL's collectives", 5, sum(name in COLLECTIVES for name in NCCL_COLLECTIVES), basis=basis),
        Value("formats with generated CUDA code", 1, int("cuda" in FORMATS), basis=basis),
    )


@PAGE.claim("B3", "§1, Fig 3")
def _job_sizes(_: Context) -> tuple[Value, ...]:
    """Among 40,000 multi-GPU jobs 3, 5, 6 or 7 GPUs on one server are common.

    The trace of that cluster was not published.
    """
    return ()


@PAGE.claim("B36", "§4.1", wrong=True)
def _gathering(_: Context) -> tuple[Value, ...]:
    """Gather is the inverse of Broadcast, and AllGather is AllReduce without a reduction function.

    E9: no operation reduces data toward a root in a Gather. So Gather is a flow and no reversed Broadcast (that is
    Reduce), and can be faster. AllGather through one root is slower than equal trees from every rank (arXiv
    2402.06787).
    """
    best = {name: float(plan("optimal", "dgx-1v", name).rate) for name in ("broadcast", "gather", "allgather")}
    links = network("dgx-1v", EIGHT)
    through_root = float(8 * one_root_optimum(links, most_central(links)))
    basis = "optimal plans, 8 GPUs of a DGX-1V"
    return (
        Value("Gather; as the inverse of Broadcast", best["broadcast"], best["gather"], "lanes", basis=basis),
        Value("AllGather, equal trees from every rank", None, best["allgather"], "lanes", basis=basis),
        Value("AllGather as AllReduce goes, through one root", None, through_root, "lanes", basis="its exact optimum"),
    )


@PAGE.claim("E1", "§3.1 and §3.2.1, Eq 2 and 5", wrong=True)
def _strictly_below(_: Context) -> tuple[Value, ...]:
    """The load of a link is strictly less than its capacity.

    With < no link may be full, and thus no cut: Eq 5 with weights of 0 or 1 leaves two of six trees. The relation must
    be ≤. The κ of Eq 2 and 5 also needs the index of the link.
    """
    links = network("dgx-1v", EIGHT)
    # With weights of 0 or 1, "<" leaves a lane of each link empty.
    reduced = FlowNetwork(links.n, links.terminals, tuple((u, v, c - 1) for u, v, c in links.arcs if c > 1))
    basis = "minimum cut of what Eq 5 as printed leaves"
    return (Value("trees on 8 GPUs of a DGX-1V", 6, broadcast_optimum(reduced), "lanes", basis=basis),)


@PAGE.claim("E3", "§3.3", wrong=True)
def _directed_for_both(_: Context) -> tuple[Value, ...]:
    """The packing for Broadcast serves AllReduce in both directions.

    Directed trees already use both directions of a link, so reduce and broadcast would share them and be slower than
    NCCL's rings. The text's “undirected graph” is essential; Eq 1–7 lack it.
    """
    half = Fraction(broadcast_optimum(network("dgx-1v", EIGHT)), 2)
    against_rings = [
        Fraction(broadcast_optimum(network("dgx-1v", gpus)), 2) / ring_allreduce(Fraction(count), len(gpus))
        for gpus in connected_allocations("dgx-1v")
        if (count := rings("dgx-1v", gpus))
    ]
    right = allreduce_optimum("dgx-1v", EIGHT)
    basis = "half of the directed packing; partitions"
    return (
        Value("AllReduce of 8 GPUs by the 6 directed trees", float(half), float(right), "lanes", basis=basis),
        Value("these 6 against rings, 8 GPUs", None, float(against_rings[-1]), "×", basis=basis),
        Value("such trees against rings, least of 46", None, float(min(against_rings)), "×", basis=basis),
    )


@PAGE.claim("E4", "§3.2", wrong=True)
def _spanning_tree(_: Context) -> tuple[Value, ...]:
    """Each iteration takes the minimum weight spanning tree.

    On a directed graph that must be a minimum-cost arborescence (Chu-Liu 1965, Edmonds 1967); growing a tree by the
    cheapest edge is not enough.
    """
    # Prim's tree from vertex 0 of a directed triangle, beside the cheapest arborescence.
    cost: list[list[int | None]] = [[None, 4, 6], [None, None, 18], [None, 1, None]]
    parent = minimum_arborescence(3, 0, cost)
    assert parent is not None
    least = sum(cost[u][v] or 0 for v, u in enumerate(parent) if u >= 0)
    reached, grown = {0}, 0
    while len(reached) < 3:
        price, v = min((w, v) for u in sorted(reached) for v, w in enumerate(cost[u]) if w and v not in reached)
        reached.add(v)
        grown += price
    what = "cost of a least spanning tree, grown edge by edge, against the least arborescence"
    return (Value(what, grown, least, basis="arcs 0→1: 4, 0→2: 6, 1→2: 18, 2→1: 1"),)


@PAGE.claim("E8", "§3.2, §3.2.1", wrong=True)
def _printed_weights(_: Context) -> tuple[Value, ...]:
    """Trees of multiplicative weights have weights up to 0.899 and up to 148 of 1000 MB.

    Both together mean a rate of 6.07, but links carry only 6: the weights were rounded, or not scaled to fit.
    """
    basis = "the weight × 1000 MB / the data of the tree, all as printed"
    return (
        Value("rate that 0.899 for 148 MB of 1000 MB implies", 6, 0.899 * 1000 / 148, "lanes", basis=basis),
        Value("rate that 0.002 for 0.33 MB of 1000 MB implies", 6, 0.002 * 1000 / 0.33, "lanes", basis=basis),
    )


@PAGE.claim("E5", "§3.4, Eq 8", wrong=True)
def _negative_part(context: Context) -> tuple[Value, ...]:
    """Eq 8 says how much data goes over PCIe, for any size.

    Below T_dpa × BW_NVL it gives a negative amount: NVLink finishes before peer access is switched. The part is 0
    there, and hybrid transfers gain nothing.
    """
    values = []
    for ranks in (3, 8):
        nvlink, wait_s = nvlink_gb_per_s(context, ranks), t_dpa_s(context, ranks)
        printed = eq_8_as_printed(MB, PCIE_GB_PER_S, nvlink, wait_s)
        computed = hybrid_split(MB, PCIE_GB_PER_S, nvlink, wait_s).pcie_bytes
        what = f"of 1 MB to {ranks} GPUs, over PCIe"
        values.append(Value(what, float(printed / MB), float(computed / MB), "MB", basis=SPLIT_BASIS))
        least = wait_s * nvlink * GB / MB
        values.append(Value(f"least data for PCIe, {ranks} GPUs", None, float(least), "MB", basis=SPLIT_BASIS))
    return tuple(values)


@PAGE.claim("E6", "§2.2 and A.1.1, §3.5", wrong=True)
def _two_answers(context: Context) -> tuple[Value, ...]:
    """Reduce+forward reaches around 18 GB/s; a DGX-2's GPU has 150 GB/s bidirectional.

    Fig 7 has 21 to 19 GB/s for the same test. Six NVLinks of 25 GB/s are 150 GB/s in each direction. B32 has a third
    contradiction: means of 51 % and 31 % for the same quantity.
    """
    lanes = [link.gb_per_s for link in topology_of("dgx-2").links if link.kind == "nvlink"]
    return (
        *(
            Value(
                f"reduce+forward, {gpus} GPUs, 1000 MB, as A.1.1 has it",
                18,
                throughput(context, "chain-reduce-forward", gpus, 1000 * MB),
                "GB/s",
                basis=COSTS,
            )
            for gpus in (3, 8)
        ),
        Value("a DGX-2's GPU to its switches, one way, by “bidirectional”", 75, min(lanes), "GB/s", basis="catalog"),
    )
