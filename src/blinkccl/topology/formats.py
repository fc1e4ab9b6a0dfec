"""Topology files: readers, selected by content, and writers, selected by the suffix of the file's name.

To read another format, write its parser beside this file and add its row to :data:`FORMATS`. To write one, add its
writer to :data:`WRITERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from blinkccl.errors import TopologyError
from blinkccl.topology import (
    amd_smi,
    cables_file,
    json_format,
    mlx_hostfile,
    nccl_xml,
    nccl_xml_write,
    nvidia_smi,
)
from blinkccl.topology.limits import MAX_FILE_BYTES, MAX_NOTE, check_labels, label_fault
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import NICS, NOTHING, Stated


@dataclass(frozen=True, slots=True)
class TopologyFormat:
    """A registry row: ``parse`` takes the text and the name of its source.

    ``leaves_open`` lists the rates that the format does not contain. If there are any, ``parse`` takes the user's
    rates (:class:`~.stated.Stated`) as its third argument.
    """

    name: str
    looks_like: Callable[[str], bool]
    parse: Callable[..., Topology]
    leaves_open: tuple[str, ...] = ()


#: The registry; the first format that recognises the text reads it.
FORMATS = (
    TopologyFormat(  # before nvidia-smi, whose header line also matches these tables
        "rocm-smi --showtopo or amd-smi topology", amd_smi.looks_like, amd_smi.parse, ("xgmi", "pcie", "smp")
    ),
    TopologyFormat(  # before JSON and XML: a shell prompt may begin with [ or <
        "nvidia-smi topo -m", nvidia_smi.looks_like, nvidia_smi.parse, ("nvlink", "pcie", "smp", "nic")
    ),
    TopologyFormat("blink topo --gather", json_format.is_gathered, json_format.parse_gathered),
    TopologyFormat("MLX's hostfile", mlx_hostfile.looks_like, mlx_hostfile.parse, ("nic",)),
    TopologyFormat("Blink's JSON", json_format.looks_like, json_format.parse),
    TopologyFormat("NCCL topology XML", nccl_xml.looks_like, nccl_xml.parse, ("pcie", "smp")),
    TopologyFormat("a line per cable", cables_file.looks_like, cables_file.parse),
)

#: The marks that a mail puts before quoted lines.
_QUOTED = re.compile(r"^(?:[ \t]*>)+ ?", re.MULTILINE)


def read_topology(path: Path, source: str = "", stated: Stated = NOTHING) -> Topology:
    """The topology in a file, called ``source`` in messages; TopologyError also for unreadable or too large files."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TopologyError(f"{source or path}: cannot be read: {error.strerror or error}") from error
    return parse_topology(data, source or str(path), path.name, stated)


def parse_topology(data: bytes, source: str, name: str = "", stated: Stated = NOTHING) -> Topology:
    """The topology in ``data`` (a whole file, UTF-8, at most 8 MiB), in one of :data:`FORMATS`.

    Text that no format recognises is tried once more without the marks of a quoted mail.

    ``source`` is its name in messages; ``name`` names the topology if the file does not; ``stated`` gives rates that
    the file leaves open. TopologyError if no format recognises the text, if the format's parser refuses it (with the
    line), or if ``stated`` gives a rate that the format itself contains. A NIC's rate is always allowed: it may be for
    a network added later.
    """
    if len(data) > MAX_FILE_BYTES:
        raise TopologyError(f"{source}: larger than {MAX_FILE_BYTES >> 20} MiB, the limit for topology files")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TopologyError(f"{source}, line {line}: byte {data[error.start]:#04x} is no UTF-8 text") from None
    for written in (text, _QUOTED.sub("", text)):
        for known in FORMATS:
            if known.looks_like(written):
                return _named(_parsed(known, written, source, stated), source, name or source)
    what = "the file is empty" if not text.strip() else "no topology (blink doctor reads logs)"
    raise TopologyError(f"{source}: {what}; expected {', '.join(f.name for f in FORMATS)}")


def _parsed(known: TopologyFormat, text: str, source: str, stated: Stated) -> Topology:
    if stated.nics and known.parse not in (nvidia_smi.parse, nccl_xml.parse):
        raise TopologyError(f"{source}: {known.name} does not take {NICS}=…")
    closed = [key for key in stated.names() if key != "nic" and key not in known.leaves_open]
    if closed:
        may = f"; rates to state: {', '.join(known.leaves_open)}" if known.leaves_open else ""
        raise TopologyError(f"{source}: {known.name} does not take a rate for {', '.join(closed)}{may}")
    return known.parse(text, source, stated) if known.leaves_open else known.parse(text, source)


def _named(topology: Topology, source: str, name: str) -> Topology:
    """``topology`` under its final name, after a check of all texts taken from the file."""
    check_labels(source, ((f"the name of vertex {v.id}", v.name) for v in topology.vertices))
    check_labels(source, ((f"note {i + 1}", note) for i, note in enumerate(topology.notes)), MAX_NOTE)
    if topology.name != source:
        return topology
    return replace(topology, name=name if label_fault(name) is None else "topology file")


#: The registry, by suffix.
WRITERS: dict[str, Callable[[Topology], str]] = {
    ".json": json_format.write,
    ".xml": nccl_xml_write.write,
}
