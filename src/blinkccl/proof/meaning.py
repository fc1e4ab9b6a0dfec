"""Semantics of the nine collectives, defined a second time for the independent checker.

Derived from nccl-tests' conventions and the plan's schema, not from :mod:`blinkccl.collectives`. If the two disagree,
one of them is wrong, and the checker reports it. All ids are vertex ids.

S is the size that nccl-tests prints. For allgather, reduce_scatter, gather and scatter it is the N blocks of all ranks,
so one block weighs 1/N. For alltoall it is one rank's buffer, so one of the N² blocks weighs 1/N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.errors import ScheduleError

Block = int | tuple[int, int] | None
Ranks = tuple[int, ...]
Ends = dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Requirement:
    """Data of size ``weight`` × S: every source contributes once, and every keeper must receive the result."""

    weight: Fraction
    sources: Ranks
    keepers: Ranks


def _whole(sources: Ranks, keepers: Ranks) -> dict[Block, Requirement]:
    return {None: Requirement(Fraction(1), sources, keepers)}


def _blocks(ranks: Ranks, ends: Callable[[int], tuple[Ranks, Ranks]]) -> dict[Block, Requirement]:
    return {r: Requirement(Fraction(1, len(ranks)), *ends(r)) for r in ranks}


def _alltoall(ranks: Ranks) -> dict[Block, Requirement]:
    return {(s, d): Requirement(Fraction(1, len(ranks)), (s,), (d,)) for s in ranks for d in ranks}


#: Name → its parameters among root, src and dst, and a function of ranks and parameters that gives items by block.
_MEANING: dict[str, tuple[tuple[str, ...], Callable[..., dict[Block, Requirement]]]] = {
    "broadcast": (("root",), lambda ranks, root: _whole((root,), ranks)),
    "reduce": (("root",), lambda ranks, root: _whole(ranks, (root,))),
    "allreduce": ((), lambda ranks: _whole(ranks, ranks)),
    "allgather": ((), lambda ranks: _blocks(ranks, lambda r: ((r,), ranks))),
    "reduce_scatter": ((), lambda ranks: _blocks(ranks, lambda r: (ranks, (r,)))),
    "gather": (("root",), lambda ranks, root: _blocks(ranks, lambda r: ((r,), (root,)))),
    "scatter": (("root",), lambda ranks, root: _blocks(ranks, lambda r: ((root,), (r,)))),
    "alltoall": ((), _alltoall),
    "sendrecv": (("src", "dst"), lambda ranks, src, dst: _whole((src,), (dst,))),
}


def wrong_ends(collective: str, ranks: Ranks, ends: Ends) -> list[str]:
    """Faults of root, src and dst for this collective; empty if there are none."""
    if collective not in _MEANING:
        raise ScheduleError(f"collective: expected one of {', '.join(_MEANING)}, got {collective[:40]!r}")
    wrong = []
    for key, value in ends.items():
        if key not in _MEANING[collective][0]:
            if value is not None:
                wrong.append(f"{key}: {collective} takes none, got {value}")
        elif value is None:
            wrong.append(f"{key}: {collective} needs one, got null")
        elif value not in ranks:
            wrong.append(f"{key}: {value} is none of the ranks {list(ranks)}")
    if collective == "sendrecv" and not wrong and ends["src"] == ends["dst"]:
        wrong.append(f"dst: sendrecv needs two different ranks, got {ends['src']} twice")
    return wrong


def meaning(collective: str, ranks: Ranks, ends: Ends) -> dict[Block, Requirement]:
    """The items of the collective by block, in vertex ids; call only if :func:`wrong_ends` is empty."""
    parameters, items = _MEANING[collective]
    return items(ranks, **{key: ends[key] for key in parameters})
