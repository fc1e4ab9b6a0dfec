"""NCCL's channels as plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from blinkccl.advice.audit import audit
from blinkccl.algorithms.given_channels import forest_of
from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.algorithms.ring import SERVED, rings_for
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.forest.document import to_document
from blinkccl.topology.catalog import machine
from blinkccl.topology.formats import read_topology
from blinkccl.topology.nccl_graph import ChannelGraph, parse

SHARED = Path(__file__).parents[3] / "../shared" / "topologies"
DGX = machine("dgx-1v")


def rings(*orders: tuple[int, ...], kind: str = "NVL") -> ChannelGraph:
    return ChannelGraph(0, 4, orders, 20, kind)


@pytest.mark.parametrize("name", SERVED)
def test_the_rings_of_nccl_24_read_back_are_its_plan(name) -> None:
    """A graph file with the rings of our own planner, one channel per lane, gives the same shares and rate."""
    ranks = tuple(range(8))
    request = Request(DGX, Collective(name, 8, 0 if "root" in COLLECTIVES[name].parameters else None), ranks)
    lanes = [ring.order for ring in rings_for(request)[1] for _ in range(int(ring.capacity))]
    found, wanted = forest_of([rings(*lanes)], DGX, name), ALGORITHMS["ring"].plan(request)
    assert (found.shares, found.rate, found.bound) == (wanted.shares, wanted.rate, wanted.bound)
    assert audit(to_document(found)).ok


def test_a_ring_that_is_turned_is_the_same_channel() -> None:
    assert forest_of([rings((0, 1, 2), (1, 2, 0))], DGX) == forest_of([rings((0, 1, 2))], DGX)


def test_gpus_are_found_by_the_index_in_their_name() -> None:
    """Files may number GPUs from 4 on, which are vertices from 0 on."""
    named = tuple(replace(v, name=f"GPU{(v.id + 4) % 8}") if v.kind == "gpu" else v for v in DGX.vertices)
    shifted = replace(DGX, vertices=named)
    assert forest_of([rings((4, 5, 6))], shifted).ranks == (0, 1, 2)


def test_chains_are_trees() -> None:
    chain = ChannelGraph(1, 1, ((0, 1, 2, 3),), 20, "NVL")
    found = forest_of([chain], DGX)
    (share,) = found.shares
    assert share.root == 0
    assert share.broadcast is not None
    assert share.broadcast.edges == ((0, 1), (1, 2), (2, 3))
    assert audit(to_document(found)).ok


@pytest.mark.parametrize(
    ("graph", "error", "reason"),
    [
        (rings((0, 9)), UsageError, "names GPU 9, and dgx-1v has 8"),
        (rings((0,)), UnsupportedError, "moves nothing"),
        (rings((0, 5, 1)), UnsupportedError, "from GPU 0 to 5"),
        (rings((0, 5, 1), kind="NVB"), UnsupportedError, "another GPU of the job"),
        (ChannelGraph(0, 4, ((0, 1),), 20, "NVL", across=True), UnsupportedError, "one of several servers"),
        (ChannelGraph(3, 5, ((0, 1),), 20, "NVL"), UnsupportedError, "neither rings"),
    ],
)
def test_what_no_plan_can_be_is_refused(graph, error, reason) -> None:
    with pytest.raises(error, match=reason):
        forest_of([graph], DGX)


def test_the_azure_dump_is_a_valid_plan_of_its_machine() -> None:
    """Both rings cross the one path between the processors: 2 of 12 GB/s for the two of them, each way."""
    if not SHARED.is_dir():
        pytest.skip("the folder of sample topologies is not beside the checkout")
    graphs = parse((SHARED / "azure-ncv4.nccl-graph.xml").read_text(), "azure")
    assert [(graph.id, len(graph.orders), graph.kind) for graph in graphs] == [
        (0, 2, "SYS"),
        (1, 4, "SYS"),
        (2, 4, "SYS"),
    ]
    found = forest_of(graphs, read_topology(SHARED / "azure-ncv4-4xa100-pcie.nccl.xml"))
    assert audit(to_document(found)).ok
    assert Fraction(found.algbw_gb_per_s) == 8
