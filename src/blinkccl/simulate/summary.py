"""Which link was full, and which hops decided the time? A timeline in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blinkccl.simulate.run import Simulation
from blinkccl.simulate.timeline import Decider, LinkUse, critical_path, link_use

#: The order in which parts of a critical path are listed.
PARTS = ("move", "issue", "reduce", "signal", "start")


@dataclass(frozen=True)
class Hop:
    """What one ordered pair of vertices adds to the critical path."""

    src: int
    dst: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """``links``: the fullest first. ``parts``, ``hops``: seconds of the critical path, by what and by where."""

    links: tuple[LinkUse, ...]
    parts: dict[str, float]
    hops: tuple[Hop, ...]


def summarise(simulation: Simulation) -> Summary:
    """The summary of a simulation that kept its trace."""
    path = critical_path(simulation)
    parts = {name: sum(piece.end_s - piece.begin_s for piece in path if piece.what == name) for name in PARTS}
    return Summary(tuple(link_use(simulation)), {k: v for k, v in parts.items() if v > 0.0}, _by_hop(path))


def _by_hop(path: Sequence[Decider]) -> tuple[Hop, ...]:
    seconds: dict[tuple[int, int], float] = {}
    for piece in path:
        ends = piece.src, piece.dst
        seconds[ends] = seconds.get(ends, 0.0) + piece.end_s - piece.begin_s
    return tuple(Hop(*ends, s) for ends, s in sorted(seconds.items(), key=lambda item: (-item[1], item[0])))
