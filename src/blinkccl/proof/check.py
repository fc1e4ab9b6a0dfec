"""The independent checker of plans. Its input is the plan's JSON and the topology alone.

It shares no code and no types with the planner (packing, algorithms, lowering). It computes a second time the semantics
of each collective, the loads, the rate and the proof of the bound, from the schema of ``blink plan --json``
(docs/design.md). It gives a sentence per false statement; without any, the plan is right and its bound is proved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from math import isclose, lcm

from blinkccl.errors import ScheduleError
from blinkccl.proof.bound import combining, refute
from blinkccl.proof.meaning import Block, Requirement, meaning, wrong_ends
from blinkccl.proof.reading import Arc, ClaimedPlan, GivenLinks, Path, PlanShare, Walk, read_network, read_plan
from blinkccl.proof.turns import written_out

#: Kinds of vertices that can be ranks of a job.
_RANK_KINDS = ("gpu", "cpu")
#: Most characters of an order in a message.
_ORDER_SHOWN = 60
#: Relative tolerances: for floats that were printed and read back, and for link rates, which may be rounded by hand.
_RELATIVE = 1e-9
_RATES = 1e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the checker. ``rate`` and ``bound`` are recomputed: None if no link is used, or nothing is proved.

    Each of ``violations`` starts with its JSON path. ``optimal``: the plan is right and its rate is the bound.
    """

    violations: list[str]
    rate: Fraction | None
    bound: Fraction | None
    optimal: bool


def check_plan(plan: object, topology: object = None) -> Verdict:
    """Check every statement of a plan. Cost: linear in the plan, plus the certificate.

    ``plan`` is the JSON object of ``blink plan --json``; its ``root``, ``src``, ``dst``, ``depth`` and ``trees`` may be
    absent. ``topology`` is the JSON object of ``blink topo --json``. A plan with its own topology (``--gpus`` and
    ``--links`` may leave links out) is checked on that one; ``topology`` must have its links, at least as fast.
    "optimal" then holds for the links in the plan. A certificate of kind ``dual`` bounds schedules whose relays pass on
    unicast data. ScheduleError if the JSON is no plan at all: a missing field, a wrong type, an unknown collective, or
    no topology.
    """
    read = read_plan(plan)
    machine = None if topology is None else read_network(topology)
    network = read.network or machine
    if network is None:
        raise ScheduleError("topology: missing in the plan; pass the topology of its machine as well")
    violations = list(_frame(read, network))
    if read.network is not None and machine is not None:
        violations += _contained(read.network, machine)
    violations += wrong_ends(read.collective, read.ranks, read.ends)
    if violations:
        # Shares can be compared only with the semantics of valid ranks, root, src and dst.
        return Verdict(violations, None, None, False)
    read = written_out(read, network)
    items = meaning(read.collective, read.ranks, read.ends)
    job = frozenset(read.ranks)
    joints = job | combining(network)
    # The cache helps because trees have many hops in common.
    wrong = cache(partial(_wrong_path, job=job, joints=joints, network=network))
    walks = [walk_share(share, joints, wrong, violations) for share in read.shares]
    violations += _coverage(read.shares, walks, items)
    if not violations:  # an order needs valid trees
        violations += _wrong_orders(read, walks, items)
    rate = _loads(read, network, violations)
    bound, refuted = refute(read.certificate, read.collective, items, read.ranks, network)
    violations += refuted
    violations += _beyond_prices(read, walks)
    violations += _claims(read, network, rate, bound, max((walk.depth for walk in walks), default=0))
    return Verdict(violations, rate, bound, not violations and rate == bound)


def _frame(plan: ClaimedPlan, network: GivenLinks) -> Iterator[str]:
    """Faults of ranks, unit and link rates. All other checks assume that there are none."""
    if len(plan.ranks) < 2:
        yield f"ranks: expected at least two, got {len(plan.ranks)}"
    for i, rank in enumerate(plan.ranks):
        if rank not in network.kinds:
            yield f"ranks[{i}]: {rank} is no vertex of the topology"
        elif network.kinds[rank] not in _RANK_KINDS:
            yield f"ranks[{i}]: vertex {rank} is a {network.kinds[rank][:20]}, which cannot be a rank"
    if len(dict.fromkeys(plan.ranks)) != len(plan.ranks):
        yield "ranks: a vertex is named twice"
    if plan.unit_gb_per_s != network.unit_gb_per_s:
        yield f"unit_gb_per_s: {plan.unit_gb_per_s} is stated, the topology's unit is {network.unit_gb_per_s}"
    for (u, v), capacity in network.capacity.items():
        if not isclose(network.gb_per_s[u, v], capacity * network.unit_gb_per_s, rel_tol=_RATES):
            yield (
                f"topology: link {u} → {v} has {network.gb_per_s[u, v]} GB/s stated, but its capacity is "
                f"{capacity} × the unit {network.unit_gb_per_s}"
            )


