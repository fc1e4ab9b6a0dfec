"""nvidia-smi topo -m of all versions: Blink's samples, and the shared folder's if it exists."""

from pathlib import Path

import networkx as nx
import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl import nccl_today
from blinkccl.cost.baselines.nccl_links import PIX, PXB, kind_of
from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_xml, nccl_xml_write, nvidia_smi
from blinkccl.topology.catalog import CUBE_MESH, machine
from blinkccl.topology.formats import read_topology
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import Topology
from blinkccl.topology.select import joining_links, network_for
from blinkccl.topology.stated import NOTHING, parse_stated
from blinkccl.trees.algorithms.request import Request
from support.topology_dumps import Machine, wrapped
from support.topology_dumps import nvidia_smi as printed

OURS = Path(nvidia_smi.__file__).parent / "fixtures"


def sample(name: str) -> str:
    return (OURS / name).read_text()


def nvlinks(topology: Topology) -> dict[tuple[int, int], float]:
    return {(x.src, x.dst): x.gb_per_s for x in topology.links if x.kind == "nvlink"}


def small(*rows: str, header: str = "\tGPU0\tGPU1\tCPU Affinity") -> str:
    return "\n".join([header, *rows]) + "\n"


def test_the_newest_version_gives_the_catalogs_dgx_1v() -> None:
    topology = nvidia_smi.parse(sample("dgx-1v.nvidia-smi.txt"))
    assert nvlinks(topology) == nvlinks(machine("dgx-1v"))
    assert sorted(x.gb_per_s for x in topology.links) == sorted(x.gb_per_s for x in machine("dgx-1v").links)
    assert {x.provenance for x in topology.links} == {"nvidia-smi"}
    assert any("mlx5_0, mlx5_1, mlx5_2, mlx5_3" in note for note in topology.notes)


def test_the_oldest_version_gives_the_catalogs_dgx_1p() -> None:
    """SOC, a header without spaces, and one affinity for all GPUs, which must not override SOC."""
    topology = nvidia_smi.parse(sample("dgx-1p-old-driver.nvidia-smi.txt"))
    assert nvlinks(topology) == nvlinks(machine("dgx-1p"))
    assert sum(v.kind == "host" for v in topology.vertices) == 2
    read, known = ([x.kind for x in t.links].count("pcie") for t in (topology, machine("dgx-1p")))
    assert read == known


def test_equal_cells_beyond_eighteen_lanes_are_an_nvswitch() -> None:
    topology = nvidia_smi.parse(sample("dgx-2.nvidia-smi.txt"))
    switch = next(v.id for v in topology.vertices if v.label == "NVSwitch")
    assert nvlinks(topology) == {pair: 150.0 for g in range(16) for pair in ((g, switch), (switch, g))}


def test_few_lanes_are_direct_links() -> None:
    topology = nvidia_smi.parse(sample("hgx-a100-4gpu-terminal.nvidia-smi.txt"))
    assert nvlinks(topology) == {(a, b): 100.0 for a in range(4) for b in range(4) if a != b}


def test_pcie_cells_become_switches_and_hosts() -> None:
    topology = nvidia_smi.parse(sample("pcie-8gpu.nvidia-smi.txt"))
    transit = [v.kind for v in topology.vertices if topology.is_transit(v.id)]
    assert transit == ["host", "switch", "switch"] * 2
    assert {x.kind for x in topology.links} == {"pcie", "smp"}


