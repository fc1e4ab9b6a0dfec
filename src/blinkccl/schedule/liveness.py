"""Liveness of Programs: the token rule on the folded chunk loop.

The folded loop is a graph with one node per role, for all its executions. An arc means "execution T of *head* waits for
execution T − tokens of *tail*". It is a message, a slot that is freed, or the order of the steps of a rank, which is
one thread: no token from a step to the next, and one from the last step to the first one of the next tick.

A directed cycle whose tokens sum to 0 or less is an execution that waits for itself. Without such a cycle, every
execution waits only for earlier ones. So a program is live for all sizes exactly if every directed cycle has a positive
sum (Commoner, Holt, Even, Pnueli: Marked directed graphs, JCSS 5, 1971). Their arcs have no negative tokens. Counting
in ticks may make single arcs negative, but sums over cycles stay the same.

A role is more than one action, though: it frees the slots of its messages before it waits to send. If the rule finds a
cycle among roles, which needs few slots, it is checked again with one node per receive and per send. That is exact for
a rank that runs as in :mod:`blinkccl.schedule.program`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from blinkccl.schedule.program import Program
from blinkccl.schedule.wiring import Arc, Wiring, connect, name_role


def liveness_fault(program: Program, wiring: Wiring) -> str | None:
    """The cycle that deadlocks, as text, or None. Linear for lowered programs, O(nodes · arcs) with negative tokens."""
    # Roles are numbered in the order of every body. If all arcs without a token lead forward, there is no cycle.
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
    """The cycle that deadlocks on the thread blocks of a GPU, as in :func:`liveness_fault`, or None.

    An execution waits for all its messages and all its slots before it moves any, so a role is one action. The channels
    of a rank run in parallel, so only the roles of one channel are ordered.
    """
    channels: dict[tuple[int, int], list[int]] = {}
    for index, role in enumerate(program.roles):
        channels.setdefault((role.rank, role.channel), []).append(index)
    arcs = _in_order(channels.values()) + list(connect(program).arcs)
    cycle = _cycle(len(program.roles), [(a.tail, a.head, a.tokens) for a in arcs])
    return None if cycle is None else _circle(program, [arcs[i] for i in reversed(cycle)])


def _circle(program: Program, cycle: list[Arc]) -> str:
    """A cycle, in backward order, as text."""
    tokens = sum(arc.tokens for arc in cycle)
    waits = [_describe(program, arc) for arc in _without_chains(cycle)]
    return f"deadlock: a cycle of waits in which no step can start ({tokens} tokens, expected 1): " + "; ".join(waits)


def _without_chains(cycle: list[Arc]) -> list[Arc]:
    """The cycle, in backward order, with consecutive steps of one rank merged into one wait."""
    first = next((i for i, arc in enumerate(cycle) if arc.kind != "order"), 0)
    merged: list[Arc] = []
    for arc in cycle[first:] + cycle[:first]:
        if merged and merged[-1].kind == arc.kind == "order":
            merged[-1] = Arc(arc.tail, merged[-1].head, merged[-1].tokens + arc.tokens, "order", -1)
        else:
            merged.append(arc)
    return merged


def _in_order(bodies: Iterable[list[int]]) -> list[Arc]:
    """Arcs for the order of roles in one thread: down each body, and from its end to its start one tick later."""
    arcs = []
    for roles in bodies:
        arcs += [Arc(a, b, 0, "order", -1) for a, b in itertools.pairwise(roles)]
        if roles:  # also for a single role: its last action precedes its first one of the next tick
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
    """A cycle of arcs without tokens: nodes without incoming arcs are removed; the remaining nodes hold a cycle."""
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
    entered = [-1] * nodes  # every remaining node has an arc from another one: walking backwards closes a cycle
    for v in range(nodes):
        if indegree[v]:
            for index in out[v]:
                entered[arcs[index][1]] = index
    start = next(v for v in range(nodes) if indegree[v])
    return _walk_back(start, entered, arcs)


def _negative_cycle(nodes: int, arcs: list[tuple[int, int, int]]) -> list[int] | None:
    """Bellman and Ford with a queue: tokens sum to ≤ 0 exactly if the lengths (nodes + 1) · tokens − 1 sum to < 0."""
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
                    hops[head] = 0  # the path to this node has become shorter since its hops were counted
                if not queued[head]:
                    queue.append(head)
                    queued[head] = True
    return None


def _walk_back(start: int, entered: list[int], arcs: list[tuple[int, int, int]]) -> list[int] | None:
    """The cycle on the backward walk along ``entered`` from ``start``; None if the walk ends instead."""
    visited = [False] * len(entered)
    v = start
    while not visited[v]:
        visited[v] = True
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
