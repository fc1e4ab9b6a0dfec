"""Liveness of Programs: the token rule on the folded chunk loop.

Fold the loop: one node per role, standing for all its executions, and arcs "execution T of *head* waits
for execution T − tokens of *tail*" for messages, for slots given back, and for the order in which a rank, which
is one thread, walks through its steps (no token down the list, one from its end to its start in the next
tick). A directed cycle whose tokens sum to 0 or less is an execution that waits for itself; without
one, every execution waits only for what can happen before it. So a program is live for all sizes exactly if every
directed cycle has a positive sum (Commoner, Holt, Even, Pnueli: Marked directed graphs, JCSS 5, 1971;
there for arcs without negative tokens; counting in ticks may make single arcs negative, sums over cycles
stay the same).

A role is not one action, though: it frees the slots it received from before it waits to send. Where the
rule finds a cycle among roles (possible with few slots only), it is asked again with one node per receive
and per send, which is exact for a rank that runs as :mod:`blinkccl.schedule.program` says.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from blinkccl.schedule.program import Program
from blinkccl.schedule.wiring import Arc, Wiring, connect, name_role


def liveness_fault(program: Program, wiring: Wiring) -> str | None:
    """The cycle that deadlocks, in words, or None. Linear for what we lower, O(nodes · arcs) with negative tokens."""
    # Roles are numbered in the order of every body. Where what waits without a token comes later, there is no cycle.
    if all(arc.tokens > 0 or (arc.tokens == 0 and arc.tail < arc.head) for arc in wiring.arcs):
        return None
    bodies: list[list[int]] = [[] for _ in program.vertices]
    for index, role in enumerate(program.roles):
        bodies[role.rank].append(index)
    arcs = _in_order(bodies) + list(wiring.arcs)
    if _cycle(len(program.roles), [(a.tail, a.head, a.tokens) for a in arcs]) is None:
        return None
    fine = _by_action(program, arcs)
    cycle = _cycle(fine.nodes, fine.arcs)
    if cycle is None:
        return None
    return _circle(program, [arcs[i] for i in reversed(cycle) if i < len(arcs)])


def atomic_liveness_fault(program: Program) -> str | None:
    """As :func:`liveness_fault`, for ranks that run differently: as the blocks of a GPU do.

    An execution waits for all its messages and all its slots before it moves any, which makes a role one action; and a
    rank's channels run side by side, so there is an order among the roles of a channel only.
    """
    channels: dict[tuple[int, int], list[int]] = {}
    for index, role in enumerate(program.roles):
        channels.setdefault((role.rank, role.channel), []).append(index)
    arcs = _in_order(channels.values()) + list(connect(program).arcs)
    cycle = _cycle(len(program.roles), [(a.tail, a.head, a.tokens) for a in arcs])
    return None if cycle is None else _circle(program, [arcs[i] for i in reversed(cycle)])


def _circle(program: Program, cycle: list[Arc]) -> str:
    """A cycle, read backwards, in words."""
    tokens = sum(arc.tokens for arc in cycle)
    waits = [_describe(program, arc) for arc in _without_chains(cycle)]
    return f"deadlock: a circle of waits with {tokens} tokens, where it takes 1 to go on: " + "; ".join(waits)


def _without_chains(cycle: list[Arc]) -> list[Arc]:
    """The cycle, read backwards, with every run of steps of one rank told as one wait."""
    first = next((i for i, arc in enumerate(cycle) if arc.kind != "order"), 0)
    told: list[Arc] = []
    for arc in cycle[first:] + cycle[:first]:
        if told and told[-1].kind == arc.kind == "order":
            told[-1] = Arc(arc.tail, told[-1].head, told[-1].tokens + arc.tokens, "order", -1)
        else:
            told.append(arc)
    return told


def _in_order(bodies: Iterable[list[int]]) -> list[Arc]:
    """Arcs for roles that one thread walks through: down each body, and from its end to its start one tick later."""
    arcs = []
    for roles in bodies:
        arcs += [Arc(a, b, 0, "order", -1) for a, b in itertools.pairwise(roles)]
        if roles:  # also where there is one: its last action precedes its first of the next tick
            arcs.append(Arc(roles[-1], roles[0], 1, "order", -1))
    return arcs


@dataclass(frozen=True)
class _Actions:
    """A graph of single receives and sends; ``arcs`` are (tail, head, tokens)."""

    nodes: int
    arcs: list[tuple[int, int, int]]


def _by_action(program: Program, arcs: list[Arc]) -> _Actions:
    """The same graph with a node per receive and send; arc i of ``arcs`` stays arc i."""
    first, last, place = [], [], {}
    inner: list[tuple[int, int, int]] = []
    nodes = 0
    for index, role in enumerate(program.roles):
        first.append(nodes)
        for side, queues in (("receive", role.receives), ("send", role.sends)):
            for queue in queues:
                place[index, side, queue] = nodes
                nodes += 1
        nodes = max(nodes, first[index] + 1)
        last.append(nodes - 1)
        inner += [(v, v + 1, 0) for v in range(first[index], nodes - 1)]
    outer = []
    for arc in arcs:
        if arc.kind == "order":
            outer.append((last[arc.tail], first[arc.head], arc.tokens))
        else:
            tail, head = ("send", "receive") if arc.kind == "data" else ("receive", "send")
            outer.append((place[arc.tail, tail, arc.queue], place[arc.head, head, arc.queue], arc.tokens))
    return _Actions(nodes, outer + inner)


def _cycle(nodes: int, arcs: list[tuple[int, int, int]]) -> list[int] | None:
    """Indexes of the arcs of a directed cycle whose tokens sum to at most 0, in order, or None."""
    if all(tokens >= 0 for _, _, tokens in arcs):
        return _zero_cycle(nodes, arcs)
    return _negative_cycle(nodes, arcs)


def _zero_cycle(nodes: int, arcs: list[tuple[int, int, int]]) -> list[int] | None:
    """A cycle of arcs without tokens: strip nodes that nothing leads to; what is left holds a cycle."""
    indegree = [0] * nodes
    out: list[list[int]] = [[] for _ in range(nodes)]
    for index, (tail, head, tokens) in enumerate(arcs):
        if tokens == 0:
            out[tail].append(index)
            indegree[head] += 1
    ready = [v for v in range(nodes) if indegree[v] == 0]
    for v in ready:
        for index in out[v]:
            head = arcs[index][1]
            indegree[head] -= 1
            if indegree[head] == 0:
                ready.append(head)
    if len(ready) == nodes:
        return None
    entered = [-1] * nodes  # every node left has an arc from another one left: walk backwards until it closes
    for v in range(nodes):
        if indegree[v]:
            for index in out[v]:
                entered[arcs[index][1]] = index
    start = next(v for v in range(nodes) if indegree[v])
    return _walk_back(start, entered, arcs)


def _negative_cycle(nodes: int, arcs: list[tuple[int, int, int]]) -> list[int] | None:
    """Bellman and Ford with a queue: a sum ≤ 0 is a negative one of lengths (nodes + 1) · tokens − 1."""
    out: list[list[tuple[int, int, int]]] = [[] for _ in range(nodes)]
    for index, (tail, head, tokens) in enumerate(arcs):
        out[tail].append((head, tokens * (nodes + 1) - 1, index))
    distance, entered, hops = [0] * nodes, [-1] * nodes, [0] * nodes
    queue, queued = deque(range(nodes)), [True] * nodes
    while queue:
        v = queue.popleft()
        queued[v] = False
        for head, length, index in out[v]:
            if distance[v] + length < distance[head]:
                distance[head], entered[head], hops[head] = distance[v] + length, index, hops[v] + 1
                if hops[head] >= nodes:
                    cycle = _walk_back(head, entered, arcs)
                    if cycle is not None:
                        return cycle
                    hops[head] = 0  # the way here has become shorter since it was counted
                if not queued[head]:
                    queue.append(head)
                    queued[head] = True
    return None


def _walk_back(start: int, entered: list[int], arcs: list[tuple[int, int, int]]) -> list[int] | None:
    """The cycle that following ``entered`` backwards from ``start`` runs into; None if it ends instead."""
    seen = [False] * len(entered)
    v = start
    while not seen[v]:
        seen[v] = True
        if entered[v] < 0:
            return None
        v = arcs[entered[v]][0]
    cycle = [entered[v]]
    while arcs[cycle[-1]][0] != v:
        cycle.append(entered[arcs[cycle[-1]][0]])
    return cycle[::-1]


def _describe(program: Program, arc: Arc) -> str:
    head = name_role(program, arc.head)
    tail = name_role(program, arc.tail)
    if arc.kind == "data":
        return f"{head} waits for a chunk from {tail}"
    if arc.kind == "credit":
        slots = program.channels[program.roles[arc.head].channel].slots
        return f"{head} waits until {tail} frees one of {slots} slot(s)"
    return f"{head} runs after {tail}"
