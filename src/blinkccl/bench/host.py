"""Who takes part in a benchmark of the host engine? Ourselves, the probe and the peers, started and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from blinkccl.bench.about import About, of_host
from blinkccl.bench.bound import Probe, Weather, cores
from blinkccl.bench.contender import Contender, Team
from blinkccl.bench.interleave import Entry, Interleaved, Runs, Settings
from blinkccl.bench.measure import check_memory
from blinkccl.bench.peers import registry
from blinkccl.bench.sizes import block_count
from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.spec import Collective
from blinkccl.engines.native_library import load
from blinkccl.errors import CommunicationError, ScheduleError, UnsupportedError

#: Without -g, and without a launcher.
DEFAULT_RANKS = 2
#: What the probe's first look at the memory uses: more than any cache.
_LOOK_BYTES = 128 * 2**20
_VERSION = re.compile(r"\d+\.\d+(\.\d+)*")

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a benchmark needs, running."""

    interleaved: Interleaved
    about: About


def check(settings: Settings) -> None:
    """Refuse what makes no sense, before anything starts.

    Raises
    ------
    ScheduleError
        If a number is out of range.
    UnsupportedError
        If operation or element type is unknown.
    """
    operation(settings.op)
    element_type(settings.dtype)
    for name, value, least in (
        ("-n", settings.iterations, 1),
        ("-w", settings.warmup, 0),
        ("--rounds", settings.rounds, 1),
        ("--timeout", settings.deadline_s, 1),
    ):
        if value < least:
            raise ScheduleError(f"{name} must be at least {least}, got {value}")


def check_sizes(collective: Collective, settings: Settings, sizes: Sequence[int]) -> None:
    """Refuse sizes that this machine has no memory for.

    Raises
    ------
    ScheduleError
        Naming what is needed and what there is.
    """
    itemsize = element_type(settings.dtype).itemsize
    for size in sizes:
        # One contender at a time holds buffers; what it keeps aside is small (pattern.py).
        check_memory(collective, block_count(collective, size, itemsize) * itemsize, copies=1)


@contextmanager
def spawned(
    collective: Collective, settings: Settings, peers: Sequence[tuple[str, str | None]], note: Note
) -> Iterator[Run]:
    """Ranks of our own on this host, beside ``peers`` (:func:`blinkccl.bench.peers.registry.parse`).

    Raises
    ------
    UnsupportedError
        If the native library or a peer is not installed.
    CommunicationError
        If our ranks, or all variants of a peer, do not start.
    """
    load()  # Refused here, it is said once and not by every rank.
    ranks = collective.world_size
    with ExitStack() as stack:
        own = stack.enter_context(Contender(registry.own(ranks, settings.deadline_s)))
        entries, said = [Entry("", "", own)], {}
        for name, prefix in peers:
            for entry, library in _started(registry.teams(name, prefix, ranks, cores()), stack, note):
                entries.append(entry)
                said[entry.name] = library
        probe, weather = _probe(ranks, stack)
        yield Run(
            Interleaved(collective, settings, entries, probe, note),
            of_host(collective, settings, own.pids, None, weather, said),
        )


@contextmanager
def led(
    collective: Collective, settings: Settings, own: Runs, pids: Sequence[int], launcher: str, note: Note
) -> Iterator[Run]:
    """Ranks that ``launcher`` started, led by this one."""
    with ExitStack() as stack:
        probe, weather = _probe(collective.world_size, stack)
        yield Run(
            Interleaved(collective, settings, [Entry("", "", own)], probe, note),
            of_host(collective, settings, pids, launcher, weather, {}),
        )


def _started(teams: Sequence[Team], stack: ExitStack, note: Note) -> Iterator[tuple[Entry, str]]:
    """The variants of one peer that start; one that does not is reported, unless it is the last hope."""
    running, failure = 0, None
    for team in teams:
        try:
            contender = stack.enter_context(Contender(team))
        except CommunicationError as error:
            failure = error
            note(f"goes on without {team.title}: {error}")
            continue
        running += 1
        # gloo has no version of its own: the header says torch's.
        version = _VERSION.search(contender.library) if team.name != "gloo" else None
        yield Entry(f"{team.name} {version[0]}" if version else team.name, team.variant, contender), contender.library
    if failure is not None and not running:
        raise failure


def _probe(ranks: int, stack: ExitStack) -> tuple[Probe | None, Weather | None]:
    try:
        probe = stack.enter_context(Probe(ranks))
    except UnsupportedError:
        return None, None  # No compiler; the header says so.
    return probe, probe.weather(_LOOK_BYTES)
