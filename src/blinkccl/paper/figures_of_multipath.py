"""The multi-path UCX article's figures of copies and of AllReduce: 3 to 8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from blinkccl.baselines.candidate import Prepared
from blinkccl.baselines.nccl import prepare_nccl_24, prepare_nccl_230
from blinkccl.baselines.staged import STREAMS, prepare_host_staged
from blinkccl.paper import drawing
from blinkccl.paper.claim import Context
from blinkccl.paper.drawing import Figure
from blinkccl.paper.jobs_of_others import MIB, conditions, plan, request, seconds
from blinkccl.paper.multipath import CEDAR_THEORY, MIST_THEORY, cluster, copy_of
from blinkccl.simulate.calibration import link_cost
from blinkccl.units import bus_factor

_COPIES = tuple(MIB << power for power in range(10))
#: The article's AllReduces are of 8 MB to 1 GB.
_SIZES = tuple(8 * MIB << power for power in range(8))
_STREAMS = (1, 2, 4, STREAMS)
_LINKS = {"mist": "GPUs 0 and 1 of Mist", "cedar": "GPUs 0 and 1 of Cedar"}
#: Peaks as the text prints them, GB/s, of copies over two paths, and how many times the direct copy's that is.
_PUT = {"mist": (120.0, 1.67, MIST_THEORY), "cedar": (54.0, 1.18, CEDAR_THEORY)}
_WINDOW = {"mist": (134.0, 1.84, MIST_THEORY), "cedar": (60.0, 1.23, CEDAR_THEORY)}

#: Time of a library over that of the article's design, by size, as its text prints it.
Ratios = Mapping[str, Mapping[int, float]]
_MIST: Ratios = {
    "Open MPI + UCX": {64 * MIB: 14.33, 1024 * MIB: 15.63},
    "Spectrum MPI": {64 * MIB: 11.47, 1024 * MIB: 12.25},
    "NCCL": {64 * MIB: 1.25, 1024 * MIB: 1.38},
    "MVAPICH2-GDR": {64 * MIB: 1.26, 1024 * MIB: 1.47},
    "HPC-X": {64 * MIB: 1.09},
}
_CEDAR: Ratios = {
    "Open MPI + UCX": {64 * MIB: 104.1},
    "MVAPICH2": {64 * MIB: 110.9},
    "NCCL": {64 * MIB: 1.06},
    "hierarchical": {64 * MIB: 2.77},
}
_TWO_NODES: Ratios = {"MVAPICH2-GDR": {64 * MIB: 1.18}}
#: A published mark has the colour of the line that it is to be compared with.
_STAGED, _NCCL, _NCCL_NOW, _OTHER = drawing.VERMILION, drawing.ORANGE, drawing.PURPLE, drawing.GREEN
_MARKS = {
    "Open MPI + UCX": ("*", _STAGED),
    "Spectrum MPI": ("X", _STAGED),
    "MVAPICH2": ("P", _STAGED),
    "NCCL": ("*", _NCCL),
    "hierarchical": ("*", _OTHER),
    "MVAPICH2-GDR": ("p", "white"),
    "HPC-X": ("h", "white"),
}

Time = Callable[[int], float]


def _copies(window: int, printed: Mapping[str, tuple[float, float, int]]) -> Callable[[Any, Context], str]:
    """Fig 3 or 4: direct and over two paths, both machines."""

    def draw(figure: Any, context: Context) -> str:
        panels = figure.subplots(1, 2)
        for axes, (machine, (peak, times, theory)) in zip(panels, printed.items(), strict=True):
            direct = copy_of(context, machine, Fraction(0), window=window)
            # The article looks the number of streams up in a table by size; here the fastest is taken.
            both = [copy_of(context, machine, None, streams, window) for streams in _STREAMS]
            curves = {
                "direct": [(size, direct.at(size).algbw_gb_per_s) for size in _COPIES],
                "two paths": [(size, max(side.at(size).algbw_gb_per_s for side in both)) for size in _COPIES],
            }
            drawing.lines(axes, curves, (drawing.THEIRS, drawing.OURS))
            drawing.published_level(axes, peak, f"published: two paths, peak {peak:g}")
            drawing.published_level(axes, peak / times, f"published: {times:g} times {peak / times:.3g}", "--")
            drawing.published_level(axes, theory, f"links' rates: {theory:g}", "-.")
            drawing.over_sizes(axes, _COPIES, every=3)
            axes.set_ylim(0, 1.05 * theory)
            drawing.finish(axes, _LINKS[machine], "bandwidth (GB/s)", legend="lower right")
        *few, most = _STREAMS
        streams = ", ".join(map(str, few))
        how = "one message" if window == 1 else f"{window} messages at once"
        return (
            f"Multi-path copies with the best split, {how}, the host's part on the best of {streams} and {most} "
            "streams, on the calibrations mist and cedar, whose link rates are fitted to the article's Fig 3."
        )

    return draw


def _at(side: Prepared, size_bytes: int) -> float:
    return side.at(size_bytes).seconds


def _allreduce(figure: Any, times: Mapping[str, tuple[Time, str]], ratios: Ratios, design: str, legend: str) -> None:
    """Times above, and below how many times the design's they are, beside the printed ratios."""
    above, below = figure.subplots(2, 1, sharex=True)
    found = {name: [time(size) for size in _SIZES] for name, (time, _) in times.items()}
    colours = [colour for _, colour in times.values()]
    drawing.lines(
        above,
        {name: [(size, 1e3 * s) for size, s in zip(_SIZES, taken, strict=True)] for name, taken in found.items()},
        colours,
    )
    over = {
        f"_{name}": [(size, s / least) for size, s, least in zip(_SIZES, taken, found[design], strict=True)]
        for name, taken in found.items()
    }
    drawing.lines(below, over, colours)
    values = [x for points in over.values() for _, x in points]
    for number, (name, by_size) in enumerate(ratios.items()):
        marker, colour = _MARKS[name]
        # Side by side, as some of them are equal.
        aside = 1.08 ** (number - (len(ratios) - 1) / 2)
        drawing.published(
            below, [(size * aside, x) for size, x in by_size.items()], f"published: {name}", colour, marker
        )
        values += by_size.values()
    for axes in (above, below):
        axes.set_yscale("log")
        drawing.plain_numbers(axes.yaxis)
    drawing.plain_numbers(below.yaxis, (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100))
    below.set_ylim(0.7 * min(values), 1.7 * max(values))
    drawing.over_sizes(below, _SIZES)
    drawing.finish(above, ylabel="time (ms)", legend="upper left")
    drawing.finish(below, ylabel=f"time over {design}", legend=legend if ratios else "")


