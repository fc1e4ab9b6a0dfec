"""Blink's measured throughputs (§5.2, §5.3), both sides timed by the simulator, with Figs 15 to 17 and 21.

Bars of single allocations are pictures without numbers and are not compared; the numbers of the text are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blinkccl.algorithms.hybrid import hybrid_split
from blinkccl.baselines.registry import candidates
from blinkccl.paper import drawing
from blinkccl.paper.blink_graph import allreduce_optimum, broadcast_optimum, network, rings
from blinkccl.paper.blink_microbenchmarks import lane_gb_per_s
from blinkccl.paper.blink_protocols import PCIE_GB_PER_S, t_dpa_s
from blinkccl.paper.claim import Context, Page, Value
from blinkccl.paper.jobs import (
    COPY_ENGINES,
    EIGHT,
    MB,
    SIZE_BYTES,
    Gpus,
    all_timed,
    at_best_chunk,
    basis_of,
    blink,
    conditions,
    connected_allocations,
    geometric_mean,
    nccl,
    plan,
    request,
    timed,
)
from blinkccl.paper.laboratory import hybrid_values, speedup_values
from blinkccl.units import algbw_gb_per_s

PAGE = Page("A")

#: How far a simulated number may be from a measured one: calibrations are themselves known to some percent.
TOLERANCE = 0.15


def _speedups(context: Context, name: str, collective: str, most: float, mean: float) -> tuple[Value, ...]:
    found = [one.speedup for one in all_timed(context, name, collective)]
    basis = basis_of(name, collective)
    exact = [one.speedup for one in all_timed(context, name, collective, "optimal")]
    also = basis_of(name, collective, "optimal")
    return (
        Value("largest speed-up", most, max(found), "×", TOLERANCE, basis=basis),
        Value("geometric mean", mean, geometric_mean(found), "×", TOLERANCE, basis=basis),
        Value("largest, with this package's optimal plans", None, max(exact), "×", basis=also),
        Value("geometric mean, with these", None, geometric_mean(exact), "×", basis=also),
        Value("least speed-up, with these", None, min(exact), "×", basis=also),
        *speedup_values(name, collective),
    )


@PAGE.claim("B25", "§5.2.1, Fig 15")
def _fig_15(context: Context) -> tuple[Value, ...]:
    """Broadcast of 500 MB on a DGX-1V is up to 6× as fast as NCCL's, 2× on geometric mean.

    The root is the first GPU; the paper's is not stated. TreeGen gives up as much as 5 % of the rate for fewer trees,
    and what each chunk costs a copy engine keeps full machines below NCCL's rings.
    """
    return _speedups(context, "dgx-1v", "broadcast", 6, 2)


@PAGE.claim("B27", "§5.2.1, Fig 16")
def _fig_16(context: Context) -> tuple[Value, ...]:
    """Broadcast on a DGX-1P is up to 3× as fast as NCCL's, 1.6× on geometric mean."""
    return _speedups(context, "dgx-1p", "broadcast", 3, 1.6)


@PAGE.claim("B28", "§5.2.2, Fig 17")
def _fig_17(context: Context) -> tuple[Value, ...]:
    """AllReduce on a DGX-1V is up to 8× as fast as NCCL's, 2× on geometric mean."""
    return _speedups(context, "dgx-1v", "allreduce", 8, 2)


@PAGE.claim("B26", "§5.2.1")
def _two_sets_of_four(context: Context) -> tuple[Value, ...]:
    """GPUs 1, 4, 5, 6 have no ring; 2, 3, 6, 7 have one in both directions, Blink one tree, and 3–5 GB/s more.

    The rings are as stated. The least cut of 2, 3, 6, 7 is two lanes, so two trees pack, and both sides have the same
    rate. A lane reaches 22.75 GB/s under NCCL, and with copies 22.0 less what each chunk costs, so that nothing is left
    to gain. The paper names “optimized chunked transfers”.
    """
    without, ring = (1, 4, 5, 6), (2, 3, 6, 7)
    both = timed(context, "dgx-1v", "broadcast", ring)
    gained = both.blink_gb_per_s - both.nccl_gb_per_s
    basis, rule = basis_of("dgx-1v", "broadcast"), "NCCL 2.4's rule for rings"
    trees = len(plan("blink", "dgx-1v", "broadcast", ring).shares)
    return (
        Value("rings of 1, 4, 5, 6", 0, rings("dgx-1v", without), basis=rule),
        Value("rings of 2, 3, 6, 7, both directions", 2, rings("dgx-1v", ring), basis=rule),
        Value("Blink's trees for 2, 3, 6, 7", 1, trees, basis="blink plan for broadcast"),
        Value("Blink more than NCCL there, at least", 3, gained, "GB/s", TOLERANCE, ">=", basis),
        Value("Blink more than NCCL there, at most", 5, gained, "GB/s", TOLERANCE, "<=", basis),
    )


