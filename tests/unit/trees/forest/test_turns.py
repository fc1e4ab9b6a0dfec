"""Plans by orbits: their writer, their two readers, and turns refused before any expansion."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blinkccl.errors import ScheduleError
from blinkccl.proof import turns as check_turns
from blinkccl.proof.audit import audit
from blinkccl.proof.check import check_plan
from blinkccl.show.check_text import audit_text
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest import document, turns
from blinkccl.trees.forest.document import dumps, from_document, stated_hops, to_document
from blinkccl.trees.forest.model import Forest
from support.damage import put
from support.planned import asked, plan
from support.turned import flat, turned

Json = dict[str, Any]
RING = plan("optimal", "ring:6", None, "allgather")
SERVERS = plan("optimal", "2x dgx-a100 @ 200Gbps", None, "allgather")


def test_a_small_plan_states_every_share() -> None:
    assert to_document(SERVERS) == flat(SERVERS)
    assert "turns" not in flat(SERVERS)
    assert flat(SERVERS)["schema_version"] == 2


def test_a_symmetric_plan_states_a_share_and_a_load_per_orbit() -> None:
    written = turned(SERVERS)
    assert written["schema_version"] == 3
    assert [max(map(len, turn["cycles"])) for turn in written["turns"]] == [8, 2]
    assert len(written["shares"]) * 16 == len(SERVERS.shares)
    links = [(row["src"], row["dst"]) for row in written["link_load"]]
    assert links == [(0, 16), (0, 23), (16, 0), (23, 0), (23, 46), (46, 23)]
    assert (written["trees"], written["depth"]) == (len(SERVERS.shares), SERVERS.depth)


def test_a_ring_has_one_turn_and_the_shares_of_one_root() -> None:
    written = turned(RING)
    assert written["turns"] == [{"cycles": [[0, 1, 2, 3, 4, 5]]}]
    assert {share["root"] for share in written["shares"]} == {0}
    third = from_document(written).shares[2 * len(written["shares"])]
    first = from_document(written).shares[0]
    assert (third.root, third.block, third.weight) == (2, 2, first.weight)
    assert third.broadcast is not None
    assert first.broadcast is not None
    assert third.broadcast.edges == tuple(tuple((v + 2) % 6 for v in path) for path in first.broadcast.edges)


@pytest.mark.parametrize("forest", [RING, SERVERS, plan("optimal", "dgx-1v", None, "allreduce")])
def test_hops_of_images_are_counted(forest: Forest) -> None:
    hops = sum(len(tree.edges) for share in forest.shares for tree in share.trees())
    assert stated_hops(turned(forest)) == stated_hops(flat(forest)) == hops


@pytest.mark.parametrize(
    "change", [{"turns": 3}, {"turns": [{}]}, {"turns": [{"cycles": []}]}, {"shares": [{}]}, {"shares": 1}]
)
def test_a_document_that_is_no_plan_has_no_hops(change: Json) -> None:
    assert stated_hops({**turned(SERVERS), **change}) == 0
    assert stated_hops({}) == 0


@pytest.mark.parametrize(("spec", "collective"), [("chain:5", "allgather"), ("dgx-2", "broadcast")])
def test_a_forest_without_symmetry_states_every_share(spec: str, collective: str) -> None:
    forest = plan("optimal", spec, None, collective)
    assert turned(forest) == flat(forest)


def test_one_different_share_breaks_the_symmetry() -> None:
    for changed in (
        replace(SERVERS.shares[5], slice=77),
        replace(SERVERS.shares[5], weight=SERVERS.shares[5].weight / 2),
        replace(SERVERS.shares[5], root=4),
        replace(SERVERS.shares[5], broadcast=None),
    ):
        forest = replace(SERVERS, shares=(*SERVERS.shares[:5], changed, *SERVERS.shares[6:]))
        assert turned(forest) == flat(forest)
    assert "turns" not in turned(replace(SERVERS, shares=SERVERS.shares[::-1]))


def test_a_violation_in_an_image_is_named_by_its_share_and_turns() -> None:
    written = turned(SERVERS)
    switches = next(cycle for cycle in written["turns"][1]["cycles"] if 16 in cycle)
    written["turns"][1]["cycles"].remove(switches)
    verdict = check_plan(written)
    assert "shares[0]@[0,1].broadcast[0]: there is no link 8 → 16" in verdict.violations


BAD = [
    (put("turns", []), "turns: "),
    (put("turns", 3), "turns: "),
    (put("turns", 0, 3), "turns[0]: "),
    (put("turns", 0, {}), "turns[0]"),
    (put("turns", 0, "cycles", []), "turns[0].cycles: "),
    (put("turns", 0, "cycles", 0, [4]), "turns[0].cycles[0]: "),
    (put("turns", 0, "cycles", 0, [0, "1"]), "turns[0].cycles[0][1]: "),
    (put("turns", 0, "cycles", 0, [0, 1, 2, 3, 4, 6]), "turns[0].cycles[0]"),
    (put("turns", 0, "cycles", 0, [0, 1, 2, 3, 4, 0]), "turns[0].cycles[0]"),
    (put("turns", 0, "cycles", [[0, 1, 2], [3, 4]]), "turns[0].cycles[1]: "),
    (put("turns", 0, "cycles", [[0, 1, 2], [3, 4, 2]]), "turns[0].cycles[1]"),
    (put("turns", [{"cycles": [[0, 1, 2, 3, 4, 5]]}, {"cycles": [[0, 1]]}]), "turns[1]: "),
    (put("turns", [{"cycles": [[0, 1]]}] * 40), "turns[2]: "),
    (put("schema_version", 2), "turns: expected schema_version 3"),
    (put("shares", 0, "root", 9), "shares[0]: "),
    (put("shares", 0, "block", 9), "shares[0]: "),
    (put("shares", 0, "slice", 1), "shares[0].slice: "),
    (put("shares", 1, "slice", 10**6), "shares[1].slice: "),
]


@pytest.mark.parametrize(("change", "place"), BAD)
@pytest.mark.parametrize("read", [from_document, check_plan])
def test_an_invalid_turn_is_refused_with_its_place(
    read: Callable[[Json], Any], change: Callable[[Json], None], place: str
) -> None:
    written = turned(RING)
    read(written)
    change(written)
    with pytest.raises(ScheduleError) as caught:
        read(written)
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize("read", [from_document, check_plan])
def test_a_rank_is_turned_to_a_rank(read: Callable[[Json], Any]) -> None:
    written = turned(SERVERS)
    written["turns"] = [{"cycles": [[0, 16]]}]
    with pytest.raises(ScheduleError, match=r"turns\[0\]: rank 0 .*16, which is no rank"):
        read(written)


@pytest.mark.parametrize(
    ("read", "room", "limit", "worker"),
    [
        (from_document, document, "MAX_SHARES", (turns, "_in_order")),
        (from_document, document, "MAX_VERTICES", (turns, "_in_order")),
        (check_plan, check_turns, "MAX_SHARES", (check_turns, "_in_order")),
        (check_plan, check_turns, "MAX_CROSSED", (check_turns, "_in_order")),
    ],
)
def test_too_many_images_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Json], Any], room: Any, limit: str, worker: tuple[Any, str]
) -> None:
    written = turned(RING)
    hops = sum(len(path) for share in RING.shares for tree in share.trees() for path in tree.edges)
    size = len(RING.shares) if limit == "MAX_SHARES" else hops
    monkeypatch.setattr(room, limit, size)
    read(written)
    monkeypatch.setattr(room, limit, size - 1)
    monkeypatch.setattr(*worker, None)  # A call of the worker would now be a TypeError.
    with pytest.raises(ScheduleError, match=r"^turns: expected at most .* has 6 images"):
        read(written)


def test_a_load_stands_for_its_orbit_and_for_no_link_twice() -> None:
    written = turned(SERVERS)
    twice = copy.deepcopy(written)
    twice["link_load"].append({**written["link_load"][0], "src": 3})
    assert any("link_load[6]: link 3 → 16 is listed twice" in text for text in check_plan(twice).violations)
    wrong = copy.deepcopy(written)
    wrong["link_load"][0]["load"] = "1/7"
    faults = [text for text in check_plan(wrong).violations if text.startswith("link_load[0]")]
    assert len(faults) == 16
    less = copy.deepcopy(written)
    del less["link_load"][0]
    assert sum("is not listed" in text for text in check_plan(less).violations) == 16
    nowhere = copy.deepcopy(written)
    nowhere["link_load"][0]["dst"] = 3
    assert "link_load[0]: link 0 → 3 does not exist" in check_plan(nowhere).violations


def test_a_plan_by_orbits_is_checked_with_all_its_shares() -> None:
    result = audit(turned(SERVERS))
    assert result.ok
    assert result.verdict.rate == SERVERS.rate
    assert result.schema_version == 3
    assert "earlier" not in audit_text(result)
    assert result.program is not None
    assert len(result.program.slices) == len(SERVERS.shares)


@pytest.mark.slow
def test_a_thousand_gpus_take_less_than_a_megabyte() -> None:
    forest = ALGORITHMS["optimal"].plan(asked("128x dgx-a100", "allgather"))
    text = dumps(to_document(forest))
    assert len(text.encode()) < 1_000_000
    assert len(json.loads(text)["shares"]) == 1
    assert from_document(text.encode()) == forest
    assert check_plan(json.loads(text)).optimal


def test_a_forest_of_two_orbits_states_the_shares_of_two_roots() -> None:
    forest = plan("optimal", "3x dgx-1v @ 100Gbps", None, "allgather")
    written = turned(forest)
    assert {share["root"] for share in written["shares"]} == {0, 2}
    assert from_document(written) == forest
