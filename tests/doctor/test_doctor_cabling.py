"""Findings of the doctor on cables: each cause where it applies, and predicted gains equal to the planner's."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.apps.doctor.cabling import Cabling, Change, Plug
from blinkccl.apps.doctor.diagnose import diagnose
from blinkccl.apps.doctor.evidence import Case, Location, MachineRead, NcclVersion
from blinkccl.apps.doctor.reading import read_files
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.cables_file import parse
from blinkccl.topology.loss import without
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from support.examples import examples
from support.planned import asked, planned
from support.random_cables import random_cabling

TWO_PAIRS = "machine dgx-spark: a b c d\na:p0 b:p0\na:p1 b:p1\nc:p0 d:p0\nc:p1 d:p1\n"
SLOW = "machine mac-studio: a b c\na:tb0 b:tb0\nb:tb1 c:tb0 40Gbps\nc:tb1 a:tb1\n"
UNEVEN = "machine mac-studio: a b c d\na:tb0 b:tb0\na:tb1 b:tb1\nb:tb2 c:tb0\nc:tb1 d:tb0\nd:tb1 a:tb2\n"


def found(topology: Topology, *more: object) -> dict[str, str]:
    """Findings on cables by cause: severity, title and all other fields on one line."""
    case = Case(pieces=[MachineRead(Location("x.txt"), topology), *more])
    return {
        f.cause: f"{f.severity}: {f.title}; bound {f.bound}; got {f.got}; try {f.attempt}"
        for f in diagnose(case).findings
        if f.cause.startswith(("cable", "port", "nccl-no"))
    }


def planned_gb_per_s(topology: Topology) -> Fraction:
    forest = planned("optimal", asked(topology, "allreduce", objective="exact"))
    return forest.rate * exact_unit(forest.topology)


def test_a_ring_of_four_sparks() -> None:
    findings = found(parse_spec("4x dgx-spark @ cables=ring"))
    assert list(findings) == ["cable-loss", "nccl-no-cable"]
    assert findings["cable-loss"] == (
        "note: the worst cable to lose is 0:p0 – 1:p0; bound 16 GB/s of AllReduce; got 12 GB/s without it; "
        "try blink plan allreduce --topo x.txt --without 6-10"
    )
    assert findings["nccl-no-cable"].startswith("note: NCCL connects ranks that no cable joins; bound ")
    assert "; got its trees need 0-2, 1-3, without a cable; try NCCL_ALGO=Ring and" in findings["nccl-no-cable"]


def test_where_nccl_has_a_cable_for_every_hop_nothing_is_said_of_it() -> None:
    for spec in (
        "2x dgx-spark @ cables=ring",
        "3x dgx-spark @ cables=ring",
        "4x dgx-spark",
        "4x mac-studio @ cables=ring",
    ):
        assert "nccl-no-cable" not in found(parse_spec(spec)), spec
    assert "nccl-no-cable" not in found(parse_spec("2x dgx-a100 @ cables=ring*8"))


def test_that_it_failed_is_an_error() -> None:
    findings = found(parse_spec("4x dgx-spark @ cables=ring"), NcclVersion(Location("run.log"), (2, 30, 7)))
    assert findings["nccl-no-cable"].startswith("error: NCCL connects ranks")


def test_an_order_of_ranks_without_a_ring() -> None:
    crossed = parse("machine dgx-spark: a b c d\na:p0 c:p0\nc:p1 b:p0\nb:p1 d:p0\nd:p1 a:p1\n", "x")
    assert "its rings need 0-1, 2-3; its trees need 0-1, 2-3, without a cable" in found(crossed)["nccl-no-cable"]
    assert "order the ranks so that each has a cable to the next" in found(crossed)["nccl-no-cable"]


def test_machines_in_parts_and_what_would_join_them() -> None:
    findings = found(parse(TWO_PAIRS, "x"))
    assert list(findings) == ["cables-apart"]
    assert findings["cables-apart"] == (
        "error: the cables leave the machines in 2 parts: {a,b} | {c,d}; bound 16 GB/s of AllReduce; got no plan; "
        "try replace a:p0 – b:p0 and c:p0 – d:p0 by a:p0 – c:p0 and b:p0 – d:p0"
    )
    free = parse("machine mac-studio: a b c\na:tb0 b:tb0\na:tb1 b:tb1\n", "x")
    assert "try plug in a:tb2 – c:tb0" in found(free)["cables-apart"]
    three = parse("machine dgx-spark: a b c d e f\na:p0 b:p0\nc:p0 d:p0\ne:p0 f:p0\n", "x")
    assert "3 parts: {a,b} | {c,d} | {e,f}; bound 12 GB/s of AllReduce" in found(three)["cables-apart"]
    assert "try plug in a:p1 – c:p1 and b:p1 – e:p1" in found(three)["cables-apart"]
    full = parse(TWO_PAIRS.replace("c d", "c d e f") + "e:p0 f:p0\ne:p1 f:p1\n", "x")
    assert "try too few free ports to join the parts" in found(full)["cables-apart"]


def test_a_slow_cable() -> None:
    findings = found(parse(SLOW, "x"))
    assert findings["cable-slow"].startswith(
        "warning: b:tb1 – c:tb0: slower than its ports; bound 15 GB/s of AllReduce, with 80 Gb/s there; "
        "got 12.5 GB/s, with 40 Gb/s; "
    )
    unlimited = parse("machine dgx-spark: a b c\na:p0 b:p0\nb:p1 c:p0 196Gbps\nc:p1 a:p1\n", "x")
    assert "cable-slow" not in found(unlimited), "24 GB/s of PCIe limit it, not 24.5 of a cable"


def test_another_cabling_with_as_many_cables() -> None:
    findings = found(parse(UNEVEN, "x"))
    assert findings["cables-better"].startswith("warning: other cabling would be faster, with as many cables; bound ")
    assert "got 15 GB/s with the present cables; try replace " in findings["cables-better"]
    assert "cables-better" not in found(parse_spec("4x mac-studio @ cables=ring"))


def test_free_ports_idle_cables_and_losses() -> None:
    line = found(parse_spec("4x dgx-spark @ cables=line"))
    assert "one more cable; got 12 GB/s without; try plug in 0:p1 – 3:p1" in line["port-free"]
    assert line["cable-loss"].startswith(
        "note: the loss of one cable separates the machines: 0:p0 – 1:p0, 1:p1 – 2:p0, 2:p1 – 3:p0; "
        "bound 12 GB/s of AllReduce; got no plan without it"
    )
    double = found(parse_spec("2x dgx-spark @ cables=ring*2"))
    assert list(double) == ["cable-idle"]


def test_a_cable_that_is_moved_carries_what_its_new_ports_do() -> None:
    topology = parse("machine dgx-spark: a b\nmachine mac-studio: m n\na:p0 b:p0\na:p1 b:p1\nm:tb0 n:tb0\n", "x")
    best = Cabling(topology).best_moved()
    assert best is not None
    assert best.gb_per_s == planned_gb_per_s(recabled(topology, best))
    assert {plug.capacity * topology.unit_gb_per_s for plug in best.plugged} == {10}


def test_many_machines_are_not_waited_for() -> None:
    cables = Cabling(parse_spec("64x dgx-spark @ cables=ring"))
    assert cables.losses() == []
    assert cables.best_moved() is cables.best_added() is None
    names = [f"s{i}" for i in range(40)]
    pairs = "".join(f"{a}:p0 {b}:p0\n" for a, b in zip(names[::2], names[1::2], strict=True))
    findings = found(parse(f"machine dgx-spark: {' '.join(names)}\n{pairs}", "x"))
    assert "bound one part; got no plan; try plug in s0:p1 – s2:p1 and s1:p1 – s4:p1" in findings["cables-apart"]


def test_a_file_of_cables_is_read() -> None:
    from pathlib import Path

    corpus = Path(__file__).parent / "corpus" / "four-sparks-ring" / "cables.txt"
    case = read_files([corpus])
    assert len(case.of(MachineRead)) == 1
    assert case.read == {str(corpus): ["a line per cable"]}


# Gains of changes, compared with the planner on a recabled topology.


def recabled(topology: Topology, change: Change) -> Topology:
    """The topology of the cables file after the change."""

    def name(port: int) -> str:
        return f"m{topology.vertex[port].server}:{topology.vertex[port].label.rpartition('/')[2]}"

    unit = exact_unit(topology)
    kinds = {v.server: "dgx-spark" if "GB10" in v.label else "mac-studio" for v in topology.vertices if v.kind == "gpu"}
    lines = [f"machine {kind}: m{server}" for server, kind in sorted(kinds.items())]
    plugs = [p for p in Cabling(topology).plugs if p not in change.out]
    lines += [f"{name(p.a)} {name(p.b)} {float(p.capacity * unit * 8)}Gbps" for p in (*plugs, *change.plugged)]
    return parse("\n".join(lines), "x")


@examples(25)
@given(st.integers(0, 10**6))
def test_what_a_change_gains_is_what_the_planner_finds(seed: int) -> None:
    topology = random_cabling(seed)
    cables = Cabling(topology)
    assert cables.gb_per_s == planned_gb_per_s(topology)
    for change in (cables.best_moved(), cables.best_added()):
        if change is not None:
            assert change.gb_per_s > cables.gb_per_s
            assert planned_gb_per_s(recabled(topology, change)) == change.gb_per_s
    assert len(cables.best_moved().out if cables.best_moved() else ()) <= 2
    for change in cables.losses():
        (plug,) = change.out
        lost = Cabling(without(topology, [(plug.a, plug.b)]))
        assert change.gb_per_s == lost.gb_per_s <= cables.gb_per_s


def test_no_single_end_gains_more_than_the_best_move() -> None:
    """Every move is tried, including those that :meth:`Cabling.best_moved` skips as equal."""
    topology = parse(UNEVEN, "x")
    cables = Cabling(topology)
    best = cables.best_moved()
    assert best is not None
    for plug in cables.plugs:
        for stays in (plug.a, plug.b):
            for port in cables.free:
                if topology.vertex[port].server != topology.vertex[stays].server:
                    change = cables.tried([plug], [Plug(min(stays, port), max(stays, port), plug.capacity)])
                    assert change.gb_per_s <= best.gb_per_s


@pytest.mark.parametrize("text", [TWO_PAIRS, SLOW, UNEVEN])
def test_the_same_again(text: str) -> None:
    assert found(parse(text, "x")) == found(parse(text, "x"))