def test_bridges_in_a_row_become_two_levels() -> None:
    names = [f"GPU{i}" for i in range(4)]
    cells = [["X" if i == j else "PIX" if i // 2 == j // 2 else "PXB" for j in range(4)] for i in range(4)]
    rows = ["\t".join([names[i], *cells[i]]) for i in range(4)]
    topology = nvidia_smi.parse(small(*rows, header="\t" + "\t".join(names)))
    assert sum(v.kind == "switch" for v in topology.vertices) == 3
    assert sum(v.kind == "host" for v in topology.vertices) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (small("GPU0\tX\tNV1\t0", "GPU1\tNV2\tX\t0"), "line 3: GPU1 × GPU0 is NV2, but NV1 .* line 2; .* symmetric"),
        (small("GPU0\tX\tNV1", "GPU1\tNV1\tPIX"), "line 3: cell GPU1 × GPU1 is 'PIX', expected X"),
        (small("GPU0\tX\tX", "GPU1\tX\tX"), "line 2: cell GPU0 × GPU1 is 'X', expected PIX"),
        (small("GPU0\tX\tNV0", "GPU1\tNV0\tX"), "line 2: .*'NV0'"),
        (small("GPU0\tX\tNV999", "GPU1\tNV999\tX"), "line 2: .*'NV999'"),
        (small("GPU0\tX\tnan", "GPU1\tnan\tX"), "line 2: .*'nan'"),
        (small("GPU0\tX\t-1", "GPU1\t-1\tX"), "line 2: .*'-1'"),
        (small("GPU0\tX"), "line 2: row GPU0 has 1 cells, expected 2"),
        (small("GPU0\tX\tPHB"), r"line 2: .*1 of 2 GPU rows are missing \(GPU 1\)"),
        (small(), "line 1: .*2 of 2 GPU rows"),
        (small("GPU0\tX\tPHB", "GPU0\tX\tPHB"), "line 3: row GPU0 appears twice, first in line 2"),
        (small("GPU0\tX\tPHB", "GPU7\tPHB\tX"), "line 3: row 'GPU7' is not among the columns"),
        (small("GPU0\tX\tPHB", "GPU1\tPHB\tX", header="\tGPU0\tGPU1\tGPU1"), "line 1: column GPU1 appears twice"),
        (small(header="\tGPU0\tGPU1\tGPU3"), "line 1: expected the columns GPU0 … GPU3"),
        (small(header="\tGPU0\tGPU1\tmlx5_0\tGPU2"), "line 1: expected the columns GPU0 … GPU2 in this order before"),
        (small("GPU0\tX\tPIX\tPIX", "GPU1\tPIX\tX\tPIX", header="\tGPU0\tGPU1\tNIC0"), "1 of 1 NIC rows are missing"),
        (
            small("GPU0\tX\tPIX\tNV1", "GPU1\tPIX\tX\tPIX", "NIC0\tNV1\tPIX\tX", header="\tGPU0\tGPU1\tNIC0"),
            "line 2: cell GPU0 × NIC0 is 'NV1'",
        ),
        (
            small("GPU0\tX\tSYS\tPIX", "GPU1\tSYS\tX\tPIX", "NIC0\tPIX\tPIX\tX", header="\tGPU0\tGPU1\tNIC0"),
            "line 2: GPU0 × GPU1 is SYS, but other cells put both within PIX",
        ),
        ("nothing here", "no header line"),
        (small("GPU0\tX\tPHB", *["SYS " * 999] * 99, "GPU1\tPHB\tX"), "line 8: row 'SYS' is not among the columns"),
        ("\t" + "\t".join(f"GPU{i}" for i in range(600)), "at most 512"),
        (sample("dgx-2-truncated.nvidia-smi.txt"), r"line 6: .*11 of 16 GPU rows are missing \(GPU 5-15\)"),
    ],
)
def test_bad_matrices(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        nvidia_smi.parse(text, "bad.txt")


def test_more_lanes_than_a_gpu_has() -> None:
    rows = ["GPU0\tX\tNV12\tNV11", "GPU1\tNV12\tX\tNV12", "GPU2\tNV11\tNV12\tX"]
    with pytest.raises(TopologyError, match="line 3: GPU1 shows 24 NVLinks, but a GPU has at most 18"):
        nvidia_smi.parse(small(*rows, header="\tGPU0\tGPU1\tGPU2"))


def test_affinity_shows_the_sockets_that_nvlink_hides() -> None:
    """All pairs have NVLink and there are no NICs, so only the affinity distinguishes the sockets."""
    cells = [["X" if i == j else "NV4" for j in range(4)] for i in range(4)]
    rows = ["\t".join([f"GPU{i}", *cells[i], "0-15" if i < 2 else "16-31"]) for i in range(4)]
    topology = nvidia_smi.parse(small(*rows, header="\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity"))
    assert sum(v.kind == "host" for v in topology.vertices) == 2
    assert {x.kind for x in network_for(topology, (0, 2), "pcie").links} == {"pcie", "smp"}


def test_one_gpu_alone() -> None:
    topology = nvidia_smi.parse("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\tN/A\n")
    assert topology.ranks == (0,)


@pytest.mark.parametrize(
    ("name", "hidden", "lane"),
    [("dgx-1v", (), 25.0), ("dgx-1p-old-driver", (), 20.0), ("dgx-1v", ("SYS", "PIX"), 25.0)],
    ids=["dgx-1v", "dgx-1p", "virtual machine"],
)
def test_an_allocation_of_a_dgx_1_has_the_links_of_its_cube_mesh(
    name: str, hidden: tuple[str, ...], lane: float
) -> None:
    """A virtual machine shows its NVLinks, and PHB for all other pairs."""
    text = sample(f"{name}.nvidia-smi.txt")
    for word in hidden:
        text = text.replace(f"\t{word}", "\tPHB")
    network = network_for(nvidia_smi.parse(text), (1, 4, 5, 6))
    assert network.unit_gb_per_s == lane
    assert len(network.links) == 8
    assert all((a, b) in {(x, y) for x, y, _ in CUBE_MESH} for a, b in network.link if a < b)


def test_an_hgx_a100_is_an_nvswitch_of_twelve_lanes() -> None:
    pairs = {(a, b): 12 for a in range(8) for b in range(a + 1, 8)}
    topology = nvidia_smi.parse(printed(Machine(8, per_switch=2, links=pairs, nics=(0, 0, 2, 2))))
    assert set(nvlinks(topology).values()) == {300.0}
    assert len(nvlinks(topology)) == 16


def test_with_sys_everywhere_each_gpu_has_its_own_host() -> None:
    """Eight GPUs without NVLink, four per affinity; a NIC below the root port of one of them."""
    names = [*(f"GPU{i}" for i in range(8)), "NIC0"]
    cells = [["X" if a == b else "PHB" if {a, b} == {6, 8} else "SYS" for b in range(9)] for a in range(9)]
    affinity = [*["0-55"] * 4, *["56-111"] * 4, ""]
    rows = ["\t".join([names[a], *cells[a], affinity[a]]) for a in range(9)]
    topology = nvidia_smi.parse(small(*rows, header="\t" + "\t".join([*names, "CPU Affinity"])))
    assert not nvlinks(topology)
    assert sum(v.kind == "host" for v in topology.vertices) == 8
    assert len(network_for(topology, topology.ranks).links) == 32


@pytest.mark.parametrize("label", ["0: ", " 3: ", "node7.cluster: ", "gpu-04: "])
def test_labels_of_srun_and_pdsh_are_ignored(label: str) -> None:
    text = sample("dgx-1v.nvidia-smi.txt")
    labelled = "".join(label + line + "\n" for line in text.splitlines())
    assert nvidia_smi.parse(labelled, "x") == nvidia_smi.parse(text, "x")


def test_a_prompt_before_the_matrix_may_begin_with_a_bracket(tmp_path: Path) -> None:
    text = sample("dgx-1v.nvidia-smi.txt")
    (tmp_path / "x.txt").write_text("[me@node ~]$ nvidia-smi topo -m\n" + text)
    assert read_topology(tmp_path / "x.txt").links == nvidia_smi.parse(text).links


def of_two_nodes(text: str) -> str:
    return "".join(f"n{node}: {line}\n" for node in (1, 2) for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            sample("dgx-1v.nvidia-smi.txt") * 2,
            r"line \d+: a second matrix begins, the first is in line 1; give the output",
        ),
        (
            of_two_nodes(sample("dgx-1v.nvidia-smi.txt")),
            "output of several nodes: n1, n2; give the output of one node; .*2x FILE",
        ),
    ],
    ids=["two matrices", "two nodes"],
)
def test_text_without_exactly_one_matrix_is_refused(text: str, message: str) -> None:
    assert nvidia_smi.looks_like(text)
    with pytest.raises(TopologyError, match=message):
        nvidia_smi.parse(text, "x")


