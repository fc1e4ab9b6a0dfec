"""Reader of plan JSON for the independent checker: it checks shapes only and returns plain values.

The checker trusts no code that made the plan, so it has its own reader. This module contains the schema of
``blink plan --json`` and ``blink topo --json``. It imports the standard library, our errors and our schema versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

from blinkccl.errors import ScheduleError
from blinkccl.schema import READABLE, READABLE_PLANS, turns_fault, upgraded

#: A block in the plan's notation: None, a rank's vertex id, or (source, destination).
Block = int | tuple[int, int] | None
Path = tuple[int, ...]
Arc = tuple[int, int]
_WeighedSets = tuple[tuple[Fraction, tuple[int, ...]], ...]

#: No honest plan has more digits. Sums of longer fractions would make the checker too slow.
MAX_DIGITS = 200
_FRACTION = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}(?:/[0-9]{{1,{MAX_DIGITS}}})?", re.ASCII)
#: Bound on the common denominator of all weights (or prices), so that loads stay within MAX_DIGITS.
_MAX_COMMON = 10 ** (MAX_DIGITS - 20)
_MAX_ID = 2**31


@dataclass(frozen=True, slots=True)
class GivenLinks:
    """The topology. ``combining`` are switches with in-network reduction; ``part_of`` maps a part to its vertex.

    ``by`` is "write", "read" or "" (both); ``read_gb_per_s`` is a link's rate for reads.
    """

    unit_gb_per_s: float
    kinds: dict[int, str]
    combining: set[int]
    part_of: dict[int, int]
    by: dict[Arc, str]
    read_gb_per_s: dict[Arc, float]
    capacity: dict[Arc, int]
    gb_per_s: dict[Arc, float]


@dataclass(frozen=True, slots=True)
class PlanShare:
    """One entry of ``shares``; ``where`` is its JSON path."""

    where: str
    weight: Fraction
    slice: int
    block: Block
    root: int
    reduce: list[Path] | None
    broadcast: list[Path] | None


@dataclass(frozen=True, slots=True)
class Walk:
    """A share's trees, walked from the root: the parent of each sender and of each receiver, and the depth in hops."""

    senders: dict[int, int]
    receivers: dict[int, int]
    depth: int


@dataclass(frozen=True, slots=True)
class StatedLoad:
    """One entry of ``link_load``; ``where`` is its JSON path."""

    where: str
    arc: Arc
    load: Fraction
    capacity: Fraction


