"""Blink's protocols beyond one set of trees: NVLink with PCIe, DGX-2, several servers (§3.4, §3.5, §5.2.3, §5.4).

With Figs 19, 20 and 22 (b).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from blinkccl.algorithms.hybrid import hybrid_split
from blinkccl.baselines.candidate import planned
from blinkccl.baselines.nccl import AS_WRITTEN_BYTES
from blinkccl.paper import drawing
from blinkccl.paper.blink_graph import broadcast_optimum, network, ring_allreduce
from blinkccl.paper.blink_microbenchmarks import lane_gb_per_s
from blinkccl.paper.claim import BY_CONSTRUCTION, Context, Page, Value
from blinkccl.paper.jobs import (
    COPY_ENGINES,
    MB,
    SIZE_BYTES,
    at_best_chunk,
    blink,
    conditions,
    nccl,
    plan,
    request,
    topology_of,
)
from blinkccl.paper.laboratory import two_servers_value
from blinkccl.paper.traffic import CALIBRATION
from blinkccl.topology.spec import parse_gpus
from blinkccl.units import GB

PAGE = Page("A")

#: How far a simulated number may be from a measured one: calibrations are themselves known to some percent.
TOLERANCE = 0.15
#: What trees over PCIe reach. The paper prints no rate; its Fig 21 implies this one with T_dpa = 0.31 ms per GPU.
PCIE_GB_PER_S = Fraction(11, 2)
SPLIT_BASIS = f"Eq 8 with PCIe at 5.5 GB/s, minimum cuts in lanes of {CALIBRATION}, its peer_access_us"


def t_dpa_s(context: Context, ranks: int) -> Fraction:
    """T_dpa for so many GPUs: in proportion to them (§5.3)."""
    return Fraction(context.calibration(CALIBRATION).engine.peer_access_us.value) / 1_000_000 * ranks


def nvlink_gb_per_s(context: Context, ranks: int) -> Fraction:
    """What broadcast trees among the first GPUs of a DGX-1V reach, at the calibrated rate of a lane."""
    lanes = broadcast_optimum(network("dgx-1v", tuple(range(ranks))))
    return lanes * Fraction(lane_gb_per_s(context.calibration(CALIBRATION)))


def eq_8_as_printed(total_bytes: int, pcie_gb_per_s: Fraction, nvlink: Fraction, wait_s: Fraction) -> Fraction:
    """D_PCIe in bytes, without the clamp."""
    both = pcie_gb_per_s + nvlink
    return total_bytes * pcie_gb_per_s / both - wait_s * pcie_gb_per_s * nvlink * GB / both


@PAGE.claim("B17", "§3.4, Eq 8", agrees=BY_CONSTRUCTION)
def _eq_8(context: Context) -> tuple[Value, ...]:
    """The data is split so that PCIe, after T_dpa, and NVLink end at the same time.

    For data that is large enough: E5. Ours is the same equation solved, so both ends meet because it says so.
    """
    values = []
    for ranks in (3, 8):
        nvlink, wait_s = nvlink_gb_per_s(context, ranks), t_dpa_s(context, ranks)
        split = hybrid_split(SIZE_BYTES, PCIE_GB_PER_S, nvlink, wait_s)
        over_pcie_s = split.pcie_bytes / (PCIE_GB_PER_S * GB) + wait_s
        over_nvlink_s = split.nvlink_bytes / (nvlink * GB)
        printed = eq_8_as_printed(SIZE_BYTES, PCIE_GB_PER_S, nvlink, wait_s)
        what = f"500 MB to {ranks} GPUs"
        values += [
            Value(f"{what}: T_PCIe + T_dpa over T_NVL", 1, float(over_pcie_s / over_nvlink_s), basis=SPLIT_BASIS),
            Value(f"{what}: over PCIe", float(printed / MB), float(split.pcie_bytes / MB), "MB", basis=SPLIT_BASIS),
        ]
    return tuple(values)


@PAGE.claim("B18", "§3.5", wrong=True)
def _dgx_2(context: Context) -> tuple[Value, ...]:
    """On a DGX-2 Blink's AllReduce has m one-hop trees with 1/m of the data each; NCCL takes double binary trees below
    16 KB.

    E7: in NCCL 2.4.2 ncclTreeThreshold() is 0 with fewer than two nodes, so that one server has rings only, by default
    for every size. B30 has both baselines.
    """
    forest = plan("one_hop", "dgx-2", "allreduce")
    switches = {vertex.id for vertex in forest.topology.vertices if vertex.kind == "switch"}
    direct = sum(
        len(tree.edges) == 15 and all(set(path[1:-1]) <= switches and tree.root in path for path in tree.edges)
        for share in forest.shares
        for tree in share.trees()
    )
    basis = "one_hop plan for allreduce, 16 GPUs of a DGX-2"
    theirs = nccl(context, request("dgx-2", "allreduce"), "nccl-2.4-v100")
    below = [1 << k for k in range(10, 40) if 1 << k < AS_WRITTEN_BYTES]
    trees = sum("tree" in theirs.at(size_bytes).detail for size_bytes in below)
    return (
        Value("one-hop trees", 16, len({share.root for share in forest.shares}), basis=basis),
        Value("data of each", 1 / 16, float(max(share.weight for share in forest.shares)), "S", basis=basis),
        Value("trees that join their root to 15 leaves", 32, direct, basis=f"{basis}, up and down"),
        Value(
            "sizes below 16 KB at which NCCL 2.4.2 takes double binary trees",
            len(below),
            trees,
            basis="the rule of NCCL 2.4.2's ncclTreeThreshold, as baseline nccl-2.4 has it",
        ),
    )


#: The GPUs of Fig 22's job are not stated. In these, both servers' NVLinks carry two lanes.
FRAGMENTED = "0,1,3+0,1,2,3,4"


@PAGE.claim("B19", "§3.5, Fig 10")
def _three_phases(_: Context) -> tuple[Value, ...]:
    """Over n servers AllReduce reduces inside each, crosses by n one-hop trees, and broadcasts inside each.

    The plan also passes the verifier, which follows every contribution to every rank.
    """
    spec = "2x dgx-1v @ 40Gbps"
    topology = topology_of(spec)
    forest = plan("three_phase", spec, "allreduce", parse_gpus(FRAGMENTED, topology))
    server = {vertex.id: vertex.server for vertex in forest.topology.vertices}
    inward: list[int] = []
    outward: list[int] = []
    for share in forest.shares:
        assert share.reduce is not None
        assert share.broadcast is not None
        for tree, counts in ((share.reduce, inward), (share.broadcast, outward)):
            crossing = [path for path in tree.edges if server[path[0]] != server[path[-1]]]
            # Between servers a tree is one hop: to the root that reduces, and from it.
            counts.append(sum(share.root in path for path in crossing) if crossing else 0)
    roots = {server[share.root] for share in forest.shares}
    basis = f"three_phase plan for allreduce, {spec}, GPUs {FRAGMENTED}"
    return (
        Value("cross-server hops into each root, n − 1 of them", 1, max(inward), basis=basis),
        Value("fewest of these", 1, min(inward), basis=basis),
        Value("cross-server hops from each root", 1, max(outward), basis=basis),
        Value("servers that root one-hop trees, of n = 2", 2, len(roots), basis=basis),
        Value("rate, of the network's 5 GB/s", None, forest.algbw_gb_per_s, "GB/s", basis=basis),
    )


def dgx_2_curves(context: Context, sizes: Sequence[int]) -> list[list[float]]:
    """Algbw in GB/s by size: of Blink's one-hop trees, and of both baselines of NCCL 2.4."""
    side, asked = blink(context, "dgx-2", "allreduce", how="one_hop"), request("dgx-2", "allreduce")
    curves = [[at_best_chunk(side, size) for size in sizes]]
    for baseline in BASELINES:
        theirs = nccl(context, asked, "nccl-2.4-v100", baseline)
        curves.append([theirs.at(size).algbw_gb_per_s for size in sizes])
    return curves


