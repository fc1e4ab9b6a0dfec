"""The catalog against the vendors' documents."""

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology.catalog import ALIASES, CATALOG, CUBE_MESH, machine
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec


def lanes(topology: Topology, kind: str = "nvlink") -> dict[tuple[int, int], float]:
    return {(x.src, x.dst): x.gb_per_s for x in topology.links if x.kind == kind}


@pytest.mark.parametrize("name", CATALOG)
def test_every_machine_is_symmetric_connected_and_of_the_catalog(name: str) -> None:
    topology = machine(name)
    assert topology.ranks == tuple(range(len(topology.ranks)))
    assert {x.provenance for x in topology.links} == {"catalog"}
    for x in topology.links:
        if name != "dgx-spark":  # its two directions have separate paths
            assert topology.link[x.dst, x.src].capacity == x.capacity
        assert x.gb_per_s == pytest.approx(x.capacity * topology.unit_gb_per_s)
    assert len(network_for(topology, topology.ranks, "all").links) > 0 or len(topology.ranks) == 1
    assert machine(name) is topology, "built once"


def test_dgx_1v_has_the_published_lanes() -> None:
    rates = lanes(machine("dgx-1v"))
    assert rates == {pair: 25.0 * w for a, b, w in CUBE_MESH for pair in ((a, b), (b, a))}
    for gpu in range(8):
        assert sum(rate for (src, _), rate in rates.items() if src == gpu) == 6 * 25


def test_dgx_1p_has_four_lanes_per_gpu_on_the_same_pairs() -> None:
    rates = lanes(machine("dgx-1p"))
    assert set(rates) == set(lanes(machine("dgx-1v")))
    assert set(rates.values()) == {20.0}
    for gpu in range(8):
        assert sum(1 for src, _ in rates if src == gpu) == 4


@pytest.mark.parametrize(
    ("name", "gpus", "gb_per_s", "nic"),
    [
        ("dgx-2", 16, 150.0, None),
        ("dgx-a100", 8, 300.0, 25.0),
        ("hgx-h100", 8, 450.0, 50.0),
        ("hgx-h200", 8, 450.0, 50.0),
        ("dgx-b200", 8, 900.0, 50.0),
        ("gb200-nvl72", 72, 900.0, 50.0),
        ("dgx-b300", 8, 900.0, 100.0),
        ("gb200-tray", 4, 900.0, 50.0),
        ("gb300-tray", 4, 900.0, 100.0),
        ("gb300-nvl72", 72, 900.0, 100.0),
        ("hgx-h20", 8, 450.0, 50.0),
        ("hgx-h800", 8, 200.0, 50.0),
    ],
)
def test_nvswitch_servers_have_one_switch_and_a_nic_per_gpu(
    name: str, gpus: int, gb_per_s: float, nic: float | None
) -> None:
    topology = machine(name)
    rates = lanes(topology)
    assert len(topology.ranks) == gpus
    assert set(rates.values()) == {gb_per_s}
    assert len(rates) == 2 * gpus
    assert set(lanes(topology, "net").values()) == ({nic} if nic else set())
    assert sum(v.kind == "nic" for v in topology.vertices) == (gpus if nic else 0)


def test_mist_uses_nvlink_to_the_processors_and_their_bus() -> None:
    topology = machine("mist")
    assert lanes(topology)[0, 1] == 75.0
    network = network_for(topology, topology.ranks)
    assert {x.kind for x in network.links} == {"nvlink", "smp"}
    assert sum(v.kind == "host" for v in network.vertices) == 2


def test_cedar_joins_every_pair_by_two_lanes() -> None:
    rates = lanes(machine("cedar"))
    assert rates == {(a, b): 50.0 for a in range(4) for b in range(4) if a != b}


def test_every_gcd_of_an_mi250_box_has_seven_links() -> None:
    rates = lanes(machine("mi250"), "xgmi")
    for gcd in range(16):
        assert sum(rate for (src, _), rate in rates.items() if src == gcd) == 7 * 50
    assert rates[0, 1] == 200.0


def test_every_pair_of_mi300x_has_a_link_of_64_gb_per_s() -> None:
    topology = machine("mi300x")
    assert lanes(topology, "xgmi") == {(a, b): 64.0 for a in range(8) for b in range(8) if a != b}
    assert set(lanes(topology, "net").values()) == {50.0}


@pytest.mark.parametrize("name", ALIASES)
def test_aliases_name_existing_machines(name: str) -> None:
    assert name not in CATALOG
    assert parse_spec(name) is machine(ALIASES[name])
    assert len(parse_spec(f"2x {name}").ranks) == 2 * len(parse_spec(name).ranks)


def test_pcie_runs_through_switches_hosts_and_the_bus() -> None:
    topology = machine("pcie-8gpu")
    kinds = {x.kind for x in topology.links}
    assert kinds == {"pcie", "smp"}
    assert not any(x.src in topology.ranks and x.dst in topology.ranks for x in topology.links)


def test_the_error_for_an_unknown_machine_lists_the_catalog() -> None:
    with pytest.raises(TopologyError, match=r"no machine 'dgx-9'.*dgx-1v"):
        machine("dgx-9")


@pytest.mark.parametrize(("name", "gb_per_s"), [("mi300x", 64.0), ("mi325x", 64.0), ("mi355x", 76.8)])
def test_every_pair_of_instincts_has_a_link(name: str, gb_per_s: float) -> None:
    rates = lanes(machine(name), "xgmi")
    assert rates == {(a, b): gb_per_s for a in range(8) for b in range(8) if a != b}


@pytest.mark.parametrize(("name", "c2c"), [("gh200", 450.0), ("gb200-tray", 225.0), ("gb300-tray", 225.0)])
def test_graces_are_joined_by_c2c(name: str, c2c: float) -> None:
    """900 GB/s both ways from a Grace, shared by its GPUs."""
    assert set(lanes(machine(name), "c2c").values()) == {c2c}


@pytest.mark.parametrize(
    ("typed", "near"),
    [("h20x", "h20"), ("mi308x", "mi300x"), ("gb200-trays", "gb200-tray"), ("DGX_1V", "dgx-1v"), ("h800-8", "h800")],
)
def test_near_names_are_of_the_same_product(typed: str, near: str) -> None:
    with pytest.raises(TopologyError, match=rf"did you mean '{near}'"):
        parse_spec(typed)


@pytest.mark.parametrize("name", ["h20", "h800", "b300", "gh200", "mi325x", "mi355x", "gb300", "h100", "h200", "a100"])
def test_names_of_products_are_machines(name: str) -> None:
    assert parse_spec(name).ranks
