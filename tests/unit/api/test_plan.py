"""``blinkccl.plan`` agrees with the command line, and refuses bad arguments."""

import json
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blinkccl
from blinkccl.errors import (
    BlinkError,
    ScheduleError,
    TopologyError,
    UnsupportedError,
    UsageError,
    VerificationError,
)
from blinkccl.nccl.programs import candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.catalog import machine
from blinkccl.trees.forest.document import dumps

JOB = ("--topo", "dgx-1v", "--gpus", "1,4,5,6")


@pytest.fixture(scope="module")
def plan() -> blinkccl.Plan:
    return blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 4, 5, 6])


def test_a_plan_prints_like_the_command_line(plan: blinkccl.Plan, blink: Any) -> None:
    assert f"{plan}\n" == blink("plan", "allreduce", *JOB).out
    stated = json.loads(blink("plan", "allreduce", *JOB, "--json").out)
    del stated["plan_seconds"]
    assert plan.document() == stated
    assert plan.explain("64M") + "\n" == blink("explain", "allreduce", "--size", "64M", *JOB).out


def test_rates_are_exact_and_as_nccl_tests_counts(plan: blinkccl.Plan) -> None:
    assert plan.rate.lanes == plan.bound.lanes == Fraction(2)
    assert (plan.rate.algbw_gb_per_s, plan.rate.busbw_gb_per_s) == (50.0, 75.0)
    assert plan.optimal
    assert plan.proof.endswith("at most 2")
    ring = blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 4, 5, 6], algo="ring", links="pcie")
    assert not ring.optimal
    assert ring.rate.lanes < ring.bound.lanes


def test_a_saved_plan_equals_that_of_the_command_line(plan: blinkccl.Plan, blink: Any, tmp_path: Path) -> None:
    saved, written = tmp_path / "saved.json", tmp_path / "written.json"
    plan.save(saved)
    blink("plan", "allreduce", *JOB, "-o", str(written))
    assert saved.read_bytes() == written.read_bytes()
    again = blinkccl.load(str(saved))
    assert again.forest == plan.forest
    assert f"{again.check()}\n" == blink("check", str(saved)).out
    assert again.export("cuda") == plan.export("cuda") == blink("export", str(saved), "--to", "cuda").out
    simulated = json.loads(blink("sim", str(saved), "--size", "64M", "--json").out)
    estimate = again.simulate(64 << 20)
    assert estimate.seconds == plan.simulate("64M").seconds == simulated["sizes"][0]["algorithms"][0]["seconds"]
    with pytest.raises(UsageError, match=r"plan again with blinkccl\.plan"):
        again.explain("64M")


def test_a_machine_is_checked_with_the_plan(plan: blinkccl.Plan) -> None:
    assert "optimal on the links of dgx-1v with --links fast" in str(plan.check())
    assert repr(plan.check()) == "<Check allreduce among 4 ranks (1,4-6) of dgx-1v, by optimal: ok>"


