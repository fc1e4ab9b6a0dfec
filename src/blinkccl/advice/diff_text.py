"""Two plans side by side, as people read them and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from blinkccl.forest.document import share_document
from blinkccl.forest.order import shortened
from blinkccl.report.picture import name_of
from blinkccl.report.plan_text import crossed, headline, share_drawing
from blinkccl.report.text import Paint, bytes_text, columns, count, fit, gb_per_s_text, plain, seconds_text
from blinkccl.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from blinkccl.advice.diff import Diff, Figures, LinkUse, Span, Times, TreeChange
    from blinkccl.forest.model import Forest

#: People look at a few, programs read the JSON.
LINKS_SHOWN, TREES_SHOWN, TREE_LINES = 10, 3, 16


def diff_text(found: Diff, names: tuple[str, str] = ("", ""), paint: Paint = plain, width: int | None = None) -> str:
    """A summary in sentences, then the plans' numbers, times, links and trees."""
    head = [
        f"{side}  {f'{name}: ' if name else ''}{headline(forest)}"
        for side, name, forest in zip("AB", names, found.forests, strict=True)
    ]
    parts = [head, [paint(line, "bold") for line in _summary(found)]]
    if not found.same:
        parts += [
            _figures(found, width),
            _times(found.times, paint, width),
            _links(found, width),
            *_trees(found, paint),
        ]
    return "\n\n".join("\n".join(fit(line, width) for line in part) for part in parts) + "\n"


def _summary(found: Diff) -> list[str]:
    """Whether they differ; which is faster, for large messages and from which size on."""
    if found.same:
        return [f"the same plan: {count(found.a.shares, 'share')}, {gb_per_s_text(found.a.algbw_gb_per_s)} algbw"]
    a, b = found.a.algbw_gb_per_s, found.b.algbw_gb_per_s
    fast, slow = max(a, b), min(a, b)
    if fast == slow:
        lines = [f"both reach {gb_per_s_text(a)} algbw on links at their stated rates"]
    else:
        lines = [
            f"{'B' if b > a else 'A'} is {_times_as_fast(fast / slow)} for large messages, on links at their stated "
            f"rates: {fast:.4g} against {gb_per_s_text(slow)} algbw"
        ]
    if not isinstance(found.times, str):
        lines.append(f"predicted: {_spans(found.times.spans)}; depth {found.a.depth} in A, {found.b.depth} in B")
    return lines


def _times_as_fast(ratio: float) -> str:
    """``7.5 times as fast``; little is told in percent."""
    return f"{ratio:.3g} times as fast" if ratio >= 1.1 else f"{100 * (ratio - 1):.2g} % faster"


def _spans(spans: Sequence[Span]) -> str:
    """Who is faster from which size on, and by how much at both ends of what was timed."""
    said = []
    for i, span in enumerate(spans):
        first, last = i == 0, i == len(spans) - 1
        words = f"{span.faster} is faster" if span.faster else "both are as fast"
        one = len(span.rows) == 1
        ends = [*(span.rows[:1] if first else ()), *(span.rows[-1:] if last and not (first and one) else ())]
        by = [f"{_times_as_fast(max(row.speed, 1 / row.speed))} at {bytes_text(row.size_bytes)}" for row in ends]
        below = "" if last else bytes_text(spans[i + 1].from_bytes)
        how = f" ({' and '.join(by)})" if by and span.faster else ""
        said.append(f"{words} {_where(span, first, last, below)}{how}")
    return ", ".join(said)


def _where(span: Span, first: bool, last: bool, below: str) -> str:
    least, most = bytes_text(span.rows[0].size_bytes), bytes_text(span.rows[-1].size_bytes)
    if first and last:
        return f"at {least}" if least == most else f"at every size from {least} to {most}"
    start = bytes_text(span.from_bytes)
    return f"below {below} or so" if first else f"from {start} on" if last else f"from {start} to {below}"


def _figures(found: Diff, width: int | None) -> list[str]:
    a, b = found.a, found.b
    rows = [
        ("algbw", *(gb_per_s_text(one.algbw_gb_per_s) for one in (a, b))),
        ("busbw", *(gb_per_s_text(one.busbw_gb_per_s) for one in (a, b))),
        ("bound", *(gb_per_s_text(one.bound_gb_per_s) for one in (a, b))),
        ("of the bound", *(f"{one.percent_bound:.1f}%" for one in (a, b))),
        ("bottleneck", a.bottleneck, b.bottleneck),
        ("depth", str(a.depth), str(b.depth)),
        ("shares", str(a.shares), str(b.shares)),
        ("most per root", str(a.most_shares_per_root), str(b.most_shares_per_root)),
        ("weights in", *(f"1/{one.largest_denominator}" for one in (a, b))),
    ]
    if any(forest.order for forest in found.forests):
        rows.append(("order", *(shortened(forest.order or "not one", 30) for forest in found.forests)))
    return columns(("", "A", "B"), rows, (0, 1, 2), width)


