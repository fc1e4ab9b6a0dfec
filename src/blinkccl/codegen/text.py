"""Program → CUDA C++, which nvcc and NVRTC compile for GPUs and any C++17 compiler for this CPU.

The text is the schedule only: the waits, reductions and sends of each rank, with ranks, connections and fractions as
constants. The included headers move the messages (``native/device/blink/context.h``). Each rank and channel has one
function, a loop over ticks with one line per role. The same program gives the same bytes.

Each program becomes three kernels, one per protocol: ``blink_<name>_simple``, ``…_ll`` and ``…_ll128``; or one kernel
runs several programs, selected by its call. Text compiled for copy engines (:mod:`blinkccl.codegen.host_compiler`) has
``blink_<name>_copies`` instead, which a process calls to enqueue the same schedule on streams. A file has one more
kernel that reduces for these, ``blink_fold``. Comments describe the source of each kernel and each function; they name
GPUs by vertex id, and shares and slices by their place in the collective.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.codegen.channels import ChannelLoop, LocalSlice, RoleExecution, channel_loops
from blinkccl.codegen.layout import ProgramGroup
from blinkccl.collectives.spec import Block
from blinkccl.errors import UsageError
from blinkccl.schedule.chunking import largest_share
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.text import program_hash
from blinkccl.trees.forest.model import Forest

#: Protocol → the type of its wire in ``context.h``.
WIRES = {"simple": "Simple", "ll": "LL", "ll128": "LL128"}
#: The line before all functions.
INCLUDE = '#include "blink/context.h"\n'
#: The line before it if no program of a file reduces: the headers then omit all arithmetic, most of the compile time.
MOVES_ONLY = "#define BLINK_MOVES_ONLY  // all programs only move data\n"
#: The protocol of copy engines, which has no kernel, and the kernel that reduces for it.
COPIES, FOLD = "copies", "blink_fold"
FOLD_ENTRY = f"BLINK_FOLD_ENTRY({FOLD})"
_COLUMNS, _HEADER_COLUMNS = 118, 110
#: The number of trees in a comment; the plan has all of them.
TREES_SHOWN = 64


@dataclass(frozen=True)
class Kernel:
    """A program to be written as code under a name of lower-case letters, digits and ``_``, else UsageError.

    ``forest`` is its source, for the comment. Its connections will hold ``slots`` messages; None: the numbers of its
    channels.
    """

    name: str
    program: Program
    forest: Forest | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise UsageError(f"a kernel's name is of lower-case letters, digits and _, got {self.name!r}")

    def entry(self, protocol: str) -> str:
        """The symbol of the kernel for ``protocol``, a key of :data:`WIRES`, or of the entry for :data:`COPIES`."""
        return entry_name(self.name, protocol)


def entry_name(name: str, protocol: str) -> str:
    """The symbol that runs the kernel ``name`` with ``protocol``."""
    return f"blink_{name}_{protocol}"


def cuda_text(
    kernels: Sequence[Kernel], group: ProgramGroup | None = None, entries: Sequence[str] | None = None
) -> str:
    """One file of code for ``kernels``, which use the connections of ``group``, or of a group of their own.

    ``entries`` are its last lines; None: each kernel has an entry per protocol, and one kernel reduces. UsageError if
    there is no kernel, two have one name, or they run on different ranks; UnsupportedError as in
    :func:`blinkccl.codegen.channels.channel_loops`. Cost: linear in roles and messages.
    """
    names = [kernel.name for kernel in kernels]
    if len(dict.fromkeys(names)) != len(names):
        raise UsageError(f"kernels of one file need different names, got {', '.join(names)}")
    group = group or ProgramGroup([kernel.program for kernel in kernels])
    single = len(kernels) == 1
    parts = [header(kernel.program, kernel.forest) for kernel in kernels] if single else []
    reduces = any(kernel.program.collective.reduces for kernel in kernels)
    parts.append(INCLUDE if reduces else MOVES_ONLY + INCLUDE)
    for kernel in kernels:
        if not single:
            parts.append(header(kernel.program, kernel.forest))
        parts.append(code(kernel, group) if entries is None else functions(kernel, group))
    if entries is not None:
        parts.append("".join(f"{line}\n" for line in entries))
    elif reduces:
        parts.append(f"{FOLD_ENTRY}\n")
    return "\n".join(parts)


def code(kernel: Kernel, group: ProgramGroup) -> str:
    """The functions of one kernel and its entries, without comment and include."""
    entries = [kernel_entry(kernel.entry(protocol), wire, [kernel]) for protocol, wire in WIRES.items()]
    return "\n".join([functions(kernel, group), *entries, copy_entry(kernel), ""])


def kernel_entry(name: str, wire: str, programs: Sequence[Kernel]) -> str:
    """The line of the kernel ``name``, which runs one of ``programs``: its call has the number."""
    return f"BLINK_ENTRY({name}, {wire}, {', '.join(f'{one.name}::run' for one in programs)})"


def copy_entry(kernel: Kernel) -> str:
    return f"BLINK_COPY_ENTRY({kernel.entry(COPIES)}, {kernel.name}::run)"


def functions(kernel: Kernel, group: ProgramGroup) -> str:
    """One function per rank and channel, in a namespace of the kernel's name."""
    program = kernel.program
    words, connections = Words(program), group.connections_of(program)
    loops, largest = channel_loops(program, kernel.slots), largest_share(program)
    written = [_function(words, connections, loop, largest) for loop in loops]
    body = "\n".join([*written, _dispatch(loops, len(program.ranks), len(program.channels))])
    return (
        f"namespace {{\nnamespace {kernel.name} {{\nusing namespace blink;\n\n{body}\n"
        f"}}  // namespace {kernel.name}\n}}  // namespace\n"
    )


