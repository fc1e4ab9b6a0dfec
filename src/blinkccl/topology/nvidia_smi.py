"""Reader of the matrix printed by ``nvidia-smi topo -m``, in all its versions.

Versions differ in separators (tabs or spaces), names of NICs (``mlx5_0`` or ``NIC0``), additional columns, and the
legend. Some write SOC for SYS. Header names may run together. A terminal or a mail may have added
underlining and line breaks. Other tools print the GPUs' product names above the matrix, which imply rates
(:mod:`~.gpu_models`).
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
from blinkccl.topology.launchers import MANY_NODES, label_of, of_one_node, without_escapes
from blinkccl.topology.limits import MAX_MATRIX_DEVICES, at
from blinkccl.topology.model import Topology
from blinkccl.topology.select import ids_text
from blinkccl.topology.stated import NOTHING, Stated

#: Usual rates; nvidia-smi names neither the generation of NVLink nor that of PCIe.
LANE_GB_PER_S = 25
#: Between processors by the PCIe of their time, with the processors for which NCCL counts it.
SMP_GB_PER_S = {3: (10, "QPI or UPI"), 4: (24, "AMD's family 25"), 5: (22, "Sapphire Rapids")}
#: The GPU with this number of NVLinks, and the words for it. Blackwell has 18 too, with twice the rate.
_BY_LANES = {
    6: ("V100", "6 NVLinks: V100"),
    8: ("H800", "8 NVLinks to an NVSwitch: H800 rather than A800"),
    12: ("A100", "12 NVLinks: A100"),
    18: ("H100", "18 NVLinks: Hopper; Blackwell has 50 GB/s"),
}
GRACE_SMP_GB_PER_S = 6
#: Most NVLinks of a GPU up to Blackwell; a matrix that needs more shows an NVSwitch.
MAX_LANES_PER_GPU = 18
NVLINK1_LANES_PER_GPU = 4
#: Lines in which the header must be.
MAX_LINES_ABOVE = 2000
#: Characters of a line after its parts are joined again.
MAX_LINE = 16_384

#: The note of a matrix whose GPUs share memory with their processors.
GRACE_NOTE = "the C2C links between GPUs and processors are left out, as no cell shows them"

_TRAILING = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID")
#: The name of another column, such as NUMA: devices have a number.
_OTHER = re.compile(r"(?<=\s)[A-Za-z]+(?=\s|$)")
_HEADER = re.compile(r"\s*GPU0(?:\s*GPU1|\s+(?!X\b)|$|\s*CPU)")
_GPU = re.compile(r"GPU([0-9]{1,4})")
#: NICs whose names run together.
_GLUED = re.compile(r"([A-Za-z]+[0-9]?_?)[0-9]{1,3}(?:\1[0-9]{1,3})+")
_CELL = re.compile(rf"X|NV[0-9]{{1,3}}|{'|'.join(pcie_tree.DISTANCE)}")
#: A cell or a device. A break inside a word is recognised because its two parts are not both of this form.
_WHOLE = re.compile(rf"{_CELL.pattern}|[A-Za-z]\w*[0-9]")
#: Beginning of a line that is not a continuation of the row before.
_DEVICE = re.compile(r"GPU[0-9]|NIC[0-9]|\w+_")
_NIC_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4})\s*[:=]\s*(\S{1,64})\s*")


@dataclass(frozen=True)
class Cells:
    """The checked matrix: GPUs first, ``cells[i][j]`` for devices in column order, and the line of each row."""

    source: str
    names: tuple[str, ...]
    gpu_count: int
    cells: tuple[tuple[str, ...], ...]
    affinity: tuple[str, ...]
    lines: tuple[int, ...]
    #: True for GPUs whose memory is a NUMA node of its own: they share memory with Grace or POWER9 processors.
    gpu_numa: tuple[bool, ...]
    #: Names in the legend, such as that of ``NIC0``.
    nic_names: tuple[tuple[str, str], ...]
    #: Distinct product names of the GPUs in the text around the matrix.
    products: tuple[str, ...] = ()

    def wrong(self, row: int, text: str) -> TopologyError:
        """A TopologyError with ``text`` and the line of a row."""
        return at(self.source, self.lines[row], text)

    def lanes(self, a: int, b: int) -> int:
        """NVLinks between two devices."""
        cell = self.cells[a][b]
        return int(cell[2:]) if cell.startswith("NV") else 0

    def model(self) -> tuple[GpuModel | None, str]:
        """The GPUs' oldest product and its source in words: names, or else what NVLinks and memories imply.

        Drivers that print SOC date from the P100, whose GPUs have four NVLinks. Processors that share memory with two
        GPUs are Grace, with Blackwells.
        """
        named = [(model, name) for name in self.products if (model := gpu_model(name)) is not None]
        if named:
            return min(named, key=lambda pair: pair[0].sm or 0)
        gpus = range(self.gpu_count)
        sums = [sum(self.lanes(a, b) for b in gpus if b != a) for a in gpus]
        lanes = (
            max(max(row) for row in [[self.lanes(a, b) for b in gpus] for a in gpus]) if self.switched else max(sums)
        )
        if any("SOC" in row for row in self.cells) and 0 < lanes <= NVLINK1_LANES_PER_GPU:
            return gpu_model("P100"), "NVLink 1, as the driver is that old"
        shared = [self.affinity[gpu] for gpu in gpus if self.gpu_numa[gpu] and self.affinity[gpu]]
        if lanes >= MAX_LANES_PER_GPU and len(set(shared)) < len(shared):
            return gpu_model("GB200"), "NVLink 5, as two GPUs share memory with one processor: Grace Blackwell"
        known = lanes == MAX_LANES_PER_GPU or (self.gpu_count > 2 and (lanes != 8 or self.switched))
        name, basis = _BY_LANES.get(lanes, ("", "")) if known else ("", "")
        return gpu_model(name), basis

    @property
    def without_peers(self) -> bool:
        """True if a product of the GPUs has no P2P over PCIe."""
        return any((model := gpu_model(name)) is not None and not model.peers for name in self.products)

    @property
    def switched(self) -> bool:
        """True if a GPU shows more NVLinks than it has, so they lead to an NVSwitch."""
        gpus = range(self.gpu_count)
        return any(sum(self.lanes(a, b) for b in gpus if b != a) > MAX_LANES_PER_GPU for a in gpus)


def looks_like(text: str, within: int = MAX_LINES_ABOVE) -> bool:
    """True if the first lines contain the header of such a matrix, perhaps below a report's lists of packages."""
    lines = without_escapes(text)[:within]
    return any(map(_is_header, lines)) or any(label_of(line, _is_header) for line in lines)


