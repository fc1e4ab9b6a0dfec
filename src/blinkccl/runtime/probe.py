"""The networks between a job's hosts, discovered by their addresses and measured by messages.

A subnet with two hosts is a cable between their interfaces. A subnet with more hosts is a network with a switch, of
which the largest counts: UCX selects among interfaces of such networks, so they cannot be measured apart. Rates are
measured one link at a time and in one direction. Links that share a processor or a bus may be slower together, which
the topology does not model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from statistics import median

import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import BlinkError, CommunicationError, DeadlineError, TopologyError, UnsupportedError
from blinkccl.runtime.group import Group
from blinkccl.runtime.hosts import KIB, MEMORY_RATIO, Hosts, Place
from blinkccl.runtime.rails import Network, networks, rails_of
from blinkccl.runtime.spanning_group import SpanningGroup, open_part
from blinkccl.schedule.lower import lower
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import forest_on
from blinkccl.trees.forest.model import Share, Tree

#: Bytes of test messages and their chunks, and repetitions, of which the fastest counts.
BYTES, CHUNK, TIMES = (64 * KIB, 1024 * KIB), 256 * KIB, 4
#: Seconds until a test message that has not arrived ends the measurement.
LATE_S = 10.0
#: Seconds of a test message; a network on which the smaller one takes as long gets no larger one.
ENOUGH_S = 0.005
#: Rates count as equal if the slower one has this part of the faster one; noise is below that.
EQUAL = 0.8
#: Rates are eighths of the fastest one, for few trees. Networks below an eighth are left out.
LEVELS = 8
#: GB/s by the subnet, the sending and the receiving host.
Rates = Mapping[tuple[str, int, int], float]


def used(hosts: Sequence[Mapping[str, str]]) -> tuple[Network, ...]:
    """The networks of a topology: all cables, and the network of the most hosts. UnsupportedError without any."""
    every = networks(hosts)
    switched = max((one for one in every if not one.is_cable), key=lambda one: len(one.ends), default=None)
    chosen = tuple(one for one in every if one.is_cable or one is switched)
    if missing := [host for host in range(len(hosts)) if host not in _reached(chosen)]:
        raise UnsupportedError(f"hosts {missing} share no subnet with host 0 or with a host that it reaches")
    return chosen


def _reached(over: Sequence[Network]) -> set[int]:
    """The hosts that these networks join to host 0, also by way of other hosts."""
    reached = {0}
    while more := {host for one in over if reached & {*one.ends} for host in one.ends} - reached:
        reached |= more
    return reached


def topology_of(hosts: Hosts, names: Sequence[str], over: Sequence[Network], rates: Rates) -> Topology:
    """The topology of ``hosts`` on these networks; ``rates`` empty: every link has 1 GB/s.

    A host's ranks send by one vertex and receive by another, so no data passes from interface to interface.
    """
    box = Assembly(f"{len(names)} hosts", "measured" if rates else "synthetic")
    ranks = {rank: host for host, members in enumerate(hosts.members) for rank in members}
    for rank in range(hosts.size):
        box.add("cpu", f"{names[ranks[rank]]}/rank {rank}", ranks[rank])
    speeds = _levels(over, rates)
    fastest = max(speeds.values())
    doors = []
    for host, members in enumerate(hosts.members):
        out, into = (box.add("host", f"{names[host]}/{word}", host) for word in ("out", "in"))
        doors.append((out, into))
        kind = "shm" if len(members) > 1 else "net"
        for rank in members:
            box.arc(rank, out, fastest * MEMORY_RATIO, kind)
            box.arc(into, rank, fastest * MEMORY_RATIO, kind)
        if len(members) > 1:
            box.arc(out, into, fastest * MEMORY_RATIO, "shm")
    for network in over:
        ports = {host: box.add("nic", f"{names[host]}/{name}", host) for host, name in network.ends.items()}
        for host, port in ports.items():
            box.arc(doors[host][0], port, speeds[network.subnet, host, "out"], "net")
            box.arc(port, doors[host][1], speeds[network.subnet, host, "in"], "net")
        if network.is_cable:
            (a, near), (b, far) = ports.items()
            box.arc(near, far, min(speeds[network.subnet, a, "out"], speeds[network.subnet, b, "in"]), "net")
            box.arc(far, near, min(speeds[network.subnet, b, "out"], speeds[network.subnet, a, "in"]), "net")
            continue
        switch = box.add("switch", network.subnet, min(ports))
        for host, port in ports.items():
            box.arc(port, switch, speeds[network.subnet, host, "out"], "net")
            box.arc(switch, port, speeds[network.subnet, host, "in"], "net")
    return box.finish()


def place_on(topology: Topology, hosts: Hosts, rank: int) -> Place:
    """The place of a rank on :func:`topology_of` these hosts, whose ports have the names of their interfaces."""
    rails = {
        rail: topology.vertex[end].name.rpartition("/")[2]
        for rail, cable in enumerate(cables_of(topology), 1)
        for end in (cable.src, cable.dst)
        if topology.vertex[end].server == hosts.host_of[rank]
    }
    return Place(topology, topology.ranks, rails)


def _levels(over: Sequence[Network], rates: Rates) -> dict[tuple[str, int, str], Fraction]:
    """GB/s of each host's interface to a network, in and out: the fastest of its messages there, as a level."""
    best: dict[tuple[str, int, str], float] = {}
    for network in over:
        for src, dst in permutations(network.ends, 2):
            rate = rates.get((network.subnet, src, dst), 1.0)
            for end in ((network.subnet, src, "out"), (network.subnet, dst, "in")):
                best[end] = max(best.get(end, 0.0), rate)
    level = _equal(list(best.values()))
    fastest = Fraction(f"{max(level.values()):.3g}")
    return {end: fastest * max(1, round(LEVELS * level[rate] / float(fastest))) / LEVELS for end, rate in best.items()}


