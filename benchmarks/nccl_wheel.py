"""The search of a real NCCL: functions of NCCL's wheel, called through the wheel's own symbol table.

NCCL does not initialize without NVIDIA's driver (docs/gpu.md). But the functions by which it reads a machine and
searches channels call no driver. This calls them in the order of ``ncclCommInitRank``, on a topology file. They are not
exported, but a wheel names them in its ``.symtab``. Of their structures, only the required inputs are known here; NCCL
itself writes the results (``NCCL_GRAPH_DUMP_FILE``). Use a process of its own.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

NEWEST = "nvidia-nccl-cu13"
#: Wheels by NCCL's version, oldest first.
WHEELS = {
    "2.27.5": "nvidia-nccl-cu12",
    "2.28.9": "nvidia-nccl-cu13",
    "2.29.7": "nvidia-nccl-cu13",
    "2.30.7": "nvidia-nccl-cu13",
    "2.32.3": "nvidia-nccl-cu13",
}
#: NCCL's patterns of a graph, and a graph's number in its dump.
RING, CHAIN, NVLS = (0, 4), (1, 1), (3, 5)
#: ``ncclTopoGraph`` as ints: inputs (id, pattern, crossnic, collnet, channels at least and at most), then the number
#: of channels found. The rest is NCCL's own; this is far more than any version has.
GRAPH_INTS, FOUND = 1 << 18, 6
MOST_CHANNELS = 64
XML_NODES = 1024
#: Timeout of a download in seconds.
FETCH_S = 1800
#: Offset in ``ncclTopoSystem`` of the flag for other servers, by the wheels' debug information. Before 2.28, NCCL
#: knows other servers by its network cards.
INTER = {(2, 28): 32629320, (2, 29): 42332240, (2, 30): 60626024, (2, 32): 60626024}

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_Ints = ctypes.Array[ctypes.c_int]
_FUNCTIONS = {
    "alloc": ("_ZL8xmlAllocPP7ncclXmli", (_POINTER, _INT)),
    "read": ("_Z22ncclTopoGetXmlFromFilePKcP7ncclXmli", (ctypes.c_char_p, _POINTER, _INT)),
    "trim": ("_Z15ncclTopoTrimXmlP7ncclXml", (_POINTER,)),
    "system": ("_Z24ncclTopoGetSystemFromXmlP7ncclXmlPP14ncclTopoSystemm", (_POINTER, _POINTER, ctypes.c_uint64)),
    "paths": ("_Z20ncclTopoComputePathsP14ncclTopoSystemP8ncclComm", (_POINTER, _POINTER)),
    "prepare": ("_Z18ncclTopoSearchInitP14ncclTopoSystem", (_POINTER,)),
    "compute": ("_Z15ncclTopoComputeP14ncclTopoSystemP13ncclTopoGraph", (_POINTER, _POINTER)),
    "dump": ("_Z18ncclTopoDumpGraphsP14ncclTopoSystemiPP13ncclTopoGraph", (_POINTER, _INT, _POINTER)),
}
_FREE, _ANCHOR = "_Z12ncclTopoFreeP14ncclTopoSystem", "ncclGetVersion"


@dataclass(frozen=True, slots=True)
class Graph:
    """Channels that NCCL found: kinds are NCCL's names, GPUs are numbered as the topology file's ``dev``."""

    count: int
    gb_per_s: float
    net_gb_per_s: float
    kind: str
    net_kind: str
    same: bool
    crossing: bool
    orders: tuple[tuple[int, ...], ...]


class Wheel:
    """A ``libnccl.so.2`` in this process."""

    def __init__(self, library: Path) -> None:
        for name in [name for name in os.environ if name.startswith("NCCL_") and name != "NCCL_DEBUG"]:
            del os.environ[name]
        # There is no NVML to ask for peer access: paths alone decide, as in NCCL's own tests.
        os.environ["NCCL_IGNORE_DISABLED_P2P"] = "2"
        loaded = ctypes.CDLL(str(library))
        places = _symbols(library, {_ANCHOR, _FREE, *(symbol for symbol, _ in _FUNCTIONS.values())})
        anchor = ctypes.cast(loaded.ncclGetVersion, _POINTER).value
        assert anchor is not None
        base = anchor - places[_ANCHOR]
        self._functions = {
            name: ctypes.CFUNCTYPE(_INT, *arguments)(base + places[symbol])
            for name, (symbol, arguments) in _FUNCTIONS.items()
        }
        self._free = ctypes.CFUNCTYPE(None, _POINTER)(base + places[_FREE])
        number = _INT()
        loaded.ncclGetVersion(ctypes.byref(number))
        self.version = (number.value // 10000, number.value // 100 % 100, number.value % 100)

    def search(self, topology_file: str, *, across: bool = False, nvls: bool = False) -> tuple[Graph, ...]:
        """Rings, as many chains, and NVLS on request, of the GPUs that have a ``rank`` in NCCL's topology XML.

        Elements with ``keep="1"`` stay, as NCCL marks them. ``across``: the job has other servers like this one.
        """
        xml, system = _POINTER(), _POINTER()
        self._call("alloc", ctypes.byref(xml), XML_NODES)
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(topology_file)
            file.flush()
            self._call("read", file.name.encode(), xml, 1)
        self._call("trim", xml)
        self._call("system", xml, ctypes.byref(system), 0)
        self._call("paths", system, None)
        if across and self.version[:2] >= (2, 28):
            assert system.value is not None
            _INT.from_address(system.value + INTER[self.version[:2]]).value = 1
        self._call("prepare", system)
        rings = self._graph(system, RING, 1, MOST_CHANNELS // 2)
        wanted = [rings, self._graph(system, CHAIN, rings[FOUND], rings[FOUND])]
        if nvls:
            wanted.append(self._graph(system, NVLS, 1, MOST_CHANNELS))
        graphs = self._dumped(system, wanted)
        self._free(system)
        ctypes.CDLL(None).free(xml)
        return graphs

    def _graph(self, system: ctypes.c_void_p, what: tuple[int, int], least: int, most: int) -> _Ints:
        graph = (_INT * GRAPH_INTS)(*what, 0, 0, least, most)
        self._call("compute", system, graph)
        return graph

    def _dumped(self, system: ctypes.c_void_p, graphs: list[_Ints]) -> tuple[Graph, ...]:
        with tempfile.NamedTemporaryFile("r", suffix=".xml") as file:
            os.environ["NCCL_GRAPH_DUMP_FILE"] = file.name
            self._call("dump", system, len(graphs), (_POINTER * len(graphs))(*map(ctypes.addressof, graphs)))
            return tuple(_read(graph) for graph in ET.parse(file.name).getroot())

    def _call(self, function: str, *arguments: object) -> None:
        code = self._functions[function](*arguments)
        if code:
            raise RuntimeError(f"NCCL {'.'.join(map(str, self.version))}: {_FUNCTIONS[function][0]} returned {code}")


def _read(graph: ET.Element) -> Graph:
    value = graph.attrib
    orders = tuple(tuple(int(gpu.attrib["dev"], 16) for gpu in channel.iter("gpu")) for channel in graph)
    return Graph(
        int(value["nchannels"]),
        float(value["speedintra"]),
        float(value["speedinter"]),
        value["typeintra"],
        value["typeinter"],
        value["samechannels"] == "1",
        value["crossnic"] == "1",
        orders,
    )


def _symbols(library: Path, wanted: Collection[str]) -> dict[str, int]:
    """Addresses of functions of an ELF library, exported or not."""
    with library.open("rb") as file:

        def part(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        header = part(0, 64)
        (offset,), (size, count) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
        sections = list(struct.iter_unpack("<IIQQQQIIQQ", part(offset, size * count)))
        table = next((section for section in sections if section[1] == 2), None)
        if table is None:
            raise RuntimeError(f"{library} is stripped: it has no .symtab")
        strings = part(*sections[table[6]][4:6])
        addresses = {}
        for name, about, _, section, value, _ in struct.iter_unpack("<IBBHQQ", part(*table[4:6])):
            if section and about & 15 == 2:
                symbol = strings[name : strings.index(b"\0", name)].decode()
                if symbol in wanted:
                    addresses[symbol] = value
    missing = sorted(set(wanted) - set(addresses))
    if missing:
        raise RuntimeError(f"{library} has no {', '.join(missing)}")
    return addresses


def fetched(version: str, directory: Path) -> Path:
    """NCCL's library of that version in ``directory``, from PyPI if it is missing (200 to 330 MB).

    Its headers are beside it, in ``include``.
    """
    library = directory / version / "libnccl.so.2"
    if not (library.exists() and library.with_name("include").exists()):
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
            subprocess.run(
                [*pip, "--dest", scratch, f"{WHEELS.get(version, NEWEST)}=={version}"], check=True, timeout=FETCH_S
            )
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith("nvidia/nccl/")])
            fresh = Path(scratch, "nvidia", "nccl")
            if not library.with_name("include").exists():
                (fresh / "include").rename(library.with_name("include"))
            (fresh / "lib" / library.name).rename(library)
    return library


def newest() -> str:
    """The newest version on the index; raises ``subprocess`` errors as :func:`fetched` if pip cannot reach it."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", NEWEST]
    listing = subprocess.run(pip, check=True, timeout=FETCH_S, capture_output=True, text=True).stdout
    return listing.split("(", 1)[1].split(")", 1)[0]
