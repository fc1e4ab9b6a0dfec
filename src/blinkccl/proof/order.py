"""Whether every share of a plan sums in the order that the plan states, for the independent checker.

An order is what :mod:`blinkccl.trees.forest.order` says, worked out here a second time, from the trees alone: a vertex
folds its own contribution and what its senders fold, each placed by the first of ``ranks`` in it, and writes that in
parentheses unless it is a lone operand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blinkccl.proof.meaning import Block, Requirement
from blinkccl.proof.reading import ClaimedPlan, Walk

_SHOWN = 60


def wrong_orders(plan: ClaimedPlan, walks: Sequence[Walk], items: Mapping[Block, Requirement]) -> Iterator[str]:
    """A sentence for each share that departs, with the vertex at which it does, what is expected and what is there.

    The trees are right, and every share's block is one of ``items``.
    """
    if plan.order is None:
        return
    if all(len(item.sources) == 1 for item in items.values()):
        if plan.order:
            yield f"order: {_short(plan.order)!r} is stated, but {plan.collective} sums nothing: expected ''"
        return
    place = {rank: i for i, rank in enumerate(plan.ranks)}
    expected = f"({plan.order})"
    for share, walk in zip(plan.shares, walks, strict=True):
        written = _written(share.root, walk.senders, items[share.block].sources, place)
        if written[share.root] == expected:
            continue
        # The deepest vertex whose sum is nowhere in the order is where the share leaves it.
        at = next((v for v, text in written.items() if text not in expected), share.root)
        yield (
            f"{share.where}: it departs at vertex {at}, which sums {_short(written[at])}; expected the order "
            f"{_short(plan.order)}, got {_short(written[share.root][1:-1])}"
        )


def _written(root: int, senders: Mapping[int, int], sources: Sequence[int], place: Mapping[int, int]) -> dict[int, str]:
    """What each vertex folds, senders before receivers."""
    below: dict[int, list[int]] = {}
    for child, parent in senders.items():
        below.setdefault(parent, []).append(child)
    down = [root]
    for vertex in down:
        down += below.get(vertex, ())
    own = frozenset(sources)
    first: dict[int, int] = {}
    text: dict[int, str] = {}
    for vertex in reversed(down):
        operands = [(first[child], text[child]) for child in below.get(vertex, ())]
        if vertex in own:
            operands.append((place[vertex], str(vertex)))
        operands.sort()
        first[vertex] = operands[0][0]
        text[vertex] = operands[0][1] if len(operands) == 1 else f"({'+'.join(each for _, each in operands)})"
    return text


def _short(order: str) -> str:
    return order if len(order) <= _SHOWN else f"{order[: _SHOWN - 1]}…"
