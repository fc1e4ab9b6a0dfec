"""The ways between two GPUs that a store can take: what forwards packets on them, and what is a memory.

A kernel's store, and a peer copy, goes from GPU to GPU in one piece of hardware after the other without being kept
anywhere. What crosses a *memory* is stored there and fetched again by somebody, so no store crosses it:

==========================================  ==========================================================================
vertex inside a path                        a store
==========================================  ==========================================================================
``switch`` (NVSwitch, PCIe switch), ``nic``  is forwarded
``host`` between PCIe and processors' buses  is forwarded: a root complex passes peer traffic on, as far as a machine
                                             allows it (libblink.so tries every pair before it relies on one)
``host`` at an NVLink, C2C or other link     ends: such a link leads into the processor's memory (AC922, Grace)
``gpu``, ``cpu``                             ends: a rank's memory, or that of a GPU outside the job
==========================================  ==========================================================================

Two GPUs that reach each other over NVLink (or xGMI), directly or through a switch, never store over PCIe: the driver
gives every pair one route, and that is the fast one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from blinkccl.topology.model import FAST_KINDS, Link, Topology

#: Kinds of links between which a processor's root complex forwards packets.
_FORWARDED_BY_HOSTS = ("pcie", "smp", "net")
_SLOW_WORDS = {"pcie": "PCIe", "smp": "the bus between processors", "net": "the network"}


def memory_inside(topology: Topology, path: Sequence[int]) -> int | None:
    """The first vertex inside ``path`` (vertex ids, joined by links) that is a memory; None if all forward packets."""
    for before, at, after in zip(path, path[1:], path[2:], strict=False):
        kind = topology.vertex[at].kind
        if kind in ("switch", "nic"):
            continue
        links = (topology.link[before, at], topology.link[at, after])
        if kind != "host" or any(link.kind not in _FORWARDED_BY_HOSTS for link in links):
            return at
    return None


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


def without_memory_links(topology: Topology) -> Topology:
    """The same, without links that lead into a processor's memory and nowhere else: no plan on it goes there."""

    def leads_into_memory(link: Link) -> bool:
        hosts = [v for v in (link.src, link.dst) if topology.vertex[v].kind == "host"]
        return bool(hosts) and link.kind not in _FORWARDED_BY_HOSTS

    links = tuple(link for link in topology.links if not leads_into_memory(link))
    return topology if len(links) == len(topology.links) else replace(topology, links=links)
