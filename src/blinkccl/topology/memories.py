"""Memories on a path: the vertices that store data on its way, in contrast to those that forward packets.

A store, a load or a peer copy crosses hardware that keeps nothing. Data that cross a *memory* are written there and
read again:

==========================================  ==========================================================================
vertex inside a path                        a store or a load
==========================================  ==========================================================================
``switch`` (NVSwitch, PCIe switch), ``nic``  is forwarded
``host`` between PCIe and processors' buses  is forwarded: a root complex forwards peer traffic if the machine allows it
                                             (libblink.so tests every pair first)
``host`` at an NVLink, C2C or other link     ends: such a link leads into the processor's memory (AC922, Grace); from
                                             there data are forwarded to the memory of another processor
``memory``                                   ends, as above
``gpu``, ``cpu``                             ends: a rank's memory, or that of a GPU outside the job
==========================================  ==========================================================================

Two GPUs that reach each other over NVLink (or xGMI), directly or through a switch, never store over PCIe: the driver
gives every pair one route, the fast one. To send over PCIe they store in a host's memory: see :func:`staged`.
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
    """The first vertex inside ``path`` (vertex ids, joined by links) that is a memory; None if all of them forward."""
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
    """The fewest vertices inside ``path`` that store the data on its way, each as late as possible.

    Late storing favours writes, which need not wait for an answer as reads do.
    """
    stores: list[int] = []
    begin = 0
    while memory_inside(topology, path[begin:]) is not None:
        begin = max(
            at
            for at in range(begin + 1, len(path) - 1)
            if topology.vertex[path[at]].kind not in ("switch", "nic")
            and memory_inside(topology, path[begin : at + 1]) is None
        )
        stores.append(path[begin])
    return tuple(stores)


@lru_cache(maxsize=64)
def _fast_pairs(topology: Topology) -> frozenset[tuple[int, int]]:
    """Ordered pairs of GPUs whose stores use fast links: directly, or through one switch."""
    ahead: dict[int, list[int]] = {}
    for link in topology.links:
        if link.kind in FAST_KINDS:
            ahead.setdefault(link.src, []).append(link.dst)
    ranks = frozenset(topology.ranks)
    pairs = set()
    for src in topology.ranks:
        for near in ahead.get(src, ()):
            beyond = ahead.get(near, ()) if topology.vertex[near].kind == "switch" else (near,)
            pairs |= {(src, dst) for dst in beyond if dst in ranks and dst != src}
    return frozenset(pairs)


def store_fault(topology: Topology, path: Sequence[int]) -> str | None:
    """The reason, as a clause, why no store goes along ``path`` from end to end; None if one can."""
    src, dst = path[0], path[-1]
    way = " → ".join(map(str, path))
    at = memory_inside(topology, path)
    if at is not None:
        label = topology.vertex[at].label
        return f"its path {way} continues beyond the memory of {label}, where a store from GPU {src} to GPU {dst} ends"
    slow = dict.fromkeys(kind for pair in pairwise(path) if (kind := topology.link[pair].kind) not in FAST_KINDS)
    if slow and (src, dst) in _fast_pairs(topology):
        over = " and ".join(_SLOW_WORDS[kind] for kind in slow)
        return f"its path {way} uses {over}, but stores from GPU {src} to GPU {dst} use their faster link"
    return None


def staged(
    vertices: Sequence[Vertex], links: Sequence[Link], servers: Collection[int]
) -> tuple[list[Vertex], list[Link]]:
    """A part of a topology in which PCIe traffic on these ``servers`` goes through the hosts' memories.

    Hosts become memories. A PCIe switch becomes two vertices, since it must not forward between two GPUs below it:
    one for the way up to the host, which keeps the id, and one for the way down, with an id after all others.
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
    """The links with one capacity each: that of the operation, write or read, by which a plan moves data on them.

    One operation serves the whole path of a queue, so links that meet at a forwarding vertex have the same one. Links
    to a memory are written, links from a memory are read; between GPUs, the operation with the faster slowest link is
    used. With ``relays`` a link may lead to one GPU's memory and from another's, so it gets the smaller capacity.
    """
    if all(link.read_capacity is None for link in links):
        return list(links)
    kind = {v.id: v.kind for v in vertices}
    behind = {end for link in links if link.kind not in _FORWARDED_BYHOST_KINDS for end in (link.src, link.dst)}
    memories = {v for v in kind if kind[v] == "memory" or (kind[v] == "host" and v in behind)}
    chosen_links: list[Link] = []
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
            chosen_links.append(replace(link, capacity=capacity, read_capacity=None, by=by))
    return sorted(chosen_links, key=lambda link: (link.src, link.dst))


def _forwarded_together(links: Sequence[Link], forwarding: Collection[int]) -> list[list[Link]]:
    """The links in groups: two links belong together if vertices of ``forwarding`` join them."""
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
    """``topology`` without links that lead only into a processor's memory, which no plan on it uses."""

    def leads_into_memory(link: Link) -> bool:
        hosts = [v for v in (link.src, link.dst) if topology.vertex[v].kind == "host"]
        return bool(hosts) and link.kind not in _FORWARDED_BYHOST_KINDS

    links = tuple(link for link in topology.links if not leads_into_memory(link))
    return topology if len(links) == len(topology.links) else replace(topology, links=links)
