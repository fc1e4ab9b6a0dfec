"""Servers joined by cables and no switch: which port is joined to which, and the topology that comes of it.

A *port* is a NIC of a server. It passes data on between its cable and its server, and never to another port: what goes
on to a third server is stored in the memory of one in between, by a rank that combines it or hands it on. A machine on
which packets could go from port to port by themselves is refused, as it would be a switch that is not there.

``"4x dgx-spark @ cables=ring"`` cables by a rule; a file says each cable (:mod:`~blinkccl.topology.cables_file`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from math import prod

from blinkccl.errors import TopologyError, did_you_mean
from blinkccl.topology.assembly import Assembly, copies, nic_rate, nics_of
from blinkccl.topology.model import Link, Topology
from blinkccl.topology.synthetic import circle_pairs, torus_pairs

#: No cluster without a switch is larger: nonsense is refused at once.
MAX_SERVERS, MAX_CABLES = 1024, 10_000
#: A server by its place, and the name of one of its ports.
Port = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Cable:
    """Two ports and what the cable carries each way, in GB/s; None: what the slower of them does."""

    a: Port
    b: Port
    gb_per_s: Fraction | None = None


@dataclass(frozen=True, slots=True)
class CabledServer:
    """A machine with the name that people call it by."""

    name: str
    machine: Topology


def ports_of(machine: Topology) -> dict[str, int]:
    """Its NICs by name: the ports that cables go into; none where cables bring ports of their own."""
    return {machine.vertex[nic].label: nic for nic in nics_of(machine)}


def cabled(
    name: str, servers: Sequence[CabledServer], cables: Sequence[Cable], nic_gb_per_s: Fraction | None = None
) -> Topology:
    """The topology of ``servers`` joined by ``cables``, each between free ports of two servers that have them.

    A machine without NICs gets one for each port that is named, joined to each of its GPUs at the cable's rate. Ids are
    those of :func:`~blinkccl.topology.assembly.copies`, such ports last. ``nic_gb_per_s``: of all ports, in place of
    the machines' own rate. TopologyError where packets could pass from port to port in a server, or where nothing says
    how fast a cable is.
    """
    for server in {id(s.machine): s for s in servers}.values():
        _refuse_forwarding(server.machine)
    box = Assembly(name, "declared")
    ids = copies(box, [(s.name, s.machine) for s in servers], nic_gb_per_s)
    for cable in cables:
        ends = cable.a, cable.b
        rates = [rate for rate in (cable.gb_per_s, *(_port_rate(servers, end, nic_gb_per_s) for end in ends)) if rate]
        if not rates:
            raise TopologyError(
                f"{name}: nothing says how fast {cable_text(servers, cable)} is; give it a rate: 100Gbps"
            )
        a, b = (_port(box, servers, ids, end, min(rates)) for end in ends)
        box.join(a, b, min(rates), "net")
        if cable.gb_per_s is not None and cable.gb_per_s > min(rates):
            box.notes.append(
                f"{cable_text(servers, cable)} could carry {gbit_text(cable.gb_per_s)}, its ports "
                f"{gbit_text(min(rates))}: it is taken for that"
            )
    return box.finish()


def cable_text(servers: Sequence[CabledServer], cable: Cable) -> str:
    """``the cable spark0:p0 – spark1:p1``."""
    return f"the cable {' – '.join(f'{servers[server].name}:{port}' for server, port in (cable.a, cable.b))}"


def gbit_text(gb_per_s: Fraction | float) -> str:
    """As cables are sold: ``200 Gb/s``."""
    return f"{float(gb_per_s) * 8:g} Gb/s"


def _port_rate(servers: Sequence[CabledServer], end: Port, nic_gb_per_s: Fraction | None) -> Fraction | None:
    machine = servers[end[0]].machine
    nic = ports_of(machine).get(end[1])
    return nic_gb_per_s if nic is None else nic_rate(machine, nic, nic_gb_per_s)[0]


def _port(box: Assembly, servers: Sequence[CabledServer], ids: list[dict[int, int]], end: Port, rate: Fraction) -> int:
    """The vertex of a port, which is made where the machine has none."""
    server, name = end
    machine = servers[server].machine
    nic = ports_of(machine).get(name)
    if nic is not None:
        return ids[server][nic]
    port = box.add("nic", f"{servers[server].name}/{name}", server)
    box.join_all([ids[server][rank] for rank in machine.ranks], port, rate, "net")
    return port


def _refuse_forwarding(machine: Topology) -> None:
    """Refuse a machine in which switches or hosts lead from one NIC to another."""
    ports = nics_of(machine)
    ahead: dict[int, list[int]] = {}
    for link in machine.links:
        if machine.is_transit(link.src):
            ahead.setdefault(link.src, []).append(link.dst)
    for port in ports:
        seen, line = {port}, [port]
        for at in line:
            fresh = [v for v in ahead.get(at, ()) if v not in seen]
            seen.update(fresh)
            line += fresh
        other = next((p for p in ports if p in seen and p != port), None)
        if other is not None:
            names = " to ".join(machine.vertex[v].label for v in (port, other))
            raise TopologyError(
                f"{machine.name}: its PCIe leads from {names}, so that a plan could send packets from cable to cable "
                "as a switch does, which no server is; use a machine of the catalog with these ports and rates"
            )


# Cables by rule: one between every two neighbours, or several, in ports from the first on.
_TORUS = re.compile(r"torus:[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,9}")
_RULES: dict[str, Callable[[int], list[tuple[int, int]]]] = {
    "ring": circle_pairs,
    "line": lambda n: list(pairwise(range(n))),
    "mesh": lambda n: list(combinations(range(n), 2)),
    "star": lambda n: [(0, other) for other in range(1, n)],
}
RULES = (*_RULES, "torus:AxB")


def by_rule(rule: str, machine: Topology, servers: int, nic_gb_per_s: Fraction | None, where: str) -> Topology:
    """``servers`` copies of ``machine`` cabled by ``rule``: one of :data:`RULES`, with ``*K`` for K cables per pair.

    A server's neighbours take its ports in their order. TopologyError, ``where`` in front, for another rule, fewer
    servers than it needs, and machines with too few ports.
    """
    shape, times, number = rule.partition("*")
    pairs = _pairs(shape, servers, where)
    if len(pairs) > MAX_CABLES:
        raise TopologyError(f"{where}: {len(pairs)} cables; at most {MAX_CABLES}")
    each = int(number) if re.fullmatch("[1-9][0-9]?", number) else None if times else 1
    if each is None:
        raise TopologyError(f"{where}: {number!r} is no number of cables per pair; expected e.g. cables={shape}*2")
    names, free = list(ports_of(machine)), [0] * servers
    cables = []
    for a, b in [pair for pair in pairs for _ in range(each)]:
        cables.append(Cable((a, _name(names, free[a])), (b, _name(names, free[b]))))
        free[a], free[b] = free[a] + 1, free[b] + 1
    if names and max(free) > len(names):
        raise TopologyError(
            f"{where}: a server needs {max(free)} ports for cables={rule} among {servers}, and {machine.name} has "
            f"{len(names)} ({', '.join(names)}); expected fewer cables: a ring takes 2 ports of each"
        )
    if not names and nic_gb_per_s is None:
        raise TopologyError(
            f'{where}: {machine.name} has no NIC, so say how fast the cables are: "… cables={rule}, 100Gbps"'
        )
    rate = "" if nic_gb_per_s is None else f", {float(nic_gb_per_s * 8):g}Gbps"
    name = f"{servers}x {machine.name} @ cables={rule}{rate}"
    return cabled(name, [CabledServer(str(i), machine) for i in range(servers)], cables, nic_gb_per_s)


def _name(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else f"p{place}"


def _pairs(shape: str, servers: int, where: str) -> list[tuple[int, int]]:
    if servers < 2:
        raise TopologyError(f"{where}: cables join servers, and there is {servers}; give at least 2")
    if servers > MAX_SERVERS:
        raise TopologyError(f"{where}: {servers} servers; at most {MAX_SERVERS} by a rule for cables")
    if _TORUS.fullmatch(shape):
        sides = [int(side) for side in shape.removeprefix("torus:").split("x")]
        if prod(sides) != servers:
            raise TopologyError(f"{where}: cables={shape} joins {prod(sides)} servers, and there are {servers}")
        return torus_pairs(*sides)
    if shape not in _RULES:
        near = did_you_mean(shape, _RULES)
        raise TopologyError(
            f"{where}: {shape!r} is no rule for cables{near}; expected one of {', '.join(RULES)}; a file with a line "
            "per cable names its machines itself, and is the whole topology"
        )
    return _RULES[shape](servers)


def cables_of(topology: Topology) -> tuple[Link, ...]:
    """The cables of a topology, one direction each: network links from NIC to NIC of another server, no switch between.

    From the lower vertex id to the higher, by these.
    """
    vertex = topology.vertex
    return tuple(
        x
        for x in sorted(topology.links, key=lambda x: (x.src, x.dst))
        if x.kind == "net"
        and x.src < x.dst
        and vertex[x.src].kind == vertex[x.dst].kind == "nic"
        and vertex[x.src].server != vertex[x.dst].server
    )
