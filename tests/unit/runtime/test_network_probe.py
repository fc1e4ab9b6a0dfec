"""The topology of measured networks: its structure from addresses, its rates from messages of the hosts."""

from itertools import permutations

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.hosts import Hosts
from blinkccl.runtime.plans import planned_anew
from blinkccl.runtime.probe import LEVELS, Rates, kept, place_on, topology_of, used
from blinkccl.runtime.rails import Network, for_all, rails_of
from blinkccl.topology.fabric import cables_of
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

#: Three hosts on a switch; the first two are joined by a cable too, and the last two have a container's bridge.
HOSTS = [
    {"eth0": "10.0.0.1/24", "eth1": "10.1.0.1/30"},
    {"eth0": "10.0.0.2/24", "eth1": "10.1.0.2/30", "docker0": "172.17.0.1/16"},
    {"eth0": "10.0.0.3/24", "docker0": "172.17.0.1/16"},
]
NAMES = ["a", "b", "c"]


def rates(over: tuple[Network, ...], of: dict[tuple[str, int], float]) -> Rates:
    """GB/s of every message: the slower of its two interfaces, by subnet and host; 1 where ``of`` states none."""
    return {
        (network.subnet, src, dst): min(of.get((network.subnet, end), 1.0) for end in (src, dst))
        for network in over
        for src, dst in permutations(network.ends, 2)
    }


def test_subnets_of_two_hosts_are_cables_and_the_largest_other_is_the_network() -> None:
    over = used(HOSTS)
    assert [(one.subnet, dict(one.ends), one.is_cable) for one in over] == [
        ("10.0.0.0/24", {0: "eth0", 1: "eth0", 2: "eth0"}, False),
        ("10.1.0.0/30", {0: "eth1", 1: "eth1"}, True),
    ]
    more = [{**host, "eth9": f"10.9.0.{number}/24"} for number, host in enumerate([*HOSTS, {"eth0": "10.0.0.4/24"}], 1)]
    more[3].pop("eth9")
    assert [one.subnet for one in used(more) if not one.is_cable] == ["10.0.0.0/24"]


def test_a_host_without_a_shared_subnet_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match=r"hosts \[2\] share no subnet"):
        used([*HOSTS[:2], {"eth0": "192.168.7.1/24"}])


def test_hosts_in_two_parts_are_an_error() -> None:
    pairs = [{"p0": "10.1.0.1/30"}, {"p0": "10.1.0.2/30"}, {"p0": "10.2.0.1/30"}, {"p0": "10.2.0.2/30"}]
    with pytest.raises(UnsupportedError, match=r"hosts \[2, 3\] share no subnet with host 0"):
        used(pairs)
    assert len(used([pairs[0], {**pairs[1], "p1": "10.3.0.1/30"}, {**pairs[2], "p1": "10.3.0.2/30"}, pairs[3]])) == 3


def test_a_slow_network_is_left_out_unless_a_host_has_no_other() -> None:
    over = used(HOSTS)
    slow = rates(over, {("10.0.0.0/24", host): 0.1 for host in range(3)})
    assert kept(over, slow, 3) == over  # the third host has no cable
    two = used(HOSTS[:2])
    slow = rates(two, {("10.0.0.0/24", host): 0.1 for host in range(2)})
    assert [one.subnet for one in kept(two, slow, 2)] == ["10.1.0.0/30"]


def test_a_measured_topology_uses_both_networks_and_stores_between_cables() -> None:
    hosts, over = Hosts.of("aabc"), used(HOSTS)
    topology = topology_of(hosts, NAMES, over, rates(over, {}))
    assert len(cables_of(topology)) == 1
    assert {link.provenance for link in topology.links} == {"measured"}
    for name in ("allreduce", "allgather"):
        program = planned_anew(topology, Collective(name, 4), topology.ranks, "optimal")
        assert {0, 1} <= {*rails_of(program, topology)}


def test_a_cable_that_is_left_out_is_no_rail() -> None:
    two = [{**host, "eth2": f"10.2.0.{number}/30"} for number, host in enumerate(HOSTS[:2], 1)]
    hosts, over = Hosts.of("ab"), used(two)
    slow = rates(over, {("10.1.0.0/30", 0): 0.1})
    topology = topology_of(hosts, NAMES, kept(over, slow, 2), slow)
    assert [place_on(topology, hosts, rank).interfaces for rank in range(2)] == [{1: "eth0", 2: "eth2"}] * 2


def test_a_slow_interface_gets_a_rate_of_its_own_and_noise_none() -> None:
    hosts, over = Hosts.of("abc"), used(HOSTS)
    noisy = rates(over, {("10.0.0.0/24", 0): 0.93, ("10.0.0.0/24", 1): 1.04, ("10.0.0.0/24", 2): 0.26})
    topology = topology_of(hosts, NAMES, over, noisy)
    port = {vertex.name: vertex.id for vertex in topology.vertices}
    speeds = {name: topology.link[port[f"{name}/out"], port[f"{name}/eth0"]].gb_per_s for name in NAMES}
    assert speeds["a"] == speeds["b"] == pytest.approx(0.93, rel=0.12)
    assert speeds["c"] == pytest.approx(speeds["a"] * 2 / LEVELS)
    # The slow host sends and receives S once, which is its bound; two thirds of a ring's 4/3 would be slower.
    forest = algorithm("optimal").plan(Request(topology, Collective("allreduce", 3), topology.ranks))
    assert float(forest.rate) * topology.unit_gb_per_s == pytest.approx(speeds["c"])


def test_messages_to_any_host_take_interfaces_in_subnets_of_all_hosts() -> None:
    assert [for_all(HOSTS, host, ()) for host in range(3)] == [["eth0"]] * 3
    assert for_all(HOSTS, 0, ["eth1"]) == ["eth0"]
    apart = [{"p0": "10.2.0.1/30"}, {"p0": "10.2.0.2/30", "p1": "10.3.0.1/30"}, {"p1": "10.3.0.2/30", "x": "9.9.9.9/8"}]
    assert [for_all(apart, host, ()) for host in range(3)] == [[], [], []]
    assert for_all(apart, 2, ["p1"]) == ["x"]
    assert for_all(apart[1:], 1, ["p1"]) == ["x"]