GB200 = Machine(4, links={(a, b): 18 for a in range(4) for b in range(a + 1, 4)}, nics=(0, 1, 2, 3))


def test_two_gpus_that_share_memory_with_one_processor_are_blackwells() -> None:
    topology = nvidia_smi.parse(printed(GB200, numa_of_memory=True))
    assert set(nvlinks(topology).values()) == {900.0}
    assert any("NVLink 5, as two GPUs share memory" in note for note in topology.notes)
    hopper = nvidia_smi.parse(printed(GB200))
    assert set(nvlinks(hopper).values()) == {450.0}
    assert any(
        "an NVLink lane is assumed to have 25 GB/s" in note and "FILE @ nvlink=" in note for note in hopper.notes
    )


def test_stated_rates_are_declared_and_noted() -> None:
    stated = parse_stated("nvlink=50GB/s, pcie=gen5, smp=22GB/s, nic=400Gbps", "x")
    topology = nvidia_smi.parse(printed(GB200), "x", stated)
    rates = {kind: {x.gb_per_s for x in topology.links if x.kind == kind} for kind in ("nvlink", "pcie", "smp", "net")}
    assert rates == {"nvlink": {900.0}, "pcie": {48.0}, "smp": {22.0}, "net": {50.0}}
    assert {x.provenance for x in topology.links} == {"declared"}
    assert "an NVLink lane: 50 GB/s, as stated" in topology.notes
    assert not any("to state it" in note for note in topology.notes)


