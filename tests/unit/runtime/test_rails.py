"""Rails: the interfaces of hosts that a topology's cables join, and the queues of programs that cross them."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path

import pytest

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.runtime.addresses import own_interfaces
from blinkccl.runtime.hosts import Hosts, Place, routes
from blinkccl.runtime.plans import planned_anew
from blinkccl.runtime.rails import devices, interfaces_of_rails, rails_from, rails_of
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.spec import parse_spec

RING = parse_spec("4x dgx-spark @ cables=ring")
#: The hosts of that ring, with a network of all beside the cables.
MANAGED = [
    {"mgmt": f"10.9.0.{host + 1}/24", "p0": f"10.8.{host}.1/30", "p1": f"10.8.{(host + 3) % 4}.2/30"}
    for host in range(4)
]
NAMES = ["a", "b", "c", "d"]


def test_every_cable_joins_the_interfaces_in_its_subnet() -> None:
    interfaces = interfaces_of_rails(RING, range(4), MANAGED, NAMES)
    for rail, cable in enumerate(cables_of(RING), 1):
        a, b = (RING.vertex[end].server for end in (cable.src, cable.dst))
        subnets = {MANAGED[host][interfaces[host][rail]].rsplit(".", 1)[0] for host in (a, b)}
        assert len(subnets) == 1
        assert "10.9.0" not in subnets
        assert (rails_from(RING, a)[rail], rails_from(RING, b)[rail]) == (b, a)
    assert [sorted(rails) for rails in interfaces] == [[1, 2], [1, 3], [3, 4], [2, 4]]


def test_hosts_in_another_order_get_the_rails_of_their_servers() -> None:
    straight = interfaces_of_rails(RING, range(4), MANAGED, NAMES)
    back = interfaces_of_rails(RING, [3, 2, 1, 0], MANAGED[::-1], NAMES[::-1])
    assert back == straight[::-1]


@pytest.mark.parametrize(
    "changed",
    [
        {"p1": "10.8.77.2/30"},  # no other host is in that subnet
        {"p1": "10.8.0.1/30"},  # as a container's bridge: the same address on two hosts
        {"p1": "10.9.0.99/24"},  # all hosts are in that subnet
    ],
)
def test_a_cable_without_a_subnet_of_its_own_is_an_error_with_both_hosts(changed: dict[str, str]) -> None:
    hosts = [*MANAGED]
    hosts[1] = MANAGED[1] | changed
    with pytest.raises(
        TopologyError, match=r"expected 1 cable between servers 0 and 1 \(hosts a and b\), got no subnet"
    ):
        interfaces_of_rails(RING, range(4), hosts, NAMES)


def test_more_subnets_than_cables_are_an_error_that_lists_them() -> None:
    hosts = [{"en1": "10.0.0.1/30", "en10": "10.0.1.1/30"}, {"en1": "10.0.0.2/30", "en10": "10.0.1.2/30"}]
    with pytest.raises(TopologyError, match=r"got 2 subnets of these two alone \(en1 – en1, en10 – en10\)"):
        interfaces_of_rails(parse_spec("2x mac-studio @ cables=ring"), range(2), hosts, NAMES)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_queues_between_servers_cross_one_cable_and_have_its_rail(name: str) -> None:
    collective = Collective(name, 4, **_ends(name))
    program = planned_anew(RING, collective, RING.ranks, "optimal")
    numbers = {(x.src, x.dst): rail for rail, x in enumerate(cables_of(RING), 1)}
    for queue, rail in zip(program.queues, rails_of(program, RING), strict=True):
        crossed = [numbers.get(ends) or numbers.get(ends[::-1]) for ends in pairwise(queue.path)]
        assert [number for number in crossed if number] == [rail]


def _ends(name: str) -> dict[str, int]:
    if name == "sendrecv":
        return {"src": 0, "dst": 1}
    return {"root": 0} if name in ("broadcast", "reduce", "gather", "scatter") else {}


def test_hosts_take_the_vertices_of_servers_in_order() -> None:
    two = parse_spec("2x dgx-1v @ 40Gbps")
    hosts = Hosts.of(["x", "y", "x", "y", "y"]).on(two)
    assert [two.vertex[vertex].server for vertex in hosts.ranks] == [0, 1, 0, 1, 1]
    assert len(set(hosts.ranks)) == 5
    assert Place(two, hosts.ranks).part([4, 0]).vertices == (hosts.ranks[4], hosts.ranks[0])


def test_hosts_with_the_names_of_servers_are_these_servers(tmp_path: Path) -> None:
    file = tmp_path / "two.txt"
    file.write_text("machine dgx-spark: left right\nleft:p0 right:p0\n")
    topology = parse_spec(str(file))
    servers = {name: vertex.server for vertex in topology.vertices for name in [vertex.name.partition("/")[0]]}
    hosts = Hosts.of(["right", "left"])
    named = hosts.on(topology, ["right.lab", "left.lab"]).ranks
    assert [topology.vertex[vertex].server for vertex in named] == [servers["right"], servers["left"]]
    other = hosts.on(topology, ["right", "middle"]).ranks
    assert [topology.vertex[vertex].server for vertex in other] == [0, 1]


@pytest.mark.parametrize(("names", "message"), [("aab", "got ranks on hosts as 2 \\+ 1"), ("abc", "1 \\+ 1 \\+ 1")])
def test_a_topology_of_other_hosts_is_an_error_with_both_counts(names: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Hosts.of(names).on(RING)


def test_a_stated_topology_is_a_spec_or_that_of_the_environment() -> None:
    assert Place.stated(None, {}).topology is None
    assert Place.stated(None, {"BLINK_TOPO": ""}).topology is None
    assert Place.stated(None, {"BLINK_TOPO": "ring:3"}).topology == parse_spec("ring:3")
    assert Place.stated(RING, {"BLINK_TOPO": "ring:3"}).topology is RING
    assert isinstance(Place.stated("no-such-machine", {}).problem, TopologyError)
    with pytest.raises(UsageError, match="topo: expected a SPEC, a Topo or a Topology, got int"):
        Place.stated(7, {})


def test_a_network_that_ends_at_the_ranks_has_links() -> None:
    links = tuple(Link(a, b, capacity, "net", capacity, "declared") for a, b, capacity in ((0, 1, 4), (1, 0, 2)))
    two = Topology("two", 1.0, (Vertex(0, "cpu", 0), Vertex(1, "cpu", 1)), links)
    assert Hosts.of("ab").on(two).networks == {(0, 1): 1, (1, 0): Fraction(1, 2)}


def test_own_interfaces_have_networks_and_no_loopback() -> None:
    interfaces = own_interfaces()
    assert "lo" not in interfaces
    assert all("/" in address for address in interfaces.values())
    assert own_interfaces("no-such-device:1") == {}
    assert own_interfaces("all") == interfaces


def test_an_interface_without_an_rdma_device_is_its_own_device() -> None:
    assert devices("no-such-device") == "no-such-device"


def test_a_path_over_two_cables_has_no_rank_that_stores_its_messages() -> None:
    program = planned_anew(RING, Collective("allreduce", 4), RING.ranks, "optimal")
    cables = {frozenset((x.src, x.dst)) for x in cables_of(RING)}
    queue = next(q for q in program.queues if any(frozenset(ends) in cables for ends in pairwise(q.path)))
    longer = replace(queue, path=(*queue.path, *queue.path))
    with pytest.raises(UnsupportedError, match="no rank stores the messages"):
        rails_of(replace(program, queues=(longer,)), RING)


@pytest.mark.parametrize(("name", "links"), [("ring", 2), ("mesh", 3)])
def test_routes_of_a_message_take_every_cable_of_both_hosts(name: str, links: int) -> None:
    topology = parse_spec(f"4x mac-studio @ cables={name}")
    hosts = Hosts(((0,), (1,), (2,), (3,))).on(topology)
    for src, dst in permutations(range(4), 2):
        ways = routes(hosts, src, dst)
        assert [share for share, _ in ways] == [Fraction(1, links)] * links
        assert len({hops[0][0] for _, hops in ways}) == len({hops[-1][0] for _, hops in ways}) == links
        for _, hops in ways:
            assert hops[-1][1] == dst
            for at, (rail, then) in zip([src, *(rank for _, rank in hops)], hops, strict=False):
                assert rails_from(topology, at)[rail] == then


def test_a_route_skips_messages_inside_a_host_and_ends_at_the_rank_itself() -> None:
    hosts = Hosts(((0, 1, 2), (3, 4, 5), (6, 7))).on(parse_spec("3x mi300x @ cables=ring"))
    direct, around = sorted(routes(hosts, 1, 6), key=lambda way: len(way[1]))
    assert [rank for _, rank in direct[1]] == [6]
    assert [hosts.host_of[rank] for _, rank in around[1]] == [1, 2]
    assert around[1][-1][1] == 6


def test_a_line_has_one_way_which_is_a_route_where_a_host_is_in_between() -> None:
    hosts = Hosts(((0,), (1,), (2,))).on(parse_spec("3x mac-studio @ cables=line"))
    assert routes(hosts, 0, 1) == ()
    assert routes(hosts, 0, 2) == ((Fraction(1), ((1, 1), (2, 2))),)
