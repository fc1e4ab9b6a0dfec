"""Networks to plan on."""

import re
from dataclasses import replace

import pytest

from blinkccl.api.job import links_for
from blinkccl.errors import TopologyError
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.select import ids_text, joining_links, network_for, peers_wanted
from blinkccl.topology.spec import load, parse_spec


def kinds(topology: Topology) -> set[str]:
    return {x.kind for x in topology.links}


def test_fast_links_of_a_dgx_1v_are_lanes() -> None:
    topology = parse_spec("dgx-1v")
    for gpus in ((0, 1, 2, 3, 4, 5, 6, 7), (0, 3), (0, 3, 4), (1, 4, 5, 6)):
        network = network_for(topology, gpus)
        assert network.unit_gb_per_s == 25.0
        assert kinds(network) == {"nvlink"}
        assert {v.id for v in network.vertices} == set(gpus)
        assert all(x.gb_per_s == 25.0 * x.capacity for x in network.links)
    assert network_for(topology, (0, 3)).link[0, 3].capacity == 2


def test_gpus_without_nvlinks_use_pcie() -> None:
    network = network_for(parse_spec("dgx-1v"), (0, 5))
    assert kinds(network) == {"pcie", "smp"}
    assert network.unit_gb_per_s == 2.0
    assert [v.kind for v in network.vertices if v.id not in (0, 5)] == ["switch", "switch", "host", "host"]


def test_pcie_and_all_select_exactly_their_links() -> None:
    topology = parse_spec("dgx-1v")
    assert kinds(network_for(topology, (0, 1, 2), "pcie")) == {"pcie"}
    assert kinds(network_for(topology, (0, 1, 4), "all")) == {"nvlink", "pcie", "smp"}


def test_transit_without_a_path_between_ranks_is_dropped() -> None:
    network = network_for(parse_spec("dgx-a100"), (0, 1), "all", stored=False)
    labels = {v.label for v in network.vertices}
    assert labels == {"GPU0", "GPU1", "NVSwitch", "PCIe0"}


def test_pcie_beside_fast_links_leads_through_the_hosts_memory() -> None:
    """Switches are split into a way up and a way down; links keep their rates, and selecting twice changes nothing."""
    for links in ("staged", "all"):
        network = network_for(parse_spec("dgx-a100"), (0, 1), links)
        named = {v.id: v.label for v in network.vertices}
        pcie = {(named[x.src], named[x.dst]) for x in network.links if x.kind == "pcie"}
        assert pcie == {
            *[(gpu, "PCIe0 up") for gpu in ("GPU0", "GPU1")],
            ("PCIe0 up", "CPU0"),
            ("CPU0", "PCIe0 down"),
            *[("PCIe0 down", gpu) for gpu in ("GPU0", "GPU1")],
        }
        assert [v.kind for v in network.vertices if v.label == "CPU0"] == ["memory"]
        assert network_for(network, (0, 1), links) == network


def test_a_single_server_has_no_network() -> None:
    topology = parse_spec("2x dgx-a100")
    assert kinds(network_for(topology, (0, 1, 2), "all")) == {"nvlink", "pcie"}
    assert "net" in kinds(network_for(topology, (0, 8)))


def test_each_server_of_a_job_chooses_its_own_links() -> None:
    topology, ranks = load("2x dgx-1v @ 40Gbps", "0,1,2+0,5")
    network = network_for(topology, ranks)
    assert kinds(network) == {"nvlink", "pcie", "smp", "net"}
    server = {v.id: v.server for v in network.vertices}
    assert {server[x.src] for x in network.links if x.kind == "nvlink"} == {0}
    assert {server[x.src] for x in network.links if x.kind == "pcie"} == {1}


def test_relays_keep_other_gpus_with_their_kind() -> None:
    topology = parse_spec("dgx-1v")
    network = network_for(topology, (1, 4, 6), relays=True)
    assert {v.id for v in network.vertices if v.kind == "gpu"} > {1, 4, 6}


def test_pairs_stay_on_their_bridge() -> None:
    topology = parse_spec("pcie-4gpu-nvlink-pairs")
    assert kinds(network_for(topology, (0, 1))) == {"nvlink"}
    with pytest.raises(TopologyError, match=r"2 parts: \{0,1\} and \{2,3\}; --links all or --links pcie"):
        network_for(topology, (0, 1, 2, 3))


def test_disconnected_allocations_name_parts_and_remedies() -> None:
    with pytest.raises(TopologyError, match=r"GPUs 1,4,6 in 2 parts: \{1\} and \{4,6\}; .*--links all.*--relays"):
        network_for(parse_spec("dgx-1v"), (1, 4, 6))
    with pytest.raises(TopologyError, match=r"\{0\} and \{2\}; --relays"):
        network_for(parse_spec("ring:4"), (0, 2))


