"""Algorithms of the registry as candidates of a benchmark.

All algorithms run in the same rank processes, on the same buffers and in native code, so they differ only in their
Program. Each gets its own size of messages at every size, chosen in a short trial among those of :data:`CHUNKS`.
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

#: The choice of communicators on this host; on a topology, the registry's alias.
AUTO = "auto"
#: All algorithms of the registry, and on this host also AUTO.
ALL = "all"
#: Sizes of messages to try, and the largest S for which inline flags are tried.
CHUNKS = (64 * KIB, 256 * KIB, MIB)
INLINE_BYTES = 64 * KIB
#: Runs of a trial for S up to a MiB and above, and the quantile that counts: other processes only add time.
_TRIAL_RUNS = (40, 4)
_QUIET = 0.25


@dataclass(frozen=True, slots=True)
class Planned:
    """An algorithm and its verified Program; with None, communicators choose."""

    name: str
    program: Program | None


@dataclass(frozen=True, slots=True)
class Job:
    """The job of rank processes: the ``planned`` algorithms in turns, or if empty the choice of communicators.

    ``where`` names the links of the plans.
    """

    collective: Collective
    planned: tuple[Planned, ...] = ()
    where: str = ""

    @property
    def names(self) -> list[str]:
        """The algorithms; the first is the reference of comparisons."""
        return [each.name for each in self.planned] or [AUTO]

    def participants(self, ranks: Runs) -> list[Participant]:
        """A participant per algorithm, all on ``ranks``."""
        if not self.planned:
            return [Participant("", "", ranks)]
        team = Team(ranks)
        return [
            Participant(each.name if place else "", "", AlgorithmRanks(team, each), of_blink=True)
            for place, each in enumerate(self.planned)
        ]


def this_host(collective: Collective) -> Request:
    """A request on the memory of one host, modelled as a switch (Blink, MLSys 2020, §3.5)."""
    topology = parse_spec(f"star:{collective.world_size}")
    return Request(topology, collective, topology.ranks)


def plan_algorithms(names: str, request: Request, *, here: bool, note: Callable[[str], None]) -> list[Planned]:
    """The Programs of ``names`` (``ring,one_hop``, or ``all``) for ``request``, the reference first.

    ``here``: the request is :func:`this_host`'s. With ``all``, algorithms that cannot serve the request or repeat an
    earlier Program are left out, and ``note`` is called with the reason. UnsupportedError if a named algorithm cannot
    serve the request, UsageError for an unknown name.
    """
    selected = [name.strip() for name in names.split(",") if name.strip()]
    everything = selected == [ALL]
    if everything:
        selected = [AUTO, *ALGORITHMS] if here else list(ALGORITHMS)
    if not selected or len(set(selected)) < len(selected) or (ALL in selected and not everything):
        raise UsageError(f"--algo {names}: expected {ALL}, a name, or different names separated by commas")
    for name in selected:
        algorithm(name)
    plans: list[Planned] = []
    same: dict[str, str] = {}
    for name in selected:
        if name == AUTO and here:
            plans.append(Planned(name, None))
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
            note(f"{name} is left out: its program is the same as that of {twin} here")
        else:
            plans.append(Planned(name, program))
    if not plans:
        raise UnsupportedError(f"no algorithm serves {request.collective.name} on {request.topology.name}")
    return plans


def _program(name: str, request: Request) -> Program:
    forest = algorithm(name).plan(request)
    program = lower(forest)
    verify(program, forest.topology)  # With staged PCIe, this differs from the request's topology.
    HostPlan(program)  # An error is raised once here, and not by every rank.
    return program


class SentProgram(NamedTuple):
    """A Program for ranks, as JSON ("": the library's choice), with the size of its messages in bytes."""

    program: str = ""
    chunk_bytes: int = 0
    label: str = ""

    def command(self) -> Command:
        """The command that sends it to a rank."""
        text = self.program.encode()
        return Command(
            Kind.PROGRAM, itemsize=1, in_blocks=1, period=len(text), count=self.chunk_bytes, fill=text, deadline_s=60
        )


@dataclass(slots=True)
class Team:
    """Ranks, with the Program that they got last."""

    ranks: Runs
    _sent: SentProgram = field(default=SentProgram())

    def run(self, way: SentProgram, commands: Sequence[Command]) -> RankTimes:
        """Run ``commands`` with Program ``way``, like :class:`blinkccl.bench.interleave.Runs`."""
        if way != self._sent:
            self.ranks.run([way.command()] * len(commands))
            self._sent = way
        return replace(self.ranks.run(commands), variant=way.label)


class AlgorithmRanks:
    """The ranks of ``team`` with one Program; a trial chooses the size of its messages."""

    def __init__(self, team: Team, planned: Planned) -> None:
        self._team, self._planned = team, planned
        self._tried: object = None
        self._way = SentProgram()

    def run(self, commands: Sequence[Command]) -> RankTimes:
        """Run ``commands``, like :class:`~blinkccl.bench.interleave.Runs`; the first run of a size has a trial."""
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
            if shorter < max(1, longest):  # With larger chunks, a slice is one message too.
                yield SentProgram(text, chunk, f"{chunk // KIB}K")

    def _fastest(self, ways: list[SentProgram], commands: Sequence[Command]) -> SentProgram:
        if len(ways) == 1:
            return ways[0]
        small = commands[0].count * commands[0].itemsize <= MIB
        trials = [
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
                seconds[way] = float(np.quantile(self._team.run(way, trials).seconds.max(0), _QUIET))
            except UnsupportedError:
                if way == ways[-1] and not seconds:
                    raise
        return min(seconds, key=lambda way: seconds[way])


def with_protocol(program: Program, protocol: str) -> Program:
    """The program with ``protocol`` on all channels."""
    return replace(program, channels=tuple(replace(channel, protocol=protocol) for channel in program.channels))
