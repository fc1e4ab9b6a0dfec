"""What a topology file may be at most, so that nonsense is refused at once and cannot hang a reader."""

from __future__ import annotations

from blinkccl.errors import TopologyError

#: A full dump of an eight-GPU server has 16 KB.
MAX_FILE_BYTES = 8 * 1024 * 1024
#: Devices of one ``nvidia-smi topo -m`` matrix, GPUs and NICs.
MAX_MATRIX_DEVICES = 512
#: NCCL itself reads 256 nodes; we leave room for racks.
MAX_XML_ELEMENTS = 20_000
MAX_XML_DEPTH = 64
#: GB/s of one link: beyond any hardware, and safe to multiply.
MAX_GBPS = 1_000_000


def at(source: str, line: int, text: str) -> TopologyError:
    """The error ``text`` with its place, for ``raise``."""
    return TopologyError(f"{source}, line {line}: {text}")
