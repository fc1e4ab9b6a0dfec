"""Several servers of one kind, and the switches between them: ``"16x dgx-a100 @ fabric=tree:4:2"``.

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
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from blinkccl.errors import TopologyError, did_you_mean
from blinkccl.topology.assembly import MAX_LINKS, MAX_VERTICES, Assembly, copies, nic_rate, nics_of
from blinkccl.topology.model import Topology

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
