"""A ranking of GPU sets as text."""

from __future__ import annotations

from blinkccl.advice.pick import Pick, Ranking
from blinkccl.report.certificate_text import bottleneck
from blinkccl.report.paint import Paint, plain
from blinkccl.report.table import columns
from blinkccl.report.units_text import count, gb_per_s_text, ids

_HEADER = ("", "GPUs", "algbw", "ring", "left for others", "", "bottleneck")


def ranking_text(ranking: Ranking, shown: int, paint: Paint = plain) -> str:
    """The ``shown`` best sets and the worst one, each with the rate of a ring and the bottleneck."""
    best = ranking.picks[:shown]
    worst = ranking.picks[len(best) :][-1:]
    rows = [_row(ranking, str(i + 1), pick) for i, pick in enumerate(best)]
    rows += [_row(ranking, "worst", pick) for pick in worst]
    lines = columns(_HEADER, rows, left=(1, 5, 6))
    title = (
        f"{ranking.topology.name}: {count(len(ranking.picks), 'set')} of {ranking.size} of the GPUs "
        f"{ids(ranking.free)}, by the optimal {ranking.collective}"
    )
    painted = [paint(title, "bold"), paint(lines[0], "dim"), paint(lines[1], "green"), *lines[2:]]
    return "\n".join(painted) + "\n"


def _row(ranking: Ranking, place: str, pick: Pick) -> list[str]:
    ring = ranking.ring(pick)
    ring_text = "none" if ring.gb_per_s is None else gb_per_s_text(ring.gb_per_s) + ("" if ring.fast else " (PCIe)")
    left = f"{{{ids(pick.left)}}}" if pick.left else ""
    if not pick.reach.links:
        return [
            place,
            ids(pick.ranks),
            "0 GB/s",
            ring_text,
            gb_per_s_text(float(pick.left_gb_per_s)),
            left,
            "no links join these",
        ]
    forest = ranking.forest(pick)
    where = bottleneck(forest.certificate)
    if pick.reach.links != ranking.links:
        where += f" (over {pick.reach.links}: {ranking.links} links leave them in parts)"
    return [
        place,
        ids(pick.ranks),
        gb_per_s_text(float(pick.reach.gb_per_s)),
        ring_text,
        gb_per_s_text(float(pick.left_gb_per_s)),
        left,
        where,
    ]
