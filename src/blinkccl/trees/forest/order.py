"""The order in which elements are summed: which operands each rounding combines, from left to right.

An *order* is a list of operands, each a rank's own contribution or an order in parentheses, whose result was sent as
one message: ``(0+1+2+3)+4+5+6+7``. Every list is folded from left to right in the accumulator of the type and rounded
once (:mod:`blinkccl.collectives.ops`), so the bits of an element follow from its order and its contributions, and from
nothing else. A list of one operand is that operand: it passes bit for bit. Two orders are the same only if they are
equal as written. ``0+1`` and ``1+0`` are two, although IEEE 754's sum commutes: our min and max do not, of two zeros.
Of a NaN, sign and payload are left open as everywhere.

In a forest the lists follow from who combines with whom, as operands stand by the lowest rank in them
(:mod:`blinkccl.schedule.lower`). A collective that does not reduce has the order "".
"""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.trees.forest.model import Forest, Share


class Orders:
    """Orders as numbers, equal for equal orders: 0 … ``names`` − 1 are the contributions of these ranks."""

    def __init__(self, names: Sequence[object]) -> None:
        self._names = [str(name) for name in names]
        self._lists: list[tuple[int, ...]] = []
        self._known: dict[tuple[int, ...], int] = {}

    def listed(self, operands: tuple[int, ...], *, collapse: bool = True) -> int:
        """The order that folds these; unless ``collapse``, one operand is a list too."""
        if len(operands) == 1 and collapse:
            return operands[0]
        if operands not in self._known:
            self._known[operands] = len(self._names) + len(self._lists)
            self._lists.append(operands)
        return self._known[operands]

    def parts(self, order: int) -> frozenset[int]:
        """All orders within ``order``, itself among them."""
        found = {order}
        todo = [order]
        for each in todo:
            fresh = [part for part in self._operands(each) if part not in found]
            found.update(fresh)
            todo += fresh
        return frozenset(found)

    def text(self, order: int) -> str:
        """The order as written. Without recursion: chains are deep."""
        words: list[str] = []
        stack: list[int | str] = [order]
        while stack:
            entry = stack.pop()
            if isinstance(entry, str):
                words.append(entry)
            elif entry < len(self._names):
                words.append(self._names[entry])
            else:
                operands = self._operands(entry)
                spread: list[int | str] = ["("]
                for place, operand in enumerate(operands):
                    spread += ["+", operand] if place else [operand]
                stack += [*spread, ")"][::-1]
        written = "".join(words)
        return written[1:-1] if written.startswith("(") else written

    def _operands(self, order: int) -> tuple[int, ...]:
        return () if order < len(self._names) else self._lists[order - len(self._names)]


def order_of(forest: Forest) -> str | None:
    """The one order in which every element is summed, by vertex ids; None where :func:`departure` says who departs."""
    orders, made = _made(forest)
    return orders.text(made[0]) if len(dict.fromkeys(made)) == 1 else None if made else ""


def departure(forest: Forest) -> str | None:
    """Which share sums in another order than the first, in a sentence; None where none does."""
    orders, made = _made(forest)
    for index, order in enumerate(made):
        if order != made[0]:
            here, first = (shortened(orders.text(each)) for each in (order, made[0]))
            return f"share {index}, with root {forest.shares[index].root}, sums {here}, but share 0 {first}"
    return None


def shortened(order: str, most: int = 60) -> str:
    """An order for people, who do not want all of a thousand ranks."""
    return order if len(order) <= most else f"{order[: most - 1]}…"


def _made(forest: Forest) -> tuple[Orders, list[int]]:
    """The order of every share, none where nothing is reduced; the forest must be valid."""
    orders = Orders(forest.ranks)
    if not forest.collective.reduces:
        return orders, []
    return orders, [_order_of_share(orders, share, forest) for share in forest.shares]


def _order_of_share(orders: Orders, share: Share, forest: Forest) -> int:
    below: dict[int, list[int]] = {}
    for path in share.reduce.edges if share.reduce is not None else ():
        below.setdefault(path[-1], []).append(path[0])
    sources = frozenset(forest.ranks[rank] for rank, _ in forest.item(share).contributions)
    down = [share.root]
    for vertex in down:
        down += below.get(vertex, ())
    made: dict[int, tuple[int, int]] = {}  # lowest rank and order
    for vertex in reversed(down):
        own = [(forest.position[vertex],) * 2] if vertex in sources else []
        operands = sorted([*own, *(made[child] for child in below.get(vertex, ()))])
        made[vertex] = operands[0][0], orders.listed(tuple(order for _, order in operands))
    return made[share.root][1]
