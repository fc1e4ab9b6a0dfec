"""SPEC, --gpus and several servers."""

from pathlib import Path

import pytest

from blinkccl.errors import TopologyError
from blinkccl.show.topology_text import topology_text
from blinkccl.topology import json_format
from blinkccl.topology.spec import load, machine_named, parse_gpus, parse_spec
from blinkccl.topology.stated import assumed


def test_names_rules_and_compositions() -> None:
    assert parse_spec("dgx-1v").name == "dgx-1v"
    assert parse_spec(" ring:4 ").name == "ring:4"
    assert len(parse_spec("3x ring:4 @ 25GB/s").ranks) == 12
    assert parse_spec("2xdgx-a100@200Gbps") == parse_spec("2x dgx-a100 @ 200Gbps")


def test_composition_numbers_gpus_first() -> None:
    topology = parse_spec("2x dgx-1v @ 40Gbps")
    assert topology.ranks == tuple(range(16))
    assert [topology.vertex[g].server for g in topology.ranks] == [0] * 8 + [1] * 8
    assert topology.link[0, 3].gb_per_s == topology.link[8, 11].gb_per_s == 50.0
    assert topology.vertices[-1].label == "NETWORK"
    assert topology.vertices[-1].server == 2
    nics = [v.id for v in topology.vertices if v.kind == "nic"]
    assert len(nics) == 2
    net = topology.vertices[-1].id
    assert {topology.link[nic, net].gb_per_s for nic in nics} == {5.0}
    assert {topology.link[g, nics[0]].gb_per_s for g in range(8)} == {5.0}
    assert {x.provenance for x in topology.links if x.kind == "net"} == {"declared"}


def test_nics_keep_their_rate_or_get_the_stated_one() -> None:
    own, stated = parse_spec("2x dgx-a100"), parse_spec("2x dgx-a100 @ 400Gbps")
    assert {x.gb_per_s for x in own.links if x.kind == "net"} == {25.0}
    assert {x.provenance for x in own.links if x.kind == "net"} == {"catalog"}
    assert {x.gb_per_s for x in stated.links if x.kind == "net"} == {50.0}
    assert sum(v.kind == "nic" for v in stated.vertices) == 16


def test_one_server_is_the_machine_without_a_network() -> None:
    assert len(parse_spec("1x dgx-1v").links) == len(parse_spec("dgx-1v").links)


def test_a_file_name_may_look_like_several_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("8x4090.json").write_text(json_format.write(parse_spec("ring:4")))
    assert len(parse_spec("8x4090.json").ranks) == 4
    assert len(parse_spec("2x 8x4090.json @ 40Gbps").ranks) == 8


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "dgx1v",
            r"unknown topology 'dgx1v' \(did you mean 'dgx-1v'\?\); expected an existing file, a machine, a rule",
        ),
        ("DGX-1V", r"\(did you mean 'dgx-1v'\?\)"),
        ("2x DGX_A100", r"\(did you mean 'dgx-a100'\?\)"),
        ("NVL-72", r"\(did you mean 'nvl72'\?\).*blink topo --list"),
        ("no/such/file.xml", "there is no such file"),
        ("missing.json", "there is no such file"),
        ("2x dgx-1v", r'dgx-1v has no NIC; add the rate of the network: "2x dgx-1v @ 40Gbps"'),
        ("dgx-1v @ 40Gbps", r'add their number: "2x dgx-1v @ 40Gbps"'),
        ("2x nothing @ 40Gbps", "unknown topology 'nothing'"),
        ("0x dgx-a100", "at least one server"),
        ("2x dgx-1v @ 40", "not a rate"),
        ("2x dgx-1v @ 0Gbps", "no valid rate for a network"),
        ("2x dgx-1v @ nanGbps", "not a rate"),
        ("2x dgx-1v @ 99999999999999Gbps", "no valid rate for a network"),
        ("99999x dgx-a100", "at most 4096"),
        ("999x dgx-a100", "at most 4096"),
        ("dgx-1v @ nvlink=50GB/s", "dgx-1v already has rates; nvlink can be stated only for files without them"),
        ("2x dgx-1v @ nic=40Gbps, pcie=gen4", "dgx-1v already has rates; pcie can be"),
        ("2x dgx-1v @ 40Gbps, nic=40Gbps", "nic is stated twice"),
        (
            "2x dgx-1v @ lane=40Gbps",
            "'lane' is no known rate; expected nvlink=50GB/s, xgmi=64GB/s, pcie=gen5, smp=22GB/s, nic=",
        ),
        ("2x dgx-1v @ pcie=gen9", "not a rate: 'gen9' .*, or a generation: gen4, gen5x8"),
        ("2x dgx-1v @ smp=0GB/s", "0GB/s is no valid rate for smp; expected more than 0"),
        ("2x ring:9999999", "too many GPUs: at most 1024"),
        ("ring:1", "1 is too few GPUs: at least 2"),
        ("hypercube:11", "too many dimensions: at most 10"),
        ("a\0b", "unknown topology"),
        ("x" * 5000, "unknown topology"),
        (".", "cannot be read"),
    ],
)
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_spec(spec)


def test_several_servers_cannot_be_multiplied_again(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json_format.write(parse_spec("2x dgx-a100")))
    with pytest.raises(TopologyError, match="already has several servers"):
        parse_spec(f"2x {path} @ 40Gbps")


