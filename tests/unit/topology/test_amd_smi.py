"""Tables of rocm-smi --showtopo and amd-smi topology."""

from collections.abc import Callable

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology import amd_smi
from blinkccl.topology.catalog import machine
from blinkccl.topology.formats import parse_topology
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import NOTHING, Stated, parse_stated
from support import topology_dumps as dumps

#: Four of the catalog's eight MI250.
MI250 = dumps.Machine(
    8,
    links={
        (x.src, x.dst): round(x.gb_per_s / 50) for x in machine("mi250").links if x.kind == "xgmi" and x.src < x.dst < 8
    },
)
MI300X = dumps.Machine(8, links={(a, b): 1 for a in range(8) for b in range(a + 1, 8)})
PCIE = dumps.Machine(4)


def xgmi(topology: Topology) -> dict[tuple[int, int], float]:
    return {(x.src, x.dst): x.gb_per_s for x in topology.links if x.kind == "xgmi" and x.src < x.dst}


Printed = Callable[..., str]


def read(text: str, stated: Stated = NOTHING) -> Topology:
    return parse_topology(text.encode(), "x", stated=stated)


@pytest.mark.parametrize("printed", [dumps.rocm_smi, dumps.amd_smi])
def test_mi250_has_one_four_or_no_links_between_two(printed: Printed) -> None:
    topology = read(printed(MI250))
    assert xgmi(topology) == {pair: 50.0 * count for pair, count in MI250.links.items()}
    assert {x.provenance for x in topology.links} == {"rocm-smi" if printed is dumps.rocm_smi else "amd-smi"}
    assert "16 pairs have no direct xGMI link and are connected through other GPUs" in topology.notes
    hosts = sum(v.kind == "host" for v in topology.vertices)
    assert hosts == (2 if printed is dumps.rocm_smi else 1), "amd-smi prints no NUMA nodes"


@pytest.mark.parametrize("printed", [dumps.rocm_smi, dumps.amd_smi])
def test_weights_show_direct_links_if_there_are_no_bandwidths(printed: Printed) -> None:
    topology = read(printed(MI250, 0))
    assert xgmi(topology) == dict.fromkeys(MI250.links, 50.0)
    assert any("an xGMI link is assumed to have 50 GB/s" in note for note in topology.notes)


def test_the_rate_of_a_link_can_be_stated() -> None:
    stated = parse_stated("xgmi=64GB/s, pcie=gen5", "x")
    for driver_mb_per_s in (0, 50_000):
        topology = read(dumps.amd_smi(MI300X, driver_mb_per_s), stated)
        assert set(xgmi(topology).values()) == {64.0}
        assert {x.provenance for x in topology.links if x.kind in ("xgmi", "pcie")} == {"declared"}
    assert xgmi(read(dumps.rocm_smi(MI250), stated))[0, 1] == 256.0


def test_gpus_without_xgmi_are_joined_to_their_numa_nodes() -> None:
    topology = read(dumps.rocm_smi(PCIE))
    assert {x.kind for x in topology.links} == {"pcie", "smp"}
    hosts = [sorted(x.src for x in topology.links if x.dst == h and x.kind == "pcie") for h in (4, 5)]
    assert hosts == [[0, 1], [2, 3]]
    assert read(dumps.amd_smi(PCIE)).link.keys() == topology.link.keys(), "amd-smi has no NUMA nodes, but hops"


def test_a_note_says_that_one_processor_is_assumed() -> None:
    topology = read(dumps.amd_smi(MI300X))
    assert sum(v.kind == "host" for v in topology.vertices) == 1
    assert any("GPU 0-7 are assumed to share one processor" in note for note in topology.notes)


def test_hosts_are_memories_without_peer_access() -> None:
    topology = read(dumps.rocm_smi(PCIE).replace("True", "False"))
    assert {v.kind for v in topology.vertices} == {"gpu", "memory"}
    assert any("PCIe goes through the hosts' memories" in note for note in topology.notes)
    assert not xgmi(read(dumps.amd_smi(MI300X).replace("ENABLED", "DISABLED")))


def test_labels_prompts_and_other_tables_are_ignored() -> None:
    text = "[me@n1 ~]$ rocm-smi --showtopo\n" + dumps.rocm_smi(MI250)
    assert read("".join(f"n1: {line}\n" for line in text.splitlines())) == read(text)
    assert read("\ufeff" + text) == read(text)


