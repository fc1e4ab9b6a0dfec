"""What does NCCL's topology XML not keep? The file is read back, and compared with what was written.

The XML says where devices are plugged in, not which links there are, so that some topologies come back with
more links than they had: see :func:`blinkccl.topology.nccl_xml_write.write`.
"""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.errors import TopologyError
from blinkccl.topology import nccl_xml
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, ids_text, network_for

#: Rounds of refinement: from the GPUs to the root of any PCIe tree and back.
_ROUNDS = 8
#: A vertex by all that is known of it: nested tuples, numbered anew in each round.
_Colours = dict[int, int]


def differences(topology: Topology, text: str) -> list[str]:
    """A sentence for each choice of ``--links`` whose network is another one when ``text`` is read back.

    Parameters
    ----------
    topology
        What was written.
    text
        The XML.

    Notes
    -----
    Networks are compared by refinement of colours from the GPUs, in their order; vertices that only pass data
    on have no identity of their own. Cost: O(links × rounds).
    """
    again = nccl_xml.parse(text, topology.name)
    found = []
    if again.ranks != topology.ranks:
        found.append(f"GPUs {ids_text(topology.ranks)} become {ids_text(again.ranks)}")
    for choice in LINK_CHOICES:
        before, after = _network(topology, choice), _network(again, choice)
        if not _same(before, after):
            found.append(f"--links {choice} gives {_instead(before, after)}")
    # What no server plans on alone: the NICs, which clusters of it would be joined by.
    if not found and not _same(topology, again):
        found.append(f"it has {_instead(topology, again)}")
    return found


def _instead(before: Topology | None, after: Topology | None) -> str:
    if _counted(before) == _counted(after):
        return f"{_counted(after)} with other ends or rates"
    return f"{_counted(after)} instead of {_counted(before)}"


def _network(topology: Topology, links: str) -> Topology | None:
    """The network of all GPUs on ``links``; None where these leave them apart."""
    try:
        return network_for(topology, topology.ranks, links)
    except TopologyError:
        return None


def _counted(network: Topology | None) -> str:
    if network is None:
        return "GPUs that are not connected"
    kinds: dict[str, int] = {}
    for link in network.links:
        kinds[link.kind] = kinds.get(link.kind, 0) + 1
    return " + ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) + " links"


def _same(a: Topology | None, b: Topology | None) -> bool:
    if a is None or b is None:
        return a is b
    colours = [{v.id: _first(t, v.id) for v in t.vertices} for t in (a, b)]
    for _ in range(_ROUNDS):
        numbers: dict[object, int] = {}
        colours = [dict(_refined(t, own, numbers)) for t, own in zip((a, b), colours, strict=True)]
        if sorted(colours[0].values()) != sorted(colours[1].values()):
            return False
    return True


def _first(topology: Topology, vertex: int) -> int:
    """GPUs by their place among the ranks, other vertices by their kind."""
    if vertex in topology.ranks:
        return topology.ranks.index(vertex)
    return -1 - ("switch", "nic", "host").index(topology.vertex[vertex].kind)


def _refined(topology: Topology, colours: _Colours, numbers: dict[object, int]) -> Iterator[tuple[int, int]]:
    """Each vertex with the number of (its colour, the links at it with the colours at their other ends)."""
    around: dict[int, list[tuple[str, float, bool, int]]] = {v.id: [] for v in topology.vertices}
    for x in topology.links:
        around[x.src].append((x.kind, x.gb_per_s, True, colours[x.dst]))
        around[x.dst].append((x.kind, x.gb_per_s, False, colours[x.src]))
    for vertex, links in around.items():
        yield vertex, numbers.setdefault((colours[vertex], tuple(sorted(links))), len(numbers))
