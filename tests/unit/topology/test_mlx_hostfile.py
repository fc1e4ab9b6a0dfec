"""MLX's hostfile: cables between ports, and contradictory hostfiles."""

import json
from pathlib import Path

import pytest

from blinkccl.apps.doctor.evidence import MachineRead
from blinkccl.apps.doctor.reading import read_files
from blinkccl.errors import TopologyError
from blinkccl.topology import mlx_hostfile
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.formats import parse_topology
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec

FIXTURE = Path(mlx_hostfile.__file__).parent / "fixtures" / "three-macs.mlx.json"
MESH = [[None, "en5", "en4"], ["en4", None, "en5"], ["en5", "en4", None]]


def hosts(rows: object, **more: object) -> str:
    """A hostfile with these ``rdma`` rows."""
    return json.dumps({"hosts": [{"ssh": f"m{i + 1}", "rdma": row} | more for i, row in enumerate(rows)]})


def ends(topology: Topology) -> list[str]:
    return [" ".join(topology.vertex[v].label for v in (x.src, x.dst)) for x in cables_of(topology)]


def test_cables_and_ports_are_those_of_the_file() -> None:
    topology = parse_spec(str(FIXTURE))
    assert ends(topology) == [
        "m1/rdma_en5 m2/rdma_en3",
        "m1/rdma_en2 m2/rdma_en4",
        "m1/rdma_en4 m3/rdma_en5",
        "m2/rdma_en5 m3/rdma_en4",
    ]
    assert {x.gb_per_s for x in topology.links} == {10.0}
    assert any(note.startswith("a cable is assumed to have 10 GB/s (Thunderbolt 5)") for note in topology.notes)


def test_the_rate_of_a_cable_may_be_stated() -> None:
    topology = parse_spec(f"{FIXTURE} @ nic=40Gbps")
    assert {x.gb_per_s for x in topology.links} == {5.0}
    assert topology.notes == ("a cable: 5 GB/s, as stated",)


def test_a_bare_list_of_hosts_is_read() -> None:
    listed = json.dumps(json.loads(hosts(MESH))["hosts"])
    assert ends(parse_topology(listed.encode(), "x")) == ends(parse_topology(hosts(MESH).encode(), "x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (hosts([[None, "en5"], [None, None]]), "x: m1 has en5 for m2 and m2 has no port for m1; a cable has a"),
        (hosts([[None, ["en5", "en4"]], ["en5", None]]), "m1 has en5, en4 for m2 and m2 has en5 for m1"),
        (hosts([[None, "en5"], ["en5"]]), r"x: hosts\[1\]: rdma has 1 entries for 2 hosts"),
        (hosts([[None, "en5", "en5"], *MESH[1:]]), r"x: hosts\[0\]: en5 leads to two hosts, but a port has one cable"),
        (hosts([["en3", "en5", "en4"], *MESH[1:]]), r"x: hosts\[0\]: en3 leads to the host itself"),
        (hosts([[None, 7], ["en5", None]]), r"x: hosts\[0\]: 7 is no port; expected e.g. rdma_en5, or null"),
        (hosts([[None, "\x1b[1m"], ["en5", None]]), r"hosts\[0\]: '\\x1b\[1m' is no port"),
        (hosts(MESH, ssh="m"), r"x: hosts\[1\]: ssh must be a name of no other host, got 'm'"),
        (hosts([[None, None], [None, None]]), "x: no cable: every rdma entry is null"),
        (hosts([[None]]), 'x: expected "hosts", a list of 2 to 256 hosts'),
        ('{"hosts": [{"rdma": [null, "en5"]}, 3]}', r"x: hosts\[1\]: expected {"),
        ('{"rdma": [', "x: no JSON: "),
    ],
)  # fmt: skip
def test_bad_hostfiles(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology(text.encode(), "x")


def test_the_doctor_reads_hostfiles() -> None:
    case = read_files([FIXTURE])
    assert [len(machine.topology.ranks) for machine in case.of(MachineRead)] == [3]
    assert case.read == {str(FIXTURE): ["MLX's hostfile"]}