def parse(text: str, source: str = "nvidia-smi", stated: Stated = NOTHING) -> Topology:
    """The machine that a matrix describes; text before or after the matrix is ignored.

    NVLinks become direct links. If a GPU would need more than 18 of them, and all pairs of a group show the same
    number, they become links to one NVSwitch vertex. Product names in the text around the matrix, or else the number
    of NVLinks, imply the generation of NVLink and PCIe. PCIe becomes hosts and switches (:mod:`~.pcie_tree`). NICs
    help to find these; with a ``stated`` rate they become vertices, joined to their nearest GPUs
    (:func:`.pcie_tree.add_nics`). Other rates have usual values by default.

    Raises
    ------
    TopologyError
        With the line: missing or truncated rows, unknown cells, ``X`` off the diagonal, two different cells for
        one pair, contradictory PCIe distances, more lanes than a GPU has, a second matrix.
    """
    matrix = read_cells(text, source)
    box = Assembly(source, "nvidia-smi")
    model, _ = matrix.model()
    contradicted = model is None or stated.nvlink not in (None, model.lane_gb_per_s)
    sm = None if contradicted or model is None else model.sm
    for gpu in range(matrix.gpu_count):
        box.add("gpu", f"GPU{gpu}", sm=sm, peers=not matrix.without_peers)
    if matrix.without_peers:
        box.notes.append(
            "these GPUs have no P2P over PCIe (GeForce: NVIDIA's driver grants none), so plans over PCIe go through "
            "the hosts' memories (--links staged)"
        )
    _add_nvlinks(box, matrix, stated)
    hosts = _add_pcie(box, matrix, stated)
    _add_nics(box, matrix, hosts, stated)
    stated.declare(box)
    return box.finish()


