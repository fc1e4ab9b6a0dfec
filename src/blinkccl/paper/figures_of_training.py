"""Blink's figures of training steps: 5, 18 and 22 (a)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from blinkccl.baselines.candidate import Conditions, Prepared, planned
from blinkccl.paper import drawing
from blinkccl.paper.allocations import connected_allocations
from blinkccl.paper.blink_jobs import COPY_ENGINES, nccl, plan, request, topology_of
from blinkccl.paper.blink_protocols import FRAGMENTED
from blinkccl.paper.blink_training import chosen_allocations, trained
from blinkccl.paper.claim import Context
from blinkccl.paper.drawing import Figure
from blinkccl.paper.models import NETWORKS, network
from blinkccl.paper.training import Seconds, compare, step_time
from blinkccl.topology.spec import parse_gpus

_NAMES = {"alexnet": "AlexNet", "resnet18": "ResNet18", "resnet50": "ResNet50", "vgg16": "VGG16"}
_COLOURS = dict(zip(NETWORKS, (drawing.ORANGE, drawing.SKY, drawing.BLUE, drawing.VERMILION), strict=True))
_STEP = "DDP buckets of 25 MiB during the backward pass"
_V100 = COPY_ENGINES["dgx-1v"]


def _seconds(side: Prepared) -> Seconds:
    """Time of an AllReduce by size; networks have buckets in common, so each size is timed once."""
    return lru_cache(maxsize=256)(lambda size_bytes: side.at(size_bytes).seconds)


def _fig_5(figure: Any, context: Context) -> str:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (machine, gpu) in zip(panels, (("dgx-1p", "p100"), ("dgx-1v", "v100")), strict=True):
        overheads: dict[tuple[str, int], list[float]] = {}
        for gpus in connected_allocations(machine):
            side = _seconds(nccl(context, request(machine, "allreduce", gpus), COPY_ENGINES[machine]))
            for name in NETWORKS:
                step = step_time(network(name), gpu, len(gpus), side)
                overheads.setdefault((name, len(gpus)), []).append(step.overhead_percent)
        for number, name in enumerate(NETWORKS):
            _ranges(axes, 8 * number, name, {n: overheads[name, n] for n in range(3, 9)})
        places = [8 * number + ranks for number in range(len(NETWORKS)) for ranks in range(3, 9)]
        axes.set_xticks(places, labels=[str((place - 3) % 8 + 3) for place in places], fontsize=7)
        axes.set_xlabel("GPUs")
        if machine == "dgx-1v":
            drawing.published_level(axes, 50, "published, DGX-1V: as high as 50 %")
            axes.legend(loc="upper right", fontsize=8)
        drawing.finish(axes, {"dgx-1p": "DGX-1P", "dgx-1v": "DGX-1V"}[machine], legend="", grid="y")
    panels[0].set_ylim(0, 75)
    panels[0].set_ylabel("communication (% of a step)")
    return (
        "Baseline nccl-2.4 on nccl-2.4-p100 and nccl-2.4-v100, or on their low-latency ones where these are faster; "
        f"best and worst of the 14 and 46 allocations; {_STEP}, communication that arithmetic does not hide. Times of "
        "arithmetic are published throughputs of one GPU."
    )


def _ranges(axes: Any, offset: int, name: str, overheads: dict[int, list[float]]) -> None:
    """From best to worst for each number of GPUs, and the network's name below them."""
    places = [offset + ranks for ranks in overheads]
    low, high = [min(found) for found in overheads.values()], [max(found) for found in overheads.values()]
    axes.vlines(places, low, high, color=_COLOURS[name], linewidth=5, alpha=0.6)
    for ends in (low, high):
        axes.plot(places, ends, "_", color=drawing.BLACK, markersize=8)
    axes.text(offset + 5.5, -0.16, _NAMES[name], ha="center", transform=axes.get_xaxis_transform(), fontsize=9)


