"""One total table from errors to exit codes, and every code reached through the command line."""

from __future__ import annotations

import json

import pytest

from blinkccl import errors
from blinkccl.cli import exits
from blinkccl.errors import BlinkError, TopologyError, UnsupportedError


def _all_errors(root=BlinkError):
    return {root}.union(*(_all_errors(kind) for kind in root.__subclasses__()))


@pytest.mark.parametrize(
    "kind", sorted((k for k in _all_errors() if k.__module__.startswith("blinkccl")), key=lambda kind: kind.__name__)
)
def test_the_table_names_every_class_that_the_package_raises(kind):
    assert kind in exits.EXIT_CODES


def test_a_class_that_is_not_named_counts_as_its_base():
    class RendezvousError(errors.CommunicationError):
        pass

    assert exits.exit_code(RendezvousError("rank 3")) == 4


def test_a_verification_error_is_a_failed_check():
    assert exits.exit_code(errors.VerificationError(["lost chunk"])) == 1
    assert exits.exit_code(errors.ScheduleError("no plan")) == 2


def test_0_for_what_works(blink):
    assert blink("topo", "ring:4").code == 0


def test_1_for_a_readable_plan_that_is_wrong(blink, tmp_path):
    path = tmp_path / "plan.json"
    blink("plan", "broadcast", "--topo", "ring:4", "-o", path)
    plan = json.loads(path.read_text())
    plan["rate"] = "3"
    path.write_text(json.dumps(plan))
    ended = blink("check", path)
    assert ended.code == 1
    assert "rate: 3 is stated, recomputed 2" in ended.out


def test_1_for_wrong_results(blink, monkeypatch):
    monkeypatch.setattr("blinkccl.bench.measure.wrong_elements", lambda *_: 7)
    ended = blink("bench", "allreduce", "--topo", "ring:3", "-b", "1K", "-n", "1", "-w", "0")
    assert ended.code == 1
    assert "FAILED" in ended.out
    assert "2 measurement(s) had wrong elements" in ended.err


def test_2_for_usage(blink):
    assert blink("plan").code == 2
    assert blink("plan", "allreduce", "--sideways").code == 2
    assert blink("plan", "allreduce", "--topo", "nothing").code == 2


@pytest.mark.parametrize(
    "failure",
    [TopologyError("NVML, starting: driver and library differ"), UnsupportedError("NVML, P2P: no such function")],
)
@pytest.mark.parametrize(
    "arguments", [["topo"], ["plan", "allreduce"], ["bench", "allreduce", "--engine", "reference"], ["pick", "-k", "2"]]
)
def test_3_for_a_driver_that_fails(blink, monkeypatch, failure, arguments):
    def probe():
        raise failure

    monkeypatch.setattr("blinkccl.topology.probe.probe", probe)
    ended = blink(*arguments)
    assert ended.code == 3
    assert str(failure) in ended.err


def test_4_for_a_run_past_its_deadline(blink):
    ended = blink("bench", "reduce", "--topo", "ring:3", "-b", "1K", "--timeout", "1e-9")
    assert ended.code == 4
    assert "is not done at the deadline" in ended.err
