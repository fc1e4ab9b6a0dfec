"""What became of a plan: two plans of one collective, by their rates, times, links and trees.

They are the same where both move the same data along the same trees, at the same rate on the same links; names, proofs
and the order of shares take no part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from math import sqrt

from blinkccl.algorithms.registry import Request
from blinkccl.baselines.candidate import Conditions, Estimate, Prepared
from blinkccl.choice.candidates import Code, code_of, of_forest
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.forest.document import moving_shares
from blinkccl.forest.model import Forest, Path, Share
from blinkccl.report.plan_text import bottleneck
from blinkccl.simulate.calibration import calibration_for
from blinkccl.simulate.translate import Settings
from blinkccl.topology.assembly import exact_unit
from blinkccl.units import bus_factor

#: 4K, 16K, …, 1G.
SIZES = tuple(4 << 10 << step for step in range(0, 20, 2))
#: Times that differ by less, relatively, are equal to people.
EQUAL = 0.01
#: A size from which on another plan is faster is found to this part of itself.
_NEAR = 1.05
_NOTHING = Fraction(0)


@dataclass(frozen=True, slots=True)
class Figures:
    """A plan in a few numbers; rates in GB/s on links that run at their stated rates."""

    algorithm: str
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    bound_gb_per_s: float
    percent_bound: float
    bottleneck: str
    depth: int
    shares: int
    most_shares_per_root: int
    largest_denominator: int


@dataclass(frozen=True, slots=True)
class Both:
    """What both plans take for a size, and which is faster: "A", "B", or "" where that is nothing to speak of."""

    size_bytes: int
    a: Estimate
    b: Estimate

    @property
    def speed(self) -> float:
        """How many times as fast B is."""
        return self.a.seconds / self.b.seconds if self.a.seconds and self.b.seconds else 1.0

    @property
    def faster(self) -> str:
        if abs(self.speed - 1) < EQUAL:
            return ""
        return "B" if self.speed > 1 else "A"


@dataclass(frozen=True, slots=True)
class Span:
    """Sizes at which the same plan is faster: ``rows`` of those that were timed, ``from_bytes`` where it begins."""

    faster: str
    from_bytes: int
    rows: tuple[Both, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """What was predicted; ``codes`` say what runs A and B, at which costs."""

    codes: tuple[str, str]
    rows: tuple[Both, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link of a plan in GB/s: what it carries at the plan's rate, of how much."""

    load: Fraction
    capacity: Fraction


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A link that carries, or can carry, something else; None where a plan's network does not have it."""

    src: int
    dst: int
    kind: str
    a: LinkUse | None
    b: LinkUse | None

    @property
    def by(self) -> Fraction:
        """How much the loads differ, in GB/s."""
        return abs((self.a.load if self.a else _NOTHING) - (self.b.load if self.b else _NOTHING))


@dataclass(frozen=True, slots=True)
class TreeChange:
    """A share's trees, with the weights of A's and B's shares on them: mostly one each, () in a plan without."""

    share: Share
    a: tuple[Fraction, ...]
    b: tuple[Fraction, ...]


@dataclass(frozen=True, repr=False)
class Diff:
    """All that was compared.

    ``times`` is why there are none, where that is so. ``apart``: why vertices of A are not those of B, so that neither
    links nor trees are compared; else "". ``links`` and ``trees`` have those that differ, by how much and as they come;
    ``links_alike`` and ``trees_alike`` count the others.
    """

    forests: tuple[Forest, Forest]
    a: Figures
    b: Figures
    times: Times | str
    apart: str
    links: tuple[LinkChange, ...]
    links_alike: int
    trees: tuple[TreeChange, ...]
    trees_alike: int

    @property
    def same(self) -> bool:
        """Whether B does what A does, whatever it is called."""
        a, b = self.forests
        return (
            not self.apart
            and (a.collective, a.ranks) == (b.collective, b.ranks)
            and (_gb_per_s(a, a.rate), _gb_per_s(a, a.bound)) == (_gb_per_s(b, b.rate), _gb_per_s(b, b.bound))
            and not self.links
            and not self.trees
        )

    def __repr__(self) -> str:
        return f"<Diff: {'the same plan' if self.same else 'two plans'}>"