@PAGE.claim("B29", "§5.2.2")
def _against_broadcast(context: Context) -> tuple[Value, ...]:
    """With 3 and 4 GPUs AllReduce is 20–30 GB/s below Broadcast on average; with 8 it is half, for both libraries.

    In theory, too, the optima of 3 and 4 GPUs are much nearer to each other than 20 GB/s on average, as they are equal
    where links form a path; single allocations are that far apart. With 8 GPUs both libraries have 4/7 of Broadcast in
    theory: (24/7)/6, and 8/14.
    """
    small = [gpus for gpus in connected_allocations("dgx-1v") if len(gpus) <= 4]
    lost = [
        timed(context, "dgx-1v", "broadcast", gpus).blink_gb_per_s
        - timed(context, "dgx-1v", "allreduce", gpus).blink_gb_per_s
        for gpus in small
    ]
    one, both = (timed(context, "dgx-1v", collective, EIGHT) for collective in ("broadcast", "allreduce"))
    basis = basis_of("dgx-1v", "allreduce and broadcast")
    lanes = [broadcast_optimum(network("dgx-1v", gpus)) - allreduce_optimum("dgx-1v", gpus) for gpus in small]
    least = float(sum(lanes) / len(lanes)) * lane_gb_per_s(context.calibration(COPY_ENGINES["dgx-1v"]))
    return (
        Value("3 and 4 GPUs: mean difference, at least", 20, sum(lost) / len(lost), "GB/s", TOLERANCE, ">=", basis),
        Value("3 and 4 GPUs: mean difference of optima", None, least, "GB/s", basis="cuts, partitions, a lane's rate"),
        Value("3 and 4 GPUs: largest difference", None, max(lost), "GB/s", basis=basis),
        Value(
            "8 GPUs: Blink's part of broadcast",
            0.5,
            both.blink_gb_per_s / one.blink_gb_per_s,
            "",
            TOLERANCE,
            basis=basis,
        ),
        Value(
            "8 GPUs: NCCL's part of broadcast", 0.5, both.nccl_gb_per_s / one.nccl_gb_per_s, "", TOLERANCE, basis=basis
        ),
    )


def hybrid_split_gb_per_s(context: Context, ranks: int) -> tuple[float, float]:
    """Fig 21 by Eq 8: broadcast of 500 MB to the first GPUs over NVLink alone, and over NVLink and PCIe, GB/s."""
    nvlink = at_best_chunk(blink(context, "dgx-1v", "broadcast", tuple(range(ranks))), SIZE_BYTES)
    split = hybrid_split(SIZE_BYTES, PCIE_GB_PER_S, nvlink, t_dpa_s(context, ranks))
    return nvlink, algbw_gb_per_s(SIZE_BYTES, float(split.seconds))


def hybrid_gain_gb_per_s(context: Context, ranks: int) -> float:
    """Fig 21 with the trees over PCIe timed, too: what the plan "hybrid" gains over "optimal", GB/s."""
    asked, under = request("dgx-1v", "broadcast", tuple(range(ranks))), conditions(context, COPY_ENGINES["dgx-1v"])
    hybrid, alone = (candidates()[how].prepare(asked, under).at(SIZE_BYTES) for how in ("hybrid", "optimal"))
    return hybrid.algbw_gb_per_s - alone.algbw_gb_per_s


@PAGE.claim("B31", "§5.3, Fig 21")
def _fig_21(context: Context) -> tuple[Value, ...]:
    """PCIe beside NVLink adds around 5 GB/s to a broadcast among 3 or 4 GPUs and around 2 GB/s among 7 or 8.

    T_dpa, the rate over PCIe, the GPUs and the size are not stated. 0.31 ms per GPU and 5.5 GB/s are what the figure
    implies; they were chosen to fit it and cannot confirm it.
    """
    published = {3: 5.0, 4: 5.0, 5: None, 6: None, 7: 2.0, 8: 2.0}
    split = "Eq 8 at 500 MB: PCIe at 5.5 GB/s, T_dpa of v100-copy-engine, NVLink as blink plans are timed on it"
    values = []
    for ranks, gb_per_s in published.items():
        nvlink, both = hybrid_split_gb_per_s(context, ranks)
        values.append(Value(f"gain for {ranks} GPUs", gb_per_s, both - nvlink, "GB/s", TOLERANCE, basis=split))
    basis = "hybrid and optimal plans, all trees timed on v100-copy-engine, 500 MB"
    for ranks in (3, 8):
        gained = hybrid_gain_gb_per_s(context, ranks)
        values.append(Value(f"gain for {ranks} GPUs, PCIe trees timed, too", None, gained, "GB/s", basis=basis))
    return (*values, *hybrid_values())


#: Sizes at the ends of the error bars of Figs 15 to 17 (§5.2.1).
_ENDS = (50 * MB, 1000 * MB)
_GB_PER_S = "throughput (GB/s)"


def _sides(context: Context, name: str, collective: str, gpus: Gpus, how: str) -> tuple[Callable[[int], float], ...]:
    """Algbw over size, GB/s, of a plan at its best chunk and of NCCL 2.4."""
    ours = blink(context, name, collective, gpus, how)
    theirs = nccl(context, request(name, collective, gpus), COPY_ENGINES[name])
    return lambda size: at_best_chunk(ours, size), lambda size: theirs.at(size).algbw_gb_per_s


