"""Export of rings as NCCL's graph file, which NCCL runs with its own kernels; the caller computes the rings."""

from __future__ import annotations

from blinkccl.formats.registry import Choices, File
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.topology.nccl_graph import RING, RING_PATTERN, ChannelGraph
from blinkccl.topology.nccl_graph import write as graph_text
from blinkccl.trees.forest.model import Forest


def write(_program: Program, _forest: Forest, _machine: Topology | None, choices: Choices) -> tuple[File, ...]:
    """One file with a plan's rings; see :class:`blinkccl.formats.registry.Write`."""
    return _file(choices)


def pack(_machine: Topology, _ranks: tuple[int, ...], choices: Choices) -> tuple[File, ...]:
    """One file with a job's best rings."""
    return _file(choices)


def _file(choices: Choices) -> tuple[File, ...]:
    rings = choices.rings
    assert rings is not None  # Computed by the caller.
    graph = ChannelGraph(RING, RING_PATTERN, rings.orders, rings.gb_per_s, rings.kind)
    return (File("nccl-graph.xml", graph_text([graph], list(rings.remarks))),)