#: NCCL 2.4 as it is, and as the paper has it.
BASELINES = {"nccl-2.4": "rings only", "nccl-2.4-as-written": "trees below 16 KB"}
#: Sizes of Figs 19 and 20, each four times the one before: latencies below 16 KB, and throughput from there to 1 GiB.
SMALL = (1 << 10, 1 << 11, 1 << 12, 1 << 13)
LARGE = tuple(AS_WRITTEN_BYTES << k for k in range(0, 18, 2))


@PAGE.claim("B30", "§5.2.3, Figs 19 and 20")
def _dgx_2_ratios(context: Context) -> tuple[Value, ...]:
    """On a DGX-2 with 16 GPUs AllReduce has up to 3.32× less latency and up to 3.5× more throughput than NCCL's.

    Both against what NCCL 2.4.2 does by default (rings only) and against what the paper says of it. Two steps against
    30 of a ring or 8 of a tree; how long a step of NCCL's low-latency protocol is decides: 0.6 µs by its own tables,
    while the paper's ratio implies some 1.8 µs.
    """
    values = []
    ours, *curves = dgx_2_curves(context, (*SMALL, *LARGE))
    for (baseline, what), theirs in zip(BASELINES.items(), curves, strict=True):
        found = [a / b for a, b in zip(ours, theirs, strict=True)]
        basis = f"one_hop plan, dgx-2, best chunk; {baseline} on nccl-2.4-v100 and nccl-2.4-v100-ll"
        latency, throughput = found[: len(SMALL)], found[len(SMALL) :]
        values += [
            Value(f"largest latency ratio, 1–8 KB, {what}", 3.32, max(latency), "×", TOLERANCE, basis=basis),
            Value(f"largest throughput ratio, from 16 KB, {what}", 3.5, max(throughput), "×", TOLERANCE, basis=basis),
            Value(f"throughput ratio at 1 GiB, {what}", None, throughput[-1], "×", basis=basis),
        ]
    return tuple(values)


