"""A forest as the JSON of ``blink plan --json``, and back.

Writing is canonical: the same forest gives the same bytes in any process. Reading checks shapes only. A readable but
wrong plan (edges that form no tree, wrong sums of weights, a false rate) becomes a :class:`Forest`. The verifier and
the checker refuse it later, with better messages. This module refuses only names that a forest cannot hold: ranks that
the topology lacks, or a root outside the ranks.
"""

from __future__ import annotations

import codecs
import gc
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from fractions import Fraction
from math import lcm, prod
from typing import Annotated, Any

import msgspec

from blinkccl.collectives.spec import COLLECTIVES, Block, Collective
from blinkccl.errors import ScheduleError, TopologyError
from blinkccl.schema import (
    READABLE,
    READABLE_PLANS,
    SCHEMA_VERSION,
    TURNED_VERSION,
    turns_fault,
    upgraded,
    version_fault,
)
from blinkccl.topology import json_format
from blinkccl.topology.limits import label_fault, shortened
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Certificate, Cut, Dual, Forest, Partition, Share, Tree
from blinkccl.trees.forest.turns import orbits_of, read_expanded, read_turns
from blinkccl.trees.packing.network import Arc

#: Limits far above any honest plan (1,024 GPUs: 2·10⁶ edges), so that a broken file cannot fill memory.
MAX_BYTES = 256 * 2**20
MAX_SHARES = 1_000_000
#: Most vertices in the hops of all shares: in a file without turns a vertex takes at least four bytes.
MAX_VERTICES = MAX_BYTES // 4
MAX_DIGITS = 200
#: Most characters of an order: a thousand ranks take five thousand.
MAX_ORDER = 2**20
_MAX_COMMON = 10 ** (MAX_DIGITS - 20)
_WIDTH = 110

_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Ids = list[_Id]
# At most MAX_DIGITS a side and no division by zero, so Fraction() accepts every match.
_NATURAL = rf"0*[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
_Number = Annotated[str, msgspec.Meta(pattern=rf"\A-?[0-9]{{1,{MAX_DIGITS}}}(/{_NATURAL})?\Z")]
_Positive = Annotated[str, msgspec.Meta(pattern=rf"\A{_NATURAL}(/{_NATURAL})?\Z")]
_Rate = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_Edges = list[Annotated[_Ids, msgspec.Meta(min_length=2)]]


class _Share(msgspec.Struct, forbid_unknown_fields=True):
    weight: _Number
    slice: _Id
    block: _Id | Annotated[_Ids, msgspec.Meta(min_length=2, max_length=2)] | None
    root: _Id
    reduce: _Edges | None
    broadcast: _Edges | None


class _Load(msgspec.Struct, forbid_unknown_fields=True):
    src: _Id
    dst: _Id
    load: _Number
    capacity: _Number


class _Cut(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="cut"):
    side: _Ids
    capacity: _Number
    demand: _Positive


class _Ratio(_Cut, forbid_unknown_fields=True, tag_field="kind", tag="ratio"):
    pass


class _Partition(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="partition"):
    blocks: Annotated[list[_Ids], msgspec.Meta(min_length=2)]
    capacity: _Number


class _Dual(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="dual"):
    prices: list[tuple[_Id, _Id, _Number]]
    value: _Number
    cost: _Positive
    entered: list[tuple[_Positive, _Ids]] = []
    left: list[tuple[_Positive, _Ids]] = []


class _TurnForm(msgspec.Struct, forbid_unknown_fields=True):
    cycles: Annotated[_Edges, msgspec.Meta(min_length=1)]


