"""Blink's figures of AllReduce through switches and between servers: 19, 20 and 22 (b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blinkccl.paper import drawing
from blinkccl.paper.blink_jobs import at_best_chunk, blink, nccl, request
from blinkccl.paper.blink_protocols import FRAGMENTED
from blinkccl.paper.blink_simulated import LARGE, NETWORKS_GBIT, crossings
from blinkccl.paper.claim import Context
from blinkccl.paper.drawing import Figure
from blinkccl.units import GB

#: Where latency counts.
_SMALL = tuple(1 << power for power in range(10, 21))
_BASELINES = {
    "nccl-2.4": "NCCL 2.4, rings only (its default)",
    "nccl-2.4-as-written": "NCCL 2.4 as the paper has it: trees below 16 KB",
}
_COLOURS = (drawing.OURS, drawing.ORANGE, drawing.VERMILION)
#: From 16 KB on the two baselines are one: both must be seen.
_STYLES = ("-", "-", "--")


def _dgx_2(context: Context, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Algbw in GB/s of Blink and of both baselines, by size."""
    side, asked = blink(context, "dgx-2", "allreduce", how="one_hop"), request("dgx-2", "allreduce")
    found = {"Blink, one-hop trees": [at_best_chunk(side, size) for size in sizes]}
    for baseline, name in _BASELINES.items():
        theirs = nccl(context, asked, "nccl-2.4-v100", baseline)
        found[name] = [theirs.at(size).algbw_gb_per_s for size in sizes]
    return found


_DGX_2_BASIS = (
    "Plan of one_hop for AllReduce on dgx-2, best chunk of each size; both baselines on nccl-2.4-v100 or, where its "
    "low-latency protocol is faster, on nccl-2.4-v100-ll."
)


def _ratios(axes: Any, sizes: Sequence[int], found: dict[str, list[float]], most: float) -> None:
    """How many times as fast as each baseline Blink is."""
    ours, *theirs = found.values()
    curves = {
        f"_{number}": [(size, a / b) for size, a, b in zip(sizes, ours, gb_per_s, strict=True)]
        for number, gb_per_s in enumerate(theirs)
    }
    drawing.lines(axes, curves, _COLOURS[1:], _STYLES[1:])
    drawing.published_level(axes, most, f"published: up to {most:g}×")
    axes.set_ylim(0, 1.35 * max(most, *(ratio for points in curves.values() for _, ratio in points)))
    drawing.finish(axes, ylabel="Blink over NCCL (×)", legend="upper right")


def _fig_19(figure: Any, context: Context) -> str:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    found = _dgx_2(context, LARGE)
    curves = {name: list(zip(LARGE, gb_per_s, strict=True)) for name, gb_per_s in found.items()}
    drawing.lines(above, curves, _COLOURS, _STYLES)
    above.set_yscale("log")
    drawing.plain_numbers(above.yaxis)
    drawing.finish(above, ylabel="algbw (GB/s)", legend="lower right")
    _ratios(below, LARGE, found, 3.5)
    drawing.over_sizes(below, LARGE)
    return f"{_DGX_2_BASIS} From 16 KB on both baselines are the same rings."


def _fig_20(figure: Any, context: Context) -> str:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    found = _dgx_2(context, _SMALL)
    curves = {
        name: [(size, 1e6 * size / (one * GB)) for size, one in zip(_SMALL, gb_per_s, strict=True)]
        for name, gb_per_s in found.items()
    }
    drawing.lines(above, curves, _COLOURS, _STYLES)
    above.set_ylim(0, 1.5 * max(us for points in curves.values() for _, us in points))
    drawing.finish(above, ylabel="latency (µs)", legend="upper left")
    _ratios(below, _SMALL, found, 3.32)
    drawing.over_sizes(below, _SMALL)
    return f"{_DGX_2_BASIS} How long a step of that protocol is decides the ratio."


def _fig_22b(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    found = crossings(context)
    drawing.lines(
        axes,
        {
            "Blink, three phases": list(zip(NETWORKS_GBIT, (one.blink_gb_per_s for one in found), strict=True)),
            "NCCL 2.4": list(zip(NETWORKS_GBIT, (one.nccl_gb_per_s for one in found), strict=True)),
        },
        (drawing.OURS, drawing.THEIRS),
    )
    rates = [one.network_gb_per_s for one in found]
    axes.plot(NETWORKS_GBIT, rates, "--", color=drawing.GREY, label="the network's rate")
    axes.axvline(300, color=drawing.BLACK, linestyle=":", label="published: Blink keeps up to about 300 Gb/s")
    axes.set_xlabel("network of a server (Gb/s)")
    axes.set_xticks(NETWORKS_GBIT)
    axes.set_ylim(0, 1.6 * max(one.blink_gb_per_s for one in found))
    drawing.finish(axes, ylabel="algbw (GB/s)", legend="lower right")
    return (
        f"Three_phase plans on v100-copy-engine at the best chunk, baseline nccl-2.4; GPUs {FRAGMENTED} of two "
        "DGX-1V, 100 MB. The paper does not say which GPUs; NCCL 2.4's trees find NVLink lines among these."
    )


FIGURES: tuple[Figure, ...] = (
    Figure("A-fig-19", "A", "Blink, Fig 19: AllReduce throughput on the 16 GPUs of a DGX-2", _fig_19, 8.0, 6.0),
    Figure("A-fig-20", "A", "Blink, Fig 20: AllReduce latency on the 16 GPUs of a DGX-2", _fig_20, 8.0, 6.0),
    Figure("A-fig-22b", "A", "Blink, Fig 22 (b): AllReduce of 100 MB over faster and faster networks", _fig_22b),
)
