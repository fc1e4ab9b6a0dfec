"""The audit of a plan: checker and verifier, and what happens when one of them cannot start."""

from __future__ import annotations

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


def test_a_good_plan(document):
    found = audit(document)
    assert found.ok
    assert found.verdict.optimal
    assert found.document()["violations"] == []


def test_a_plan_that_cannot_be_lowered_is_broken_not_unreadable(document):
    document["shares"][0]["reduce"].append([2, 5])
    found = audit(document)
    assert not found.ok
    assert found.program is None
    assert "vertex 2" in found.faults[0]


def test_the_topology_beside_it_is_used_where_it_brings_none(document):
    del document["topology"]
    assert audit(document, parse_spec("dgx-1v")).ok
    with pytest.raises(UsageError, match="topology"):
        audit(document)
    with pytest.raises(TopologyError):
        audit(document, parse_spec("chain:8"))


def test_ranks_that_are_none_are_the_readers_business(document):
    del document["topology"]
    document["ranks"] = ["one", {}]
    with pytest.raises(ScheduleError, match="ranks"):
        audit(document, parse_spec("dgx-1v"))