def table(title: str, *rows: str) -> str:
    return "\n".join([f"=== {title} ===", "       GPU0   GPU1", *rows]) + "\n"


TYPES = table("Link Type between two GPUs", "GPU0 0 XGMI", "GPU1 XGMI 0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (dumps.rocm_smi(MI250).replace("Link Type", "Link Kind"), "no table of link types; give the whole output"),
        (dumps.rocm_smi(MI250) * 2, r"x, line \d+: the same table again, first in line 3; give the output of one"),
        (
            "".join(f"n{i}: {line}\n" for i in (1, 2) for line in dumps.amd_smi(PCIE).splitlines()),
            "output of several nodes: n1, n2",
        ),
        (table("Link Type between two GPUs", "GPU0 0 XGMI"), r"line 3: expected the row GPU1 with 2 cells, got ''"),
        (table("Link Type between two GPUs", "GPU0 0 XGMI", "GPU1 0"), "line 4: expected the row GPU1 with 2 cells"),
        (
            table("Link Type between two GPUs", "GPU0 0 XGMI", "GPU1 PCIE 0"),
            "line 4: GPU1 × GPU0 is 'PCIE', but 'XGMI' the other way round in line 3",
        ),
        (
            table("Link Type between two GPUs", "GPU0 0 NVLINK", "GPU1 NVLINK 0"),
            "line 3: GPU0 × GPU1 is 'NVLINK', expected XGMI or PCIE",
        ),
        (TYPES + table("Weight between two GPUs", "GPU0 0 -1", "GPU1 -1 0"), "line 7: GPU0 × GPU1 is '-1', expected"),
        (TYPES + table("Bandwidth", "GPU0 N/A 1e9", "GPU1 1e9 N/A"), "line 7: GPU0 × GPU1 is '1e9', expected"),
        (
            TYPES + table("Weight between two GPUs").replace("GPU1", "GPU0"),
            "line 6: expected the GPUs of the table, each",
        ),
        (
            TYPES + "=== Bandwidth ===\n GPU0\nGPU0 N/A\n",
            "line 5: this table lists GPU0, but the table of link types lists GPU0 GPU1",
        ),
        (TYPES + "=== Bandwidth ===", "line 5: expected the GPUs of the table"),
    ],
)
def test_bad_tables(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read(text)


def test_two_processors_near_one_gpu_are_a_contradiction() -> None:
    hops = "=== Hops between two GPUs ===\n GPU0 GPU1 GPU2\nGPU0 0 2 3\nGPU1 2 0 2\nGPU2 3 2 0\n"
    types = (
        "=== Link Type between two GPUs ===\n GPU0 GPU1 GPU2\nGPU0 0 PCIE PCIE\nGPU1 PCIE 0 PCIE\nGPU2 PCIE PCIE 0\n"
    )
    with pytest.raises(TopologyError, match=r"x, line 8: GPU 0 and 2 are on different processors, but other GPUs"):
        amd_smi.parse(hops + types, "x")


def test_a_product_name_gives_the_rate_and_the_dies_of_a_module() -> None:
    """``rocm-smi --showproductname`` before the tables; AMD's CDNA 2 white paper: four links between the two dies."""
    text = dumps.rocm_smi(dumps.Machine(4, links=dict.fromkeys([(0, 1), (1, 2), (2, 3), (0, 3)], 1)), 0)
    named = read("GPU[0]\t\t: Card Series: \t\tAMD Instinct MI250X\n" + text)
    assert xgmi(named) == {(0, 1): 200.0, (1, 2): 50.0, (2, 3): 200.0, (0, 3): 50.0}
    assert any(note.startswith("0–1, 2–3: assumed to be two dies of one module") for note in named.notes)
    assert set(xgmi(read(text)).values()) == {50.0}


def test_a_full_mesh_of_eight_is_an_mi300x() -> None:
    text = dumps.rocm_smi(MI300X, 0)
    assert set(xgmi(read(text)).values()) == {64.0}
    newer = read("GPU[0]\t\t: Card Series: \t\tAMD Instinct MI355X\n" + text)
    assert set(xgmi(newer).values()) == {76.8}
    assert {x.gb_per_s for x in newer.links if x.kind == "pcie"} == {48.0}
