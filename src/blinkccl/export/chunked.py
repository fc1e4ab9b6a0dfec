"""A program in whole chunks: what exports to formats with chunks share.

Such formats cut a buffer into equal chunks, and a program cuts blocks at fractions. The least common denominator of all
boundaries is the number of chunks per block; ``--chunks`` rounds to fewer. Formats name memory too, so it is said here
where the value of a role lies until it is sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import lcm

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import InternalError, LimitError, ScheduleError, TopologyError, UnsupportedError, UsageError
from blinkccl.export.registry import Choices, File
from blinkccl.foreign.instructions import InstructionList
from blinkccl.foreign.verify import SERVED, audit, buffer_chunks
from blinkccl.forest.model import Forest
from blinkccl.schedule.chunking import placements
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program, Role

#: Thread blocks of a GPU that run side by side on an A100, and so must on anything.
MOST_BLOCKS = 108
#: What is tried where a plan does not fit: roundings, fewer trees for so many ranks (a search), and algorithms.
_ROUNDINGS = (64, 32, 16, 12, 8, 4, 2, 1)
_MOST_SEARCHED = 16
_BASELINES = ("one_hop", "ring", "double_binary_tree", "flat", "internal_broadcast")


@dataclass(frozen=True)
class Place:
    """Chunks of one of a rank's buffers, from ``start`` on."""

    buffer: str
    start: int


class Chunked:
    """A program whose slices are whole chunks.

    Parameters
    ----------
    program
        What :func:`~blinkccl.schedule.lower.lower` made: every queue takes one tick.
    choices
        In place or not; chunks per block to round to.
    most
        Chunks that a buffer may have.

    Raises
    ------
    UnsupportedError
        For a collective that no such format names, relays, more than ``most`` chunks, and AllToAll in place.
    """

    def __init__(self, program: Program, choices: Choices, most: int) -> None:
        coll = program.collective
        if coll.name not in SERVED:
            raise UnsupportedError(f"the format has no {coll.name}; it has {', '.join(SERVED)}")
        if program.relays:
            raise UnsupportedError(
                f"the plan passes data through vertices {list(program.relays)} outside the job, where no runtime of "
                "this format does anything; plan without --relays"
            )
        if choices.in_place and coll.name == "alltoall":
            raise UnsupportedError("alltoall is planned out of place alone: leave --in-place out")
        self.program, self.in_place = program, choices.in_place
        self.blocks = 1 if COLLECTIVES[coll.name].whole else coll.world_size
        exact = lcm(*(part.stop.denominator for part in program.slices))
        self.chunks = exact if choices.chunks is None else choices.chunks
        if self.chunks * self.blocks > most:
            raise LimitError(
                f"the format holds {most} chunks per buffer, got {self.chunks * self.blocks}: the weights have the "
                f"common denominator {exact}, in each of {self.blocks} block(s)"
            )
        edges = [(round(part.start * self.chunks), round(part.stop * self.chunks)) for part in program.slices]
        self.starts = tuple(start for start, _ in edges)
        self.sizes = tuple(stop - start for start, stop in edges)
        self.roles = tuple(role for role in program.roles if self.sizes[role.slice])
        self.sender = {queue: role for role in self.roles for queue in role.sends}
        self.receiver = {queue: role for role in self.roles for queue in role.receives}
        self._places = placements(coll)
        self._contributing: dict[tuple[int, int], list[int]] = {}
        for role in self.roles:
            if role.contributes:
                self._contributing.setdefault((role.rank, role.slice), []).append(role.share)
        late = [q for q, role in self.receiver.items() if role.offset != self.sender[q].offset + 1]
        if late:
            raise UnsupportedError(
                f"queue {late[0]} takes more than one tick: only what was lowered from a plan is written"
            )

    def own(self, role: Role) -> Place:
        """The rank's contribution to the role's slice."""
        block = self._places[self.program.slices[role.slice].block].sources[role.rank]
        return self._place(role, "i", block)

    def result(self, role: Role) -> Place:
        """Where the role keeps."""
        block = self._places[self.program.slices[role.slice].block].targets[role.rank]
        return self._place(role, "o", block)

    def _place(self, role: Role, buffer: str, block: int) -> Place:
        name, start = self.program.collective.name, self.starts[role.slice]
        if self.in_place:
            if (name, buffer) in (("allgather", "i"), ("reduce_scatter", "o")):
                block = role.rank
            buffer = "i" if name == "reduce_scatter" else "o"
        return Place(buffer, block * self.chunks + start)

    def keeps_at_once(self, role: Role) -> bool:
        """Whether what arrives for the role may lie where it is kept: no other share still reads the input there."""
        shares = self._contributing.get((role.rank, role.slice), ())
        return role.keeps and not (self.in_place and any(share != role.share for share in shares))

    def buffer_chunks(self, rank: int) -> tuple[int, int]:
        """Of the input and the output."""
        return buffer_chunks(self.program.collective, rank, self.chunks)

    def rate(self, forest: Forest) -> Fraction:
        """S per unit of time that the links allow the slices as they were rounded, as :attr:`Forest.rate`."""
        items = {item.block: item.weight for item in self.program.collective.items()}
        load: dict[tuple[int, int], Fraction] = {}
        for number in self.sender:
            queue, part = self.program.queues[number], self.sender[number].slice
            weight = items[self.program.slices[part].block] * Fraction(self.sizes[part], self.chunks)
            for pair in zip(queue.path, queue.path[1:], strict=False):
                load[pair] = load.get(pair, Fraction(0)) + weight
        return min((forest.topology.link[pair].capacity / each for pair, each in load.items()), default=forest.rate)


