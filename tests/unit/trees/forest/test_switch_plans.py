"""The checker on in-network reduction: a hand-written plan with both kinds of proof, and a message per damage."""

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from blinkccl.errors import ScheduleError
from blinkccl.proof.check import check_plan
from blinkccl.trees.forest.document import from_document, to_document
from support.damage import put

Json = dict[str, Any]
GPUS, SWITCH = (0, 1, 2), 3
LINKS = [(g, SWITCH) for g in GPUS] + [(SWITCH, g) for g in GPUS]


def star() -> Json:
    """An AllReduce of three GPUs: the switch reduces all data and multicasts the sum.

    The sets are the GPUs, and for each GPU the set of all other joints, each of weight 1/6, both entered and left. With
    a GPU as root, the trees leave and enter two GPUs, and one set of others: 6/6 in all. With the switch as root they
    leave and enter three GPUs: also 6/6. A hop to a GPU enters that GPU and leaves the set of its others: 1/6.
    """
    others = [sorted({*GPUS, SWITCH} - {g}) for g in GPUS]
    sets = [["1/6", [g]] for g in GPUS] + [["1/6", some] for some in others]
    return {
        "schema_version": 2,
        "collective": "allreduce",
        "root": None,
        "src": None,
        "dst": None,
        "algorithm": "by hand",
        "ranks": list(GPUS),
        "unit_gb_per_s": 1.0,
        "rate": "1",
        "bound": "1",
        "optimal": True,
        "certificate": {
            "kind": "dual",
            "prices": [[u, v, "1/6"] for u, v in LINKS],
            "value": "1",
            "cost": "1",
            "entered": sets,
            "left": copy.deepcopy(sets),
        },
        "algbw_gb_per_s": 1.0,
        "depth": 1,
        "trees": 1,
        "shares": [
            {
                "weight": "1",
                "slice": 0,
                "block": None,
                "root": SWITCH,
                "reduce": [[g, SWITCH] for g in GPUS],
                "broadcast": [[SWITCH, g] for g in GPUS],
            }
        ],
        "link_load": [{"src": u, "dst": v, "load": "1", "capacity": "1"} for u, v in LINKS],
        "topology": {
            "schema_version": 2,
            "name": "star",
            "unit_gb_per_s": 1.0,
            "vertices": [{"id": g, "kind": "gpu", "server": 0} for g in GPUS]
            + [{"id": SWITCH, "kind": "switch", "server": 0, "combines": True}],
            "links": [
                {"src": u, "dst": v, "capacity": 1, "kind": "nvlink", "gb_per_s": 1.0, "provenance": "synthetic"}
                for u, v in LINKS
            ],
        },
    }


def by_cut(plan: Json) -> None:
    plan["certificate"] = {"kind": "cut", "side": [0], "capacity": "1", "demand": "1"}


def test_both_proofs_pass_and_survive_reading_and_writing() -> None:
    plan = star()
    for damage in (lambda _: None, by_cut):
        damage(plan)
        verdict = check_plan(plan)
        assert (verdict.violations, verdict.rate, verdict.bound, verdict.optimal) == ([], 1, 1, True)
        assert to_document(from_document(plan))["certificate"] == plan["certificate"]
        assert from_document(plan).combining == (SWITCH,)


def drop_sets(plan: Json) -> None:
    del plan["certificate"]["entered"], plan["certificate"]["left"]


def no_word_of_combining(plan: Json) -> None:
    del plan["topology"]["vertices"][SWITCH]["combines"]


def gpu_that_combines(plan: Json) -> None:
    plan["topology"]["vertices"][SWITCH]["kind"] = "host"


def all_the_lower(plan: Json) -> None:
    """Half of every price, with the value that follows. The sets then weigh more than the hops cost."""
    certificate = plan["certificate"]
    certificate["prices"] = [[u, v, "1/12"] for u, v, _ in certificate["prices"]]
    certificate["value"] = "1/2"


