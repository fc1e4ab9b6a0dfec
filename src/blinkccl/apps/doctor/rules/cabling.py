"""Machines joined by cables without a switch: separate parts, better cabling, the cost of a lost cable, and pairs that
NCCL needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from blinkccl.apps.doctor.cabling import Cabling, Change, Plug
from blinkccl.apps.doctor.evidence import Case, ChannelHop, MachineRead, MeasuredCall, NcclVersion
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.cost.baselines.nccl_system import check_nvidia
from blinkccl.errors import UnsupportedError
from blinkccl.show.text import count, gb_per_s_text
from blinkccl.topology.fabric import cables_of, gbit_text
from blinkccl.topology.model import Topology
from blinkccl.trees.packing.two_trees import binary_tree, second_tree

#: Number of ports, cables and pairs in a list.
_SHOWN = 4


def cabling(case: Case) -> Iterator[Finding]:
    """The findings on the cables of each machine."""
    for machine in case.of(MachineRead):
        if cables_of(machine.topology):
            for each in _of(Cabling(machine.topology), machine.place.source, _failed_in_nccl(case)):
                yield each.at(machine)


def _failed_in_nccl(case: Case) -> bool:
    """True if NCCL left a log and no result."""
    return bool(case.of(NcclVersion) or case.of(ChannelHop)) and not case.of(MeasuredCall)


def _of(cables: Cabling, source: str, failed: bool) -> Iterator[Finding]:
    if len(cables.parts) > 1:
        yield _apart(cables)
        return
    yield from _slow(cables)
    yield from _moved(cables)
    yield from _added(cables)
    yield from _losses(cables, source)
    yield from _nccl(cables.topology, failed)


def _apart(cables: Cabling) -> Finding:
    topology = cables.topology
    shown = " | ".join(f"{{{','.join(_servers(topology, part))}}}" for part in cables.parts)
    change = cables.best_added() or cables.joining() or cables.best_moved()
    bound, remedy = (
        "one part",
        "too few free ports to join the parts: unplug one of several cables between the same machines",
    )
    if change is not None:
        bound = f"{_rate(change)} of AllReduce" if change.gb_per_s else bound
        remedy = _words(topology, change)
    return finding(f"""
        error: the cables leave the machines in {len(cables.parts)} parts: {shown}  [cables-apart]
        bound   {bound}
        got     no plan
        cause   no path of cables joins the parts, not even through other machines
        try     {remedy}
        """)


def _slow(cables: Cabling) -> Iterator[Finding]:
    """Cables slower than their ports, if they limit AllReduce."""
    slow = cables.slow()
    if not slow or not cables.small:
        return
    faster = [Plug(p.a, p.b, min(map(cables.port_capacity, (p.a, p.b)))) for p in slow]
    change = cables.tried(slow, faster)
    if change.gb_per_s <= cables.gb_per_s:
        return
    one, unit = slow[0], cables.topology.unit_gb_per_s
    yield finding(f"""
        warning: {_listed(cables.topology, slow)}: slower than its ports  [cable-slow]
        bound   {_rate(change)} of AllReduce, with {gbit_text(faster[0].capacity * unit)} there
        got     {_rate(cables)}, with {gbit_text(one.capacity * unit)}
        cause   trees can use other cables, if there are any; a ring runs at the rate of its slowest cable
        try     a cable that is rated for the ports; ethtool on both ends shows the negotiated rate
        """)


def _moved(cables: Cabling) -> Iterator[Finding]:
    change = cables.best_moved()
    if change is not None:
        yield finding(f"""
            warning: other cabling would be faster, with as many cables  [cables-better]
            bound   {_rate(change)} of AllReduce
            got     {_rate(cables)} with the present cables
            cause   too few cables lead from some machines to the others
            try     {_words(cables.topology, change)}
            """)


def _added(cables: Cabling) -> Iterator[Finding]:
    change = cables.best_added()
    if change is not None:
        yield finding(f"""
            note: {count(len(cables.free), "port")} without a cable: {_ports(cables.topology, cables.free)}  [port-free]
            bound   {_rate(change)} of AllReduce with one more cable
            got     {_rate(cables)} without
            cause   the new cable takes load off the most loaded cables
            try     {_words(cables.topology, change)}
            """)


def _losses(cables: Cabling, source: str) -> Iterator[Finding]:
    losses = cables.losses()
    idle = [change.out[0] for change in losses if change.gb_per_s == cables.gb_per_s]
    if idle:
        yield finding(f"""
            note: AllReduce is as fast without {_listed(cables.topology, idle[:1])}  [cable-idle]
            bound   {_rate(cables)} with it
            got     {_rate(cables)} without
            cause   other links limit it: of a Spark, the PCIe links that both its ports share
            try     keep it as a spare for another cable, or use it elsewhere
            """)
    parting = [change.out[0] for change in losses if not change.gb_per_s]
    worst = min(losses, key=lambda change: change.gb_per_s, default=None)
    if worst is None or worst.gb_per_s == cables.gb_per_s:
        return
    title = f"the worst cable to lose is {_cable(cables.topology, worst.out[0])}"
    if parting:
        title = f"the loss of one cable separates the machines: {_listed(cables.topology, parting)}"
    yield finding(f"""
        note: {title}  [cable-loss]
        bound   {_rate(cables)} of AllReduce
        got     {f"{_rate(worst)} without it" if worst.gb_per_s else "no plan without it"}
        cause   the data then use the remaining paths
        try     blink plan allreduce --topo {shlex.quote(source)} --without {worst.out[0].a}-{worst.out[0].b}
        """)


def _nccl(topology: Topology, failed: bool) -> Iterator[Finding]:
    """Hops of NCCL's ring and trees without a cable; NCCL connects all of them before it uses any."""
    ranks = topology.ranks
    servers = [topology.vertex[rank].server for rank in ranks]
    try:
        check_nvidia(topology, ranks)
    except UnsupportedError:
        return
    if len(set(servers)) < len(ranks):
        return
    joined = {frozenset(topology.vertex[v].server for v in (x.src, x.dst)) for x in cables_of(topology)}

    def lacking(pairs: Sequence[tuple[int, int]]) -> list[str]:
        ends = sorted((min(a, b), max(a, b)) for a, b in pairs)
        return [f"{a}-{b}" for a, b in dict.fromkeys(ends) if frozenset((servers[a], servers[b])) not in joined]

    places = range(len(ranks))
    rings = lacking(list(pairwise((*places, 0))))
    trees = lacking([*binary_tree(len(ranks)).items(), *second_tree(len(ranks)).items()])
    if not rings and not trees:
        return
    what = [f"its {name} need {', '.join(pairs)}" for name, pairs in (("rings", rings), ("trees", trees)) if pairs]
    remedy = "NCCL_ALGO=Ring and NCCL_IB_SUBNET_AWARE_ROUTING=1; a patched NCCL, if it connects trees anyway"
    if rings:
        remedy = "order the ranks so that each has a cable to the next; if no such order exists, use other software"
    yield finding(f"""
        {"error" if failed else "note"}: NCCL connects ranks that no cable joins  [nccl-no-cable]
        bound   a cable for every pair of ranks that NCCL connects
        got     {"; ".join(what)}, without a cable
        cause   where NCCL connects its trees at the start (NVIDIA/nccl issue 1034), ncclCommInitRank fails in
                ncclTransportTreeConnect, with any NCCL_ALGO: a connection does not pass through other machines
        try     {remedy}
        """)


