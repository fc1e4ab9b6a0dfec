"""``rocm-smi --showtopo`` and ``amd-smi topology`` text: tables with a cell for every pair of GPUs.

Both tools print the kernel's tables (KFD), under different titles:

============  ================================  =====================================================================
rocm-smi      amd-smi                           cells
============  ================================  =====================================================================
Link Type     LINK TYPE TABLE                   XGMI or PCIE
Weight        WEIGHT TABLE                      15 for each xGMI link on the path, 20 and more for each PCIe segment
Hops          HOPS TABLE                        1 over xGMI, *for any number of links*; 2 and 3 over 1 and 2 processors
accessib…     ACCESS TABLE                      True or ENABLED: peers may access each other's memory
Bandwidth     NUMA BW TABLE                     MB/s of one link and of all links of the pair, 0-0 without a link
============  ================================  =====================================================================

Two GPUs have a direct link if the pair has a bandwidth. Some drivers give none (0-0 everywhere); there, a direct link
has the weight of one link, and its rate follows from the product's name (``--showproductname``) or from a full mesh of
eight, which is an MI300X or later. The two dies of an MI250 are neighbours and have four links. Sources: AMD's
documentation of both tools, and remarks of AMD's engineers on hops in the projects' issue trackers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_constants as nccl
from blinkccl.topology import pcie_tree
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.gpu_models import GpuModel, gpu_model, names_in
from blinkccl.topology.launchers import MANY_NODES, of_one_node, without_escapes
from blinkccl.topology.limits import MAX_GB_PER_S, MAX_MATRIX_DEVICES, at, shortened
from blinkccl.topology.model import Topology
from blinkccl.topology.select import ids_text
from blinkccl.topology.stated import NOTHING, Stated

#: GB/s of one xGMI link and of the bus between processors, in MI200 servers.
XGMI_GB_PER_S, SMP_GB_PER_S = 50, 16
#: xGMI links between the two dies of an MI250.
_LINKS_OF_DIES = 4
_ROCM = re.compile(r"\s*=+ (?:(Weight|Hops|Link Type|Link accessibility) between two GPUs|(Bandwidth)) =+\s*")
_AMD = re.compile(r"\s*(ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:\s*")
_TABLES = {"link type": "type", "link accessibility": "access", "numa bw": "bandwidth"}
_DEVICE = re.compile(r"GPU[0-9]{1,4}|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_NUMA = re.compile(r"GPU\[([0-9]{1,4})\]\s*: \(Topology\) Numa (?:Node|Affinity): (-?[0-9]{1,4})\s*")
_CELLS = {
    "type": re.compile(r"XGMI|PCIE"),
    "weight": re.compile(r"[0-9]{1,6}"),
    "hops": re.compile(r"[0-9]{1,3}"),
    "access": re.compile(r"True|False|ENABLED|DISABLED"),
    "bandwidth": re.compile(r"([0-9]{1,9})-([0-9]{1,9})|N/A"),
}


@dataclass(frozen=True, slots=True)
class AmdTable:
    """One table: its devices in the order of the columns, their cells, and the line of each row."""

    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dump:
    """The checked tables by name (:data:`_CELLS`), all of the same GPUs; per GPU its NUMA node, "" if unknown."""

    source: str
    tool: str
    tables: dict[str, AmdTable]
    numa: tuple[str, ...]
    products: tuple[str, ...] = ()

    def model(self) -> tuple[GpuModel | None, str]:
        """The GPUs' product and its source in words; (None, "") if neither names nor links imply it."""
        if self.products:
            return gpu_model(self.products[0]), self.products[0]
        gpus = range(len(self.numa))
        cells, weights = self.tables["type"].cells, {self.number("weight", a, b) for a in gpus for b in gpus if a < b}
        mesh = len(gpus) == 8 and all(cells[a][b] == "XGMI" for a in gpus for b in gpus if a != b)
        if mesh and len(weights) == 1 and None not in weights:
            return gpu_model("MI300X"), "a full mesh of eight: MI300X or later"
        return None, ""

    def number(self, table: str, a: int, b: int) -> int | None:
        """A numeric cell (for a bandwidth: the sum of all links); None without the table or a number."""
        if table not in self.tables or (cell := self.tables[table].cells[a][b]) == "N/A":
            return None
        return int(cell.rpartition("-")[2])


def looks_like(text: str) -> bool:
    """True if ``text`` contains the title of such a table."""
    return any(_key(line) or _key(line.partition(": ")[2]) for line in without_escapes(text))