def _fig_18(figure: Any, context: Context) -> str:
    above, below = figure.subplots(2, 1, sharex=True)
    chosen = chosen_allocations()
    found = {(one.gpus, one.network): one.overlapped for one in trained(context, chosen)}
    groups = [",".join(map(str, gpus)) for gpus in chosen]
    colours = [_COLOURS[name] for name in NETWORKS]
    for axes, what, title, most, mean, top in (
        (above, "step_reduction", "whole step, less time (%)", 40, 6.3, 75),
        (below, "communication_reduction", "communication, less time (%)", 87, 31, 130),
    ):
        # The colours are named in one of both panels: legends leave out names that begin with this.
        hidden = "" if axes is above else "_"
        heights = {
            f"{hidden}{_NAMES[name]}": [100 * (getattr(found[gpus, name], what) or 0) for gpus in chosen]
            for name in NETWORKS
        }
        drawing.bars(axes, groups, heights, colours)
        drawing.published_level(axes, most, f"published: up to {most} %")
        drawing.published_level(axes, mean, f"published: geometric mean {mean:g} %", "--")
        axes.axhline(0, color=drawing.BLACK, linewidth=0.8)
        axes.set_ylim(top=top)
        drawing.finish(axes, ylabel=title, legend="upper right", columns=6, grid="y")
    drawing.upright(below)
    below.set_xlabel("GPUs of a DGX-1V")
    return (
        f"Blink plans for AllReduce on {_V100}, baseline nccl-2.4 as in Fig 5; {_STEP}. One allocation of each "
        "speed-up in theory per number of GPUs; the paper does not list its own. Communication: time the communicator "
        "is busy."
    )


def _fig_22a(figure: Any, context: Context) -> str:
    spec = "2x dgx-1v @ 40Gbps"
    gpus = parse_gpus(FRAGMENTED, topology_of(spec))
    conditions = Conditions(context.calibration(_V100), named=context.calibration)
    ours = _seconds(planned("three_phase", plan("three_phase", spec, "allreduce", gpus), conditions))
    theirs = _seconds(nccl(context, request(spec, "allreduce", gpus), _V100))
    found = [compare(network(name), "v100", len(gpus), ours, theirs) for name in NETWORKS]
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    groups = [_NAMES[name] for name in NETWORKS]
    steps = {
        "Blink": [1e3 * one.ours.total_s for one in found],
        "NCCL 2.4": [1e3 * one.theirs.total_s for one in found],
        "arithmetic alone": [1e3 * one.ours.compute_s for one in found],
    }
    drawing.bars(left, groups, steps, (drawing.OURS, drawing.THEIRS, drawing.GREY))
    drawing.finish(left, "a step", "time (ms)", legend="upper left", grid="y")
    reductions = [100 * (one.step_reduction or 0.0) for one in found]
    drawing.bars(right, groups, {"simulated": reductions}, (drawing.OURS,))
    drawing.published_level(right, 11, "published: up to 11 %")
    right.set_ylim(min(0.0, *reductions), 1.4 * max(11.0, *reductions))
    drawing.finish(right, "less time with Blink", "%", legend="upper right", grid="y")
    return (
        f"Three_phase plan on {_V100} against baseline nccl-2.4 with its trees between servers; GPUs {FRAGMENTED} of "
        f"{spec}; {_STEP}. The paper compares with Horovod over NCCL and MPI, which is not in our baselines."
    )


FIGURES: tuple[Figure, ...] = (
    Figure("A-fig-05", "A", "Blink, Fig 5: communication overhead with NCCL, best to worst", _fig_5, 12.0, 4.5),
    Figure("A-fig-18", "A", "Blink, Fig 18: less training time with Blink than with NCCL", _fig_18, 13.0, 7.0),
    Figure("A-fig-22a", "A", "Blink, Fig 22 (a): training over 3 and 5 GPUs of two DGX-1V", _fig_22a, 10.0, 4.5),
)
