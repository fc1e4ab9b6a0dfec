"""Several servers joined by cables (below) or by switches, as in ``"16x dgx-a100 @ fabric=tree:4:2"``.

==================  ====================================================================================
rule                switches
==================  ====================================================================================
(none)              one non-blocking switch
``rails``           one per NIC position: NIC i of every server on rail i, without a path between rails
``rails:K``         rails under a spine; the uplink of a rail carries 1/K of the sum of its NICs
``tree:L:K``        one per L servers, under a spine; the uplink carries 1/K of the sum of its NICs
``dragonfly:L:K``   one per L servers, and a link for every pair of switches; the links of a switch have
                    equal rates and carry 1/K of the sum of its NICs
==================  ====================================================================================

``K`` is the *oversubscription*: 1 by default, or a fraction (``3/2``). A spine is one non-blocking switch, since real
networks save on its uplinks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from math import prod

from blinkccl.errors import TopologyError, did_you_mean
from blinkccl.topology.assembly import MAX_LINKS, MAX_VERTICES, Assembly, copies, nic_rate, nics_of
from blinkccl.topology.model import Link, Topology
from blinkccl.topology.synthetic import circle_pairs, torus_pairs

#: A NIC on the network: its vertex, GB/s each way, and the provenance of the rate.
End = tuple[int, Fraction, str]
FORMS = {"rails": "rails, rails:K", "tree": "tree:L, tree:L:K", "dragonfly": "dragonfly:L, dragonfly:L:K"}
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_RATIO = re.compile(r"[1-9][0-9]{0,3}(?:/[1-9][0-9]{0,3})?")


def compose(
    machine: Topology, servers: int, nic_gb_per_s: Fraction | None = None, fabric: str | None = None, where: str = ""
) -> Topology:
    """``servers`` copies of ``machine`` on one non-blocking network switch, or on the switches of a ``fabric``.

    GPU ``j`` of server ``s`` gets the id ``s·G + j`` (G GPUs a server, in ascending order of their ids in
    ``machine``). Switches, hosts and NICs follow, server by server. The network's switches come last and form a group
    of their own, ``server = servers``. ``nic_gb_per_s`` is GB/s per direction of every NIC, on its GPU side and on its
    network side; by default NICs keep the machine's rate. A machine without NICs gets one per server, joined to each
    of its GPUs, and needs ``nic_gb_per_s``. ``fabric`` is one of :data:`FORMS`; its error messages begin with
    ``where``. TopologyError for an unknown fabric, or one that does not fit the servers.
    """
    _check(machine, servers, nic_gb_per_s)
    count = f"{servers}x {machine.name}"
    options = [f"fabric={fabric}"] * (fabric is not None)
    options += [] if nic_gb_per_s is None else [f"{float(nic_gb_per_s * 8):g}Gbps"]
    box = Assembly(f"{count} @ {', '.join(options)}" if options else count, "declared")
    ids = copies(box, [(str(server), machine) for server in range(servers)], nic_gb_per_s)
    if servers > 1 or nic_gb_per_s is not None:
        _join(box, _network_ends(box, machine, ids, nic_gb_per_s), fabric, where)
    return box.finish()


def _check(machine: Topology, servers: int, nic_gb_per_s: Fraction | None) -> None:
    if servers < 1:
        raise TopologyError(f"{servers}x {machine.name}: give at least one server")
    if len({machine.vertex[r].server for r in machine.ranks}) > 1:
        raise TopologyError(f"{machine.name} already has several servers; use a single server")
    if servers * len(machine.vertices) > MAX_VERTICES or servers * len(machine.links) > MAX_LINKS:
        raise TopologyError(
            f"{servers}x {machine.name}: {servers * len(machine.vertices)} vertices and "
            f"{servers * len(machine.links)} links; at most {MAX_VERTICES} and {MAX_LINKS}"
        )
    if servers > 1 and nic_gb_per_s is None and not nics_of(machine):
        raise TopologyError(
            f"{servers}x {machine.name}: {machine.name} has no NIC; add the rate of the "
            f'network: "{servers}x {machine.name} @ 40Gbps"'
        )


def _network_ends(
    box: Assembly, machine: Topology, ids: list[dict[int, int]], nic_gb_per_s: Fraction | None
) -> list[list[End]]:
    """The NICs of each server, with rate and provenance; a machine without NICs gets one."""
    nics = nics_of(machine)
    ends: list[list[End]] = [[] for _ in ids]
    for server, number in enumerate(ids):
        if nics:
            ends[server] = [(number[nic], *nic_rate(machine, nic, nic_gb_per_s)) for nic in nics]
        elif nic_gb_per_s is not None:
            nic = box.add("nic", f"{server}/NIC", server)
            for old in machine.ranks:
                box.join(number[old], nic, nic_gb_per_s, "net")
            ends[server] = [(nic, nic_gb_per_s, "declared")]
    return ends


def _join(box: Assembly, servers: Sequence[Sequence[End]], rule: str | None, where: str) -> None:
    """Join the NICs of ``servers`` by a rule; None: one switch.

    Switches form a group of their own. TopologyError, beginning with ``where``, for an unknown rule, or one that does
    not fit these servers.
    """
    if rule is None:
        _switch(box, len(servers), "NETWORK", [end for ends in servers for end in ends])
        return
    name, *numbers = (part.strip() for part in rule.split(":"))
    if name not in FORMS:
        raise TopologyError(
            f"{where}: fabric={rule} is no known fabric{did_you_mean(name, FORMS)}; expected one of "
            f"{', '.join(FORMS.values())}"
        )
    sizes, ratios = numbers[: name != "rails"], numbers[name != "rails" :]
    if len(ratios) > 1 or not all(map(_RATIO.fullmatch, ratios)) or not all(map(_NUMBER.fullmatch, sizes)):
        raise TopologyError(f"{where}: fabric={rule}; expected {FORMS[name]} with positive numbers")
    if name != "rails" and not sizes:
        raise TopologyError(f"{where}: fabric={rule} lacks the number of servers per switch; expected {FORMS[name]}")
    narrower = Fraction(ratios[0]) if ratios else Fraction(1)
    if name == "rails":
        _rails(box, servers, narrower if ratios else None, where)
    elif name == "tree":
        _under_spine(box, len(servers), _by_leaf(box, servers, int(sizes[0]), "LEAF"), narrower)
    else:
        _dragonfly(box, _by_leaf(box, servers, int(sizes[0]), "GROUP"), narrower)


def _switch(box: Assembly, group: int, label: str, ends: Sequence[End]) -> int:
    switch = box.add("switch", label, group)
    for nic, gb_per_s, source in ends:
        box.join(nic, switch, gb_per_s, "net", source)
    return switch


def _total(ends: Sequence[End]) -> Fraction:
    return sum((gb_per_s for _, gb_per_s, _ in ends), Fraction(0))


def _by_leaf(box: Assembly, servers: Sequence[Sequence[End]], each: int, label: str) -> list[tuple[int, Fraction]]:
    """One switch for every ``each`` servers, with the sum of the rates of its NICs."""
    groups = [servers[i : i + each] for i in range(0, len(servers), each)]
    ends = [[end for server in group for end in server] for group in groups]
    return [(_switch(box, len(servers), f"{label}{i}", each), _total(each)) for i, each in enumerate(ends)]


def _under_spine(box: Assembly, group: int, leaves: Sequence[tuple[int, Fraction]], narrower: Fraction) -> None:
    if len(leaves) < 2:
        return
    spine = box.add("switch", "SPINE", group)
    for leaf, gb_per_s in leaves:
        box.join(leaf, spine, gb_per_s / narrower, "net", "declared")


def _rails(box: Assembly, servers: Sequence[Sequence[End]], narrower: Fraction | None, where: str) -> None:
    most = max(map(len, servers))
    if most < 2:
        raise TopologyError(f"{where}: rails need several NICs per server, but these servers have {most}")
    ends = [[server[place] for server in servers if place < len(server)] for place in range(most)]
    rails = [(_switch(box, len(servers), f"RAIL{i}", each), _total(each)) for i, each in enumerate(ends)]
    if narrower is not None:
        _under_spine(box, len(servers), rails, narrower)


def _dragonfly(box: Assembly, groups: Sequence[tuple[int, Fraction]], narrower: Fraction) -> None:
    for (a, some), (b, more) in combinations(groups, 2):
        box.join(a, b, min(some, more) / narrower / (len(groups) - 1), "net", "declared")


# Servers joined by cables without a switch.
#
# A *port* is a NIC of a server. It forwards between its cable and its server, never to another port. On the way to a
# third server, a rank of the server in between stores the data in its memory, then reduces or forwards it. Machines
# that forward packets from port to port are refused, because such a model would contain a switch that does not exist.
# ``"4x dgx-spark @ cables=ring"`` uses a rule; a file lists each cable (:mod:`~blinkccl.topology.cables_file`).
#: Limits against nonsense input.
MAX_SERVERS, MAX_CABLES = 1024, 10_000
#: The index of a server, and the name of one of its ports.
Port = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Cable:
    """Two ports, and the cable's GB/s each way; None: the rate of the slower port."""

    a: Port
    b: Port
    gb_per_s: Fraction | None = None


