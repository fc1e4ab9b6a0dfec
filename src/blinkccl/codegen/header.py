"""What is this code, and what was it made from? The comment that generated text begins with."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from fractions import Fraction

from blinkccl.codegen.words import Words
from blinkccl.collectives.spec import Block
from blinkccl.forest.model import Forest
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.text import program_hash

_COLUMNS = 110
#: People look at a few trees; who wants all of them prints the plan.
TREES_SHOWN = 64


def header(program: Program, forest: Forest | None = None) -> str:
    """Comment lines: collective, ranks, rate, bound, trees, and the hashes of program, forest and topology.

    Parameters
    ----------
    forest
        What the program was lowered from, which adds its algorithm, its bound and GB/s; None: nobody knows.
    """
    words = Words(program)
    lines = [_title(program, forest)]
    ranks = (f"{rank} = GPU {vertex}" for rank, vertex in enumerate(program.ranks))
    lines += _wrapped("ranks  ", ", ".join(ranks))
    lines += _wrapped("rate   ", _rate(program, forest))
    hashes = [("program", program_hash(program)), ("forest", program.forest_hash), ("topology", program.topology_hash)]
    lines += _wrapped("from   ", ", ".join(f"{what} {name}" for what, name in hashes if name))
    roles: dict[int, list[Role]] = {}
    for role in program.roles:
        roles.setdefault(role.share, []).append(role)
    for share in sorted(roles)[:TREES_SHOWN]:
        lines += _wrapped(f"{words.share(share)}: ", _tree(program, words, roles[share]))
    if len(roles) > TREES_SHOWN:
        lines.append(f"… and {len(roles) - TREES_SHOWN} more")
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def _title(program: Program, forest: Forest | None) -> str:
    coll = program.collective
    ends = [
        f"{key} GPU {program.ranks[rank]}" for key in ("root", "src", "dst") if (rank := getattr(coll, key)) is not None
    ]
    name = coll.name + (f" ({', '.join(ends)})" if ends else "")
    source = "" if forest is None else f" of {_harmless(forest.topology.name)}, by {_harmless(forest.algorithm)}"
    return f"{name} among {len(program.ranks)} GPUs{source}. Made by Blink; a change is lost when it is made again."


def _rate(program: Program, forest: Forest | None) -> str:
    if forest is None:
        return f"{program.rate} units"
    unit = forest.topology.unit_gb_per_s
    text = f"{_times(program.rate, unit)}; "
    return text + ("optimal" if forest.optimal else f"at most {_times(forest.bound, unit)} can be had")


def _times(rate: Fraction, unit_gb_per_s: float) -> str:
    return f"{rate} × {unit_gb_per_s:.6g} GB/s = {float(rate) * unit_gb_per_s:.4g} GB/s"


def _tree(program: Program, words: Words, roles: Sequence[Role]) -> str:
    """Size, root and edges of a share, in the direction of the data."""
    part = program.slices[roles[0].slice]
    weight = (part.stop - part.start) * next(
        item.weight for item in program.collective.items() if item.block == part.block
    )
    said = [f"{weight} of S" + _block(words, part.block)]
    up, down = _edges(program, roles, up=True), _edges(program, roles, up=False)
    root = next((role.rank for role in roles if role.stage == "root"), None)
    if root is not None and not words.paths:
        said.append(f"root {words.gpu(root)}")
    if words.paths:
        return "; ".join([", ".join(said), _chains([*up, *down]) or "stays where it is"])
    edges = [f"{way} {_chains(found)}" for way, found in (("up", up), ("down", down)) if found]
    return "; ".join([", ".join(said), *edges])


def _block(words: Words, block: Block) -> str:
    if block is None:
        return ""
    if isinstance(block, int):
        return f", block of {words.gpu(block)}"
    return f", from {words.gpu(block[0])} for {words.gpu(block[1])}"


def _edges(program: Program, roles: Iterable[Role], *, up: bool) -> list[tuple[int, int]]:
    """Sender and receiver (vertex ids) of the share's messages in one stage, first senders first."""
    senders = sorted((role for role in roles if (role.stage == "reduce") == up), key=lambda role: role.offset)
    queues = (program.queues[queue] for role in senders for queue in role.sends)
    return [(program.ranks[queue.src], program.ranks[queue.dst]) for queue in queues]


def _chains(edges: Iterable[tuple[int, int]]) -> str:
    """``1→5→6 4→6``: edges, joined where one begins at the end of the last."""
    chains: list[list[int]] = []
    for src, dst in edges:
        if chains and chains[-1][-1] == src:
            chains[-1].append(dst)
        else:
            chains.append([src, dst])
    return " ".join("→".join(map(str, chain)) for chain in chains)


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False
    ) or [label]


def _harmless(name: str) -> str:
    """A name out of a file, without what would end or continue a comment: no new line, no backslash."""
    return "".join(c if c.isprintable() and c != "\\" else "?" for c in name)