def read_cells(text: str, source: str) -> Cells:
    """The matrix, checked: complete, with known cells, and symmetric."""
    lines = of_one_node(without_escapes(text), _is_header, source)
    headers = [i for i, line in enumerate(lines) if _is_header(line)]
    if not headers:
        raise TopologyError(f'{source}: no header line "GPU0 GPU1 …"; expected the output of "nvidia-smi topo -m"')
    start = headers[0]
    if len(headers) > 1:
        again = f"a second matrix begins, the first is in line {start + 1}; {MANY_NODES}"
        raise at(source, headers[1] + 1, again)
    header, body = _header(lines, start)
    names = _columns(header, source, start + 1)
    rows = _rows(lines, body, names, source)
    _check_complete(rows, names, source)
    ordered = [rows[name] for name in names]
    gpu_count = sum(1 for name in names if _GPU.fullmatch(name))
    own_memory = re.search(r"GPU\s*NUMA\s*ID", header) is not None
    trailing = [row[1][len(names) :] for row in ordered]
    matrix = Cells(
        source,
        tuple(names),
        gpu_count,
        tuple(tuple(row[1][: len(names)]) for row in ordered),
        tuple(map(_affinity, trailing)),
        tuple(row[0] for row in ordered),
        tuple(own_memory and len(row) > 2 and row[-1].isdigit() for row in trailing),
        tuple((match[1], match[2]) for line in lines if (match := _NIC_LEGEND.fullmatch(line)) is not None),
        names_in(lines),
    )
    _check_cells(matrix)
    return matrix


def _is_header(line: str) -> bool:
    """True if a matrix begins with this line; rows contain an X, headers do not."""
    return _HEADER.match(line) is not None and "X" not in line.split()


def _header(lines: list[str], start: int) -> tuple[str, int]:
    """The header with its broken-off parts, and the index of the first row: the first line with a cell."""
    header, line = lines[start], start + 1
    while line < len(lines) and (tokens := lines[line].split()) and not any(map(_CELL.fullmatch, tokens)):
        if len(header) > MAX_LINE or not all(re.fullmatch(r"\w+", token) for token in tokens):
            break
        header, line = _mended(header, lines[line]), line + 1
    return header, line


def _mended(line: str, rest: str) -> str:
    """Join a line and its broken-off part, with a space between them unless the break is inside a word."""
    if not line or line[-1].isspace() or rest[0].isspace():
        return f"{line} {rest}"
    end, begin = line[-64:].split()[-1], rest[:64].split()[0]
    whole = _WHOLE.fullmatch(end) and (_WHOLE.fullmatch(begin) or re.match(r"[0-9]+[-,]|N/A", begin))
    return f"{line}{' ' if whole else ''}{rest}"


def _columns(header: str, source: str, line: int) -> list[str]:
    """Device names of the header, also of headers without spaces between them (``GPU7mlx5_0``, ``NIC0NIC1``)."""
    for trailing in (_TRAILING, _OTHER):
        header = trailing.split(header, maxsplit=1)[0]
    names: list[str] = []
    for token in header.split():
        while (match := _GPU.match(token)) is not None:
            names.append(match[0])
            token = token[match.end() :]
        glued = _GLUED.fullmatch(token)
        if glued is not None:
            names.extend(re.findall(rf"{re.escape(glued[1])}[0-9]{{1,3}}", token))
        elif token:
            names.append(token)
    if len(names) > MAX_MATRIX_DEVICES:
        raise at(source, line, f"{len(names)} devices; at most {MAX_MATRIX_DEVICES}")
    if len(set(names)) != len(names):
        double = next(name for i, name in enumerate(names) if name in names[:i])
        raise at(source, line, f"column {double} appears twice in the header")
    numbers = [int(name[3:]) for name in names if _GPU.fullmatch(name)]
    if numbers != list(range(len(numbers))) or not all(_GPU.fullmatch(n) for n in names[: len(numbers)]):
        raise at(
            source,
            line,
            f"expected the columns GPU0 … GPU{max(numbers)} in this order before any NIC, got " + " ".join(names),
        )
    return names


