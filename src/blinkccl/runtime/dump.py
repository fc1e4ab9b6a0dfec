"""State of a live job: the shared segments of a process's groups, read from outside.

Any process of the job is enough, because all ranks of a host have the segment open. It is found through /proc/PID/fd
and mapped for reading. It shows each rank's current call, the reason for its wait and the start of the wait. Reading
writes and locks nothing, so the job is not affected. The state is that of running processes, so it may be
inconsistent. A rank's process is given by its number on this system. If it is not visible here, as in a container
beside this one, the number is that of its own PID namespace.

A rank holds a lock on its byte of the segment until its process ends; this module queries that lock without taking it.
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
from blinkccl.runtime.process import PROC, number_here, stat

#: Prefix of a segment's memory file in /proc.
_SEGMENT = "/memfd:blink-segment"
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, process


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of a group; while it waits, ``awaits`` is the reason and ``peer`` the rank waited for.

    ``state`` is "absent" (not connected yet), "remote" (on another host), "left" (closed its group), "gone" (its
    process ended), "stopped" (by a signal or a debugger), "waiting", "running" or "between calls". A running rank is
    inside call number ``calls``. ``elsewhere``: ``pid`` is not visible from this process.
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
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group: ``segment`` is the inode of its memory, ``failure`` the error that ended it, if any."""

    segment: int
    size: int
    failure: str | None
    ranks: tuple[RankState, ...]

    def awaited(self) -> dict[int, list[int]]:
        """The ranks at the end of each chain of waits (of a cycle, its lowest), each with the ranks waiting for it."""
        waiting: dict[int, list[int]] = {}
        for rank in self.ranks:
            if rank.peer is not None:
                waiting.setdefault(self._end(rank), []).append(rank.rank)
        return waiting

    def _end(self, rank: RankState) -> int:
        passed: list[int] = []
        while rank.peer is not None and rank.rank not in passed:
            passed.append(rank.rank)
            rank = self.ranks[rank.peer]
        return rank.rank if rank.peer is None else min(passed[passed.index(rank.rank) :])

    def document(self) -> dict[str, Any]:
        """Content for JSON."""
        return {
            "segment": self.segment,
            "size": self.size,
            "failure": self.failure,
            "ranks": [asdict(rank) for rank in self.ranks],
            "awaited": [{"rank": rank, "by": by} for rank, by in self.awaited().items()],
        }


def groups_of(pid: int) -> list[GroupState]:
    """The groups of process ``pid``, the largest first.

    Raises UnsupportedError if the process does not exist, belongs to another user, or is in no group; if its groups
    have another version of this package; or if this process is itself a rank of one of them.
    """
    return sorted((_group(path) for path in _segments(pid)), key=lambda group: -group.size)


def _segments(pid: int) -> list[Path]:
    """One path below /proc per segment."""
    paths: dict[int, Path] = {}
    try:
        for path in sorted((PROC / str(pid) / "fd").iterdir(), key=lambda entry: int(entry.name)):
            inode = _segment_at(path)
            if inode is not None:
                paths.setdefault(inode, path)
    except FileNotFoundError:
        raise UnsupportedError(f"there is no process {pid} on this machine") from None
    except PermissionError:
        reader = "as the job's user, or as root" if os.geteuid() else "in the job's container: this root may not see it"
        raise UnsupportedError(f"process {pid} belongs to another user, or has ended; run this {reader}") from None
    if not paths:
        raise UnsupportedError(
            f"process {pid} is in no group of Blink: it is no rank, has not joined its group yet, or has closed it"
        )
    if paths.keys() & {_segment_at(path) for path in (PROC / "self/fd").iterdir()}:
        # Closing a second descriptor of a file releases all locks on it: the others would consider this rank dead.
        raise UnsupportedError(f"this process is a rank of a group of process {pid}; look at it from another process")
    return list(paths.values())


def _segment_at(path: Path) -> int | None:
    """The inode of the segment at this descriptor; None for another file, or a closed one."""
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
    """True if the rank's process is alive."""
    joined = [(row.processes, row.pid) for row in rows if row.joined]
    if len(set(joined)) < len(joined):  # threads of one process, which hold no locks
        pid = number_here(rows[rank].pid, rows[rank].processes)
        row = None if pid is None else stat(pid)
        return pid is None or (row is not None and not row.ends)
    lock = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0))
    kind, *_ = _FLOCK.unpack(lock)
    return bool(kind != fcntl.F_UNLCK)


def _rank(rank: int, row: native.RankStatus, lives: bool) -> RankState:
    pid = number_here(row.pid, row.processes)
    state = _state(row, lives, pid)
    call = str(CollectiveCall.from_number(row.what, row.count)) if row.sequence else None
    current = RankState(rank, row.pid if pid is None else pid, state, row.sequence, call, elsewhere=pid is None)
    if state != "waiting":
        return current
    current = replace(
        current, awaits=awaited(row), peer=row.peer if row.peer >= 0 else None, waiting_s=row.waiting_us / 1e6
    )
    if native.WAITS[row.waits] not in ("message", "slot"):
        return current
    return replace(current, channel=row.channel, share=row.share, stage=STAGES[row.stage], chunk=row.chunk)


def _state(row: native.RankStatus, lives: bool, pid: int | None) -> str:
    if row.left:
        return "left"
    if row.remote:
        return "remote"
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
