"""Which link the waits of all sites point at."""

from __future__ import annotations

from dataclasses import replace

from blinkccl.algorithms.registry import algorithm
from blinkccl.engines.sockets import Sites, Stall
from blinkccl.lab.diagnosis import sentence, stalled_legs, stalled_links
from blinkccl.schedule.lower import lower
from support.planned import asked


def test_a_leg_is_stalled_where_one_waits_for_what_the_other_cannot_deliver() -> None:
    sites = Sites(lower(algorithm("optimal").plan(asked("dgx-2", "broadcast", "0,1"))))
    (leg,) = sites.legs
    waits, holds = Stall(leg, 0, "…"), Stall(leg, 9, "…")
    assert stalled_legs([waits, holds]) == [leg]
    assert stalled_legs([waits]) == stalled_legs([holds]) == []
    assert stalled_links([holds, waits]) == [(0, 16), (16, 1)]
    other = replace(leg, queue=1, path=(2, 16, 1))
    both = [waits, holds, replace(waits, leg=other), replace(holds, leg=other)]
    assert stalled_links(both) == [(16, 1)]
    assert sentence(both) == "nothing, or too little, comes over link 16 → 1"
    assert sentence([waits]) == ""
