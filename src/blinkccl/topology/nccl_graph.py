"""NCCL's graph files: the channels that NCCL chose (NCCL_GRAPH_DUMP_FILE) or shall use (NCCL_GRAPH_FILE).

A file has one ``<graph>`` per pattern: id 0 for rings, 1 for the chains of trees, others for the network and for
switches. A ``<channel>`` lists the GPUs of one server by their NVML index ``dev``, in the direction of the data; a
``<net>`` before them is the entry point of data from other servers. NCCL's own reader checks neither the number of
channels nor duplicate GPUs; this one checks both.

Older versions of NCCL read and write ``dev`` as a decimal number, newer ones as a hexadecimal one, so ``10`` alone is
ambiguous. This reader takes graphs with letters as hexadecimal and others as decimal; the writer refuses indices
above 9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from blinkccl.errors import UnsupportedError
from blinkccl.topology.limits import MAX_GB_PER_S, at, shortened
from blinkccl.topology.model import Topology
from blinkccl.topology.xml_tree import Element, parse_xml

RING, TREE = 0, 1
#: The pattern of rings; chains have 1 to 3, depending on the version.
RING_PATTERN = 4
CHAIN_PATTERNS = (1, 2, 3)
#: NCCL runs two channels on each of these, and has at most 64.
MOST_CHANNELS = 32
#: First index that versions of NCCL write differently.
FIRST_AMBIGUOUS_DEV = 10
#: Names of link types in graph files: versions from 2.10.3 on read all of these, older ones all but NVB. PXN and P2C
#: came later, and C2C is not read.
WRITTEN_KINDS = ("NVL", "NVB", "PIX", "PXB", "PHB", "SYS")
_DEV = r"(0[xX])?[0-9a-fA-F]{1,4}"


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """One ``<graph>``: per channel the GPUs' ``dev`` in order, each at ``gb_per_s``, over paths up to ``kind``.

    ``across``: its channels go through network cards. ``line`` is its line in the file.
    """

    id: int
    pattern: int
    orders: tuple[tuple[int, ...], ...]
    gb_per_s: float
    kind: str
    across: bool = False
    line: int = 0

    @property
    def gpus(self) -> tuple[int, ...]:
        """All GPUs named in its channels, ascending."""
        return tuple(sorted({dev for order in self.orders for dev in order}))


def dev_of(topology: Topology, gpu: int) -> int:
    """NVML's index of a GPU: the number in a name such as GPU3, which readers of files give, else the vertex id."""
    named = re.fullmatch(r"GPU([0-9]{1,4})", topology.vertex[gpu].name)
    return int(named[1]) if named else gpu


def parse(text: str, source: str) -> tuple[ChannelGraph, ...]:
    """The graphs of a file; a TopologyError names the line of a graph that NCCL cannot have written."""
    return graphs_of(parse_xml(text, source), source)


def graphs_of(root: Element, source: str) -> tuple[ChannelGraph, ...]:
    """The graphs below ``<graphs>``, in the order of the file; errors as in :func:`parse`."""
    if root.tag != "graphs":
        raise at(source, root.line, f"the root is <{shortened(root.tag, 40)}>, expected <graphs>")
    if root.attributes.get("version", "1") != "1":
        raise at(source, root.line, f"<graphs> version {shortened(root.attributes['version'], 40)!r}, expected 1")
    graphs = tuple(_graph(element, source) for element in root.all("graph"))
    for graph in graphs:
        if sum(other.id == graph.id for other in graphs) > 1:
            raise at(source, graph.line, f"several graphs have the id {graph.id}")
    return graphs


