"""The time of today's NCCL for a job: the one answer, wherever it is printed, and its line beside a plan.

It is NCCL's own model of version 2.30 (:mod:`blinkccl.nccl.nccl_predictor`), at what links reach and not at nominal
rates. So is what stands beside it: the plan's time at the same size. The paper's baseline, NCCL 2.4 at nominal rates,
is :mod:`~blinkccl.show.ring_baseline`.
"""

from __future__ import annotations

from collections.abc import Callable

from blinkccl.cost.baselines.nccl import nccl_230_fault
from blinkccl.cost.baselines.nccl_links import VERSION
from blinkccl.cost.choice.programs import gpu_of
from blinkccl.errors import BlinkError
from blinkccl.nccl.nccl_predictor import NcclPrediction, NcclPredictor
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.show.text import bytes_text, count, gb_per_s_text, seconds_text, times_of_nccl
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.units import algbw_gb_per_s

#: S, where nobody says.
SIZE_BYTES = 64 << 20
NAME = f"nccl-{VERSION[0]}.{VERSION[1]}"
#: Steps of a plan, and its ranks, that are timed in a fifth of a second; larger ones wait for somebody who asks.
MOST_STEPS, MOST_RANKS = 2_000, 64
#: Below this a time says more than a rate.
LEAST_GB_PER_S = 0.1
_OVER = {"NVL": "NVLink", "NVB": "NVLink and a relay", "C2C": "C2C", "PIX": "PCIe", "PXB": "PCIe", "PHB": "PCIe"}


def nccl_today(request: Request, size_bytes: int) -> NcclPrediction | str:
    """NCCL's time for S bytes; where its model knows none, why, in a sentence without full stop.

    Cost: NCCL's search for channels, some 10 ms for 8 GPUs and a quarter of a second for 128.
    """
    fault = nccl_230_fault(request)
    if fault is not None:
        return fault
    predictor = NcclPredictor(JobPlacement(request.topology, request.ranks), gpu_of(request.topology).capability)
    if predictor.caveat:
        return predictor.caveat
    try:
        return predictor.at(request.collective, size_bytes)
    except BlinkError as error:
        return str(error)


def nccl_sentence(forest: Forest, request: Request, size_bytes: int, ours: Callable[[int], float]) -> str:
    """A line for people: NCCL and the plan at one size, like beside like; "" on processors, and where nothing moves.

    ``ours``: the plan's algbw, GB/s.
    """
    if any(request.topology.vertex[rank].kind != "gpu" for rank in request.ranks):
        return ""
    theirs = nccl_today(request, size_bytes) if len(forest.ranks) <= MOST_RANKS else nccl_230_fault(request)
    if isinstance(theirs, str):
        return f"nccl    no number: {theirs}"
    steps = sum(len(tree.edges) for share in forest.shares for tree in share.trees())
    if theirs is None or steps > MOST_STEPS:
        return f"nccl    not timed beside a plan of {steps:,} steps: blink sim does, with --algo optimal,{NAME}"
    if not size_bytes or not theirs.seconds:
        return ""
    rate = algbw_gb_per_s(size_bytes, theirs.seconds)
    try:
        rate_of_ours = ours(size_bytes)
    except BlinkError as error:
        return f"nccl    {_reached(size_bytes, rate)} by {NAME} ({how(theirs)}); this plan is not timed: {error}"
    if not rate_of_ours:
        return ""
    small = min(rate, rate_of_ours) < LEAST_GB_PER_S
    same = seconds_text(size_bytes / rate_of_ours * 1e-9) if small else gb_per_s_text(rate_of_ours)
    than = times_of_nccl(rate_of_ours / rate)
    said = f"nccl    {_reached(size_bytes, rate, small)} by {NAME} ({how(theirs)})"
    return f"{said}; this plan {same}: {than}, effective rates"


def _reached(size_bytes: int, gb_per_s: float, small: bool = False) -> str:
    """``26.2 GB/s algbw at 64M``, or ``9.3 µs for 64 bytes``."""
    if small:
        size = bytes_text(size_bytes) if size_bytes >= 1 << 10 else count(size_bytes, "byte")
        return f"{seconds_text(size_bytes / gb_per_s * 1e-9)} for {size}"
    return f"{gb_per_s_text(gb_per_s)} algbw at {bytes_text(size_bytes)}"


def how(prediction: NcclPrediction) -> str:
    """``ring Simple over NVLink and a relay``."""
    over = _OVER.get(prediction.over, "PCIe and the bus between processors" if prediction.over else "")
    words = prediction.words.removeprefix("NCCL ")
    return f"{words} over {over}" if over else words
