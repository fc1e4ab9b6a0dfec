"""Which formats there are: each writes a Program, and what it was made from, as files of another tool.

To add a format: write one file beside this one with a function ``write`` of the form :class:`Write`, and add its row to
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
    """What combining messages takes: ``us`` each time, at ``gb_per_s`` (0: no more), by the calibration of a name."""

    name: str
    us: float
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class RingChannels:
    """The channels of an NCCL graph file: ``orders`` of GPUs by their numbers there, and ``remarks`` for people."""

    orders: tuple[tuple[int, ...], ...]
    gb_per_s: float
    kind: str
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """What may be asked of some formats, and what a format cannot know (:mod:`blinkccl.api.export` finds it).

    Of MSCCL++, which names memory: ``in_place``; ``chunks`` per block, to which to round. Of those for one size:
    ``size_bytes`` as nccl-tests counts it; ``chunk_bytes`` (None: as the simulator chooses them); found for these are
    ``bound``, the program for that size, and ``costs``. Of NCCL's graph file ``rings`` are found.
    """

    in_place: bool = False
    chunks: int | None = None
    size_bytes: int | None = None
    chunk_bytes: int | None = None
    bound: Bound | None = None
    costs: CombiningCosts | None = None
    rings: RingChannels | None = None


#: Out of place, with the chunks that the weights need, for any size.
ANY = Choices()


@dataclass(frozen=True, slots=True)
class File:
    """A file to be written: a name without directories, its text, and what people are to know of it.

    ``data``: its bytes in place of a text, where it has none.
    """

    name: str
    text: str
    note: str = ""
    data: bytes | None = None


class Write(Protocol):
    """Writes a program.

    Parameters
    ----------
    program
        One that the verifier accepts.
    forest
        What it was lowered from.
    machine
        The whole machine that the plan is for, where somebody said which: a plan has the links alone that it is on.
    choices
        What was asked for, and what was found for it.

    Returns
    -------
    tuple of File
        At least one; the first is the one that people look at. The same program gives the same bytes.

    Raises
    ------
    UnsupportedError
        If the format cannot say what the program does, with the reason.
    """

    def __call__(
        self, program: Program, forest: Forest, machine: Topology | None, choices: Choices, /
    ) -> tuple[File, ...]: ...


class Pack(Protocol):
    """Writes what is best for a tool on these GPUs of a machine, without a plan; raises as :class:`Write`."""

    def __call__(self, machine: Topology, ranks: tuple[int, ...], choices: Choices, /) -> tuple[File, ...]: ...


@dataclass(frozen=True, slots=True)
class Format:
    """A registry row; ``module`` is imported on first use.

    ``packs``: it also writes without a plan. ``chooses``: ``in_place`` and ``chunks`` of :class:`Choices` are for it;
    ``sized``: it is for one size; ``of_rings``: it is made of ``rings``. ``per_rank``: it is a file of bytes for each
    rank, and names of all begin with what the user says.
    """

    module: str
    about: str
    packs: bool = False
    chooses: bool = False
    sized: bool = False
    per_rank: bool = False
    of_rings: bool = False

    def check(self, choices: Choices, plan: bool = True) -> None:
        """UsageError where the format leaves no such choice, needs a size, or needs a ``plan``."""
        name = self.about.partition(":")[0]
        if not plan and not self.packs:
            raise UsageError(f"{name} is made of a plan: give what blink plan -o wrote")
        if not self.chooses and (choices.in_place or choices.chunks is not None):
            raise UsageError(f"{name} knows neither --in-place nor --chunks: leave them out")
        if self.sized and choices.size_bytes is None:
            raise UsageError(f"{name} is for one size: give it with -s")
        if not self.sized and (choices.size_bytes is not None or choices.chunk_bytes is not None):
            raise UsageError(f"{name} is for all sizes: leave -s and --chunk out")

    def write(self, program: Program, forest: Forest, machine: Topology | None, choices: Choices) -> tuple[File, ...]:
        """By the format's :class:`Write`."""
        write: Write = import_module(self.module).write
        return write(program, forest, machine, choices)

    def pack(self, machine: Topology, ranks: tuple[int, ...], choices: Choices) -> tuple[File, ...]:
        """By the format's :class:`Pack`."""
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
    """The registry row of ``name``; a UsageError that lists those there are if there is none."""
    if name not in FORMATS:
        raise UsageError(f"format {name!r} is not one of {', '.join(FORMATS)}")
    return FORMATS[name]
