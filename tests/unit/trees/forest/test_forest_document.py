"""A forest as JSON and back: canonical bytes, wrong shapes refused with their path, wrong plans accepted."""

import gc
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError
from blinkccl.proof.audit import audit
from blinkccl.proof.check import check_plan
from blinkccl.topology.model import Topology
from blinkccl.trees.forest import document
from blinkccl.trees.forest.document import (
    dumps,
    from_document,
    moving_shares,
    to_document,
)
from blinkccl.trees.forest.model import Tree, forest_hash, topology_hash
from support.planned import asked, planned

PLANS = Path(__file__).parent / "plans"
FILES = sorted(PLANS.glob("*.json"))
GOOD = (PLANS / "allreduce-dgx1v-1456.json").read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_reads_back_to_the_same_bytes(path: Path) -> None:
    raw = path.read_bytes()
    forest = from_document(raw)
    assert dumps(to_document(forest)).encode() == raw
    assert from_document(json.loads(raw)) == forest


def test_planning_time_is_stated_last_and_only_if_asked_for() -> None:
    forest = from_document(GOOD)
    plan = to_document(forest)
    assert to_document(forest, plan_seconds=0.012) == {**plan, "plan_seconds": 0.012}
    assert list(to_document(forest, plan_seconds=0.012)) == [*plan, "plan_seconds"]


def test_ends_are_vertex_ids_outside_and_positions_inside() -> None:
    forest = from_document((PLANS / "sendrecv-relays-ring4.json").read_bytes())
    assert forest.collective == Collective("sendrecv", 2, src=0, dst=1)
    assert (to_document(forest)["src"], to_document(forest)["dst"]) == (0, 2)


def test_a_share_and_a_tree_without_edges_stay_apart() -> None:
    plan = json.loads(GOOD)
    plan["shares"][0]["broadcast"], plan["shares"][0]["reduce"] = [], None
    forest = from_document(plan)
    assert forest.shares[0].broadcast == Tree(5, ())
    assert to_document(forest)["shares"][0]["broadcast"] == []
    assert moving_shares(forest) == 1


def test_a_share_is_one_line_however_many_edges_it_has() -> None:
    plan = to_document(planned("one_hop", asked("clique:32", "allgather")))
    del plan["topology"], plan["link_load"]
    text = dumps(plan)
    assert len(text.splitlines()) < 60
    assert json.loads(text) == plan


def test_hashes_do_not_depend_on_names_notes_or_order() -> None:
    forest = from_document(GOOD)
    topology = forest.topology
    renamed = Topology("other", topology.unit_gb_per_s, topology.vertices[::-1], topology.links[::-1], ("note",))
    same = replace(forest, topology=renamed)
    assert topology_hash(renamed) == topology_hash(topology)
    assert forest_hash(same) == forest_hash(forest)


def test_hashes_depend_on_links_and_on_trees() -> None:
    forest = from_document(GOOD)
    plan = json.loads(GOOD)
    plan["shares"][0]["reduce"].reverse()
    assert forest_hash(from_document(plan)) != forest_hash(forest)
    plan["topology"]["links"].pop()
    assert topology_hash(from_document(plan).topology) != topology_hash(forest.topology)


