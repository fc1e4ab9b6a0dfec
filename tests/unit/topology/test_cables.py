"""Servers joined by cables: rules, files, and no forwarding from cable to cable."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.errors import TopologyError
from blinkccl.topology import json_format
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.cables_file import parse
from blinkccl.topology.catalog import CATALOG, machine
from blinkccl.topology.fabric import Cable, CabledServer, cabled, cables_of
from blinkccl.topology.formats import parse_topology
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from support.examples import examples

RING = """\
# four Sparks in a ring
machine dgx-spark: spark0 spark1 spark2 spark3
spark0:p0 spark1:p1 200Gbps
spark1:p0 spark2:p1
spark2:p0 spark3:p1   # the long one
spark3:p0 spark0:p1
"""


def pairs(topology: Topology) -> list[tuple[int, int]]:
    """Pairs of servers, one for each cable."""
    ends = ([topology.vertex[v].server for v in (x.src, x.dst)] for x in cables_of(topology))
    return sorted((min(a, b), max(a, b)) for a, b in ends)


@pytest.mark.parametrize(
    ("spec", "joined"),
    [
        ("2x dgx-spark @ cables=ring", [(0, 1)]),
        ("2x dgx-spark @ cables=ring*2", [(0, 1), (0, 1)]),
        ("4x dgx-spark @ cables=ring", [(0, 1), (0, 3), (1, 2), (2, 3)]),
        ("4x dgx-spark @ cables=line", [(0, 1), (1, 2), (2, 3)]),
        ("4x mac-studio @ cables=mesh", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("4x mac-studio @ cables=star", [(0, 1), (0, 2), (0, 3)]),
        ("6x mac-studio @ cables=torus:2x3", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (3, 5), (4, 5)]),
        (
            "8x mac-studio @ cables=torus:2x2x2",
            [(0, 1), (0, 2), (0, 4), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7), (6, 7)],
        ),
        ("3x ring:4 @ 40Gbps, cables=line", [(0, 1), (1, 2)]),
    ],
)
def test_rules(spec: str, joined: list[tuple[int, int]]) -> None:
    topology = parse_spec(spec)
    assert pairs(topology) == joined
    assert not any(v.kind == "switch" for v in topology.vertices)


def test_neighbours_of_a_server_use_its_ports_in_order() -> None:
    topology = parse_spec("2x dgx-a100 @ cables=ring*8")
    names = [[topology.vertex[v].label for v in (x.src, x.dst)] for x in cables_of(topology)]
    assert names == [[f"0/NIC{i}", f"1/NIC{i}"] for i in range(8)]


def test_cables_have_the_rate_of_their_ports_or_the_stated_one() -> None:
    def rates(spec: str) -> set[float]:
        return {x.gb_per_s for x in cables_of(parse_spec(spec))}

    assert rates("4x dgx-spark @ cables=ring") == {25.0}
    assert rates("4x dgx-spark @ 100Gbps, cables=ring") == {12.5}
    assert rates("4x dgx-1v @ cables=ring, nic=40Gbps") == {5.0}
    assert {x.gb_per_s for x in parse_spec("4x dgx-spark @ 100Gbps, cables=ring").links} == {24.0, 12.5}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dgx-spark @ cables=ring", 'cables join servers; add their number: "4x dgx-spark @ cables=ring"'),
        ("1x dgx-spark @ cables=ring", "at least 2 servers, got 1"),
        ("4x dgx-spark @ cables=wheel", "'wheel' is no rule for cables; expected one of ring, line, mesh, star, torus"),
        ("4x dgx-spark @ cables=rign", r"'rign' is no rule for cables \(did you mean 'ring'\?\)"),
        ("4x dgx-spark @ cables=", "'' is no rule"),
        ("4x dgx-spark @ cables=ring, cables=line", "cables is stated twice"),
        ("4x dgx-spark @ cables=ring*0", "'0' is no number of cables per pair"),
        (
            "4x dgx-spark @ cables=mesh",
            r"a server needs 3 ports for cables=mesh with 4 servers, but dgx-spark has 2 \(p0, p1\)",
        ),
        ("4x dgx-spark @ cables=torus:2x3", "cables=torus:2x3 is for 6 servers, got 4"),
        ("4x dgx-1v @ cables=ring", 'dgx-1v has no NIC; add the rate of the cables: "… cables=ring, 100Gbps"'),
        ("4x dgx-spark @ cables=ring, 0Gbps", "is no valid rate for a network"),
        ("9999x dgx-spark @ cables=ring", "9999 servers; a rule for cables allows at most 1024"),
        ("1000x chain:2 @ cables=mesh, 1Gbps", "499500 cables; at most 10000"),
        ("1024x gb200-nvl72 @ cables=ring", "more than 4096 vertices"),
    ],
)
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_spec(spec)


# Files.


def test_a_file_and_a_rule_give_the_same_topology() -> None:
    topology = parse_topology(RING.encode(), "folder/ring.txt")
    assert topology.name == "4x dgx-spark @ cables=ring.txt"
    assert calibration_for(topology).name == "spark"
    assert pairs(topology) == pairs(parse_spec("4x dgx-spark @ cables=ring"))
    assert [topology.vertex[v].label for v in topology.ranks] == [f"spark{i}/GB10" for i in range(4)]
    assert {x.gb_per_s for x in cables_of(topology)} == {25.0}
    again = json_format.parse(json_format.write(topology))
    assert again == topology


def test_machines_of_several_kinds_and_cables_of_several_rates() -> None:
    topology = parse(
        "machine dgx-spark: s\nmachine mac-studio : m0 m1\nmachine clique:2: pc\n"
        "s:p0 m0:tb4\nm0:tb0 m1:tb0 40Gbps\nm1:tb1 pc:a 40Gbps\npc:b s:p1 100Gbps\n",
        "mixed.txt",
    )
    assert topology.name == "mixed.txt"
    assert {x.gb_per_s for x in cables_of(topology)} == {10.0, 5.0, 12.5}
    port = next(v.id for v in topology.vertices if v.label == "pc/b")
    gpus = [r for r in topology.ranks if topology.vertex[r].server == 3]
    assert [topology.link[gpu, port].gb_per_s for gpu in gpus] == [12.5, 12.5]
    assert len(network_for(topology, topology.ranks).links) > 0


def test_a_cable_that_is_faster_than_its_ports() -> None:
    topology = parse("machine dgx-spark: a b\na:p0 b:p0 400Gbps", "x")
    assert {x.gb_per_s for x in cables_of(topology)} == {25.0}
    assert topology.notes == (
        "the cable a:p0 – b:p0 has 400 Gb/s, but its ports limit it to 200 Gb/s",
    )  # fmt: skip


TWO, THREE = "machine dgx-spark: a b\n", "machine dgx-spark: a b c\n"
FAULTS = [
    ("machine dgx-sprak: a b", "line 1, column 9: unknown machine 'dgx-sprak' (did you mean 'dgx-spark'?)"),
    ("machine ring:x: a b", "line 1, column 9: 'ring:x': 'x' is not a number of GPUs"),
    ("machine 2x: a b", "line 1, column 9: unknown machine '2x'; blink topo --list shows all"),
    ("machine", "line 1, column 1: expected machine, a kind, a colon and names, as in machine dgx-spark: spark0"),
    ("machine dgx-spark a b", "line 1, column 9: expected machine, a kind, a colon and names"),
    ("machine dgx-spark: a a", "line 1, column 22: the name a is already used; give each machine its own name"),
    ("machine dgx-spark: a b/c", "line 1, column 22: 'b/c' is no valid name; use letters, digits, and - _ . only"),
    (TWO, "x: no cable; expected a line like a:p0 b:p0"),
    (f"{TWO}a:p0", "line 2, column 1: expected two ends and optionally a rate, as in a:p0 b:p0 200Gbps"),
    (f"{TWO}a:p0 b:p0 200 Gbps", "line 2, column 15: expected two ends and optionally a rate"),
    (f"{TWO}a:p0 b", "line 2, column 6: 'b' is no end of a cable; expected NAME:PORT, as in a:p0 b:p0"),
    (f"{TWO}a:p0 b:", "line 2, column 6: 'b' is no end of a cable"),
    (f"{TWO}\n a:p0  c:p0", "line 3, column 8: no machine is named 'c'"),
    (f"{TWO}a:p0 b:p2", "line 2, column 6: b has no port 'p2'; it has p0, p1"),
    (f"{TWO}a:p0 b:p0\na:p0 b:p1", "line 3, column 1: a:p0 already has a cable, in line 2; free ports: p1"),
    (
        f"{THREE}a:p0 b:p0\na:p1 b:p1\nc:p0 a:p1",
        "line 4, column 6: a:p1 already has a cable, in line 3; all ports",
    ),
    (f"{TWO}a:p0 a:p1", "line 2, column 6: this cable joins a to itself; plug one end into another machine"),
    (f"{TWO}a:p0 b:p0 fast", "line 2, column 11: not a rate: 'fast' (expected e.g. '40Gbps' or '25GB/s')"),
    (f"{TWO}a:p0 b:p0 0Gbps", "line 2, column 11: '0Gbps' is no valid cable rate"),
    ("machine clique:2: a b\na:x b:y", "x: no rate is known for the cable a:x – b:y; add one, such as 100Gbps"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_faults_have_a_place_and_a_remedy(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text.encode(), "x")
    assert message in str(caught.value)


def test_nonsense_sizes_are_refused_at_once() -> None:
    with pytest.raises(TopologyError, match=r"line 1, column [0-9]+: more than 1024 machines"):
        parse("machine dgx-spark: " + " ".join(f"s{i}" for i in range(2000)), "x")
    cables = "".join(f"a:x{i} b:x{i} 1Gbps\n" for i in range(20_000))
    with pytest.raises(TopologyError, match="line 10002, column 1: more than 10000 cables"):
        parse("machine chain:2: a b\n" + cables, "x")


@examples(300)
@given(st.text(alphabet="machine dgx-spark:ab p01\n200Gbps#/é\t", max_size=200))
def test_arbitrary_text_is_read_or_refused(rest: str) -> None:
    with suppress(TopologyError):
        assert len(parse("machine dgx-spark: a b\n" + rest, "x").ranks) >= 2


# Servers do not act as switches.


def test_a_machine_that_forwards_packets_is_refused() -> None:
    box = Assembly("two NICs below a switch", "declared")
    gpu, pcie = box.add("gpu"), box.add("switch", "PCIe")
    nics = box.add_many("nic", 2, "NIC")
    box.join_all([gpu, *nics], pcie, 24, "pcie")
    servers = [CabledServer(str(i), box.finish()) for i in range(3)]
    with pytest.raises(TopologyError, match="its PCIe joins NIC0 to NIC1, so a plan could forward packets from"):
        cabled("x", servers, [Cable((0, "NIC1"), (1, "NIC0"), Fraction(1))])


@pytest.mark.parametrize("name", [name for name in CATALOG if len(machine(name).ranks) <= 16 and name != "gh200"])
def test_data_from_a_port_reach_a_rank_and_no_other_port(name: str) -> None:
    topology = parse_spec(f"3x {name} @ cables=line, 100Gbps")
    ends = {v for x in cables_of(topology) for v in (x.src, x.dst)}
    ahead: dict[int, list[int]] = {}
    for link in topology.links:
        if topology.is_transit(link.src):
            ahead.setdefault(link.src, []).append(link.dst)
    for port in ends:
        server = topology.vertex[port].server
        reached, line = {port}, [port]
        for at in line:
            line += [v for v in ahead.get(at, ()) if topology.vertex[v].server == server and v not in reached]
            reached.update(line)
        assert not reached & ends - {port}
        assert any(v in topology.ranks for v in reached)


def test_ranks_without_a_cable_are_named_by_parts() -> None:
    ring = parse_spec("4x dgx-spark @ cables=ring")
    with pytest.raises(
        TopologyError, match=r"parts: \{0\} and \{2\}; --relays \(other GPUs forward data\) would join them"
    ):
        network_for(ring, (0, 2))
    assert 1 in network_for(ring, (0, 2), relays=True).vertex
    two = parse("machine dgx-spark: a b c d\na:p0 b:p0\nc:p0 d:p0", "x")
    with pytest.raises(
        TopologyError, match=r"parts: \{0,1\} and \{2,3\}\. No cable joins them; blink doctor names one"
    ):
        network_for(two, (0, 1, 2, 3))
