"""A plan in the words of somebody who never read the paper: what, how fast, why not faster; the glossary's terms in
brackets."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.show.picture import cut_words
from blinkccl.show.plan_text import certificate_lines
from blinkccl.show.text import count, gb_per_s_text, ids
from blinkccl.trees.forest.document import moving_shares
from blinkccl.trees.forest.model import Dual, Forest
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
    """The argument of the bound as the plan's text has it, and what it means."""
    head, *argument = (line.partition(" ")[2].strip() for line in certificate_lines(forest))
    yield f"{head[:1].upper()}{head[1:]} {' '.join(argument)}."
    if forest.optimal:
        yield "The trees of this plan reach just that: the plan is its own proof that the bound can be met."
    else:
        yield "Between this and what the plan reaches is a gap: it may be that no plan meets the bound."
    yield (
        '"blink check" recomputes trees, loads, rate and bound from the file alone, by code that shares nothing with '
        "the planner."
    )