def net(topology: Topology) -> list[tuple[str, str]]:
    links = [x for x in topology.links if x.kind == "net" and topology.vertex[x.dst].kind == "nic"]
    return sorted((topology.vertex[x.src].label, topology.vertex[x.dst].label) for x in links)


def test_nics_behind_the_switch_of_a_gpu_are_its_network() -> None:
    topology = nvidia_smi.parse(printed(GB200), "x", parse_stated("400Gbps", "x"))
    assert net(topology) == [(f"GPU{i}", f"mlx5_{i}") for i in range(4)]


def test_nics_that_are_far_from_all_gpus_serve_the_nearest() -> None:
    near = small("GPU0\tX\tNODE\tSYS", "GPU1\tNODE\tX\tSYS", "mlx5_0\tSYS\tSYS\tX", header="\tGPU0\tGPU1\tmlx5_0")
    assert net(nvidia_smi.parse(near, "x", parse_stated("400Gbps", "x"))) == [("GPU0", "mlx5_0"), ("GPU1", "mlx5_0")]


def test_nics_for_storage_are_left_out_if_others_are_nearer() -> None:
    rows = ("GPU0\tX\tPIX\tSYS", "NIC0\tPIX\tX\tSYS", "NIC1\tSYS\tSYS\tX")
    topology = nvidia_smi.parse(small(*rows, header="\tGPU0\tNIC0\tNIC1"), "x", parse_stated("400Gbps", "x"))
    assert net(topology) == [("GPU0", "NIC0")]
    assert any("NICs left out, as others are nearer to the GPUs: NIC1" in note for note in topology.notes)
    chosen = nvidia_smi.parse(
        small(*rows, header="\tGPU0\tNIC0\tNIC1"), "x", parse_stated("400Gbps, nics=NIC0+NIC1", "x")
    )
    assert net(chosen) == [("GPU0", "NIC0"), ("GPU0", "NIC1")]


def test_a_prompt_right_after_the_matrix_is_ignored() -> None:
    text = small("GPU0\tX\tPHB\t0-7", "GPU1\tPHB\tX\t0-7")
    assert nvidia_smi.parse(text + "me@node:~$ exit\n").links == nvidia_smi.parse(text).links


def test_a_matrix_broken_by_a_narrow_terminal() -> None:
    stated = parse_stated("nvlink=50GB/s, nic=400Gbps", "x")
    text = printed(GB200, numa_of_memory=True)
    for width in range(24, 140):
        assert nvidia_smi.parse(wrapped(text, width), "x", stated).links == nvidia_smi.parse(text, "x", stated).links


def test_a_whole_nvl72_wide_and_broken() -> None:
    pairs = {(a, b): 18 for a in range(72) for b in range(a + 1, 72)}
    text = printed(Machine(72, 36, links=pairs), numa_of_memory=True)
    topology = nvidia_smi.parse(wrapped(text, 200))
    assert topology.ranks == tuple(range(72))
    assert nvlinks(topology) == {pair: 900.0 for gpu in range(72) for pair in ((gpu, 72), (72, gpu))}
    assert topology.links == nvidia_smi.parse(text).links


def test_a_rate_without_links_is_noted() -> None:
    topology = nvidia_smi.parse(sample("pcie-8gpu.nvidia-smi.txt"), "x", parse_stated("nvlink=50GB/s", "x"))
    assert "a rate for nvlink is stated, but there is no nvlink link" in topology.notes


