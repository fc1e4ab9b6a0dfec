"""Plans by orbits are equivalent to the same plans with all shares, right or wrong."""

import copy
import json
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError
from blinkccl.proof.check import Verdict, check_plan
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.document import dumps, from_document
from blinkccl.trees.forest.model import Forest, Share, Tree
from support.examples import examples
from support.planned import by_hand, plan
from support.turned import flat, turned

Json = dict[str, Any]
PLANS = [
    ("ring:5", "allgather", "optimal"),
    ("torus:3x4", "reduce_scatter", "optimal"),
    ("hypercube:3", "allgather", "optimal"),
    ("clique:4", "allreduce", "one_hop"),
    ("clique:4", "alltoall", "one_hop"),
    ("dgx-2", "reduce_scatter", "one_hop"),
    ("2x dgx-a100", "allgather", "optimal"),
    ("3x dgx-a100", "allreduce", "optimal"),
    ("2x dgx-a100", "alltoall", "optimal"),
    ("3x dgx-1v @ 100Gbps", "allgather", "optimal"),
    ("2x dgx-1v @ 40Gbps", "reduce_scatter", "optimal"),
]


@cache
def forest_of(spec: str, collective: str, algorithm: str) -> Forest:
    return plan(algorithm, spec, None, collective)


def agree(forest: Forest) -> bool:
    """True if ``forest`` is written with turns. Asserts that both forms are read and judged the same."""
    written, whole = turned(forest), flat(forest)
    raw = dumps(written)
    assert from_document(raw.encode()) == from_document(whole) == forest
    assert dumps(turned(from_document(written))) == raw
    by_orbits, by_shares = check_plan(written), check_plan(whole)
    assert bool(by_orbits.violations) == bool(by_shares.violations)
    assert (by_orbits.rate, by_orbits.bound) == (by_shares.rate, by_shares.bound)
    return "turns" in written


@pytest.mark.parametrize(("spec", "collective", "algorithm"), PLANS)
def test_a_planned_forest_is_written_by_orbits(spec: str, collective: str, algorithm: str) -> None:
    assert agree(forest_of(spec, collective, algorithm))


@st.composite
def moved_forests(draw: st.DrawFn) -> Forest:
    """Random trees of rank 0 on a symmetric topology, rotated to all ranks; not always right."""
    n = draw(st.integers(3, 7))
    kind = draw(st.sampled_from(["ring", "clique", "oneway"]))
    topology = parse_spec(f"{kind}:{n}")
    steps = sorted((arc[1] - arc[0]) % n for arc in topology.link if arc[0] == 0)
    templates = []
    for _ in range(draw(st.integers(1, 2))):
        reached, hops = [0], []
        for _ in range(draw(st.integers(1, n + 1))):
            u = draw(st.sampled_from(reached))
            v = (u + draw(st.sampled_from(steps))) % n
            hops.append((u, v))
            reached.append(v)
        templates.append((draw(st.sampled_from([Fraction(1, n), Fraction(1, 2 * n)])), hops))
    shares = [
        Share(weight, 0, r, r, None, Tree(r, tuple(((u + r) % n, (v + r) % n) for u, v in hops)))
        for r in range(n)
        for weight, hops in templates
    ]
    numbered = [Share(s.weight, i, s.block, s.root, None, s.broadcast) for i, s in enumerate(shares)]
    return by_hand(Collective("allgather", n), topology, numbered)


@examples(100)
@given(moved_forests(), st.data())
def test_rotated_forests_are_read_back_and_judged_the_same(forest: Forest, data: st.DataObject) -> None:
    assert agree(forest)
    at = data.draw(st.integers(0, len(forest.shares) - 1))
    others = (*forest.shares[:at], *forest.shares[at + 1 :])
    assert not agree(by_hand(forest.collective, forest.topology, others))


def judged(written: Any) -> tuple[Forest, Verdict] | None:
    """The forest and the verdict; None if the readers refuse it, which both must do."""
    try:
        forest = from_document(written)
    except ScheduleError:
        with pytest.raises(ScheduleError):
            check_plan(written)
        return None
    return forest, check_plan(written)


SMALL = [json.dumps(turned(forest_of(*PLANS[i]))) for i in (0, 2, 4, 6, 9)]


@examples(200)
@given(st.sampled_from(SMALL).map(json.loads), st.data())
def test_changed_turns_are_refused_or_give_another_right_plan(written: Json, data: st.DataObject) -> None:
    cycles = data.draw(st.sampled_from(written["turns"]))["cycles"]
    cycle = data.draw(st.sampled_from(cycles))
    vertices = [vertex["id"] for vertex in written["topology"]["vertices"]]
    at, to = data.draw(st.integers(0, len(cycle) - 1)), data.draw(st.integers(0, len(cycle) - 1))
    kind = data.draw(st.sampled_from(["swap", "put", "drop", "shorten", "reverse", "lose", "twice", "cut"]))
    if kind == "swap":
        cycle[at], cycle[to] = cycle[to], cycle[at]
    elif kind == "put":
        cycle[at] = data.draw(st.sampled_from([*vertices, max(vertices) + 1]))
    elif kind == "drop":
        cycles.remove(cycle)
    elif kind == "shorten":
        del cycle[at]
    elif kind == "reverse":
        cycle.reverse()
    elif kind == "lose":
        del written["turns"][data.draw(st.integers(0, len(written["turns"]) - 1))]
    elif kind == "twice":
        written["turns"].append(data.draw(st.sampled_from(written["turns"])))
    else:
        cycles[cycles.index(cycle)] = cycle[:at]
        cycles.append(cycle[at:])
    result = judged(written)
    if result is None:
        return
    forest, verdict = result
    if not verdict.violations:  # both readers expand it to the same right plan
        assert check_plan(flat(forest)) == verdict


@examples(200)
@given(st.sampled_from(SMALL).map(json.loads), st.data())
def test_a_changed_share_or_load_never_gives_another_plan(written: Json, data: st.DataObject) -> None:
    whole = copy.deepcopy(written)
    table = data.draw(st.sampled_from(["shares", "link_load"]))
    at = data.draw(st.integers(0, len(written[table]) - 1))
    row = written[table][at]
    kind = data.draw(st.sampled_from(["value", "value", "value", "lost", "doubled"]))
    if kind == "lost":
        del written[table][at]
    elif kind == "doubled":
        written[table].insert(data.draw(st.integers(0, len(written[table]))), copy.deepcopy(row))
    else:
        key = data.draw(st.sampled_from(sorted(row)))
        new = data.draw(st.one_of(st.integers(0, 9), st.sampled_from(["1/3", "2", None, []])))
        same = new == row[key] or (new in (None, []) and row[key] in (None, []))
        row[key] = new
        if same:
            return
    result = judged(written)
    if result is not None and not result[1].violations:  # another row of the same orbit
        assert judged(whole) == result
