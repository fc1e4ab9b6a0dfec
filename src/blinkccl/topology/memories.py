"""What forwards packets on a path, and what is a memory: where data on its way is stored and fetched again.

A kernel's store or load, and a peer copy, goes from one memory to another through pieces of hardware that keep
nothing. What crosses a *memory* is written there and read again by somebody:

==========================================  ==========================================================================
vertex inside a path                        a store or a load
==========================================  ==========================================================================
``switch`` (NVSwitch, PCIe switch), ``nic``  is forwarded
``host`` between PCIe and processors' buses  is forwarded: a root complex passes peer traffic on, as far as a machine
                                             allows it (libblink.so tries every pair before it relies on one)
``host`` at an NVLink, C2C or other link     ends: such a link leads into the processor's memory (AC922, Grace). From
                                             there it is forwarded to the memory of another processor
``memory``                                   ends, likewise
``gpu``, ``cpu``                             ends: a rank's memory, or that of a GPU outside the job
==========================================  ==========================================================================

Two GPUs that reach each other over NVLink (or xGMI), directly or through a switch, never store over PCIe: the driver
gives every pair one route, and that is the fast one. What they send over PCIe they store in a host's memory: see
:func:`staged`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import inf

from blinkccl.topology.model import FAST_KINDS, Link, Topology, Vertex

#: Kinds of links between which a processor's root complex forwards packets.
_FORWARDED_BYHOST_KINDS = ("pcie", "smp", "net")
#: Processors with their memories.
HOST_KINDS = ("host", "memory")
_SLOW_WORDS = {"pcie": "PCIe", "smp": "the bus between processors", "net": "the network"}


def memory_inside(topology: Topology, path: Sequence[int]) -> int | None:
    """The first vertex inside ``path`` (vertex ids, joined by links) that is a memory; None if all forward packets."""
    in_host = any(topology.vertex[end].kind in HOST_KINDS for end in (path[0], path[-1]))
    for before, at, after in zip(path, path[1:], path[2:], strict=False):
        kind = topology.vertex[at].kind
        if kind in ("switch", "nic") or (kind in HOST_KINDS and in_host):
            continue
        links = (topology.link[before, at], topology.link[at, after])
        if kind != "host" or any(link.kind not in _FORWARDED_BYHOST_KINDS for link in links):
            return at
    return None


def memories_on(topology: Topology, path: Sequence[int]) -> tuple[int, ...]:
    """The fewest vertices inside ``path`` at which data on its way has to be stored, each as late as possible.

    Late, since what is written ahead need not wait for an answer, as what is read does.
    """
    found: list[int] = []
    begin = 0
    while memory_inside(topology, path[begin:]) is not None:
        begin = max(
            at
            for at in range(begin + 1, len(path) - 1)
            if topology.vertex[path[at]].kind not in ("switch", "nic")
            and memory_inside(topology, path[begin : at + 1]) is None
        )
        found.append(path[begin])
    return tuple(found)


@lru_cache(maxsize=64)
def _fast_pairs(topology: Topology) -> frozenset[tuple[int, int]]:
    """Ordered pairs of GPUs whose stores take fast links: directly, or through one switch."""
    ahead: dict[int, list[int]] = {}
    for link in topology.links:
        if link.kind in FAST_KINDS:
            ahead.setdefault(link.src, []).append(link.dst)
    ranks = frozenset(topology.ranks)
    found = set()
    for src in topology.ranks:
        for near in ahead.get(src, ()):
            beyond = ahead.get(near, ()) if topology.vertex[near].kind == "switch" else (near,)
            found |= {(src, dst) for dst in beyond if dst in ranks and dst != src}
    return frozenset(found)


def store_fault(topology: Topology, path: Sequence[int]) -> str | None:
    """Why a store does not go from the first vertex of ``path`` to its last, as a clause; None if it does."""
    src, dst = path[0], path[-1]
    way = " → ".join(map(str, path))
    at = memory_inside(topology, path)
    if at is not None:
        label = topology.vertex[at].label
        return (
            f"its path {way} leads through the memory of {label}; a store from GPU {src} to GPU {dst} crosses no memory"
        )
    slow = dict.fromkeys(kind for pair in pairwise(path) if (kind := topology.link[pair].kind) not in FAST_KINDS)
    if slow and (src, dst) in _fast_pairs(topology):
        over = " and ".join(_SLOW_WORDS[kind] for kind in slow)
        return f"its path {way} leads over {over}; stores from GPU {src} to GPU {dst} take the faster link between them"
    return None


def staged(
    vertices: Sequence[Vertex], links: Sequence[Link], servers: Collection[int]
) -> tuple[list[Vertex], list[Link]]:
    """A part of a topology in which PCIe leads through the hosts' memories on these ``servers``.

    Hosts become memories, and a PCIe switch does not pass data from one GPU below it to another: it becomes two
    vertices, one on the way up to the host, which keeps its id, and one on the way down, with an id behind all others.
    A NIC counts as above its switch, as it takes data from GPUs directly.
    """
    done = {v.server for v in vertices if v.kind == "memory"}
    kind = {v.id: v.kind for v in vertices if v.server in servers and v.server not in done}
    pcie = [link for link in links if link.kind == "pcie" and link.src in kind and link.dst in kind]
    height = _heights(kind, pcie)
    switches = sorted(v for v, steps in height.items() if kind[v] == "switch")
    below = {v: 1 + max(v.id for v in vertices) + place for place, v in enumerate(switches)}
    changed: list[Vertex] = []
    for v in vertices:
        changed.append(replace(v, kind="memory") if kind.get(v.id) == "host" else v)
        if v.id in below:
            changed[-1] = replace(v, name=f"{v.label} up")
            changed.append(replace(v, id=below[v.id], name=f"{v.label} down", part_of=v.id))
    moved = []
    for link in links:
        down = link.kind == "pcie" and height.get(link.src, inf) < height.get(link.dst, inf)
        moved.append(
            replace(link, src=below.get(link.src, link.src), dst=below.get(link.dst, link.dst)) if down else link
        )
    return sorted(changed, key=lambda v: v.id), moved


def _heights(kind: Mapping[int, str], pcie: Sequence[Link]) -> dict[int, int]:
    """Steps from the nearest host or NIC, for these and for the switches below them."""
    height = {v: 0 for v, what in kind.items() if what in ("host", "nic")}
    line = list(height)
    ahead: dict[int, list[int]] = {}
    for link in pcie:
        ahead.setdefault(link.src, []).append(link.dst)
    for at in line:
        for near in ahead.get(at, ()):
            if near not in height and kind[near] == "switch":
                height[near] = height[at] + 1
                line.append(near)
    return height


def by_operation(vertices: Sequence[Vertex], links: Sequence[Link], relays: bool) -> list[Link]:
    """The links with one capacity each: that of the operation by which a plan moves data on them.

    A queue's path is written or read as a whole, so links are that meet in a vertex which forwards packets: written on
    the way to a memory, read on the way from one, and between GPUs whichever leaves the slowest link more. With
    ``relays`` a link may be on the way to one GPU's memory and on that from another's: it has what both leave.
    """
    if all(link.read_capacity is None for link in links):
        return list(links)
    kind = {v.id: v.kind for v in vertices}
    behind = {end for link in links if link.kind not in _FORWARDED_BYHOST_KINDS for end in (link.src, link.dst)}
    memories = {v for v in kind if kind[v] == "memory" or (kind[v] == "host" and v in behind)}
    found: list[Link] = []
    for group in _forwarded_together(links, {v for v in kind if kind[v] in ("switch", "nic", "host")} - memories):
        rates = [(link.capacity, link.read_capacity or link.capacity) for link in group]
        if relays or all(write == read for write, read in rates):
            chosen = ["" for _ in group]
        elif any(link.dst in memories for link in group):
            chosen = ["write" for _ in group]
        elif any(link.src in memories for link in group):
            chosen = ["read" for _ in group]
        else:
            by_writes, by_reads = ((min(side), sum(side)) for side in zip(*rates, strict=True))
            chosen = ["read" if by_reads > by_writes else "write" for _ in group]
        for link, by, (write, read) in zip(group, chosen, rates, strict=True):
            capacity = min(write, read) if by == "" else write if by == "write" else read
            found.append(replace(link, capacity=capacity, read_capacity=None, by=by))
    return sorted(found, key=lambda link: (link.src, link.dst))


def _forwarded_together(links: Sequence[Link], forwarding: Collection[int]) -> list[list[Link]]:
    """The links in groups: those that vertices of ``forwarding`` join."""
    top = {end: end for link in links for end in (link.src, link.dst)}

    def root(v: int) -> int:
        while top[v] != v:
            v = top[v]
        return v

    for link in links:
        if link.src in forwarding and link.dst in forwarding:
            top[root(link.src)] = root(link.dst)
    groups: dict[tuple[int, ...], list[Link]] = {}
    for link in links:
        at = next((root(end) for end in (link.src, link.dst) if end in forwarding), None)
        groups.setdefault((link.src, link.dst) if at is None else (at,), []).append(link)
    return list(groups.values())


def without_memory_links(topology: Topology) -> Topology:
    """The same, without links that lead into a processor's memory and nowhere else: no plan on it goes there."""

    def leads_into_memory(link: Link) -> bool:
        hosts = [v for v in (link.src, link.dst) if topology.vertex[v].kind == "host"]
        return bool(hosts) and link.kind not in _FORWARDED_BYHOST_KINDS

    links = tuple(link for link in topology.links if not leads_into_memory(link))
    return topology if len(links) == len(topology.links) else replace(topology, links=links)