def test_names_above_the_matrix_give_rates() -> None:
    """vLLM's collect_env; NVIDIA's data sheet of the B200 has NVLink 5 (50 GB/s a lane each way) and PCIe 5."""
    topology = nvidia_smi.parse(sample("b200-collect-env.nvidia-smi.txt"))
    assert set(nvlinks(topology).values()) == {900.0}
    assert {x.gb_per_s for x in topology.links if x.kind == "pcie"} == {48.0}
    assert [topology.vertex[g].sm for g in topology.ranks] == [100] * 4
    assert any("(NVIDIA B200), as nvidia-smi does not say" in note for note in topology.notes)
    assert any(note.endswith('NIC0, NIC1; to state it: "FILE @ nic=400Gbps"') for note in topology.notes)


def test_a_matrix_below_a_long_list_of_packages() -> None:
    text = "".join(f"[pip3] package{i}==1.0\n" for i in range(900)) + sample("b200-collect-env.nvidia-smi.txt")
    assert nvidia_smi.looks_like(text)
    assert set(nvlinks(nvidia_smi.parse(text)).values()) == {900.0}


def listed(name: str) -> str:
    return f"GPU 0: {name} (UUID: GPU-0)\nGPU 1: {name} (UUID: GPU-1)\n" + small("GPU0\tX\tNV4", "GPU1\tNV4\tX")


@pytest.mark.parametrize(
    ("name", "nvlink", "pcie", "sm"),
    [
        ("NVIDIA A100-SXM4-80GB", 100.0, 24.0, 80),
        ("NVIDIA RTX A6000", 56.0, 24.0, 86),
        ("Tesla P100-SXM2-16GB", 80.0, 12.0, 60),
        ("NVIDIA H20", 100.0, 48.0, 90),
        ("NVIDIA GB300", 200.0, 48.0, 103),
        ("NVIDIA Unheard 9000", 100.0, 12.0, None),
    ],
)
def test_a_product_name_implies_generations(name: str, nvlink: float, pcie: float, sm: int | None) -> None:
    topology = nvidia_smi.parse(listed(name))
    assert set(nvlinks(topology).values()) == {nvlink}
    assert {x.gb_per_s for x in topology.links if x.kind == "pcie"} == {pcie}
    assert {topology.vertex[g].sm for g in topology.ranks} == {sm}


@pytest.mark.parametrize(("name", "peers"), [("NVIDIA GeForce RTX 5090", False), ("NVIDIA RTX A6000", True)])
def test_a_product_name_implies_p2p_over_pcie(name: str, peers: bool) -> None:
    topology = nvidia_smi.parse(listed(name).replace("NV4", "PHB"))
    assert [topology.vertex[g].peers for g in topology.ranks] == [peers, peers]
    assert any("have no P2P over PCIe" in note for note in topology.notes) != peers
    request = Request(topology, Collective("allreduce", 2), topology.ranks, joining_links(topology, topology.ranks)[0])
    nccl = nccl_today(request, 1 << 26)
    assert ("(SHM)" in nccl) != peers if isinstance(nccl, str) else peers


@pytest.mark.parametrize(
    ("gpus", "lanes", "pcie", "arch"),
    [
        (8, 8, 48.0, "hopper"),
        (8, 12, 24.0, "ampere"),
        (8, 18, 48.0, "hopper"),
        (4, 4, 24.0, "ampere"),
        (2, 12, 12.0, None),
    ],
)
def test_the_number_of_nvlinks_implies_a_generation(gpus: int, lanes: int, pcie: float, arch: str | None) -> None:
    """NV8 to a switch: H800; NV12 and four times NV4: A100; NV18: Hopper or later; a bridge of NV12 fits several."""
    pairs = {(a, b): lanes for a in range(gpus) for b in range(a + 1, gpus)}
    topology = nvidia_smi.parse(printed(Machine(gpus, links=pairs)))
    assert {x.gb_per_s for x in topology.links if x.kind == "pcie"} == {pcie}
    assert arch is None or guess_arch(topology) == arch


