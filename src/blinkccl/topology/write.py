"""Topology files, written in the format that the file's name asks for.

To write another format: write its writer beside this file, and add its row to :data:`WRITERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blinkccl.errors import TopologyError
from blinkccl.topology import json_format, nccl_xml_write
from blinkccl.topology.model import Topology

#: The registry, by suffix.
WRITERS: dict[str, Callable[[Topology], str]] = {
    ".json": json_format.write,
    ".xml": nccl_xml_write.write,
}


def write_topology(topology: Topology, path: Path) -> None:
    """Write ``topology`` to ``path``: our JSON for ``.json``, NCCL's topology XML for ``.xml``.

    Raises
    ------
    TopologyError
        If the suffix is none of these or the file cannot be written.
    UnsupportedError
        If the format has no place for some part of the topology.
    """
    writer = WRITERS.get(path.suffix)
    if writer is None:
        raise TopologyError(
            f"{path}: do not know how to write {path.suffix or 'a file without suffix'!r}; "
            "expected " + ", ".join(WRITERS)
        )
    text = writer(topology)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"{path}: cannot be written: {error.strerror or error}") from error