#: Rates between servers, Gb/s.
NETWORKS_GBIT = (40, 100, 200, 300, 400, 600, 800)


def crossings(context: Context) -> list[tuple[float, float, float]]:
    """Fig 22b, AllReduce of 100 MB over faster and faster networks: of the network, Blink and NCCL 2.4, in GB/s.

    Among 3 and 5 GPUs of two DGX-1V.
    """
    found = []
    for rate in NETWORKS_GBIT:
        spec = f"2x dgx-1v @ {rate}Gbps"
        gpus = parse_gpus(FRAGMENTED, topology_of(spec))
        costs = COPY_ENGINES["dgx-1v"]
        under = conditions(context, costs)
        side = planned("three_phase", plan("three_phase", spec, "allreduce", gpus), under)
        theirs = nccl(context, request(spec, "allreduce", gpus), costs).at(100 * MB)
        found.append((rate / 8, at_best_chunk(side, 100 * MB), theirs.algbw_gb_per_s))
    return found


@PAGE.claim("B34", "§5.4, Fig 22b")
def _fig_22b(context: Context) -> tuple[Value, ...]:
    """With 3 and 5 GPUs in two servers AllReduce of 100 MB keeps up with the network until about 300 Gb/s; NCCL is
    bound by PCIe.

    A simulation in the paper as well. It does not state which GPUs; ours have two lanes in both servers. NCCL 2.4's
    trees find NVLink lines in these servers, so that NVLink bounds our baseline, above what PCIe would.
    """
    found = crossings(context)
    kept_up = min(ours / network for network, ours, _ in found if network <= 300 / 8)
    most = max(ours for _, ours, _ in found)
    basis = f"three_phase plans, v100-copy-engine, best chunk; GPUs {FRAGMENTED}, 100 MB"
    theirs = {network * 8: nccl_gb_per_s for network, _, nccl_gb_per_s in found}
    pcie = min(lane_gb_per_s(context.calibration("nccl-2.4-v100"), kind) for kind in ("pcie", "smp"))
    return (
        Value("Blink's part of the network, 40 to 300 Gb/s", 1, kept_up, "", TOLERANCE, basis=basis),
        Value("where Blink stops", 300, most * 8, "Gb/s", TOLERANCE, basis=basis),
        Value("NCCL at 800 Gb/s against 200", 1, theirs[800] / theirs[200], "×", TOLERANCE, basis="nccl-2.4"),
        Value("where NCCL stops, NVLink inside servers", None, max(theirs.values()) * 8, "Gb/s", basis="nccl-2.4"),
        Value(
            "where NCCL stops, PCIe inside servers",
            None,
            float(ring_allreduce(Fraction(pcie), 8)) * 8,
            "Gb/s",
            basis="8/14 of a ring over PCIe and both sockets, nccl-2.4-v100",
        ),
        two_servers_value(),
    )