def _contained(plan: GivenLinks, machine: GivenLinks) -> Iterator[str]:
    """Vertices and links of the plan's own topology that the topology given beside it does not have.

    The plan may restrict a vertex: split it into parts without links between them, or treat a host as a memory only.
    """
    whole = {vertex: plan.part_of.get(vertex, vertex) for vertex in plan.kinds}
    for vertex, kind in plan.kinds.items():
        real = machine.kinds.get(whole[vertex], "absent")
        if vertex in plan.combining and whole[vertex] not in machine.combining:
            yield (
                f"topology: vertex {vertex} has in-network reduction (combines) in the plan, but not in the topology "
                "given beside it"
            )
        if kind != real and (kind, real) != ("memory", "host"):
            yield f"topology: vertex {vertex} is a {kind[:20]} in the plan, {real[:20]} in the topology given beside it"
    together: dict[tuple[tuple[int, int], str], float] = defaultdict(float)
    for (src, dst), gb_per_s in plan.gb_per_s.items():
        together[(whole[src], whole[dst]), plan.by[src, dst]] += gb_per_s
    for (arc, by), gb_per_s in together.items():
        available = {
            "write": machine.gb_per_s.get(arc, 0.0),
            "read": machine.read_gb_per_s.get(arc, 0.0),
        }.get(by, min(machine.gb_per_s.get(arc, 0.0), machine.read_gb_per_s.get(arc, 0.0)))
        if gb_per_s > available * (1 + _RATES):
            yield (
                f"topology: link {arc[0]} → {arc[1]} has {gb_per_s} GB/s in the plan, {available} GB/s in the "
                "topology given beside it"
            )


def _beyond_prices(plan: ClaimedPlan, walks: list[Walk]) -> Iterator[str]:
    """The fault of a dual without sets beside a tree with a switch: such prices bound trees over ranks only."""
    if plan.certificate.kind != "dual" or plan.certificate.sets:
        return
    job = frozenset(plan.ranks)
    for share, walk in zip(plan.shares, walks, strict=True):
        switch = next((v for v in (share.root, *walk.senders, *walk.receivers) if v not in job), None)
        if switch is not None:
            yield (
                f"certificate: switch {switch} in {share.where} reduces or copies data; expected sets as well as "
                "prices, got prices alone, which bound trees over ranks only"
            )
            return


def walk_share(
    share: PlanShare, joints: frozenset[int], wrong_path: Callable[[Path], str], violations: list[str]
) -> Walk:
    """Walk both trees of ``share`` and append their faults to ``violations``.

    ``joints`` are the ranks and the switches with in-network reduction.
    """
    if share.weight <= 0:
        violations.append(f"{share.where}.weight: expected a positive fraction, got {share.weight}")
    if share.root not in joints:
        violations.append(f"{share.where}.root: {share.root} is none of the ranks {sorted(joints)[:16]}")
        return Walk({}, {}, 0)
    depths, trees = [0], []
    for key, edges, up in (("reduce", share.reduce, True), ("broadcast", share.broadcast, False)):
        where = f"{share.where}.{key}"
        hops = []
        for i, path in enumerate(edges or ()):
            wrong = wrong_path(path)
            if wrong:
                violations.append(f"{where}[{i}]: {wrong}")
            else:
                hops.append(path)
        parent, depth = _walk_tree(hops, share.root, up, where, violations)
        trees.append(parent)
        depths.append(depth)
    return Walk(trees[0], trees[1], max(depths))


def _wrong_path(path: Path, job: frozenset[int], joints: frozenset[int], network: GivenLinks) -> str:
    """The fault of one hop, or ""."""
    for arc in pairwise(path):
        if arc not in network.capacity:
            return f"there is no link {arc[0]} → {arc[1]}"
    if path[0] not in joints or path[-1] not in joints:
        end = path[-1] if path[0] in joints else path[0]
        return f"hop {list(path)} ends at {end}, which is no rank of the job and no switch with in-network reduction"
    if len(path) > 2:
        inside = next((v for v in path[1:-1] if v in job), None)
        if inside is not None:
            return f"hop {list(path)} runs through rank {inside}; a rank must be an end of the hop"
        if len(dict.fromkeys(path)) != len(path):
            return f"hop {list(path)} visits a vertex twice"
    return ""


