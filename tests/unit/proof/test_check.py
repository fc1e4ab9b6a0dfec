"""The independent checker: hand-written plans with rates from paper pass, and each damage gets its own message."""

import copy
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import grimp
import pytest

from blinkccl.errors import ScheduleError
from blinkccl.proof.check import check_plan
from blinkccl.topology.json_format import to_document as topology_document
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.document import to_document
from support.damage import put
from support.planned import asked, planned

Json = dict[str, Any]
PLANS = Path(__file__).parents[1] / "trees/forest/plans"
NAMES = sorted(path.stem for path in PLANS.glob("*.json"))


def load(name: str) -> Json:
    plan: Json = json.loads((PLANS / f"{name}.json").read_text())
    return plan


@pytest.mark.parametrize("name", NAMES)
def test_a_good_plan_passes_with_its_rate_and_bound_recomputed(name: str) -> None:
    plan = load(name)
    verdict = check_plan(plan)
    assert verdict.violations == []
    assert (verdict.rate, verdict.bound) == (Fraction(plan["rate"]), Fraction(plan["bound"]))
    assert verdict.optimal == plan["optimal"]


def test_every_collective_has_a_good_plan() -> None:
    assert len({load(name)["collective"] for name in NAMES}) == 9


def drop(*keys: Any) -> Callable[[Json], None]:
    *way, last = keys

    def change(plan: Json) -> None:
        at: Any = plan
        for key in way:
            at = at[key]
        del at[last]

    return change


def both(*changes: Callable[[Json], None]) -> Callable[[Json], None]:
    def change(plan: Json) -> None:
        for one in changes:
            one(plan)

    return change


def add_edge(share: int, tree: str, edge: list[int]) -> Callable[[Json], None]:
    return lambda plan: plan["shares"][share][tree].append(edge)


A, B, D, S = "allreduce-dgx1v-1456", "broadcast-clique4", "allreduce-star4", "alltoall-chain3"
G, O6, R = "gather-chain4", "allreduce-oneway6", "reduce-clique4"
SHOT, RELAY, SEND = "allreduce-oneshot-clique4", "sendrecv-relays-ring4", "sendrecv-ring4"

