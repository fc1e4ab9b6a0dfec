"""Participants of a benchmark of the host engine: blink's ranks, the probe and the peers.

Ranks are started here, or by torchrun, mpirun or srun; then rank 0 leads and the others follow. Commands and replies
are those of :mod:`blinkccl.bench.protocol`. Under a launcher, the measured communicator also carries them: rank 0
broadcasts all ranks' commands and gathers the replies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.bench.algorithms import Job
from blinkccl.bench.bound import MemoryBaseline, Probe, cores
from blinkccl.bench.candidate import CandidateLaunch, RankTimes, RunningCandidate, ended_by_signals, measured
from blinkccl.bench.interleave import BenchSettings, Interleaved, Participant
from blinkccl.bench.output import About, of_host
from blinkccl.bench.peers import registry
from blinkccl.bench.perform import Library, Performer
from blinkccl.bench.protocol import COMMAND, REPLY, Command, Kind, Reply, read_command, read_reply
from blinkccl.engines.native_library import load
from blinkccl.errors import CommunicationError, UnsupportedError

#: Number of ranks without -g and without a launcher.
DEFAULT_RANKS = 2
#: Ranks per core above which times measure the scheduler more than the library.
CROWDED = 4
#: Working set of the probe's first measurement: larger than any cache.
_LOOK_BYTES = 128 * 2**20
#: Variables of launchers; at least one is set in their processes (:mod:`blinkccl.runtime.environment`).
_MARKS = (
    "BLINK_RANK",
    "BLINK_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_STEP_NODELIST",
)
#: Bytes of a reply's text on the wire.
_TEXT = 1024

_VERSION = re.compile(r"\d+\.\d+(\.\d+)*")

Note = Callable[[str], None]


@contextmanager
def spawned(
    job: Job,
    settings: BenchSettings,
    peers: Sequence[tuple[str, str | None]],
    note: Note,
) -> Iterator[tuple[Interleaved, About]]:
    """Start blink's ranks on this host, beside ``peers`` (:func:`blinkccl.bench.peers.registry.parse`)."""
    load()  # An error is raised once here, and not by every rank.
    ranks = job.collective.world_size
    if ranks > CROWDED * cores():
        note(f"{ranks} ranks share {cores()} cores: the start takes long, and times are mostly waits for a core")
    with ended_by_signals(), ExitStack() as stack:
        own = stack.enter_context(RunningCandidate(registry.own(ranks, settings.deadline_s)))
        participants, libraries = job.participants(own), {}
        for name, prefix in peers:
            for participant, library in _started(registry.launches(name, prefix, ranks, cores()), stack, note):
                participants.append(participant)
                libraries[participant.name] = library
        probe, baseline = _probe(ranks, stack)
        yield (
            Interleaved(job.collective, settings, participants, probe, note),
            of_host(job, settings, own.pids, None, baseline, libraries),
        )


@contextmanager
def led(job: Job, settings: BenchSettings, own: Leader, launcher: str) -> Iterator[tuple[Interleaved, About]]:
    """Lead the ranks that ``launcher`` started."""
    with ExitStack() as stack:
        probe, baseline = _probe(job.collective.world_size, stack)
        yield (
            Interleaved(job.collective, settings, job.participants(own), probe),
            of_host(job, settings, own.pids, launcher, baseline, {}),
        )


def _started(launches: Sequence[CandidateLaunch], stack: ExitStack, note: Note) -> Iterator[tuple[Participant, str]]:
    """The variants of one peer that start; ``note`` is called for the others."""
    for launch in launches:
        try:
            candidate = stack.enter_context(RunningCandidate(launch))
        except CommunicationError as error:
            note(f"continuing without {launch.title}: {error}")
            continue
        # gloo has no version of its own; the header has torch's.
        version = _VERSION.search(candidate.library) if launch.name != "gloo" else None
        yield (
            Participant(f"{launch.name} {version[0]}" if version else launch.name, launch.variant, candidate),
            candidate.library,
        )


def _probe(ranks: int, stack: ExitStack) -> tuple[Probe | None, MemoryBaseline | None]:
    try:
        probe = stack.enter_context(Probe(ranks))
    except UnsupportedError:
        return None, None  # No compiler, as the header states.
    return probe, probe.baseline(_LOOK_BYTES)


def launcher(environ: Mapping[str, str]) -> str | None:
    """The launcher that started this process as one of several ranks; None without one."""
    if not any(mark in environ for mark in _MARKS):
        return None
    from blinkccl.runtime.environment import launch

    job = launch(environ)
    return job.launcher if job.world_size > 1 else None


class Leader:
    """Rank 0, which gives commands to all ranks including itself."""

    def __init__(self, communicator: Any, library: Library) -> None:
        self._communicator = communicator
        self._performer = Performer(library)
        self.pids: list[int] = _pids(communicator)

    def run(self, commands: Sequence[Command]) -> RankTimes:
        """Run ``commands``, like :meth:`blinkccl.bench.candidate.RunningCandidate.run`."""
        own = _shared(self._communicator, [command.pack() for command in commands])
        replies = np.split(_work(self._communicator, self._performer, own), len(commands))
        return measured([read_reply(reply.tobytes()) for reply in replies])

    def close(self) -> None:
        """Send QUIT to all ranks."""
        _shared(self._communicator, [Command(Kind.QUIT).pack()] * self._communicator.size)


def follow(communicator: Any, library: Library) -> None:
    """Perform rank 0's commands until QUIT, as any other rank."""
    performer = Performer(library)
    _pids(communicator)
    while read_command((frame := _shared(communicator))[: COMMAND.size])[0].kind is not Kind.QUIT:
        _work(communicator, performer, frame)


def _pids(communicator: Any) -> list[int]:
    pids = np.zeros(communicator.size, np.int64)
    communicator.allgather(np.array([os.getpid()], np.int64), pids)
    return [int(pid) for pid in pids]


def _shared(communicator: Any, frames: Sequence[bytes] = ()) -> bytes:
    """This rank's frame of the ``frames`` of rank 0."""
    lengths = np.zeros(communicator.size, np.int64)
    lengths[: len(frames)] = [len(frame) for frame in frames]
    communicator.broadcast(lengths, root=0)
    data = np.zeros(lengths.sum(), np.uint8)
    if frames:
        data[:] = np.frombuffer(b"".join(frames), np.uint8)
    communicator.broadcast(data, root=0)
    return bytes(np.split(data, np.cumsum(lengths))[communicator.rank])


def _work(communicator: Any, performer: Performer, frame: bytes) -> NDArray[np.uint8]:
    """Perform a command, and gather the replies, padded to one size, at rank 0."""
    command, fill, expected = read_command(frame[: COMMAND.size])
    body = frame[COMMAND.size :]
    reply = performer.perform(command, body[:fill], body[fill : fill + expected])
    short = Reply(reply.status, reply.wrong, reply.seconds, reply.text.encode()[:_TEXT].decode(errors="ignore"))
    own = np.zeros(REPLY.size + 8 * command.iterations + _TEXT, np.uint8)
    packed = np.frombuffer(short.pack(), np.uint8)
    own[: packed.size] = packed
    replies = np.zeros(own.size * communicator.size, np.uint8) if communicator.rank == 0 else None
    communicator.gather(own, replies, root=0)
    return replies if replies is not None else own
