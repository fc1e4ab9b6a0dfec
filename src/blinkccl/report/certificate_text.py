"""A certificate in words: why nothing is faster."""

from __future__ import annotations

from fractions import Fraction

from blinkccl.forest.model import Certificate, Cut, Dual, Forest, Partition
from blinkccl.report.text import ids, rate_text, unit_name

PRICES_SHOWN = 12
CLAIM = "no schedule of unicast store-and-forward trees on these links is faster"


def certificate_lines(forest: Forest) -> list[str]:
    """The proof of the bound, and what it means for this plan."""
    if forest.optimal:
        head = f"proof   {CLAIM}:"
    else:
        head = (
            f"bound   no schedule is faster than {rate_text(forest.bound, forest.topology)}; between "
            "that and this plan is a gap:"
        )
    return [head, *(f"        {line}" for line in _words(forest.certificate, forest))]


def bottleneck(certificate: Certificate) -> str:
    """Where the data is held up, in a few words: ``{1} | {4-6}``."""
    match certificate:
        case Cut():
            return f"out of {{{ids(certificate.side)}}}"
        case Partition():
            return " | ".join(f"{{{ids(block)}}}" for block in certificate.blocks)
        case Dual():
            first = ", ".join(f"{u}→{v}" for u, v, _ in certificate.prices[:2])
            more = len(certificate.prices) - 2
            return first + (f" and {more} more" if more > 0 else "")


def _words(certificate: Certificate, forest: Forest) -> list[str]:
    match certificate:
        case Cut():
            return _cut(certificate, forest)
        case Partition():
            return _partition(certificate, forest)
        case Dual():
            return _dual(certificate, forest)


def _cut(cut: Cut, forest: Forest) -> list[str]:
    amount = "all of the data" if cut.demand == 1 else f"{cut.demand} of the data"
    return [
        f"the links out of {{{ids(cut.side)}}} carry {_amount(cut.capacity, forest)} together,",
        f"and {amount} must cross them: {_quotient(cut.capacity, cut.demand, cut.bound)}",
    ]


def _partition(partition: Partition, forest: Forest) -> list[str]:
    parts = len(partition.blocks)
    times = "once" if parts == 2 else f"{parts - 1} times"
    return [
        f"the links between the {parts} parts {bottleneck(partition)} carry "
        f"{_amount(partition.capacity, forest)} each way;",
        f"every element must cross between parts at least {times} on its way into the sum,",
        "and as often on its way out: " + _quotient(partition.capacity, Fraction(parts - 1), partition.bound),
    ]


def _dual(dual: Dual, forest: Forest) -> list[str]:
    prices = [f"{u}→{v}: {price}" for u, v, price in dual.prices[:PRICES_SHOWN]]
    more = f", … {len(dual.prices) - PRICES_SHOWN} more" if len(dual.prices) > PRICES_SHOWN else ""
    return [
        f"put these prices on a {unit_name(forest.topology)} of each link: {', '.join(prices)}{more};",
        f"then all links together cost {dual.value}, and the cheapest way to serve the data once costs {dual.cost}:",
        _quotient(dual.value, dual.cost, dual.bound),
    ]


def _amount(capacity: Fraction, forest: Forest) -> str:
    unit = unit_name(forest.topology)
    return f"{capacity} {unit if capacity == 1 else unit + 's'}"


def _quotient(above: Fraction, below: Fraction, bound: Fraction) -> str:
    return f"at most {above}" if below == 1 else f"at most {_term(above)} / {_term(below)} = {bound}"


def _term(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"({number})"
