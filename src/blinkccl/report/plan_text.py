"""A forest as text: its rate, its trees, its proof, and the load of every link."""

from __future__ import annotations

from fractions import Fraction

from blinkccl.forest.model import Forest, Share, tree_depth
from blinkccl.report.certificate_text import certificate_lines
from blinkccl.report.fit import fit
from blinkccl.report.paint import Paint, plain
from blinkccl.report.tree_text import share_drawing
from blinkccl.report.units_text import count, gb_per_s_text, ids, rate_text
from blinkccl.topology.model import Topology
from blinkccl.units import bus_factor

#: A plan of 128 GPUs has hundreds of trees; people look at a few, programs read the JSON.
SHARES_SHOWN = 16
LINKS_SHOWN = 40
_BAR = 20
#: Columns that a line with a bar takes.
_BARS_FROM = 80


def plan_text(forest: Forest, paint: Paint = plain, width: int | None = None) -> str:
    """Everything that a person wants to know of a plan.

    Parameters
    ----------
    paint
        See :mod:`blinkccl.report.paint`.
    width
        Columns that there are; None: as many as it takes. Where they are few, the bars are left out and long
        sentences are broken.
    """
    bars = width is None or width >= _BARS_FROM
    parts = [
        "\n".join(_summary(forest, paint)),
        "\n".join(_shares(forest, paint)),
        "\n".join(certificate_lines(forest)),
        "\n".join(_loads(forest, paint, bars)),
    ]
    return fit("\n\n".join(parts) + "\n", width)


def headline(forest: Forest) -> str:
    """What is planned, among whom, by what."""
    collective = forest.collective
    ends = [
        f"{key} {forest.ranks[rank]}"
        for key in ("root", "src", "dst")
        if (rank := getattr(collective, key)) is not None
    ]
    return (
        f"{' '.join([collective.name, *ends])} among {count(len(forest.ranks), 'rank')} ({ids(forest.ranks)}) of "
        f"{forest.topology.name}, by {forest.algorithm}"
    )


def _summary(forest: Forest, paint: Paint) -> list[str]:
    topology = forest.topology
    kinds: dict[str, int] = {}
    for link in topology.links:
        kinds[link.kind] = kinds.get(link.kind, 0) + 1
    links = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    factor = bus_factor(forest.collective.name, len(forest.ranks))
    busbw = float(forest.rate * factor) * topology.unit_gb_per_s
    if forest.optimal:
        verdict = paint("optimal", "bold green")
    else:
        verdict = paint(f"{float(forest.rate / forest.bound):.1%} of the bound", "bold yellow")
    return [
        paint(headline(forest), "bold"),
        f"links   {links} (directed), in units of {gb_per_s_text(topology.unit_gb_per_s)}",
        f"rate    {rate_text(forest.rate, topology)} algbw, {gb_per_s_text(busbw)} busbw",
        f"bound   {rate_text(forest.bound, topology)}: {verdict}",
    ]


def _shares(forest: Forest, paint: Paint) -> list[str]:
    moving = [share for share in forest.shares if any(tree.edges for tree in share.trees())]
    still = len(forest.shares) - len(moving)
    lines = [
        f"{count(len(moving), 'share')} of the data, depth {forest.depth}"
        + (f"; {still} already in place" if still else "")
    ]
    for share in moving[:SHARES_SHOWN]:
        down = "broadcast" if len(forest.item(share).destinations) > 1 else "path"
        lines += ["", paint(_share_title(share), "cyan"), *share_drawing(share, down)]
    if len(moving) > SHARES_SHOWN:
        lines += ["", f"… and {len(moving) - SHARES_SHOWN} more (all of them: --json)"]
    return lines


def _share_title(share: Share) -> str:
    block = ""
    if isinstance(share.block, tuple):
        block = f", block from {share.block[0]} to {share.block[1]}"
    elif share.block is not None:
        block = f", block of {share.block}"
    depth = max(tree_depth(tree) for tree in share.trees())
    return f"slice {share.slice}: weight {share.weight}{block}, root {share.root}, depth {depth}"


def _loads(forest: Forest, paint: Paint, bars: bool) -> list[str]:
    """The links that are used, with how full they are; the fullest first where there are many."""
    topology = forest.topology
    rows = sorted(forest.link_load.items())
    full = sum(1 for arc, load in rows if load == topology.link[arc].capacity)
    title = f"link load at this rate: {len(rows)} of {count(len(topology.links), 'link')} used, {full} full"
    if len(rows) > LINKS_SHOWN:
        rows.sort(key=lambda row: (-row[1] / topology.link[row[0]].capacity, row[0]))
    lines = [title]
    for arc, load in rows[:LINKS_SHOWN]:
        lines.append(_load_line(topology, arc, load, paint if bars else None))
    if len(rows) > LINKS_SHOWN:
        lines.append(f"  … and {len(rows) - LINKS_SHOWN} that are no fuller (all of them: --json)")
    return lines


def _load_line(topology: Topology, arc: tuple[int, int], load: Fraction, paint: Paint | None) -> str:
    """How full a link is, with a bar where there is a paint for it."""
    link = topology.link[arc]
    part = load / link.capacity
    gb_per_s = float(load) * topology.unit_gb_per_s
    bar = f"{'█' * int(part * _BAR):<{_BAR}}"
    shown = "" if paint is None else paint(bar, "green" if part == 1 else "yellow") + " "
    return (
        f"  {arc[0]:>4} → {arc[1]:<4} {link.kind:<6} {load!s:>7} of {link.capacity:<4} {shown}"
        f"{float(part):4.0%}  {gb_per_s_text(gb_per_s)}"
    )
