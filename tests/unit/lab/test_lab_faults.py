"""The rest of a job after a fault."""

import pytest

from blinkccl.apps.lab import experiment, faults
from blinkccl.apps.lab.experiment import LabCandidate, Measured
from blinkccl.apps.lab.faults import Fault, Story
from blinkccl.apps.lab.laboratory import Run
from blinkccl.errors import UsageError
from support.planned import asked


@pytest.mark.parametrize(
    ("typed", "fault"),
    [
        ("0-3", Fault("cut", (0, 3))),
        ("cut:0-3", Fault("cut", (0, 3))),
        ("slow:3-0", Fault("slow", (3, 0))),
        ("lossy:0-3", Fault("lossy", (0, 3))),
        ("5", Fault("kill", None, 5)),
        ("kill:5", Fault("kill", None, 5)),
    ],
)
def test_what_fails_is_read(typed: str, fault: Fault) -> None:
    assert Fault.parse(typed) == fault


@pytest.mark.parametrize("typed", ["", "slow:5", "melt:0-3", "0-3,1-2", "kill:0-3", "0-", "x"])
def test_what_is_no_fault_is_refused(typed: str) -> None:
    with pytest.raises(Exception, match="--fail"):
        Fault.parse(typed)


def test_the_rest_is_planned_without_what_failed() -> None:
    request = asked("dgx-1v", "allreduce")
    assert (0, 3) not in Fault.parse("0-3").request(request).topology.link
    slow = Fault.parse("slow:0-3").request(request).topology
    assert slow.link[0, 3].capacity * 10 == slow.link[0, 4].capacity
    assert slow.link[0, 3].gb_per_s == pytest.approx(5)


def test_a_root_that_dies_is_replaced_and_another_keeps_its_place() -> None:
    request = asked("dgx-1v", "broadcast", "4,5,6,7", root=2)
    assert Fault.parse("6").request(request).collective.root == 0
    assert Fault.parse("4").request(request).collective.root == 1
    assert Fault.parse("4").request(request).ranks == (5, 6, 7)


def test_a_job_of_two_does_not_outlive_one() -> None:
    with pytest.raises(UsageError, match="without 1 only one is left"):
        Fault.parse("1").request(asked("dgx-1v", "sendrecv", "0,1"))
    with pytest.raises(UsageError, match="--fail kill:7: not a rank of the job"):
        Fault.parse("7").request(asked("dgx-1v", "allreduce", "0,1"))


def test_a_link_that_no_plan_takes_cannot_fail() -> None:
    field = experiment.prepare(asked("dgx-1v", "broadcast", "0,1"), ("optimal",), 100)
    layout = field.laboratory().layout
    Fault.parse("1-0").check(layout)
    Fault.parse("kill:1").check(layout)
    for typed in ("4-5", "slow:0-99"):
        with pytest.raises(UsageError, match=r"no plan here uses a link .*; expected one of 0-1"):
            Fault.parse(typed).check(layout)


def test_that_there_is_no_plan_around_is_told() -> None:
    field = experiment.prepare(asked("dgx-1v", "broadcast", "0,1", links="fast"), ("optimal",), 100)
    around = faults.plan_around(field, Fault.parse("0-1"), "optimal")
    assert isinstance(around, LabCandidate)  # over PCIe
    assert {link.kind for link in around.forest.topology.links} <= {"pcie", "smp"}
    alone = experiment.prepare(asked("clique:2", "broadcast"), ("optimal",), 100)
    reason = faults.plan_around(alone, Fault.parse("0-1"), "optimal")
    assert isinstance(reason, str)
    assert reason.startswith("no plan: ")


def test_a_story_is_told_and_written_down() -> None:
    field = experiment.prepare(asked("ring:4", "broadcast"), ("optimal",), 100)
    done = experiment.planned(field.candidates[0], 1 << 20, field.slower)
    done.runs.append(Run(1.0, 0, 0.5))
    story = Story(Fault.parse("0-1"), done, 0.5, ("link 0 → 1", 2.0), "no plan: there is no other")
    assert "link 0-1 is cut after 0.50 s" in story.text()
    assert "after 2.00 s: link 0 → 1" in story.text()
    assert "no plan: there is no other" in story.text()
    assert story.document()["during"] == {"error": "link 0 → 1", "after_s": 2.0}
    went_on = Story(Fault.parse("slow:0-1"), done, 0.5, Run(3.0, 0, 0.1), done)
    assert "it continued: 3.00 s, 0 wrong" in went_on.text()
    assert isinstance(went_on.after, Measured)
    assert went_on.document()["after"]["wrong"] == 0
