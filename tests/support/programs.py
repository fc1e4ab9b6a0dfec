"""Random valid Programs that Blink's lowering would never make.

- other offsets, several hops in one tick, look-aheads as deep as the slots, queues that several shares use in turn
- relays, ranks ahead of or behind others, other program orders, several channels
- own contributions at any place of a reduction

An engine, a verifier or an exporter that follows the definition must support these too.

They cannot deadlock, because all roles get one global order inside a tick, in which every dependency without a token
points forward. Then each rank's clock is shifted and its body rotated. That changes the text of the program but not one
event of its execution.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random

from blinkccl.collectives.spec import Collective
from blinkccl.schedule.chunking import placements
from blinkccl.schedule.program import Channel, Program, Queue, Role, Slice
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Path, Share, Tree
from support.forests import random_forest


def random_program(random: Random, collective: Collective | None = None) -> tuple[Program, Topology]:
    """Return a valid program, made without :mod:`blinkccl.schedule.lower`, and a topology with sufficient links."""
    forest = random_forest(random, collective)
    draft = _Draft(random, forest.collective, forest.ranks)
    for share in forest.shares:
        draft.add(share)
    program = draft.program(forest.rate)
    return program, _wide_enough(random, forest.topology, program)


@dataclass
class _Node:
    """A future role: ``above`` are (sender, path) pairs, in the order of reduction."""

    role: Role
    above: list[tuple[_Node, Path]] = field(default_factory=list)
    place: int = 0


@dataclass
class _Wire:
    """A future queue: its (sender, receiver) pairs, in the order of a tick."""

    path: Path
    pairs: list[tuple[_Node, _Node]]

    @property
    def lag(self) -> int:
        """Ticks from sending to receiving."""
        return self.pairs[0][1].role.offset - self.pairs[0][0].role.offset


class _Draft:
    def __init__(self, random: Random, collective: Collective, ranks: tuple[int, ...]) -> None:
        self.random = random
        self.collective = collective
        self.ranks = ranks
        self.position = {vertex: rank for rank, vertex in enumerate(ranks)}
        self.slices: dict[tuple[object, int], int] = {}
        self.table: list[Slice] = []
        self.nodes: list[_Node] = []
        self.lanes = random.randint(1, 3)
        self.carried: list[list[int]] = [[] for _ in range(self.lanes)]
        self.lane_of: dict[int, int] = {}
        self.shares = 0

    def add(self, share: Share) -> None:
        """Add the nodes of one share, with random look-aheads."""
        index = self._slice(share)
        lane = self.lane_of.setdefault(index, self.random.randrange(self.lanes))
        self.carried[lane].append(self.shares)
        blank = Role(0, lane, self.shares, "root", self.random.randint(0, 2), index, False, False, False, (), ())
        self.shares += 1
        place = placements(self.collective)[self.table[index].block]
        up = self._nodes(share.root, share.reduce, blank, "reduce")
        down = self._nodes(share.root, share.broadcast, blank, "broadcast")
        root = down[share.root] = up[share.root]
        whole = len(place.sources)
        for vertex, node in up.items():
            rank = node.role.rank
            lone = whole == 1 and vertex not in down and rank in place.sources
            node.role = replace(
                node.role,
                contributes=rank in place.sources,
                completes=node is root,
                keeps=rank in place.targets and (node is root or lone),
            )
        for node in down.values():
            if node is not root:
                node.role = replace(node.role, keeps=node.role.rank in place.targets)
        for tree, nodes in ((share.reduce, up), (share.broadcast, down)):
            for path in tree.edges if tree is not None else ():
                nodes[path[-1]].above.append((nodes[path[0]], path))
        self.nodes += list(up.values()) + [node for node in down.values() if node is not root]

    def _slice(self, share: Share) -> int:
        """Return the share's index in the slice table; slices of a block are in the order of their addition."""
        if isinstance(share.block, tuple):
            block = self.position[share.block[0]], self.position[share.block[1]]
            return self._cut(block, share)
        return self._cut(None if share.block is None else self.position[share.block], share)

    def _cut(self, block: int | tuple[int, int] | None, share: Share) -> int:
        if (block, share.slice) not in self.slices:
            weight = next(item.weight for item in self.collective.items() if item.block == block)
            start = max((part.stop for part in self.table if part.block == block), default=Fraction(0))
            self.slices[block, share.slice] = len(self.table)
            self.table.append(Slice(block, start, start + share.weight / weight))
        return self.slices[block, share.slice]

    def _nodes(self, root: int, tree: Tree | None, blank: Role, stage: str) -> dict[int, _Node]:
        vertices = dict.fromkeys([root] + [v for path in (tree.edges if tree else ()) for v in (path[0], path[-1])])
        return {v: _Node(replace(blank, rank=self.position[v], stage="root" if v == root else stage)) for v in vertices}

    def program(self, rate: Fraction) -> Program:
        """Time, order and connect all nodes."""
        self._look_ahead()
        slots = [
            max([1] + [n.role.offset - s.role.offset for n in self.nodes for s, _ in n.above if n.role.channel == lane])
            + self.random.choice([0, 0, 1, 2])
            for lane in range(self.lanes)
        ]
        while (order := self._global_order(slots)) is None:
            slots = [count + 1 for count in slots]
        for place, node in enumerate(order):
            node.place = place
        wires = self._wires(slots)
        nodes = self._queues(wires, order)
        self._shift_and_rotate(nodes)
        return Program(
            self.collective,
            self.ranks,
            rate,
            tuple(self.table),
            tuple(Queue(self.position[w.path[0]], self.position[w.path[-1]], w.path, w.path[-1]) for w in wires),
            tuple(Channel(tuple(c), s) for c, s in zip(self.carried, slots, strict=True)),
            self._interleaved(nodes),
        )

    def _look_ahead(self) -> None:
        """Delay receivers by some ticks, or none, after their last sender; writers after all readers of the slice."""
        start = {node.role.share: node.role.offset for node in self.nodes}
        readers: dict[tuple[int, int], int] = {}
        for node in self._senders_first():
            role = node.role
            offset = start[role.share]
            if node.above:
                offset = max(sender.role.offset for sender, _ in node.above) + self.random.choice([0, 1, 1, 2])
            if role.contributes and not role.keeps:
                readers[role.rank, role.slice] = max(readers.get((role.rank, role.slice), 0), offset)
            elif role.keeps:
                offset = max(offset, readers.get((role.rank, role.slice), 0))
            node.role = replace(role, offset=offset)

    def _senders_first(self) -> list[_Node]:
        """Return nodes by their distance from the leaves; readers of a slice (all are up-roles) before roots."""
        rank: dict[int, int] = {}

        def height(node: _Node) -> int:
            if id(node) not in rank:
                rank[id(node)] = 1 + max((height(sender) for sender, _ in node.above), default=0)
            return rank[id(node)]

        return sorted(self.nodes, key=lambda node: (node.role.stage != "reduce", height(node)))

    def _global_order(self, slots: list[int]) -> list[_Node] | None:
        """Return a random order in which every token-free dependency points forward; None without such an order."""
        before: dict[int, list[_Node]] = {id(node): [] for node in self.nodes}
        for node in self.nodes:
            for sender, _ in node.above:
                lag = node.role.offset - sender.role.offset
                if lag == 0:
                    before[id(node)].append(sender)
                if lag == slots[node.role.channel]:
                    before[id(sender)].append(node)
            if node.role.keeps:
                before[id(node)] += [
                    other
                    for other in self.nodes
                    if other is not node
                    and other.role.contributes
                    and (other.role.rank, other.role.slice) == (node.role.rank, node.role.slice)
                    and other.role.offset == node.role.offset
                ]
        order: list[_Node] = []
        left = list(self.nodes)
        placed: dict[int, bool] = {}
        while left:
            free = [node for node in left if all(id(other) in placed for other in before[id(node)])]
            if not free:
                return None
            chosen = self.random.choice(free)
            placed[id(chosen)] = True
            order.append(chosen)
            left.remove(chosen)
        return order

    def _wires(self, slots: list[int]) -> list[_Wire]:
        """Return a queue per edge; some are merged if both ends have the same order and the slots suffice."""
        wires: list[_Wire] = []
        for receiver in self.nodes:
            for sender, path in receiver.above:
                new = _Wire(path, [(sender, receiver)])
                room = slots[sender.role.channel]
                shared = next((w for w in wires if w.path == path and self._fits(w, new, room)), None)
                if shared is not None and self.random.random() < 0.7:
                    shared.pairs = _in_order(shared, new)
                else:
                    wires.append(new)
        return wires

    def _fits(self, wire: _Wire, new: _Wire, slots: int) -> bool:
        """Return whether ``new`` may use ``wire``, with all token-free credits pointing forward."""
        (sender, receiver), (other, _) = new.pairs[0], wire.pairs[0]
        if other.role.channel != sender.role.channel or wire.lag != new.lag:
            return False
        if any(s is sender or r is receiver for s, r in wire.pairs):
            return False
        pairs = _in_order(wire, new)
        if [r.place for _, r in pairs] != sorted(r.place for _, r in pairs):
            return False
        for i, (s, _) in enumerate(pairs):
            ticks, j = divmod(i - slots, len(pairs))
            tokens = -ticks - new.lag
            if tokens < 0 or (tokens == 0 and pairs[j][1].place >= s.place):
                return False
        return True

    def _queues(self, wires: list[_Wire], order: list[_Node]) -> list[_Node]:
        """Give every node its queues; a sender's order of sending is random, a receiver's is its tree's."""
        sends: dict[int, list[int]] = {id(node): [] for node in order}
        arriving: dict[tuple[int, int], int] = {}
        for index, wire in enumerate(wires):
            for sender, receiver in wire.pairs:
                sends[id(sender)].append(index)
                arriving[id(sender), id(receiver)] = index
        for node in order:
            self.random.shuffle(sends[id(node)])
            node.role = replace(
                node.role,
                sends=tuple(sends[id(node)]),
                receives=tuple(arriving[id(s), id(node)] for s, _ in node.above),
                own_operand_index=self.random.randint(0, len(node.above)) if node.role.contributes else 0,
            )
        return order

    def _shift_and_rotate(self, nodes: list[_Node]) -> None:
        """Change each rank's zero of time, and the place where its tick begins."""
        for rank in range(len(self.ranks)):
            body = [node for node in nodes if node.role.rank == rank]
            shift = self.random.randint(0, 3)
            turned = self.random.randrange(len(body)) if body else 0
            for place, node in enumerate(body):
                early = place < turned  # these run at the end of the previous tick
                node.role = replace(node.role, offset=node.role.offset + shift + (0 if early else 1))
                node.place = place + (len(body) if early else 0)

    def _interleaved(self, nodes: list[_Node]) -> tuple[Role, ...]:
        """Return all bodies in one list, each in its own order."""
        bodies = [
            sorted((n for n in nodes if n.role.rank == rank), key=lambda n: n.place) for rank in range(len(self.ranks))
        ]
        roles: list[Role] = []
        while any(bodies):
            body = self.random.choice([b for b in bodies if b])
            roles.append(body.pop(0).role)
        return tuple(roles)


def _in_order(wire: _Wire, new: _Wire) -> list[tuple[_Node, _Node]]:
    return sorted(wire.pairs + new.pairs, key=lambda pair: pair[0].place)


def _wide_enough(random: Random, topology: Topology, program: Program) -> Topology:
    """Return ``topology`` with every used link just wide enough, and sometimes wider."""
    weight = {item.block: item.weight for item in program.collective.items()}
    load = {(link.src, link.dst): Fraction(0) for link in topology.links}
    for role in program.roles:
        part = program.slices[role.slice]
        for queue in role.sends:
            path = program.queues[queue].path
            for arc in itertools.pairwise(path):
                load[arc] += (part.stop - part.start) * weight[part.block] * program.rate
    links = tuple(
        replace(x, capacity=max(1, -(-load[x.src, x.dst] // 1)) + random.choice([0, 0, 1])) for x in topology.links
    )
    return replace(topology, links=links)
