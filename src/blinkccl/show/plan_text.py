"""A forest as text: its rate, its trees, its proof, the load of every link."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinkccl.show.text import Paint, columns, count, fit, gb_per_s_text, ids, plain, rate_text, unit_name
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import assumed, perhaps_missing
from blinkccl.trees.forest.model import Certificate, Cut, Dual, Forest, Partition, Path, Share, Tree, tree_depth
from blinkccl.trees.forest.order import shortened
from blinkccl.units import bus_factor

#: Limits for text; plans of 128 GPUs have hundreds of trees, and the JSON has all of them.
SHARES_SHOWN = 16
LINKS_SHOWN = 40
PRICES_SHOWN = 12
#: Limit on stars that are printed although they differ only in their roots, and limit on vertices listed by name.
_ALIKE, _NAMED = 3, 12
#: Longer fractions are preceded by a percentage.
_LONG_WEIGHT = 12
#: Limit on characters of an order.
ORDER_SHOWN = 56
CLAIM = "no schedule of unicast store-and-forward trees on these links is faster"
CLAIM_IN_SWITCH = "no schedule of trees is faster, even if these switches reduce and multicast"
_BAR = 20
#: Least width for lines with bars.
_BARS_FROM = 80


def plan_text(forest: Forest, paint: Paint = plain, width: int | None = None) -> str:
    """The whole plan as text, within ``width`` columns if given; narrow texts have no bars."""
    bars = width is None or width >= _BARS_FROM
    parts = [_summary(forest, paint), _shares(forest, paint), certificate_lines(forest), _loads(forest, paint, bars)]
    return "\n\n".join("\n".join(fit(line, width) for line in part) for part in parts) + "\n"


def headline(forest: Forest) -> str:
    """The collective, its ranks and the algorithm."""
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
        percent = 100 * forest.rate / forest.bound
        percentage = f"{float(percent):.1f}"
        if percentage == "100.0":  # rounded down, since it is not the optimum
            percentage = f"{int(100 * percent) / 100:.2f}"
        verdict = paint(f"{percentage}% of the bound", "bold yellow")
    if not forest.combining and forest.collective.reduces and any(vertex.combines for vertex in topology.vertices):
        verdict += ", without reduction in the switch"
    return [
        paint(headline(forest), "bold"),
        f"links   {links} (directed), in units of {gb_per_s_text(topology.unit_gb_per_s)}",
        *assumed_lines(topology),
        f"rate    {rate_text(forest.rate, topology)} algbw, {gb_per_s_text(busbw)} busbw",
        f"bound   {rate_text(forest.bound, topology)}: {verdict}",
        *order_lines(forest),
    ]


def assumed_lines(network: Topology) -> list[str]:
    """The assumed rates of a plan's links in one line, if there are any, and notes on links that may be missing."""
    rates = "; ".join(assumed(network))
    lines = [f"assumed {rates}: blink topo shows how to state it"] if rates else []
    return lines + [f"note    links may be missing: {note}" for note in perhaps_missing(network)]


def order_lines(forest: Forest) -> list[str]:
    """The order in which elements are summed, if the plan states one, and its price."""
    if forest.order is None:
        return []
    if not forest.order:
        return [f"order   {forest.collective.name} sums nothing, so no order applies"]
    own, free = (gb_per_s_text(float(rate) * forest.topology.unit_gb_per_s) for rate in (forest.rate, forest.bound))
    return [
        f"order   {shortened(forest.order, ORDER_SHOWN)}, for every element, at any size, chunk and engine",
        f"price   {float(forest.price):.2f}x: {own} in this order, at most {free} in any order",
    ]


def _shares(forest: Forest, paint: Paint) -> list[str]:
    """The shares as drawings; of stars that differ only in their roots, the first and one line for the others."""
    moving = [share for share in forest.shares if any(tree.edges for tree in share.trees())]
    still = len(forest.shares) - len(moving)
    lines = [
        f"{count(len(moving), 'share')} of the data, depth {forest.depth}"
        + (f"; {still} already in place" if still else "")
    ]
    lines += _named("in them", forest.combining, forest.topology)
    lines += _crossed(forest.topology, forest.shares)
    by_star: dict[object, list[Share]] = {}
    for i, share in enumerate(moving):
        by_star.setdefault(_star(share) or i, []).append(share)
    groups = [
        group for some in by_star.values() for group in ([some] if len(some) > _ALIKE else [[one] for one in some])
    ]
    for first, *others in groups[:SHARES_SHOWN]:
        down = "broadcast" if len(forest.item(first).destinations) > 1 else "path"
        lines += ["", paint(_share_title(first), "cyan"), *share_drawing(first, down)]
        if others:
            roots = ids(share.root for share in others)
            lines.append(f"  and {len(others)} more stars of the same weight, with roots {roots}")
    left = sum(len(group) for group in groups[SHARES_SHOWN:])
    if left:
        lines += ["", f"… and {left} more (all of them: --json)"]
    return lines