def _walk_tree(edges: list[Path], root: int, up: bool, where: str, violations: list[str]) -> tuple[dict[int, int], int]:
    """Parent of each vertex connected to ``root``, and the tree's depth in hops."""
    children: dict[int, list[int]] = {}
    parent: dict[int, int] = {}
    for path in edges:
        near, far = (path[-1], path[0]) if up else (path[0], path[-1])
        if far == root:
            verb = "sends up" if up else "receives from above"
            violations.append(f"{where}: the root {root} {verb}; edges must point {_direction(up)}")
        elif far in parent:
            verb = "sends twice, so its contribution counts twice, to" if up else "receives twice, from"
            violations.append(f"{where}: vertex {far} {verb} {parent[far]} and {near}")
        else:
            parent[far] = near
            children.setdefault(near, []).append(far)
    hanging: dict[int, int] = {}
    level, depth = [root], 0
    while level := [child for vertex in level for child in children.get(vertex, ())]:
        depth += 1
        hanging.update((child, parent[child]) for child in level)
    loose = [vertex for vertex in parent if vertex not in hanging]
    if loose:
        violations.append(
            f"{where}: not one tree: {loose[:8]} have no path {'to' if up else 'from'} the root {root} along its edges"
        )
    return hanging, depth


def _direction(up: bool) -> str:
    return "toward the root" if up else "away from the root"


def _coverage(shares: tuple[PlanShare, ...], walks: list[Walk], items: dict[Block, Requirement]) -> Iterator[str]:
    """Slices not reduced from every source and delivered to every keeper once; blocks that slices do not fill."""
    slices: dict[tuple[Block, int], list[int]] = {}
    for i, share in enumerate(shares):
        if share.block not in items:
            yield f"{share.where}.block: {share.block} is no block of this collective on these ranks"
            continue
        slices.setdefault((share.block, share.slice), []).append(i)
        yield from _sources(share, walks[i], items[share.block])
    filled = dict.fromkeys(items, Fraction(0))
    for (block, name), members in slices.items():
        first = shares[members[0]]
        filled[block] += first.weight
        for i in members[1:]:
            if shares[i].weight != first.weight:
                yield (
                    f"{shares[i].where}.weight: {shares[i].weight} for slice {name}, which has weight "
                    f"{first.weight} in {first.where}"
                )
        yield from _keepers([(shares[i], walks[i]) for i in members], name, items[block])
    for block, weight in filled.items():
        if weight != items[block].weight:
            yield (
                f"shares: the weights of block {_name(block)}'s slices sum to {weight}, expected {items[block].weight}"
            )


def _name(block: Block) -> str:
    return "null (the whole buffer)" if block is None else str(block)


def _sources(share: PlanShare, walk: Walk, item: Requirement) -> Iterator[str]:
    absent = [s for s in item.sources if s != share.root and s not in walk.senders]
    if absent:
        yield f"{share.where}: the contributions of {absent[:8]} never reach the root {share.root}"
    idle = walk.senders.keys() - walk.senders.values() - frozenset(item.sources)
    for vertex in sorted(idle):
        yield f"{share.where}.reduce: vertex {vertex} sends up, but has nothing to contribute"


def _keepers(members: list[tuple[PlanShare, Walk]], name: int, item: Requirement) -> Iterator[str]:
    holder: dict[int, str] = {}
    keepers = frozenset(item.keepers)
    for share, walk in members:
        # Data of one source is complete at every vertex on its way up, so it need not come back down.
        passed = [v for v in walk.senders if v not in walk.receivers] if len(item.sources) == 1 else []
        for vertex in (share.root, *walk.receivers, *passed):
            if vertex not in keepers:
                continue  # A relay only passes the slice on.
            if vertex in holder:
                yield f"{share.where}: vertex {vertex} gets slice {name} twice, from {holder[vertex]} too"
            holder[vertex] = share.where
    missing = [vertex for vertex in item.keepers if vertex not in holder]
    if missing:
        yield f"{members[0][0].where}: slice {name} never reaches {missing[:8]}"


