"""NCCL topology XML, read and written."""

from pathlib import Path

import networkx as nx
import pytest

from blinkccl.api.job import request
from blinkccl.api.plan import plan_of
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.proof.audit import audit
from blinkccl.show.check_text import audit_text
from blinkccl.topology import nccl_xml, nccl_xml_write
from blinkccl.topology.catalog import machine
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.topology.stated import parse_stated
from blinkccl.trees.forest.document import to_document

OURS = Path(nccl_xml.__file__).parent / "fixtures"


def sample(name: str) -> Topology:
    return nccl_xml.parse((OURS / name).read_text(), name)


def same(a: Topology, b: Topology) -> bool:
    """True if only the numbers of the transit vertices differ."""

    def graph(t: Topology) -> nx.DiGraph:
        digraph = nx.DiGraph()
        digraph.add_nodes_from((v.id, {"what": (v.kind, v.id if v.kind == "gpu" else None)}) for v in t.vertices)
        digraph.add_edges_from((x.src, x.dst, {"what": (x.kind, x.gb_per_s)}) for x in t.links)
        return digraph

    return bool(
        nx.is_isomorphic(graph(a), graph(b), lambda x, y: x["what"] == y["what"], lambda x, y: x["what"] == y["what"])
    )


def gpu(number: int, inside: str = "", attributes: str = "") -> str:
    return (
        f'<pci busid="000{number}:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">'
        f'<gpu dev="{number}" sm="80" rank="{number}" gdr="1"{attributes}>{inside}</gpu></pci>'
    )


def system(*inside: str, cpu: str = 'numaid="0"') -> str:
    return f'<system version="1">\n<cpu {cpu}>\n' + "\n".join(inside) + "\n</cpu>\n</system>"


def nvlink(target: int, count: int = 4) -> str:
    return f'<nvlink target="000{target}:00:00.0" count="{count}" tclass="0x030200"/>'


@pytest.mark.parametrize(
    "name",
    ["dgx-1p", "dgx-1v", "dgx-2", "hgx-h100", "cedar", "pcie-8gpu", "pcie-4gpu-nvlink-pairs", "pcie-8gpu-nvlink-pairs"],
)
def test_written_topologies_read_back(name: str) -> None:
    topology = machine(name)
    text = nccl_xml_write.write(topology)
    again = nccl_xml.parse(text, name)
    assert same(topology, again)
    assert nccl_xml_write.differences(topology, text) == []
    assert {x.provenance for x in again.links} == {"nccl-xml"}
    assert not text.startswith("<?xml"), "NCCL's parser refuses a declaration"
    assert same(nccl_xml.parse(nccl_xml_write.write(again), name), again)