def _rows(lines: list[str], start: int, names: list[str], source: str) -> dict[str, tuple[int, list[str]]]:
    """Line number and cells by device; text after an empty line is a legend unless it names a device."""
    known = set(names)
    texts: dict[str, tuple[int, str]] = {}
    last = ""
    for number, line in enumerate(lines[start:], start + 1):
        tokens = line.split()
        if not tokens:
            last = last and "\n"
            continue
        if tokens[0].startswith("Legend"):
            break
        if tokens[0] in texts:
            raise at(source, number, f"row {tokens[0]} appears twice, first in line {texts[tokens[0]][0]}")
        if tokens[0] in known:
            last = tokens[0]
            texts[last] = number, line
        elif last in texts and not _DEVICE.match(tokens[0]) and len(texts[last][1]) <= MAX_LINE:
            texts[last] = texts[last][0], _mended(texts[last][1], line)
        elif last != "\n":
            raise at(source, number, f"row {tokens[0]!r} is not among the columns {' '.join(names)}")
    rows = {name: (number, text.split()[1:]) for name, (number, text) in texts.items()}
    for name, (number, cells) in rows.items():
        if len(cells) < len(names):
            raise at(source, number, f"row {name} has {len(cells)} cells, expected {len(names)}; it looks truncated")
    return rows


def _check_complete(rows: dict[str, tuple[int, list[str]]], names: list[str], source: str) -> None:
    missing = [name for name in names if name not in rows]
    if not missing:
        return
    gpus = [int(name[3:]) for name in missing if _GPU.fullmatch(name)]
    nics = [name for name in missing if not _GPU.fullmatch(name)]
    columns = sum(1 for name in names if _GPU.fullmatch(name))
    parts = []
    if gpus:
        parts.append(f"{len(gpus)} of {columns} GPU rows are missing (GPU {ids_text(gpus)})")
    if nics:
        parts.append(f"{len(nics)} of {len(names) - columns} NIC rows are missing ({', '.join(nics)})")
    last = max((number for number, _ in rows.values()), default=1)
    raise at(
        source, last, f'the matrix ends here, but {" and ".join(parts)}; give the whole output of "nvidia-smi topo -m"'
    )


def _affinity(trailing: Sequence[str]) -> str:
    """The CPU affinity of a row; "" for rows without one (NICs) and for N/A."""
    return "" if not trailing or trailing[0] == "N/A" else trailing[0]


def _check_cells(matrix: Cells) -> None:
    for i, row in enumerate(matrix.cells):
        for j, cell in enumerate(row):
            nvlink = max(i, j) < matrix.gpu_count and re.fullmatch(r"NV[1-9][0-9]?", cell)
            if not (cell == "X" if i == j else cell in pcie_tree.DISTANCE or nvlink):
                expected = "X" if i == j else f"{', '.join(pcie_tree.DISTANCE)} or (between GPUs) NV#"
                raise matrix.wrong(i, f"cell {matrix.names[i]} × {matrix.names[j]} is {cell!r}, expected {expected}")
    for i, row in enumerate(matrix.cells):
        for j in range(i):
            if row[j] != matrix.cells[j][i]:
                raise matrix.wrong(
                    i,
                    f"{matrix.names[i]} × {matrix.names[j]} is {row[j]}, but {matrix.cells[j][i]} the other way "
                    f"in line {matrix.lines[j]}; a matrix is symmetric",
                )


def _add_nvlinks(box: Assembly, matrix: Cells, stated: Stated) -> None:
    gpus = range(matrix.gpu_count)
    lanes = [[matrix.lanes(a, b) for b in gpus] for a in gpus]
    if not any(map(any, lanes)):
        return
    model, basis = matrix.model()
    rated = model is not None and model.lane_gb_per_s is not None
    usual = model.lane_gb_per_s if model is not None and model.lane_gb_per_s is not None else LANE_GB_PER_S
    lane = stated.rate(box, "nvlink", "an NVLink lane", usual, basis if rated else "NVLink 2 to 4")
    for group in pcie_tree.classes([[int(x > 0) for x in row] for row in lanes], 1):
        if len(group) == 1:
            continue
        first = lanes[group[0]][group[1]]
        needed = max(sum(lanes[a]) for a in group)
        if needed <= MAX_LANES_PER_GPU:
            for a in group:
                for b in group:
                    if a < b and lanes[a][b]:
                        box.join(a, b, lanes[a][b] * lane, "nvlink")
        elif all(lanes[a][b] == first for a in group for b in group if a != b):
            box.join_all(group, box.add("switch", "NVSwitch"), first * lane, "nvlink")
            box.notes.append(
                f"GPU {ids_text(group)}: every pair shows {first} lanes, more in sum than a GPU has, so these are the "
                f"{first} lanes from each GPU to an NVSwitch"
            )
        else:
            worst = max(group, key=lambda a: sum(lanes[a]))
            raise matrix.wrong(
                worst,
                f"GPU{worst} shows {sum(lanes[worst])} NVLinks, but a GPU has at most {MAX_LANES_PER_GPU}; with an "
                "NVSwitch all pairs would show the same number",
            )