@dataclass(frozen=True, slots=True)
class CabledServer:
    """A machine with its host name."""

    name: str
    machine: Topology


def ports_of(machine: Topology) -> dict[str, int]:
    """The NICs of ``machine`` by name, which are its ports; empty if cables create the ports."""
    return {machine.vertex[nic].label: nic for nic in nics_of(machine)}


def cabled(
    name: str, servers: Sequence[CabledServer], cables: Sequence[Cable], nic_gb_per_s: Fraction | None = None
) -> Topology:
    """The topology of ``servers`` joined by ``cables``, each between two existing free ports of two servers.

    A machine without NICs gets one for each port named in ``cables``, joined to each of its GPUs at the cable's rate.
    Ids follow :func:`~blinkccl.topology.assembly.copies`; such ports come last. ``nic_gb_per_s`` replaces the
    machines' rate for all ports. TopologyError if a server would forward packets from port to port, or if a cable
    has no rate.
    """
    for server in {id(s.machine): s for s in servers}.values():
        _refuse_forwarding(server.machine)
    box = Assembly(name, "declared")
    ids = copies(box, [(s.name, s.machine) for s in servers], nic_gb_per_s)
    for cable in cables:
        ends = cable.a, cable.b
        rates = [rate for rate in (cable.gb_per_s, *(_port_rate(servers, end, nic_gb_per_s) for end in ends)) if rate]
        if not rates:
            raise TopologyError(f"{name}: no rate is known for {cable_text(servers, cable)}; add one, such as 100Gbps")
        a, b = (_port(box, servers, ids, end, min(rates)) for end in ends)
        box.join(a, b, min(rates), "net")
        if cable.gb_per_s is not None and cable.gb_per_s > min(rates):
            box.notes.append(
                f"{cable_text(servers, cable)} has {gbit_text(cable.gb_per_s)}, but its ports limit it to "
                f"{gbit_text(min(rates))}"
            )
    return box.finish()