def _one_server(machine: str, design: str, how: str, others: Mapping[str, str], ratios: Ratios, note: str) -> Any:
    """Fig 5 or 6: a plan of ours on one server against the article's baselines."""

    def draw(figure: Any, context: Context) -> str:
        asked, costs = request(machine, "allreduce"), conditions(context, machine)
        times: dict[str, tuple[Time, str]] = {
            design: (partial(seconds, context, plan(how, machine, "allreduce"), machine), drawing.OURS)
        }
        for name, other in others.items():
            times[name] = (partial(seconds, context, plan(other, machine, "allreduce"), machine), _OTHER)
        times["NCCL 2.4, rings"] = (partial(_at, prepare_nccl_24(asked, costs)), _NCCL)
        times["NCCL 2.30, its own model"] = (partial(_at, prepare_nccl_230(asked, costs)), _NCCL_NOW)
        times["MPI through the host"] = (partial(_at, prepare_host_staged(asked, costs)), _STAGED)
        _allreduce(figure, times, ratios, design, "center right")
        return (
            f"Plans of {', '.join((how, *others.values()))} at the best chunk, and nccl-2.4, on {machine}; "
            f"mpi-host-staged with assumed rates of the processor; nccl-2.30 without a calibration. {note}"
        )

    return draw


def _several_nodes(nodes: int, ratios: Ratios) -> Callable[[Any, Context], str]:
    """Fig 7 or 8."""

    def draw(figure: Any, context: Context) -> str:
        spec = cluster(nodes)
        asked, costs = request(spec, "allreduce"), conditions(context, "mist")
        design, pipelined = "the design", plan("three_phase", spec, "allreduce")
        times = {
            design: (partial(_stage_by_stage, context, nodes), drawing.OURS),
            "three_phase, pipelined": (partial(seconds, context, pipelined, "mist"), _OTHER),
            "NCCL 2.4": (partial(_at, prepare_nccl_24(asked, costs)), _NCCL),
            "NCCL 2.30, its own model": (partial(_at, prepare_nccl_230(asked, costs)), _NCCL_NOW),
        }
        _allreduce(figure, times, ratios, design, "upper right")
        return (
            f"The design: its five stages one after another at mist's link rates, no latencies, so the least it can "
            f"take; three_phase plan and nccl-2.4 on mist, {spec}; nccl-2.30 without a calibration. The article's MPIs "
            "between nodes are not in our baselines."
        )

    return draw


def _stage_by_stage(context: Context, nodes: int, size_bytes: int) -> float:
    """The least time of the design on several nodes: five stages, none begun before the last one is over.

    Reduce to a socket's leader, reduce-scatter between the leaders, AllReduce between nodes, and the same way back. The
    leaders' halves make S on a node's one network card.
    """
    topology = request(cluster(nodes), "allreduce").topology
    rate = {link.kind: link_cost(context.calibration("mist"), link).rate for link in topology.links}
    across = float(bus_factor("allreduce", nodes)) / rate["net"]
    return size_bytes * (2 / rate["nvlink"] + 2 * 0.5 / rate["smp"] + across)


_DRAW_MIST = _one_server(
    "mist",
    "hierarchical design",
    "three_stage",
    {"this package's optimum": "optimal"},
    _MIST,
    "What HPC-X and MVAPICH2-GDR do is not described, so they have no line.",
)
_DRAW_CEDAR = _one_server(
    "cedar",
    "flat design",
    "flat",
    {"hierarchical design": "three_stage"},
    _CEDAR,
    "Our flat plan is a pipeline; why MPI through the host is so much slower there the article does not say.",
)

FIGURES: tuple[Figure, ...] = (
    Figure("C-fig-3", "C", "Multi-path UCX, Fig 3: put bandwidth", _copies(1, _PUT), 11.0, 4.5),
    Figure("C-fig-4", "C", "Multi-path UCX, Fig 4: bandwidth of 64 messages at once", _copies(64, _WINDOW), 11.0, 4.5),
    Figure("C-fig-5", "C", "Multi-path UCX, Fig 5: AllReduce on Mist", _DRAW_MIST, 9.0, 7.5),
    Figure("C-fig-6", "C", "Multi-path UCX, Fig 6: AllReduce on Cedar", _DRAW_CEDAR, 9.0, 7.5),
    Figure("C-fig-7", "C", "Multi-path UCX, Fig 7: AllReduce on two nodes", _several_nodes(2, _TWO_NODES), 9.0, 7.0),
    Figure("C-fig-8", "C", "Multi-path UCX, Fig 8: AllReduce on four nodes", _several_nodes(4, {}), 9.0, 7.0),
)