def _graph(element: Element, source: str) -> ChannelGraph:
    kind = element.read("typeintra", r"[A-Z0-9]{3,8}", "one like NVL or SYS", source)
    pattern, stated = _whole(element, "pattern", source), _whole(element, "nchannels", source)
    channels = element.all("channel")
    if len(channels) != stated:
        raise at(source, element.line, f"<graph> has nchannels={stated}, but contains {len(channels)} channels")
    gpus = [gpu for channel in channels for gpu in channel.all("gpu")]
    base = 16 if any(re.search("[a-fx]", gpu.attributes.get("dev", ""), re.IGNORECASE) for gpu in gpus) else 10
    devs = [[gpu.read("dev", _DEV, "the index of a GPU", source) for gpu in x.all("gpu")] for x in channels]
    orders = tuple(tuple(int(dev, base) for dev in order) for order in devs)
    for channel, order in zip(channels, orders, strict=True):
        if pattern in (*CHAIN_PATTERNS, RING_PATTERN) and (not order or len(set(order)) < len(order)):
            raise at(source, channel.line, "a channel must name GPUs, each once")
        if pattern in (*CHAIN_PATTERNS, RING_PATTERN) and set(order) != set(orders[0]):
            raise at(source, channel.line, "this channel's GPUs differ from those of the graph's first channel")
    across = any(channel.all("net") for channel in channels)
    speed = _speed(element, source)
    return ChannelGraph(_whole(element, "id", source), pattern, orders, speed, kind, across, element.line)


def _whole(element: Element, key: str, source: str) -> int:
    return int(element.read(key, r"[0-9]{1,4}", "a whole number below 10000", source))


def _speed(element: Element, source: str) -> float:
    expected = f"GB/s of a channel, at most {MAX_GB_PER_S}"
    gb_per_s = float(element.read("speedintra", r"[0-9]{1,9}(\.[0-9]{1,9})?", expected, source))
    if gb_per_s > MAX_GB_PER_S:
        raise at(source, element.line, f"<graph> speedintra is {gb_per_s:g}, expected {expected}")
    return gb_per_s


def write(graphs: Iterable[ChannelGraph], remarks: Iterable[str] = ()) -> str:
    """The text of a graph file, with ``remarks`` as comments; UnsupportedError if NCCL would misread or overrun it."""
    lines = [f"<!-- {_remark(line)} -->" for line in remarks]
    lines.append('<graphs version="1">')
    for graph in graphs:
        _require_readable(graph)
        speed = f"{graph.gb_per_s:.6g}"
        lines.append(
            f'  <graph id="{graph.id}" pattern="{graph.pattern}" crossnic="0" nchannels="{len(graph.orders)}" '
            f'speedintra="{speed}" speedinter="{speed}" latencyinter="0" typeintra="{graph.kind}" typeinter="PIX" '
            f'samechannels="{int(len(set(graph.orders)) == 1)}">'
        )
        for order in graph.orders:
            lines += ["    <channel>", *(f'      <gpu dev="{dev}"/>' for dev in order), "    </channel>"]
        lines.append("  </graph>")
    return "\n".join([*lines, "</graphs>"]) + "\n"


def _remark(text: str) -> str:
    return text.replace("--", "- -").replace("<", "(").replace(">", ")")


def _require_readable(graph: ChannelGraph) -> None:
    if not 1 <= len(graph.orders) <= MOST_CHANNELS:
        raise UnsupportedError(f"{len(graph.orders)} channels: NCCL's graph file holds 1 to {MOST_CHANNELS}")
    if graph.gpus[-1] >= FIRST_AMBIGUOUS_DEV:
        raise UnsupportedError(
            f"GPU {graph.gpus[-1]}: older versions of NCCL read dev={graph.gpus[-1]} as decimal, newer as hexadecimal; "
            f"a graph file can name GPUs 0 to {FIRST_AMBIGUOUS_DEV - 1}"
        )
    if graph.kind not in WRITTEN_KINDS:
        raise UnsupportedError(f"links of type {graph.kind}: not every version of NCCL reads this type in a graph file")
    if graph.across:
        raise UnsupportedError("a graph file covers one server, as NCCL's numbers of network cards are unknown")
