"""The AllReduce rate of a machine with other cables: one lost, one more, some moved or faster.

The rate is the planner's bound over all ranks, which AllReduce reaches on every cabling. Ports of one machine count as
equal, so few changes have to be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations

from blinkccl.collectives.spec import Collective
from blinkccl.errors import TopologyError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.connectivity import parts
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import Link, Topology
from blinkccl.topology.select import network_for
from blinkccl.trees.algorithms.bounds import certificate_for

#: Limits of ranks and of changes to try. A bound takes too long above them, so the diagnosis leaves these cases out.
MOST_RANKS, MOST_CHANGES = 16, 150


@dataclass(frozen=True, slots=True)
class Plug:
    """A cable between two ports (vertex ids), and its capacity in units of the topology."""

    a: int
    b: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Change:
    """Cables to unplug and to plug in, and the AllReduce rate afterwards (0: the machines are apart or too many)."""

    out: tuple[Plug, ...]
    plugged: tuple[Plug, ...]
    gb_per_s: Fraction


@dataclass(frozen=True)
class Cabling:
    """The cables of a topology."""

    topology: Topology

    @cached_property
    def plugs(self) -> tuple[Plug, ...]:
        return tuple(Plug(x.src, x.dst, x.capacity) for x in cables_of(self.topology))

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Ports of machines with ranks that have no cable."""
        taken = {v for plug in self.plugs for v in (plug.a, plug.b)}
        servers = set(map(self._server, self.topology.ranks))
        nics = [v for v in self.topology.vertices if v.kind == "nic" and v.server in servers and v.id not in taken]
        return tuple(v.id for v in nics if self.port_capacity(v.id))

    @cached_property
    def parts(self) -> list[tuple[int, ...]]:
        """The ranks, grouped by connectivity."""
        return parts(self.topology.ranks, self.topology.link)

    @property
    def small(self) -> bool:
        """True if there are few enough ranks to try changes."""
        return len(self.topology.ranks) <= MOST_RANKS

    @cached_property
    def gb_per_s(self) -> Fraction:
        """AllReduce algbw with the present cables."""
        return allreduce_gb_per_s(self.topology)

    def port_capacity(self, port: int) -> int:
        """Capacity between a port and its machine, in units of the topology."""
        own = [x for x in self.topology.links if x.src == port and self._server(x.dst) == self._server(port)]
        return max((x.capacity for x in own), default=0)

    def slow(self) -> tuple[Plug, ...]:
        """Cables that are slower than both their ports."""
        return tuple(p for p in self.plugs if p.capacity < min(map(self.port_capacity, (p.a, p.b))))

    def tried(self, out: Sequence[Plug], plugged: Sequence[Plug]) -> Change:
        """The change with its AllReduce rate."""
        return Change(tuple(out), tuple(plugged), allreduce_gb_per_s(self._recabled(out, plugged)))

    def losses(self) -> list[Change]:
        """One change for each cable unplugged, within :data:`MOST_CHANGES`; of equal changes the first."""
        return self._tried(((plug,), ()) for plug in self.plugs)

    def best_added(self) -> Change | None:
        """The best additional cable between free ports, at the rate of its ports; None if none is worth it."""
        ends = [(a, b) for a, b in combinations(self.free, 2) if self._server(a) != self._server(b)]
        options = (((), (Plug(a, b, min(map(self.port_capacity, (a, b)))),)) for a, b in ends)
        return self._best(self._tried(options))

    def joining(self) -> Change | None:
        """Cables between free ports that join all parts, one per connection; None if a part has no free port."""
        part = {self._server(rank): i for i, ranks in enumerate(self.parts) for rank in ranks}
        joined, left = {0}, list(self.free)
        plugged: list[Plug] = []
        while len(joined) < len(self.parts):
            near = next((port for port in left if part[self._server(port)] in joined), None)
            far = next((port for port in left if part[self._server(port)] not in joined), None)
            if near is None or far is None:
                return None
            plugged.append(Plug(min(near, far), max(near, far), min(map(self.port_capacity, (near, far)))))
            joined.add(part[self._server(far)])
            left = [port for port in left if port not in (near, far)]
        return self.tried((), plugged) if self.small else Change((), tuple(plugged), Fraction(0))

    def best_moved(self) -> Change | None:
        """The best change with the same number of cables: one moved, or the ends of two; None if none is worth it."""
        return self._best(self._tried(self._moves()))

    def _best(self, changes: Sequence[Change]) -> Change | None:
        """The first change with the largest gain, if it gains 2 % or more."""
        best = max(changes, key=lambda change: change.gb_per_s, default=None)
        return best if best is not None and best.gb_per_s > self.gb_per_s * Fraction(51, 50) else None

    def _moves(self) -> Iterator[tuple[tuple[Plug, ...], tuple[Plug, ...]]]:
        for plug in self.plugs:
            for stays in (plug.a, plug.b):
                for port in self.free:
                    yield (plug,), (self._moved(stays, port, plug),)
        for one, other in combinations(self.plugs, 2):
            for c, d in ((other.a, other.b), (other.b, other.a)):
                yield (one, other), (self._moved(one.a, c, one), self._moved(one.b, d, other))

    def _moved(self, a: int, b: int, plug: Plug) -> Plug:
        """The cable of ``plug`` between other ports; its capacity is limited by the cable or by the ports."""
        limit = plug.capacity if plug in self.slow() else max(map(self.port_capacity, (a, b)))
        return Plug(min(a, b), max(a, b), min(limit, *map(self.port_capacity, (a, b))))

    def _tried(self, options: Iterator[tuple[tuple[Plug, ...], tuple[Plug, ...]]]) -> list[Change]:
        """Each option that joins different machines, with its rate; of equal options the first."""
        by_shape: dict[tuple[tuple[int, ...], ...], Change] = {}
        for out, plugged in options if self.small else ():
            cables = [*(p for p in self.plugs if p not in out), *plugged]
            if any(self._server(p.a) == self._server(p.b) for p in plugged):
                continue
            alike = tuple(sorted((*sorted(map(self._server, (p.a, p.b))), p.capacity) for p in cables))
            if alike not in by_shape:
                if len(by_shape) == MOST_CHANGES:
                    break
                by_shape[alike] = self.tried(out, plugged)
        return list(by_shape.values())

    def _server(self, vertex: int) -> int:
        return self.topology.vertex[vertex].server

    def _recabled(self, out: Sequence[Plug], plugged: Sequence[Plug]) -> Topology:
        gone = {ends for p in out for ends in ((p.a, p.b), (p.b, p.a))}
        unit = exact_unit(self.topology)
        more = [
            Link(src, dst, p.capacity, "net", float(p.capacity * unit), "declared")
            for p in plugged
            for src, dst in ((p.a, p.b), (p.b, p.a))
        ]
        links = [x for x in self.topology.links if (x.src, x.dst) not in gone] + more
        return replace(self.topology, links=tuple(sorted(links, key=lambda x: (x.src, x.dst))))


@lru_cache(maxsize=1024)
def allreduce_gb_per_s(topology: Topology) -> Fraction:
    """The proved bound on AllReduce among all ranks, which plans reach: algbw in GB/s, 0 if they are apart."""
    ranks = topology.ranks
    try:
        network = network_for(topology, ranks)
    except TopologyError:
        return Fraction(0)
    return certificate_for(Collective("allreduce", len(ranks)), ranks, network).bound * exact_unit(network)
