"""Several servers and what joins them: cables (below), or switches, as in ``"16x dgx-a100 @ fabric=tree:4:2"``.

==================  ====================================================================================
rule                switches
==================  ====================================================================================
(none)              one, which is never the limit
``rails``           one for each place of a NIC: NIC i of every server on rail i, and no way between rails
``rails:K``         with a spine above them; a rail's way up carries 1/K of what its NICs do together
``tree:L:K``        one for every L servers, under a spine; its way up carries 1/K of its NICs
``dragonfly:L:K``   one for every L servers, and a link for every pair of them; the links of one carry 1/K
                    of its NICs, each as much as the others
==================  ====================================================================================

``K``, the *oversubscription*, is 1 where it is left out, and may be a fraction (``3/2``). A spine is one switch that is
never the limit: whatever stands for it in a real network, links up to it are what is bought less of.
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

#: A NIC on the network: its vertex, GB/s each way, and where that is from.
End = tuple[int, Fraction, str]
FORMS = {"rails": "rails, rails:K", "tree": "tree:L, tree:L:K", "dragonfly": "dragonfly:L, dragonfly:L:K"}
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_RATIO = re.compile(r"[1-9][0-9]{0,3}(?:/[1-9][0-9]{0,3})?")


def compose(
    machine: Topology, servers: int, nic_gb_per_s: Fraction | None = None, fabric: str | None = None, where: str = ""
) -> Topology:
    """``servers`` copies of ``machine`` on one non-blocking network switch, or on those of a ``fabric``.

    GPU ``j`` of server ``s`` gets the id ``s·G + j`` (G GPUs a server, in ascending order of their ids in
    ``machine``); switches, hosts and NICs follow, server by server; the network's switches come last and form a group
    of their own, ``server = servers``. ``nic_gb_per_s`` is GB/s per direction of every NIC, on its GPU side and on its
    network side; without it the NICs keep the machine's rate. A machine that has no NIC gets one per server, joined to
    each of its GPUs: then the rate must be given. ``fabric``: one of :data:`FORMS`; ``where`` is what messages of it
    call the whole. TopologyError for what is no fabric, and where servers cannot be joined so.
    """
    _check(machine, servers, nic_gb_per_s)
    count = f"{servers}x {machine.name}"
    said = [f"fabric={fabric}"] * (fabric is not None)
    said += [] if nic_gb_per_s is None else [f"{float(nic_gb_per_s * 8):g}Gbps"]
    box = Assembly(f"{count} @ {', '.join(said)}" if said else count, "declared")
    ids = copies(box, [(str(server), machine) for server in range(servers)], nic_gb_per_s)
    if servers > 1 or nic_gb_per_s is not None:
        _join(box, _network_ends(box, machine, ids, nic_gb_per_s), fabric, where)
    return box.finish()


def _check(machine: Topology, servers: int, nic_gb_per_s: Fraction | None) -> None:
    if servers < 1:
        raise TopologyError(f"{servers}x {machine.name}: give at least one server")
    if len({machine.vertex[r].server for r in machine.ranks}) > 1:
        raise TopologyError(f"{machine.name} spans several servers already; compose single servers")
    if servers * len(machine.vertices) > MAX_VERTICES or servers * len(machine.links) > MAX_LINKS:
        raise TopologyError(
            f"{servers}x {machine.name}: {servers * len(machine.vertices)} vertices and "
            f"{servers * len(machine.links)} links; at most {MAX_VERTICES} and {MAX_LINKS}"
        )
    if servers > 1 and nic_gb_per_s is None and not nics_of(machine):
        raise TopologyError(
            f"{servers}x {machine.name}: {machine.name} has no NIC, so say how fast the "
            f'network is: "{servers}x {machine.name} @ 40Gbps"'
        )
    if nic_gb_per_s is not None and nic_gb_per_s <= 0:
        raise TopologyError(f"{servers}x {machine.name}: the network rate must be positive, got {nic_gb_per_s}")


def _network_ends(
    box: Assembly, machine: Topology, ids: list[dict[int, int]], nic_gb_per_s: Fraction | None
) -> list[list[End]]:
    """Per server its NICs, with rate and provenance; a NIC of its own where the machine has none."""
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

    Switches form a group of their own. TopologyError, with ``where`` in front, for what is no rule, or no rule for
    these servers.
    """
    if rule is None:
        _switch(box, len(servers), "NETWORK", [end for ends in servers for end in ends])
        return
    name, *numbers = (part.strip() for part in rule.split(":"))
    if name not in FORMS:
        raise TopologyError(
            f"{where}: fabric={rule} is no network{did_you_mean(name, FORMS)}; expected one of "
            f"{', '.join(FORMS.values())}"
        )
    sizes, ratios = numbers[: name != "rails"], numbers[name != "rails" :]
    if len(ratios) > 1 or not all(map(_RATIO.fullmatch, ratios)) or not all(map(_NUMBER.fullmatch, sizes)):
        raise TopologyError(f"{where}: fabric={rule}; expected {FORMS[name]} with positive numbers")
    if name != "rails" and not sizes:
        raise TopologyError(
            f"{where}: fabric={rule} does not say how many servers share a switch; expected {FORMS[name]}"
        )
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
    """A switch for every ``each`` servers, and what its NICs carry together."""
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
        raise TopologyError(f"{where}: rails are for servers with several NICs, and here they have {most}")
    ends = [[server[place] for server in servers if place < len(server)] for place in range(most)]
    rails = [(_switch(box, len(servers), f"RAIL{i}", each), _total(each)) for i, each in enumerate(ends)]
    if narrower is not None:
        _under_spine(box, len(servers), rails, narrower)


def _dragonfly(box: Assembly, groups: Sequence[tuple[int, Fraction]], narrower: Fraction) -> None:
    for (a, some), (b, more) in combinations(groups, 2):
        box.join(a, b, min(some, more) / narrower / (len(groups) - 1), "net", "declared")


# Servers joined by cables and no switch: which port is joined to which, and the topology that comes of it.
#
# A *port* is a NIC of a server. It passes data on between its cable and its server, and never to another port: what
# goes on to a third server is stored in the memory of one in between, by a rank that combines it or hands it on. A
# machine on which packets could go from port to port by themselves is refused, as it would be a switch that is not
# there. ``"4x dgx-spark @ cables=ring"`` cables by a rule; a file says each cable
# (:mod:`~blinkccl.topology.cables_file`).
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