#: Sizes of Fig 20.
_LATENCIES = tuple(1 << power for power in range(10, 21))
_DGX_2_NAMES = (
    "Blink, one-hop trees",
    "NCCL 2.4, rings only (its default)",
    "NCCL 2.4 as the paper has it: trees below 16 KB",
)
_COLOURS = (drawing.OURS, drawing.ORANGE, drawing.VERMILION)
#: From 16 KB on the two baselines are one: both must be seen.
_STYLES = ("-", "-", "--")
_DGX_2_BASIS = (
    "Plan of one_hop for AllReduce on dgx-2, best chunk of each size; both baselines on nccl-2.4-v100 or, where its "
    "low-latency protocol is faster, on nccl-2.4-v100-ll."
)


def _over_ratios(
    figure: Any, context: Context, sizes: Sequence[int], most: float, value: Callable[[int, float], float]
) -> tuple[Any, float]:
    """Above a ``value`` of size and GB/s for each, and its largest; below how many times as fast as NCCL Blink is."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    ours, *theirs = found = dgx_2_curves(context, sizes)
    shown = {
        name: [(size, value(size, one)) for size, one in zip(sizes, gb_per_s, strict=True)]
        for name, gb_per_s in zip(_DGX_2_NAMES, found, strict=True)
    }
    drawing.lines(above, shown, _COLOURS, _STYLES)
    ratios = {
        f"_{number}": [(size, a / b) for size, a, b in zip(sizes, ours, gb_per_s, strict=True)]
        for number, gb_per_s in enumerate(theirs)
    }
    drawing.lines(below, ratios, _COLOURS[1:], _STYLES[1:])
    drawing.published_level(below, most, f"published: up to {most:g}×")
    below.set_ylim(0, 1.35 * max(most, *(ratio for points in ratios.values() for _, ratio in points)))
    drawing.finish(below, ylabel="Blink over NCCL (×)", legend="upper right")
    drawing.over_sizes(below, sizes)
    return above, max(one for points in shown.values() for _, one in points)


@PAGE.figure("A-fig-19", "Blink, Fig 19: AllReduce throughput on the 16 GPUs of a DGX-2", 8.0, 6.0)
def _draw_fig_19(figure: Any, context: Context) -> str:
    above, _ = _over_ratios(figure, context, LARGE, 3.5, lambda _, gb_per_s: gb_per_s)
    above.set_yscale("log")
    drawing.plain_numbers(above.yaxis)
    drawing.finish(above, ylabel="algbw (GB/s)", legend="lower right")
    return f"{_DGX_2_BASIS} From 16 KB on both baselines are the same rings."


@PAGE.figure("A-fig-20", "Blink, Fig 20: AllReduce latency on the 16 GPUs of a DGX-2", 8.0, 6.0)
def _draw_fig_20(figure: Any, context: Context) -> str:
    above, most = _over_ratios(figure, context, _LATENCIES, 3.32, lambda size, one: 1e6 * size / (one * GB))
    above.set_ylim(0, 1.5 * most)
    drawing.finish(above, ylabel="latency (µs)", legend="upper left")
    return f"{_DGX_2_BASIS} How long a step of that protocol is decides the ratio."


@PAGE.figure("A-fig-22b", "Blink, Fig 22 (b): AllReduce of 100 MB over faster and faster networks")
def _draw_fig_22b(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    rates, ours, theirs = zip(*crossings(context), strict=True)
    curves = {"Blink, three phases": ours, "NCCL 2.4": theirs}
    drawing.lines(
        axes,
        {name: list(zip(NETWORKS_GBIT, gb_per_s, strict=True)) for name, gb_per_s in curves.items()},
        (drawing.OURS, drawing.THEIRS),
    )
    axes.plot(NETWORKS_GBIT, rates, "--", color=drawing.GREY, label="the network's rate")
    axes.axvline(300, color=drawing.BLACK, linestyle=":", label="published: Blink keeps up to about 300 Gb/s")
    axes.set_xlabel("network of a server (Gb/s)")
    axes.set_xticks(NETWORKS_GBIT)
    axes.set_ylim(0, 1.6 * max(ours))
    drawing.finish(axes, ylabel="algbw (GB/s)", legend="lower right")
    return (
        f"Three_phase plans on v100-copy-engine at the best chunk, baseline nccl-2.4; GPUs {FRAGMENTED} of two "
        "DGX-1V, 100 MB. The paper does not say which GPUs; NCCL 2.4's trees find NVLink lines among these."
    )