def cable_text(servers: Sequence[CabledServer], cable: Cable) -> str:
    """``the cable spark0:p0 – spark1:p1``."""
    return f"the cable {' – '.join(f'{servers[server].name}:{port}' for server, port in (cable.a, cable.b))}"


def gbit_text(gb_per_s: Fraction | float) -> str:
    """A rate in the unit used for cables: ``200 Gb/s``."""
    return f"{float(gb_per_s) * 8:g} Gb/s"


def _port_rate(servers: Sequence[CabledServer], end: Port, nic_gb_per_s: Fraction | None) -> Fraction | None:
    machine = servers[end[0]].machine
    nic = ports_of(machine).get(end[1])
    return nic_gb_per_s if nic is None else nic_rate(machine, nic, nic_gb_per_s)[0]


def _port(box: Assembly, servers: Sequence[CabledServer], ids: list[dict[int, int]], end: Port, rate: Fraction) -> int:
    """The vertex of a port; it is created if the machine has no NIC of that name."""
    server, name = end
    machine = servers[server].machine
    nic = ports_of(machine).get(name)
    if nic is not None:
        return ids[server][nic]
    port = box.add("nic", f"{servers[server].name}/{name}", server)
    box.join_all([ids[server][rank] for rank in machine.ranks], port, rate, "net")
    return port