def changed(way: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A good plan with another value at the end of ``way``."""
    plan: dict[str, Any] = json.loads(GOOD)
    at: Any = plan
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = value
    return plan


class TestReadableButWrong:
    """Readable but wrong plans become forests; the verifier and the checker refuse them."""

    @pytest.mark.parametrize(
        ("way", "value"),
        [
            (("shares", 0, "weight"), "-7/3"),
            (("shares", 0, "broadcast", 0), [5, 99]),
            (("shares", 0, "root"), 77),
            (("shares", 0, "block"), [8, 9]),
            (("shares", 0, "reduce"), [[1, 5], [1, 6], [5, 1]]),
            (("rate",), "0"),
            (("rate",), "100"),
            (("optimal",), False),
            (("bound",), "-1"),
            (("link_load",), []),
            (("depth",), 40),
            (("certificate", "blocks"), [[1], [1]]),
            (("unit_gb_per_s",), 1.0),
            (("algbw_gb_per_s",), -3.0),
        ],
    )
    def test_it_is_read_and_can_be_written_again(self, way: tuple[Any, ...], value: Any) -> None:
        plan = changed(way, value)
        again = dumps(to_document(from_document(plan))).encode()
        assert from_document(again) == from_document(plan)

    def test_unknown_fields_at_the_top_are_accepted(self) -> None:
        plan = json.loads(GOOD)
        plan["ring_gb_per_s"] = 0.0
        assert from_document(plan) == from_document(GOOD)


#: Damage to the shape, and the message: place, expected, got.
SHAPES: list[tuple[tuple[Any, ...], Any, str]] = [
    (("shares", 1, "broadcast", 1), "x", "shares[1].broadcast[1]: expected `array`, got `str`"),
    (("shares", 1, "broadcast", 1), [5], "shares[1].broadcast[1]: expected `array` of length >= 2, got 1 "),
    (
        ("shares", 1, "weight"),
        "1/0",
        "shares[1].weight: expected a fraction like \"24/7\" of at most 200 digits a side, got '1/0'",
    ),
    (("shares", 1, "weight"), "1" * 201, "shares[1].weight: expected a fraction"),
    (("shares", 1, "weight"), "1/2\n", "shares[1].weight: expected a fraction"),
    (("shares", 1, "weight"), 0.5, "shares[1].weight: expected `str`, got `float`"),
    (("shares", 1, "block"), [1, 2, 3], "shares[1].block: expected `array` of length"),
    (("shares", 1, "share"), 1, "shares[1]: object contains unknown field `share`"),
    (("schema_version",), 4, "schema_version 4; this blink reads 1, 2 and 3"),
    (("schema_version",), 3, "turns: missing, with schema_version 3"),
    (("ranks", 0), 2**70, "ranks[0]: expected `int` <= 2147483647, got a bigger number"),
    (("ranks", 0), -1, "ranks[0]: expected `int` >= 0, got -1"),
    (("ranks", 0), 9, "ranks[0]: 9 is no vertex of the topology"),
    (("ranks", 0), 4, "ranks[1]: 4 is named twice"),
    (("ranks",), [], "ranks: expected `array` of length >= 1"),
    (("root",), 1, "root: allreduce takes none, got 1"),
    (("root",), 9, "root: allreduce takes none, got 9"),
    (("collective",), "allsum", "collective: expected one of broadcast, reduce"),
    (("collective",), "reduce", "root: reduce needs one of the ranks [1, 4, 5, 6], got null"),
    (("unit_gb_per_s",), float("nan"), "unit_gb_per_s: expected `float`"),
    (("algbw_gb_per_s",), float("inf"), "algbw_gb_per_s: expected `float`"),
    (("certificate", "kind"), "faith", "certificate.kind: invalid value 'faith'"),
    (("certificate", "blocks"), [[1, 4, 5, 6]], "certificate.blocks: expected `array` of length >= 2"),
    (
        ("certificate",),
        {"kind": "cut", "side": [1], "capacity": "1", "demand": "0"},
        "certificate.demand: expected a positive fraction",
    ),
    (
        ("certificate",),
        {"kind": "dual", "prices": [[1, 5]], "value": "1", "cost": "1"},
        "certificate.prices[0]: expected `array` of length 3",
    ),
    (("topology", "links", 0, "dst"), 99, "topology: dgx-1v: link 1 → 99 names an unknown vertex"),
    (("topology", "links", 0, "capacity"), 0, "topology: links[0], 1 → 5: capacity must be a positive"),
    (("topology", "unit_gb_per_s"), float("nan"), "topology: unit_gb_per_s must be above 0"),
    (("topology",), None, "topology: expected `object`, got `null`"),
]


@pytest.mark.parametrize(("way", "value", "message"), SHAPES, ids=[message[:50] for _, _, message in SHAPES])
def test_a_wrong_shape_is_refused_with_its_path(way: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        from_document(changed(way, value))
    assert str(caught.value).startswith(message)


def test_a_missing_field_is_named() -> None:
    plan = json.loads(GOOD)
    del plan["rate"]
    with pytest.raises(ScheduleError, match="missing required field `rate`"):
        from_document(plan)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "plan: the file is empty"),
        (b"[]", "plan: expected an object, got list"),
        (b"nonsense", 'plan, line 1, column 5: not JSON; expected what "blink plan -o" writes'),
        (b"\xff\xfe", "plan, line 1, column 1: not JSON"),
        (GOOD[:500], "not JSON: Input data was truncated"),
        (b'{"x":' + b"[" * 100_000, "plan: nested too deeply"),
        (b'{"collective": "\xff"}', "plan: not JSON"),
        (b'{"schema_version": NaN}', "plan, line 1, column 20: not JSON"),
        (b'{"schema_version": 1' + b"0" * 5000 + b"}", "plan: not JSON: Integer value out of range"),
        (GOOD.replace(b"depth", b"dep\x80h"), "plan: not JSON"),
        (GOOD.replace(b'"depth": 2', b'"d": ' + b"2" * 5000), "plan: not JSON"),
    ],
)
def test_bytes_that_are_no_plan_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        from_document(raw)
    assert message in str(caught.value)


def test_a_plan_above_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_BYTES", 100)
    with pytest.raises(ScheduleError, match=f"plan: expected at most 100 bytes, got {len(GOOD)}"):
        from_document(GOOD)


def test_weights_without_a_common_denominator_are_refused() -> None:
    plan = json.loads(GOOD)
    plan["shares"] = [dict(plan["shares"][0], weight=f"1/{10**40 + 2 * i + 1}") for i in range(8)]
    with pytest.raises(ScheduleError, match="shares: the weights have a common denominator of more than 180"):
        from_document(plan)


def test_a_number_too_long_for_every_reader_is_not_written() -> None:
    huge = replace(from_document(GOOD), rate=Fraction(10**200 + 1, 7))
    with pytest.raises(ScheduleError, match="more than 200 digits"):
        to_document(huge)


def as_version_1(document: object) -> object:
    """The document in the schema of blink 0.1."""
    if isinstance(document, list):
        return [as_version_1(entry) for entry in document]
    if not isinstance(document, dict):
        return document
    old = {key.replace("gb_per_s", "gbps"): as_version_1(value) for key, value in document.items()}
    return {**old, "schema_version": 1} if "schema_version" in document else old


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_plans_of_schema_version_1_are_read(path: Path) -> None:
    now = json.loads(path.read_text())
    old = as_version_1(now)
    assert isinstance(old, dict)
    assert "gb_per_s" not in json.dumps(old)
    before = json.dumps(old)
    assert from_document(old) == from_document(now)
    assert check_plan(old) == check_plan(now)
    assert audit(old).document() == {**audit(now).document(), "plan_schema_version": 1}
    assert json.dumps(old) == before


@pytest.mark.parametrize("enabled", [True, False], ids=["collecting", "not collecting"])
def test_reading_disables_the_garbage_collector_and_restores_it(enabled: bool) -> None:
    edges = ",".join(f"[{i},{i + 1}]" for i in range(20_000))
    collections: list[str] = []
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    (gc.enable if enabled else gc.disable)()
    try:
        plan = document.loads(f'{{"shares": [{edges}]}}'.encode())
        assert collections.count("start") <= 2  # One before and one after; otherwise one per 700 lists.
        with pytest.raises(ScheduleError):
            from_document(plan)
        assert gc.isenabled() == enabled
    finally:
        gc.callbacks.pop()
        gc.enable()
