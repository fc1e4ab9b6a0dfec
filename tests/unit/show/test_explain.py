"""``blink explain``: it agrees with libblink.so's table, and with ``auto`` and NCCL's model for the same job."""

import json
import re

import pytest

from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.choice.programs import gpu_of
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.nccl.choices import ChoiceRow, Terms, table
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import DEFAULT, candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.show.explain import explain, explain_text
from blinkccl.show.text import seconds_text
from blinkccl.trees.algorithms import tables
from blinkccl.trees.algorithms.path_table import machine_key
from blinkccl.trees.algorithms.tables import GPUS, LABORATORY, NCCL, Cell, MeasuredTable, Time
from support.planned import asked

SIZES = (0, 4 << 10, 1 << 20, 64 << 20)


def explained(request, size_bytes):
    return explain(request, size_bytes, Conditions(calibration_for(request.topology)))


@pytest.mark.parametrize(("gpus", "name", "root"), [("1,4,5,6", "allreduce", 0), ("0-3", "scatter", 2)])
def test_the_library_row_is_that_of_the_planner(gpus, name, root):
    """Its row covers the size, in the table that a communicator's planner makes for all collectives at once."""
    request = asked("dgx-1v", name, gpus, root)
    place, gpu = JobPlacement(request.topology, request.ranks), gpu_of(request.topology)
    planned = candidates(place, DEFAULT, gpu.blocks, {})
    terms = Terms(gpu.capability, gpu.blocks)
    rows = table(planned, len(request.ranks), terms, NcclPredictor(place, gpu.capability)).choices
    key = name, -1 if request.collective.root is None else root
    taken = set()
    for size in SIZES:
        (row,) = [row for row in rows if (row.collective, row.root) == key and row.least <= size < row.below]
        library = explained(request, size).library
        assert isinstance(library, ChoiceRow)
        assert (library.least, library.below, library.protocol, library.why) == (
            row.least,
            row.below,
            row.protocol,
            row.why,
        )
        assert (library.candidate is None) == (row.candidate is None)
        taken.add(library.candidate is None)
    assert False in taken


def test_the_text_has_the_fastest_the_runner_up_nccl_and_the_bound():
    explanation = explained(asked("dgx-1v", gpus="1,4,5,6"), 64 << 20)
    best, second = explanation.choice.timed[:2]
    assert best.estimate.seconds == min(one.at(64 << 20).seconds for one in explanation.auto.plans)
    text = explain_text(explanation, why=True)
    for line in (
        f"fastest {best.plan.name}: {seconds_text(best.estimate.seconds)}, ",
        f"next    {second.plan.name}: {seconds_text(second.estimate.seconds)}, ",
        f"nccl    {explanation.nccl.words}: {seconds_text(explanation.nccl.seconds)}, ",
        f"{explanation.nccl.seconds / best.estimate.seconds:.2f} times as long as the fastest\nbound   ",
        "proof   no schedule of unicast store-and-forward trees on these links is faster:\n",
        "\ncritical path   move ",
        "\nunavailable:\n",
        "\n  three_phase: three_phase is for ranks on several servers",
    ):
        assert line in text
    short = explain_text(explanation)
    assert text.startswith(short[: short.index("unavailable")])
    assert short.endswith("\nunavailable: " + ", ".join(explanation.auto.absent) + " (reasons: --why)\n")


@pytest.mark.parametrize(
    ("spec", "name", "why", "nccl"),
    [
        (
            "mi250",
            "allreduce",
            "kernels need NVIDIA GPUs",
            "no model: NCCL runs on NVIDIA GPUs, but mi250 joins its GPUs by xGMI\n",
        ),
        (
            "dgx-1v",
            "sendrecv",
            "kernels do not run sendrecv: copy engines move messages",
            "no model: NCCL runs sendrecv as sends and receives, which its cost model does not cover\n",
        ),
        ("2x ring:2 @ 40Gbps", "allreduce", "kernels do not store between servers", "NCCL ring Simple: "),
    ],
)
def test_the_text_says_why_the_library_does_not_apply(spec, name, why, nccl):
    """NCCL's line does not depend on it."""
    explanation = explained(asked(spec, name), 1 << 20)
    assert explanation.library == why
    text = explain_text(explanation)
    assert f"here    libblink.so is not used for this call: {why}\n" in text
    assert f"nccl    {nccl}" in text


def measured_table(request, kind, *times):
    cell = Cell("allreduce", -1, tuple(request.ranks), 1 << 20, 1 << 20, 2 << 20, "2026-01-01", times)
    return MeasuredTable(machine_key(request.topology), "dgx-1v", kind, "somebody", 1.0, cells=(cell,))