def _per_allocation(name: str, collective: str, most: float, mean: float) -> Callable[[Any, Context], str]:
    """Fig 15, 16 or 17: bars above, and below how many times as fast as NCCL."""

    def draw(figure: Any, context: Context) -> str:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        allocations = connected_allocations(name)
        groups = [",".join(map(str, gpus)) for gpus in allocations]
        sides = [_sides(context, name, collective, gpus, "blink") for gpus in allocations]
        heights = [[side[i](SIZE_BYTES) for side in sides] for i in range(2)]
        legend = {"Blink": heights[0], "NCCL 2.4": heights[1]}
        width = drawing.bars(above, groups, legend, (drawing.OURS, drawing.THEIRS))
        for i in range(2):
            places = [place + (i - 0.5) * width for place in range(len(groups))]
            ends = [[side[i](size) for side in sides] for size in _ENDS]
            named = "50 to 1000 MB" if i else "_"
            above.vlines(places, *ends, color=drawing.BLACK, linewidth=1, zorder=3, label=named)
        drawing.finish(above, ylabel=_GB_PER_S, legend="upper left", columns=3, grid="y")
        speedups = [a / b for a, b in zip(*heights, strict=True)]
        exact = [_sides(context, name, collective, gpus, "optimal")[0](SIZE_BYTES) for gpus in allocations]
        best = [a / b for a, b in zip(exact, heights[1], strict=True)]
        below.plot(groups, speedups, "o", markersize=5, color=drawing.OURS, label=_summary("Blink", speedups))
        name_of_best = _summary("this package's optimal plans", best)
        below.plot(groups, best, "_", markersize=14, markeredgewidth=1.6, color=drawing.VERMILION, label=name_of_best)
        drawing.published_level(below, most, f"published: up to {most:g}×")
        drawing.published_level(below, mean, f"published: geometric mean {mean:g}×", "--")
        below.set_ylim(0, 1.6 * max(most, *speedups))
        drawing.upright(below)
        below.set_xlabel("GPUs")
        drawing.finish(below, ylabel="speed-up (×)", legend="upper left", columns=2)
        basis = f"{basis_of(name, collective)}; optimal plans likewise"
        root = "; the root is the first GPU" if collective == "broadcast" else ""
        return f"{basis[0].upper()}{basis[1:]}{root}."

    return draw


def _summary(name: str, speedups: list[float]) -> str:
    return f"{name}: up to {max(speedups):.2g}×, geometric mean {geometric_mean(speedups):.3g}×"


@PAGE.figure("A-fig-21", "Blink, Fig 21: broadcast over NVLink and PCIe, and over NVLink alone", 10.0, 4.5)
def _draw_fig_21(figure: Any, context: Context) -> str:
    counts = range(3, 9)
    alone, both = zip(*(hybrid_split_gb_per_s(context, ranks) for ranks in counts), strict=True)
    gained = [hybrid - nvlink for nvlink, hybrid in zip(alone, both, strict=True)]
    timed = [hybrid_gain_gb_per_s(context, ranks) for ranks in counts]
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    groups = [str(ranks) for ranks in counts]
    drawing.bars(left, groups, {"NVLink only": alone, "hybrid": both}, (drawing.THEIRS, drawing.OURS))
    drawing.finish(left, "broadcast of 500 MB", _GB_PER_S, legend="upper left", grid="y")
    drawing.lines(
        right,
        {
            "Eq 8, PCIe at 5.5 GB/s": list(zip(counts, gained, strict=True)),
            "Eq 8, PCIe trees timed, too": list(zip(counts, timed, strict=True)),
        },
        (drawing.OURS, drawing.GREEN),
    )
    printed = [(3.0, 5.0), (4.0, 5.0), (7.0, 2.0), (8.0, 2.0)]
    drawing.published(right, printed, "published: around 5 and around 2")
    right.set_ylim(bottom=0)
    drawing.finish(right, "gain of hybrid", "GB/s", legend="lower left")
    for axes in (left, right):
        axes.set_xlabel("GPUs, the first of a DGX-1V")
    return (
        f"Blink plans for broadcast on {COPY_ENGINES['dgx-1v']} at the best chunk; the split of Eq 8 with its "
        "peer_access_us as T_dpa per GPU. 5.5 GB/s and T_dpa were chosen to fit this figure. "
        "Green: hybrid and optimal plans, all trees timed."
    )


PAGE.figure("A-fig-15", "Blink, Fig 15: broadcast of 500 MB on the 46 allocations of a DGX-1V", 13.0, 7.0)(
    _per_allocation("dgx-1v", "broadcast", 6, 2)
)
PAGE.figure("A-fig-16", "Blink, Fig 16: broadcast of 500 MB on the 14 allocations of a DGX-1P", 11.0, 7.0)(
    _per_allocation("dgx-1p", "broadcast", 3, 1.6)
)
PAGE.figure("A-fig-17", "Blink, Fig 17: AllReduce of 500 MB on the 46 allocations of a DGX-1V", 13.0, 7.0)(
    _per_allocation("dgx-1v", "allreduce", 8, 2)
)