def compare(
    a: Forest,
    b: Forest,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Diff:
    """Sets two valid plans side by side, timed at ``sizes`` in rising order, as ``blink sim --plan`` times each.

    UsageError where one is of another collective, or among another number of ranks: nothing of these compares.
    ``progress(done, total)`` counts sizes. Cost: a simulation of both per size, five more where another gets faster.
    """
    for name, ours, theirs in (
        ("collective", a.collective.name, b.collective.name),
        ("number of ranks", str(len(a.ranks)), str(len(b.ranks))),
    ):
        if ours != theirs:
            raise UsageError(f"the {name} of A is {ours}, that of B {theirs}: expected plans of one job; plan one anew")
    apart = _apart(a, b)
    links, links_alike = ((), 0) if apart else _links(a, b)
    trees, trees_alike = ((), 0) if apart else _trees(a, b)
    times = _times(a, b, sizes, progress)
    return Diff((a, b), _figures(a), _figures(b), times, apart, links, links_alike, trees, trees_alike)


def _gb_per_s(forest: Forest, lanes: Fraction) -> Fraction:
    return lanes * exact_unit(forest.topology)


def _figures(forest: Forest) -> Figures:
    factor = bus_factor(forest.collective.name, len(forest.ranks))
    roots = Counter(share.root for share in forest.shares if _moves(share))
    return Figures(
        forest.algorithm,
        float(_gb_per_s(forest, forest.rate)),
        float(_gb_per_s(forest, forest.rate * factor)),
        float(_gb_per_s(forest, forest.bound)),
        100 * float(forest.rate / forest.bound),
        bottleneck(forest.certificate),
        forest.depth,
        moving_shares(forest),
        max(roots.values(), default=0),
        max((share.weight.denominator for share in forest.shares), default=1),
    )


def _moves(share: Share) -> bool:
    return any(tree.edges for tree in share.trees())


def _apart(a: Forest, b: Forest) -> str:
    """Why a number is not the same device in both: files of two machines, say."""
    ours, theirs = a.topology.vertex, b.topology.vertex
    for vertex in sorted(ours.keys() & theirs.keys()):
        kinds = ours[vertex].kind, theirs[vertex].kind
        if kinds[0] != kinds[1]:
            return f"{vertex} is a {kinds[0]} of {a.topology.name}, and a {kinds[1]} of {b.topology.name}"
    return ""


# Links.
def _uses(forest: Forest) -> dict[tuple[int, int], LinkUse]:
    """Every link of the plan's network."""
    load = forest.link_load
    return {
        arc: LinkUse(_gb_per_s(forest, load.get(arc, _NOTHING)), _gb_per_s(forest, Fraction(link.capacity)))
        for arc, link in forest.topology.link.items()
    }


def _links(a: Forest, b: Forest) -> tuple[tuple[LinkChange, ...], int]:
    """Those that differ, most first, and how many do not."""
    ours, theirs = _uses(a), _uses(b)
    arcs = sorted(ours.keys() | theirs.keys())
    links = b.topology.link | a.topology.link
    changes = [
        LinkChange(*arc, links[arc].kind, ours.get(arc), theirs.get(arc))
        for arc in arcs
        if ours.get(arc) != theirs.get(arc)
    ]
    return tuple(sorted(changes, key=lambda change: -change.by)), len(arcs) - len(changes)


# Trees.
def _key(share: Share) -> object:
    """What makes two shares go the same way: a parent sends to its children in their order, a sum has none."""
    up = None if share.reduce is None else sorted(share.reduce.edges)
    down = None if share.broadcast is None else sorted(share.broadcast.edges, key=_parent)
    return share.block, share.root, str(up), str(down)


def _parent(path: Path) -> int:
    return path[0]


def _trees(a: Forest, b: Forest) -> tuple[tuple[TreeChange, ...], int]:
    """Those that differ in their weights or are in one plan only, as they come, and how many do not differ."""
    first: dict[object, Share] = {}
    weights: dict[object, tuple[list[Fraction], list[Fraction]]] = defaultdict(lambda: ([], []))
    for side, forest in enumerate((a, b)):
        for share in filter(_moves, forest.shares):
            first.setdefault(key := _key(share), share)
            weights[key][side].append(share.weight)
    found = [TreeChange(first[key], tuple(sorted(x)), tuple(sorted(y))) for key, (x, y) in weights.items()]
    changes = tuple(one for one in found if one.a != one.b)
    return changes, len(found) - len(changes)


# Times.
def _times(a: Forest, b: Forest, sizes: Sequence[int], progress: Callable[[int, int], None]) -> Times | str:
    """What both take, run by the same code; why not, where nobody knows the costs of one."""
    try:
        codes, plans = _prepared(a, b)
        rows = []
        for size in sizes:
            rows.append(_at(plans, size))
            progress(len(rows), len(sizes))
        return Times(codes, tuple(rows), _spans(plans, rows))
    except (TopologyError, UnsupportedError) as error:
        return str(error)


def _prepared(a: Forest, b: Forest) -> tuple[tuple[str, str], tuple[Prepared, Prepared]]:
    """Both by kernels, or both by copy engines: a plan that only these run is not held against another's kernels."""
    requests = [Request(forest.topology, forest.collective, forest.ranks) for forest in (a, b)]
    codes = [code_of(request) for request in requests]
    why = next((code.why for code in codes if code.gpu is None), "")
    if not why:
        try:
            return _by(a, codes[0], b, codes[1])
        except UnsupportedError as error:
            why = str(error)
    return _by(a, Code(None, why), b, Code(None, why))


def _by(a: Forest, code_a: Code, b: Forest, code_b: Code) -> tuple[tuple[str, str], tuple[Prepared, Prepared]]:
    # Several chunks of a large plan are timed as one, rather than that there is no answer.
    one, other = (Conditions(calibration_for(forest.topology), Settings(coarser=True)) for forest in (a, b))
    return (code_a.about(one), code_b.about(other)), (of_forest(a, code_a, one), of_forest(b, code_b, other))


def _at(plans: tuple[Prepared, Prepared], size_bytes: int) -> Both:
    return Both(size_bytes, plans[0].at(size_bytes), plans[1].at(size_bytes))


def _spans(plans: tuple[Prepared, Prepared], rows: Sequence[Both]) -> tuple[Span, ...]:
    """Who is faster from which size on; between two that were timed it is looked for by bisection."""
    spans: list[Span] = []
    for faster, group in groupby(rows, key=lambda row: row.faster):
        span = Span(faster, 0, tuple(group))
        if spans:
            low, high = spans[-1].rows[-1].size_bytes, span.rows[0].size_bytes
            while high > low * _NEAR and high - low > 1:
                middle = int(sqrt(low * high))
                low, high = (middle, high) if _at(plans, middle).faster != faster else (low, middle)
            span = replace(span, from_bytes=high)
        spans.append(span)
    return tuple(spans)
