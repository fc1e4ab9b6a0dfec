"""Schedules of sends, receives and calculations as simulators read them, and their faults with respect to a program.

The checker knows the program and the definition of executions in ``schedule/program.py``, but not the exporters' way to
unroll it. Tags identify messages: they are counted by queue, then by chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.cost.simulate.run import bind_bytes
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Role
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest.model import Forest
from support.planned import asked, plan_or_reason

#: A switch, no ring, host memory, no symmetry, two servers, rails.
JOBS = {
    "dgx-1v": "1,4,5,6",
    "dgx-a100": "0,3,5,6",
    "mist": None,
    "ring:5": None,
    "clique:4": None,
    "random:5:seed=3": None,
    "2x dgx-1v @ 40Gbps": "0,1,2+1,2",
}
SIZE, CHUNK = 24_680, 2048


def plans(spec: str, collective: str) -> Iterator[Forest]:
    """Yield the plans of all algorithms that support this job with few shares."""
    for algorithm in ALGORITHMS:
        forest = plan_or_reason(algorithm, asked(spec, collective, JOBS[spec], root=2))
        if not isinstance(forest, str) and len(forest.shares) <= 60:
            yield forest


@dataclass(frozen=True)
class Operation:
    """An operation of a rank: ``kind`` is send, recv or calc; ``ns`` is a calc's; ``port`` is 0 or more, if any."""

    rank: int
    name: str
    kind: str
    peer: int = -1
    size: int = 0
    tag: int = -1
    ns: int = 0
    port: int | None = None
    after: tuple[str, ...] = ()


Key = tuple[int, str]


def faults(ranks: Sequence[Sequence[Operation]], bound: Bound, calc_ns: Pace) -> list[str]:
    """Return a sentence per difference between a schedule and ``bound``; [] if they agree."""
    return list(_Checker(ranks, bound, calc_ns).faults())


@dataclass(frozen=True)
class Pace:
    """Time of a calc: ``launch_ns``, and ``ns_per_byte`` of the result of two operands, in whole ``grain`` ns."""

    launch_ns: float
    ns_per_byte: float
    grain: int = 1

    def ns(self, operands: int, size: int) -> int:
        exact = self.launch_ns + self.ns_per_byte * size * (operands + 1) / 3
        return round(exact / self.grain) * self.grain


def pace_of(forest: Forest, grain: int = 1) -> Pace:
    engine = calibration_for(forest.topology).engine
    rate = engine.reduce_gb_per_s.value
    return Pace(engine.reduce_us.value * 1e3, 1 / rate if rate else 0.0, grain)


def bound_of(forest: Forest, size: int = SIZE, chunk: int = CHUNK) -> Bound:
    return bind_bytes(lower(forest), size, chunk)