@dataclass(frozen=True, slots=True)
class ClaimedProof:
    """The certificate: ``vertices`` is the side or the blocks, ``parts`` the fractions it states.

    ``sets`` has the sets "entered" and "left" by trees, with their weights, for a dual with sets.
    """

    kind: str
    vertices: tuple[tuple[int, ...], ...]
    prices: tuple[tuple[int, int, Fraction], ...]
    parts: dict[str, Fraction]
    sets: dict[str, _WeighedSets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimedPlan:
    """A plan as stated in the JSON, with None for an absent optional statement.

    ``turns`` has the cycles of each turn; () if the plan states every share and every load.
    """

    collective: str
    ends: dict[str, int | None]
    ranks: tuple[int, ...]
    unit_gb_per_s: float
    rate: Fraction
    bound: Fraction
    optimal: bool
    certificate: ClaimedProof
    algbw_gb_per_s: float
    depth: int | None
    trees: int | None
    order: str | None
    price: Fraction | None
    shares: tuple[PlanShare, ...]
    link_load: tuple[StatedLoad, ...]
    turns: tuple[tuple[tuple[int, ...], ...], ...]
    network: GivenLinks | None


def read_plan(data: object) -> ClaimedPlan:
    """The plan in ``data``. ScheduleError, with the JSON path, if a field is missing or has the wrong shape."""
    plan = upgraded(_versioned(data, "plan", READABLE_PLANS))
    shares = tuple(_share(entry, f"shares[{i}]") for i, entry in enumerate(_typed(plan, "shares", "", list)))
    _workable((share.weight for share in shares), "shares", "weights")
    topology = plan.get("topology")
    return ClaimedPlan(
        collective=_typed(plan, "collective", "", str),
        ends={key: _optional_int(plan, key) for key in ("root", "src", "dst")},
        ranks=_ids(_typed(plan, "ranks", "", list), "ranks"),
        unit_gb_per_s=_number(plan, "unit_gb_per_s", ""),
        rate=_fraction(plan, "rate", ""),
        bound=_fraction(plan, "bound", ""),
        optimal=_typed(plan, "optimal", "", bool),
        certificate=_certificate(_object(_field(plan, "certificate", ""), "certificate")),
        algbw_gb_per_s=_number(plan, "algbw_gb_per_s", ""),
        depth=_optional_int(plan, "depth"),
        trees=_optional_int(plan, "trees"),
        order=None if plan.get("order") is None else _typed(plan, "order", "", str),
        price=None if plan.get("price") is None else _fraction(plan, "price", ""),
        shares=shares,
        link_load=tuple(_load(entry, i) for i, entry in enumerate(_typed(plan, "link_load", "", list))),
        turns=_turns(plan),
        network=None if topology is None else read_network(topology),
    )


def read_network(data: object) -> GivenLinks:
    """The topology in ``data``, the JSON object of ``blink topo --json``. ScheduleError as in :func:`read_plan`."""
    topology = upgraded(_versioned(data, "topology", READABLE))
    kinds: dict[int, str] = {}
    combining: set[int] = set()
    part_of: dict[int, int] = {}
    for i, entry in enumerate(_typed(topology, "vertices", "topology", list)):
        where = f"topology.vertices[{i}]"
        vertex = _int(_object(entry, where), "id", where)
        if vertex in kinds:
            raise ScheduleError(f"{where}: id {vertex} is given twice; vertex ids must be unique")
        kinds[vertex] = _typed(entry, "kind", where, str)
        if "combines" in entry and _typed(entry, "combines", where, bool):
            combining.add(vertex)
        if entry.get("part_of") is not None:
            part_of[vertex] = _int(entry, "part_of", where)
    unit = _number(topology, "unit_gb_per_s", "topology")
    if unit <= 0:
        raise ScheduleError(f"topology.unit_gb_per_s: expected a positive number of GB/s, got {unit}")
    network = GivenLinks(unit, kinds, combining, part_of, {}, {}, {}, {})
    for i, entry in enumerate(_typed(topology, "links", "topology", list)):
        _link(network, _object(entry, f"topology.links[{i}]"), f"topology.links[{i}]")
    return network


def _link(network: GivenLinks, entry: dict[str, Any], where: str) -> None:
    arc = (_int(entry, "src", where), _int(entry, "dst", where))
    capacity = _int(entry, "capacity", where, 2**62)
    if arc in network.capacity:
        raise ScheduleError(f"{where}: link {arc[0]} → {arc[1]} is given twice; sum them into one")
    for end in arc:
        if end not in network.kinds:
            raise ScheduleError(f"{where}: ends at {end}, which is no vertex of the topology")
    if arc[0] == arc[1]:
        raise ScheduleError(f"{where}: joins vertex {arc[0]} to itself")
    if capacity <= 0:
        raise ScheduleError(f"{where}.capacity: expected a positive integer, got {capacity}")
    network.capacity[arc] = capacity
    # An absent rate follows from the capacity, as in the reader of ``blink topo``.
    stated = entry.get("gb_per_s") is not None
    network.gb_per_s[arc] = _number(entry, "gb_per_s", where) if stated else capacity * network.unit_gb_per_s
    network.read_gb_per_s[arc] = network.gb_per_s[arc]
    if entry.get("read_capacity") is not None:
        network.read_gb_per_s[arc] = _int(entry, "read_capacity", where, 2**62) * network.unit_gb_per_s
    network.by[arc] = _typed(entry, "by", where, str) if "by" in entry else ""


def _share(data: object, where: str) -> PlanShare:
    entry = _object(data, where)
    block = _field(entry, "block", where)
    if isinstance(block, list):
        block = _ids(block, f"{where}.block")
        if len(block) != 2:
            raise ScheduleError(f"{where}.block: expected [src, dst], got {len(block)} entries")
    elif block is not None:
        block = _int(entry, "block", where)
    return PlanShare(
        where,
        _fraction(entry, "weight", where),
        _int(entry, "slice", where),
        block,
        _int(entry, "root", where),
        _edges(entry, "reduce", where),
        _edges(entry, "broadcast", where),
    )


def _edges(entry: dict[str, Any], key: str, where: str) -> list[Path] | None:
    value = _field(entry, key, where)
    if value is None:
        return None
    if not isinstance(value, list):
        raise _expected(f"{where}.{key}", "null or an array of paths", value)
    return [_path(path, where, key, i) for i, path in enumerate(value)]


def _path(value: object, where: str, key: str, index: int) -> Path:
    # This is the inner loop of reading a big plan, so the JSON path is built only for an error.
    if type(value) is list and len(value) > 1 and all(type(v) is int and 0 <= v < _MAX_ID for v in value):
        return tuple(value)
    raise _expected(f"{where}.{key}[{index}]", "an array of at least two vertex ids", value)


def _certificate(entry: dict[str, Any]) -> ClaimedProof:
    kind, where = _typed(entry, "kind", "certificate", str), "certificate"
    if kind in ("cut", "ratio"):
        side = _ids(_typed(entry, "side", where, list), "certificate.side")
        return ClaimedProof(kind, (side,), (), {key: _fraction(entry, key, where) for key in ("capacity", "demand")})
    if kind == "partition":
        blocks = _typed(entry, "blocks", where, list)
        ids = tuple(_ids(block, f"certificate.blocks[{i}]") for i, block in enumerate(blocks))
        return ClaimedProof(kind, ids, (), {"capacity": _fraction(entry, "capacity", where)})
    if kind == "dual":
        prices = tuple(_price(price, i) for i, price in enumerate(_typed(entry, "prices", where, list)))
        _workable((price for _, _, price in prices), "certificate.prices", "prices")
        sets: dict[str, _WeighedSets] = {key: _sets(entry, key) for key in ("entered", "left") if key in entry}
        _workable((weight for family in sets.values() for weight, _ in family), where, "weights")
        return ClaimedProof(kind, (), prices, {key: _fraction(entry, key, where) for key in ("value", "cost")}, sets)
    raise _expected("certificate.kind", "'cut', 'ratio', 'partition' or 'dual'", kind)


def _price(data: object, index: int) -> tuple[int, int, Fraction]:
    where = f"certificate.prices[{index}]"
    if not isinstance(data, list) or len(data) != 3:
        raise _expected(where, "[src, dst, price]", data)
    u, v = _ids(data[:2], where)
    return u, v, parse_fraction(data[2], f"{where}[2]")


def _sets(entry: dict[str, Any], key: str) -> _WeighedSets:
    sets = []
    for i, row in enumerate(_typed(entry, key, "certificate", list)):
        where = f"certificate.{key}[{i}]"
        if not isinstance(row, list) or len(row) != 2:
            raise _expected(where, "[weight, vertices]", row)
        sets.append((parse_fraction(row[0], f"{where}[0]"), _ids(row[1], f"{where}[1]")))
    return tuple(sets)


def _load(data: object, index: int) -> StatedLoad:
    where = f"link_load[{index}]"
    entry = _object(data, where)
    arc = (_int(entry, "src", where), _int(entry, "dst", where))
    return StatedLoad(where, arc, _fraction(entry, "load", where), _fraction(entry, "capacity", where))


def _turns(plan: dict[str, Any]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    fault = turns_fault(plan)
    if fault is not None:
        raise ScheduleError(fault)
    if "turns" not in plan:
        return ()
    return tuple(_cycles(turn, f"turns[{i}]") for i, turn in enumerate(_filled(plan, "turns", "")))


def _cycles(data: object, where: str) -> tuple[tuple[int, ...], ...]:
    cycles = _filled(_object(data, where), "cycles", where)
    return tuple(_ids(cycle, f"{where}.cycles[{i}]", 2) for i, cycle in enumerate(cycles))


def _filled(entry: dict[str, Any], key: str, where: str) -> list[Any]:
    """The field ``key``, a list of at least one entry."""
    value: list[Any] = _typed(entry, key, where, list)
    if not value:
        raise _expected(_join(where, key), "at least one entry", value)
    return value


def _workable(numbers: Iterable[Fraction], where: str, name: str) -> None:
    common = 1
    for number in numbers:
        common = lcm(common, number.denominator)
        if common > _MAX_COMMON:
            raise ScheduleError(
                f"{where}: the {name} have a common denominator of more than "
                f"{MAX_DIGITS - 20} digits; round them to multiples of one small fraction"
            )


def _versioned(data: object, where: str, readable: Sequence[int]) -> dict[str, Any]:
    entry = _object(data, where)
    version = _field(entry, "schema_version", where)
    if type(version) is not int or version not in readable:
        raise _expected(f"{where}.schema_version", " or ".join(map(str, readable)), version)
    return entry


def _expected(where: str, expected: str, got: object) -> ScheduleError:
    return ScheduleError(f"{where}: expected {expected}, got {_show(got)}")


def _show(value: object) -> str:
    if isinstance(value, list | dict):
        return f"an {'array' if isinstance(value, list) else 'object'} of {len(value)} entries"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"


_KINDS: dict[type, str] = {list: "an array", str: "a string", bool: "true or false"}


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _field(entry: dict[str, Any], key: str, where: str) -> Any:
    if key not in entry:
        raise ScheduleError(f"{_join(where, key)}: missing")
    return entry[key]


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _expected(where, "an object", value)
    return value


def _typed(entry: dict[str, Any], key: str, where: str, kind: type) -> Any:
    """The field ``key``, of type ``kind`` (list, str or bool)."""
    value = _field(entry, key, where)
    if not isinstance(value, kind):
        raise _expected(_join(where, key), _KINDS[kind], value)
    return value


def _int(entry: dict[str, Any], key: str, where: str, limit: int = _MAX_ID) -> int:
    value = _field(entry, key, where)
    if type(value) is not int or not 0 <= value < limit:
        raise _expected(_join(where, key), f"an integer from 0 to {limit - 1}", value)
    return value


def _optional_int(entry: dict[str, Any], key: str) -> int | None:
    return None if entry.get(key) is None else _int(entry, key, "")


def _ids(values: object, where: str, least: int = 0) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) < least:
        raise _expected(where, f"an array of {f'at least {least} ' if least else ''}vertex ids", values)
    for i, value in enumerate(values):
        if type(value) is not int or not 0 <= value < _MAX_ID:
            raise _expected(f"{where}[{i}]", "a vertex id", value)
    return tuple(values)


def _number(entry: dict[str, Any], key: str, where: str) -> float:
    value = _field(entry, key, where)
    # Comparison refuses an integer too big for a float before the conversion would overflow.
    if type(value) not in (int, float) or not abs(value) < 1e300:
        raise _expected(_join(where, key), "a finite number", value)
    return float(value)


def _fraction(entry: dict[str, Any], key: str, where: str) -> Fraction:
    return parse_fraction(_field(entry, key, where), _join(where, key))


def parse_fraction(value: object, where: str) -> Fraction:
    """The fraction in a string such as ``"24/7"`` or ``"6"``."""
    number = _parse(value) if isinstance(value, str) else None
    if number is None:
        raise _expected(where, f'a fraction like "24/7" of at most {MAX_DIGITS} digits a side', value)
    return number


@lru_cache(maxsize=4096)
def _parse(text: str) -> Fraction | None:
    if not _FRACTION.fullmatch(text) or re.search(r"/0+$", text):
        return None
    return Fraction(text)