def _loads(plan: ClaimedPlan, network: GivenLinks, violations: list[str]) -> Fraction | None:
    """The rate at which the most loaded link is full; wrong stated loads are appended to ``violations``."""
    # The loop over all edges uses integers: weights over one common denominator.
    scale = lcm(*(share.weight.denominator for share in plan.shares))
    use: dict[Arc, int] = {}
    for share in plan.shares:
        weight = share.weight.numerator * (scale // share.weight.denominator)
        for path in (*(share.reduce or ()), *(share.broadcast or ())):
            for arc in pairwise(path):
                use[arc] = use.get(arc, 0) + weight
    rates = [
        Fraction(network.capacity[arc] * scale, load)
        for arc, load in use.items()
        if load > 0 and arc in network.capacity
    ]
    rate = min(rates, default=None)
    if rate is None:
        violations.append("shares: no share crosses any link, so there is no rate")
        return None
    loads = {arc: Fraction(load, scale) * rate for arc, load in use.items()}
    violations += _wrong_loads(plan, network, loads)
    return rate


def _wrong_loads(plan: ClaimedPlan, network: GivenLinks, load: dict[Arc, Fraction]) -> Iterator[str]:
    stated: set[Arc] = set()
    for row in plan.link_load:
        where = f"{row.where}: link {row.arc[0]} → {row.arc[1]}"
        if row.arc in stated:
            yield f"{where} is listed twice"
        elif row.arc not in network.capacity:
            yield f"{where} does not exist"
        else:
            if row.capacity != network.capacity[row.arc]:
                yield f"{where} has capacity {row.capacity} stated, the topology says {network.capacity[row.arc]}"
            if row.load != load.get(row.arc, 0):
                yield f"{where} has load {row.load} stated, recomputed {load.get(row.arc, 0)}"
        stated.add(row.arc)
    for u, v in load:
        if (u, v) not in stated:
            yield f"link_load: link {u} → {v} carries {load[u, v]} but is not listed"


def _claims(
    plan: ClaimedPlan, network: GivenLinks, rate: Fraction | None, bound: Fraction | None, depth: int
) -> Iterator[str]:
    """Stated numbers of the plan that differ from the recomputed ones."""
    if rate is not None:
        if plan.rate != rate:
            excess = "; at the stated rate a link is over its capacity" if plan.rate > rate else ""
            yield f"rate: {plan.rate} is stated, recomputed {rate}{excess}"
        algbw = float(rate) * network.unit_gb_per_s
        if not isclose(plan.algbw_gb_per_s, algbw, rel_tol=_RELATIVE):
            yield f"algbw_gb_per_s: {plan.algbw_gb_per_s} is stated, rate × unit is {algbw}"
    if bound is not None:
        if plan.bound != bound:
            yield f"bound: {plan.bound} is stated, the certificate proves {bound}"
        if rate is not None and rate > bound:
            yield f"rate: {rate} is above the bound {bound} that the certificate proves; one of them is wrong"
    if plan.optimal != (rate == bound):
        yield f"optimal: {str(plan.optimal).lower()} is stated, but rate is {rate} and bound is {bound}"
    if plan.price is not None and rate and bound is not None and plan.price != bound / rate:
        yield f"price: {plan.price} is stated, bound / rate is {bound / rate}"
    if plan.depth is not None and plan.depth != depth:
        yield f"depth: {plan.depth} is stated, the deepest tree has {depth} hop{'' if depth == 1 else 's'}"
    moving = sum(1 for share in plan.shares if share.reduce or share.broadcast)
    if plan.trees is not None and plan.trees != moving:
        yield f"trees: {plan.trees} is stated, {moving} share{' has' if moving == 1 else 's have'} edges"


# The order of sums follows from the trees alone. A vertex folds its own contribution and the results of its senders,
# sorted by the first rank in each. Its result is written in parentheses unless it is a single operand.
def _wrong_orders(plan: ClaimedPlan, walks: Sequence[Walk], items: Mapping[Block, Requirement]) -> Iterator[str]:
    """A sentence for each share that sums in another order: the vertex that differs, expected order and actual order.

    The trees must be right, and every share's block must be in ``items``.
    """
    if plan.order is None:
        return
    if all(len(item.sources) == 1 for item in items.values()):
        if plan.order:
            yield f"order: {_short(plan.order)!r} is stated, but {plan.collective} sums nothing: expected ''"
        return
    place = {rank: i for i, rank in enumerate(plan.ranks)}
    expected = f"({plan.order})"
    for share, walk in zip(plan.shares, walks, strict=True):
        written = _written(share.root, walk.senders, items[share.block].sources, place)
        if written[share.root] == expected:
            continue
        # The order differs first at the deepest vertex whose sum is not part of the stated order.
        at = next((v for v, text in written.items() if text not in expected), share.root)
        yield (
            f"{share.where}: its order differs at vertex {at}, which sums {_short(written[at])}; expected the order "
            f"{_short(plan.order)}, got {_short(written[share.root][1:-1])}"
        )


def _written(root: int, senders: Mapping[int, int], sources: Sequence[int], place: Mapping[int, int]) -> dict[int, str]:
    """The sum of each vertex as text, senders before receivers."""
    below: dict[int, list[int]] = {}
    for child, parent in senders.items():
        below.setdefault(parent, []).append(child)
    down = [root]
    for vertex in down:
        down += below.get(vertex, ())
    own = frozenset(sources)
    first: dict[int, int] = {}
    text: dict[int, str] = {}
    for vertex in reversed(down):
        operands = [(first[child], text[child]) for child in below.get(vertex, ())]
        if vertex in own:
            operands.append((place[vertex], str(vertex)))
        operands.sort()
        first[vertex] = operands[0][0]
        text[vertex] = operands[0][1] if len(operands) == 1 else f"({'+'.join(each for _, each in operands)})"
    return text


def _short(order: str) -> str:
    return order if len(order) <= _ORDER_SHOWN else f"{order[: _ORDER_SHOWN - 1]}…"