class _PlanForm(msgspec.Struct):
    # Unknown fields at the top are accepted: the command line adds statements that no forest holds.
    schema_version: int
    collective: str
    algorithm: str
    ranks: Annotated[_Ids, msgspec.Meta(min_length=1)]
    unit_gb_per_s: _Rate
    rate: _Number
    bound: _Number
    optimal: bool
    certificate: _Cut | _Ratio | _Partition | _Dual
    algbw_gb_per_s: _Rate
    shares: Annotated[list[_Share], msgspec.Meta(max_length=MAX_SHARES)]
    link_load: list[_Load]
    topology: json_format.TopologyRecord
    turns: Annotated[list[_TurnForm], msgspec.Meta(min_length=1)] | None = None
    root: _Id | None = None
    src: _Id | None = None
    dst: _Id | None = None
    depth: _Id | None = None
    trees: _Id | None = None
    order: Annotated[str, msgspec.Meta(max_length=MAX_ORDER, pattern=r"\A[0-9+()]*\Z")] | None = None
    plan_seconds: float | None = None


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection while many objects are made: it took three quarters of the time to read 20 MB."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collection()
def to_document(forest: Forest, plan_seconds: float | None = None) -> dict[str, Any]:
    """The JSON object of ``blink plan --json``, keys in their canonical order.

    ``plan_seconds`` is the time of planning. Files leave it out (None), so that the same forest gives the same bytes.
    ScheduleError if a number has more than :data:`MAX_DIGITS` digits, which every reader refuses.
    """
    collective, ranks = forest.collective, forest.ranks
    orbits = orbits_of(forest)
    ends = {key: getattr(collective, key) for key in ("root", "src", "dst")}
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION if orbits is None else TURNED_VERSION,
        "collective": collective.name,
        **{key: None if rank is None else ranks[rank] for key, rank in ends.items()},
        "algorithm": forest.algorithm,
        "ranks": list(ranks),
        "unit_gb_per_s": forest.topology.unit_gb_per_s,
        "rate": _text(forest.rate),
        "bound": _text(forest.bound),
        "optimal": forest.optimal,
        "certificate": certificate_document(forest.certificate),
        "algbw_gb_per_s": forest.algbw_gb_per_s,
        "depth": forest.depth,
        "trees": moving_shares(forest),
        **({} if forest.order is None else {"order": forest.order, "price": _text(forest.price)}),
        **({} if orbits is None else {"turns": [{"cycles": list(map(list, turn.cycles))} for turn in orbits.turns]}),
        "shares": [_share_document(share) for share in (forest if orbits is None else orbits).shares],
        "link_load": _link_load(forest, sorted(forest.link_load) if orbits is None else orbits.links(forest.link_load)),
        "topology": json_format.to_document(forest.topology),
    }
    if plan_seconds is not None:
        document["plan_seconds"] = plan_seconds
    return document


@without_collection()
def from_document(data: dict[str, Any] | bytes) -> Forest:
    """The forest in a plan's JSON: the object, or its UTF-8 text.

    Numbers that a forest computes itself (bound, loads, depth, counts) are read for their shape only; the checker
    compares them. ScheduleError, with the place as in ``shares[3].broadcast[1]``, if the text is no JSON, a field is
    missing or has the wrong shape, or a limit is exceeded; also if ranks, root, src or dst name a missing vertex.
    """
    plan = _convert(_of_our_version(upgraded(loads(data) if isinstance(data, bytes) else data)))
    fault = label_fault(plan.algorithm)
    if fault is not None:
        raise ScheduleError(f"algorithm: {fault}")
    try:
        topology = json_format.from_record(plan.topology, "topology")
    except TopologyError as error:
        raise ScheduleError(str(error)) from None
    ranks = _ranks(plan.ranks, topology)
    shares = tuple(_read_share(share) for share in plan.shares)
    _workable((share.weight for share in shares), "shares", "weights")
    if plan.turns is not None:
        turns = read_turns([turn.cycles for turn in plan.turns], ranks, topology.vertex)
        shares = read_expanded(shares, turns, ranks, MAX_SHARES, MAX_VERTICES)
    return Forest(
        _collective(plan, ranks),
        ranks,
        plan.algorithm,
        topology,
        shares,
        Fraction(plan.rate),
        _read_certificate(plan.certificate),
        plan.order,
    )


def stated_hops(document: dict[str, Any]) -> int:
    """Number of hops of all trees of a plan, with the images of turned shares; 0 if the document is no plan."""
    try:
        images = prod(max(map(len, turn["cycles"])) for turn in document.get("turns", ()))
        return images * sum(
            len(share[stage] or ()) for share in document["shares"] for stage in ("reduce", "broadcast")
        )
    except (TypeError, LookupError, ValueError):
        return 0  # the reader reports the fault


def moving_shares(forest: Forest) -> int:
    """Number of shares that move data. An up-tree and its down-tree count as one."""
    return sum(1 for share in forest.shares if any(tree.edges for tree in share.trees()))


