"""The layout of a laboratory: pairs of devices, rates, addresses, and routes along every path."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.apps.lab.layout import Layout, Path, lay_out
from blinkccl.apps.lab.site import among_sites
from blinkccl.errors import UsageError
from blinkccl.schedule.lower import lower
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.shapes import transit_paths
from support.examples import examples
from support.forests import random_forest
from support.planned import asked


def laid_out(spec: str, name: str, gpus: str | None = None, **options: object) -> tuple[Layout, Topology]:
    forest = algorithm("optimal").plan(asked(spec, name, gpus, **options))
    paths = [queue.path for queue in among_sites(lower(forest)).queues]
    return lay_out([forest.topology], paths, 4e6), forest.topology


def followed(layout: Layout, start: int, destination: str) -> Path:
    """The path of a packet."""
    owner = {address: v for v, own in layout.addresses.items() for address in own}
    owner |= {address: v for v, address in layout.hosts.items()}
    owner |= {port.address: port.vertex for pair in layout.links for port in pair}
    path = [start]
    while owner[destination] != path[-1] and len(path) < 99:
        ways = {route.destination: route.port for route in layout.routes[path[-1]]}
        ways |= {port.gateway: port for pair in layout.links for port in pair if port.vertex == path[-1]}
        port = ways[destination]
        assert (port.vertex, owner[port.gateway]) == (path[-1], port.peer)
        path.append(port.peer)
    return tuple(path)


def check(layout: Layout, topology: Topology, scale: float) -> None:
    """Check that links are pairs with their rates, addresses are unique, and data and replies keep to their paths."""
    assert layout.vertices == tuple(sorted({v for link in topology.links for v in (link.src, link.dst)}))
    assert len(layout.links) == len({frozenset((link.src, link.dst)) for link in topology.links})
    for link in topology.links:
        assert layout.port[link.src, link.dst].bit_per_s == round(link.gb_per_s * scale)
    for here, far in layout.links:
        assert (here.vertex, here.peer, here.address, here.gateway) == (
            far.peer,
            far.vertex,
            far.gateway,
            far.address,
        )
        assert len(here.device) <= 15
    uses = Counter(port.address for pair in layout.links for port in pair)
    uses.update(address for own in layout.addresses.values() for address in own)
    assert max(uses.values()) == 1
    for path, receiver in layout.receivers.items():
        assert followed(layout, path[0], receiver) == path
        if len(path) > 2:
            (sender,) = {route.source for route in layout.routes[path[0]] if route.destination == receiver}
            assert sender in layout.addresses[path[0]]
            assert followed(layout, path[-1], sender) == path[::-1]
        assert all(layout.forwards(v) for v in path[1:-1])


@examples(30)
@given(seed=st.integers(0, 2**32))
def test_any_plan_has_a_layout(seed: int) -> None:
    forest = random_forest(Random(seed))
    layout = lay_out([forest.topology], [queue.path for queue in among_sites(lower(forest)).queues], 1e7)
    check(layout, forest.topology, 1e7)


@pytest.mark.parametrize(
    ("spec", "gpus", "options"),
    [
        ("dgx-1v", "1,4,5,6", {}),
        ("dgx-1v", "0,5", {"links": "pcie"}),
        ("dgx-2", "0-4", {}),
        ("mist", None, {}),
        ("ring:6", "0,3", {"relays": True}),
        ("2x dgx-1v @ 40Gbps", "0,1,2+1,2", {}),
    ],
)
def test_machines_have_layouts(spec: str, gpus: str | None, options: dict[str, object]) -> None:
    check(*laid_out(spec, "broadcast", gpus, **options), 4e6)


def test_what_stores_does_not_forward_and_what_switches_does() -> None:
    relayed, _ = laid_out("ring:6", "sendrecv", "0,3", relays=True)
    assert not any(relayed.forwards(v) for v in relayed.vertices)
    switched, _ = laid_out("dgx-2", "broadcast", "0,1,2")
    assert [v for v in switched.vertices if switched.forwards(v)] == [16]


def test_two_paths_between_the_same_ends_take_their_own_switches() -> None:
    """Their destinations are equal: both end with the same link."""
    topology = parse_spec("dgx-a100")
    first, *_ = {path for path in laid_out("dgx-a100", "broadcast", "0,1")[0].receivers if path[0] == 0}
    both = [(0, 1), first]
    with pytest.raises(UsageError, match=r"path \[0, 1\] uses link 0 → 1, which does not exist"):
        lay_out([topology], both, 4e6)
    square = asked("ring:4", "broadcast").network
    layout = lay_out([square], [(0, 1, 2), (0, 3, 2), (1, 0, 3, 2)], 1e7)
    assert len({layout.receivers[path] for path in layout.receivers}) == 3
    check(layout, square, 1e7)


def test_networks_of_one_machine_are_laid_together() -> None:
    fast, slow = (asked("dgx-1v", "broadcast", "1,4,5,6", links=links).network for links in ("fast", "pcie"))
    layout = lay_out([fast, slow], [], 4e6)
    assert {(p.vertex, p.peer) for pair in layout.links for p in pair} == {*fast.link, *slow.link}


def test_a_direction_that_is_not_there_has_the_rate_of_the_other() -> None:
    ring = asked("ring:3", "broadcast").network
    one_way = Topology("one-way", ring.unit_gb_per_s, ring.vertices, tuple(x for x in ring.links if x.src < x.dst))
    layout = lay_out([one_way], [(0, 1)], 1e7)
    assert layout.port[1, 0].bit_per_s == layout.port[0, 1].bit_per_s


@pytest.mark.parametrize("scale", [1.0, 1e12])
def test_rates_that_cannot_be_shaped_are_refused(scale: float) -> None:
    with pytest.raises(UsageError, match=r"link 0 → 1 of .* would be shaped to .* Mbit/s; give a --lane for which"):
        lay_out([asked("ring:3", "broadcast").network], [], scale)


def test_hosts_reach_each_other_by_one_address_over_fast_links_or_pcie() -> None:
    network = network_for(parse_spec("dgx-1v"), (0, 1, 4, 6), "all", stored=False)
    ways = transit_paths(network, (0, 1, 4, 6))
    layout = lay_out([network], [], 4e6, ways)
    assert len(set(layout.hosts.values())) == 4
    for (a, b), path in ways.items():
        assert followed(layout, a, layout.hosts[b]) == path
        assert all(layout.forwards(v) for v in path[1:-1])
        assert {route.source for route in layout.routes[a] if route.destination == layout.hosts[b]} == {layout.hosts[a]}
    assert ways[0, 1] == (0, 1)
    assert len(ways[0, 6]) > 2
    assert not any(layout.forwards(v) for v in layout.hosts)


def test_two_ways_to_one_address_are_refused() -> None:
    square = asked("ring:4", "broadcast").network
    with pytest.raises(UsageError, match="vertex 1 would have two paths to host 2, over 2 and 0"):
        lay_out([square], [], 1e7, {(0, 2): (0, 1, 2), (1, 2): (1, 0, 3, 2)})


@pytest.mark.parametrize(
    "spec", ["4x dgx-spark @ cables=ring", "4x mac-studio @ cables=mesh", "3x dgx-spark @ cables=line"]
)
@pytest.mark.parametrize("name", ["allreduce", "allgather", "alltoall"])
def test_between_machines_are_the_cables_and_nothing_else(spec: str, name: str) -> None:
    """A pair of devices per cable, and no packet crosses two cables: a process receives data and sends it on."""
    layout, _ = laid_out(spec, name)
    topology = parse_spec(spec)
    cables = {(x.src, x.dst): x.gb_per_s for x in cables_of(topology)}
    server = {v.id: v.server for v in topology.vertices}
    across = [pair for pair in layout.links if server[pair[0].vertex] != server[pair[1].vertex]]
    assert [(a.vertex, a.peer) for a, _ in across] == sorted(cables)
    for pair in across:
        rate = cables[pair[0].vertex, pair[0].peer] * 4e6
        assert [port.bit_per_s for port in pair] == [rate, rate]
    for path in layout.receivers:
        assert sum(server[a] != server[b] for a, b in pairwise(path)) == 1
        assert followed(layout, path[0], layout.receivers[path]) == path
    assert not set(topology.ranks) & layout.forwarding
