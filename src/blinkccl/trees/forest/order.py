"""The order in which elements are summed: the operands of each rounding, from left to right.

An *order* is a list of operands: ``(0+1+2+3)+4+5+6+7``. An operand is a rank's own contribution, or an order in
parentheses whose result was sent as one message. Every list is folded from left to right in the accumulator of the type
and rounded once (:mod:`blinkccl.collectives.ops`). So the bits of an element depend only on its order and its
contributions. A single operand passes bit for bit. Two orders are equal only if their texts are equal. ``0+1``
and ``1+0`` differ: the sum of IEEE 754 commutes, but our min and max of two zeros do not. Sign and payload of a NaN are
unspecified, as everywhere.

In a forest the trees define the lists, because operands are sorted by the lowest rank in them
(:mod:`blinkccl.schedule.lower`). A collective that does not reduce has the order "".
"""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.trees.forest.model import Forest, Share


class Orders:
    """A number per different order. The contributions of the ranks ``names`` are 0 … len(``names``) − 1."""

    def __init__(self, names: Sequence[object]) -> None:
        self._names = [str(name) for name in names]
        self._lists: list[tuple[int, ...]] = []
        self._known: dict[tuple[int, ...], int] = {}

    def listed(self, operands: tuple[int, ...], *, collapse: bool = True) -> int:
        """The order that folds these operands. With ``collapse``, a single operand is its own order."""
        if len(operands) == 1 and collapse:
            return operands[0]
        if operands not in self._known:
            self._known[operands] = len(self._names) + len(self._lists)
            self._lists.append(operands)
        return self._known[operands]

    def parts(self, order: int) -> frozenset[int]:
        """All orders within ``order``, itself among them."""
        parts = {order}
        todo = [order]
        for each in todo:
            fresh = [part for part in self._operands(each) if part not in parts]
            parts.update(fresh)
            todo += fresh
        return frozenset(parts)

    def text(self, order: int) -> str:
        """The order as text. Not recursive, because chains are deep."""
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
    """The common order of all elements, by vertex ids; None if shares differ (see :func:`departure`)."""
    orders, by_share = _orders_by_share(forest)
    return orders.text(by_share[0]) if len(dict.fromkeys(by_share)) == 1 else None if by_share else ""


def departure(forest: Forest) -> str | None:
    """A sentence on the first share that sums in another order than share 0, or None."""
    orders, by_share = _orders_by_share(forest)
    for index, order in enumerate(by_share):
        if order != by_share[0]:
            other, first = (shortened(orders.text(each)) for each in (order, by_share[0]))
            return f"share {index} (root {forest.shares[index].root}) sums in the order {other}, but share 0 in {first}"
    return None


def shortened(order: str, most: int = 60) -> str:
    """An order for a message, cut to ``most`` characters."""
    return order if len(order) <= most else f"{order[: most - 1]}…"


def _orders_by_share(forest: Forest) -> tuple[Orders, list[int]]:
    """The order of every share; an empty list if the collective does not reduce. The forest must be valid."""
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
    sums: dict[int, tuple[int, int]] = {}  # lowest rank and order
    for vertex in reversed(down):
        own = [(forest.position[vertex],) * 2] if vertex in sources else []
        operands = sorted([*own, *(sums[child] for child in below.get(vertex, ()))])
        sums[vertex] = operands[0][0], orders.listed(tuple(order for _, order in operands))
    return sums[share.root][1]