def _star(share: Share) -> object:
    """A key shared by stars that differ only in their roots; None for another tree."""
    for tree in share.trees():
        if len(tree.edges) < 2 or any(tree.root not in (path[0], path[-1]) for path in tree.edges):
            return None
    return share.weight, *(tree and len(tree.edges) for tree in (share.reduce, share.broadcast))


def _crossed(topology: Topology, shares: Sequence[Share]) -> list[str]:
    """Names of the vertices that trees cross between ranks, by their numbers in the drawings."""
    paths = (path for share in shares for tree in share.trees() for path in tree.edges)
    between = sorted({vertex for path in paths for vertex in path[1:-1]})
    return _named("across ", between, topology)


def _named(title: str, vertices: Sequence[int], topology: Topology) -> list[str]:
    named = [f"{v} = {topology.vertex[v].label}" for v in vertices[:_NAMED]]
    more = f" and {len(vertices) - _NAMED} more" if len(vertices) > _NAMED else ""
    return [f"{title} {', '.join(named)}{more}"] if named else []


def _share_title(share: Share) -> str:
    block = ""
    if isinstance(share.block, tuple):
        block = f", block from {share.block[0]} to {share.block[1]}"
    elif share.block is not None:
        block = f", block of {share.block}"
    depth = max(tree_depth(tree) for tree in share.trees())
    weight = str(share.weight)
    if len(weight) > _LONG_WEIGHT:
        weight = f"{float(share.weight):.2%} ({weight})"
    return f"slice {share.slice}: weight {weight}{block}, root {share.root}, depth {depth}"


def _loads(forest: Forest, paint: Paint, bars: bool) -> list[str]:
    """The used links with their load; the fullest first if there are many."""
    topology = forest.topology
    rows = sorted(forest.link_load.items())
    full = sum(1 for arc, load in rows if load == topology.link[arc].capacity)
    title = f"link load at this rate: {len(rows)} of {count(len(topology.links), 'link')} used, {full} full"
    if len(rows) > LINKS_SHOWN:
        rows.sort(key=lambda row: (-row[1] / topology.link[row[0]].capacity, row[0]))
    lines = [title]
    if bars:
        lines += [_load_line(topology, arc, load, paint) for arc, load in rows[:LINKS_SHOWN]]
    else:
        cells = [_load_cells(topology, arc, load) for arc, load in rows[:LINKS_SHOWN]]
        lines += columns(("link", "kind", "load", "full", "rate"), cells, (0, 1))
    if len(rows) > LINKS_SHOWN:
        lines.append(f"  … and {len(rows) - LINKS_SHOWN} more links with the same or less load (all of them: --json)")
    return lines


def _load_cells(topology: Topology, arc: tuple[int, int], load: Fraction) -> tuple[str, ...]:
    """Cells on a link's load: the link, its kind, the load, its percentage, and its rate."""
    link = topology.link[arc]
    rate = gb_per_s_text(float(load) * topology.unit_gb_per_s)
    return (
        f"{arc[0]} → {arc[1]}",
        link.kind,
        f"{load} of {link.capacity}",
        f"{float(load / link.capacity):.0%}",
        rate,
    )


def _load_line(topology: Topology, arc: tuple[int, int], load: Fraction, paint: Paint) -> str:
    """The same as a line with a bar."""
    link = topology.link[arc]
    part = load / link.capacity
    bar = paint(f"{'█' * int(part * _BAR):<{_BAR}}", "green" if part == 1 else "yellow")
    _, kind, _, percent, rate = _load_cells(topology, arc, load)
    return f"  {arc[0]:>4} → {arc[1]:<4} {kind:<6} {load!s:>7} of {link.capacity:<4} {bar} {percent:>4}  {rate}"


# The certificate in words.
def certificate_lines(forest: Forest) -> list[str]:
    """The proof of the bound, and its meaning for this plan."""
    if forest.optimal:
        head = f"proof   {CLAIM_IN_SWITCH if forest.combining else CLAIM}:"
    else:
        head = f"bound   no schedule is faster than {rate_text(forest.bound, forest.topology)}; this plan is slower:"
    return [head, *(f"        {line}" for line in _words(forest.certificate, forest))]


def bottleneck(certificate: Certificate) -> str:
    """The scarce links in a few words: ``{1} | {4-6}``."""
    match certificate:
        case Cut():
            return f"out of {{{ids(certificate.side)}}}"
        case Partition():
            return " | ".join(f"{{{ids(block)}}}" for block in certificate.blocks)
        case Dual():
            first = ", ".join(f"{u}→{v}" for u, v, _ in certificate.prices[:2])
            more = len(certificate.prices) - 2
            return first + (f" and {more} more" if more > 0 else "")