def _refuse_forwarding(machine: Topology) -> None:
    """Refuse a machine in which switches or hosts form a path from one NIC to another."""
    ports = nics_of(machine)
    ahead: dict[int, list[int]] = {}
    for link in machine.links:
        if machine.is_transit(link.src):
            ahead.setdefault(link.src, []).append(link.dst)
    for port in ports:
        reached, line = {port}, [port]
        for at in line:
            fresh = [v for v in ahead.get(at, ()) if v not in reached]
            reached.update(fresh)
            line += fresh
        other = next((p for p in ports if p in reached and p != port), None)
        if other is not None:
            names = " to ".join(machine.vertex[v].label for v in (port, other))
            raise TopologyError(
                f"{machine.name}: its PCIe joins {names}, so a plan could forward packets from cable to cable, "
                "which servers do not do; use a catalog machine with these ports and rates"
            )


# Cables by rule: one or several between every two neighbours; ports are used in order.
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

    A server's neighbours use its ports in order. TopologyError, beginning with ``where``, for an unknown rule, too few
    servers, or machines with too few ports.
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
            f"{where}: a server needs {max(free)} ports for cables={rule} with {servers} servers, but {machine.name} "
            f"has {len(names)} ({', '.join(names)}); use fewer cables (a ring needs 2 ports per server)"
        )
    if not names and nic_gb_per_s is None:
        raise TopologyError(
            f'{where}: {machine.name} has no NIC; add the rate of the cables: "… cables={rule}, 100Gbps"'
        )
    rate = "" if nic_gb_per_s is None else f", {float(nic_gb_per_s * 8):g}Gbps"
    name = f"{servers}x {machine.name} @ cables={rule}{rate}"
    return cabled(name, [CabledServer(str(i), machine) for i in range(servers)], cables, nic_gb_per_s)


def _name(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else f"p{place}"


def _pairs(shape: str, servers: int, where: str) -> list[tuple[int, int]]:
    if servers < 2:
        raise TopologyError(f"{where}: cables need at least 2 servers, got {servers}")
    if servers > MAX_SERVERS:
        raise TopologyError(f"{where}: {servers} servers; a rule for cables allows at most {MAX_SERVERS}")
    if _TORUS.fullmatch(shape):
        sides = [int(side) for side in shape.removeprefix("torus:").split("x")]
        if prod(sides) != servers:
            raise TopologyError(f"{where}: cables={shape} is for {prod(sides)} servers, got {servers}")
        return torus_pairs(*sides)
    if shape not in _RULES:
        near = did_you_mean(shape, _RULES)
        raise TopologyError(
            f"{where}: {shape!r} is no rule for cables{near}; expected one of {', '.join(RULES)}; a cables file "
            "replaces the whole topology"
        )
    return _RULES[shape](servers)


def cables_of(topology: Topology) -> tuple[Link, ...]:
    """The cables of a topology, one direction each: network links between NICs of two servers, without a switch.

    Each runs from the lower vertex id to the higher; they are sorted by these ids.
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
