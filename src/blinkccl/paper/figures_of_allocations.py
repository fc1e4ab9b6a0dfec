"""Blink's figures of throughput per allocation: 14 to 17 and 21."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blinkccl.algorithms.hybrid import hybrid_split
from blinkccl.baselines.candidate import Conditions
from blinkccl.baselines.registry import candidates
from blinkccl.paper import drawing
from blinkccl.paper.allocations import Gpus, connected_allocations
from blinkccl.paper.blink_graph import FIG_14, fig_14_speedups
from blinkccl.paper.blink_jobs import (
    COPY_ENGINES,
    MB,
    SIZE_BYTES,
    at_best_chunk,
    basis_of,
    blink,
    geometric_mean,
    nccl,
    request,
)
from blinkccl.paper.blink_protocols import PCIE_GB_PER_S, t_dpa_s
from blinkccl.paper.claim import Context
from blinkccl.paper.drawing import Figure
from blinkccl.units import algbw_gb_per_s

#: Sizes at the ends of the error bars of Figs 15 to 17 (§5.2.1).
_ENDS = (50 * MB, 1000 * MB)
_GB_PER_S = "throughput (GB/s)"
_MACHINES = {"dgx-1p": "P100", "dgx-1v": "V100"}


def _fig_14(figure: Any, context: Context) -> str:
    boxes = []
    for collective in FIG_14:
        for name, gpu in _MACHINES.items():
            found = fig_14_speedups(name, collective)
            low, first, middle, third, high = np.percentile(found, [5, 25, 50, 75, 95])
            outside = [speedup for speedup in found if not low <= speedup <= high]
            title = {"allreduce": "AllReduce", "broadcast": "Broadcast"}[collective]
            boxes.append(
                {
                    "label": f"{title}\n{gpu} ({len(found)})",
                    "whislo": low,
                    "q1": first,
                    "med": middle,
                    "q3": third,
                    "whishi": high,
                    "fliers": outside,
                }
            )
    axes = figure.subplots()
    drawn = axes.bxp(
        boxes, widths=0.5, patch_artist=True, medianprops={"color": drawing.BLACK}, flierprops={"markersize": 4}
    )
    for box in drawn["boxes"]:
        box.set_facecolor(drawing.SKY)
    drawing.published_level(axes, 6, "published: up to 6×")
    drawing.published_level(axes, 1, "published: at least as fast as rings", "--")
    axes.set_ylim(0, 7.6)
    drawing.finish(axes, ylabel="speed-up over rings (×)", legend="upper right")
    return (
        "Exact rates of optimal trees over those of NCCL 2.4's rings on all allocations of 3 to 8 GPUs, a ring over "
        "PCIe as half a lane. Whiskers are the 5th and 95th percentile, circles what lies outside; no calibration."
    )


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


def _fig_21(figure: Any, context: Context) -> str:
    costs = COPY_ENGINES["dgx-1v"]
    conditions = Conditions(context.calibration(costs), named=context.calibration)
    counts = range(3, 9)
    alone, both, gained, timed = [], [], [], []
    for ranks in counts:
        gpus = tuple(range(ranks))
        nvlink = at_best_chunk(blink(context, "dgx-1v", "broadcast", gpus), SIZE_BYTES)
        split = hybrid_split(SIZE_BYTES, PCIE_GB_PER_S, nvlink, t_dpa_s(context, ranks))
        alone.append(nvlink)
        both.append(algbw_gb_per_s(SIZE_BYTES, float(split.seconds)))
        gained.append(both[-1] - nvlink)
        asked = request("dgx-1v", "broadcast", gpus)
        hybrid, optimal = (candidates()[how].prepare(asked, conditions).at(SIZE_BYTES) for how in ("hybrid", "optimal"))
        timed.append(hybrid.algbw_gb_per_s - optimal.algbw_gb_per_s)
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
        f"Blink plans for broadcast on {costs} at the best chunk; the split of Eq 8 with its peer_access_us as T_dpa "
        "per GPU. 5.5 GB/s and T_dpa were chosen to fit this figure. Green: hybrid and optimal plans, all trees timed."
    )


FIGURES: tuple[Figure, ...] = (
    Figure("A-fig-14", "A", "Blink, Fig 14: speed-up of trees over rings in theory", _fig_14),
    Figure(
        "A-fig-15",
        "A",
        "Blink, Fig 15: broadcast of 500 MB on the 46 allocations of a DGX-1V",
        _per_allocation("dgx-1v", "broadcast", 6, 2),
        13.0,
        7.0,
    ),
    Figure(
        "A-fig-16",
        "A",
        "Blink, Fig 16: broadcast of 500 MB on the 14 allocations of a DGX-1P",
        _per_allocation("dgx-1p", "broadcast", 3, 1.6),
        11.0,
        7.0,
    ),
    Figure(
        "A-fig-17",
        "A",
        "Blink, Fig 17: AllReduce of 500 MB on the 46 allocations of a DGX-1V",
        _per_allocation("dgx-1v", "allreduce", 8, 2),
        13.0,
        7.0,
    ),
    Figure("A-fig-21", "A", "Blink, Fig 21: broadcast over NVLink and PCIe, and over NVLink alone", _fig_21, 10.0, 4.5),
)