@pytest.mark.parametrize("name", ["dgx-a100", "mist"])
def test_partly_supported_topologies_keep_their_nvlinks(name: str) -> None:
    topology = parse_spec(name)
    again = nccl_xml.parse(nccl_xml_write.write(topology), name)
    assert sorted(x.gb_per_s for x in again.links if x.kind == "nvlink") == sorted(
        x.gb_per_s for x in topology.links if x.kind == "nvlink"
    )
    assert same(network_for(again, again.ranks), network_for(topology, topology.ranks))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("mi250", "no place for xgmi"),
        ("oneway:4", "other direction"),
        ("2x dgx-a100", "several servers"),
        ("random:5:seed=1:directed", "other direction"),
        ("ring:6", "GPU0 has no link to a processor"),
        ("star:4", "a place for GPUs on PCIe only; write JSON"),
        ("clique:4", "PCIe only"),
    ],
)
def test_unsupported_topologies_are_refused(spec: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        nccl_xml_write.write(parse_spec(spec))


@pytest.mark.parametrize(
    ("kinds", "links", "reason"),
    [
        (("cpu", "cpu", "switch"), [(0, 2, "shm"), (1, 2, "shm")], "no GPUs"),
        (("gpu", "gpu", "switch", "switch"), [(0, 2, "nvlink"), (1, 3, "nvlink")], "2 NVSwitch planes"),
        (("gpu", "gpu", "switch", "switch"), [(0, 2, "nvlink"), (1, 2, "nvlink"), (2, 3, "nvlink")], "no GPUs; write"),
        (("gpu", "gpu", "host", "host"), [(0, 2, "pcie"), (1, 3, "pcie"), (2, 3, "smp")], "no processor with 7"),
        (("gpu", "gpu", "host"), [(0, 1, "nvlink"), (0, 2, "nvlink"), (1, 2, "nvlink")], "no whole number of lanes"),
        (("gpu", "host", "host"), [(0, 1, "pcie"), (0, 2, "pcie")], "0 → 2 closes a cycle"),
    ],
)
def test_other_unsupported_shapes(kinds: tuple[str, ...], links: list[tuple[int, int, str]], reason: str) -> None:
    vertices = tuple(Vertex(i, kind) for i, kind in enumerate(kinds))
    both = tuple(Link(s, d, 7, kind, 7.0, "declared") for a, b, kind in links for s, d in ((a, b), (b, a)))
    with pytest.raises(UnsupportedError, match=reason):
        nccl_xml_write.write(Topology("odd", 1.0, vertices, both))


@pytest.mark.parametrize(
    ("name", "expected"), [("dgx-a100", ["it has "]), ("mist", ["--links pcie gives", "--links all gives"])]
)
def test_differences_name_the_changed_links(name: str, expected: list[str]) -> None:
    topology = machine(name)
    sentences = nccl_xml_write.differences(topology, nccl_xml_write.write(topology))
    assert [sentence[: len(start)] for sentence, start in zip(sentences, expected, strict=True)] == expected


def test_an_allocation_is_renumbered() -> None:
    topology = network_for(machine("dgx-1v"), (1, 4, 5, 6), "all", stored=False)
    assert nccl_xml_write.differences(topology, nccl_xml_write.write(topology))[0] == "GPUs 1,4-6 become 0-3"


def test_links_of_another_shape_differ() -> None:
    one, other = machine("dgx-1v"), machine("dgx-1p")
    assert any(
        "--links fast gives 32 nvlink" in sentence
        for sentence in nccl_xml_write.differences(one, nccl_xml_write.write(other))
    )


def test_a_virtual_machine_with_a_hidden_nvswitch() -> None:
    topology = sample("hgx-h100-vm.nccl.xml")
    network = network_for(topology, topology.ranks)
    assert {x.gb_per_s for x in network.links} == {450.0}
    assert {x.gb_per_s for x in topology.links if x.kind == "pcie"} == {48.0}, "H100s have PCIe 5"
    assert any("PCIe ×16 of unknown speed is assumed to have 48 GB/s" in note for note in topology.notes)
    assert {x.gb_per_s for x in topology.links if x.kind == "net"} == {12.5}


def test_host_hash_distinguishes_servers() -> None:
    topology = sample("two-grace-hopper.nccl.xml")
    assert [topology.vertex[g].server for g in topology.ranks] == [0, 1]
    assert sum(v.label == "NVSwitch" for v in topology.vertices) == 1
    assert {x.gb_per_s for x in topology.links if x.kind == "c2c"} == {450.0}
    assert {x.kind for x in network_for(topology, topology.ranks).links} == {"nvlink"}


def test_nvlinks_to_oneself_are_left_out_with_a_note() -> None:
    topology = sample("self-nvlink.nccl.xml")
    assert "line 5: NVLink of GPU0 to itself left out" in topology.notes
    assert {x.kind for x in network_for(topology, topology.ranks).links} == {"pcie", "smp"}


def test_lane_rates_follow_the_compute_capability() -> None:
    for sm, gb_per_s in ((60, 80.0), (70, 100.0), (86, 56.0), (90, 100.0), (100, 200.0)):
        text = system(gpu(1, nvlink(2)), gpu(2, nvlink(1))).replace('sm="80"', f'sm="{sm}"')
        assert nccl_xml.parse(text).link[0, 1].gb_per_s == gb_per_s


def test_gpus_keep_their_compute_capability() -> None:
    topology = nccl_xml.parse(system(gpu(1), gpu(2).replace('sm="80"', 'sm="90"')))
    assert [topology.vertex[g].sm for g in topology.ranks] == [80, 90]
    assert guess_arch(topology) == "ampere", "the oldest GPU decides; generation 4 of PCIe would say the same"
    slow = nccl_xml.parse(system(gpu(1), gpu(2)).replace('link_speed="16 GT/s"', 'link_speed="8 GT/s"'))
    assert guess_arch(slow) == "ampere", "generation 3 of PCIe alone would say volta"
    again = nccl_xml.parse(nccl_xml_write.write(slow))
    assert [again.vertex[g].sm for g in again.ranks] == [80, 80]


def test_an_h800_is_a_hopper_whose_switch_reduces() -> None:
    """Eight NVLinks of 25 GB/s, less than an A100's; compute capability 9.0 decides."""
    switch = '<nvlink target="fffffff:ffff:ff" count="8" tclass="0x068000"/>'
    topology = nccl_xml.parse(system(gpu(1, switch), gpu(2, switch)).replace('sm="80"', 'sm="90"'))
    assert guess_arch(topology) == "hopper"
    assert [v.combines for v in topology.vertices if v.name == "NVSwitch"] == [True]
    older = nccl_xml.parse(system(gpu(1, switch), gpu(2, switch)))
    assert not any(v.combines for v in older.vertices)


def test_rccls_file_has_xgmi_links_and_no_compute_capability() -> None:
    """A full mesh of four MI300X, 64 GB/s each way by AMD's data sheet."""
    topology = sample("mi300x-4.rccl.xml")
    joined = {(x.src, x.dst): x.gb_per_s for x in topology.links if x.kind == "xgmi"}
    assert joined == {(a, b): 64.0 for a in range(4) for b in range(4) if a != b}
    assert [note.split(" is assumed")[0] for note in topology.notes] == ["the bus between processors"]
    assert {topology.vertex[g].sm for g in topology.ranks} == {None}
    text = (OURS / "mi300x-4.rccl.xml").read_text()
    older = nccl_xml.parse(text.replace("gfx942", "gfx90a"))
    assert {x.gb_per_s for x in older.links if x.kind == "xgmi"} == {50.0}


def test_an_unknown_element_is_noted() -> None:
    topology = nccl_xml.parse(system(gpu(1, '<ualink target="x" count="4"/>'), gpu(2)))
    assert topology.notes == ("1 <ualink> left out, the first in line 3: an unknown element, perhaps a link",)
    plan = plan_of(request(topology, topology.ranks, "allreduce", (None, None, None)))
    line = f"note    links may be missing: {topology.notes[0]}"
    assert line in plan.text().splitlines()
    assert line in audit_text(audit(to_document(plan.forest)))


def test_a_speed_that_sysfs_does_not_know_is_that_of_the_gpus() -> None:
    """A100s (sm_80) have PCIe 4; NCCL itself takes 8 GT/s."""
    text = system(gpu(1).replace("16 GT/s", "Unknown"), gpu(2).replace("16 GT/s", "Unknown speed"))
    topology = nccl_xml.parse(text)
    assert {x.gb_per_s for x in topology.links} == {24.0}
    assert any("unknown speed is assumed to have 24 GB/s" in note for note in topology.notes)
    stated = nccl_xml.parse(text, "x", parse_stated("pcie=gen5", "x"))
    assert {x.gb_per_s for x in stated.links} == {48.0}
    with pytest.raises(TopologyError, match="the file has the link_speed of every PCIe link"):
        nccl_xml.parse(system(gpu(1), gpu(2)), "x", parse_stated("pcie=gen5", "x"))


def test_gpus_without_rank_are_left_out_as_in_nccl() -> None:
    text = system(gpu(1), gpu(2), gpu(3).replace(' rank="3"', ""))
    topology = nccl_xml.parse(text)
    assert [topology.vertex[g].label for g in topology.ranks] == ["GPU1", "GPU2"]
    assert "without rank left out" in topology.notes[0]


def test_quotes_comments_and_unknown_targets() -> None:
    text = "<!-- hello -->" + system(gpu(1, nvlink(7)), gpu(2)).replace('"', "'")
    topology = nccl_xml.parse(text)
    assert "NVLink of GPU1 to 0007:00:00.0 left out" in topology.notes[0]


NO_GPU_TAGS = "4 PCI devices of class GPU .*line 3.*no <gpu> tag, .*NCCL completes .*NCCL_TOPO_DUMP_FILE"
BOMB = (
    '<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<system version="1"><cpu numaid="&b;"/></system>'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ((OURS / "rings.nccl-graph.xml").read_text(), r"line 1: this is a graph file .* not a topology"),
        ((OURS / "no-gpu-tags.nccl.xml").read_text(), NO_GPU_TAGS),
        (BOMB, "line 1: document types and entities are refused"),
        ('<!DOCTYPE s SYSTEM "file:///etc/passwd"><system/>', "document types and entities are refused"),
        ("<system version='1'>&undefined;</system>", "line 1: not well-formed XML: undefined entity"),
        ("<system version='1'>\n<cpu>", "line 2: not well-formed XML: no element found"),
        ("<system version='3'/>", "version '3', expected 1"),
        ("<html/>", "the root is <html>, expected <system>"),
        ("<system version='1'/>", "none of the 0 PCI devices"),
        ("<a>" * 70 + "</a>" * 70, "nested deeper than 64"),
        ("<system>" + "<cpu/>" * 20_001 + "</system>", "more than 20000 elements"),
        (system(gpu(1), gpu(1)), "line 4: busid 0001:00:00.0 appears twice, first in line 3"),
        (system(gpu(1), gpu(2).replace('dev="2"', 'dev="1"')), "line 4: <gpu> dev 1 appears twice, first in line 3"),
        (system(gpu(1).replace('dev="1"', 'dev="one"')), "<gpu> dev is 'one', expected a whole number"),
        (system(gpu(1).replace('dev="1"', "")), "<gpu> dev is nothing"),
        (system(gpu(1).replace('busid="0001:00:00.0"', "")), "<pci> without busid"),
        (system(gpu(1, nvlink(2)), gpu(2)), "line 3: 4 NVLinks from GPU1 to GPU2, but none in the other direction"),
        (system(gpu(1, nvlink(2)), gpu(2, nvlink(1, 3))), r"4 NVLinks from GPU1 to GPU2, but 3 \(line 4\)"),
        (system(gpu(1, nvlink(2, 0)), gpu(2)), "<nvlink> count 0, expected 1 … 64"),
        (system(gpu(1, nvlink(2, -4)), gpu(2)), "<nvlink> count is '-4'"),
        (system(gpu(1, nvlink(2).replace('"4"', '"nan"')), gpu(2)), "<nvlink> count is 'nan'"),
        (system(gpu(1).replace("16 GT/s", "17 GT/s")), "<pci> link_speed '17 GT/s', expected one of"),
        (system(gpu(1).replace('width="16"', 'width="-1"')), "<pci> link_width is '-1'"),
        (system(gpu(1).replace('width="16"', 'width="999"')), "link_width 999, expected at most 64"),
        (system('<gpu dev="0" sm="80" rank="0"/>'), "<gpu> outside of a <pci>"),
        (system(gpu(1, '<c2c bw="0" count="1"/>')), "<c2c> of 0 GB/s"),
        (system(gpu(1, '<c2c bw="999999999" count="64"/>')), "<c2c> of 6.4e"),
        (system(gpu(1), '<nic><net name="a" dev="0" speed="-100"/></nic>'), "<net> speed is '-100'"),
        (system(gpu(1).replace("</gpu>", '</gpu><gpu dev="5" sm="80" rank="5"/>')), "a second <gpu> in one <pci>"),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        nccl_xml.parse(text, "bad.xml")


def bridge(bus: int, *inside: str) -> str:
    head = f'<pci busid="00{bus:02x}:00:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">'
    return f"{head}{''.join(inside)}</pci>"


@pytest.mark.parametrize(
    ("sm", "chips", "lanes", "ports", "gb_per_s", "net"),
    [(90, 4, (5, 4, 4, 5), (400_000,), 450.0, 50.0), (80, 6, (2,) * 6, (100_000, 100_000), 300.0, 25.0)],
    ids=["hgx-h100", "hgx-a100"],
)
def test_servers_whose_lanes_go_to_several_nvswitch_chips(
    sm: int, chips: int, lanes: tuple[int, ...], ports: tuple[int, ...], gb_per_s: float, net: float
) -> None:
    """Each GPU is behind three bridges and beside its network card, as in complete dumps of whole servers."""
    to_chips = "".join(f'<nvlink target="00f{c}:00:00.0" count="{lanes[c]}" tclass="0x068000"/>' for c in range(chips))

    def slot(number: int) -> str:
        nets = "".join(
            f'<net name="mlx5_{number}{port}" dev="{len(ports) * number + port}" speed="{speed}" port="{port + 1}" '
            f'guid="0x{number:x}" gdr="1"/>'
            for port, speed in enumerate(ports)
        )
        card = (
            f'<pci busid="00{number + 0x40:02x}:00:00.0" class="0x020000" link_speed="64 GT/s" link_width="16">'
            f"<nic>{nets}</nic></pci>"
        )
        return bridge(number + 0x10, bridge(number + 0x20, bridge(number + 0x30, gpu(number, to_chips)), card))

    topology = nccl_xml.parse(system(*map(slot, range(8))).replace('sm="80"', f'sm="{sm}"'))
    network = network_for(topology, topology.ranks)
    assert len(network.links) == 16
    assert {x.gb_per_s for x in network.links} == {gb_per_s}
    assert sum(v.kind == "nic" for v in topology.vertices) == 8
    assert {x.gb_per_s for x in topology.links if x.kind == "net"} == {net}