def _equal(rates: Sequence[float]) -> dict[float, float]:
    """The median of the rates that count as equal, for each rate: neighbours in size that differ by little."""
    groups: list[list[float]] = []
    for rate in sorted(rates):
        if groups and groups[-1][-1] >= EQUAL * rate:
            groups[-1].append(rate)
        else:
            groups.append([rate])
    return {rate: median(group) for group in groups for rate in group}


def measured(group: Group) -> Group:
    """``group`` on the topology that its ranks measure now, if it spans hosts; it is closed then. All ranks call it."""
    if not isinstance(group, SpanningGroup):
        return group
    try:
        topology = probe(group)
    except BlinkError:
        group.close()
        raise
    place = place_on(topology, group.hosts, group.rank)
    part = open_part(group, range(group.size), f"{group.prefix}/measured", place)
    group.close()
    return part


def probe(group: Group, report: Callable[[int, int], None] = lambda done, total: None) -> Topology:
    """Measure the networks between the hosts of ``group``; all ranks call it, and all get the same topology.

    ``report`` is called with the number of messages done and of all messages. UnsupportedError if all ranks are on one
    host, or if a host shares no subnet with another one; TopologyError if a network carries no message.
    """
    if not isinstance(group, SpanningGroup):
        raise UnsupportedError("all ranks are on one host, which has no network to measure: start ranks on every host")
    hosts, over = replace(group.hosts, stated=None, vertices=()), used(group.interfaces)
    names = [group.peers[members[0]].hostname.partition(".")[0] for members in hosts.members]
    if len({*names}) < len(names):
        names = [f"{name}-{host}" for host, name in enumerate(names)]
    bare = place_on(topology_of(hosts, names, over, {}), hosts, group.rank)
    late_s = min(group.timeout_s, LATE_S)
    try:
        part = open_part(group, range(group.size), f"{group.prefix}/probe", bare, late_s)
    except DeadlineError as error:
        raise TopologyError(_dead(f"one of {', '.join(one.subnet for one in over)}", late_s)) from error
    assert isinstance(part, SpanningGroup), "it has the same ranks"
    try:
        rates = _rates(part, over, names, report)
    finally:
        part.close()
    fast = kept(over, rates, len(names))
    slow = [f"{one.subnet} is left out: it has less than an eighth of the fastest" for one in over if one not in fast]
    return topology_of(hosts, names, fast, rates).noted(*slow)