def dumps(document: dict[str, Any]) -> str:
    """Canonical text of a document, ending in a newline: keys in given order, a line per object of a list."""
    return _render(document, "") + "\n"


@without_collection()
def loads(raw: bytes, source: str = "plan") -> dict[str, Any]:
    """The JSON object in ``raw``, the common input of :func:`from_document` and of the checker.

    ScheduleError, with ``source``, if it is no JSON object, nested too deeply, or longer than :data:`MAX_BYTES`.
    """
    if len(raw) > MAX_BYTES:
        raise ScheduleError(f"{source}: expected at most {MAX_BYTES} bytes, got {len(raw)}")
    if not raw.strip():
        raise ScheduleError(f'{source}: the file is empty; expected what "blink plan -o" writes')
    try:
        data = msgspec.json.decode(raw.removeprefix(codecs.BOM_UTF8))
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{source}: not JSON: {error.reason} (UTF-8 is expected)") from None
    except msgspec.DecodeError as error:
        place = json_format.place_of(str(error), raw)
        text = f"not JSON: {error}" if raw.lstrip()[:1] == b"{" else 'not JSON; expected what "blink plan -o" writes'
        raise ScheduleError(f"{source}{place}: {text}") from None
    except RecursionError:
        raise ScheduleError(f"{source}: nested too deeply") from None
    if not isinstance(data, dict):
        raise ScheduleError(f"{source}: expected an object, got {type(data).__name__}")
    return data


def _of_our_version(data: dict[str, Any]) -> dict[str, Any]:
    """``data``. ScheduleError if its schema version is unknown, before any other field is read."""
    topology = data.get("topology")
    for where, document, readable in (("", data, READABLE_PLANS), ("topology: ", topology, READABLE)):
        fault = version_fault(document.get("schema_version"), readable) if isinstance(document, dict) else None
        if fault is not None:
            raise ScheduleError(where + fault)
    fault = turns_fault(data)
    if fault is not None:
        raise ScheduleError(fault)
    return data


def _text(number: Fraction) -> str:
    if max(abs(number.numerator), number.denominator) >= 10**MAX_DIGITS:
        raise ScheduleError(
            f"a number of this plan has more than {MAX_DIGITS} digits; round its weights "
            "to multiples of one small fraction"
        )
    return str(number)


def _share_document(share: Share) -> dict[str, Any]:
    """The document of a share."""
    return {
        "weight": _text(share.weight),
        "slice": share.slice,
        "block": _plain(share.block),
        "root": share.root,
        "reduce": None if share.reduce is None else [list(path) for path in share.reduce.edges],
        "broadcast": None if share.broadcast is None else [list(path) for path in share.broadcast.edges],
    }


def _link_load(forest: Forest, links: Iterable[Arc]) -> list[dict[str, Any]]:
    # A wrong plan can be written too: a link that the topology lacks has capacity 0.
    capacity = {arc: link.capacity for arc, link in forest.topology.link.items()}
    return [
        {"src": arc[0], "dst": arc[1], "load": _text(forest.link_load[arc]), "capacity": str(capacity.get(arc, 0))}
        for arc in links
    ]


def certificate_document(certificate: Certificate) -> dict[str, Any]:
    """The document of a certificate, without empty sets."""
    values = {field.name: _plain(getattr(certificate, field.name)) for field in fields(certificate)}
    return {"kind": certificate.kind, **{name: value for name, value in values.items() if value != []}}


def _plain(value: Any) -> Any:
    """Tuples as lists, fractions as text."""
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return _text(value) if isinstance(value, Fraction) else value


def _convert(data: dict[str, Any]) -> _PlanForm:
    try:
        return msgspec.convert(data, type=_PlanForm)
    except msgspec.ValidationError as error:
        raise ScheduleError(_located(str(error), data)) from None


def _located(message: str, data: dict[str, Any]) -> str:
    """msgspec's "fault - at `$.path`" as our "path: fault, got value"."""
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", message, re.DOTALL)
    fault, where = (match.group(1), match.group(2)) if match else (message, "")
    pattern = re.search(r"matching regex '(.*)'", fault)
    if pattern:
        sign = "" if pattern[1].startswith(r"\\A-") else "positive "
        fault = f'Expected a {sign}fraction like "24/7" of at most {MAX_DIGITS} digits a side'
    if match and fault.startswith("Expected") and ", got" not in fault:
        fault += _got(data, where)
    return f"{where or 'plan'}: {shortened(fault[:1].lower() + fault[1:])}"


