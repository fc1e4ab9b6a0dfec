"""Damaged plans crash neither reader nor checker, and no changed claim passes."""

import copy
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import InternalError, ScheduleError
from blinkccl.proof.check import Verdict, check_plan
from blinkccl.trees.forest.document import dumps, from_document, loads, to_document
from blinkccl.trees.forest.model import Forest, Share, Tree, attained_rate
from support.examples import examples

Json = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "unit/trees/forest/plans"
PLANS = [path.read_bytes() for path in sorted(FOLDER.glob("*.json"))]
FAST = examples(400)

raw_plans = st.sampled_from(PLANS)
plans = raw_plans.map(json.loads)


def leaves(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in ``value`` that are no object or array."""
    if isinstance(value, dict):
        return [leaf for key, entry in value.items() for leaf in leaves(entry, (*way, key))]
    if isinstance(value, list):
        return [leaf for i, entry in enumerate(value) for leaf in leaves(entry, (*way, i))]
    return [way]


def get(plan: Any, way: tuple[Any, ...]) -> Any:
    for key in way:
        plan = plan[key]
    return plan


def put(plan: Json, way: tuple[Any, ...], value: Any) -> None:
    get(plan, way[:-1])[way[-1]] = value


def judged(plan: Any) -> Verdict | None:
    """The verdict, or None if the plan is unreadable. Every error but ScheduleError fails the test."""
    try:
        from_document(plan)
        return check_plan(plan)
    except ScheduleError:
        return None


def is_claim(way: tuple[Any, ...], value: Any) -> bool:
    """True for entries of which every change is a false statement.

    It is false for names, slice numbers, links that no tree and no cut touches, and vertex sets of certificates,
    because another set may prove the same bound.
    """
    top, last = way[0], way[-1]
    if top in ("depth", "trees"):
        return value is not None  # an absent entry states nothing
    if top == "shares":
        return last != "slice"
    if top == "certificate":
        return last in ("kind", "capacity", "demand", "value", "cost", 2) and way[1] not in ("side", "blocks")
    if top == "topology":
        return last in ("capacity", "unit_gb_per_s", "schema_version") or (last == "gb_per_s" and value is not None)
    return top != "algorithm"


fractions = st.fractions(min_value=-3, max_value=9, max_denominator=12).map(str)
values = st.one_of(
    st.integers(-1, 9),
    fractions,
    st.none(),
    st.booleans(),
    st.floats(allow_nan=True),
    st.lists(st.integers(0, 7), max_size=4),
    st.text(max_size=4),
    st.just({}),
    st.just(10**400),
    st.sampled_from(["allreduce", "reduce", "alltoall", "cut", "ratio", "partition", "dual"]),
)


def same(before: Any, after: Any) -> bool:
    if before in (None, []) and after in (None, []):
        return True  # no tree and a tree without edges are equal
    if isinstance(before, str) and isinstance(after, str):
        try:
            return Fraction(before) == Fraction(after)
        except (ValueError, ZeroDivisionError):
            return before == after
    return type(before) is type(after) and bool(before == after)


@FAST
@given(plans, st.data())
def test_a_changed_statement_never_passes(plan: Json, data: st.DataObject) -> None:
    way = data.draw(st.sampled_from(leaves(plan)))
    value, before = data.draw(values), get(plan, way)
    put(plan, way, value)
    verdict = judged(plan)
    if is_claim(way, value) and not same(before, value):
        # 1 and 1.0 state the same rate.
        numeric = isinstance(before, float) and type(value) is int and before == value
        assert numeric or verdict is None or verdict.violations


@FAST
@given(plans, st.data())
def test_a_share_or_an_edge_lost_or_doubled_never_passes(plan: Json, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(plan["shares"]) - 1))
    lists = [
        ("shares",),
        *(("shares", index, key) for key in ("reduce", "broadcast") if plan["shares"][index][key]),
        ("link_load",),
    ]
    entries = get(plan, data.draw(st.sampled_from(lists)))
    at = data.draw(st.integers(0, len(entries) - 1))
    if data.draw(st.booleans()):
        del entries[at]
    else:
        entries.insert(data.draw(st.integers(0, len(entries))), copy.deepcopy(entries[at]))
    verdict = check_plan(plan)
    assert verdict.violations
    assert not verdict.optimal


@FAST
@given(plans, st.data())
def test_another_certificate_passes_only_with_the_same_bound(plan: Json, data: st.DataObject) -> None:
    stated = plan["bound"]
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(leaves(plan["certificate"])))
        put(plan["certificate"], way, data.draw(values))
    verdict = judged(plan)
    if verdict is not None and not verdict.violations:
        assert verdict.bound == Fraction(stated)


@FAST
@given(
    raw_plans,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 2), st.binary(max_size=3)), min_size=1, max_size=6),
)
def test_damaged_bytes_are_read_or_refused(raw: bytes, damage: list[tuple[int, int, bytes]]) -> None:
    for place, kind, new in damage:
        at = place % (len(raw) + 1)
        raw = raw[:at] + (new if kind else b"") + raw[at + kind :] if kind < 2 else raw[:at]
    try:
        plan = loads(raw)
        forest = from_document(plan)
    except ScheduleError:
        return
    assert from_document(raw) == forest
    assert isinstance(judged(plan), Verdict)


@FAST
@given(plans, st.randoms(use_true_random=False))
def test_relabelled_vertices_change_nothing(plan: Json, rng: Any) -> None:
    ids = [vertex["id"] for vertex in plan["topology"]["vertices"]]
    new = dict(zip(ids, rng.sample(range(100), len(ids)), strict=True))

    def relabel(value: Any, way: tuple[Any, ...]) -> Any:
        named = (
            way[-1] in ("root", "src", "dst", "id")
            or {"ranks", "side", "blocks", "block", "reduce", "broadcast"} & set(way)
            or ("prices" in way and way[-1] != 2)
        )
        return new[value] if named and value is not None else value

    for way in leaves(plan):
        put(plan, way, relabel(get(plan, way), way))
    for key in ("shares", "link_load", "ranks"):
        if key != "ranks" or plan["collective"] != "alltoall":
            rng.shuffle(plan[key])
    assert check_plan(plan).violations == []


def edited(data: st.DataObject, forest: Forest) -> Forest | None:
    """``forest`` with random edits of its shares and consistent, recomputed numbers; None without a rate."""
    shares = list(forest.shares)
    hops = sorted(
        {path for share in shares for tree in share.trees() for path in tree.edges}
        | {arc for arc in forest.topology.link if set(arc) <= set(forest.ranks)}
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(shares) - 1))
        shares[at] = edited_share(data, shares[at], hops, forest.ranks)
    try:
        rate = attained_rate(forest.topology, shares)
    except InternalError:
        return None
    return Forest(forest.collective, forest.ranks, "edited", forest.topology, tuple(shares), rate, forest.certificate)


def edited_share(data: st.DataObject, share: Share, hops: list[tuple[int, ...]], ranks: tuple[int, ...]) -> Share:
    kind = data.draw(st.sampled_from(["edge", "edge", "edge", "root", "weight", "slice", "stage"]))
    weight, name, root, up, down = share.weight, share.slice, share.root, share.reduce, share.broadcast
    if kind == "edge":
        if up is not None and (down is None or data.draw(st.booleans())):
            up = edited_tree(data, up, hops)
        elif down is not None:
            down = edited_tree(data, down, hops)
    elif kind == "root":
        root = data.draw(st.sampled_from(ranks))
    elif kind == "weight":
        weight *= data.draw(st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(2)]))
    elif kind == "slice":
        name = data.draw(st.integers(0, 3))
    else:
        up, down = data.draw(st.sampled_from([(None, down), (up, None), (up and up.reversed(), down)]))
    up, down = up and Tree(root, up.edges), down and Tree(root, down.edges)
    return Share(weight, name, share.block, root, up, down)


def edited_tree(data: st.DataObject, tree: Tree, hops: list[tuple[int, ...]]) -> Tree:
    edges = list(tree.edges)
    at = data.draw(st.integers(0, len(edges)))
    edges[at : at + data.draw(st.integers(0, 1))] = data.draw(st.lists(st.sampled_from(hops), max_size=1))
    return Tree(tree.root, tuple(edges))


def delivered(share: Share, sources: set[int]) -> Counter[int] | None:
    """Copies of the root's data by vertex; None unless each source contributes once and no vertex acts twice."""
    waiting = list(share.reduce.edges) if share.reduce else []
    senders = [path[0] for path in waiting]
    if share.root in senders or len(set(senders)) < len(senders):
        return None
    held = {v: Counter([v] if v in sources else []) for v in (share.root, *(v for p in waiting for v in p))}
    while waiting:
        ready = [path for path in waiting if all(other[-1] != path[0] for other in waiting)]
        if not ready:
            return None
        for path in ready:
            held[path[-1]] += held[path[0]]
            waiting.remove(path)
    if held[share.root] != Counter(dict.fromkeys(sources, 1)):
        return None
    copies = Counter([share.root])
    waiting = list(share.broadcast.edges) if share.broadcast else []
    while ready := [path for path in waiting if path[0] in copies]:
        for path in ready:
            copies[path[-1]] += 1
            waiting.remove(path)
    if waiting or max(copies.values()) > 1:
        return None
    for sender in senders:  # data of a single source is complete at every vertex that it passes
        if len(sources) == 1 and held[sender] and sender not in copies:
            copies[sender] += 1
    return copies


def is_right(forest: Forest) -> bool:
    """True if each destination gets each item completely and exactly once. The test moves data, not trees."""
    slices: dict[Any, Counter[int]] = {}
    for share in forest.shares:
        item = forest.item(share)
        copies = delivered(share, {forest.ranks[r] for r, _ in item.contributions})
        if copies is None:
            return False
        destinations = {forest.ranks[r] for r, _ in item.destinations}
        got = slices.setdefault((share.block, share.slice, share.weight), Counter())
        got.update({v: count for v, count in copies.items() if v in destinations})
    for item in forest.collective.items():
        block = next(share.block for share in forest.shares if forest.item(share) is item)
        of_block = {key: got for key, got in slices.items() if key[0] == block}
        once = Counter({forest.ranks[r]: 1 for r, _ in item.destinations})
        if sum(key[2] for key in of_block) != item.weight or any(got != once for got in of_block.values()):
            return False
    return True


@examples(750)
@given(raw_plans, st.data())
def test_a_wrong_plan_with_consistent_numbers_never_passes(raw: bytes, data: st.DataObject) -> None:
    forest = edited(data, from_document(raw))
    if forest is None:
        return
    verdict = check_plan(json.loads(dumps(to_document(forest))))
    if not verdict.violations:
        assert is_right(forest)
        assert verdict.rate == forest.rate
    elif is_right(forest):
        # The checker requires a little more than right data: no vertex may send up without a contribution.
        assert all("nothing to contribute" in text for text in verdict.violations), verdict.violations
