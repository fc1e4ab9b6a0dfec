"""Where a program is executed, and who calls whom: what engine ``sockets`` and the laboratory agree on.

A program's *sites* are the vertices where something is done: its ranks, its relays, and the homes of staged queues. A
*leg* is the part of a queue from one site to the next; each has a connection of its own, from its sender to its
receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from blinkccl.schedule.program import Program


@dataclass(frozen=True, slots=True)
class Leg:
    """The part ``half`` (0, or 1 behind its home) of a queue, from one site to another along ``path`` (vertex ids)."""

    queue: int
    half: int
    path: tuple[int, ...]
    slots: int

    @property
    def way(self) -> str:
        return " → ".join(map(str, self.path))


@dataclass(frozen=True)
class Sites:
    """Where a program's roles and staged queues are, and the legs between."""

    program: Program

    @cached_property
    def legs(self) -> tuple[Leg, ...]:
        """Every queue's legs, in the order of the queues and of the data."""
        slots = {
            queue: self.program.channels[role.channel].slots for role in self.program.roles for queue in role.sends
        }
        return tuple(
            Leg(index, half, path, slots.get(index, 1))
            for index, queue in enumerate(self.program.queues)
            for half, path in enumerate(queue.legs)
        )

    @cached_property
    def vertices(self) -> tuple[int, ...]:
        """The vertices where something is done: ranks, relays, other homes of staged queues."""
        homes = sorted({queue.home for queue in self.program.queues if queue.is_staged} - {*self.program.vertices})
        return self.program.vertices + tuple(homes)

    def outgoing(self, vertex: int) -> list[Leg]:
        """The legs that begin at ``vertex``."""
        return [leg for leg in self.legs if leg.path[0] == vertex]

    def incoming(self, vertex: int) -> list[Leg]:
        """The legs that end at ``vertex``."""
        return [leg for leg in self.legs if leg.path[-1] == vertex]

    def name(self, vertex: int) -> str:
        """What people call the site."""
        if vertex in self.program.ranks:
            return f"rank {self.program.ranks.index(vertex)}"
        return f"the relay at vertex {vertex}"