def test_measured_times_are_marked():
    request = asked("dgx-1v", gpus="1,4,5,6")
    table = measured_table(request, GPUS, Time("optimal", "ll128", 5e-5, 9), Time(NCCL, "", 9e-5, 9))
    explanation = explain(request, 1 << 20, Conditions(calibration_for(request.topology)), table)
    text = explain_text(explanation)
    for line in (
        "here    libblink.so runs optimal by LL128 from 1M to below 2M "
        "(blink optimal ll128 21 GB/s, NCCL 11.7 GB/s measured at 1M)\n",
        "fastest optimal: 50.0 µs, 20.97 GB/s (measured, ll128; ",
        "by      somebody: measured at 1M on 2026-01-01\n",
        "nccl    NCCL, measured: 90.0 µs, 11.65 GB/s, 1.80 times as long as the fastest\n",
    ):
        assert line in text
    slow = measured_table(request, GPUS, Time("optimal", "ll128", 5e-5, 9), Time(NCCL, "", 1e-5, 9))
    text = explain_text(explain(request, 1 << 20, Conditions(calibration_for(request.topology)), slow))
    left = "libblink.so leaves it to NCCL from 1M to below 2M: none of its plans is measured 1.03 times as fast ("
    assert left in text
    assert " measured at " not in explain_text(explained(request, 1 << 20))


def test_laboratory_measurements_do_not_affect_kernels_and_nccl():
    request = asked("dgx-1v", gpus="1,4,5,6")
    table = measured_table(request, LABORATORY, Time("blink", "host", 1e-5, 9, 1 << 15))
    explanation = explain(request, 1 << 20, Conditions(calibration_for(request.topology)), table)
    before = explained(request, 1 << 20)
    assert explanation.library.why == before.library.why
    assert explanation.nccl == before.nccl
    assert [one.plan.name for one in explanation.choice.timed] == ["blink"]
    text = explain_text(explanation)
    assert "fastest blink: 10.0 µs, 104.9 GB/s (measured, host; chunks of 32K)\n" in text
    assert "times as long as the fastest" not in text


def test_the_verb_uses_measurements_of_this_machine(blink, tmp_path, monkeypatch):
    """The named file, or the one from blink tune; a file of another machine is ignored with a message."""
    request = asked("dgx-1v", gpus="1,4,5,6")
    table = measured_table(request, GPUS, Time("optimal", "ll128", 5e-5, 9))
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    path = tables.path_of_gpus(table.machine)
    tables.write(path, table)
    job = ("--topo", "dgx-1v", "--gpus", "1,4,5,6", "--size", "1M", "--json")
    assert json.loads(blink("explain", "allreduce", *job).out)["measured_by"] == "somebody"
    monkeypatch.setenv("BLINK_TUNED", "0")
    assert json.loads(blink("explain", "allreduce", *job).out)["measured_by"] is None
    assert json.loads(blink("explain", "allreduce", *job, "--measured", path).out)["choice"]["measured"]
    other = blink("explain", "allreduce", "--topo", "dgx-1p", "--gpus", "0-3", "-s", "1M", "--json", "--measured", path)
    assert "it was measured on machine" in other.err
    assert not json.loads(other.out)["choice"]["measured"]


def test_the_verb(blink):
    job = ("explain", "allreduce", "--topo", "dgx-1p", "--gpus", "0-3")
    text = blink(*job, "--size", "64M").out
    assert re.search(r"^here    libblink.so (runs|leaves it to NCCL) .*from .* (on|to below)", text, re.MULTILINE)
    document = json.loads(blink(*job, "--size", "64M", "--json").out)
    assert document["schema_version"] == 2
    assert document["size_bytes"] == 64 << 20
    assert document["libblink"]["least_bytes"] <= 64 << 20 <= document["libblink"]["most_bytes"]
    best = document["choice"]["timed"][0]
    assert best["seconds"] == min(one["seconds"] for one in document["choice"]["timed"])
    assert best["algorithm"] == document["decided_by"]["algorithm"]
    assert document["nccl"]["seconds"] > 0
    assert document["bound_gb_per_s"] == pytest.approx(40)
    still = json.loads(blink(*job, "--size", "0", "--json").out)
    assert {one["algorithm"] for one in still["choice"]["timed"]} == {
        one["algorithm"] for one in document["choice"]["timed"]
    } | document["choice"]["at_least_seconds"].keys()
    blink(*job, "--size", "much").assert_refused("--size: not a size in bytes: 'much'")
    assert blink(*job).code == 2
    mixed = ("explain", "allreduce", "-s", "1M", "-g", "2")
    blink(*mixed, "--gpus", "0-3").assert_refused(
        "-g is for processes on this host's CPUs, --gpus for GPUs: leave one out"
    )