def kept(over: Sequence[Network], rates: Rates, hosts: int) -> Sequence[Network]:
    """The networks with at least an eighth of the fastest rate, if these join all ``hosts``; otherwise all."""
    least = max(rates.values()) / LEVELS
    fast = [one for one in over if max(rates[one.subnet, *ends] for ends in permutations(one.ends, 2)) >= least]
    return fast if len(_reached(fast)) == hosts else over


def _rates(
    group: SpanningGroup, over: Sequence[Network], names: Sequence[str], report: Callable[[int, int], None]
) -> dict[tuple[str, int, int], float]:
    """GB/s of every message between two hosts of a network; ``group`` is on :func:`topology_of` these networks."""
    first = [members[0] for members in group.hosts.members]
    messages = [(network, src, dst) for network in over for src, dst in permutations(network.ends, 2)]
    rates: dict[tuple[str, int, int], float] = {}
    for number, (network, src, dst) in enumerate(messages):
        report(number, len(messages))
        try:
            rates[network.subnet, src, dst] = _rate(group, network, first[src], first[dst])
        except CommunicationError as error:
            ends = " to ".join(f"{names[host]} ({network.ends[host]})" for host in (src, dst))
            raise group.ended_by(error, _dead(f"{network.subnet} from {ends}", group.timeout_s)) from error
    report(len(messages), len(messages))
    return rates


def _dead(network: str, seconds: float) -> str:
    return (
        f"a network carries no message within {seconds:g} s: {network}; repair it, or leave it out: name the other "
        "interfaces in UCX_NET_DEVICES on all ranks"
    )


def _rate(group: SpanningGroup, network: Network, src: int, dst: int) -> float:
    """GB/s of a message from rank ``src`` to ``dst``, without the time of an empty one; the same on all ranks."""
    topology, collective = group.hosts.topology, Collective("sendrecv", group.size, src=src, dst=dst)
    request = Request(topology, collective, group.hosts.ranks, links="all")
    tree = Tree(src, (_path(topology, network, src, dst),))
    program = lower(forest_on(request, "probe", request.network, [Share(Fraction(1), 0, None, src, None, tree)]))
    plan = HostPlan(program, rails=rails_of(program, topology))
    empty_s, seconds = _seconds(group, plan, 1, dst), 0.0
    for nbytes in BYTES:
        if seconds < ENOUGH_S:
            sent, seconds = nbytes, _seconds(group, plan, nbytes, dst)
    return sent / max(seconds / 4, seconds - empty_s) / 1e9  # on a busy machine the empty one may take longer


def _seconds(group: SpanningGroup, plan: HostPlan, nbytes: int, dst: int) -> float:
    """The least time until rank ``dst`` has the bytes; the same on all ranks."""
    data, seconds = np.zeros(nbytes, np.uint8), np.zeros(1)
    at, into = int(data.ctypes.data), int(seconds.ctypes.data)
    op = group.prepare(plan, nbytes, "uint8", "sum", CHUNK)
    took = group.time(op, at, at, TIMES)
    op.close()
    seconds[0] = took.min() if group.rank == dst else 0.0
    group.run(CollectiveCall("allreduce", "float64", 1, "max"), into, into)
    return float(seconds[0])


def _path(topology: Topology, network: Network, src: int, dst: int) -> tuple[int, ...]:
    """The vertices from rank to rank over a network; see :func:`topology_of`."""
    a, b = (topology.vertex[rank].server for rank in (src, dst))
    switch = [vertex.id for vertex in topology.vertices if vertex.name == network.subnet]
    place = {(vertex.server, vertex.name.rpartition("/")[2]): vertex.id for vertex in topology.vertices}
    near, far = place[a, network.ends[a]], place[b, network.ends[b]]
    return (src, place[a, "out"], near, *switch, far, place[b, "in"], dst)
