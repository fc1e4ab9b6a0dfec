"""Program → CUDA C++, which nvcc and NVRTC compile for GPUs and any C++17 compiler for this CPU.

The text is the schedule and nothing else: which rank waits for whom, combines what and sends it where, with ranks,
connections and fractions as constants. How messages are moved is in the headers that it includes
(``native/device/blink/walk.h``). Per rank and lane there is one function, a loop over ticks; what is in it is one line
per role. The same program gives the same bytes.

Three kernels come out of each program, one per protocol: ``blink_<name>_simple``, ``…_ll`` and ``…_ll128``; and, where
the text is compiled for copy engines (:mod:`blinkccl.codegen.copies_compiler`), ``blink_<name>_copies``, which a
process calls to put the same schedule into streams. A file has one kernel more that reduces for these, ``blink_fold``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinkccl.codegen.header import header
from blinkccl.codegen.lanes import Firing, Lane, Piece, lanes_of
from blinkccl.codegen.layout import Group
from blinkccl.codegen.words import Words
from blinkccl.errors import UsageError
from blinkccl.forest.model import Forest
from blinkccl.schedule.chunking import largest_share
from blinkccl.schedule.program import Program

#: Protocol → the type of its wire in ``walk.h``.
WIRES = {"simple": "Simple", "ll": "LL", "ll128": "LL128"}
#: The line that functions need before them.
INCLUDE = '#include "blink/walk.h"\n'
#: Before it, where no program of a file reduces: the headers then leave out all arithmetic, most of a compiler's work.
MOVES_ONLY = "#define BLINK_MOVES_ONLY  // nothing is combined\n"
#: The protocol of copy engines, which is no kernel, and the kernel that reduces for it.
COPIES, FOLD = "copies", "blink_fold"
_COLUMNS = 118


@dataclass(frozen=True)
class Kernel:
    """A program to be written as code.

    Parameters
    ----------
    name
        Lower-case letters, digits and ``_``; different for all programs of a file.
    forest
        What it was made from, for the comment; None: the comment says less.
    slots
        Messages that its connections will hold; None: what its channels say.

    Raises
    ------
    UsageError
        If the name is none.
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


def cuda_text(kernels: Sequence[Kernel], group: Group | None = None) -> str:
    """One file of code for ``kernels``, which use the connections of ``group``.

    Parameters
    ----------
    group
        None: the kernels' programs are a group of their own.

    Raises
    ------
    UnsupportedError
        If GPU blocks cannot run a program: see :func:`blinkccl.codegen.lanes.lanes_of`.
    UsageError
        If there is no kernel, two have one name, or they run on different ranks.

    Notes
    -----
    Cost: linear in roles and messages.
    """
    names = [kernel.name for kernel in kernels]
    if len(dict.fromkeys(names)) != len(names):
        raise UsageError(f"kernels of one file need different names, got {', '.join(names)}")
    group = group or Group([kernel.program for kernel in kernels])
    single = len(kernels) == 1
    parts = [header(kernel.program, kernel.forest) for kernel in kernels] if single else []
    reduces = any(kernel.program.collective.reduces for kernel in kernels)
    parts.append(INCLUDE if reduces else MOVES_ONLY + INCLUDE)
    for kernel in kernels:
        if not single:
            parts.append(header(kernel.program, kernel.forest))
        parts.append(code(kernel, group))
    if reduces:
        parts.append(f"BLINK_FOLD_ENTRY({FOLD})\n")
    return "\n".join(parts)


def code(kernel: Kernel, group: Group) -> str:
    """The functions of one kernel, in a namespace of its name, and its entries; without comment and include."""
    program = kernel.program
    words, connections = Words(program), group.connections_of(program)
    lanes, largest = lanes_of(program, kernel.slots), largest_share(program)
    functions = [_function(words, connections, lane, largest) for lane in lanes]
    body = "\n".join([*functions, _dispatch(lanes, len(program.channels))])
    entries = [
        f"BLINK_ENTRY({kernel.entry(protocol)}, {wire}, {kernel.name}::run)\n" for protocol, wire in WIRES.items()
    ]
    entries.append(f"BLINK_COPY_ENTRY({kernel.entry(COPIES)}, {kernel.name}::run)\n")
    return (
        f"namespace {{\nnamespace {kernel.name} {{\nusing namespace blink;\n\n{body}\n"
        f"}}  // namespace {kernel.name}\n}}  // namespace\n\n{''.join(entries)}"
    )


