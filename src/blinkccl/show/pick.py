"""Selection of GPUs: all sets of a size, ranked by the rate of a collective on them, as JSON and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.nccl import RingBaseline, ring_baseline
from blinkccl.errors import TopologyError, UsageError
from blinkccl.show.plan_text import bottleneck
from blinkccl.show.text import Paint, columns, count, fit, gb_per_s_text, ids, plain
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, check_links, joining_links, network_for
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

#: Limit on sets, which take some 5 ms each: a few minutes.
MAX_SETS = 20_000
_NOTHING = Fraction(0)
_HEADER = ("", "GPUs", "algbw", "NCCL 2.4", "left for others", "", "bottleneck")


@dataclass(frozen=True, slots=True)
class Reach:
    """The rate of a collective on a set: ``gb_per_s`` algbw, exact, on ``links`` ("" if none join the set)."""

    gb_per_s: Fraction
    links: str


@dataclass(frozen=True, slots=True)
class Pick:
    """One set: its rate, and the rate of the best set of the GPUs that it leaves free.

    ``left`` has the same size if enough GPUs remain, else it has all that remain; it is empty for fewer than two.
    """

    ranks: tuple[int, ...]
    reach: Reach
    left: tuple[int, ...]
    left_gb_per_s: Fraction


@dataclass(frozen=True, slots=True)
class Ranking:
    """All sets, best first, and the request."""

    topology: Topology
    collective: str
    free: tuple[int, ...]
    size: int
    links: str | None
    picks: tuple[Pick, ...]

    def forest(self, pick: Pick) -> Forest:
        """The optimal plan of a connected set, with the proof of its rate."""
        return algorithm("optimal").plan(self._request(pick, pick.reach.links))

    def ring(self, pick: Pick) -> RingBaseline:
        """The rings of a set, including PCIe as in NCCL."""
        return ring_baseline(self._request(pick, self.links or LINK_CHOICES[0]))

    def _request(self, pick: Pick, links: str) -> Request:
        return Request(self.topology, _collective(self.collective, self.size), pick.ranks, links)

    def document(self, shown: int) -> dict[str, Any]:
        """The JSON object of ``blink pick --json``, with the ``shown`` best and the worst sets."""
        best = self.picks[:shown]
        worst = self.picks[len(best) :][-1:]
        return {
            "topology": self.topology.name,
            "collective": self.collective,
            "k": self.size,
            "free": list(self.free),
            "links": self.links or LINK_CHOICES[0],
            "sets": len(self.picks),
            "best": [self._entry(pick) for pick in best],
            "worst": [self._entry(pick) for pick in worst],
        }

    def _entry(self, pick: Pick) -> dict[str, Any]:
        ring = self.ring(pick)
        forest = self.forest(pick) if pick.reach.links else None
        return {
            "gpus": list(pick.ranks),
            "links": pick.reach.links or None,
            "algbw_gb_per_s": float(pick.reach.gb_per_s),
            "rate": None if forest is None else str(forest.rate),
            "unit_gb_per_s": None if forest is None else forest.topology.unit_gb_per_s,
            "ring_algbw_gb_per_s": ring.gb_per_s,
            "ring_fast": ring.fast,
            "left": list(pick.left),
            "left_algbw_gb_per_s": float(pick.left_gb_per_s),
            "bottleneck": None if forest is None else bottleneck(forest.certificate),
        }


def rank_sets(
    topology: Topology,
    free: Sequence[int],
    size: int,
    collective: str = "allreduce",
    links: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ranking:
    """All sets of ``size`` ≥ 2 of the ``free`` GPUs, by the proved optimal rate, then by the rate left for others.

    A set's first GPU is the root; sendrecv goes from the first to the last. Rates are for ``links``; without a choice,
    for the links that join the set (:func:`~blinkccl.topology.select.joining_links`). ``progress(done, total)``
    counts sets. Cost: one plan per set, except for sets with equal links up to renumbering. The remaining GPUs cost as
    many again if they are fewer than ``size``.
    """
    free = tuple(sorted(free))
    if links is not None:
        check_links(links)
    _check(free, size, collective)
    judge = _Judge(topology, collective, links)
    total = comb(len(free), size)
    reached: dict[tuple[int, ...], Reach] = {}
    for ranks in combinations(free, size):
        reached[ranks] = judge(ranks)
        progress(len(reached), total)
    order = sorted(reached, key=lambda ranks: (-reached[ranks].gb_per_s, ranks))
    picks = []
    for ranks in order:
        left = _best_left(free, ranks, size, order, judge)
        picks.append(Pick(ranks, reached[ranks], left, judge(left).gb_per_s if left else _NOTHING))
    picks.sort(key=lambda pick: (-pick.reach.gb_per_s, -pick.left_gb_per_s, pick.ranks))
    return Ranking(topology, collective, free, size, links, tuple(picks))


def _check(free: Sequence[int], size: int, collective: str) -> None:
    if collective not in COLLECTIVES:
        raise UsageError(f"unknown collective {collective!r}; expected one of {', '.join(COLLECTIVES)}")
    if not 2 <= size <= len(free):
        raise UsageError(f"-k {size}: expected 2 to {len(free)}, the number of free GPUs")
    if comb(len(free), size) > MAX_SETS:
        raise UsageError(
            f"-k {size} of {len(free)} free GPUs are {comb(len(free), size):,} sets, more "
            f"than the limit of {MAX_SETS:,}; name fewer GPUs with --free"
        )


def _best_left(
    free: tuple[int, ...], ranks: tuple[int, ...], size: int, order: Sequence[tuple[int, ...]], judge: _Judge
) -> tuple[int, ...]:
    """The best set of the GPUs that ``ranks`` leaves free."""
    taken = frozenset(ranks)
    rest = tuple(vertex for vertex in free if vertex not in taken)
    if len(rest) < size:
        return rest if len(rest) > 1 else ()
    return next(other for other in order if taken.isdisjoint(other))


def _collective(name: str, size: int) -> Collective:
    ends = {"root": 0, "src": 0, "dst": size - 1}
    return Collective(name, size, **{key: ends[key] for key in COLLECTIVES[name].parameters})


@dataclass
class _Judge:
    """Rates of sets, cached by their links up to renumbering."""

    topology: Topology
    collective: str
    links: str | None
    _rates: dict[tuple[tuple[int, int, int], ...], Fraction] = field(default_factory=dict)
    _reached: dict[tuple[int, ...], Reach] = field(default_factory=dict)

    def __call__(self, ranks: tuple[int, ...]) -> Reach:
        if ranks not in self._reached:
            self._reached[ranks] = self._judge(ranks)
        return self._reached[ranks]

    def _judge(self, ranks: tuple[int, ...]) -> Reach:
        try:
            links = joining_links(self.topology, ranks)[0] if self.links is None else self.links
            network = network_for(self.topology, ranks, links)
        except TopologyError:
            return Reach(_NOTHING, "")  # not connected
        return Reach(self._rate(network, ranks, links) * exact_unit(network), links)

    def _rate(self, network: Topology, ranks: tuple[int, ...], links: str) -> Fraction:
        shape = tuple(_shape(network, ranks))
        if shape not in self._rates:
            coll = _collective(self.collective, len(ranks))
            self._rates[shape] = algorithm("optimal").plan(Request(self.topology, coll, ranks, links)).rate
        return self._rates[shape]


def _shape(network: Topology, ranks: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """The links with vertices renumbered, ranks first, in order: equal shapes have equal optima."""
    job = frozenset(ranks)
    others = [vertex.id for vertex in network.vertices if vertex.id not in job]
    number = {vertex: i for i, vertex in enumerate((*ranks, *others))}
    yield len(ranks), len(others), 0
    yield from sorted((number[x.src], number[x.dst], x.capacity) for x in network.links)


def ranking_text(ranking: Ranking, shown: int, paint: Paint = plain, width: int | None = None) -> str:
    """The ``shown`` best sets and the worst one, each with the rate of rings and the bottleneck."""
    best = ranking.picks[:shown]
    worst = ranking.picks[len(best) :][-1:]
    rows = [_row(ranking, str(i + 1), pick) for i, pick in enumerate(best)]
    rows += [_row(ranking, "worst", pick) for pick in worst]
    title = (
        f"{ranking.topology.name}: {count(len(ranking.picks), 'set')} of {ranking.size} of the GPUs "
        f"{ids(ranking.free)}, by the optimal {ranking.collective}"
    )
    look = ("dim", "green")
    lines = columns(_HEADER, rows, (1, 5, 6), width, 2, lambda n, _: look[n] if n < len(look) else "", paint)
    return "\n".join([paint(fit(title, width), "bold"), *lines]) + "\n"


def _row(ranking: Ranking, place: str, pick: Pick) -> list[str]:
    ring = ranking.ring(pick)
    ring_text = (
        "none"
        if ring.gb_per_s is None
        else gb_per_s_text(ring.gb_per_s) + ("" if ring.fast else " (cables)" if ring.cables else " (PCIe)")
    )
    left = f"{{{ids(pick.left)}}}" if pick.left else ""
    where = bottleneck(ranking.forest(pick).certificate) if pick.reach.links else "not connected"
    if pick.reach.links not in ("", ranking.links or LINK_CHOICES[0]):
        where += f" (over {pick.reach.links}: {LINK_CHOICES[0]} links do not connect them)"
    return [
        place,
        ids(pick.ranks),
        gb_per_s_text(float(pick.reach.gb_per_s)),
        ring_text,
        gb_per_s_text(float(pick.left_gb_per_s)),
        left,
        where,
    ]
