"""Algorithms of the registry as candidates: one group of rank processes runs the Program that it was told last.

All of them run in the same processes on the same buffers, in native code, so what differs is the Program. How long its
messages are is chosen for each at every size, in a short trial among what :mod:`blinkccl.runtime.host_table` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.interleave import Participant, Runs
from blinkccl.bench.protocol import Command, Flag, Kind
from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import INLINE, HostPlan
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.runtime.host_table import KIB, MIB
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import to_json, to_text
from blinkccl.schedule.verifier import verify
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS, algorithm
from blinkccl.trees.algorithms.request import Request

#: What communicators choose by themselves; of a topology, the registry's alias.
AUTO = "auto"
#: All of the registry, and on this host's own memory also AUTO.
ALL = "all"
#: Sizes of messages that are tried, and up to what S those with their flags inside are.
CHUNKS = (64 * KIB, 256 * KIB, MIB)
INLINE_BYTES = 64 * KIB
#: Runs of a trial, of S up to a MiB and beyond; and which part of them counts, as others' work only adds.
_TRIAL_RUNS = (40, 4)
_QUIET = 0.25


@dataclass(frozen=True, slots=True)
class Planned:
    """An algorithm and its verified Program; None: what communicators choose."""

    name: str
    program: Program | None


@dataclass(frozen=True, slots=True)
class Job:
    """What rank processes are to run: ``planned`` algorithms in turns, or (none) what communicators choose.

    ``where`` names the links that were planned on.
    """

    collective: Collective
    planned: tuple[Planned, ...] = ()
    where: str = ""

    @property
    def names(self) -> list[str]:
        """The algorithms, the one to compare with first."""
        return [each.name for each in self.planned] or [AUTO]

    def participants(self, ranks: Runs) -> list[Participant]:
        """A participant per algorithm, all on these ranks."""
        if not self.planned:
            return [Participant("", "", ranks)]
        team = Team(ranks)
        return [
            Participant(each.name if place else "", "", AlgorithmRanks(team, each), ours=True)
            for place, each in enumerate(self.planned)
        ]


def this_host(collective: Collective) -> Request:
    """A request on what the ranks of one host have: to Blink that is a switch (Blink, MLSys 2020, §3.5)."""
    topology = parse_spec(f"star:{collective.world_size}")
    return Request(topology, collective, topology.ranks)


def plan_algorithms(names: str, request: Request, *, here: bool, note: Callable[[str], None]) -> list[Planned]:
    """The Programs of ``names`` (``ring,one_hop``, or ``all``) for ``request``, the first of them to compare with.

    ``here``: the request is :func:`this_host`'s. Of ``all``, those that do not serve this, or that come to the same
    Program as one before, are left out, and ``note`` is told why. UnsupportedError if one that was named does not
    serve this, UsageError if there is none of that name.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    everything = wanted == [ALL]
    if everything:
        wanted = [AUTO, *ALGORITHMS] if here else list(ALGORITHMS)
    if not wanted or len(set(wanted)) < len(wanted) or (ALL in wanted and not everything):
        raise UsageError(f"--algo {names}: expected {ALL}, a name, or different names with commas between them")
    for name in wanted:
        algorithm(name)
    found: list[Planned] = []
    same: dict[str, str] = {}
    for name in wanted:
        if name == AUTO and here:
            found.append(Planned(name, None))
            continue
        try:
            program = _program(name, request)
        except (UnsupportedError, TopologyError) as error:
            if not everything:
                raise
            note(f"without {name}: {error}")
            continue
        twin = same.setdefault(to_text(replace(program, forest_hash="")), name)
        if everything and twin != name:
            note(f"without {name}: here it is the same program as {twin}")
        else:
            found.append(Planned(name, program))
    if not found:
        raise UnsupportedError(f"no algorithm serves {request.collective.name} on {request.topology.name}")
    return found


def _program(name: str, request: Request) -> Program:
    forest = algorithm(name).plan(request)
    program = lower(forest)
    verify(program, forest.topology)  # where PCIe is staged, not the request's own
    HostPlan(program)  # refused here, it is said once and not by every rank
    return program


class SentProgram(NamedTuple):
    """What ranks are told: a Program as JSON ("": what the library chooses), and how long its messages are."""

    program: str = ""
    chunk_bytes: int = 0
    label: str = ""

    def command(self) -> Command:
        """As a command for a rank."""
        text = self.program.encode()
        return Command(
            Kind.PROGRAM, itemsize=1, in_blocks=1, period=len(text), count=self.chunk_bytes, fill=text, deadline_s=60
        )


@dataclass(slots=True)
class Team:
    """Ranks that run what they were told last."""

    ranks: Runs
    _told: SentProgram = field(default=SentProgram())

    def run(self, way: SentProgram, commands: Sequence[Command]) -> RankTimes:
        """As :class:`blinkccl.bench.interleave.Runs`, in this ``way``."""
        if way != self._told:
            self.ranks.run([way.command()] * len(commands))
            self._told = way
        return replace(self.ranks.run(commands), variant=way.label)


class AlgorithmRanks:
    """The ranks of ``team`` with one Program, whose messages have the size that a trial finds."""

    def __init__(self, team: Team, planned: Planned) -> None:
        self._team, self._planned = team, planned
        self._tried: object = None
        self._way = SentProgram()

    def run(self, commands: Sequence[Command]) -> RankTimes:
        """As :class:`blinkccl.bench.interleave.Runs`; the first run of a size begins with the trial."""
        first = commands[0]
        work = (first.collective, first.count, first.dtype, first.op, first.flags & (Flag.IN_PLACE | Flag.SHARED))
        if work != self._tried:
            self._way, self._tried = self._fastest(list(self._ways(first)), commands), work
        return self._team.run(self._way, commands)

    def _ways(self, command: Command) -> Iterable[SentProgram]:
        program = self._planned.program
        if program is None:
            yield SentProgram()
            return
        block = command.count * command.itemsize
        longest = max((ceil((part.stop - part.start) * block) for part in program.slices), default=0)
        text = to_json(program)
        if block * program.collective.total_blocks() <= INLINE_BYTES:
            yield SentProgram(to_json(with_protocol(program, INLINE)), CHUNKS[0], INLINE)
        for shorter, chunk in zip((0, *CHUNKS), CHUNKS, strict=False):
            if shorter < max(1, longest):  # beyond that, a slice is one message already
                yield SentProgram(text, chunk, f"{chunk // KIB}K")

    def _fastest(self, ways: list[SentProgram], commands: Sequence[Command]) -> SentProgram:
        if len(ways) == 1:
            return ways[0]
        small = commands[0].count * commands[0].itemsize <= MIB
        asked = [
            replace(
                command,
                warmup=1,
                iterations=_TRIAL_RUNS[0 if small else 1],
                flags=command.flags & ~Flag.CHECK,
                expected=b"",
            )
            for command in commands
        ]
        seconds: dict[SentProgram, float] = {}
        for way in ways:
            try:
                seconds[way] = float(np.quantile(self._team.run(way, asked).seconds.max(0), _QUIET))
            except UnsupportedError:
                if way == ways[-1] and not seconds:
                    raise
        return min(seconds, key=lambda way: seconds[way])


def with_protocol(program: Program, protocol: str) -> Program:
    """The program with this protocol on all channels."""
    return replace(program, channels=tuple(replace(channel, protocol=protocol) for channel in program.channels))