def _got(data: dict[str, Any], where: str) -> str:
    """Text ", got …" for the value at the place ``where``; "" if the value cannot be read."""
    try:
        value: Any = data
        for key, index in re.findall(r"(\w+)|\[(\d+)\]", where):
            value = value[key] if key and not index else value[int(index)]
    except (LookupError, TypeError):
        return ""  # msgspec describes some places in words, such as a key that is no string
    if isinstance(value, list | dict):
        return f", got {len(value)} entries"
    shown = repr(value) if not isinstance(value, int) or value.bit_length() < 64 else "a bigger number"
    return f", got {shown if len(shown) <= 60 else shown[:57] + '…'}"


def _workable(numbers: Iterable[Fraction], where: str, name: str) -> None:
    """Refuse numbers with a common denominator too long for their sums to be written."""
    common = 1
    for number in numbers:
        common = lcm(common, number.denominator)
        if common > _MAX_COMMON:
            raise ScheduleError(
                f"{where}: the {name} have a common denominator of more than "
                f"{MAX_DIGITS - 20} digits; round them to multiples of one small fraction"
            )


def _ranks(ids: list[int], topology: Topology) -> tuple[int, ...]:
    for i, rank in enumerate(ids):
        if rank not in topology.vertex:
            raise ScheduleError(f"ranks[{i}]: {rank} is no vertex of the topology")
        if rank in ids[:i]:
            raise ScheduleError(f"ranks[{i}]: {rank} is named twice")
    return tuple(ids)


def _collective(plan: _PlanForm, ranks: tuple[int, ...]) -> Collective:
    name = plan.collective
    if name not in COLLECTIVES:
        raise ScheduleError(f"collective: expected one of {', '.join(COLLECTIVES)}, got {name[:40]!r}")
    positions = {}
    for key in ("root", "src", "dst"):
        vertex, needed = getattr(plan, key), key in COLLECTIVES[name].parameters
        if needed and vertex not in ranks:
            raise ScheduleError(
                f"{key}: {name} needs one of the ranks {list(ranks)[:16]}, got "
                + ("null" if vertex is None else str(vertex))
            )
        if not needed and vertex is not None:
            raise ScheduleError(f"{key}: {name} takes none, got {vertex}")
        positions[key] = ranks.index(vertex) if needed else None
    if name == "sendrecv" and plan.src == plan.dst:
        raise ScheduleError(f"dst: sendrecv needs two different ranks, got {plan.src} as src and dst")
    return Collective(name, len(ranks), **positions)


def _read_share(share: _Share) -> Share:
    block: Block = (share.block[0], share.block[1]) if isinstance(share.block, list) else share.block
    return Share(
        Fraction(share.weight),
        share.slice,
        block,
        share.root,
        _tree(share.root, share.reduce),
        _tree(share.root, share.broadcast),
    )


def _tree(root: int, edges: list[list[int]] | None) -> Tree | None:
    return None if edges is None else Tree(root, tuple(map(tuple, edges)))


def _read_certificate(stated: _Cut | _Ratio | _Partition | _Dual) -> Certificate:
    if isinstance(stated, _Partition):
        return Partition(tuple(tuple(block) for block in stated.blocks), Fraction(stated.capacity))
    if isinstance(stated, _Dual):
        prices = tuple((u, v, Fraction(price)) for u, v, price in stated.prices)
        _workable((price for _, _, price in prices), "certificate.prices", "prices")
        families = [tuple((Fraction(y), tuple(some)) for y, some in sets) for sets in (stated.entered, stated.left)]
        _workable((weight for family in families for weight, _ in family), "certificate", "weights")
        return Dual(prices, Fraction(stated.value), Fraction(stated.cost), *families)
    return Cut(tuple(stated.side), Fraction(stated.capacity), Fraction(stated.demand))


def _render(value: Any, indent: str) -> str:
    """JSON text after ``indent`` spaces: long objects have a line per entry, lists of objects a line per object."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = indent + "  "
    if isinstance(value, dict) and (not indent or len(indent) + len(line) > _WIDTH):
        rows = [f"{inner}{json.dumps(key)}: {_render(entry, inner)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        rows = [inner + json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return line
