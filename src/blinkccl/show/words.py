"""A plan in words for readers without knowledge of the paper: its content, its speed, and the proof; with the
glossary's terms in brackets."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.show.picture import cut_words
from blinkccl.show.plan_text import certificate_lines
from blinkccl.show.text import count, gb_per_s_text, ids
from blinkccl.trees.forest.document import moving_shares
from blinkccl.trees.forest.model import Dual, Forest
from blinkccl.trees.forest.order import shortened
from blinkccl.units import bus_factor

#: A term on a plan, with a sentence or two.
Said = tuple[str, str]

NAMES = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "alltoall": "AllToAll",
    "sendrecv": "SendRecv",
}
#: Names of the proofs of a bound, as in the glossary.
_KINDS = {"cut": "a cut", "ratio": "a cut", "partition": "a partition", "dual": "link prices"}
_MEANING = {
    "broadcast": "every rank has a copy of {root}'s data",
    "reduce": "{root} has the sum of all ranks' data",
    "allreduce": "every rank has the sum of all ranks' data",
    "allgather": "every rank has the blocks of all ranks, in order",
    "reduce_scatter": "each rank has one block of the sum of all ranks' data",
    "gather": "{root} has the blocks of all ranks, in order",
    "scatter": "each rank has its block of {root}'s data",
    "alltoall": "each rank has a block from every other rank",
    "sendrecv": "{dst} has {src}'s data",
}


def collective_name(name: str) -> str:
    """The usual name of a collective: AllReduce, Broadcast."""
    return NAMES.get(name, name.capitalize())


def title(forest: Forest) -> str:
    """The collective and its ranks."""
    kind = forest.topology.vertex[forest.ranks[0]].kind.upper()
    return (
        f"{collective_name(forest.collective.name)} among {count(len(forest.ranks), kind)} ({ids(forest.ranks)}) of "
        f"{forest.topology.name}"
    )


def summary(forest: Forest, ring: str = "") -> Iterator[Said]:
    """Terms with a sentence or two each: content, speed, method, proof, and comparison with rings."""
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
        f"{gb_per_s_text(rate)}: a gigabyte takes {1e3 / rate:.3g} ms if all links have the rates that their "
        f"vendors state (algbw; for comparison between machines, {gb_per_s_text(busbw)} busbw).",
    )
    yield "How", _how(forest)
    if forest.order:
        yield (
            "In one order",
            f"Every element is the sum {shortened(forest.order)}, at any size and on any engine; a sum in "
            "parentheses is rounded and sent as one message. Plans with a free order are at most "
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
        way = f"{each} up a tree of links to one of the {roots}, reduced on the way, and then down a tree to all"
    elif up:
        way = f"{each} up a tree of links, reduced on the way, to its destination"
    else:
        way = f"{each} down a tree of links"
    load = forest.link_load
    full = sum(1 for arc, used in load.items() if used == forest.topology.link[arc].capacity)
    return (
        f"{parts}; {way}, in consecutive chunks. The longest path is {count(forest.depth, 'hop')}. "
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
    """The argument for the bound, as in the plan's text, and its meaning."""
    head, *argument = (line.partition(" ")[2].strip() for line in certificate_lines(forest))
    yield f"{head[:1].upper()}{head[1:]} {' '.join(argument)}."
    if forest.optimal:
        yield "The trees of this plan reach this rate, which proves that the bound can be met."
    else:
        yield "The plan does not reach this rate, and possibly no plan does."
    yield (
        '"blink check" recomputes trees, loads, rate and bound from the file alone, by code that shares nothing with '
        "the planner."
    )