@dataclass(frozen=True)
class Form:
    """A format with chunks: how many a buffer may have, how a program is written, and how it is read back.

    ``texts`` gives one or more, the one with most to gain first; the first that is proved is taken.
    """

    most_chunks: int
    texts: Callable[[Chunked, Forest], Iterable[str]]
    read: Callable[[bytes, str], tuple[InstructionList, ...]]


def file_of(name: str, form: Form, program: Program, forest: Forest, choices: Choices) -> File:
    """The program as ``form``, read back and proved.

    UnsupportedError names the limit that it exceeds, and what fits instead, as it is typed: fewer chunks, or another
    algorithm, by rate. InternalError if what was written is wrong.
    """
    if choices.chunks is not None and choices.chunks < 1:
        raise UsageError(f"--chunks {choices.chunks}: expected at least 1")
    try:
        chunked = Chunked(program, choices, form.most_chunks)
        text = _proved(form, form.texts(chunked, forest))
    except LimitError as limit:
        raise UnsupportedError(f"{limit.reason}; {_what_fits(form, program, forest, choices)}") from None
    unit, rate, notes = forest.topology.unit_gb_per_s, chunked.rate(forest), []
    if rate != forest.rate:
        notes.append(
            f"{chunked.chunks} chunks per block: {float(rate) * unit:.4g} of {float(forest.rate) * unit:.4g} GB/s"
        )
    if program.collective.root is not None:
        notes.append(f"right for calls with root {program.collective.root} alone, which the format does not say")
    return File(name, text, "; ".join(notes))


def _proved(form: Form, texts: Iterable[str]) -> str:
    faults: tuple[str, ...] = ()
    for text in texts:
        try:
            faults = tuple(fault for plan in form.read(text.encode(), "export") for fault in audit(plan).faults)
        except ScheduleError as error:
            raise LimitError(f"what would be written cannot be proved: {error}") from None
        if not faults:
            return text
    raise InternalError(f"what was written does not do what the plan does: {faults[0]}")


def _what_fits(form: Form, program: Program, forest: Forest, choices: Choices) -> str:
    """The finest rounding that fits, and the fastest of other trees."""
    request = Request(forest.topology, forest.collective, forest.ranks)
    exact = choices.chunks or lcm(*(part.stop.denominator for part in program.slices))
    found: list[tuple[Fraction, str]] = []
    for chunks in (one for one in _ROUNDINGS if one < exact):
        found = _fitting(form, f"--chunks {chunks}", partial(replace, forest), replace(choices, chunks=chunks))
        if found:
            break
    others = [(f"--algo {name}", partial(ALGORITHMS[name].plan, request)) for name in _BASELINES]
    if len(forest.ranks) <= _MOST_SEARCHED:
        fewest = replace(request, objective="fewest-trees")
        others.insert(0, ("--fewest-trees", partial(ALGORITHMS["optimal"].plan, fewest)))
    planned = [one for typed, plan in others for one in _fitting(form, typed, plan, choices)]
    found += sorted(planned, key=lambda one: -one[0])[:1]
    unit = forest.topology.unit_gb_per_s
    told = [f"{typed} ({float(rate) * unit:.4g} of {float(forest.rate) * unit:.4g} GB/s)" for rate, typed in found]
    return f"what fits: {', or '.join(told)}" if told else "nothing that was tried fits: plan for fewer GPUs"


def _fitting(form: Form, typed: str, plan: Callable[[], Forest], choices: Choices) -> list[tuple[Fraction, str]]:
    """The rate of a plan and what is typed for it, if it fits."""
    try:
        forest = plan()
        chunked = Chunked(lower(forest), choices, form.most_chunks)
        next(iter(form.texts(chunked, forest)))
    except (UnsupportedError, TopologyError, UsageError):  # It does not fit, or the algorithm has no plan here.
        return []
    return [(chunked.rate(forest), typed)]