def _words(certificate: Certificate, forest: Forest) -> list[str]:
    match certificate:
        case Cut():
            return _cut(certificate, forest)
        case Partition():
            return _partition(certificate, forest)
        case Dual():
            return _dual(certificate, forest)


def _cut(cut: Cut, forest: Forest) -> list[str]:
    amount = "all of the data" if cut.demand == 1 else f"{cut.demand} of the data"
    return [
        f"the links out of {{{ids(cut.side)}}} carry {_amount(cut.capacity, forest)} together,",
        f"and {amount} must cross them: {_quotient(cut.capacity, cut.demand, cut.bound)}",
    ]


def _partition(partition: Partition, forest: Forest) -> list[str]:
    parts = len(partition.blocks)
    times = "once" if parts == 2 else f"{parts - 1} times"
    return [
        f"the links between the {parts} parts {bottleneck(partition)} carry "
        f"{_amount(partition.capacity, forest)} each way;",
        f"every element must cross between parts at least {times} on its way into the sum,",
        "and as often on its way out: " + _quotient(partition.capacity, Fraction(parts - 1), partition.bound),
    ]


def _dual(dual: Dual, forest: Forest) -> list[str]:
    prices = [f"{u}→{v}: {price}" for u, v, price in dual.prices[:PRICES_SHOWN]]
    more = f", … {len(dual.prices) - PRICES_SHOWN} more" if len(dual.prices) > PRICES_SHOWN else ""
    return [
        f"give each {unit_name(forest.topology)} of these links a price: {', '.join(prices)}{more}; others are free;",
        f"then all links together cost {dual.value}, and the cheapest way to serve the data once costs {dual.cost}:",
        _quotient(dual.value, dual.cost, dual.bound),
    ]


def _amount(capacity: Fraction, forest: Forest) -> str:
    unit = unit_name(forest.topology)
    return f"{capacity} {unit if capacity == 1 else unit + 's'}"


def _quotient(above: Fraction, below: Fraction, bound: Fraction) -> str:
    return f"at most {above}" if below == 1 else f"at most {_term(above)} / {_term(below)} = {bound}"


def _term(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"({number})"


# The trees of a share as small drawings.
def share_drawing(share: Share, down_title: str = "broadcast") -> list[str]:
    """The up-tree and the down-tree, indented; a single drawing if they are the same tree."""
    up, down = share.reduce, share.broadcast
    if up is not None and down is not None and sorted(up.edges) == sorted(down.reversed().edges):
        return _titled("reduce up, then broadcast down", up, upward=True)
    lines: list[str] = []
    if up is not None:
        lines += _titled("reduce", up, upward=True)
    if down is not None:
        lines += _titled(down_title, down, upward=False)
    return lines


def _titled(title: str, tree: Tree, upward: bool) -> list[str]:
    below = children(tree, upward)
    if not tree.edges:
        return [f"  {title}: {tree.root} alone"]
    if all(len(paths) == 1 for paths in below.values()):
        return [f"  {title}: {_chain(tree, below, upward)}"]
    return [f"  {title}:", *(f"    {line}" for line in tree_lines(tree, upward))]


def children(tree: Tree, upward: bool) -> dict[int, list[Path]]:
    """Per parent its edges, in the order of reduction or sending."""
    below: dict[int, list[Path]] = {}
    for path in tree.edges:
        below.setdefault(path[-1] if upward else path[0], []).append(path)
    return below


def _chain(tree: Tree, below: dict[int, list[Path]], upward: bool) -> str:
    """A tree without branches, in the direction of the data."""
    hops = []
    vertex = tree.root
    while vertex in below:
        path = below[vertex][0]
        hops.append(path)
        vertex = path[0] if upward else path[-1]
    if upward:
        hops.reverse()
    return str(hops[0][0]) + "".join(f" →{_via(path)} {path[-1]}" for path in hops)


def tree_lines(tree: Tree, upward: bool) -> list[str]:
    """A tree as lines, root first, children in order. Depth-first without recursion, because chains can be long."""
    below = children(tree, upward)
    lines = [str(tree.root)]
    stack = [(path, "", i == 0) for i, path in enumerate(below.get(tree.root, [])[::-1])]
    while stack:
        path, indent, last = stack.pop()
        child = path[0] if upward else path[-1]
        lines.append(f"{indent}{'└─' if last else '├─'}{_via(path)} {child}")
        deeper = indent + ("   " if last else "│  ")
        stack += [(edge, deeper, i == 0) for i, edge in enumerate(below.get(child, [])[::-1])]
    return lines


def _via(path: Path) -> str:
    """Vertices that a hop crosses: `` (8,9)`` for switches 8 and 9."""
    return f" ({','.join(map(str, path[1:-1]))})" if len(path) > 2 else ""
