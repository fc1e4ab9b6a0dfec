"""The matrix of a topology, in the form of nvidia-smi."""

from blinkccl.show.topology_text import LEGEND, LinkMatrix, matrix, topology_text
from blinkccl.topology import nvidia_smi
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.probe import this_host
from blinkccl.topology.spec import parse_spec


def cell(shown: LinkMatrix, row: int, column: int) -> str:
    return shown.rows[row][column + 1]


def test_a_dgx_1v_prints_the_matrix_of_nvidia_smi() -> None:
    shown = matrix(parse_spec("dgx-1v"))
    assert shown.header == ("", *(f"GPU{i}" for i in range(8)))
    again = nvidia_smi.parse("\n".join("\t".join(row) for row in (shown.header, *shown.rows)) + "\n")
    assert [x for x in again.links if x.kind == "nvlink"]
    assert matrix(again).rows == shown.rows


def test_classes_of_paths() -> None:
    box = matrix(parse_spec("pcie-8gpu"))
    assert [cell(box, 0, i) for i in (0, 1, 2, 4)] == ["X", "PIX", "PHB", "SYS"]
    assert cell(matrix(parse_spec("dgx-2")), 3, 9) == "NV6"
    assert cell(matrix(parse_spec("dgx-1p")), 0, 1) == "NV1"
    assert cell(matrix(parse_spec("hgx-h100")), 0, 1) == "NV18"
    assert [cell(matrix(parse_spec("mi250")), 0, i) for i in (1, 2)] == ["XGMI4", "XGMI1"]
    assert [cell(matrix(parse_spec("mist")), 0, i) for i in (1, 2)] == ["NV3", "SYS"]
    assert cell(matrix(parse_spec("ring:4")), 0, 2) == "-"


def test_bridges_behind_bridges() -> None:
    vertices = (Vertex(0, "gpu"), Vertex(1, "gpu"), Vertex(2, "switch"), Vertex(3, "switch"))
    links = tuple(
        Link(s, d, 1, "pcie", 12.0, "declared") for a, b in ((0, 2), (2, 3), (3, 1)) for s, d in ((a, b), (b, a))
    )
    assert cell(matrix(Topology("two", 12.0, vertices, links)), 0, 1) == "PXB"


def test_c2c_and_odd_lanes() -> None:
    vertices = (Vertex(0, "gpu"), Vertex(1, "gpu"), Vertex(2, "gpu"))
    links = (
        Link(0, 1, 3, "c2c", 33.0, "declared"),
        Link(1, 2, 3, "nvlink", 33.0, "declared"),
        Link(2, 1, 1, "nvlink", 11.0, "declared"),
    )
    shown = matrix(Topology("odd", 11.0, vertices, links))
    assert (cell(shown, 0, 1), cell(shown, 1, 2), cell(shown, 2, 1), cell(shown, 1, 0)) == ("C2C", "NV3", "NV1", "-")


def test_several_servers_get_a_column() -> None:
    shown = matrix(parse_spec("2x dgx-1v @ 40Gbps"))
    assert shown.header[-1] == "server"
    assert [row[-1] for row in shown.rows] == ["0"] * 8 + ["1"] * 8
    assert cell(shown, 0, 8) == "NET"
    assert cell(shown, 0, 7) == "SYS"


def test_a_host_without_gpus() -> None:
    shown = matrix(this_host([0, 3], [0]))
    assert shown.header == ("", "CPU0", "CPU1")
    assert cell(shown, 0, 1) == "SHM"


def test_every_cell_is_in_the_legend() -> None:
    marks = tuple(mark.rstrip("#") for mark, _ in LEGEND)
    for spec in ("dgx-1v", "mi250", "mist", "2x pcie-8gpu @ 40Gbps", "ring:5"):
        shown = matrix(parse_spec(spec))
        cells = [c for row in shown.rows for c in row[1 : len(shown.rows) + 1]]
        assert all(c.rstrip("0123456789") in marks for c in cells)


def test_legend_of_phb_and_title() -> None:
    text = "\tGPU0\tGPU1\nGPU0\t X \tNODE\nGPU1\tNODE\t X \n"
    shown = topology_text(nvidia_smi.parse(text, "two"))
    assert "two: 2 GPUs, 1 host bridge" in shown
    assert "PHB    PCIe and a host bridge; nvidia-smi marks several of one NUMA node (NODE)" in shown


def test_a_path_through_a_hosts_memory_crosses_the_host() -> None:
    vertices = (Vertex(0, "gpu"), Vertex(1, "gpu"), Vertex(2, "memory"))
    links = tuple(Link(*ends, 1, "pcie", 1.0, "declared") for ends in ((0, 2), (2, 0), (1, 2), (2, 1)))
    assert cell(matrix(Topology("x", 1.0, vertices, links)), 0, 1) == "PHB"


def test_eighteen_nvlinks_of_a_blackwell() -> None:
    """900 GB/s are not 36 lanes of 25 GB/s, since no GPU has that many."""
    vertices = (Vertex(0, "gpu"), Vertex(1, "gpu"), Vertex(2, "switch"))
    links = tuple(Link(*ends, 1, "nvlink", 900.0, "declared") for ends in ((0, 2), (2, 0), (1, 2), (2, 1)))
    assert cell(matrix(Topology("x", 900.0, vertices, links)), 0, 1) == "NV18"