def _function(words: Words, connections: tuple[int, ...], loop: ChannelLoop, largest: Fraction | None) -> str:
    received, sent = words.ends(loop)
    names = [*received.values(), *sent.values()]
    ids = [str(connections[queue]) for queue in (*received, *sent)]
    lines = [f"// {words.gpu(loop.rank)}, channel {loop.channel}."]
    for execution in loop.executions:
        lines += textwrap.wrap(
            f"{words.action(execution)}.", _COLUMNS, initial_indent="//   ", subsequent_indent="//     "
        )
    lines += ["template <class Wire>", f"BLINK_DEVICE void {_name(loop)}(KernelContext<Wire>& context) {{"]
    if names:
        lines.append(_broken("  enum : End { ", names, " };"))
    if loop.contributors > 1:
        lines.append(f"  context.contributors({loop.contributors});")
    if largest is not None:
        numbers = f"{largest.numerator}, {largest.denominator}"
        part = "the whole block" if largest == 1 else f"{largest} of the block"
        lines.append(f"  context.largest({numbers});  // every share has as many chunks as {part}")
    lines += [_slice(words, piece) for piece in loop.pieces]
    lines.append(_broken("  context.open(", ids, ");"))
    lines.append(_broken("  const Word end = latest(", [_end(words, loop, piece) for piece in loop.pieces], ");"))
    lines.append(f"  for (Word tick = {loop.first_tick}; tick < end && context.running(); ++tick) {{")
    for each in loop.executions:
        lines.append(_broken(f"    context.{each.method}(", _arguments(words, each, received, sent), ");"))
    lines += ["  }", "  context.close();", "}", ""]
    return "\n".join(lines)


def _slice(words: Words, piece: LocalSlice) -> str:
    numbers = (
        piece.source,
        piece.target,
        piece.start.numerator,
        piece.start.denominator,
        piece.stop.numerator,
        piece.stop.denominator,
        *([piece.turn] if piece.turn else []),
    )
    part = "the whole block" if piece.stop - piece.start == 1 else f"{piece.start} … {piece.stop} of the block"
    return f"  const Slice& {words.slice(piece.slice)} = context.slice({', '.join(map(str, numbers))});  // {part}"


def _end(words: Words, loop: ChannelLoop, piece: LocalSlice) -> str:
    last = loop.last_offset(piece)
    return f"{words.slice(piece.slice)}.chunks" + (f" + {last}" if last else "")