def test_gpus_keep_their_order() -> None:
    topology = parse_spec("dgx-1v")
    assert parse_gpus("6,1,5,4", topology) == (6, 1, 5, 4)
    assert parse_gpus(" 0-2, 5 ", topology) == (0, 1, 2, 5)
    assert parse_gpus("4 0\t2", topology) == (4, 0, 2)
    assert parse_gpus("0 - 2 5,7", topology) == (0, 1, 2, 5, 7)
    assert parse_gpus("GPU4,gpu0", topology) == (4, 0)
    assert parse_gpus("GPU1-GPU3", topology) == (1, 2, 3)
    assert parse_gpus(None, topology) == tuple(range(8))


def test_gpus_per_server_have_their_own_numbers() -> None:
    topology, ranks = load("2x dgx-1v @ 40Gbps", "0,1,2+0,3,4,5,6")
    assert ranks == (0, 1, 2, 8, 11, 12, 13, 14)
    assert parse_gpus("0,8", topology) == (0, 8)
    assert parse_gpus("0-7+0-7", topology) == topology.ranks


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ("1,,2", "'' is no GPU number"),
        ("-1", "no GPU number"),
        (" " * 100_000 + "x", "'x' is no GPU number"),
        ("1 -", "'1-' is no GPU number"),
        ("GPU", "'GPU' is no GPU number"),
        ("NIC0", "'NIC0' is no GPU number"),
        (" ", "--gpus is empty"),
        ("1.5", "no GPU number"),
        ("٣", "no GPU number"),
    ],
)
def test_bad_gpus(gpus: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_gpus(gpus, parse_spec("dgx-1v"))


def test_bad_gpus_per_server() -> None:
    topology = parse_spec("2x dgx-1v @ 40Gbps")
    with pytest.raises(TopologyError, match="server 1 has no GPU 8; it has 0-7"):
        parse_gpus("0+8", topology)
    with pytest.raises(TopologyError, match="given twice"):
        parse_gpus("0,0+1", topology)
    with pytest.raises(TopologyError, match="'' is no GPU number"):
        parse_gpus("0+", topology)


MATRIX = "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tPIX\tPIX\nGPU1\tPIX\tX\tPIX\nNIC0\tPIX\tPIX\tX\n"


def test_rates_missing_in_a_file_are_stated_after_the_at_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("n7.txt").write_text(MATRIX)
    Path("ring.json").write_text(json_format.write(parse_spec("ring:4")))
    assert {x.gb_per_s for x in parse_spec("n7.txt").links} == {12.0}
    assert "the PCIe link of a GPU 12 GB/s" in assumed(parse_spec("n7.txt"))
    assert {x.gb_per_s for x in parse_spec("n7.txt @ pcie=gen5x8").links} == {24.0}
    assert not assumed(parse_spec("n7.txt @ pcie=gen5x8"))
    assert {x.gb_per_s for x in parse_spec("n7.txt @ PCIe=20GB/s").links} == {20.0}
    one = parse_spec("n7.txt@400Gbps")
    assert [(v.label, v.kind) for v in one.vertices if v.kind == "nic"] == [("NIC0", "nic")]
    two = parse_spec("2x n7.txt @ 400Gbps, pcie=gen4")
    nics = {v.id for v in two.vertices if v.kind == "nic"}
    assert len(nics) == 2, "the NICs of the file, not one more per server"
    assert {x.gb_per_s for x in two.links if {x.src, x.dst} & nics} == {50.0}
    with pytest.raises(TopologyError, match=r"ring\.json: Blink's JSON does not take a rate for pcie"):
        parse_spec("ring.json @ pcie=gen4")
    with pytest.raises(
        TopologyError,
        match=r"n7\.txt: nvidia-smi topo -m does not take a rate for xgmi; rates to state: nvlink, pcie, smp, nic",
    ):
        parse_spec("n7.txt @ xgmi=50GB/s")
    with pytest.raises(TopologyError, match="needs several servers"):
        parse_spec("ring.json @ 400Gbps")


@pytest.mark.parametrize("name", ["dgx-1v", "2x dgx-1v @ 40Gbps", "ring:5", "random:9:seed=2:directed", "torus:4x4"])
def test_machines_by_their_names(name: str) -> None:
    machine = machine_named(name)
    assert machine is not None
    assert machine.name == name


@pytest.mark.parametrize("name", ["/etc/passwd", "README.md", "my machine", "", "9999x dgx-1v", "ring:99999"])
def test_names_of_no_known_machine(name: str) -> None:
    assert machine_named(name) is None


def test_several_at_are_answered_with_commas(tmp_path: Path) -> None:
    file = tmp_path / "node.txt"
    file.write_text("\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\n")
    with pytest.raises(TopologyError, match=r'"2x .*node.txt @ pcie=gen4, smp=22GB/s, nic=400Gbps"'):
        parse_spec(f"2x {file} @ pcie=gen4 @ smp=22GB/s @ nic=400Gbps")
    assert 'to state all assumed rates: "FILE @ pcie=gen5, smp=22GB/s"' in topology_text(parse_spec(str(file)))
    assert "to state all" not in topology_text(parse_spec(f"{file} @ pcie=gen4"))
