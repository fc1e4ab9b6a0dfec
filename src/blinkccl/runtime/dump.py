"""What a live job waits for: the shared segments of a process's groups, read from outside.

Any process of the job will do: all ranks of a host have the segment open. It is found through /proc/PID/fd, mapped
for reading, and says of every rank which call it is in, what it waits for and since when. Nothing is written or
locked, so the job does not notice. Where a rank's Python program stands its process says itself, where it is asked
(:func:`with_lines`). What is read is a picture of running processes: it may be torn. A rank's process is named by its
number here, or where it cannot be seen from here, as in a container beside this one, by that of its own PID namespace.

A rank holds a lock on its byte of the segment as long as its process lives; that is asked for, not taken.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines import native_library as native
from blinkccl.engines.host import awaited, failure_of, statuses
from blinkccl.engines.host_plan import STAGES
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.runtime import python_line
from blinkccl.runtime.process import PROC, number_here, stat

#: The name of a segment's memory file, as /proc shows it.
_SEGMENT = "/memfd:blink-segment"
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, process


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of a group; where it waits, ``awaits`` says what for and ``peer`` for whom.

    ``state`` is "absent" (has not come yet), "left" (closed its group), "gone" (its process ended), "stopped" (by a
    signal or a debugger), "waiting", "running" (inside call number ``calls``) or "between calls". ``line`` is where its
    Python program stands, where it says it. ``elsewhere``: ``pid`` is no number of a process that is seen from here.
    """

    rank: int
    pid: int
    state: str
    calls: int
    call: str | None = None
    awaits: str | None = None
    peer: int | None = None
    channel: int | None = None
    share: int | None = None
    stage: str | None = None
    chunk: int | None = None
    waiting_s: float | None = None
    line: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group: ``segment`` is the inode of its memory, ``failure`` what ended it, if anything has."""

    segment: int
    size: int
    failure: str | None
    ranks: tuple[RankState, ...]

    def awaited(self) -> dict[int, list[int]]:
        """Whom the waiting ranks wait for in the end (of a circle, its lowest), each with those that wait for it."""
        found: dict[int, list[int]] = {}
        for rank in self.ranks:
            if rank.peer is not None:
                found.setdefault(self._end(rank), []).append(rank.rank)
        return found

    def _end(self, rank: RankState) -> int:
        passed: list[int] = []
        while rank.peer is not None and rank.rank not in passed:
            passed.append(rank.rank)
            rank = self.ranks[rank.peer]
        return rank.rank if rank.peer is None else min(passed[passed.index(rank.rank) :])

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "segment": self.segment,
            "size": self.size,
            "failure": self.failure,
            "ranks": [asdict(rank) for rank in self.ranks],
            "awaited": [{"rank": rank, "by": by} for rank, by in self.awaited().items()],
        }


def groups_of(pid: int) -> list[GroupState]:
    """The groups that process ``pid`` is in, the largest first.

    UnsupportedError if there is no such process, it belongs to somebody else, it is in no group, its groups are of
    another version of this package, or this process is itself a rank of one of them.
    """
    return sorted((_group(found) for found in _segments(pid)), key=lambda group: -group.size)


def with_lines(groups: list[GroupState]) -> list[GroupState]:
    """The groups with the line of Python at which each living rank stands; each process is asked once."""
    asked: dict[int, str] = {}
    for rank in (rank for group in groups for rank in group.ranks):
        if rank.state in ("waiting", "running", "between calls") and rank.pid not in asked and not rank.elsewhere:
            asked[rank.pid] = python_line.ask(rank.pid)
    return [
        replace(
            group,
            ranks=tuple(replace(rank, line="" if rank.elsewhere else asked.get(rank.pid, "")) for rank in group.ranks),
        )
        for group in groups
    ]


def _segments(pid: int) -> list[Path]:
    """One path below /proc per segment."""
    found: dict[int, Path] = {}
    try:
        for path in sorted((PROC / str(pid) / "fd").iterdir(), key=lambda entry: int(entry.name)):
            inode = _segment_at(path)
            if inode is not None:
                found.setdefault(inode, path)
    except FileNotFoundError:
        raise UnsupportedError(f"there is no process {pid} on this machine") from None
    except PermissionError:
        who = "as the job's user, or as root" if os.geteuid() else "in the job's container: this root may not see it"
        raise UnsupportedError(f"process {pid} belongs to another user, or has ended; run this {who}") from None
    if not found:
        raise UnsupportedError(
            f"process {pid} is in no group of Blink: it is no rank, has not met the others yet, or has closed its group"
        )
    if found.keys() & {_segment_at(path) for path in (PROC / "self/fd").iterdir()}:
        # Whoever closes a second descriptor of a file gives up all its locks: the others would take this rank for dead.
        raise UnsupportedError(f"this process is a rank of a group of process {pid}; look at it from another process")
    return list(found.values())


def _segment_at(path: Path) -> int | None:
    """The inode of the segment that is open there; None: something else is, or nothing by now."""
    try:
        return path.stat().st_ino if os.readlink(path).startswith(_SEGMENT) else None
    except FileNotFoundError:
        return None


def _group(path: Path) -> GroupState:
    with _mapped(path) as (fd, address, size):
        try:
            rows = statuses(address, size)
        except CommunicationError:
            raise UnsupportedError(
                f"the group at {path} is of another version of blink-ccl; use the blink of the job's own environment"
            ) from None
        failure = failure_of(address, size)
        ranks = tuple(_rank(rank, row, _lives(fd, rank, rows)) for rank, row in enumerate(rows))
        return GroupState(os.fstat(fd).st_ino, len(rows), None if failure is None else str(failure), ranks)


@contextmanager
def _mapped(path: Path) -> Iterator[tuple[int, int, int]]:
    """Descriptor, address and size of a segment, for reading."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnsupportedError(f"{path} cannot be opened: {error.strerror}; did its process end just now?") from None
    try:
        size = os.fstat(fd).st_size
        with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
            yield fd, np.frombuffer(memory, np.uint8).ctypes.data, size
    finally:
        os.close(fd)


