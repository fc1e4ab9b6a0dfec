"""NCCL's channels as plans."""

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
    """A graph file with the rings of Blink's planner, one channel per lane, gives the same shares and rate."""
    ranks = tuple(range(8))
    request = Request(DGX, Collective(name, 8, 0 if "root" in COLLECTIVES[name].parameters else None), ranks)
    lanes = [ring.order for ring in rings_for(request)[1] for _ in range(int(ring.capacity))]
    forest, planned = forest_of([rings(*lanes)], DGX, name), ALGORITHMS["ring"].plan(request)
    assert (forest.shares, forest.rate, forest.bound) == (planned.shares, planned.rate, planned.bound)
    assert audit(to_document(forest)).ok


def test_a_rotated_ring_is_the_same_channel() -> None:
    assert forest_of([rings((0, 1, 2), (1, 2, 0))], DGX) == forest_of([rings((0, 1, 2))], DGX)


def test_gpus_are_found_by_the_index_in_their_name() -> None:
    """A file may number its GPUs from 4 on, while their vertices begin with 0."""
    named = tuple(replace(v, name=f"GPU{(v.id + 4) % 8}") if v.kind == "gpu" else v for v in DGX.vertices)
    shifted = replace(DGX, vertices=named)
    assert forest_of([rings((4, 5, 6))], shifted).ranks == (0, 1, 2)


def test_chains_are_trees() -> None:
    chain = ChannelGraph(1, 1, ((0, 1, 2, 3),), 20, "NVL")
    forest = forest_of([chain], DGX)
    (share,) = forest.shares
    assert share.root == 0
    assert share.broadcast is not None
    assert share.broadcast.edges == ((0, 1), (1, 2), (2, 3))
    assert audit(to_document(forest)).ok


@pytest.mark.parametrize(
    ("graph", "error", "reason"),
    [
        (rings((0, 9)), UsageError, "names GPU 9, but dgx-1v has 8"),
        (rings((0,)), UnsupportedError, "has one GPU; expected at least two"),
        (rings((0, 5, 1)), UnsupportedError, "from GPU 0 to 5"),
        (rings((0, 1, 5, 6), kind="NVB"), UnsupportedError, r"from GPU 6 to 0 \(NVB\) has no path on dgx-1v"),
        (ChannelGraph(0, 4, ((0, 1),), 20, "NVL", across=True), UnsupportedError, "one of several servers"),
        (ChannelGraph(3, 5, ((0, 1),), 20, "NVL"), UnsupportedError, "neither rings"),
    ],
)
def test_graph_files_without_a_plan_are_refused(graph, error, reason) -> None:
    with pytest.raises(error, match=reason):
        forest_of([graph], DGX)


def test_a_ring_through_a_gpu_is_a_plan() -> None:
    """GPUs 0 and 5 have equal links to GPUs 1 and 4, so either memory can join them: NCCL uses the first."""
    forest = forest_of([rings((0, 5, 1), kind="NVB")], DGX)
    (between,) = (vertex for vertex in forest.topology.vertices if vertex.id not in forest.ranks)
    assert (between.part_of, between.label) == (1, "GPU1 between")
    assert {path for share in forest.shares for tree in share.trees() for path in tree.edges} == {
        (0, between.id, 5),
        (5, 1),
        (1, 0),
    }
    assert forest.rate == forest.topology.link[0, between.id].capacity / Fraction(4, 3)
    sums = {(0, 1): 0.0, (1, 5): 0.0, (5, 1): 0.0}
    for link in forest.topology.links:
        whole = tuple(1 if end == between.id else end for end in (link.src, link.dst))
        sums[whole] = sums.get(whole, 0.0) + link.gb_per_s
    assert [sums[pair] for pair in ((0, 1), (1, 5), (5, 1), (1, 0))] == [25.0, 50.0, 50.0, 25.0]
    document = to_document(forest)
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


def test_rings_exported_for_nccl_are_read_back() -> None:
    """The best rings of every job on a DGX-1V with links that NCCL detects reach NCCL's count, at 25 for 20 GB/s."""
    through = 0
    for ranks in connected_allocations("dgx-1v", smallest=3):
        (file,) = packed(DGX, ranks, "nccl-graph")
        graphs = parse(file.text, "export")
        forest = forest_of(graphs, DGX)
        checked = audit(to_document(forest))
        assert checked.ok, (ranks, checked.all_faults[:1])
        through += graphs[0].kind == "NVB"
        if graphs[0].kind in ("NVL", "NVB"):
            counted = len(graphs[0].orders) * graphs[0].gb_per_s
            assert forest.algbw_gb_per_s * bus_factor("allreduce", len(ranks)) >= counted * 25 / 20 * 0.999
    assert through > 20


def test_a_graph_file_is_a_valid_plan_of_a_machine_without_nvlink() -> None:
    """Both rings share the path between the processors, which has 2 × 12 GB/s in each direction."""
    graphs = parse(graph_file({4: [(0, 1, 2, 3), (0, 3, 2, 1)], 1: [(0, 1, 2, 3), (1, 0, 3, 2)]}), "sys.xml")
    assert [(graph.id, len(graph.orders), graph.kind) for graph in graphs] == [(0, 2, "SYS"), (1, 2, "SYS")]
    forest = forest_of(graphs, nccl_xml.parse(four_processors(), "four.xml"))
    assert audit(to_document(forest)).ok
    assert Fraction(forest.algbw_gb_per_s) == 8


def graph_file(patterns: dict[int, list[tuple[int, ...]]]) -> str:
    """The content of NCCL_GRAPH_DUMP_FILE: a graph per pattern, a channel per order of GPUs."""

    def channel(order: tuple[int, ...]) -> str:
        return f"<channel>{''.join(f'<gpu dev={chr(34)}{x}{chr(34)}/>' for x in order)}</channel>"

    graphs = [
        f'<graph id="{number}" pattern="{pattern}" nchannels="{len(orders)}" speedintra="12" speedinter="12" '
        f'typeintra="SYS" typeinter="PIX">{"".join(map(channel, orders))}</graph>'
        for number, (pattern, orders) in enumerate(patterns.items())
    ]
    return f'<graphs version="1">{"".join(graphs)}</graphs>'


def four_processors() -> str:
    """A virtual machine with a GPU on PCIe 3.0 ×16 below each of four AMD processors."""
    processors = [
        f'<cpu numaid="{x}" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">'
        f'<pci busid="000{x}:00:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{x}" sm="80" rank="{x}" gdr="1"/></pci></cpu>'
        for x in range(4)
    ]
    return f'<system version="1">{"".join(processors)}</system>'