def _rate(of: Change | Cabling) -> str:
    return gb_per_s_text(float(of.gb_per_s))


def _name(topology: Topology, port: int) -> str:
    """Name of a port in the syntax of cables files: ``spark0:p0``."""
    machine, slash, name = topology.vertex[port].label.rpartition("/")
    return f"{machine}:{name}" if slash else name


def _cable(topology: Topology, plug: Plug) -> str:
    return f"{_name(topology, plug.a)} – {_name(topology, plug.b)}"


def _listed(topology: Topology, plugs: Sequence[Plug]) -> str:
    more = f" and {len(plugs) - _SHOWN} more" if len(plugs) > _SHOWN else ""
    return ", ".join(_cable(topology, plug) for plug in plugs[:_SHOWN]) + more


def _ports(topology: Topology, ports: Sequence[int]) -> str:
    more = f" and {len(ports) - _SHOWN} more" if len(ports) > _SHOWN else ""
    return ", ".join(_name(topology, port) for port in ports[:_SHOWN]) + more


def _servers(topology: Topology, ranks: Sequence[int]) -> list[str]:
    names = [
        topology.vertex[rank].label.rpartition("/")[0] or f"server {topology.vertex[rank].server}" for rank in ranks
    ]
    return list(dict.fromkeys(names))


def _words(topology: Topology, change: Change) -> str:
    """The instruction for a change."""
    plugged = " and ".join(_cable(topology, plug) for plug in change.plugged)
    if not change.out:
        return f"plug in {plugged}"
    return f"replace {' and '.join(_cable(topology, plug) for plug in change.out)} by {plugged}"


RULES = (cabling,)