def test_a_stated_lane_overrules_the_number_of_nvlinks() -> None:
    pairs = {(a, b): 18 for a in range(8) for b in range(a + 1, 8)}
    topology = nvidia_smi.parse(printed(Machine(8, links=pairs)), "x", parse_stated("nvlink=50GB/s", "x"))
    assert guess_arch(topology) == "blackwell"


def test_pxb_stays_pxb_and_becomes_it_in_the_xml_too() -> None:
    """Two GPUs below several bridges: PIX would be one bridge, and NCCL treats the two differently."""
    topology = nvidia_smi.parse(small("GPU0\tX\tPXB\t0-15", "GPU1\tPXB\tX\t0-15"))
    for t in (topology, nccl_xml.parse(nccl_xml_write.write(topology))):
        assert sum(v.kind == "switch" for v in t.vertices) == 3
        assert kind_of(t, (0, *_between(t, 0, 1), 1)) == PXB
    near = nvidia_smi.parse(small("GPU0\tX\tPIX\t0-15", "GPU1\tPIX\tX\t0-15"))
    assert kind_of(near, (0, *_between(near, 0, 1), 1)) == PIX


def _between(topology: Topology, a: int, b: int) -> list[int]:
    """The switches on the PCIe path of two GPUs."""
    graph = nx.Graph((x.src, x.dst) for x in topology.links if x.kind == "pcie")
    return list(nx.shortest_path(graph, a, b))[1:-1]


@pytest.mark.parametrize("glued", ["NIC0NIC1", "mlx5_0mlx5_1", "NIC0\tNIC1"])
def test_names_of_nics_that_run_together(glued: str) -> None:
    names = ("mlx5_0", "mlx5_1") if "mlx" in glued else ("NIC0", "NIC1")
    rows = ("GPU0\tX\tPIX\tNODE\t0", f"{names[0]}\tPIX\tX\tNODE", f"{names[1]}\tNODE\tNODE\tX")
    topology = nvidia_smi.parse(small(*rows, header=f"\tGPU0\t{glued}\tCPU Affinity"))
    assert any(", ".join(names) in note for note in topology.notes)


def test_another_column_is_no_device() -> None:
    rows = ("GPU0\tX\tNODE\t0", "GPU1\tNODE\tX\t1")
    topology = nvidia_smi.parse(small(*rows, header="\tGPU0\tGPU1\tNUMA"))
    assert topology.ranks == (0, 1)
    assert not any("NIC" in note for note in topology.notes)


def test_nics_that_are_far_from_every_gpu_are_dealt_over_the_processors() -> None:
    """A GB200 tray: SYS from each of six NICs to each GPU, so no cell shows their processor."""
    names = [*(f"GPU{i}" for i in range(4)), *(f"NIC{i}" for i in range(6))]
    cells = [["X" if a == b else "NV18" if max(a, b) < 4 else "SYS" for b in range(10)] for a in range(10)]
    ends = [f"{72 * (a // 2)}-{72 * (a // 2) + 71}\t0\t{2 + a}" if a < 4 else "" for a in range(10)]
    text = "\n".join("\t".join([n, *row, end]) for n, row, end in zip(names, cells, ends, strict=True))
    header = "\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    topology = nvidia_smi.parse(f"{header}\n{text}\n", "x", parse_stated("400Gbps", "x"))
    assert net(topology) == sorted((f"GPU{g}", f"NIC{n}") for n in range(6) for g in (2 * (n // 3), 2 * (n // 3) + 1))
    assert any("6 NICs are assumed to be dealt over the processors" in note for note in topology.notes)


@pytest.mark.parametrize(
    ("stated", "pcie", "smp"),
    [("", 12, 10), ("nic=100Gbps", 12, 10), ("nic=200Gbps", 24, 24), ("nic=400Gbps", 48, 22), ("pcie=gen4", 24, 24)],
)
def test_nics_and_pcie_imply_what_is_around_them(stated: str, pcie: int, smp: int) -> None:
    """No slot of an older generation feeds such a card; the bus between processors is of the same time."""
    text = small("GPU0\tX\tSYS\t0-15", "GPU1\tSYS\tX\t16-31")
    topology = nvidia_smi.parse(text, "x", parse_stated(stated, "x") if stated else NOTHING)
    rates = {kind: {x.gb_per_s for x in topology.links if x.kind == kind} for kind in ("pcie", "smp")}
    assert rates == {"pcie": {pcie}, "smp": {smp}}
