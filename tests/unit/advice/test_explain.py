"""``blink explain``: it says what libblink.so's table says, and what ``auto`` and NCCL's model say of the same job."""

from __future__ import annotations

import json
import re

import pytest

from blinkccl.advice.explain import explain
from blinkccl.advice.explain_text import explain_text
from blinkccl.baselines.candidate import Conditions
from blinkccl.choice.programs import gpu_of
from blinkccl.nccl.choices import ChoiceRow, Terms, table
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import DEFAULT, candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.report.text import seconds_text
from blinkccl.simulate.calibration import calibration_for
from support.planned import asked

SIZES = (0, 4 << 10, 1 << 20, 64 << 20)


def explained(request, size_bytes):
    return explain(request, size_bytes, Conditions(calibration_for(request.topology)))


@pytest.mark.parametrize(("gpus", "name", "root"), [("1,4,5,6", "allreduce", 0), ("0-3", "broadcast", 2)])
def test_it_says_what_the_library_does(gpus, name, root):
    """The row that a communicator's planner makes, for all collectives at once, has the size."""
    request = asked("dgx-1v", name, gpus, root)
    place, gpu = JobPlacement(request.topology, request.ranks), gpu_of(request.topology)
    planned = candidates(place, DEFAULT, gpu.blocks, {})
    terms = Terms(gpu.capability, gpu.blocks)
    rows = table(planned, len(request.ranks), terms, NcclPredictor(place, gpu.capability)).choices
    key = name, -1 if request.collective.root is None else root
    taken = set()
    for size in SIZES:
        (row,) = [row for row in rows if (row.collective, row.root) == key and row.least <= size <= row.most]
        found = explained(request, size).library
        assert isinstance(found, ChoiceRow)
        assert (found.least, found.most, found.protocol, found.why) == (row.least, row.most, row.protocol, row.why)
        assert (found.candidate is None) == (row.candidate is None)
        taken.add(found.candidate is None)
    assert False in taken


def test_the_fastest_is_said_with_the_runner_up_nccl_and_the_bound():
    found = explained(asked("dgx-1v", gpus="1,4,5,6"), 64 << 20)
    best, second = found.choice.timed[:2]
    assert best.estimate.seconds == min(one.at(64 << 20).seconds for one in found.auto.plans)
    text = explain_text(found)
    for line in (
        f"fastest {best.plan.name}: {seconds_text(best.estimate.seconds)}, ",
        f"next    {second.plan.name}: {seconds_text(second.estimate.seconds)}, ",
        f"nccl    {found.nccl.words}: {seconds_text(found.nccl.seconds)}, ",
        f"{found.nccl.seconds / best.estimate.seconds:.2f} times as long as the fastest\nbound   ",
        "proof   no schedule of unicast store-and-forward trees on these links is faster:\n",
        "\ncritical path   move ",
        "\nnot here:\n",
        "\n  three_phase: three_phase is for ranks on several servers",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("spec", "name", "why"),
    [
        ("mi250", "allreduce", "kernels are CUDA's, and these are no NVIDIA GPUs"),
        ("dgx-1v", "sendrecv", "kernels serve no sendrecv: messages go by copy engines"),
        ("2x ring:2 @ 40Gbps", "allreduce", "no kernel of ours stores between servers"),
    ],
)
def test_where_the_library_has_no_say_that_is_said(spec, name, why):
    found = explained(asked(spec, name), 1 << 20)
    assert (found.library, found.nccl) == (why, why)
    text = explain_text(found)
    assert f"here    libblink.so has no say: {why}\n" in text
    assert f"nccl    no model: {why}\n" in text


def test_the_verb(blink):
    job = ("explain", "allreduce", "--topo", "dgx-1p", "--gpus", "0-3")
    text = blink(*job, "--size", "64M").out
    assert re.search(r"^here    libblink.so (runs|leaves it to NCCL) .*from .* (on|to below)", text, re.MULTILINE)
    found = json.loads(blink(*job, "--size", "64M", "--json").out)
    assert found["schema_version"] == 2
    assert found["size_bytes"] == 64 << 20
    assert found["libblink"]["least_bytes"] <= 64 << 20 <= found["libblink"]["most_bytes"]
    best = found["choice"]["timed"][0]
    assert best["seconds"] == min(one["seconds"] for one in found["choice"]["timed"])
    assert best["algorithm"] == found["decided_by"]["algorithm"]
    assert found["nccl"]["seconds"] > 0
    assert found["bound_gb_per_s"] == pytest.approx(40)
    still = json.loads(blink(*job, "--size", "0", "--json").out)
    assert {one["algorithm"] for one in still["choice"]["timed"]} == {
        one["algorithm"] for one in found["choice"]["timed"]
    } | found["choice"]["at_least_seconds"].keys()
    blink(*job, "--size", "much").assert_refused("--size: not a size in bytes: 'much'")
    assert blink(*job).code == 2
    mixed = ("explain", "allreduce", "-s", "1M", "-g", "2")
    blink(*mixed, "--gpus", "0-3").assert_refused("-g is for processes of this host, --gpus for GPUs: leave one out")
