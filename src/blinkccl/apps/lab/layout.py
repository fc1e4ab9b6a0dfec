"""The layout of a laboratory, computed without access to the system: namespaces, links between them, routes.

Every vertex is a network namespace, and every link a pair of virtual Ethernet devices, with each end shaped to the rate
of its direction. Switches, NICs and hosts that forward packets are namespaces that forward them. A process runs at
ranks and at places where data is stored (:mod:`blinkccl.topology.memories`).

A connection must use the links of its path and no others. If the path is one link, its receiver has the address of the
link's end. A path through forwarding vertices has a device with an address of its own at either end, and on each of its
vertices a route to each: so two paths between the same ends may use different switches. UCX selects paths by devices.

Programs that know hosts and no links have one address per host, and one path from each host to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Address
from itertools import pairwise

from blinkccl.errors import UsageError
from blinkccl.topology.model import Topology

#: Vertex ids along the links of a path.
Path = tuple[int, ...]
#: Pairs of addresses for links, and for the ends of paths.
_LINKS = IPv4Address("10.128.0.0")
_PATHS = IPv4Address("10.0.0.0")
_HOSTS = IPv4Address("10.192.0.0")
_MOST = 1 << 22
#: The device with a host's address, for programs that need its name.
HOST_DEVICE = "host0"
#: Limits of rates: below, a bucket of a qdisc takes longer than a collective; above, one device is too slow.
RATES_BIT_PER_S = (1_000_000, 20_000_000_000)


@dataclass(frozen=True, slots=True)
class Port:
    """The end of a link in the namespace of ``vertex``: data sent to ``peer`` is shaped to ``bit_per_s``."""

    vertex: int
    peer: int
    address: str
    gateway: str
    bit_per_s: int

    @property
    def device(self) -> str:
        return f"to{self.peer}"


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the namespace of ``vertex``: to ``destination`` by ``port``, from ``source`` if not None."""

    destination: str
    port: Port
    source: str | None = None


@dataclass(frozen=True)
class Layout:
    """Namespaces, by vertex; pairs of ports; and per vertex the addresses of paths that end there and its routes."""

    vertices: tuple[int, ...]
    links: tuple[tuple[Port, Port], ...]
    addresses: Mapping[int, tuple[str, ...]]
    routes: Mapping[int, tuple[Route, ...]]
    receivers: Mapping[Path, str]
    forwarding: frozenset[int] = frozenset()
    hosts: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def port(self) -> dict[tuple[int, int], Port]:
        """Ports by (vertex, peer)."""
        return {(port.vertex, port.peer): port for pair in self.links for port in pair}

    @cached_property
    def senders(self) -> dict[Path, str]:
        """The addresses of the senders of longer paths."""
        return {path: other_end(end) for path, end in self.receivers.items() if len(path) > 2}

    def devices(self, path: Path) -> tuple[str, str]:
        """The devices of a path's ends: those of its link, or a pair of its own."""
        if len(path) == 2:
            return self.port[path].device, self.port[path[::-1]].device
        return (device_of(self.receivers[path]),) * 2

    def forwards(self, vertex: int) -> bool:
        """True if packets of others pass through."""
        return vertex in self.forwarding


def device_of(address: str) -> str:
    """The device with an address of a path."""
    return f"path{(int(IPv4Address(address)) - int(_PATHS)) // 2}"


def other_end(address: str) -> str:
    """The address of the other end of a path."""
    return str(IPv4Address(int(IPv4Address(address)) ^ 1))


