"""Blink's figures of copies, chunks and streams: 7, 8, 12, 13, 24 and 26."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from blinkccl.baselines.candidate import Planned
from blinkccl.forest.model import Forest, link_use
from blinkccl.paper import drawing
from blinkccl.paper.allocations import Gpus, connected_allocations
from blinkccl.paper.blink_jobs import COPY_ENGINES, MB, SIZE_BYTES, blink, plan
from blinkccl.paper.blink_microbenchmarks import lane_gb_per_s, throughput
from blinkccl.paper.claim import Context
from blinkccl.paper.drawing import Figure
from blinkccl.paper.traffic import CALIBRATION, PATTERNS
from blinkccl.simulate.chunk_search import search
from blinkccl.simulate.translate import Settings

_SIZES = tuple(MB * size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
_FROM_TEN = tuple(size for size in _SIZES if size >= 10 * MB)
_LARGEST = 1000 * MB
_GB_PER_S = "throughput (GB/s)"
_BASIS = (
    f"Traffic patterns on single lanes, timed on {CALIBRATION} at the best chunk of each size; that calibration is "
    "fitted to this figure's printed numbers"
)
V100 = COPY_ENGINES["dgx-1v"]


def _patterns(
    axes: Any, context: Context, name: str, counts: str, sizes: Sequence[int], styles: Sequence[str] = ("-",)
) -> None:
    """A line over sizes for each breadth of a pattern."""
    drawing.lines(
        axes,
        {
            f"{breadth} {counts}": drawing.curve(sizes, partial(throughput, context, name, breadth))
            for breadth in PATTERNS[name].breadths
        },
        styles=styles,
    )


def _fig_7(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    _patterns(axes, context, "chain-reduce-forward", "GPUs", _FROM_TEN)
    drawing.over_sizes(axes, _FROM_TEN)
    drawing.published(axes, [(_LARGEST, 21)], "published: around 21, 3 GPUs", drawing.BLUE)
    drawing.published(axes, [(_LARGEST, 19)], "published: around 19, 8 GPUs", drawing.SKY)
    axes.set_ylim(8, 22)
    drawing.finish(axes, ylabel=_GB_PER_S, legend="lower right", columns=2)
    return f"{_BASIS}."


def _fig_8(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    names = {"mimo": "MIMO: two streams through one GPU", "mca": "MCA: two chains into one GPU"}
    drawing.lines(
        axes,
        {about: drawing.curve(_SIZES, partial(throughput, context, name, 0)) for name, about in names.items()},
        styles=("-", "--"),
    )
    above = [size for size in _SIZES if size > 10 * MB]
    axes.plot(above, [18] * len(above), ":", color=drawing.BLACK, label="published: around 18, above 10 MB")
    lane = lane_gb_per_s(context.calibration(CALIBRATION))
    drawing.published_level(axes, lane, f"a lane in one direction: {lane:.3g}", "--")
    drawing.over_sizes(axes, _SIZES)
    axes.set_ylim(0, 1.12 * lane)
    drawing.finish(axes, ylabel=_GB_PER_S, legend="lower right")
    return f"{_BASIS}."


def _fig_24(figure: Any, context: Context) -> str:
    panels = figure.subplots(1, 3, sharey=True)
    rows = (
        ("chain-forward", "forward", {3: 22, 8: 20}),
        ("chain-reduce-forward", "reduce+forward", {3: 18, 8: 18}),
        ("chain-reduce-broadcast", "reduce-broadcast", {3: 19, 8: 16}),
    )
    for axes, (name, title, printed) in zip(panels, rows, strict=True):
        _patterns(axes, context, name, "GPUs", _SIZES)
        drawing.over_sizes(axes, _SIZES, every=3)
        for (gpus, gb_per_s), colour in zip(printed.items(), (drawing.BLUE, drawing.SKY), strict=True):
            drawing.published(axes, [(_LARGEST, gb_per_s)], f"published, {gpus} GPUs", colour)
        drawing.finish(axes, title, _GB_PER_S if axes is panels[0] else "", legend="")
    panels[0].set_ylim(bottom=0)
    drawing.legend_below(figure, panels[0], 8)
    return f"{_BASIS}, but for reduce+forward, for which Figs 7 and 24 contradict each other (E6)."


def _fig_26(figure: Any, context: Context) -> str:
    panels = figure.subplots(1, 3, sharey=True)
    rows = {
        "fan-in-forward": "fan-in forward",
        "fan-in-reduce-forward": "fan-in reduce+forward",
        "fan-out-forward": "fan-out forward",
    }
    lane = lane_gb_per_s(context.calibration(CALIBRATION))
    for axes, (name, title) in zip(panels, rows.items(), strict=True):
        _patterns(axes, context, name, "sources or destinations", _SIZES, ("-", "--", ":"))
        drawing.over_sizes(axes, _SIZES, every=3)
        drawing.published_level(axes, lane, f"a lane in one direction: {lane:.3g} GB/s", "--")
        drawing.finish(axes, title, _GB_PER_S if axes is panels[0] else "", legend="")
    panels[0].set_ylim(bottom=0)
    drawing.legend_below(figure, panels[0], 4)
    return f"{_BASIS}: near the maximum from 50 MB on, and 1 to 2 GB/s less with a reduction."


#: The paper does not name its four GPUs: these are drawn in colour, all others in grey.
_SHOWN: Gpus = (0, 1, 2, 3)


def _fig_12(figure: Any, context: Context) -> str:
    above, below = figure.subplots(2, 1, sharex=True)
    allocations = [gpus for gpus in connected_allocations("dgx-1v") if len(gpus) == 4]
    others = f"the other {len(allocations) - 1} allocations"
    for gpus in allocations:
        side = blink(context, "dgx-1v", "broadcast", gpus)
        trials = search(side.program, side.forest.topology, side.conditions.calibration, SIZE_BYTES)
        most = max(trial.gb_per_s for trial in trials)
        if gpus == _SHOWN:
            name = f"GPUs {', '.join(map(str, gpus))}: best {most:.3g} GB/s"
            style = {"color": drawing.OURS, "linewidth": 2.2, "marker": "o", "markersize": 4, "zorder": 5}
        else:
            # One name for all of them: the legend leaves out names that begin so.
            name, others = others, "_"
            style = {"color": drawing.GREY, "linewidth": 0.8, "alpha": 0.6}
        iterations = range(1, len(trials) + 1)
        above.plot(iterations, [trial.chunk_bytes / (1 << 20) for trial in trials], label=name, **style)
        below.plot(iterations, [100 * trial.gb_per_s / most for trial in trials], **style)
    above.plot(
        range(1, 5), [1, 2, 4, 8], "*", color=drawing.BLACK, markersize=9, zorder=10, label="published: 1 MB, doubling"
    )
    below.axvline(4, color=drawing.BLACK, linestyle=":", label="published: steady after 4 iterations")
    above.set_yscale("log", base=2)
    drawing.plain_numbers(above.yaxis)
    drawing.finish(above, ylabel="chunk (MiB)", legend="upper right")
    below.set_xlabel("iteration")
    drawing.finish(below, ylabel="throughput (% of best)", legend="lower right")
    return (
        f"MIAD (multiplicative increase, additive decrease by 1 MiB) on blink plans for broadcast of 500 MB among the "
        f"{len(allocations)} allocations of 4 GPUs of a DGX-1V, an iteration timed on {V100} each."
    )


def _fig_13(figure: Any, context: Context) -> str:
    ways = {
        "unfair sharing, a stream per tree": Settings("unfair"),
        "unfair sharing, streams reused": Settings("unfair", "reused"),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    names = []
    for gpus in connected_allocations("dgx-1v"):
        if not _share_a_link(plan("blink", "dgx-1v", "broadcast", gpus)):
            continue
        side = blink(context, "dgx-1v", "broadcast", gpus)
        fair = _gb_per_s(side, Settings("fair"))
        for name, settings in ways.items():
            found[name].append(100 * _gb_per_s(side, settings) / fair)
        names.append(",".join(map(str, gpus)))
    axes = figure.subplots()
    drawing.bars(axes, names, found, (drawing.VERMILION, drawing.OURS))
    drawing.published_level(axes, 100, "fair sharing", "--")
    drawing.upright(axes)
    axes.set_xlabel("GPUs of a DGX-1V")
    axes.set_ylim(0, 125)
    drawing.finish(axes, ylabel="throughput (% of fair)", legend="upper right", columns=3, grid="y")
    return (
        f"Blink plans for broadcast whose trees share links, {len(names)} of 46 allocations of a DGX-1V, 500 MB on "
        f"{V100}. Unfair: of the streams that wait for a link the first goes first. The paper prints no numbers."
    )


def _gb_per_s(side: Planned, settings: Settings) -> float:
    return replace(side, conditions=replace(side.conditions, settings=settings)).at(SIZE_BYTES).algbw_gb_per_s


def _share_a_link(forest: Forest) -> bool:
    """Whether two trees of a broadcast cross the same link."""
    crossed = Counter(arc for share in forest.shares for arc in link_use((share,)))
    return max(crossed.values()) > 1


FIGURES: tuple[Figure, ...] = (
    Figure("A-fig-07", "A", "Blink, Fig 7: reduce+forward along a chain of 3 to 8 GPUs", _fig_7),
    Figure("A-fig-08", "A", "Blink, Fig 8: two streams through one GPU (MIMO), two chains into one (MCA)", _fig_8),
    Figure("A-fig-12", "A", "Blink, Fig 12: the search for the best chunk", _fig_12, height_in=6.0),
    Figure("A-fig-13", "A", "Blink, Fig 13: streams reused where trees share a link", _fig_13),
    Figure("A-fig-24", "A", "Blink, Fig 24: depth tests along a chain of 3 to 8 GPUs", _fig_24, 12.0, 4.5),
    Figure("A-fig-26", "A", "Blink, Fig 26: breadth tests, 1 to 3 sources or destinations", _fig_26, 12.0, 4.5),
)
