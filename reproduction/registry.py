"""All claims, in the order of their documents.

To add a claim, write the function that computes it in its document's file, with the decorator ``@PAGE.claim``.
"""

from __future__ import annotations

from blinkccl.errors import UsageError
from reproduction import (
    blink,
    blink_graph,
    blink_microbenchmarks,
    blink_protocols,
    blink_throughput,
    blink_training,
    multipath,
    notes,
    poster,
    ring_vs_tree,
)
from reproduction.claim import Claim

_PAGES = (
    blink.PAGE,
    blink_graph.PAGE,
    blink_microbenchmarks.PAGE,
    blink_protocols.PAGE,
    blink_throughput.PAGE,
    blink_training.PAGE,
    poster.PAGE,
    multipath.PAGE,
    ring_vs_tree.PAGE,
    notes.PAGE,
)
#: All claims: by document, its printed errors (E1, E3, ...) last, by number.
CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (claim for page in _PAGES for claim in page.claims),
        key=lambda claim: (claim.document, claim.id[0] == "E", int(claim.id[1:])),
    )
)


def chosen(names: list[str]) -> tuple[Claim, ...]:
    """The claims with these ids, or of these documents (letters); all for an empty list."""
    if not names:
        return CLAIMS
    wanted = {name.upper() for name in names}
    known = {claim.id for claim in CLAIMS} | {claim.document for claim in CLAIMS}
    for name in sorted(wanted - known):
        raise UsageError(f"no claim {name!r}; expected a document (A, B, C, D, E) or an id like B6, P1, U1, R1, N1")
    # A claim's id may begin with another document's letter (B6 is of document A), so the whole name counts.
    return tuple(claim for claim in CLAIMS if claim.id in wanted or claim.document in wanted)