@pytest.mark.parametrize(
    ("spec", "ranks", "links", "why"),
    [
        ("dgx-1v", (0, 1, 4), "fast", ""),
        ("pcie-8gpu", (0, 5), "fast", ""),
        ("dgx-1v", (1, 4, 6), "pcie", r"--links fast leaves the GPUs 1,4,6 in 2 parts: .*; using --links pcie"),
        ("pcie-4gpu-nvlink-pairs", (0, 1, 2, 3), "pcie", r"2 parts: \{0,1\} and \{2,3\}"),
    ],
)
def test_the_first_choice_that_joins_the_ranks_is_used(spec: str, ranks: tuple[int, ...], links: str, why: str) -> None:
    chosen, reason = joining_links(parse_spec(spec), ranks)
    assert chosen == links
    assert re.search(why, reason) if why else reason == ""


def without_peers(topology: Topology) -> Topology:
    return replace(topology, vertices=tuple(replace(v, peers=False) for v in topology.vertices))


@pytest.mark.parametrize(
    ("spec", "ranks", "links"),
    [
        ("pcie-8gpu", (0, 5), "staged"),
        ("2x pcie-8gpu @ 100Gbps", (0, 8), "fast"),
        ("2x pcie-8gpu @ 100Gbps", (0, 1, 8, 9), "staged"),
        ("pcie-4gpu-nvlink-pairs", (0, 1), "fast"),
        ("pcie-4gpu-nvlink-pairs", (0, 1, 2, 3), "staged"),
    ],
)
def test_gpus_without_p2p_over_pcie_go_through_the_hosts_memories(
    spec: str, ranks: tuple[int, ...], links: str
) -> None:
    topology = without_peers(parse_spec(spec))
    assert joining_links(topology, ranks)[0] == links
    assert peers_wanted(topology, ranks, links) == ""


def test_stated_links_say_that_they_assume_p2p() -> None:
    warnings: list[str] = []
    topology = without_peers(parse_spec("pcie-8gpu"))
    assert links_for(topology, (0, 1, 2), ("pcie", False), warnings.append) == "pcie"
    assert re.search(
        r"--links pcie needs P2P over PCIe, .* the GPUs 0-2 \(GeForce\); the plan assumes it", warnings.pop()
    )
    assert links_for(topology, (0, 1, 2), ("staged", False), warnings.append) == "staged"
    assert not warnings


def test_relays_join_ranks_that_links_do_not() -> None:
    assert joining_links(parse_spec("dgx-1v"), (1, 4, 6), relays=True) == ("fast", "")


def test_the_error_names_the_parts_if_nothing_joins_the_ranks() -> None:
    with pytest.raises(TopologyError, match=r"\{0\} and \{2\}"):
        joining_links(parse_spec("ring:4"), (0, 2))
    with pytest.raises(TopologyError, match="GPU 9 is not in ring:4"):
        joining_links(parse_spec("ring:4"), (0, 9))


def test_the_error_mentions_one_way_links() -> None:
    arcs = (Link(0, 1, 1, "nvlink", 25.0, "declared"),)
    topology = Topology("half", 25.0, (Vertex(0, "gpu"), Vertex(1, "gpu")), arcs)
    with pytest.raises(TopologyError, match=r"only one way\)\. No link of this topology joins them"):
        network_for(topology, (0, 1))


def test_a_single_server_is_not_advised_to_add_a_network() -> None:
    vertices = (Vertex(0, "gpu", 0), Vertex(1, "gpu", 1))
    with pytest.raises(TopologyError, match="add PCIe or a network link"):
        network_for(Topology("islands", 1.0, vertices, ()), (0, 1))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((0, 99), r"GPU 99 is not in dgx-1v; it has 0-7"),
        ((0, 12), r"12 is not a GPU of dgx-1v but its host CPU0"),
        ((0, 1, 0), r"GPU 0 is given twice"),
        ((0, -1), r"GPU -1 is not in dgx-1v"),
    ],
)
def test_bad_ranks(ranks: tuple[int, ...], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        network_for(parse_spec("dgx-1v"), ranks)


def test_a_single_rank_is_allowed() -> None:
    assert network_for(parse_spec("dgx-1v"), (3,)).links == ()
    assert network_for(parse_spec("dgx-1v"), ()).vertices == ()


def test_nvlink_across_servers_is_fast() -> None:
    """An NVLink rack: one switch for GPUs of several servers."""
    vertices = (Vertex(0, "gpu", 0), Vertex(1, "gpu", 1), Vertex(2, "switch", 0))
    links = tuple(Link(a, b, 1, "nvlink", 450.0, "declared") for a, b in ((0, 2), (2, 0), (1, 2), (2, 1)))
    assert len(network_for(Topology("rack", 450.0, vertices, links), (0, 1)).links) == 4


def test_selection_is_cached() -> None:
    topology = parse_spec("16x dgx-a100")
    assert network_for(topology, topology.ranks) is network_for(topology, topology.ranks)


def test_ids_text_abbreviates_runs() -> None:
    assert ids_text([0, 1, 2, 5]) == "0-2,5"
    assert ids_text([]) == "none"
