"""The table from errors to exit codes is total, and every code is reached through the command line."""

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


class RendezvousError(errors.CommunicationError):
    """An error class that the table lacks."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RendezvousError("rank 3"), 4),
        (errors.VerificationError(["lost chunk"]), 1),
        (errors.ScheduleError("no plan"), 2),
    ],
)
def test_the_nearest_class_of_an_error_decides(error, code):
    assert exits.exit_code(error) == code


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "allreduce", "--sideways"], ["topo", "nothing"]])
def test_2_for_usage(blink, arguments):
    assert blink(*arguments).code == 2


def test_3_where_no_laboratory_can_be_built(blink, monkeypatch):
    monkeypatch.setattr(
        "blinkccl.apps.lab.namespaces.shutil.which", lambda tool: None if tool == "tc" else f"/sbin/{tool}"
    )
    ended = blink("lab", "broadcast", "--topo", "ring:3")
    assert ended.code == 3
    assert "links cannot be emulated here: it needs the command tc, which is not there; install iproute2" in ended.err


def test_3_where_namespaces_are_not_allowed(blink, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("blinkccl.apps.lab.namespaces.shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("blinkccl.apps.lab.namespaces._call", refuse)
    ended = blink("lab", "broadcast", "--topo", "ring:3")
    assert ended.code == 3
    assert "this process may not (Operation not permitted); run it as root" in ended.err


@pytest.mark.parametrize(
    "failure",
    [TopologyError("NVML, starting: driver and library differ"), UnsupportedError("NVML, P2P: no such function")],
)
@pytest.mark.parametrize(
    "arguments",
    [["topo"], ["plan", "allreduce"], ["bench", "allreduce", "--gpus", "0,1"], ["pick", "-k", "2"], ["doctor"]],
)
def test_3_for_a_driver_that_fails(blink, monkeypatch, failure, arguments):
    def probe():
        raise failure

    monkeypatch.setattr("blinkccl.topology.probe.probe", probe)
    ended = blink(*arguments)
    assert ended.code == 3
    assert str(failure) in ended.err


def test_4_for_ranks_that_do_not_meet_in_time(blink, monkeypatch):
    monkeypatch.setattr("blinkccl.cli.bench.DEADLINE_S", 1e-9)
    ended = blink("bench", "reduce", "--topo", "ring:3", "-b", "1K")
    assert ended.code == 4
    assert "a process exited with 1 before ranks" in ended.err
