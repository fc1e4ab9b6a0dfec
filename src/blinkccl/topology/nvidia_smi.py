"""``nvidia-smi topo -m`` text of every vintage: the matrix, and the machine behind it.

Vintages differ: tabs or aligned spaces, SOC for SYS, header names run together, NICs as ``mlx5_0`` or
``NIC0``, more columns behind the matrix, with or without a legend, with the terminal's underlining.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from blinkccl.errors import TopologyError
from blinkccl.topology import pcie_tree
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.limits import MAX_MATRIX_DEVICES, at
from blinkccl.topology.model import Topology
from blinkccl.topology.select import ids_text

#: nvidia-smi names neither the generation of NVLink nor that of PCIe.
LANE_GB_PER_S, NVLINK1_LANE_GB_PER_S = 25, 20
PCIE_GB_PER_S, SMP_GB_PER_S = 12, 10
#: No GPU up to Blackwell has more NVLinks; a matrix that needs more shows an NVSwitch.
MAX_LANES_PER_GPU = 18
NVLINK1_LANES_PER_GPU = 4

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TRAILING = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_HEADER = re.compile(r"\s*GPU0(?:\s*GPU1|\s+(?!X\b)|$|\s*CPU)")
_GPU = re.compile(r"GPU([0-9]{1,4})")
#: What srun -l and pdsh put before every line: a task's number or a node's name.
_LABELLED = re.compile(r" *([\w.-]{1,64}): ?(.*)")
_ROCM = re.compile(r"ROCm System Management Interface|(?:Weight|Hops|Link Type) between two GPUs")


@dataclass(frozen=True)
class Cells:
    """The matrix as read: GPUs first, ``cells[i][j]`` for devices in column order, and where each row was."""

    source: str
    names: tuple[str, ...]
    gpu_count: int
    cells: tuple[tuple[str, ...], ...]
    affinity: tuple[str, ...]
    lines: tuple[int, ...]

    def wrong(self, row: int, text: str) -> TopologyError:
        """The error ``text`` at the line of a row, for ``raise``."""
        return at(self.source, self.lines[row], text)

    def lanes(self, a: int, b: int) -> int:
        """NVLinks between two devices."""
        cell = self.cells[a][b]
        return int(cell[2:]) if cell.startswith("NV") else 0


def looks_like(text: str) -> bool:
    """Whether ``text`` has a header of such a matrix."""
    lines = _ESCAPES.sub("", text).splitlines()[:200]
    return any(map(_is_header, lines)) or any(_label(line) for line in lines)


def parse(text: str, source: str = "nvidia-smi") -> Topology:
    """The machine that a matrix shows; what stands before or after the matrix is passed over.

    NVLinks become direct links, or one NVSwitch vertex where all pairs of a group show the same number of
    lanes and a GPU would need more than 18 of them. PCIe becomes hosts and switches (:mod:`~.pcie_tree`).
    NICs help to find these but are left out, as the matrix does not give their rate.

    Raises
    ------
    TopologyError
        With the line: rows missing or cut short, unknown cells, ``X`` off the diagonal, a pair that differs
        between its two cells, PCIe distances that contradict each other, more lanes than a GPU has.
    """
    matrix = read_cells(text, source)
    box = Assembly(source, "nvidia-smi")
    box.add_many("gpu", matrix.gpu_count, "GPU")
    _add_nvlinks(box, matrix)
    _add_pcie(box, matrix)
    nics = matrix.names[matrix.gpu_count :]
    if nics:
        box.notes.append(f"NICs left out, as nvidia-smi does not give their rate: {', '.join(nics)}")
    return box.finish()


def read_cells(text: str, source: str) -> Cells:
    """The checked matrix: complete, known cells, symmetric."""
    lines = _of_one_node(_ESCAPES.sub("", text).splitlines(), source)
    if _ROCM.search(text):
        raise TopologyError(
            f"{source}: rocm-smi --showtopo is not read: name the machine (mi250), or describe it in our JSON"
        )
    headers = [i for i, line in enumerate(lines) if _is_header(line)]
    if not headers:
        raise TopologyError(
            f'{source}: no header line "GPU0 GPU1 …" found; expected the output of "nvidia-smi topo -m"'
        )
    start = headers[0]
    if len(headers) > 1:
        again = f"a second matrix begins here, the first in line {start + 1}; give one per file"
        raise at(source, headers[1] + 1, again)
    names = _columns(lines[start], source, start + 1)
    rows = _rows(lines, start + 1, names, source)
    _check_complete(rows, names, source)
    found = [rows[name] for name in names]
    gpu_count = sum(1 for name in names if _GPU.fullmatch(name))
    matrix = Cells(
        source,
        tuple(names),
        gpu_count,
        tuple(tuple(row[1][: len(names)]) for row in found),
        tuple(_affinity(row[1][len(names) :]) for row in found),
        tuple(row[0] for row in found),
    )
    _check_cells(matrix)
    return matrix


def _is_header(line: str) -> bool:
    """Whether a matrix begins here; a row of one has its X."""
    return _HEADER.match(line) is not None and "X" not in line.split()


def _label(line: str) -> str:
    """The label before a header line, or nothing."""
    match = _LABELLED.match(line)
    return match[1] if match is not None and _is_header(match[2]) else ""


def _of_one_node(lines: list[str], source: str) -> list[str]:
    """The lines without what ``srun -l`` or ``pdsh`` put before them."""
    labels = list(dict.fromkeys(label for line in lines if (label := _label(line))))
    if not labels:
        return lines
    if len(labels) > 1:
        raise TopologyError(f"{source}: matrices of several nodes: {', '.join(labels[:8])}; give the lines of one")
    matches = [_LABELLED.match(line) for line in lines]
    return [
        match[2] if match is not None and match[1] == labels[0] else line
        for match, line in zip(matches, lines, strict=True)
    ]


def _columns(header: str, source: str, line: int) -> list[str]:
    """Device names of the header, also where a page has glued them together (``GPU7mlx5_0``)."""
    trailing = _TRAILING.search(header)
    names: list[str] = []
    for token in header[: trailing.start() if trailing else None].split():
        while (match := _GPU.match(token)) is not None:
            names.append(match[0])
            token = token[match.end() :]
        if token:
            names.append(token)
    if len(names) > MAX_MATRIX_DEVICES:
        raise at(source, line, f"{len(names)} devices; at most {MAX_MATRIX_DEVICES}")
    if len(set(names)) != len(names):
        double = next(name for i, name in enumerate(names) if name in names[:i])
        raise at(source, line, f"column {double} stands twice in the header")
    numbers = [int(name[3:]) for name in names if _GPU.fullmatch(name)]
    if numbers != list(range(len(numbers))) or not all(_GPU.fullmatch(n) for n in names[: len(numbers)]):
        raise at(
            source,
            line,
            f"expected the columns GPU0 … GPU{max(numbers)} in this order before any NIC, got " + " ".join(names),
        )
    return names


def _rows(lines: list[str], start: int, names: list[str], source: str) -> dict[str, tuple[int, list[str]]]:
    """Line number and cells by device; what follows an empty line is a legend unless it names a device."""
    known = set(names)
    rows: dict[str, tuple[int, list[str]]] = {}
    inside = True
    for number, line in enumerate(lines[start:], start + 1):
        tokens = line.split()
        if not tokens:
            inside = inside and not rows
            continue
        if tokens[0].startswith("Legend"):
            break
        if tokens[0] not in known:
            if inside:
                raise at(source, number, f"row {tokens[0]!r} is none of the columns {' '.join(names)}")
            continue
        if tokens[0] in rows:
            raise at(source, number, f"row {tokens[0]} stands twice, first in line {rows[tokens[0]][0]}")
        if len(tokens) - 1 < len(names):
            raise at(
                source,
                number,
                f"row {tokens[0]} has {len(tokens) - 1} cells, expected {len(names)}; it looks cut short",
            )
        rows[tokens[0]] = number, tokens[1:]
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
    """The CPU affinity of a row, or nothing where the row has none (NICs) or says N/A."""
    return "" if not trailing or trailing[0] == "N/A" else trailing[0]


def _check_cells(matrix: Cells) -> None:
    for i, row in enumerate(matrix.cells):
        for j, cell in enumerate(row):
            nvlink = max(i, j) < matrix.gpu_count and re.fullmatch(r"NV[1-9][0-9]?", cell)
            if not (cell == "X" if i == j else cell in pcie_tree.DISTANCE or nvlink):
                wanted = "X" if i == j else f"{', '.join(pcie_tree.DISTANCE)} or (between GPUs) NV#"
                raise matrix.wrong(i, f"cell {matrix.names[i]} × {matrix.names[j]} is {cell!r}, expected {wanted}")
    for i, row in enumerate(matrix.cells):
        for j in range(i):
            if row[j] != matrix.cells[j][i]:
                raise matrix.wrong(
                    i,
                    f"{matrix.names[i]} × {matrix.names[j]} is {row[j]}, but {matrix.cells[j][i]} the other way round "
                    f"in line {matrix.lines[j]}; a matrix is symmetric",
                )


def _add_nvlinks(box: Assembly, matrix: Cells) -> None:
    gpus = range(matrix.gpu_count)
    lanes = [[matrix.lanes(a, b) for b in gpus] for a in gpus]
    if not any(map(any, lanes)):
        return
    lane = _lane_gb_per_s(box, matrix, max(sum(row) for row in lanes))
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
            box.notes.append(f"GPU {ids_text(group)}: {first} lanes to every other are {first} lanes to an NVSwitch")
        else:
            worst = max(group, key=lambda a: sum(lanes[a]))
            raise matrix.wrong(
                worst,
                f"GPU{worst} shows {sum(lanes[worst])} NVLinks; a GPU has at most {MAX_LANES_PER_GPU}, and for an "
                "NVSwitch all pairs would show the same number",
            )


def _lane_gb_per_s(box: Assembly, matrix: Cells, most_lanes: int) -> int:
    """Nominal rate of a lane: drivers that say SOC date from the P100, whose GPUs have four NVLinks 1."""
    old = any("SOC" in row for row in matrix.cells) and most_lanes <= NVLINK1_LANES_PER_GPU
    lane = NVLINK1_LANE_GB_PER_S if old else LANE_GB_PER_S
    which = "NVLink 1, as the driver is that old" if old else "NVLink 2 to 4"
    box.notes.append(f"an NVLink lane is taken as {lane} GB/s ({which}); nvidia-smi does not say")
    return lane


def _add_pcie(box: Assembly, matrix: Cells) -> None:
    distances = [[pcie_tree.DISTANCE.get(cell, 0) for cell in row] for row in matrix.cells]
    try:
        pix, pxb, node = pcie_tree.levels(distances)
    except pcie_tree.ContradictionError as found:
        raise _contradiction(matrix, found) from None
    hosts = pcie_tree.merge_by_affinity(node, distances, matrix.affinity)
    pcie_tree.attach(box, hosts, pxb, pix, matrix.gpu_count, PCIE_GB_PER_S, SMP_GB_PER_S)
    box.notes.append(
        f"PCIe is taken as generation 3 ×16, {PCIE_GB_PER_S} GB/s, and the bus between processors as {SMP_GB_PER_S} "
        "GB/s; nvidia-smi does not say"
    )


def _contradiction(matrix: Cells, found: pcie_tree.ContradictionError) -> TopologyError:
    a, b = found.a, found.b
    nearer = next(name for name, distance in reversed(pcie_tree.DISTANCE.items()) if distance <= found.limit)
    return matrix.wrong(
        a,
        f"{matrix.names[a]} × {matrix.names[b]} is {matrix.cells[a][b]}, but other cells put both within {nearer} of "
        f"each other (see line {matrix.lines[b]})",
    )
