"""What ``blink topo --gather`` writes, read back; and what of it is evidence.

One JSON object: what NVML, sysfs and the kernel say of a machine, with nothing that tells whose it is: no names of
hosts and users, no serial numbers, no addresses in a network. :mod:`~.this_machine` makes it, from the machine that it
runs on.
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


#: What people call each kind of evidence.
_NAMES = {
    MachineRead: "links", Device: "PCIe devices", NvLinks: "NVLinks", PeerAccess: "P2P between pairs", Iommu: "IOMMU",
    Acs: "ACS of bridges", Setting: "NCCL's and Blink's variables", Host: "memory, /dev/shm and limits of processes",
}  # fmt: skip


def looked_at(found: Sequence[Evidence]) -> list[str]:
    """What there was to look at, in words."""
    numbers = Counter(_NAMES[type(piece)] for piece in found if type(piece) in _NAMES)
    return [name if number == 1 else f"{name} ({number})" for name, number in numbers.items()]


def _texts(document: Any, source: str) -> Iterator[Evidence]:
    """What other tools said; the machine itself stands in the document already."""
    matrix, xml = document.get("nvidia_smi_topo"), document.get("nccl_topology")
    found: list[Evidence] = []
    if isinstance(matrix, str) and matrix.strip():
        found += topologies.from_matrix(matrix, Location(f"{source}, nvidia_smi_topo"), [])
    if isinstance(xml, str) and xml.strip():
        found += topologies.from_xml(xml, f"{source}, nccl_topology", [])
    yield from (piece for piece in found if not isinstance(piece, MachineRead | NvLinks))


def without_secrets(xml: str) -> str:
    """NCCL's XML with its hashes of hosts and identities of network cards counted through instead."""
    known: dict[str, int] = {}
    return _HASHES.sub(lambda found: f'{found[1]}="0x{known.setdefault(found[3], len(known) + 1):x}"', xml)
