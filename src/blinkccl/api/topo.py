"""``blinkccl.topo``: a topology from a name, a file, a networkx graph, or this machine.

The function has the name of the verb, because ``blinkccl.topology`` is a package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from math import inf
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Link, Topology, Vertex, common_unit

#: Attributes read from a graph's nodes and edges, beside an edge's rates; others are ignored.
_OF_NODE, _OF_EDGE = ("kind", "name", "server", "part_of", "combines"), ("kind", "provenance", "by")
_RATE, _READ_RATE = "gb_per_s", "read_gb_per_s"


@dataclass(frozen=True, repr=False)
class Topo:
    """A machine, or several. ``print`` shows the output of ``blink topo``, a notebook the picture.

    ``topology`` is the topology in the package's own form.

    Examples
    --------
    >>> import blinkccl
    >>> ring = blinkccl.topo("ring:4")
    >>> ring.ranks
    (0, 1, 2, 3)
    >>> [(link.src, link.dst, link.gb_per_s) for link in ring.links][:2]
    [(0, 1, 25.0), (0, 3, 25.0)]
    >>> graph = ring.to_networkx()
    >>> graph.edges[0, 1]["gb_per_s"]
    25.0
    >>> graph.remove_edge(0, 1)
    >>> len(blinkccl.topo(graph).links)
    7
    """

    topology: Topology

    @property
    def name(self) -> str:
        """The topology's name in plans."""
        return self.topology.name

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of the GPUs, or of the CPUs on a machine without GPUs."""
        return self.topology.ranks

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """GPUs, switches, NICs and processors, each with ``id``, ``kind``, ``name`` and ``server``."""
        return self.topology.vertices

    @property
    def links(self) -> tuple[Link, ...]:
        """One per direction, with ``src``, ``dst``, ``kind``, ``gb_per_s``, and ``provenance``, the rate's source."""
        return self.topology.links

    def to_networkx(self) -> Any:
        """A ``networkx.DiGraph``; :func:`topo` takes it back.

        A node has ``kind``, ``name`` and ``server``. An edge has ``kind``, ``gb_per_s`` and ``provenance``, and
        ``read_gb_per_s`` if reads have another rate than writes. UnsupportedError if networkx is not installed.
        """
        from blinkccl.topology.json_format import to_document

        document, unit = to_document(self.topology), exact_unit(self.topology)
        graph = _networkx().DiGraph(name=self.name)
        graph.add_nodes_from((row.pop("id"), row) for row in document["vertices"])
        for row in document["links"]:
            del row["capacity"]
            if "read_capacity" in row:
                row[_READ_RATE] = float(row.pop("read_capacity") * unit)
            graph.add_edge(row.pop("src"), row.pop("dst"), **row)
        return graph

    def __str__(self) -> str:
        from blinkccl.show.topology_text import topology_text

        return topology_text(self.topology).rstrip("\n")

    def __repr__(self) -> str:
        return f"<Topo {self.name}: {len(self.ranks)} ranks, {len(self.links)} links>"

    def show(self, path: str | PathLike[str]) -> None:
        """Draw the topology into a file like ``blink show``: .html, .svg or .txt, by the suffix of ``path``."""
        from blinkccl.show.page import exhibit_file
        from blinkccl.show.show import of_topology

        shown = exhibit_file(of_topology(self.topology), Path(path))
        Path(path).write_text(shown, encoding="utf-8", newline="\n")

    def _repr_svg_(self) -> str:
        from blinkccl.show.page import exhibit_svg
        from blinkccl.show.show import of_topology

        return exhibit_svg(of_topology(self.topology))


@runtime_checkable
class Graph(Protocol):
    """The used part of a networkx graph."""

    @property
    def name(self) -> Any: ...
    @property
    def nodes(self) -> Any: ...
    @property
    def edges(self) -> Any: ...
    def is_directed(self) -> bool: ...


#: Topologies that :func:`topo` and :func:`blinkccl.plan` accept.
Spec = str | PathLike[str] | Topo | Topology | Graph | None