def lay_out(
    networks: Iterable[Topology],
    paths: Iterable[Path],
    bit_per_s_per_gb: float,
    ways: Mapping[tuple[int, int], Path] | None = None,
) -> Layout:
    """The laboratory for all ``paths``, on the links of all ``networks`` of one machine.

    ``ways``: by ordered pair of hosts, the path to the second host's own address.

    Rates are those of the links, times ``bit_per_s_per_gb``; if networks differ about a link, the fastest. A direction
    that no network has carries only acknowledgements and gets the rate of the other. UsageError for a path over a link
    that no network has, and for rates that cannot be shaped.
    """
    rates: dict[tuple[int, int], float] = {}
    for network in networks:
        for link in network.links:
            ends = link.src, link.dst
            rates[ends] = max(rates.get(ends, 0.0), link.gb_per_s)
    pairs = sorted({(min(ends), max(ends)) for ends in rates})
    links = []
    for number, (a, b) in enumerate(pairs):
        addresses = str(_LINKS + 2 * number), str(_LINKS + 2 * number + 1)
        forward = _bit_per_s(a, b, rates.get((a, b)) or rates[b, a], bit_per_s_per_gb)
        back = _bit_per_s(b, a, rates.get((b, a)) or rates[a, b], bit_per_s_per_gb)
        links.append((Port(a, b, *addresses, forward), Port(b, a, *addresses[::-1], back)))
    vertices = tuple(sorted({v for pair in pairs for v in pair}))
    routed = _routed(Layout(vertices, tuple(links), {}, {}, {}), dict.fromkeys(paths), rates)
    return _with_hosts(routed, ways) if ways else routed


def _bit_per_s(src: int, dst: int, gb_per_s: float, scale: float) -> int:
    rate = round(gb_per_s * scale)
    least, most = RATES_BIT_PER_S
    if not least <= rate <= most:
        raise UsageError(
            f"link {src} → {dst} of {gb_per_s:g} GB/s would be shaped to {rate / 1e6:g} Mbit/s; give a --lane for "
            f"which every link is within {least / 1e6:g} and {most / 1e6:g}"
        )
    return rate


def _routed(bare: Layout, paths: Iterable[Path], rates: Mapping[tuple[int, int], float]) -> Layout:
    """The layout with an address for the receiver of every path, and the routes in both directions."""
    receivers: dict[Path, str] = {}
    addresses: dict[int, list[str]] = {v: [] for v in bare.vertices}
    routes: dict[int, list[Route]] = {v: [] for v in bare.vertices}
    for path in paths:
        for pair in pairwise(path):
            if pair not in rates:
                raise UsageError(f"path {list(path)} uses link {pair[0]} → {pair[1]}, which does not exist")
        if len(path) == 2:
            receivers[path] = bare.port[path[1], path[0]].address
            continue
        first = 2 * len(receivers)
        if first + 1 >= _MOST:
            raise UsageError(f"a laboratory has at most {_MOST // 2} paths")
        sender, receiver = str(_PATHS + first), str(_PATHS + first + 1)
        receivers[path] = receiver
        addresses[path[0]].append(sender)
        addresses[path[-1]].append(receiver)
        for a, b in pairwise(path):
            routes[a].append(Route(receiver, bare.port[a, b], sender if a == path[0] else None))
            routes[b].append(Route(sender, bare.port[b, a], receiver if b == path[-1] else None))
    return Layout(
        bare.vertices,
        bare.links,
        {v: tuple(rows) for v, rows in addresses.items()},
        {v: tuple(rows) for v, rows in routes.items()},
        receivers,
        frozenset(v for path in receivers for v in path[1:-1]),
    )


def _with_hosts(layout: Layout, ways: Mapping[tuple[int, int], Path]) -> Layout:
    """The layout with an address per host, and routes to it from every vertex on a path to it."""
    hosts = {host: str(_HOSTS + host) for host in sorted({end for pair in ways for end in pair})}
    ports: dict[tuple[int, int], Port] = {}
    for (_, end), path in ways.items():
        for a, b in pairwise(path):
            if ports.setdefault((a, end), layout.port[a, b]) != layout.port[a, b]:
                raise UsageError(f"vertex {a} would have two paths to host {end}, over {ports[a, end].peer} and {b}")
    routes = {v: list(rows) for v, rows in layout.routes.items()}
    for (at, end), port in ports.items():
        routes[at].append(Route(hosts[end], port, hosts.get(at)))
    return replace(
        layout,
        routes={v: tuple(rows) for v, rows in routes.items()},
        forwarding=layout.forwarding.union(*(path[1:-1] for path in ways.values())),
        hosts=hosts,
    )