def _function(words: Words, connections: tuple[int, ...], lane: Lane, largest: Fraction | None) -> str:
    received, sent = words.ends(lane)
    names = [*received.values(), *sent.values()]
    ids = [str(connections[queue]) for queue in (*received, *sent)]
    lines = [f"// {words.gpu(lane.rank)}, lane {lane.channel}."]
    for firing in lane.firings:
        lines += textwrap.wrap(f"{words.deed(firing)}.", _COLUMNS, initial_indent="//   ", subsequent_indent="//     ")
    lines += ["template <class Wire>", f"BLINK_DEVICE void {_name(lane)}(Walk<Wire>& walk) {{"]
    if names:
        lines.append(_broken("  enum : End { ", names, " };"))
    lines.append(_broken("  walk.open(", ids, ");"))
    if lane.contributors > 1:
        lines.append(f"  walk.contributors({lane.contributors});")
    if largest is not None:
        numbers = f"{largest.numerator}, {largest.denominator}"
        lines.append(f"  walk.largest({numbers});  // shares have as many chunks as one of {_of_block(largest)}")
    lines += [_slice(words, piece) for piece in lane.pieces]
    lines.append(_broken("  const Word end = latest(", [_end(words, lane, piece) for piece in lane.pieces], ");"))
    lines.append(f"  for (Word tick = {lane.first_tick}; tick < end && walk.running(); ++tick) {{")
    lines += [_broken(f"    walk.{f.method}(", _arguments(words, f, received, sent), ");") for f in lane.firings]
    lines += ["  }", "  walk.close();", "}", ""]
    return "\n".join(lines)


def _slice(words: Words, piece: Piece) -> str:
    numbers = (
        piece.source,
        piece.target,
        piece.start.numerator,
        piece.start.denominator,
        piece.stop.numerator,
        piece.stop.denominator,
    )
    part = "the whole block" if piece.stop - piece.start == 1 else f"{piece.start} … {piece.stop} of the block"
    return f"  const Slice {words.slice(piece.slice)} = walk.slice({', '.join(map(str, numbers))});  // {part}"


def _of_block(share: Fraction) -> str:
    return "the whole block" if share == 1 else f"{share} of the block"


def _end(words: Words, lane: Lane, piece: Piece) -> str:
    last = lane.last_offset(piece)
    return f"{words.slice(piece.slice)}.chunks" + (f" + {last}" if last else "")


def _arguments(words: Words, firing: Firing, received: dict[int, str], sent: dict[int, str]) -> list[str]:
    """What the method is given, as ``walk.h`` has it."""
    role, method = firing.role, firing.method
    arguments = [words.slice(role.slice), f"tick - {role.offset}" if role.offset else "tick"]
    reduces = "reduce" in method
    if reduces:
        arguments += [_ends(received, role.receives), str(role.own_operand_index) if role.contributes else "kNoTurn"]
    elif role.receives:
        arguments.append(received[role.receives[0]])
    if "send" in method:
        arguments.append(_ends(sent, role.sends))
    if reduces:
        arguments.append("complete" if role.completes else "partial")
    return arguments


def _ends(names: dict[int, str], queues: tuple[int, ...]) -> str:
    return f"ends({', '.join(names[queue] for queue in queues)})"


def _dispatch(lanes: Sequence[Lane], channels: int) -> str:
    cases = [f"    case {lane.rank * channels + lane.channel}: return {_name(lane)}(walk);" for lane in lanes]
    return "\n".join(
        [
            f"constexpr uint32_t kLanes = {channels};",
            "",
            "template <class Wire>",
            "BLINK_DEVICE void run(Walk<Wire>& walk, uint32_t rank, uint32_t lane) {",
            "  switch (rank * kLanes + lane) {",
            *cases,
            "  }",
            "}",
            "",
        ]
    )


def _name(lane: Lane) -> str:
    return f"rank{lane.rank}_lane{lane.channel}"


def _broken(head: str, items: Sequence[str], tail: str) -> str:
    """``head``, the items with commas between them, ``tail``: on as many lines as it takes."""
    lines, indent = [head], " " * (len(head) - len(head.lstrip()) + 4)
    for word in re.split("(?<=,) ", ", ".join(items) + tail):
        glue = " " if lines[-1].endswith(",") else ""
        if len(lines[-1]) + len(glue) + len(word) > _COLUMNS and len(lines[-1]) > len(indent):
            lines.append(indent)
            glue = ""
        lines[-1] += glue + word
    return "\n".join(lines)