def _arguments(words: Words, execution: RoleExecution, received: dict[int, str], sent: dict[int, str]) -> list[str]:
    """The arguments of the method, in the order of ``context.h``."""
    role, method = execution.role, execution.method
    arguments = [words.slice(role.slice), f"tick - {role.offset}" if role.offset else "tick"]
    reduces = "reduce" in method
    if reduces:
        arguments += [
            _ends(received, role.receives),
            str(role.own_operand_index) if role.contributes else "kNoOwnOperand",
        ]
    elif role.receives:
        arguments.append(received[role.receives[0]])
    if "send" in method:
        arguments.append(_ends(sent, role.sends))
    if reduces:
        arguments.append("complete" if role.completes else "partial")
    return arguments


def _ends(names: dict[int, str], queues: tuple[int, ...]) -> str:
    return f"ends({', '.join(names[queue] for queue in queues)})"


def _dispatch(loops: Sequence[ChannelLoop], ranks: int, channels: int) -> str:
    cases = [f"    case {loop.rank * channels + loop.channel}: return {_name(loop)}(context);" for loop in loops]
    return "\n".join(
        [
            f"constexpr uint32_t kRanks = {ranks}, kChannels = {channels};",
            "",
            "template <class Wire>",
            "BLINK_DEVICE void run(KernelContext<Wire>& context, uint32_t rank, uint32_t channel) {",
            "  context.program(kRanks, kChannels);",
            "  switch (rank * kChannels + channel) {",
            *cases,
            "  }",
            "}",
            "",
        ]
    )


def _name(loop: ChannelLoop) -> str:
    return f"rank{loop.rank}_channel{loop.channel}"


def _broken(head: str, items: Sequence[str], tail: str) -> str:
    """``head``, the items separated by commas, and ``tail``, on as many lines as needed."""
    lines, indent = [head], " " * (len(head) - len(head.lstrip()) + 4)
    for word in re.split("(?<=,) ", ", ".join(items) + tail):
        glue = " " if lines[-1].endswith(",") else ""
        if len(lines[-1]) + len(glue) + len(word) > _COLUMNS and len(lines[-1]) > len(indent):
            lines.append(indent)
            glue = ""
        lines[-1] += glue + word
    return "\n".join(lines)


class Words:
    """The names in the code of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        items = program.collective.items()
        #: True if every item goes from one rank to one other, so that shares are paths and not trees.
        self.paths = not any(len(item.contributions) > 1 or len(item.destinations) > 1 for item in items)
        self._shares: dict[int, list[int]] = {}
        for role in program.roles:
            carried = self._shares.setdefault(role.slice, [])
            if role.share not in carried:
                carried.append(role.share)

    def gpu(self, rank: int) -> str:
        """``GPU 5``."""
        return f"GPU {self._program.ranks[rank]}"

    def share(self, share: int) -> str:
        """``tree 0`` or ``path 0``."""
        return f"{'path' if self.paths else 'tree'} {share}"

    def slice(self, index: int) -> str:
        """The variable of a slice: ``tree0`` if one share uses it, ``slice0`` if several do."""
        carried = self._shares[index]
        return self.share(carried[0]).replace(" ", "") if len(carried) == 1 else f"slice{index}"

    def ends(self, loop: ChannelLoop) -> tuple[dict[int, str], dict[int, str]]:
        """Queue → name, of receives and of sends: ``from_gpu4``, ``to_gpu1``; a second one is ``from_gpu4_b``."""
        queues, ranks = self._program.queues, self._program.ranks
        received = _named((queue, f"from_gpu{ranks[queues[queue].src]}") for queue in loop.receives)
        return received, _named((queue, f"to_gpu{ranks[queues[queue].dst]}") for queue in loop.sends)

    def action(self, execution: RoleExecution) -> str:
        """An execution in words: ``tree 0, root: reduces GPU 1's and its own data, keeps the result and …``."""
        role = execution.role
        where = self.share(execution.shares[0]) + (", root" if role.stage == "root" and not self.paths else "")
        if len(execution.shares) > 1:
            where = f"{self.share(0)[:4]}s {listed(list(map(str, execution.shares)))}"
        sources = [self.gpu(self._program.queues[queue].src) for queue in role.receives]
        receivers = listed([self.gpu(self._program.queues[queue].dst) for queue in role.sends])
        if len(sources) + role.contributes > 1:
            values = [f"{source}'s" for source in sources]
            if role.contributes:
                values.insert(role.own_operand_index, "its own")
            done = ["keeps the result"] if role.keeps else []
            done += [f"sends {'it' if done else 'the result'} to {receivers}"] if receivers else []
            return f"{where}: {listed([f'reduces {listed(values)} data', *done])}"
        value = f"{sources[0]}'s data" if sources else "its own data"
        if role.keeps:
            return f"{where}: keeps {value}" + (f" and sends it to {receivers}" if receivers else "")
        if not receivers:
            return f"{where}: receives {value}"
        return f"{where}: passes {value} on to {receivers}" if sources else f"{where}: sends {value} to {receivers}"


