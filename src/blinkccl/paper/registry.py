"""All claims, in the order of their documents."""

from __future__ import annotations

from functools import lru_cache

from blinkccl.errors import UsageError
from blinkccl.paper.claim import Claim


@lru_cache(maxsize=1)
def claims() -> tuple[Claim, ...]:
    """Every claim; to add one, add it to its document's file."""
    from blinkccl.paper import blink, multipath, notes, poster, ring_vs_tree

    return (*blink.CLAIMS, *poster.CLAIMS, *multipath.CLAIMS, *ring_vs_tree.CLAIMS, *notes.CLAIMS)


def chosen(names: list[str]) -> tuple[Claim, ...]:
    """The claims with these ids, or of these documents (letters); all for an empty list.

    Raises
    ------
    UsageError
        If a name is none.
    """
    if not names:
        return claims()
    wanted = {name.upper() for name in names}
    known = {claim.id for claim in claims()} | {claim.document for claim in claims()}
    for name in sorted(wanted - known):
        raise UsageError(f"no claim {name!r}; expected a document (A, B, C, D, E) or an id like B6, P1, U1, R1, N1")
    # A claim's id may begin with another document's letter (B6 is of document A), so the whole name counts.
    return tuple(claim for claim in claims() if claim.id in wanted or claim.document in wanted)