def _times(times: Times | str, paint: Paint, width: int | None) -> list[str]:
    if isinstance(times, str):
        return [f"no times: {times}"]
    a, b = times.codes
    rows = [
        (
            bytes_text(row.size_bytes),
            seconds_text(row.a.seconds) + ("*" if row.faster == "A" else " "),
            seconds_text(row.b.seconds) + ("*" if row.faster == "B" else " "),
            f"{row.a.algbw_gb_per_s:.2f}",
            f"{row.b.algbw_gb_per_s:.2f}",
            f"{row.speed:.2f}",
        )
        for row in times.rows
    ]
    table = columns(("size", "A ", "B ", "A GB/s", "B GB/s", "B/A"), rows, width=width)
    how = [f"by {a}"] if a == b else [f"A by {a}", f"B by {b}"]
    return ["predicted times and algbw (* the faster)", *table, *how]


def _links(found: Diff, width: int | None) -> list[str]:
    if found.apart:
        return [f"links and trees are not compared: {found.apart}"]
    links = found.links
    if not links:
        return [f"all {count(found.links_alike, 'link')} carry the same"]
    vertex = found.forests[1].topology.vertex | found.forests[0].topology.vertex
    rows = [
        (f"{name_of(vertex[one.src])} → {name_of(vertex[one.dst])}", one.kind, *_use(one.a), *_use(one.b))
        for one in links[:LINKS_SHOWN]
    ]
    more = len(links) - LINKS_SHOWN
    return [
        f"links with other loads, at each plan's own rate: {len(links)}; with the same: {found.links_alike}",
        *columns(("link", "kind", "A GB/s", "full", "B GB/s", "full"), rows, (0, 1), width),
        *([f"… and {more} that differ no more (all of them: --json)"] if more > 0 else []),
    ]


def _use(use: LinkUse | None) -> tuple[str, str]:
    """What a link carries, and how full it is; none where the plan's network does not have it."""
    return ("-", "-") if use is None else (f"{float(use.load):.4g}", f"{float(use.load / use.capacity):.0%}")


def _trees(found: Diff, paint: Paint) -> list[list[str]]:
    """Counts, and the first of each kind as drawings."""
    if found.apart:
        return []
    kinds = {
        "with other weights": [one for one in found.trees if one.a and one.b],
        "only in A": [one for one in found.trees if not one.b],
        "only in B": [one for one in found.trees if not one.a],
    }
    told = [f"trees  in both {found.trees_alike}, {', '.join(f'{kind} {len(some)}' for kind, some in kinds.items())}"]
    return [told, *(_drawings(kind, some, found, paint) for kind, some in kinds.items() if some)]


def _drawings(kind: str, some: Sequence[TreeChange], found: Diff, paint: Paint) -> list[str]:
    forest, shown = found.forests[0 if some[0].a else 1], some[:TREES_SHOWN]
    lines = crossed(forest.topology, [one.share for one in shown])
    for one in shown:
        weights = " → ".join(" + ".join(map(str, each)) for each in (one.a, one.b) if each)
        down = "broadcast" if len(forest.item(one.share).destinations) > 1 else "path"
        drawing = share_drawing(one.share, down)
        lines += [paint(f"{kind}: weight {weights}, root {one.share.root}", "cyan"), *drawing[:TREE_LINES]]
        lines += [f"    … and {len(drawing) - TREE_LINES} lines more"] if len(drawing) > TREE_LINES else []
    more = len(some) - TREES_SHOWN
    return [*lines, *([f"… and {more} more {kind} (all of them: --json)"] if more > 0 else [])]


def diff_document(found: Diff) -> dict[str, Any]:
    """The object of ``blink diff --json``; exact numbers are texts, as in a plan."""
    a, b = found.forests
    return {
        "schema_version": SCHEMA_VERSION,
        "same": found.same,
        "collective": a.collective.name,
        "a": _side(a, found.a),
        "b": _side(b, found.b),
        "times": {"why_not": found.times} if isinstance(found.times, str) else _times_document(found.times),
        "why_not_compared": found.apart or None,
        "links": {
            "alike": found.links_alike,
            "differ": [
                {"src": one.src, "dst": one.dst, "kind": one.kind, "a": _use_document(one.a), "b": _use_document(one.b)}
                for one in found.links
            ],
        },
        "trees": {
            "alike": found.trees_alike,
            "differ": [
                {
                    "a_weights": list(map(str, one.a)),
                    "b_weights": list(map(str, one.b)),
                    **{
                        key: value for key, value in share_document(one.share).items() if key not in ("weight", "slice")
                    },
                }
                for one in found.trees
            ],
        },
    }


def _side(forest: Forest, figures: Figures) -> dict[str, Any]:
    return {"topology": forest.topology.name, "ranks": list(forest.ranks), **asdict(figures)}


def _use_document(use: LinkUse | None) -> dict[str, float] | None:
    return None if use is None else {f"{key}_gb_per_s": float(value) for key, value in asdict(use).items()}


def _times_document(times: Times) -> dict[str, Any]:
    return {
        "a_by": times.codes[0],
        "b_by": times.codes[1],
        "sizes": [
            {
                "size_bytes": row.size_bytes,
                "a_seconds": row.a.seconds,
                "b_seconds": row.b.seconds,
                "a_algbw_gb_per_s": row.a.algbw_gb_per_s,
                "b_algbw_gb_per_s": row.b.algbw_gb_per_s,
                "faster": row.faster or None,
            }
            for row in times.rows
        ],
        "spans": [{"faster": span.faster or None, "from_bytes": span.from_bytes} for span in times.spans],
    }
