"""Rails: the network interfaces that carry a plan's queues, one for each cable between hosts.

The topology that a user states has cables between its servers. The hosts of a job have interfaces with addresses. A
subnet that exactly two hosts share is a cable between their interfaces. Cable k of the topology is rail k + 1 on all
ranks, and a queue that crosses it uses its interfaces alone. A queue that crosses no cable has rail 0: UCX selects a
network.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_interface
from itertools import combinations, pairwise
from pathlib import Path

from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.schedule.program import Program
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import Topology

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
    shared = _shared(hosts)
    rails: list[dict[int, str]] = [{} for _ in hosts]
    for a, b in combinations(range(len(hosts)), 2):
        cables = [rail for rail, other in rails_from(topology, servers[a]).items() if other == servers[b]]
        pairs = shared.get((a, b), [])
        if cables and len(pairs) != len(cables):
            between = f"servers {servers[a]} and {servers[b]} (hosts {names[a]} and {names[b]})"
            raise TopologyError(
                f"{topology.name}: expected {_count(len(cables), 'cable')} between {between}, got "
                f"{_count(len(pairs), 'subnet')} of these two alone{_listed(pairs)}; give each cable a subnet of "
                "its own, start ranks in the order of the servers, or name the cables' interfaces in UCX_NET_DEVICES"
            )
        for rail, (near, far) in zip(cables, pairs if cables else (), strict=True):
            rails[a][rail], rails[b][rail] = near, far
    return rails


def _shared(hosts: Sequence[Interfaces]) -> dict[tuple[int, int], list[tuple[str, str]]]:
    """The interfaces of two hosts in the subnets that only these two have, by the hosts, in the order of names."""
    members: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for host, interfaces in enumerate(hosts):
        for name, text in interfaces.items():
            members[str(ip_interface(text).network)].append((host, name, text))
    shared: dict[tuple[int, int], list[tuple[str, str]]] = defaultdict(list)
    for ends in members.values():
        # Equal addresses are not joined: bridges of containers have the same subnet on every host.
        if len(ends) == 2 and ends[0][0] != ends[1][0] and ends[0][2] != ends[1][2]:
            (a, near, _), (b, far, _) = ends
            shared[a, b].append((near, far))
    return {hosts: sorted(pairs, key=lambda pair: _natural(pair[0])) for hosts, pairs in shared.items()}


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number > 1)}"


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    return f" ({', '.join(f'{a} – {b}' for a, b in pairs)})" if pairs else ""


def devices(interface: str) -> str:
    """The value of UCX_NET_DEVICES for an interface: itself, and the RDMA device that it belongs to, if any."""
    cards = sorted(Path(f"/sys/class/net/{interface}/device/infiniband").glob("*"))
    with suppress(OSError, ValueError):
        port = int(Path(f"/sys/class/net/{interface}/dev_port").read_text()) + 1
        return ",".join((*(f"{card.name}:{port}" for card in cards), interface))
    return interface
