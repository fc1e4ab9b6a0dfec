"""Rails: the network interfaces that carry a plan's queues, one for each cable between hosts.

The topology that a user states has cables between its servers. The hosts of a job have interfaces with addresses. A
subnet that exactly two hosts share is a cable between their interfaces. Cable k of the topology is rail k + 1 on all
ranks, and a queue that crosses it uses its interfaces alone. A queue that crosses no cable has rail 0: UCX selects a
network.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_interface
from itertools import combinations, pairwise
from pathlib import Path

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.schedule.program import Program
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import Topology

_RDMA = Path("/sys/class/infiniband")
#: The interfaces of a host by name, each with its address and network: ``{"eth0": "10.0.0.7/24"}``.
Interfaces = Mapping[str, str]


def rails_of(program: Program, topology: Topology) -> tuple[int, ...]:
    """The rail of each queue of ``program``, which is valid on ``topology``.

    UnsupportedError if a queue crosses several cables: no rank of the server in between would forward its messages.
    """
    number = {frozenset((cable.src, cable.dst)): rail for rail, cable in enumerate(cables_of(topology), 1)}
    rails = []
    for queue in program.queues:
        crossed = [number[ends] for ends in map(frozenset, pairwise(queue.path)) if ends in number]
        if len(crossed) > 1:
            raise UnsupportedError(f"{topology.name}: no rank stores the messages between the cables of {queue.path}")
        rails.append(crossed[0] if crossed else 0)
    return tuple(rails)


def rails_from(topology: Topology, server: int) -> dict[int, int]:
    """The rails of a server, each with the server at its other end."""
    ends = [tuple(topology.vertex[end].server for end in (cable.src, cable.dst)) for cable in cables_of(topology)]
    return {rail: sum(pair) - server for rail, pair in enumerate(ends, 1) if server in pair}


def interfaces_of_rails(
    topology: Topology, servers: Sequence[int], hosts: Sequence[Interfaces], names: Sequence[str]
) -> list[dict[int, str]]:
    """The interface of each rail, per host of a job: host h, which is called ``names[h]``, is server ``servers[h]``.

    Cables between the same two hosts get their interfaces in the order of these names. TopologyError if the number of
    cables between two hosts is not that of the subnets that only these two have.
    """
    shared: dict[tuple[int, ...], list[Network]] = defaultdict(list)
    for network in networks(hosts):
        shared[tuple(sorted(network.ends))].append(network)
    rails: list[dict[int, str]] = [{} for _ in hosts]
    for a, b in combinations(range(len(hosts)), 2):
        cables = [rail for rail, other in rails_from(topology, servers[a]).items() if other == servers[b]]
        alone = shared[a, b]
        if cables and len(alone) != len(cables):
            between = f"servers {servers[a]} and {servers[b]} (hosts {names[a]} and {names[b]})"
            raise TopologyError(
                f"{topology.name}: expected {_count(len(cables), 'cable')} between {between}, got "
                f"{_count(len(alone), 'subnet')} of these two alone{_listed(alone, a, b)}; give each cable a subnet of "
                "its own, start ranks in the order of the servers, or name the cables' interfaces in UCX_NET_DEVICES"
            )
        for rail, network in zip(cables, alone if cables else (), strict=True):
            rails[a][rail], rails[b][rail] = network.ends[a], network.ends[b]
    return rails


@dataclass(frozen=True, slots=True)
class Network:
    """The hosts in a subnet, each with its interface there."""

    subnet: str
    ends: Mapping[int, str]

    @property
    def is_cable(self) -> bool:
        return len(self.ends) == 2


def networks(hosts: Sequence[Interfaces]) -> list[Network]:
    """The subnets of at least two hosts, in the order of the first host's interfaces."""
    members: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for host, interfaces in enumerate(hosts):
        for name in sorted(interfaces, key=_natural):
            members[str(ip_interface(interfaces[name]).network)].append((host, name, interfaces[name]))
    # Equal addresses are not joined: bridges of containers have the same subnet on every host. Nor are two interfaces
    # of one host ends of a network between hosts.
    return [
        Network(subnet, {host: name for host, name, _ in ends})
        for subnet, ends in members.items()
        if 2 <= len({host for host, _, _ in ends}) == len({address for _, _, address in ends}) == len(ends)
    ]


def for_all(hosts: Sequence[Interfaces], own: int, cables: Container[str]) -> list[str]:
    """The interfaces of host ``own`` for messages to any host: those in subnets of all hosts, without ``cables``.

    Older versions of UCX do not check routes, so they would send into a cable or a container's bridge. Without such a
    subnet these are all but the cables. With an RDMA card, which needs no address, an empty list: UCX selects.
    """
    if _RDMA.exists() and not cables:
        return []
    whole = [network.ends[own] for network in networks(hosts) if len(network.ends) == len(hosts)]
    others = [name for name in hosts[own] if name not in cables]
    return [name for name in whole if name in others] or (others if cables else [])


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number > 1)}"


def _listed(alone: Sequence[Network], a: int, b: int) -> str:
    return f" ({', '.join(f'{network.ends[a]} – {network.ends[b]}' for network in alone)})" if alone else ""


def devices(interface: str) -> str:
    """The value of UCX_NET_DEVICES for an interface: itself, and the RDMA device that it belongs to, if any."""
    cards = sorted(Path(f"/sys/class/net/{interface}/device/infiniband").glob("*"))
    with suppress(OSError, ValueError):
        port = int(Path(f"/sys/class/net/{interface}/dev_port").read_text()) + 1
        return ",".join((*(f"{card.name}:{port}" for card in cards), interface))
    return interface
