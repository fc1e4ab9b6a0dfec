"""Which formats there are: each writes a Program, and what it was made from, as files of another tool.

To add a format: write one file beside this one with a function ``write`` of the form :class:`Write`, and add its row to
:data:`FORMATS`. The command line and the tests pick it up from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Protocol

from blinkccl.errors import UsageError
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.trees.forest.model import Forest


@dataclass(frozen=True, slots=True)
class Choices:
    """What may be asked of some formats.

    Of MSCCL++, which names memory: ``in_place``; ``chunks`` per block, to which to round. Of those for one size:
    ``size_bytes`` as nccl-tests counts it; ``chunk_bytes`` (None: as the simulator chooses them).
    """

    in_place: bool = False
    chunks: int | None = None
    size_bytes: int | None = None
    chunk_bytes: int | None = None


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

    Returns
    -------
    tuple of File
        At least one; the first is the one that people look at. The same program gives the same bytes.

    Raises
    ------
    UnsupportedError
        If the format cannot say what the program does, with the reason.
    """

    def __call__(self, program: Program, forest: Forest, machine: Topology | None, /) -> tuple[File, ...]: ...


class Pack(Protocol):
    """Writes what is best for a tool on these GPUs of a machine, without a plan; raises as :class:`Write`."""

    def __call__(self, machine: Topology, ranks: tuple[int, ...], /) -> tuple[File, ...]: ...


@dataclass(frozen=True, slots=True)
class Format:
    """A registry row; ``module`` is imported on first use.

    ``packs``: it also writes without a plan. ``chooses``: its ``write`` takes ``in_place`` and ``chunks`` of
    :class:`Choices`, as ``choices``; ``sized``: it needs the other two of them. ``per_rank``: it is a file of bytes for
    each rank, and names of all begin with what the user says.
    """

    module: str
    about: str
    packs: bool = False
    chooses: bool = False
    sized: bool = False
    per_rank: bool = False

    @property
    def write(self) -> Write:
        """The format's :class:`Write`."""
        return self.write_as(ANY)

    def write_as(self, choices: Choices) -> Write:
        """The same with what was asked for; UsageError where the format leaves no choice, or needs a size."""
        module, name = import_module(self.module), self.about.partition(":")[0]
        if not self.chooses and (choices.in_place or choices.chunks is not None):
            raise UsageError(f"{name} knows neither --in-place nor --chunks: leave them out")
        if self.sized and choices.size_bytes is None:
            raise UsageError(f"{name} is for one size: give it with -s")
        if not self.sized and (choices.size_bytes is not None or choices.chunk_bytes is not None):
            raise UsageError(f"{name} is for all sizes: leave -s and --chunk out")
        if self.chooses or self.sized:
            return partial(module.write, choices=choices)
        write: Write = module.write
        return write

    def pack_as(self, choices: Choices) -> Pack:
        """The format's :class:`Pack` with what was asked for; UsageError where it has none."""
        if not self.packs:
            raise UsageError(f"{self.about.partition(':')[0]} is made of a plan: give what blink plan -o wrote")
        module = import_module(self.module)
        pack: Pack = partial(module.pack, choices=choices) if self.chooses else module.pack
        return pack


#: The registry.
FORMATS: dict[str, Format] = {
    "cuda": Format("blinkccl.formats.cuda", "CUDA C++: one kernel per protocol, for nvcc, NVRTC or any C++17 compiler"),
    "nccl-graph": Format("blinkccl.formats.nccl_graph", "NCCL_GRAPH_FILE: the plan's rings, for NCCL to run", True),
    "mscclpp": Format("blinkccl.formats.mscclpp", "MSCCL++ JSON: an execution plan", True, True),
    "goal": Format("blinkccl.formats.goal", "GOAL: a schedule for LogGOPSim and ATLAHS", sized=True),
    "chakra": Format("blinkccl.formats.chakra", "Chakra: execution traces for ASTRA-sim", sized=True, per_rank=True),
}


def format_of(name: str) -> Format:
    """The registry row of ``name``; a UsageError that lists those there are if there is none."""
    if name not in FORMATS:
        raise UsageError(f"format {name!r} is not one of {', '.join(FORMATS)}")
    return FORMATS[name]
