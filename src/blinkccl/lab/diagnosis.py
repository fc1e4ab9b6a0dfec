"""Which link holds a collective up, from what its sites waited for when they gave up."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from blinkccl.engines.sockets import Leg, Stall


def stalled_legs(stalls: Iterable[Stall]) -> list[Leg]:
    """The legs whose receiver waits for what its sender could not deliver; all other waits follow from these."""
    waited, held = set(), {}
    for stall in stalls:
        if stall.undelivered:
            held[stall.leg] = stall.undelivered
        else:
            waited.add(stall.leg)
    return [leg for leg in held if leg in waited]


def stalled_links(stalls: Iterable[Stall]) -> list[tuple[int, int]]:
    """The links that lie on all stalled legs, or where none does, on any of them; in the direction of the data."""
    legs = stalled_legs(stalls)
    links = [dict.fromkeys(pairwise(leg.path)) for leg in legs]
    shared = list(dict.fromkeys(link for found in links for link in found))
    common = [link for link in shared if all(link in found for found in links)]
    return common or shared


def sentence(stalls: Iterable[Stall]) -> str:
    """What a person should look at; "" where the waits do not tell."""
    links = stalled_links(list(stalls))
    if not links:
        return ""
    named = " or ".join(f"{a} → {b}" for a, b in links)
    return f"nothing, or too little, comes over link {named}"
