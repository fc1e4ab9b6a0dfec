"""NCCL's channels as plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from blinkccl.api.export import packed
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.nccl_links import NVB
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.proof.audit import audit
from blinkccl.proof.check import check_plan
from blinkccl.topology import nccl_xml
from blinkccl.topology.catalog import connected_allocations, machine
from blinkccl.topology.json_format import to_document as topology_document
from blinkccl.topology.nccl_graph import ChannelGraph, parse
from blinkccl.trees.algorithms.given_channels import _between, forest_of
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.ring import SERVED, rings_for
from blinkccl.trees.forest.document import to_document
from blinkccl.units import bus_factor

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
        (rings((0, 1, 5, 6), kind="NVB"), UnsupportedError, r"from GPU 6 to 0 \(NVB\) has no path on dgx-1v"),
        (ChannelGraph(0, 4, ((0, 1),), 20, "NVL", across=True), UnsupportedError, "one of several servers"),
        (ChannelGraph(3, 5, ((0, 1),), 20, "NVL"), UnsupportedError, "neither rings"),
    ],
)
def test_what_no_plan_can_be_is_refused(graph, error, reason) -> None:
    with pytest.raises(error, match=reason):
        forest_of([graph], DGX)


def test_a_ring_through_a_gpu_is_a_plan() -> None:
    """GPUs 0 and 5 meet in the memory of GPU 1 or 4, to which they have equal links: NCCL takes the first."""
    found = forest_of([rings((0, 5, 1), kind="NVB")], DGX)
    (between,) = (vertex for vertex in found.topology.vertices if vertex.id not in found.ranks)
    assert (between.part_of, between.label) == (1, "GPU1 between")
    assert {path for share in found.shares for tree in share.trees() for path in tree.edges} == {
        (0, between.id, 5),
        (5, 1),
        (1, 0),
    }
    assert found.rate == found.topology.link[0, between.id].capacity / Fraction(4, 3)
    sums = {(0, 1): 0.0, (1, 5): 0.0, (5, 1): 0.0}
    for link in found.topology.links:
        whole = tuple(1 if end == between.id else end for end in (link.src, link.dst))
        sums[whole] = sums.get(whole, 0.0) + link.gb_per_s
    assert [sums[pair] for pair in ((0, 1), (1, 5), (5, 1), (1, 0))] == [25.0, 50.0, 50.0, 25.0]
    document = to_document(found)
    assert audit(document).ok
    assert check_plan(document, topology_document(DGX)).violations == []
    link = next(link for link in document["topology"]["links"] if link["dst"] == between.id)
    link["capacity"], link["gb_per_s"] = 2 * link["capacity"], 2 * link["gb_per_s"]
    assert "link 0 → 1 has 50.0 GB/s in the plan, 25.0 GB/s" in str(
        check_plan(document, topology_document(DGX)).violations
    )


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-1p"])
def test_gpus_between_are_those_that_nccl_takes(name) -> None:
    topology = machine(name)
    for ranks in connected_allocations(name, smallest=3):
        hops = NcclServer.of(topology, ranks).server.hops
        network = Request(topology, Collective("allreduce", len(ranks)), ranks).network
        for (src, dst), hop in hops.items():
            if hop.kind == NVB:
                assert _between(network, ranks, src, dst) == hop.path[1], (ranks, src, dst)


def test_what_is_exported_for_nccl_is_read_back() -> None:
    """The best rings of every job on a DGX-1V whose links NCCL sees at all: as fast as it counts them, at 25 for 20."""
    through = 0
    for ranks in connected_allocations("dgx-1v", smallest=3):
        (file,) = packed(DGX, ranks, "nccl-graph")
        graphs = parse(file.text, "export")
        found = forest_of(graphs, DGX)
        checked = audit(to_document(found))
        assert checked.ok, (ranks, checked.all_faults[:1])
        through += graphs[0].kind == "NVB"
        if graphs[0].kind in ("NVL", "NVB"):
            counted = len(graphs[0].orders) * graphs[0].gb_per_s
            assert found.algbw_gb_per_s * bus_factor("allreduce", len(ranks)) >= counted * 25 / 20 * 0.999
    assert through > 20


def test_a_graph_file_is_a_valid_plan_of_a_machine_without_nvlink() -> None:
    """Both rings cross the one path between the processors: 2 of 12 GB/s for the two of them, each way."""
    graphs = parse(graph_file({4: [(0, 1, 2, 3), (0, 3, 2, 1)], 1: [(0, 1, 2, 3), (1, 0, 3, 2)]}), "sys.xml")
    assert [(graph.id, len(graph.orders), graph.kind) for graph in graphs] == [(0, 2, "SYS"), (1, 2, "SYS")]
    found = forest_of(graphs, nccl_xml.parse(four_processors(), "four.xml"))
    assert audit(to_document(found)).ok
    assert Fraction(found.algbw_gb_per_s) == 8


def graph_file(patterns: dict[int, list[tuple[int, ...]]]) -> str:
    """What NCCL_GRAPH_DUMP_FILE holds: a graph per pattern, a channel per order of GPUs."""

    def channel(order: tuple[int, ...]) -> str:
        return f"<channel>{''.join(f'<gpu dev={chr(34)}{x}{chr(34)}/>' for x in order)}</channel>"

    graphs = [
        f'<graph id="{number}" pattern="{pattern}" nchannels="{len(orders)}" speedintra="12" speedinter="12" '
        f'typeintra="SYS" typeinter="PIX">{"".join(map(channel, orders))}</graph>'
        for number, (pattern, orders) in enumerate(patterns.items())
    ]
    return f'<graphs version="1">{"".join(graphs)}</graphs>'


def four_processors() -> str:
    """A virtual machine with a GPU of unknown PCIe speed below each of four AMD processors."""
    processors = [
        f'<cpu numaid="{x}" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">'
        f'<pci busid="000{x}:00:00.0" class="0x030200" link_speed="" link_width="0">'
        f'<gpu dev="{x}" sm="80" rank="{x}" gdr="1"/></pci></cpu>'
        for x in range(4)
    ]
    return f'<system version="1">{"".join(processors)}</system>'
