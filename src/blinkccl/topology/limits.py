"""Limits on topology files, to refuse nonsense at once before it can hang a reader."""

from __future__ import annotations

from collections.abc import Iterable

from blinkccl.errors import TopologyError

#: A full dump of an eight-GPU server has 16 KB.
MAX_FILE_BYTES = 8 * 1024 * 1024
#: Devices of one ``nvidia-smi topo -m`` matrix, GPUs and NICs.
MAX_MATRIX_DEVICES = 512
#: NCCL itself reads 256 nodes; this limit leaves room for racks.
MAX_XML_ELEMENTS = 20_000
MAX_XML_DEPTH = 64
#: Characters of a name or label, and of a note.
MAX_LABEL = 200
MAX_NOTE = 2000
#: GB/s of one link: beyond any hardware, and safe to multiply.
MAX_GB_PER_S = 1_000_000


def label_fault(text: str, most: int = MAX_LABEL) -> str | None:
    """The reason to keep ``text``, from a file, away from a terminal (unprintable characters); None if harmless."""
    if len(text) > most:
        return f"has {len(text)} characters, expected at most {most}"
    odd = next((c for c in text if not c.isprintable()), None)
    return None if odd is None else f"has the control character U+{ord(odd):04X}; use printable ones"


def check_labels(source: str, named: Iterable[tuple[str, str]], most: int = MAX_LABEL) -> None:
    """Refuse invalid labels; ``named`` pairs each text with its place, and the error quotes only the place."""
    for where, text in named:
        fault = label_fault(text, most)
        if fault is not None:
            raise TopologyError(f"{source}: {where} {fault}")


def shortened(text: str, most: int = MAX_LABEL) -> str:
    """``text``, cut after ``most`` characters, since messages may quote very long keys."""
    return text if len(text) <= most else text[: most - 1] + "…"


def at(source: str, line: int, text: str) -> TopologyError:
    """A TopologyError with ``text`` and its place."""
    return TopologyError(f"{source}, line {line}: {text}")