def parse(text: str, source: str = "rocm-smi", stated: Stated = NOTHING) -> Topology:
    """The machine that the tables describe, GPUs in the order of the tables; text between tables is ignored.

    Direct xGMI links become links, at the driver's rate. GPUs that xGMI joins over other GPUs get no link. The tables
    do not show PCIe switches, so PCIe is one link from each GPU to the host of its NUMA node. If GPUs lack peer access
    over PCIe, hosts become memories.

    Raises
    ------
    TopologyError
        With the line: no table of link types, missing or truncated rows, unknown cells, two different cells for one
        pair, tables of different GPUs, the same table twice.
    """
    dump = read_dump(text, source)
    box = Assembly(source, dump.tool)
    box.add_many("gpu", len(dump.numa), "GPU")
    _add_xgmi(box, dump, stated)
    _add_pcie(box, dump, stated)
    stated.declare(box)
    return box.finish()


def read_dump(text: str, source: str) -> Dump:
    """The tables of links, checked."""
    lines = of_one_node(without_escapes(text), lambda line: bool(_key(line)), source)
    tables: dict[str, AmdTable] = {}
    begun: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        key = _key(line)
        if not key:
            continue
        if key in begun:
            raise at(source, number, f"the same table again, first in line {begun[key]}; {MANY_NODES}")
        begun[key] = number
        tables[key] = _table(lines, number, key, source)
    if "type" not in tables:
        raise TopologyError(
            f'{source}: no table of link types; give the whole output of "rocm-smi --showtopo" or "amd-smi topology"'
        )
    names = tables["type"].names
    for key, table in tables.items():
        if table.names != names:
            raise at(
                source,
                begun[key],
                f"this table lists {' '.join(table.names)}, but the table of link types lists {' '.join(names)}",
            )
    tool = "amd-smi" if any(map(_AMD.fullmatch, lines)) else "rocm-smi"
    return Dump(source, tool, tables, _numa(lines, len(names)), names_in(lines))


def _key(line: str) -> str:
    """The key of the table with this title line; "" for other lines."""
    match = _ROCM.fullmatch(line) or _AMD.fullmatch(line)
    if match is None:
        return ""
    title = next(group for group in match.groups() if group).lower()
    return _TABLES.get(title, title)


def _table(lines: list[str], start: int, key: str, source: str) -> AmdTable:
    """The table under the title in line ``start``."""
    first = next((i for i in range(start, len(lines)) if lines[i].strip()), len(lines) - 1)
    names = lines[first].split()
    if not names or len(set(names)) != len(names) or not all(map(_DEVICE.fullmatch, names)):
        got = shortened(lines[first].strip(), 80)
        raise at(source, first + 1, f"expected the GPUs of the table, each once, got {got!r}")
    if len(names) > MAX_MATRIX_DEVICES:
        raise at(source, first + 1, f"{len(names)} GPUs; at most {MAX_MATRIX_DEVICES}")
    rows, numbers = [], []
    for row, name in enumerate(names):
        number = first + 2 + row
        words = lines[number - 1].split() if number <= len(lines) else []
        if words[:1] != [name] or len(words) != len(names) + 1:
            got = shortened(" ".join(words), 80)
            raise at(source, min(number, len(lines)), f"expected the row {name} with {len(names)} cells, got {got!r}")
        rows.append(tuple(words[1:]))
        numbers.append(number)
    table = AmdTable(tuple(names), tuple(rows), tuple(numbers))
    _check(table, key, source)
    return table


def _check(table: AmdTable, key: str, source: str) -> None:
    for a, row in enumerate(table.cells):
        for b, cell in enumerate(row):
            match = _CELLS[key].fullmatch(cell)
            where = f"{table.names[a]} × {table.names[b]} is {shortened(cell, 40)!r}"
            if a != b and match is None:
                raise at(source, table.lines[a], f"{where}, expected {_CELLS[key].pattern.replace('|', ' or ')}")
            if a > b and cell != table.cells[b][a]:
                other = f"{shortened(table.cells[b][a], 40)!r} the other way round in line {table.lines[b]}"
                raise at(source, table.lines[a], f"{where}, but {other}; links run both ways")
            if a != b and key == "bandwidth" and cell != "N/A" and int(cell.rpartition("-")[2]) > 1000 * MAX_GB_PER_S:
                raise at(source, table.lines[a], f"{where}, expected at most {MAX_GB_PER_S} GB/s")


def _numa(lines: list[str], count: int) -> tuple[str, ...]:
    """The NUMA node of every GPU; "" for all of them if one is unknown (−1)."""
    node_of = {int(match[1]): match[2] for line in lines if (match := _NUMA.fullmatch(line)) is not None}
    nodes = [node_of.get(gpu, "-1") for gpu in range(count)]
    return ("",) * count if any(node.startswith("-") for node in nodes) else tuple(nodes)


def _pairs(dump: Dump, kind: str) -> list[tuple[int, int]]:
    cells = dump.tables["type"].cells
    return [(a, b) for a in range(len(cells)) for b in range(a + 1, len(cells)) if cells[a][b] == kind]