#: Kind of damage → plan, damage, and text that the message must contain.
DAMAGE: dict[str, tuple[str, Callable[[Json], None], str]] = {
    "unknown rank": (A, put("ranks", 0, 9), "ranks[0]: 9 is no vertex"),
    "rank twice": (A, put("ranks", 0, 4), "a vertex is named twice"),
    "switch as rank": (D, put("ranks", 0, 4), "vertex 4 is a switch, which cannot be a rank"),
    "one rank": (A, put("ranks", [1]), "at least two, got 1"),
    "root missing": (B, put("root", None), "broadcast needs one, got null"),
    "root no rank": (B, put("root", 7), "root: 7 is none of the ranks"),
    "root superfluous": (A, put("root", 1), "allreduce takes none, got 1"),
    "src is dst": (SEND, put("dst", 0), "two different ranks"),
    "wrong unit": (A, put("unit_gb_per_s", 20.0), "the topology's unit is 25.0"),
    "link rate against capacity": (A, put("topology", "links", 0, "gb_per_s", 25.0), "capacity is 2 × the unit"),
    "missing link": (A, put("shares", 0, "broadcast", 2, [1, 6]), "broadcast[2]: there is no link 1 → 6"),
    "hop through a rank": (A, put("shares", 0, "broadcast", 2, [5, 6, 4]), "runs through rank 6"),
    "hop ends at a switch": (D, put("shares", 0, "broadcast", 0, [0, 4]), "ends at 4, which is no rank"),
    "reduce reversed": (A, put("shares", 0, "reduce", 0, [5, 1]), "edges must point toward the root"),
    "broadcast reversed": (A, put("shares", 0, "broadcast", 0, [1, 5]), "must point away from the root"),
    "two parents": (B, add_edge(0, "broadcast", [2, 3]), "vertex 3 receives twice, from 1 and 2"),
    "contributes twice": (R, add_edge(0, "reduce", [3, 1]), "vertex 3 sends twice"),
    "cycle off the root": (
        A,
        put("shares", 0, "broadcast", [[5, 1], [6, 4], [4, 6]]),
        "not one tree: [4, 6] have no path from the root 5",
    ),
    "contribution lost": (A, drop("shares", 0, "reduce", 2), "contributions of [4] never reach the root 5"),
    "delivery lost": (A, drop("shares", 0, "broadcast", 2), "slice 0 never reaches [4]"),
    "no up-tree": (A, put("shares", 0, "reduce", None), "contributions of [1, 4, 6] never reach"),
    "no down-tree": (A, put("shares", 0, "broadcast", None), "slice 0 never reaches [1, 4, 6]"),
    "tree root moved": (B, put("shares", 0, "root", 1), "contributions of [0] never reach the root 1"),
    "tree root no rank": (B, put("shares", 0, "root", 8), "shares[0].root: 8 is none of the ranks"),
    "collective's root moved": (B, put("root", 1), "contributions of [1] never reach the root 0"),
    "reduce's root moved": (R, put("root", 0), "never reaches [0]"),
    "weight changed": (A, put("shares", 0, "weight", "1/3"), "slices sum to 5/6, expected 1"),
    "weight zero": (A, put("shares", 0, "weight", "0"), "shares[0].weight: expected a positive fraction"),
    "weight negative": (
        A,
        both(put("shares", 0, "weight", "-1/2"), put("shares", 1, "weight", "3/2")),
        "shares[0].weight: expected a positive fraction, got -1/2",
    ),
    "weights of one slice differ": (SHOT, put("shares", 1, "weight", "1/2"), "slice 0, which has weight 1"),
    "share lost": (A, drop("shares", 1), "slices sum to 1/2"),
    "share doubled": (A, lambda plan: plan["shares"].append(plan["shares"][0]), "gets slice 0 twice"),
    "slice merged": (A, put("shares", 1, "slice", 0), "vertex 1 gets slice 0 twice"),
    "one-shot keeper lost": (SHOT, drop("shares", 3), "slice 0 never reaches [3]"),
    "unknown block": (G, put("shares", 1, "block", 9), "9 is no block of this collective"),
    "block where there are none": (A, put("shares", 1, "block", 1), "1 is no block"),
    "blocks exchanged": (
        G,
        both(put("shares", 1, "block", 2), put("shares", 2, "block", 1)),
        "contributions of [2] never reach the root 1",
    ),
    "alltoall block turned": (S, put("shares", 1, "block", [1, 0]), "weights of block (0, 1)'s slices sum to 0"),
    "stationary block lost": (S, drop("shares", 0), "weights of block (0, 0)'s slices sum to 0"),
    "path cut short": (S, drop("shares", 2, "broadcast", 1), "never reaches [2]"),
    "idle sender": (R, put("collective", "broadcast"), "has nothing to contribute"),
    "rate too high": (A, put("rate", "3"), "at the stated rate a link is over its capacity"),
    "rate too low": (A, put("rate", "1"), "rate: 1 is stated, recomputed 2"),
    "algbw": (A, put("algbw_gb_per_s", 51.0), "algbw_gb_per_s: 51.0 is stated"),
    "bound": (A, put("bound", "5/2"), "bound: 5/2 is stated, the certificate proves 2"),
    "falsely optimal": (SHOT, put("optimal", True), "optimal: true is stated"),
    "falsely modest": (A, put("optimal", False), "optimal: false is stated"),
    "depth": (A, put("depth", 1), "depth: 1 is stated, the deepest tree has 2 hops"),
    "trees": (A, put("trees", 3), "trees: 3 is stated, 2 shares have edges"),
    "load": (A, put("link_load", 0, "load", "1"), "load 1 stated, recomputed 2"),
    "load's capacity": (A, put("link_load", 0, "capacity", "3"), "capacity 3 stated, the topology says 2"),
    "load of no link": (A, put("link_load", 0, "dst", 6), "link 1 → 6 does not exist"),
    "load twice": (A, lambda plan: plan["link_load"].append(plan["link_load"][0]), "is listed twice"),
    "load left out": (A, drop("link_load", 3), "link 5 → 1 carries 2 but is not listed"),
    "smaller capacity": (A, put("topology", "links", 0, "capacity", 1), "capacity is 1 × the unit"),
    "cut's capacity": (B, put("certificate", "capacity", "2"), "capacity: 2 is stated, recomputed 3"),
    "cut's demand": (S, put("certificate", "demand", "1/3"), "demand: 1/3 is stated, recomputed 2/3"),
    "cut's side": (B, put("certificate", "side", [0, 1]), "recomputed 4"),
    "cut that nothing crosses": (B, put("certificate", "side", [1, 2]), "nothing needs to leave it"),
    "cut with a vertex twice": (B, put("certificate", "side", [0, 0]), "names a vertex twice"),
    "cut of strangers": (B, put("certificate", "side", [0, 77]), "77 is no vertex of the topology"),
    "ratio called a cut": (S, put("certificate", "kind", "cut"), "makes it a ratio, not a cut"),
    "partition's capacity": (A, put("certificate", "capacity", "1"), "capacity: 1 is stated, recomputed 2"),
    "partition's blocks overlap": (A, put("certificate", "blocks", [[1, 4], [4, 5, 6]]), "in block 0 too"),
    "partition leaves one out": (A, put("certificate", "blocks", [[1], [4, 5]]), "[6] lie in no block"),
    "partition with a single block": (A, put("certificate", "blocks", [[1, 4, 5, 6]]), "at least two"),
    "partition with a block of transit": (
        D,
        put("certificate", {"kind": "partition", "blocks": [[0, 1, 2, 3], [4]], "capacity": "4"}),
        "holds no rank of the job",
    ),
    "partition for a broadcast": (
        B,
        put("certificate", {"kind": "partition", "blocks": [[0], [1, 2, 3]], "capacity": "3"}),
        "bounds allreduce only",
    ),
    "price of no link": (O6, put("certificate", "prices", 0, [0, 3, "1"]), "0 → 3 is no link"),
    "price twice": (O6, put("certificate", "prices", 0, [1, 2, "1"]), "is priced twice"),
    "price negative": (O6, put("certificate", "prices", 0, [0, 1, "-1"]), "negative price -1"),
    "price changed": (O6, put("certificate", "prices", 0, [0, 1, "2"]), "value: 6 is stated, recomputed 7"),
    "dual's cost": (O6, put("certificate", "cost", "9"), "cost: 9 is stated, recomputed 10"),
    "dual's value": (O6, put("certificate", "value", "5"), "value: 5 is stated, recomputed 6"),
    "dual without prices": (O6, put("certificate", "prices", []), "the data of a call costs 0"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_and_named(kind: str) -> None:
    name, damage, message = DAMAGE[kind]
    plan = load(name)
    damage(plan)
    verdict = check_plan(plan)
    assert not verdict.optimal
    assert any(message in text for text in verdict.violations), verdict.violations


def test_a_price_may_be_0() -> None:
    plan = load("sendrecv-relays-ring4")
    prices = plan["certificate"]["prices"]
    links = [[link["src"], link["dst"]] for link in plan["topology"]["links"]]
    prices.append([*next(ends for ends in links if ends not in [price[:2] for price in prices]), "0"])
    assert check_plan(plan).optimal


def test_a_hop_that_circles_through_transit_is_refused() -> None:
    plan = load(RELAY)
    plan["ranks"], plan["dst"] = [0, 3], 3
    plan["shares"] = [
        {"weight": "1", "slice": 0, "block": None, "root": 0, "reduce": None, "broadcast": [[0, 1, 2, 1, 2, 3]]}
    ]
    assert any("visits a vertex twice" in text for text in check_plan(plan).violations)


def test_a_plan_without_any_edge_has_no_rate() -> None:
    plan = load(SEND)
    for share in plan["shares"]:
        share["broadcast"] = []
    verdict = check_plan(plan)
    assert verdict.rate is None
    assert any("no share crosses any link" in text for text in verdict.violations)


def test_a_dual_on_links_that_cannot_serve() -> None:
    plan = load(O6)
    plan["topology"]["links"] = plan["topology"]["links"][:-1]
    plan["certificate"]["prices"] = plan["certificate"]["prices"][:-1]
    assert any("cannot reach its destination" in text for text in check_plan(plan).violations)


class TestTopologyBesideThePlan:
    def test_the_plan_may_leave_links_and_vertices_out(self) -> None:
        plan = load(A)
        machine = copy.deepcopy(plan["topology"])
        machine["vertices"].append({"id": 7, "kind": "gpu", "server": 0})
        machine["links"].append(
            {"src": 7, "dst": 1, "capacity": 1, "kind": "nvlink", "gb_per_s": 25.0, "provenance": "catalog"}
        )
        assert check_plan(plan, machine).optimal

    def test_it_serves_a_plan_that_has_none(self) -> None:
        plan = load(A)
        machine = plan.pop("topology")
        assert check_plan(plan, machine).optimal

    def test_a_plan_on_links_that_the_machine_lacks_is_refused(self) -> None:
        plan = load(A)
        machine = copy.deepcopy(plan["topology"])
        machine["links"][0]["gb_per_s"] = 25.0
        machine["vertices"][1]["kind"] = "switch"
        assert [text.split(" in the plan")[0] for text in check_plan(plan, machine).violations] == [
            "topology: vertex 4 is a gpu",
            "topology: link 1 → 5 has 50.0 GB/s",
        ]

    def test_no_topology_at_all(self) -> None:
        plan = load(A)
        del plan["topology"]
        with pytest.raises(ScheduleError, match=r"^topology: missing in the plan"):
            check_plan(plan)


#: Damage to the shape of a plan, and the message: such a plan is unreadable, not wrong.
SHAPES: list[tuple[Callable[[Json], None], str]] = [
    (drop("rate"), "rate: missing"),
    (put("schema_version", 4), "plan.schema_version: expected 1 or 2 or 3, got 4"),
    (put("schema_version", 3), "turns: missing, with schema_version 3"),
    (put("turns", [{"cycles": [[0, 1]]}]), "turns: expected schema_version 3"),
    (put("collective", "allsum"), "collective: expected one of broadcast, "),
    (put("ranks", "1,4"), "ranks: expected an array, got '1,4'"),
    (put("ranks", 1, True), "ranks[1]: expected a vertex id, got True"),
    (put("root", "5"), "root: expected an integer from 0"),
    (put("unit_gb_per_s", "25"), "unit_gb_per_s: expected a finite number"),
    (put("algbw_gb_per_s", 10**400), "algbw_gb_per_s: expected a finite number, got an integer of"),
    (put("rate", "2.0"), 'rate: expected a fraction like "24/7"'),
    (put("rate", "1/0"), 'rate: expected a fraction like "24/7"'),
    (put("rate", "1" * 201), "at most 200 digits"),
    (put("optimal", 1), "optimal: expected true or false, got 1"),
    (put("shares", 1, 5), "shares[1]: expected an object, got 5"),
    (drop("shares", 1, "block"), "shares[1].block: missing"),
    (put("shares", 1, "block", [1]), "shares[1].block: expected [src, dst], got 1 entries"),
    (put("shares", 1, "block", "x"), "shares[1].block: expected an integer"),
    (put("shares", 1, "reduce", {}), "shares[1].reduce: expected null or an array"),
    (put("shares", 1, "reduce", 2, [5]), "shares[1].reduce[2]: expected an array of at least two"),
    (put("shares", 1, "reduce", 2, [5, -1]), "shares[1].reduce[2]: expected"),
    (put("link_load", 2, "load", 1), "link_load[2].load: expected a fraction"),
    (put("certificate", []), "certificate: expected an object, got an array"),
    (put("certificate", "kind", "faith"), "certificate.kind: expected 'cut', 'ratio'"),
    (put("certificate", "blocks", 1, 0), "certificate.blocks[1]: expected an array of vertex ids"),
    (
        put("certificate", {"kind": "dual", "prices": [[1, 5]], "value": "1", "cost": "1"}),
        "certificate.prices[0]: expected [src, dst, price]",
    ),
    (put("topology", "vertices", 1, "id", 1), "topology.vertices[1]: id 1 is given twice"),
    (put("topology", "links", 1, "src", 1), "topology.links[1]: joins vertex"),
    (put("topology", "links", 1, {"src": 1, "dst": 5, "capacity": 1}), "link 1 → 5 is given twice"),
    (put("topology", "links", 1, "src", 99), "topology.links[1]: ends at 99"),
    (put("topology", "links", 1, "capacity", 0), "topology.links[1].capacity: expected a positive integer"),
    (put("topology", "unit_gb_per_s", 0), "topology.unit_gb_per_s: expected a positive number"),
]


@pytest.mark.parametrize(("damage", "message"), SHAPES, ids=[message for _, message in SHAPES])
def test_an_unreadable_plan_is_an_error_with_its_path(damage: Callable[[Json], None], message: str) -> None:
    plan = load(A)
    damage(plan)
    with pytest.raises(ScheduleError) as caught:
        check_plan(plan)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (put("vertices", 7, "part_of", None), "vertex 14 is a switch in the plan, absent in the topology"),
        (put("vertices", 7, "part_of", 1), "vertex 14 is a switch in the plan, gpu in the topology"),
        (put("vertices", 6, "kind", "gpu"), "vertex 12 is a gpu in the plan, host in the topology"),
        (put("vertices", 4, "kind", "memory"), "vertex 8 is a memory in the plan, switch in the topology"),
        (lambda network: network["links"].append({**network["links"][3], "dst": 14}), "link 0 → 8 has 24.0 GB/s"),
        (lambda network: network["links"].append({**network["links"][3], "src": 8, "dst": 14}), "link 8 → 8 has"),
    ],
)
def test_a_part_of_a_machine_is_no_more_than_the_machine(damage: Callable[[Json], None], message: str) -> None:
    """PCIe through host memory: a switch's upward direction keeps its id, the downward one is a part of it."""
    plan = to_document(planned("optimal", asked("dgx-1v", "broadcast", "0-3", links="all", objective="exact")))
    machine = topology_document(parse_spec("dgx-1v"))
    assert check_plan(plan, machine).optimal
    damage(plan["topology"])
    assert any(message in text for text in check_plan(plan, machine).violations)


def test_weights_without_a_common_denominator_are_refused() -> None:
    plan = load(A)
    odd = [10**40 + 2 * i + 1 for i in range(8)]
    plan["shares"] = [dict(plan["shares"][0], weight=f"1/{n}", slice=i) for i, n in enumerate(odd)]
    with pytest.raises(ScheduleError, match="common denominator of more than 180 digits"):
        check_plan(plan)


def test_the_checker_imports_no_other_part_of_blink() -> None:
    graph = grimp.build_graph("blinkccl", include_external_packages=True, cache_dir=None)
    room = [f"blinkccl.proof.{name}" for name in ("check", "bound", "meaning", "reading", "turns")]
    allowed = {"blinkccl.errors", "blinkccl.schema", *room, *sys.stdlib_module_names}
    assert {name for module in room for name in graph.find_modules_directly_imported_by(module)} <= allowed
