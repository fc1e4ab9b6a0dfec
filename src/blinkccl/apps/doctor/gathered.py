"""Reader of the documents that ``blink topo --gather`` writes, and the evidence in them.

A document is one JSON object with the data of NVML, sysfs and the kernel on a machine. It does not identify its owner:
no names of hosts and users, no serial numbers, no network addresses. :mod:`~.this_machine` writes it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import convert

from blinkccl.apps.doctor.evidence import (
    Acs,
    Device,
    Evidence,
    Host,
    Iommu,
    Location,
    MachineRead,
    NvLinks,
    PeerAccess,
    Setting,
)
from blinkccl.apps.doctor.readers import topologies
from blinkccl.topology import json_format

VERSION = 1
_HASHES = re.compile(r"\b(host_hash|guid)=([\"'])(.*?)\2")


def pieces(document: Any, source: str) -> Iterator[Evidence]:
    """The evidence in a document, all at ``source``."""
    place = Location(source)
    yield MachineRead(place, json_format.parse(json.dumps(document["topology"]), source))
    lists: tuple[tuple[str, type[Evidence]], ...] = (("devices", Device), ("nvlinks", NvLinks), ("peers", PeerAccess))
    for key, kind in lists:
        yield from (convert({**row, "place": place}, kind) for row in document.get(key, ()))
    kernel = document.get("kernel") or {}
    if kernel.get("iommu"):
        yield Iommu(place, kernel["iommu"], kernel.get("how", ""))
    if kernel.get("acs_bridges"):
        yield Acs(place, int(kernel["acs_redirecting"]), int(kernel["acs_bridges"]))
    for name, value in sorted((document.get("settings") or {}).items()):
        yield Setting(place, name, str(value))
    if document.get("host"):
        yield convert({**document["host"], "place": place}, Host)
    yield from _texts(document, source)


#: Names of the kinds of evidence in reports.
_NAMES = {
    MachineRead: "links", Device: "PCIe devices", NvLinks: "NVLinks", PeerAccess: "P2P between pairs", Iommu: "IOMMU",
    Acs: "ACS of bridges", Setting: "NCCL's and Blink's variables", Host: "memory, /dev/shm and limits of processes",
}  # fmt: skip


def looked_at(pieces_read: Sequence[Evidence]) -> list[str]:
    """The kinds of evidence that were available, in words."""
    numbers = Counter(_NAMES[type(piece)] for piece in pieces_read if type(piece) in _NAMES)
    return [name if number == 1 else f"{name} ({number})" for name, number in numbers.items()]


def _texts(document: Any, source: str) -> Iterator[Evidence]:
    """Evidence in the output of other tools, without the machine, which the document already holds."""
    matrix, xml = document.get("nvidia_smi_topo"), document.get("nccl_topology")
    evidence: list[Evidence] = []
    if isinstance(matrix, str) and matrix.strip():
        evidence += topologies.from_matrix(matrix, Location(f"{source}, nvidia_smi_topo"), [])
    if isinstance(xml, str) and xml.strip():
        evidence += topologies.from_xml(xml, f"{source}, nccl_topology", [])
    yield from (piece for piece in evidence if not isinstance(piece, MachineRead | NvLinks))


def without_secrets(xml: str) -> str:
    """NCCL's XML with serial numbers (1, 2, …) in place of host hashes and GUIDs of network cards."""
    known: dict[str, int] = {}
    return _HASHES.sub(lambda match: f'{match[1]}="0x{known.setdefault(match[3], len(known) + 1):x}"', xml)
