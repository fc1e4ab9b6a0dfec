"""Hops between ranks: direct before switched, short before long, wide before narrow, never through a rank."""

from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.shapes import missing_pairs, transit_paths
from support.planned import asked, digraph


def _joined(switches: int, links: dict[tuple[int, int], int]) -> Topology:
    """Two GPUs, then switches, with links in both directions."""
    return digraph({**links, **{(v, u): c for (u, v), c in links.items()}}, 2, switches)


def test_direct_link_is_preferred_to_a_wide_switch() -> None:
    network = _joined(1, {(0, 1): 1, (0, 2): 9, (1, 2): 9})
    assert transit_paths(network, (0, 1)) == {(0, 1): (0, 1), (1, 0): (1, 0)}


def test_widest_among_shortest_then_smallest_ids() -> None:
    wide = _joined(2, {(0, 2): 2, (1, 2): 2, (0, 3): 3, (1, 3): 3})
    assert transit_paths(wide, (0, 1))[0, 1] == (0, 3, 1)
    even = _joined(2, {(0, 2): 3, (1, 2): 3, (0, 3): 3, (1, 3): 3})
    assert transit_paths(even, (0, 1))[0, 1] == (0, 2, 1)


def test_no_path_leads_through_a_rank() -> None:
    network = asked("chain:3", "allreduce", None).network
    paths = transit_paths(network, (0, 1, 2))
    assert (0, 2) not in paths
    assert missing_pairs(paths, (0, 1, 2)) == [(0, 2), (2, 0)]


def test_gpus_outside_the_job_are_transit() -> None:
    network = asked("chain:3", "allreduce", "0,2", relays=True).network
    assert transit_paths(network, (0, 2))[0, 2] == (0, 1, 2)


def test_pcie_hops_climb_no_higher_than_needed() -> None:
    request = asked("dgx-1v", "allreduce", None, links="pcie")
    paths = transit_paths(request.network, request.ranks)
    assert [len(paths[0, v]) - 1 for v in range(1, 8)] == [2, 4, 4, 5, 5, 5, 5]
    assert missing_pairs(paths, request.ranks) == []


def test_links_may_lead_one_way() -> None:
    network = asked("oneway:3", "allreduce", None).network
    assert transit_paths(network, (0, 1, 2)) == {(0, 1): (0, 1), (1, 2): (1, 2), (2, 0): (2, 0)}