def test_a_changed_file_is_read_and_fails_its_check(plan: blinkccl.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(dumps(plan.document() | {"bound": "3"}))
    false = blinkccl.load(path)
    check = false.check()
    assert not check.ok
    assert "refused: 1 violation" in str(check)
    with pytest.raises(VerificationError, match="bound"):
        false.export("cuda")


def test_a_size_selects_the_fastest_plan(blink: Any) -> None:
    plan = blinkccl.plan("allreduce", "dgx-1p", gpus="0-3", size="64M")
    assert plan.choice is not None
    assert plan.choice.best.forest is plan.forest
    assert f"{plan}\n" == blink("plan", "allreduce", "--topo", "dgx-1p", "--gpus", "0-3", "--size", "64M").out


@pytest.mark.parametrize("gpus", [(4, 1, 6), "4,1,6", range(4, 7), np.array([4, 1, 6]), iter([4, 1, 6])])
def test_gpus_keep_their_order(gpus: Any) -> None:
    ranks = (4, 5, 6) if isinstance(gpus, range) else (4, 1, 6)
    assert blinkccl.plan("broadcast", "clique:8", gpus=gpus).forest.ranks == ranks


def test_ends_are_numbers_of_the_topology() -> None:
    plan = blinkccl.plan("sendrecv", "dgx-1v", gpus=[2, 3, 6], src=6)
    assert (plan.forest.collective.src, plan.forest.collective.dst) == (2, 1)
    assert blinkccl.plan("broadcast", "dgx-1v", gpus=[2, 3], root=3).forest.collective.root == 1


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (UsageError, "unknown collective 'sum'", {"collective": "sum"}),
        (UsageError, "collective None: expected a name", {"collective": None}),
        (UsageError, r"algo \['ring'\]: expected a name", {"algo": ["ring"]}),
        (UsageError, "unknown algorithm 'quick'", {"algo": "quick"}),
        (UsageError, "size is for algo auto, got algo ring", {"algo": "ring", "size": 4}),
        (UsageError, "size: not a size in bytes: 'big'", {"size": "big"}),
        (UsageError, "size: not a size in bytes: '-4'", {"size": -4}),
        (UsageError, "allreduce has no root: leave root 1 out", {"root": 1}),
        (UsageError, "^root 5 is not among the GPUs", {"collective": "reduce", "gpus": [1, 2], "root": 5}),
        (UsageError, "at least two GPUs", {"gpus": [3]}),
        (UsageError, "a set, which has no order", {"gpus": {1, 2}}),
        (UsageError, 'expected a list of numbers, or text like "1,4-6"', {"gpus": 3}),
        (UsageError, "expected a list of numbers", {"gpus": ["a", "b"]}),
        (UsageError, "expected a list of numbers", {"gpus": [1.0, 2.0]}),
        (TopologyError, "gpus is empty", {"gpus": []}),
        (TopologyError, "^gpus 1,x: 'x' is no GPU number", {"gpus": "1,x"}),
        (TopologyError, "given twice", {"gpus": [1, 1]}),
        (TopologyError, "GPU 99 is not in dgx-1v", {"gpus": [1, 99]}),
        (TopologyError, "unknown topology 'dgx-9'", {"topology": "dgx-9"}),
        (TopologyError, "cannot be read", {"topology": Path("nowhere.xml")}),
        (UsageError, r"blinkccl\.topo, got a list", {"topology": [1, 2]}),
        (TopologyError, "unknown links 'nvlink'", {"links": "nvlink"}),
        (UnsupportedError, "one_hop needs every pair", {"algo": "one_hop", "gpus": [1, 4, 5, 6]}),
    ],
)
def test_bad_arguments(error: type[BlinkError], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        blinkccl.plan(**{"collective": "allreduce", "topology": "dgx-1v"} | arguments)


def test_bad_files(plan: blinkccl.Plan, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"nowhere\.json cannot be read: No such file"):
        blinkccl.load(tmp_path / "nowhere.json")
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(ScheduleError, match=r"no\.json: plan: object missing required field"):
        blinkccl.load(tmp_path / "no.json")
    with pytest.raises(UsageError, match="cannot be written"):
        plan.save(tmp_path / "no" / "folder.json")
    with pytest.raises(UsageError, match="format 'rust'"):
        plan.export("rust")


class _Tags(HTMLParser):
    """A parser that checks that tags are closed in order, and collects ``text`` and ``tags``."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_the_summary_and_the_picture(plan: blinkccl.Plan) -> None:
    page = _Tags()
    page.feed(plan._repr_html_())
    assert page.open == []
    for text in ("How fast", "50 GB/s", "The slowest cut: 2 links between {1,5,6} and {4}", "GPU5"):
        assert text in page.text
    assert "svg" in page.tags


def test_a_plan_and_a_machine_are_shown_in_files(plan: blinkccl.Plan, tmp_path: Path) -> None:
    for shown in (plan, blinkccl.topo("dgx-1v")):
        for name, begin in (("x.html", b"<!DOCTYPE html>"), ("x.svg", b"<svg "), ("x.txt", b"")):
            shown.show(tmp_path / name)
            content = (tmp_path / name).read_bytes()
            assert content.startswith(begin)
            assert len(content) > 500
    with pytest.raises(UsageError, match=r"x.pdf: expected a name that ends in .html, .svg or .txt"):
        plan.show(tmp_path / "x.pdf")


def test_gpus_in_parts_are_planned_on_the_links_that_libblink_takes(caplog: pytest.LogCaptureFixture) -> None:
    plan = blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 4, 6])
    (record,) = caplog.records
    assert "in 2 parts: {1} and {4,6}" in record.message
    warnings: list[str] = []
    programs = candidates(JobPlacement(machine("dgx-1v"), (1, 4, 6)), ("optimal",), 8, {}, warnings.append)
    assert warnings[0] == record.message
    assert programs.by_key["allreduce", -1][0].forest == plan.forest
    assert plan.request.links == "pcie"
    with pytest.raises(blinkccl.errors.TopologyError, match="--links fast leaves the GPUs"):
        blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 4, 6], links="fast")