def _pcie(generation: int) -> Fraction:
    """GB/s of ×16."""
    return nccl.pcie_gb_per_s(nccl.PCI_SPEED_OF[generation], nccl.PCI_DEFAULT_WIDTH)


def _of_rate(gb_per_s: Fraction | None) -> int:
    """The generation of PCIe in which ×16 carries this rate or nearly so: 3, 4 or 5; 3 for an unknown rate."""
    return next((gen for gen in (5, 4) if gb_per_s is not None and gb_per_s >= _pcie(gen)), 3)


def _add_pcie(box: Assembly, matrix: Cells, stated: Stated) -> list[list[int]]:
    """Add the PCIe tree; return the GPUs of each host."""
    distances = _distances(matrix)
    try:
        pix, pxb, node = pcie_tree.levels(distances)
    except pcie_tree.ContradictionError as contradiction:
        raise _contradiction(matrix, contradiction) from None
    hosts = pcie_tree.merge_by_affinity(node, distances, matrix.affinity)
    model, basis = matrix.model()
    # A NIC with more than PCIe 3 ×16 carries shows a machine of a later generation.
    generation = _of_rate(stated.nic) if model is None else model.pcie
    why = f"generation {generation} ×16" + (f", as {basis} has" if matrix.products else "")
    usual = _pcie(generation)
    pcie = stated.rate(box, "pcie", "the PCIe link of a GPU", usual, why)
    groups = [gpus for host in hosts if (gpus := [device for device in host if device < matrix.gpu_count])]
    bus, processors = SMP_GB_PER_S[generation if stated.pcie is None else _of_rate(pcie)]
    if any(matrix.gpu_numa) and generation == 5:
        bus, processors = GRACE_SMP_GB_PER_S, "Grace, as NCCL counts it"
    smp = stated.rate(box, "smp", "the bus between processors", bus, processors) if len(groups) > 1 else Fraction(bus)
    pcie_tree.attach(box, hosts, pxb, pix, matrix.gpu_count, pcie, smp)
    if any("NODE" in row for row in matrix.cells):
        box.notes.append("several host bridges of a NUMA node (NODE) are treated as one (PHB)")
    if any(matrix.gpu_numa):
        box.notes.append(GRACE_NOTE)
    return groups


def _distances(matrix: Cells) -> list[list[int]]:
    return [[pcie_tree.DISTANCE.get(cell, 0) for cell in row] for row in matrix.cells]


def _add_nics(box: Assembly, matrix: Cells, hosts: list[list[int]], stated: Stated) -> None:
    """Add NICs. Several that are SYS from all GPUs are dealt over the processors, as no cell shows their place."""
    gpus, legend = range(matrix.gpu_count), dict(matrix.nic_names)
    distances = _distances(matrix)
    nics = []
    for nic in range(matrix.gpu_count, len(matrix.names)):
        near = min(distances[nic][gpu] for gpu in gpus)
        name = legend.get(matrix.names[nic], matrix.names[nic])
        nics.append(pcie_tree.Nic(name, near, [gpu for gpu in gpus if distances[nic][gpu] == near]))
    if len(hosts) > 1 and len(nics) > 1 and all(nic.distance == pcie_tree.SYS for nic in nics):
        each = -(-len(nics) // len(hosts))
        nics = [replace(nic, gpus=hosts[number // each]) for number, nic in enumerate(nics)]
        if stated.nic is not None:
            box.notes.append(
                f"the {len(nics)} NICs are assumed to be dealt over the processors in their order, as the matrix shows "
                "SYS from each to all GPUs"
            )
    pcie_tree.add_nics(box, nics, stated)


def _contradiction(matrix: Cells, contradiction: pcie_tree.ContradictionError) -> TopologyError:
    a, b = contradiction.a, contradiction.b
    nearer = next(name for name, distance in reversed(pcie_tree.DISTANCE.items()) if distance <= contradiction.limit)
    return matrix.wrong(
        a,
        f"{matrix.names[a]} × {matrix.names[b]} is {matrix.cells[a][b]}, but other cells put both within {nearer} of "
        f"each other (see line {matrix.lines[b]})",
    )