def listed(items: Sequence[str]) -> str:
    """``A, B and C``."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def _named(ends: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Names made unique by ``_b``, ``_c`` …, after ``_z`` by ``_26`` …"""
    names: dict[int, str] = {}
    uses: dict[str, int] = {}
    for queue, name in ends:
        again = uses.setdefault(name, 0)
        uses[name] += 1
        suffix = chr(ord("a") + again) if again < 26 else str(again)
        names[queue] = f"{name}_{suffix}" if again else name
    return names


def header(program: Program, forest: Forest | None = None) -> str:
    """Comment lines: collective, ranks, rate, trees, hashes; with a forest its algorithm, its bound and GB/s."""
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
    return text + ("optimal" if forest.optimal else f"bound {_times(forest.bound, unit)}")


def _times(rate: Fraction, unit_gb_per_s: float) -> str:
    return f"{rate} × {unit_gb_per_s:.6g} GB/s = {float(rate) * unit_gb_per_s:.4g} GB/s"


def _tree(program: Program, words: Words, roles: Sequence[Role]) -> str:
    """Size, root and edges of a share, in the direction of the data."""
    part = program.slices[roles[0].slice]
    weight = (part.stop - part.start) * next(
        item.weight for item in program.collective.items() if item.block == part.block
    )
    parts = [f"{weight} of S" + _block(words, part.block)]
    up, down = _edges(program, roles, up=True), _edges(program, roles, up=False)
    root = next((role.rank for role in roles if role.stage == "root"), None)
    if root is not None and not words.paths:
        parts.append(f"root {words.gpu(root)}")
    if words.paths:
        return "; ".join([", ".join(parts), _chains([*up, *down]) or "stays in place"])
    edges = [f"{way} {_chains(pairs)}" for way, pairs in (("up", up), ("down", down)) if pairs]
    return "; ".join([", ".join(parts), *edges])


def _block(words: Words, block: Block) -> str:
    if block is None:
        return ""
    if isinstance(block, int):
        return f", block of {words.gpu(block)}"
    return f", from {words.gpu(block[0])} for {words.gpu(block[1])}"


def _edges(program: Program, roles: Iterable[Role], *, up: bool) -> list[tuple[int, int]]:
    """Sender and receiver (vertex ids) of the share's messages in one stage, in the order of offsets."""
    senders = sorted((role for role in roles if (role.stage == "reduce") == up), key=lambda role: role.offset)
    queues = (program.queues[queue] for role in senders for queue in role.sends)
    return [(program.ranks[queue.src], program.ranks[queue.dst]) for queue in queues]


def _chains(edges: Iterable[tuple[int, int]]) -> str:
    """``1→5→6 4→6``: edges, joined if one begins at the end of the last."""
    chains: list[list[int]] = []
    for src, dst in edges:
        if chains and chains[-1][-1] == src:
            chains[-1].append(dst)
        else:
            chains.append([src, dst])
    return " ".join("→".join(map(str, chain)) for chain in chains)


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _HEADER_COLUMNS, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False
    ) or [label]


def _harmless(name: str) -> str:
    """A name from a file, without line breaks, backslashes and others that could end or continue a comment."""
    return "".join(c if c.isprintable() and c != "\\" else "?" for c in name)
