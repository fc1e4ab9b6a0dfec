"""What today's NCCL takes for a job: the one answer, wherever it is printed, and the line of it beside a plan.

It is NCCL's own model of version 2.30 (:mod:`blinkccl.nccl.nccl_predictor`), at what links reach and not at nominal
rates. So is what stands beside it: the plan's time at the same size. The paper's baseline, NCCL 2.4 at nominal rates,
is :mod:`~blinkccl.advice.ring_baseline`.
"""

from __future__ import annotations

from collections.abc import Callable

from blinkccl.algorithms.registry import Request
from blinkccl.baselines.nccl_links import VERSION
from blinkccl.choice.programs import SERVED, gpu_of
from blinkccl.errors import BlinkError
from blinkccl.forest.model import Forest
from blinkccl.nccl.nccl_predictor import NcclPrediction, NcclPredictor
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.report.text import bytes_text, gb_per_s_text, times
from blinkccl.topology.select import PCIE_CHOICES
from blinkccl.units import algbw_gb_per_s

#: S, where nobody says.
SIZE_BYTES = 64 << 20
NAME = f"nccl-{VERSION[0]}.{VERSION[1]}"
#: Steps of a plan, and its ranks, that are timed in a fifth of a second; larger ones wait for somebody who asks.
MOST_STEPS, MOST_RANKS = 2_000, 64
_OVER = {"NVL": "NVLink", "NVB": "NVLink and a relay", "C2C": "C2C", "PIX": "PCIe", "PXB": "PCIe", "PHB": "PCIe"}


def nccl_today(request: Request, size_bytes: int) -> NcclPrediction | str:
    """NCCL's time for S bytes; where its model knows none, why, in a sentence without full stop.

    Cost: NCCL's search for channels, some 10 ms for 8 GPUs and a quarter of a second for 128.
    """
    if request.collective.name not in SERVED:
        return f"NCCL's model has no {request.collective.name}"
    if request.links in PCIE_CHOICES:
        return f"NCCL chooses its links itself, whatever --links {request.links} says"
    predictor = NcclPredictor(JobPlacement(request.topology, request.ranks), gpu_of(request.topology).capability)
    if predictor.caveat:
        return predictor.caveat
    try:
        return predictor.at(request.collective, size_bytes)
    except BlinkError as error:
        return str(error)


def nccl_sentence(forest: Forest, request: Request, size_bytes: int, ours: Callable[[int], float]) -> str:
    """A line for people: NCCL and the plan at one size, like beside like; "" on processors.

    ``ours``: the plan's algbw, GB/s.
    """
    if any(request.topology.vertex[rank].kind != "gpu" for rank in request.ranks):
        return ""
    steps = sum(len(tree.edges) for share in forest.shares for tree in share.trees())
    if steps > MOST_STEPS or len(forest.ranks) > MOST_RANKS:
        return f"nccl    not timed beside a plan of {steps:,} steps: blink sim does, with --algo optimal,{NAME}"
    theirs = nccl_today(request, size_bytes)
    if isinstance(theirs, str):
        return f"nccl    no number: {theirs}"
    if not theirs.seconds:
        return ""
    rate = algbw_gb_per_s(size_bytes, theirs.seconds)
    said = f"nccl    {gb_per_s_text(rate)} algbw at {bytes_text(size_bytes)} by {NAME} ({how(theirs)})"
    try:
        rate_of_ours = ours(size_bytes)
    except BlinkError as error:
        return f"{said}; this plan is not timed: {error}"
    return f"{said}; this plan {gb_per_s_text(rate_of_ours)}: {times(rate_of_ours / rate)}, effective rates"


def how(prediction: NcclPrediction) -> str:
    """``ring Simple over NVLink and a relay``."""
    over = _OVER.get(prediction.over, "PCIe and the bus between processors" if prediction.over else "")
    words = prediction.words.removeprefix("NCCL ")
    return f"{words} over {over}" if over else words
