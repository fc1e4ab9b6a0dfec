"""Figures of the post "NCCL ring vs tree" and of the notes on NCCL's algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blinkccl.baselines.nccl_model import ALGORITHMS, PROTOCOLS, NcclEstimate, choose, crossover, predict
from blinkccl.baselines.staged import PLAIN_NET_GB_PER_S, PLAIN_STEP_US, prepare_plain_ring
from blinkccl.paper import drawing
from blinkccl.paper.claim import Context
from blinkccl.paper.drawing import Figure
from blinkccl.paper.jobs_of_others import GIB, KIB, MIB, channels, conditions, request, seconds
from blinkccl.paper.models import compute_at, peak_flops_per_s, transformer
from blinkccl.paper.notes import (
    GRADIENT_BYTES,
    LINK_GB_PER_S,
    MACHINE,
    MEASURED,
    PARAMETERS,
    SAMPLE,
    TOKENS,
    ring,
)
from blinkccl.paper.notes import RANKS as EIGHT
from blinkccl.paper.ring_vs_tree import BUSBW, CLUSTER, RANKS, SERVERS, TABLE
from blinkccl.paper.training import Seconds, roofline_seconds, step_time
from blinkccl.units import algbw_gb_per_s, bus_factor

_SIZES = tuple(4 * KIB << power for power in range(22))
_RING, _NCCL = "ring in Python, simulated", "NCCL 2.30's own model"
#: The post's last column.
_SPEEDUPS = (34, 17, 8, 6, 7, 7)
#: GB/s beside the three large sizes of the post's table; they are busbw, of the ring and of NCCL.
_PRINTED_GB_PER_S = {64 * MIB: (18, 104), 512 * MIB: (20, 136), 8 * GIB: (20, 140)}
_POST_BASIS = (
    f"Plain-ring on h100, with {PLAIN_STEP_US.value:g} µs a step and {PLAIN_NET_GB_PER_S.value:g} GB/s between servers "
    "fitted to the table's first and last row; NCCL 2.30's cost model of rings and trees, without a calibration; both "
    f"on {CLUSTER}"
)


def _post(context: Context) -> dict[str, list[float]]:
    """Seconds of both sides by size."""
    side = prepare_plain_ring(request(CLUSTER, "allreduce"), conditions(context, "h100"))
    found = channels(CLUSTER)
    return {
        _RING: [side.at(size).seconds for size in _SIZES],
        _NCCL: [
            choose(found, "allreduce", size, ranks=RANKS, servers=SERVERS, arch="hopper").seconds for size in _SIZES
        ],
    }


def _both(axes: Any, values: dict[str, list[float]]) -> None:
    curves = {name: list(zip(_SIZES, found, strict=True)) for name, found in values.items()}
    drawing.lines(axes, curves, (drawing.OURS, drawing.THEIRS))
    drawing.over_sizes(axes, _SIZES, every=3)


def _latency(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    _both(axes, {name: [1e3 * s for s in found] for name, found in _post(context).items()})
    drawing.published(axes, [(size, ms) for _, size, ms, _ in TABLE], "ring in Python, published", drawing.OURS)
    drawing.published(axes, [(size, ms) for _, size, _, ms in TABLE], "NCCL, published", drawing.THEIRS)
    axes.set_yscale("log")
    drawing.plain_numbers(axes.yaxis)
    drawing.finish(axes, ylabel="time (ms)", legend="upper left")
    return f"{_POST_BASIS}."


def _bandwidth(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    factor = float(bus_factor("allreduce", RANKS))
    found = {
        name: [factor * algbw_gb_per_s(size, s) for size, s in zip(_SIZES, taken, strict=True)]
        for name, taken in _post(context).items()
    }
    _both(axes, found)
    for number, (name, colour) in enumerate((("ring in Python", drawing.OURS), ("NCCL", drawing.THEIRS))):
        marks = [(size, gb_per_s[number]) for size, gb_per_s in _PRINTED_GB_PER_S.items()]
        drawing.published(axes, marks, f"{name}, published", colour)
    drawing.published(axes, [(8 * GIB, BUSBW)], "nccl-tests, published", drawing.THEIRS, "D")
    axes.set_ylim(bottom=0)
    drawing.finish(axes, ylabel="busbw (GB/s)", legend="upper left")
    return f"{_POST_BASIS}. What the post's table calls GB/s is busbw."


def _speedup(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    found = _post(context)
    ratios = [a / b for a, b in zip(found[_RING], found[_NCCL], strict=True)]
    drawing.lines(axes, {"ring simulated over NCCL's model": list(zip(_SIZES, ratios, strict=True))}, (drawing.OURS,))
    marks = [(row[1], times) for row, times in zip(TABLE, _SPEEDUPS, strict=True)]
    drawing.published(axes, marks, colour=drawing.THEIRS)
    drawing.over_sizes(axes, _SIZES, every=3)
    axes.set_ylim(bottom=0)
    drawing.finish(axes, ylabel="ring's time over NCCL's", legend="upper right")
    return f"{_POST_BASIS}."


def _predicted(size_bytes: int) -> tuple[NcclEstimate, ...]:
    return predict(channels(MACHINE), "allreduce", size_bytes, ranks=EIGHT, servers=1, arch="hopper")


def _roofline(figure: Any, context: Context) -> str:
    axes = figure.subplots()
    by_size = {size: {(p.algorithm, p.protocol): p.busbw_gb_per_s for p in _predicted(size)} for size in _SIZES}
    colours = dict(zip(PROTOCOLS, (drawing.SKY, drawing.GREEN, drawing.ORANGE), strict=True))
    for algorithm in ALGORITHMS:
        for protocol in PROTOCOLS:
            axes.plot(
                _SIZES,
                [found[algorithm, protocol] for found in by_size.values()],
                "--" if algorithm == "tree" else "-",
                color=colours[protocol],
                linewidth=1.3,
                label=f"{'chain' if algorithm == 'tree' else algorithm}, {protocol}",
            )
    chosen = [(size, max(found.values())) for size, found in by_size.items()]
    axes.plot(*zip(*chosen, strict=True), color=drawing.BLACK, linewidth=4, alpha=0.25, label="what NCCL 2.30 chooses")
    factor = float(bus_factor("allreduce", EIGHT))
    sizes = _SIZES[::3]
    timed = [(size, factor * algbw_gb_per_s(size, seconds(context, ring(MACHINE), "h100", size))) for size in sizes]
    axes.plot(*zip(*timed, strict=True), "o", color=drawing.OURS, label="rings, simulated on h100")
    drawing.published_level(axes, LINK_GB_PER_S, f"roofline of §6: a GPU's {LINK_GB_PER_S} GB/s", "--")
    drawing.published(axes, [(size * GIB, busbw) for size, _, busbw in MEASURED], "published, §5")
    drawing.published(axes, [(size, busbw) for size, _, _, busbw in SAMPLE], "published, §9", drawing.VERMILION, "X")
    drawing.over_sizes(axes, _SIZES, every=3)
    axes.set_yscale("log")
    drawing.plain_numbers(axes.yaxis)
    drawing.finish(axes, ylabel="busbw (GB/s)", legend="lower right", columns=2)
    winners = crossover(channels(MACHINE), "allreduce", ranks=EIGHT, servers=1, arch="hopper")
    changes = ", ".join(f"{w.algorithm} {w.protocol} from {w.from_bytes:,} bytes" for w in winners)
    return (
        f"NCCL 2.30's cost model on {MACHINE}, without a calibration and without NVLS: {changes}; ring plans on h100 "
        "at the best chunk. Its tree is a chain inside one server. §9's last row is ten times too high (N7)."
    )


def _step(figure: Any, context: Context) -> str:
    def roofline(size_bytes: int) -> float:
        return roofline_seconds(size_bytes, EIGHT, LINK_GB_PER_S)

    def nccl(size_bytes: int) -> float:
        return _predicted(size_bytes)[0].seconds

    def simulated(size_bytes: int) -> float:
        return seconds(context, ring(MACHINE), "h100", size_bytes)

    sparse, dense = (peak_flops_per_s("h200", sparse) for sparse in (True, False))
    model = transformer(PARAMETERS)
    names, parts, overlapped = ["as printed in §10"], [(1.7e-3, 355e-3)], [max(1.7e-3, 355e-3)]
    rows: Sequence[tuple[str, float, Seconds]] = (
        ("sparse peak, roofline of §6", sparse, roofline),
        ("dense peak, roofline of §6", dense, roofline),
        ("dense peak, NCCL 2.30's model", dense, nccl),
        ("dense peak, rings simulated", dense, simulated),
    )
    for name, peak, taken in rows:
        compute = compute_at(model, TOKENS, peak)
        names.append(name)
        parts.append((compute.total_s, taken(GRADIENT_BYTES)))
        overlapped.append(step_time(model, compute, EIGHT, taken).total_s)
    axes = figure.subplots()
    places = range(len(names))
    arithmetic, moving = ([part[i] for part in parts] for i in range(2))
    axes.barh(places, arithmetic, 0.6, color=drawing.OURS, label="arithmetic", zorder=2)
    axes.barh(places, moving, 0.6, arithmetic, color=drawing.THEIRS, label="AllReduce of 140 GB", zorder=2)
    low, high = [place - 0.36 for place in places], [place + 0.36 for place in places]
    axes.vlines(overlapped, low, high, color=drawing.BLACK, linewidth=2.5, label="step with overlap", zorder=3)
    for place, (busy_s, moved_s) in zip(places, parts, strict=True):
        text = f"{1e3 * busy_s:,.4g} + {1e3 * moved_s:,.3g} ms" if place == 0 else f"{busy_s:.2f} + {moved_s:.2f} s"
        axes.text(busy_s + moved_s + 0.06, place, text, va="center", fontsize=9)
    axes.set_yticks(places, labels=names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(map(sum, parts)))
    axes.set_xlabel("time of a step (s)")
    drawing.finish(axes, legend="upper right", grid="x")
    return (
        "6 FLOPs per parameter and token at the data sheet's peaks of an H200; 2(n-1)/n of the gradients over "
        f"{LINK_GB_PER_S} GB/s, NCCL 2.30's cost model, or ring plans on h100. With overlap each block's gradients go "
        "while the ones before it are computed; the printed row is the larger of its numbers."
    )


FIGURES: tuple[Figure, ...] = (
    Figure("D-latency", "D", "NCCL ring vs tree: latency of AllReduce among 16 H100s", _latency),
    Figure("D-bandwidth", "D", "NCCL ring vs tree: bandwidth of AllReduce among 16 H100s", _bandwidth),
    Figure("D-speedup", "D", "NCCL ring vs tree: how many times as fast NCCL is", _speedup),
    Figure("E-roofline", "E", "NCCL notes: AllReduce on 8 H200s by size, and the roofline", _roofline, 9.0, 6.5),
    Figure("E-step", "E", "NCCL notes, §10: a training step of 70 billion parameters on 8 H200s", _step, 9.0, 4.0),
)