def topo(spec: Spec = None) -> Topo:
    """The topology named by ``spec``.

    Parameters
    ----------
    spec
        Text as for ``--topo``: a machine (``"dgx-1v"``), a rule (``"ring:8"``), several servers
        (``"2x dgx-1v @ 40Gbps"``) or a file; a path; a networkx graph, whose edges have a rate ``gb_per_s`` (an
        undirected edge means both directions); or a topology. None: this machine.

    Raises
    ------
    TopologyError
        If ``spec`` is unknown, or its file cannot be read.
    UnsupportedError
        If ``spec`` is left out and the driver cannot describe this machine.

    Examples
    --------
    >>> import blinkccl
    >>> machine = blinkccl.topo("dgx-1v")
    >>> machine
    <Topo dgx-1v: 8 ranks, 58 links>
    >>> [link.gb_per_s for link in machine.links if (link.src, link.dst) == (0, 3)]
    [50.0]
    """
    return Topo(topology_of(spec))


def topology_of(spec: Spec) -> Topology:
    """The topology that :func:`topo` wraps."""
    if isinstance(spec, Topo):
        return spec.topology
    if isinstance(spec, Topology):
        return spec
    if isinstance(spec, str):
        from blinkccl.topology.spec import parse_spec

        return parse_spec(spec)
    if isinstance(spec, PathLike):
        from blinkccl.topology.formats import read_topology

        return read_topology(Path(spec))
    if spec is None:
        from blinkccl.topology.probe import probe

        return probe()
    if isinstance(spec, Graph):
        return _from_networkx(spec)
    raise UsageError(
        f"topology: expected a name, a path, a networkx graph or a blinkccl.topo, got a {type(spec).__name__}"
    )


def _networkx() -> Any:
    try:
        return import_module("networkx")
    except ImportError:
        raise UnsupportedError("networkx is not installed: pip install 'blink-ccl[networkx]'") from None


def _from_networkx(graph: Graph) -> Topology:
    """The topology of a graph. Nodes that are not integers are numbered in order, and their label becomes the name."""
    from blinkccl.topology.json_format import from_fields

    nodes, edges = list(graph.nodes(data=True)), list(graph.edges(data=True))
    numbers = all(type(node) is int for node, _ in nodes)
    ids = {node: node if numbers else place for place, (node, _) in enumerate(nodes)}
    vertices = [
        {"kind": "gpu", **({} if numbers else {"name": str(node)}), **_known(data, _OF_NODE), "id": ids[node]}
        for node, data in nodes
    ]
    rates = [{key: _rate(edge, key) for key in (_RATE, _READ_RATE) if key == _RATE or key in edge[2]} for edge in edges]
    unit = common_unit(rate for row in rates for rate in row.values())
    links = []
    for (src, dst, data), rate in zip(edges, rates, strict=True):
        row = {"kind": "nvlink", **_known(data, _OF_EDGE), "capacity": int(rate[_RATE] / unit)}
        if _READ_RATE in rate:
            row["read_capacity"] = int(rate[_READ_RATE] / unit)
        ends = [(src, dst)] if graph.is_directed() else [(src, dst), (dst, src)]
        links += [{"src": ids[u], "dst": ids[v], **row} for u, v in ends]
    document = {"unit_gb_per_s": float(unit), "vertices": vertices, "links": links}
    return from_fields({"name": str(graph.name or "graph"), **document}, "graph")


def _known(data: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: data[key] for key in keys if key in data}


def _rate(edge: tuple[object, object, Mapping[str, Any]], key: str) -> Fraction:
    """A rate of an edge in GB/s, exact as the decimal number that was typed."""
    src, dst, data = edge
    rate = data.get(key)
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0 < float(rate) < inf:
        raise TopologyError(f"graph: edge {src} → {dst}: expected {key}, a positive number of GB/s, got {rate!r}")
    return Fraction(str(rate))