class _Checker:
    def __init__(self, ranks: Sequence[Sequence[Operation]], bound: Bound, pace: Pace) -> None:
        self.ranks, self.bound, self.pace = ranks, bound, pace
        self.program = bound.program
        self.at: dict[Key, Operation] = {(op.rank, op.name): op for rank in ranks for op in rank}
        self.ends: dict[tuple[str, int], Operation] = {}
        self.order = nx.DiGraph()

    def faults(self) -> Iterator[str]:
        mismatches = [*self._shape(), *self._matches()]
        yield from mismatches
        if mismatches:
            return
        if not nx.is_directed_acyclic_graph(self.order):
            yield f"it never ends: {nx.find_cycle(self.order)}"
            return
        expected, wrong = self._expected()
        yield from wrong
        if wrong:
            return
        have, want = nx.transitive_closure_dag(self.order), nx.transitive_closure_dag(expected)
        yield from (f"{a} before {b} is not said" for a, b in want.edges - have.edges)
        yield from (f"{a} before {b} is nobody's wish" for a, b in have.edges - want.edges)
        yield from self._ports()

    def _shape(self) -> Iterator[str]:
        if len(self.ranks) != len(self.program.vertices):
            yield f"{len(self.ranks)} ranks"
        if len(self.at) != sum(map(len, self.ranks)):
            yield "a name comes twice in a rank"
        for key, op in self.at.items():
            self.order.add_node(key)
            if len(dict.fromkeys(op.after)) != len(op.after):
                yield f"{key} waits for one twice"
            for name in op.after:
                if (op.rank, name) not in self.at:
                    yield f"{key} waits for {name}, which is not there"
                self.order.add_edge((op.rank, name), key)

    def _matches(self) -> Iterator[str]:
        """Check that every send has one receive of the same pair, bytes and tag, and vice versa."""
        for op in self.at.values():
            if op.kind != "calc":
                if (op.kind, op.tag) in self.ends:
                    yield f"tag {op.tag} comes twice"
                self.ends[op.kind, op.tag] = op
        for kind, tag in list(self.ends):
            send, recv = self.ends.get(("send", tag)), self.ends.get(("recv", tag))
            if send is None or recv is None:
                yield f"the {kind} with tag {tag} has no other end"
            elif (send.rank, send.peer, send.size) != (recv.peer, recv.rank, recv.size):
                yield f"the ends of tag {tag} differ: {send}, {recv}"
            else:
                self.order.add_edge((send.rank, send.name), (recv.rank, recv.name))

    def _executions(self) -> Iterator[tuple[Role, int, int, list[int], list[int]]]:
        """Yield role, chunk, bytes, and the tags that it receives and sends, by rank, then in the order of its body."""
        first: list[int] = []
        total = 0
        for queue in range(len(self.program.queues)):
            first.append(total)
            total += sum(self.bound.extents[r.slice].chunks for r in self.program.roles if queue in r.sends)
        for rank in range(len(self.program.vertices)):
            body = [role for role in self.program.roles if role.rank == rank]
            through: Counter[int] = Counter()

            def tags(queues: Sequence[int], through: Counter[int] = through) -> list[int]:
                through.update(queues)
                return [first[queue] + through[queue] - 1 for queue in queues]

            last = max((role.offset + self.bound.extents[role.slice].chunks for role in body), default=0)
            for tick in range(last):
                for role in body:
                    extent, chunk = self.bound.extents[role.slice], tick - role.offset
                    if 0 <= chunk < extent.chunks:
                        size = min(extent.chunk_elements, extent.length - chunk * extent.chunk_elements)
                        size *= self.bound.itemsize
                        yield role, chunk, size, tags(role.receives), tags(role.sends)

    def _expected(self) -> tuple[nx.DiGraph, list[str]]:
        """Return the order that the program's text requires, and the deviations of messages and calcs."""
        order, wrong = nx.DiGraph(), []
        order.add_nodes_from(self.at)
        calcs: set[Key] = set()
        before: dict[object, Key] = {}
        seen: set[int] = set()

        def key(kind: str, tag: int) -> Key:
            op = self.ends[kind, tag]
            return op.rank, op.name

        def chain(queue: object, node: Key) -> None:
            if queue in before:
                order.add_edge(before[queue], node)
            before[queue] = node

        for role, chunk, size, taken, sent in self._executions():
            where = f"chunk {chunk} of {role}"
            stream = before.get((role.sends[0], "send")) if role.sends else None
            for kind, tags, queues in (("recv", taken, role.receives), ("send", sent, role.sends)):
                for tag, queue in zip(tags, queues, strict=True):
                    ends = self.program.queues[queue]
                    op = self.ends.get((kind, tag))
                    if op is None or (op.rank, op.size) != (role.rank, size):
                        return order, [f"{where}: {kind} {tag} of {size} bytes is {op}"]
                    if op.peer != (ends.src if kind == "recv" else ends.dst):
                        return order, [f"{where}: {kind} {tag} goes to or comes from {op.peer}"]
                    chain((queue, kind), key(kind, tag))
                    seen.add(tag)
            for tag in sent:
                order.add_edge(key("send", tag), key("recv", tag))
            ready = [key("recv", tag) for tag in taken]
            if len(taken) + role.contributes > 1:
                with_all = [n for n in self.order.successors(ready[0]) if self.at[n].kind == "calc"]
                if len(with_all) != 1 or with_all[0] in calcs:
                    return order, [f"{where}: nothing is combined"]
                calc = with_all[0]
                calcs.add(calc)
                operands = len(taken) + role.contributes
                if self.at[calc].ns != self.pace.ns(operands, size):
                    wrong.append(f"{where}: {self.at[calc]} takes not {self.pace.ns(operands, size)} ns")
                order.add_edges_from((node, calc) for node in ready)
                if stream and (self.pace.launch_ns or self.pace.ns_per_byte):
                    order.add_edge(stream, calc)
                chain(("calc", id(role)), calc)
                ready = [calc]
            order.add_edges_from((node, key("send", tag)) for node in ready for tag in sent)
        extra = {tag for _, tag in self.ends} - seen
        wrong += [f"tag {tag} is no message of the program" for tag in extra]
        idle = {key for key, op in self.at.items() if op.kind == "calc" and op.ns and key not in calcs}
        wrong += [f"{key} calculates for nobody" for key in idle]
        return order, wrong

    def _ports(self) -> Iterator[str]:
        """Check that both ends of a message have one port, and that a rank's port is one link per direction."""
        link: dict[tuple[int, int, str], int] = {}
        for role, _, _, taken, sent in self._executions():
            for kind, tags, queues in (("recv", taken, role.receives), ("send", sent, role.sends)):
                for tag, queue in zip(tags, queues, strict=True):
                    op, path = self.ends[kind, tag], self.program.queues[queue].path
                    if op.port is None:
                        return
                    if op.port != self.ends["send", tag].port:
                        yield f"the ends of tag {tag} have two ports"
                    beside = path[-2] if kind == "recv" else path[1]
                    if link.setdefault((op.rank, op.port, kind), beside) != beside:
                        yield f"port {op.port} of rank {op.rank} is two links"
