"""All commands print the same time of NCCL for a job, and the reason if its model has none."""

import re

import pytest

from blinkccl.api.plan import plan_of
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.baselines.nccl import nccl_today
from blinkccl.cost.baselines.nccl_server import NcclPrediction
from blinkccl.cost.baselines.registry import BASELINES
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.errors import UnsupportedError
from blinkccl.show import beside as today
from blinkccl.show.beside import NAME, SIZE_BYTES, nccl_sentence
from blinkccl.show.explain import explain
from blinkccl.show.text import gb_per_s_text
from blinkccl.topology.select import joining_links
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.request import Request
from blinkccl.units import algbw_gb_per_s


def asked(spec: str, gpus: tuple[int, ...] | None = None, name: str = "allreduce", links: str = "fast") -> Request:
    topology = parse_spec(spec)
    ranks = topology.ranks if gpus is None else gpus
    root = 0 if "root" in COLLECTIVES[name].parameters else None
    return Request(topology, Collective(name, len(ranks), root), ranks, links)


@pytest.mark.parametrize(
    ("spec", "gpus", "size_bytes"),
    [
        ("dgx-1v", (1, 4, 5, 6), SIZE_BYTES),
        ("dgx-1v", (0, 1, 4), 1 << 20),
        ("dgx-1v", (1, 4, 6), SIZE_BYTES),
        ("2x dgx-1v @ 40Gbps", None, SIZE_BYTES),
    ],
)
def test_plan_sim_and_explain_agree_on_nccl(spec: str, gpus: tuple[int, ...] | None, size_bytes: int) -> None:
    topology = parse_spec(spec)
    request = asked(spec, gpus, links=joining_links(topology, gpus or topology.ranks)[0])
    prediction = nccl_today(request, size_bytes)
    assert isinstance(prediction, NcclPrediction)
    conditions = Conditions(calibration_for(request.topology))
    assert BASELINES[NAME].prepare(request, conditions).at(size_bytes).seconds == prediction.seconds
    assert explain(request, size_bytes, conditions).nccl == prediction
    plan = plan_of(request)
    (line,) = [line for line in plan.text(size_bytes=size_bytes).splitlines() if line.startswith("nccl  ")]
    nccl, blink = algbw_gb_per_s(size_bytes, prediction.seconds), plan.simulate(size_bytes).algbw_gb_per_s
    assert f"nccl    {gb_per_s_text(nccl)} algbw at " in line
    assert f"this plan {gb_per_s_text(blink)}: {blink / nccl:.3g} times as fast, effective rates" in line


def test_the_paper_has_its_name_and_year_and_nominal_rates() -> None:
    lines = plan_of(asked("dgx-1v", (1, 4, 5, 6))).text().splitlines()
    (line,) = [line for line in lines if "7.5 times as fast" in line]
    assert re.match(r"paper   6.667 GB/s algbw by the rule of NCCL 2.4, .* of 2019 \(.*; this plan 50 GB/s: ", line)
    assert line.endswith("nominal rates")


_SENDS = "sends and receives, which its cost model does not cover"


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (asked("mi250"), "NCCL runs on NVIDIA GPUs, but mi250 joins its GPUs by xGMI"),
        *(
            (asked(spec, name=name), f"NCCL runs {name} as {_SENDS}")
            for spec, name in (("dgx-1v", "gather"), ("torus:6x6", "alltoall"))
        ),
        (asked("dgx-1v", (0, 1), links="pcie"), "NCCL selects its links itself and cannot follow --links pcie"),
    ],
)
def test_the_line_says_why_there_is_no_prediction(request_: Request, why: str) -> None:
    assert nccl_today(request_, SIZE_BYTES) == why
    (line,) = [line for line in plan_of(request_).text().splitlines() if line.startswith("nccl  ")]
    assert line == f"nccl    no prediction: {why}"


def test_blink_sim_is_suggested_only_if_it_has_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(today, "MOST_RANKS", 1)
    monkeypatch.setattr(today, "MOST_STEPS", 1)
    for request in (asked("mi250"), asked("dgx-1v", name="alltoall"), asked("dgx-1v", (0, 1), links="pcie")):
        assert "no prediction" in nccl_sentence(plan_of(request).forest, request, SIZE_BYTES, float)
        with pytest.raises(UnsupportedError):
            BASELINES[NAME].prepare(request, Conditions(calibration_for(request.topology)))


@pytest.mark.parametrize("name", ["allreduce", "broadcast"])
@pytest.mark.parametrize("size_bytes", [0, 1, 3])
def test_there_is_no_line_if_nothing_moves(name: str, size_bytes: int) -> None:
    text = plan_of(asked("dgx-1v", (1, 4, 5, 6), name)).text(size_bytes=size_bytes)
    assert "nccl  " not in text
    assert "paper  " in text


def test_times_of_small_sizes_are_compared() -> None:
    plan = plan_of(asked("dgx-1v", (1, 4, 5, 6)))
    (line,) = [line for line in plan.text(size_bytes=64).splitlines() if line.startswith("nccl  ")]
    assert re.match(r"nccl    10\.4 µs for 64 bytes by nccl-2.30 \(tree LL .*; this plan \d+\.\d µs: ", line)


def test_the_faster_one_is_named() -> None:
    request = asked("dgx-1v", (0, 1))
    line = nccl_sentence(plan_of(request).forest, request, SIZE_BYTES, lambda _: 1.0)
    assert re.search(r"; this plan 1 GB/s: NCCL is \d+(\.\d+)? times as fast, effective rates$", line)


def test_a_large_plan_is_not_simulated_for_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked("dgx-1v", (1, 4, 5, 6))
    forest = plan_of(request).forest
    monkeypatch.setattr(today, "MOST_STEPS", 11)

    def never(*_: object) -> float:
        raise AssertionError("it is timed")

    line = nccl_sentence(forest, request, SIZE_BYTES, never)
    assert line == "nccl    not simulated for a plan of 12 steps; run blink sim with --algo optimal,nccl-2.30"