def _add_xgmi(box: Assembly, dump: Dump, stated: Stated) -> None:
    pairs = _pairs(dump, "XGMI")
    barred = [pair for pair in pairs if not _accessible(dump, pair)]
    pairs = [pair for pair in pairs if pair not in barred]
    if barred:
        box.notes.append(f"xGMI links left out between GPUs without peer access: {_named(barred)}")
    if not pairs:
        return
    direct = [pair for pair in pairs if dump.number("bandwidth", *pair)]
    if direct:
        _add_rated(box, dump, direct, stated)
    else:
        least = min(dump.number("weight", *pair) or 0 for pair in pairs)
        direct = [pair for pair in pairs if (dump.number("weight", *pair) or 0) == least]
        model, basis = dump.model()
        usual = None if model is None else model.lane_gb_per_s
        rate = stated.rate(box, "xgmi", "an xGMI link", usual or XGMI_GB_PER_S, basis if usual else "MI200")
        dies = [(a, b) for a, b in direct if model is not None and model.dies == 2 and a % 2 == 0 and b == a + 1]
        for a, b in direct:
            box.join(a, b, rate * (_LINKS_OF_DIES if (a, b) in dies else 1), "xgmi")
        if dies:
            box.notes.append(
                f"{_named(dies)}: assumed to be two dies of one module, with {_LINKS_OF_DIES} xGMI links; other pairs "
                "with one, as the weights do not count links"
            )
        if "weight" not in dump.tables:
            box.notes.append("every xGMI pair is assumed to have a direct link, as there is no table of weights")
    if len(direct) < len(pairs):
        box.notes.append(
            f"{len(pairs) - len(direct)} pairs have no direct xGMI link and are connected through other GPUs"
        )


def _add_rated(box: Assembly, dump: Dump, direct: list[tuple[int, int]], stated: Stated) -> None:
    """Links at the driver's rate; with a stated rate, that rate times the driver's number of links."""
    cells = dump.tables["bandwidth"].cells
    usual = Fraction(min(int(cells[a][b].partition("-")[0]) or 1000 * XGMI_GB_PER_S for a, b in direct), 1000)
    for a, b in direct:
        one, every = (Fraction(int(number), 1000) for number in cells[a][b].split("-"))
        links = every / one if one else Fraction(1)
        box.join(a, b, every if stated.xgmi is None else links * stated.xgmi, "xgmi")
    if stated.xgmi is None:
        box.notes.append(f"xGMI links have {float(usual):g} GB/s, as reported by the driver")
    else:
        stated.rate(box, "xgmi", "an xGMI link", usual)


def _accessible(dump: Dump, pair: tuple[int, int]) -> bool:
    access = dump.tables.get("access")
    return access is None or access.cells[pair[0]][pair[1]] in ("True", "ENABLED")


def _named(pairs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{a}–{b}" for a, b in pairs[:8]) + (", …" if len(pairs) > 8 else "")


def _add_pcie(box: Assembly, dump: Dump, stated: Stated) -> None:
    """Add a host for every NUMA node, or for GPUs two hops apart; xGMI pairs give no PCIe distance."""
    gpus = range(len(dump.numa))
    distances = [[0] * len(gpus) for _ in gpus]
    pcie = _pairs(dump, "PCIE")
    for a, b in pcie:
        hops = dump.number("hops", a, b)
        near = hops <= 2 if hops is not None else (dump.number("weight", a, b) or 0) <= 40
        distances[a][b] = distances[b][a] = 3 if near else pcie_tree.SYS
    try:
        hosts = pcie_tree.classes(distances, pcie_tree.NODE)
    except pcie_tree.ContradictionError as contradiction:
        text = f"GPU {contradiction.a} and {contradiction.b} are on different processors, but other GPUs are near both"
        raise at(dump.source, dump.tables["type"].lines[contradiction.a], text) from None
    hosts = pcie_tree.merge_by_affinity(hosts, distances, dump.numa)
    if not dump.numa[0] and len(hosts) == 1 and len(pcie) < len(gpus) * (len(gpus) - 1) // 2:
        box.notes.append(
            f"GPU {ids_text(gpus)} are assumed to share one processor: no cell or NUMA node says otherwise"
        )
    model, _ = dump.model()
    generation = 4 if model is None else model.pcie
    usual = nccl.pcie_gb_per_s(nccl.PCI_SPEED_OF[generation], nccl.PCI_DEFAULT_WIDTH)
    rate = stated.rate(box, "pcie", "the PCIe link of a GPU", usual, f"generation {generation} ×16")
    smp = stated.rate(box, "smp", "the bus between processors", SMP_GB_PER_S) if len(hosts) > 1 else SMP_GB_PER_S
    alone = [[gpu] for gpu in gpus]
    pcie_tree.attach(box, hosts, alone, alone, len(gpus), rate, smp)
    barred = [pair for pair in pcie if not _accessible(dump, pair)]
    if barred:
        box.notes.append(f"PCIe goes through the hosts' memories, without peer access between {_named(barred)}")
        box.vertices = [replace(v, kind="memory") if v.kind == "host" else v for v in box.vertices]
