"""The link that the waits of all sites identify."""

from __future__ import annotations

from dataclasses import replace

from blinkccl.apps.lab.laboratory import sentence, stalled, stalled_links
from blinkccl.engines.sites import Sites
from blinkccl.engines.sockets import Stall
from blinkccl.schedule.lower import lower
from blinkccl.trees.algorithms.registry import algorithm
from support.planned import asked


def test_a_leg_is_stalled_where_one_waits_for_what_the_other_cannot_deliver() -> None:
    (leg,) = Sites(lower(algorithm("optimal").plan(asked("dgx-2", "broadcast", "0,1")))).legs
    waits, holds = Stall(leg, 0, "waits"), Stall(leg, 9, "holds")
    assert stalled([waits, holds]) == [holds]
    assert stalled([waits]) == stalled([holds]) == []
    assert stalled_links([holds]) == [(0, 16), (16, 1)]
    other = replace(leg, queue=1, path=(2, 16, 1))
    both = [waits, holds, replace(waits, leg=other), replace(holds, leg=other, undelivered=12)]
    assert stalled_links(stalled(both)) == [(16, 1)]
    assert sentence(both) == "nothing, or too little, comes over link 16 → 1: holds"
    assert sentence([waits]) == ""
    # One holds back much more than the other, so the other is behind it.
    assert stalled([*both[:3], replace(both[3], undelivered=100)]) == [replace(both[3], undelivered=100)]


def test_legs_without_a_common_link_are_all_named() -> None:
    one, other, *_ = Sites(lower(algorithm("optimal").plan(asked("ring:4", "broadcast")))).legs
    both = [Stall(one, 5, "one"), Stall(other, 5, "other")]
    assert stalled_links(both) == [one.path, other.path]
