"""Which link holds a collective up, from what its sites waited for when they gave up."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from blinkccl.engines.sockets import Stall


def stalled(stalls: Iterable[Stall]) -> list[Stall]:
    """What senders could not deliver to those who wait for it; all other waits follow from these.

    Of a link that is only slow, those behind it are kept from time to time with a few bytes: where some hold back more
    than twice as much, they are the cause.
    """
    waited, held = set(), []
    for stall in stalls:
        if stall.undelivered:
            held.append(stall)
        else:
            waited.add(stall.leg)
    found = [stall for stall in held if stall.leg in waited]
    most = max((stall.undelivered for stall in found), default=0)
    return [stall for stall in found if 2 * stall.undelivered >= most]


def stalled_links(stalls: Iterable[Stall]) -> list[tuple[int, int]]:
    """The links that lie on all legs of these, or where none does, on any of them; in the direction of the data."""
    links = [dict.fromkeys(pairwise(stall.leg.path)) for stall in stalls]
    shared = list(dict.fromkeys(link for found in links for link in found))
    common = [link for link in shared if all(link in found for found in links)]
    return common or shared


def sentence(stalls: Iterable[Stall]) -> str:
    """What a person should look at; "" where the waits do not tell."""
    found = stalled(stalls)
    if not found:
        return ""
    named = " or ".join(f"{a} → {b}" for a, b in stalled_links(found))
    return f"nothing, or too little, comes over link {named}: {found[0].words}"
