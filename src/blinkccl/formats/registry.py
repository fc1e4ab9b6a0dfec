"""Registry of export formats: each writes a Program, and the Forest it was lowered from, as files of another tool.

To add a format, write one file beside this one with a function ``write`` of the form :class:`Write`, and add its row to
:data:`FORMATS`. The command line and the tests pick it up from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from blinkccl.errors import UsageError
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest


@dataclass(frozen=True, slots=True)
class CombiningCosts:
    """Cost of a reduction by the named calibration: ``us`` each, plus the bytes at ``gb_per_s`` (0: nothing)."""

    name: str
    us: float
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class RingChannels:
    """Channels of an NCCL graph file: ``orders`` of GPUs by their numbers there, and ``remarks`` for its comments."""

    orders: tuple[tuple[int, ...], ...]
    gb_per_s: float
    kind: str
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's choices for some formats, and values computed for them by :mod:`blinkccl.api.export`.

    For MSCCL++: ``in_place``, and ``chunks`` per block, to which slices are rounded. For formats of one size:
    ``size_bytes`` as in nccl-tests, and ``chunk_bytes`` (None: the simulator's choice). Computed for these:
    ``bound``, the program for that size, and ``costs``. Computed for NCCL's graph file: ``rings``.
    """

    in_place: bool = False
    chunks: int | None = None
    size_bytes: int | None = None
    chunk_bytes: int | None = None
    bound: Bound | None = None
    costs: CombiningCosts | None = None
    rings: RingChannels | None = None


#: Defaults: out of place, with as many chunks as the denominators need, for any size.
ANY = Choices()


@dataclass(frozen=True, slots=True)
class File:
    """A file to write: a name without directories, its text, and a note to print.

    ``data``: bytes, for a file that is not text.
    """

    name: str
    text: str
    note: str = ""
    data: bytes | None = None


class Write(Protocol):
    """Write a program.

    Parameters
    ----------
    program
        A program that the verifier accepts.
    forest
        The forest from which it was lowered.
    machine
        The whole machine, if known; the plan itself contains only the links that it uses.
    choices
        The user's choices and the values computed for them.

    Returns
    -------
    tuple of File
        At least one file; the first is the main one. The same program gives the same bytes.

    Raises
    ------
    UnsupportedError
        If the format cannot express the program, with the reason.
    """

    def __call__(
        self, program: Program, forest: Forest, machine: Topology | None, choices: Choices, /
    ) -> tuple[File, ...]: ...


class Pack(Protocol):
    """Write a tool's best plan for these GPUs of a machine, without a plan of Blink's; errors as in :class:`Write`."""

    def __call__(self, machine: Topology, ranks: tuple[int, ...], choices: Choices, /) -> tuple[File, ...]: ...


@dataclass(frozen=True, slots=True)
class Format:
    """A registry row; ``module`` is imported on first use.

    ``packs``: it can also be written without a plan. ``chooses``: it supports ``in_place`` and ``chunks`` of
    :class:`Choices`. ``sized``: it is written for one size. ``of_rings``: it contains ``rings``. ``per_rank``: it is
    one binary file per rank, with the user's prefix in all names.
    """

    module: str
    about: str
    packs: bool = False
    chooses: bool = False
    sized: bool = False
    per_rank: bool = False
    of_rings: bool = False

    def check(self, choices: Choices, plan: bool = True) -> None:
        """UsageError if the format does not support a choice, needs a size, or needs a ``plan``."""
        name = self.about.partition(":")[0]
        if not plan and not self.packs:
            raise UsageError(f"{name} needs a plan: give a file that blink plan -o wrote")
        if not self.chooses and (choices.in_place or choices.chunks is not None):
            raise UsageError(f"{name} supports neither --in-place nor --chunks: leave them out")
        if self.sized and choices.size_bytes is None:
            raise UsageError(f"{name} is for one size: give the size with -s")
        if not self.sized and (choices.size_bytes is not None or choices.chunk_bytes is not None):
            raise UsageError(f"{name} is for all sizes: leave -s and --chunk out")

    def write(self, program: Program, forest: Forest, machine: Topology | None, choices: Choices) -> tuple[File, ...]:
        """Files written by the format's :class:`Write`."""
        write: Write = import_module(self.module).write
        return write(program, forest, machine, choices)

    def pack(self, machine: Topology, ranks: tuple[int, ...], choices: Choices) -> tuple[File, ...]:
        """Files written by the format's :class:`Pack`."""
        pack: Pack = import_module(self.module).pack
        return pack(machine, ranks, choices)


#: The registry.
FORMATS: dict[str, Format] = {
    "cuda": Format("blinkccl.formats.cuda", "CUDA C++: one kernel per protocol, for nvcc, NVRTC or any C++17 compiler"),
    "nccl-graph": Format(
        "blinkccl.formats.nccl_graph", "NCCL_GRAPH_FILE: the plan's rings, for NCCL to run", True, of_rings=True
    ),
    "mscclpp": Format("blinkccl.formats.mscclpp", "MSCCL++ JSON: an execution plan", True, True),
    "goal": Format("blinkccl.formats.goal", "GOAL: a schedule for LogGOPSim and ATLAHS", sized=True),
    "chakra": Format("blinkccl.formats.chakra", "Chakra: execution traces for ASTRA-sim", sized=True, per_rank=True),
}


def format_of(name: str) -> Format:
    """The registry row of ``name``; the UsageError for an unknown name lists the formats."""
    if name not in FORMATS:
        raise UsageError(f"unknown format {name!r}; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]