DAMAGE: dict[str, tuple[Callable[[Json], None], str]] = {
    "a switch that does not say so": (no_word_of_combining, "shares[0].root: 3 is none of the ranks"),
    "a host cannot": (gpu_that_combines, "shares[0].root: 3 is none of the ranks"),
    "contribution lost": (put("shares", 0, "reduce", 2, [1, 3]), "contributions of [2] never reach the root 3"),
    "counted twice": (put("shares", 0, "reduce", 2, [1, 3]), "vertex 1 sends twice, so its contribution counts twice"),
    "delivery lost": (put("shares", 0, "broadcast", [[3, 0], [3, 1]]), "slice 0 never reaches [2]"),
    "delivered twice": (
        put("shares", 0, "broadcast", [[3, 0], [3, 1], [3, 2], [3, 2]]),
        "vertex 2 receives twice, from 3 and 3",
    ),
    "root not below": (put("shares", 0, "root", 0), "contributions of [1, 2] never reach the root 0"),
    "load as if each went by itself": (put("link_load", 3, "load", "3"), "load 3 stated, recomputed 1"),
    "rate": (put("rate", "3/2"), "rate"),
    "prices for ranks alone": (drop_sets, "switch 3 in shares[0] reduces or copies data; expected sets"),
    "a set without a rank": (put("certificate", "left", 2, ["1/6", [3]]), "left[2]: expected ranks and switches"),
    "a set of nothing that is there": (put("certificate", "entered", 0, 1, [0, 9]), "entered[0]: expected ranks and"),
    "a vertex twice": (put("certificate", "entered", 0, 1, [0, 0]), "positive weight and different vertices"),
    "a weight below zero": (put("certificate", "entered", 0, 0, "-1/6"), "positive weight and different vertices"),
    "a set that weighs more": (put("certificate", "entered", 0, 0, "1/3"), "hop 3 → 0 has price 1/6, but sets"),
    "a set that is larger": (
        put("certificate", "left", 0, 1, [0, 1]),
        "hop 1 → 3 has price 1/6, but sets that it leaves need at least 1/3",
    ),
    "a price left out": (put("certificate", "prices", 0, [0, 3, "0"]), "hop 0 → 3 has price 0, but sets that it"),
    "lower prices": (all_the_lower, "has price 1/12, but sets that it leaves need at least 1/6"),
    "cost": (put("certificate", "cost", "2"), "certificate.cost: 2 is stated, recomputed 1"),
    "value": (put("certificate", "value", "2"), "certificate.value: 2 is stated, recomputed 1"),
    "sets that are left alone": (put("certificate", "entered", []), "certificate.cost: 1 is stated, recomputed 1/2"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_planted_faults_are_found(name: str) -> None:
    damage, message = DAMAGE[name]
    plan = star()
    damage(plan)
    verdict = check_plan(plan)
    assert not verdict.optimal
    assert any(message in text for text in verdict.violations), verdict.violations


def test_a_hop_through_a_passive_switch_costs_both_links() -> None:
    """The switch is no joint without ``combines``, so hops join two GPUs through it."""
    plan = star()
    no_word_of_combining(plan)
    plan["shares"] = [
        {
            "weight": "1",
            "slice": 0,
            "block": None,
            "root": 0,
            "reduce": [[2, 3, 1], [1, 3, 0]],
            "broadcast": [[0, 3, 1], [1, 3, 2]],
        }
    ]
    plan["certificate"]["entered"] = plan["certificate"]["left"] = [["1/3", [g]] for g in GPUS]
    verdict = check_plan(plan)
    assert verdict.bound == Fraction(3, 4)  # six links at 1/6, over two GPUs entered and two left at 1/3


def test_a_reducing_switch_of_the_plan_must_reduce_in_the_machine() -> None:
    plan, machine = star(), star()["topology"]
    assert check_plan(plan, machine).optimal
    del machine["vertices"][SWITCH]["combines"]
    fault = "vertex 3 has in-network reduction (combines) in the plan, but not in the topology given beside it"
    assert fault in check_plan(plan, machine).violations[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (put("certificate", "entered", 0, ["1/6"]), "certificate.entered[0]"),
        (put("certificate", "left", 0, 0, 3), "certificate.left[0][0]"),
        (put("certificate", "left", {}), "certificate.left: expected an array"),
        (put("topology", "vertices", 3, "combines", 1), "combines: expected true or false"),
    ],
)
def test_an_unreadable_proof_is_refused_with_its_place(damage: Callable[[Json], None], message: str) -> None:
    plan = star()
    damage(plan)
    with pytest.raises(ScheduleError) as refused:
        check_plan(plan)
    assert message in str(refused.value)
    with pytest.raises(ScheduleError):
        from_document(plan)