def _lives(fd: int, rank: int, rows: list[native.RankStatus]) -> bool:
    """Whether the rank's process does."""
    joined = [(row.processes, row.pid) for row in rows if row.joined]
    if len(set(joined)) < len(joined):  # threads of one process: they hold no locks
        pid = number_here(rows[rank].pid, rows[rank].processes)
        row = None if pid is None else stat(pid)
        return pid is None or (row is not None and not row.ends)
    asked = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0))
    kind, *_ = _FLOCK.unpack(asked)
    return bool(kind != fcntl.F_UNLCK)


def _rank(rank: int, row: native.RankStatus, lives: bool) -> RankState:
    pid = number_here(row.pid, row.processes)
    state = _state(row, lives, pid)
    call = str(CollectiveCall.from_number(row.what, row.count)) if row.sequence else None
    found = RankState(rank, row.pid if pid is None else pid, state, row.sequence, call, elsewhere=pid is None)
    if state != "waiting":
        return found
    found = replace(
        found, awaits=awaited(row), peer=row.peer if row.peer >= 0 else None, waiting_s=row.waiting_us / 1e6
    )
    if native.WAITS[row.waits] not in ("message", "slot"):
        return found
    return replace(found, channel=row.channel, share=row.share, stage=STAGES[row.stage], chunk=row.chunk)


def _state(row: native.RankStatus, lives: bool, pid: int | None) -> str:
    if row.left:
        return "left"
    if not row.joined:
        return "absent"
    if not lives:
        return "gone"
    process = None if pid is None else stat(pid)
    if process is not None and process.state in "Tt":
        return "stopped"
    if row.waits:
        return "waiting"
    return "running" if row.sequence > row.finished else "between calls"
