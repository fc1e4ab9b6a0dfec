"""Blink's JSON for topologies (docs/design.md), printed by ``blink topo --json`` and read back exactly."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import msgspec

from blinkccl.errors import TopologyError
from blinkccl.schema import SCHEMA_VERSION, upgraded, version_fault
from blinkccl.topology.assembly import MAX_LINKS, MAX_VERTICES
from blinkccl.topology.limits import MAX_GB_PER_S, MAX_NOTE, check_labels, shortened
from blinkccl.topology.model import RANK_KINDS, Link, Topology, Vertex

MAX_ID = 2**31 - 1
MAX_CAPACITY = 10**15


class VertexRecord(msgspec.Struct, forbid_unknown_fields=True):
    """``Vertex`` in a file; a missing name is derived from kind and id, other missing fields have their defaults."""

    id: int
    kind: str
    server: int = 0
    name: str = ""
    part_of: int | None = None
    combines: bool = False
    sm: Annotated[int, msgspec.Meta(ge=10, le=999)] | None = None
    peers: bool = True


class LinkRecord(msgspec.Struct, forbid_unknown_fields=True):
    """``Link`` in a file; a missing rate is derived from the capacity, a missing provenance is ``declared``."""

    src: int
    dst: int
    capacity: int
    kind: str
    gb_per_s: float | None = None
    provenance: str = "declared"
    read_capacity: int | None = None
    by: str = ""


class _Version(msgspec.Struct):
    """The version field, read before the rest of a document."""

    schema_version: object = SCHEMA_VERSION


class TopologyRecord(msgspec.Struct, forbid_unknown_fields=True):
    """``Topology`` in a file."""

    schema_version: int
    name: str
    unit_gb_per_s: float
    vertices: list[VertexRecord]
    links: list[LinkRecord]
    notes: list[str] = []


def looks_like(text: str) -> bool:
    """True if ``text`` looks like JSON."""
    return text.lstrip()[:1] in ("{", "[")


def is_gathered(text: str) -> bool:
    """True if ``text`` is output of ``blink topo --gather``, which contains the topology as one of its fields."""
    return looks_like(text) and '"blink_gather"' in text[:4096]


def parse_gathered(text: str, source: str = "JSON") -> Topology:
    """The topology in a gathered file; errors as in :func:`parse`."""
    try:
        document = msgspec.json.decode(text)
        topology = msgspec.json.encode(document["topology"]).decode()
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        raise TopologyError(f"{source}: incomplete output of blink topo --gather; copy the whole file") from None
    return parse(topology, source)


def to_document(topology: Topology) -> dict[str, Any]:
    """``topology`` as plain dictionaries and lists, in the order of the schema."""
    lists = {key: list(msgspec.to_builtins(getattr(topology, key))) for key in ("vertices", "links", "notes")}
    for entry in (*lists["vertices"], *lists["links"]):
        for key in ("part_of", "combines", "sm", "read_capacity", "by"):
            if key in entry and (entry[key] in (None, "") or entry[key] is False):
                del entry[key]
        if entry.get("peers"):
            del entry["peers"]
    return {
        "schema_version": SCHEMA_VERSION,
        "name": topology.name,
        "unit_gb_per_s": topology.unit_gb_per_s,
        **lists,
    }


def write(topology: Topology) -> str:
    """``topology`` as JSON text with one vertex or link per line; equal topologies give equal bytes."""
    document = to_document(topology)
    encode = msgspec.json.Encoder().encode
    head = ", ".join(
        f'"{key}": {encode(document[key]).decode()}' for key in ("schema_version", "name", "unit_gb_per_s")
    )
    parts = [f"{{{head}"]
    for key in ("vertices", "links", "notes"):
        rows = ",\n  ".join(encode(item).decode() for item in document[key])
        parts.append(f' "{key}": [\n  {rows}]' if rows else f' "{key}": []')
    return ",\n".join(parts) + "}\n"


def parse(text: str, source: str = "JSON") -> Topology:
    """The topology in JSON written by :func:`write`, or by hand in the same schema.

    Raises
    ------
    TopologyError
        With the line or the place in the document: no JSON, unknown or missing fields, another schema
        version, rates that are not finite and positive or differ from capacity × unit; also the errors of
        :class:`~blinkccl.topology.model.Topology`.
    """
    raw = text.encode()
    try:
        record = _decoded(raw, source)
    except msgspec.ValidationError as error:
        raise TopologyError(f"{source}: {shortened(str(error))}{_hint(text)}") from None
    except msgspec.DecodeError as error:
        raise TopologyError(f"{source}{place_of(str(error), raw)}: no JSON: {error}") from None
    except RecursionError:
        raise TopologyError(f"{source}: nested too deeply for a topology") from None
    return from_record(record, source)


def from_fields(fields: dict[str, Any], source: str) -> Topology:
    """The topology in a document of the current version, as dictionaries and lists; errors as in :func:`parse`."""
    try:
        record = msgspec.convert({"schema_version": SCHEMA_VERSION, **fields}, TopologyRecord)
    except msgspec.ValidationError as error:
        raise TopologyError(f"{source}: {shortened(str(error))}") from None
    return from_record(record, source)


def from_record(record: TopologyRecord, source: str) -> Topology:
    """The topology of a record; errors as in :func:`parse`."""
    _check_version(record.schema_version, source)
    _check_size(record, source)
    _check_texts(record, source)
    links = tuple(
        Link(x.src, x.dst, x.capacity, x.kind, _gb_per_s(record, i, source), x.provenance, x.read_capacity, x.by)
        for i, x in enumerate(record.links)
    )
    vertices = tuple(
        Vertex(v.id, v.kind, v.server, v.name, v.part_of, v.combines, v.sm, v.peers) for v in record.vertices
    )
    try:
        return Topology(record.name, record.unit_gb_per_s, vertices, links, tuple(record.notes))
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from None


def _decoded(raw: bytes, source: str) -> TopologyRecord:
    """The record in ``raw``; version 1 is converted to version 2."""
    version = msgspec.json.decode(raw, type=_Version).schema_version
    _check_version(version, source)
    if version == SCHEMA_VERSION:
        return msgspec.json.decode(raw, type=TopologyRecord)
    return msgspec.convert(upgraded(msgspec.json.decode(raw, type=dict[str, object])), TopologyRecord)


def _check_version(version: object, source: str) -> None:
    fault = version_fault(version)
    if fault is not None:
        raise TopologyError(f"{source}: {fault}")


def _check_texts(record: TopologyRecord, source: str) -> None:
    check_labels(
        source, [("name", record.name), *((f"vertices[{i}].name", v.name) for i, v in enumerate(record.vertices))]
    )
    check_labels(source, ((f"notes[{i}]", note) for i, note in enumerate(record.notes)), MAX_NOTE)


def _check_size(record: TopologyRecord, source: str) -> None:
    if len(record.vertices) > MAX_VERTICES or len(record.links) > MAX_LINKS:
        raise TopologyError(
            f"{source}: {len(record.vertices)} vertices and {len(record.links)} links; at most {MAX_VERTICES} and "
            f"{MAX_LINKS}"
        )
    if not (math.isfinite(record.unit_gb_per_s) and 0 < record.unit_gb_per_s <= MAX_GB_PER_S):
        raise TopologyError(
            f"{source}: unit_gb_per_s must be above 0 and at most {MAX_GB_PER_S}, got {record.unit_gb_per_s!r}"
        )
    if not any(v.kind in RANK_KINDS for v in record.vertices):
        raise TopologyError(f"{source}: no vertex is of kind {' or '.join(RANK_KINDS)}, so there are no ranks")
    for v in record.vertices:
        if not all(0 <= number <= MAX_ID for number in (v.id, v.server, v.part_of or 0)):
            raise TopologyError(f"{source}: vertex {v.id} on server {v.server}: ids are 0 … {MAX_ID}")


def _gb_per_s(record: TopologyRecord, index: int, source: str) -> float:
    """The rate of a link in GB/s, checked against its capacity."""
    link = record.links[index]
    where = f"{source}: links[{index}], {link.src} → {link.dst}"
    if not 0 < link.capacity <= MAX_CAPACITY:
        raise TopologyError(f"{where}: capacity must be a positive integer, got {link.capacity}")
    if link.read_capacity is not None and not 0 < link.read_capacity <= MAX_CAPACITY:
        raise TopologyError(f"{where}: read_capacity must be a positive integer, got {link.read_capacity}")
    expected = link.capacity * record.unit_gb_per_s
    if expected > MAX_GB_PER_S:
        raise TopologyError(f"{where}: {expected:g} GB/s is no valid link rate; expected at most {MAX_GB_PER_S}")
    if link.gb_per_s is None:
        return expected
    if not math.isclose(link.gb_per_s, expected, rel_tol=1e-6):
        raise TopologyError(
            f"{where}: gb_per_s {link.gb_per_s:g}, but capacity {link.capacity} × unit_gb_per_s "
            f"{record.unit_gb_per_s:g} is {expected:g}"
        )
    return link.gb_per_s


def place_of(message: str, raw: bytes) -> str:
    """Position of the byte at which msgspec refused ``raw``, as ", line 2, column 7"; "" if its message has none."""
    offset = re.search(r"byte ([0-9]+)", message)
    if offset is None and "truncated" not in message:
        return ""
    before = raw if offset is None else raw[: int(offset[1])]
    lines = before.decode("utf-8", "replace").split("\n")
    return f", line {len(lines)}, column {len(lines[-1]) + 1}"


def _hint(text: str) -> str:
    if '"shares"' in text:
        return "; this looks like a plan, but a topology is expected"
    return '; expected the output of "blink topo --json"'
