"""The audit of a plan: checker and verifier, also for a plan that one of them cannot process."""

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError, TopologyError, UsageError
from blinkccl.proof.audit import audit
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import to_document


@pytest.fixture
def document():
    topology = parse_spec("dgx-1v")
    request = Request(topology, Collective("allreduce", 4), (1, 4, 5, 6))
    return to_document(algorithm("optimal").plan(request))


def test_a_good_plan_is_optimal_without_violations(document):
    result = audit(document)
    assert result.ok
    assert result.verdict.optimal
    assert result.document()["violations"] == []


def test_a_plan_that_cannot_be_lowered_is_broken_not_unreadable(document):
    document["shares"][0]["reduce"].append([2, 5])
    result = audit(document)
    assert not result.ok
    assert result.program is None
    assert "vertex 2" in result.faults[0]


def test_a_plan_without_a_topology_is_checked_on_the_one_beside_it(document):
    del document["topology"]
    assert audit(document, parse_spec("dgx-1v")).ok
    with pytest.raises(UsageError, match="topology"):
        audit(document)
    with pytest.raises(TopologyError):
        audit(document, parse_spec("chain:8"))


def test_the_reader_refuses_ranks_that_are_no_numbers(document):
    del document["topology"]
    document["ranks"] = ["one", {}]
    with pytest.raises(ScheduleError, match="ranks"):
        audit(document, parse_spec("dgx-1v"))
