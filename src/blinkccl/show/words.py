"""A plan in the words of somebody who never read the paper: what, how fast, why not faster; the glossary's terms in
brackets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blinkccl.show.picture import crossing, cut_sum, cut_words, name_of
from blinkccl.show.text import count, gb_per_s_text, ids
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.document import moving_shares
from blinkccl.trees.forest.model import Cut, Dual, Forest, Partition
from blinkccl.trees.forest.order import shortened
from blinkccl.units import bus_factor

#: What a term says about a plan, a sentence or two each.
Said = tuple[str, str]

NAMES = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "alltoall": "AllToAll",
    "sendrecv": "SendRecv",
}
#: What proves a bound, as the glossary calls it.
_KINDS = {"cut": "a cut", "ratio": "a cut", "partition": "a partition", "dual": "link prices"}
_MEANING = {
    "broadcast": "all get a copy of what {root} has",
    "reduce": "{root} gets the sum of what all have",
    "allreduce": "all have the sum of what all have",
    "allgather": "all have everybody's block, one beside another",
    "reduce_scatter": "what all have is summed up, and each gets one block of the sum",
    "gather": "{root} gets everybody's block, one beside another",
    "scatter": "each gets its block of what {root} has",
    "alltoall": "each gives a block of its own to each other",
    "sendrecv": "{src} gives its data to {dst}",
}


def collective_name(name: str) -> str:
    """As the field writes it: AllReduce, Broadcast."""
    return NAMES.get(name, name.capitalize())


def title(forest: Forest) -> str:
    """What is planned, among whom."""
    kind = forest.topology.vertex[forest.ranks[0]].kind.upper()
    return (
        f"{collective_name(forest.collective.name)} among {count(len(forest.ranks), kind)} ({ids(forest.ranks)}) of "
        f"{forest.topology.name}"
    )


def summary(forest: Forest, ring: str = "") -> Iterator[Said]:
    """What, how fast, how, why not faster, and against rings, as terms with a sentence or two each."""
    collective, unit = forest.collective, forest.topology.unit_gb_per_s
    kind = forest.topology.vertex[forest.ranks[0]].kind.upper()
    ends = {
        key: f"{kind} {forest.ranks[at]}"
        for key in ("root", "src", "dst")
        if (at := getattr(collective, key)) is not None
    }
    yield (
        "What",
        f"In the end {_MEANING[collective.name].format(**ends)}; planned by the algorithm “{forest.algorithm}”.",
    )
    rate = forest.algbw_gb_per_s
    busbw = rate * float(bus_factor(collective.name, len(forest.ranks)))
    yield (
        "How fast",
        f"{gb_per_s_text(rate)}: a gigabyte takes {1e3 / rate:.3g} ms where all links keep the rates that their "
        f"makers state (algbw; as nccl-tests compares machines, {gb_per_s_text(busbw)} busbw).",
    )
    yield "How", _how(forest)
    if forest.order:
        yield (
            "In one order",
            f"Every element is the sum {shortened(forest.order)}, whatever the size and the engine; what stands in "
            "parentheses is rounded and sent as one message. What sums in any orders is at most "
            f"{float(forest.price):.2f} times as fast.",
        )
    yield "Why not faster", _why(forest, unit)
    if ring:
        yield "Against rings", ring


def _how(forest: Forest) -> str:
    moving = moving_shares(forest)
    parts = (
        f"The data is cut into {count(moving, 'part')} (shares)" if moving != 1 else "The data stays whole (one share)"
    )
    up = any(share.reduce is not None and share.reduce.edges for share in forest.shares)
    down = any(share.broadcast is not None and share.broadcast.edges for share in forest.shares)
    each = "each goes" if moving != 1 else "it goes"
    if up and down:
        roots = "ranks or switches" if forest.combining else "ranks"
        way = f"{each} up a tree of links to one of the {roots}, added up on the way, and then down a tree to all"
    elif up:
        way = f"{each} up a tree of links, added up on the way, to the one that keeps it"
    else:
        way = f"{each} down a tree of links"
    load = forest.link_load
    full = sum(1 for arc, used in load.items() if used == forest.topology.link[arc].capacity)
    return (
        f"{parts}; {way}, in chunks one behind another. The longest way is {count(forest.depth, 'hop')}. "
        f"{len(load)} of {count(len(forest.topology.links), 'link')} are used, {full} of them all the time."
    )


def _why(forest: Forest, unit: float) -> str:
    words = cut_words(forest.certificate, forest.topology)
    slowest = f"{'The scarce part' if isinstance(forest.certificate, Dual) else 'The slowest cut'}: {words}"
    bound = gb_per_s_text(float(forest.bound) * unit)
    slowest += f" ({_KINDS[forest.certificate.kind]})"
    if forest.optimal:
        return f"{slowest}. This plan fills it, so no schedule of such trees is faster: it is optimal."
    part = float(forest.rate / forest.bound)
    return f"{slowest}. It allows {bound}, of which this plan reaches {part:.1%}."


def proof(forest: Forest) -> Iterator[str]:
    """The argument of the bound, a paragraph or two that a newcomer can follow."""
    certificate, topology = forest.certificate, forest.topology
    unit = topology.unit_gb_per_s
    bound = gb_per_s_text(float(certificate.bound) * unit)
    match certificate:
        case Cut():
            total = gb_per_s_text(float(cut_sum(certificate, topology)) * unit)
            share = "all of the data" if certificate.demand == 1 else f"{certificate.demand} of the data"
            links, side = count(len(crossing(certificate, topology)), "link"), _side(certificate, topology)
            yield (
                f"Take the machine for two islands: {side}, and the rest. {links} lead from the first to the "
                f"second and carry {total} together. Whatever the schedule, {share} must cross them, so nothing is "
                f"faster than {bound}."
            )
        case Partition():
            yield _partition(certificate, topology, bound)
        case Dual() if len(certificate.prices) == 1:
            yield _one_link(certificate, topology, bound)
        case Dual():
            value = gb_per_s_text(float(certificate.value) * unit)
            yield (
                "Let some links take a toll for every byte, where there is a crowd, and none elsewhere (the prices). "
                f"All that the machine's links can carry is then worth {value} of tolls. Whatever way the data goes, "
                f"serving one byte of it costs at least {certificate.cost} in tolls. So no more than {value} / "
                f"{certificate.cost} = {bound} can be served."
            )
    if forest.optimal:
        yield "The trees of this plan reach just that: the plan is its own proof that the bound can be met."
    else:
        yield "Between this and what the plan reaches is a gap: it may be that no plan meets the bound."
    yield (
        '"blink check" recomputes trees, loads, rate and bound from the file alone, by code that shares nothing with '
        "the planner."
    )


def _one_link(certificate: Dual, topology: Topology, bound: str) -> str:
    """One price alone says how often everything crosses its link."""
    u, v, price = certificate.prices[0]
    link, times = topology.link[u, v], certificate.cost / price
    often = "at least once" if times == 1 else f"at least {times} times"
    return (
        f"Everything has to cross the link {name_of(topology.vertex[u])} → {name_of(topology.vertex[v])} {often}, "
        f"whatever the schedule; that link carries {gb_per_s_text(link.gb_per_s)}. So nothing is faster than {bound}."
    )


def _partition(certificate: Partition, topology: Topology, bound: str) -> str:
    parts = len(certificate.blocks)
    total = gb_per_s_text(float(cut_sum(certificate, topology)) * topology.unit_gb_per_s)
    crossings, back = count(parts - 1, "crossing"), "as many take" if parts > 2 else "another takes"
    return (
        f"Take the machine for {parts} islands: {_islands(certificate)}. The links between islands carry {total} each "
        "way together. Before one island can know a sum, what the others have must have come together, which takes "
        f"{crossings} of every element; and {back} the sum back to the others. So the links between islands are "
        f"crossed at least {2 * (parts - 1)} times by every element, and nothing is faster than {total}"
        f"{f' / {parts - 1} = {bound}' if parts > 2 else ''}."
    )


def _side(cut: Cut, topology: Topology) -> str:
    ranks = [vertex for vertex in cut.side if not topology.is_transit(vertex)]
    more = len(cut.side) - len(ranks)
    return f"{{{_some(ranks)}}}" + (f" with {count(more, 'switch')} or the like" if more else "")


def _some(vertices: Sequence[int]) -> str:
    shown = ids(sorted(vertices))
    return shown if len(shown) < 60 else f"{shown[:57]}…"


def _islands(certificate: Partition) -> str:
    if all(len(block) == 1 for block in certificate.blocks):
        return "every rank its own"
    return ", ".join(f"{{{_some(block)}}}" for block in certificate.blocks[:6]) + (
        " and more" if len(certificate.blocks) > 6 else ""
    )
