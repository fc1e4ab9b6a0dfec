"""Which process this is, and whether it still lives: read from Linux's /proc; elsewhere the answers are "unknown".

A process is told from later ones with the same number by its start time, in ticks since the host booted. Numbers are
those of a PID namespace: where /proc is another's, as after ``unshare --pid`` alone, nothing is known by number.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
#: In the flags of a process from before it closes its files and sockets until it is gone.
_EXITING = 0x4


@dataclass(frozen=True, slots=True)
class Stat:
    """A process's row in /proc; ``start`` is in clock ticks.

    ``ends``: it has ended, or is about to and may already have hung up.
    """

    state: str
    ends: bool
    parent: int
    start: int


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """The row of process ``pid``; None if there is no such process, or no /proc."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, also ")": the numbers begin behind the last one.
    fields = text[text.rfind(")") + 1 :].split()
    if len(fields) <= 19:
        return None
    ends = fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)
    return Stat(fields[0], ends, int(fields[1]), int(fields[19]))


def start_time(pid: int) -> int:
    """When process ``pid`` started, in ticks since boot; 0 where that is unknown."""
    row = stat(pid) if _numbers_are_ours() else None
    return row.start if row is not None else 0


def lives(pid: int, start: int) -> bool | None:
    """Whether the process that had number ``pid`` and started at ``start`` still runs; None: unknown here."""
    if not start or not _numbers_are_ours():
        return None
    row = stat(pid)
    return row is not None and row.start == start and not row.ends


def namespace(kind: str) -> int:
    """The inode of this process's namespace of ``kind`` ("net", "pid"); 0 where there are none."""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return 0


def number_here(pid: int, processes: int) -> int | None:
    """The number here of the process that is ``pid`` in the PID namespace with inode ``processes``.

    None: it cannot be seen from here, as from a container beside its own.
    """
    if not _numbers_are_ours():  # those in /proc are of other processes here, which a signal would then reach
        return None
    if processes in (0, namespace("pid")):
        return pid
    for folder in PROC.glob("[0-9]*"):
        try:
            if os.stat(folder / "ns/pid").st_ino != processes:
                continue
            numbers = re.search(r"^NSpid:(.*)$", (folder / "status").read_text(), re.MULTILINE)
        except OSError:  # it has ended, or is another user's
            continue
        if numbers is not None and int(numbers[1].split()[-1]) == pid:
            return int(folder.name)
    return None


def _numbers_are_ours() -> bool:
    """True if a number in /proc names the same process here."""
    try:
        return os.readlink(PROC / "self") == str(os.getpid())
    except OSError:
        return False


def mark(pid: int, start: int | None = None) -> str:
    """A name for process ``pid``, which started at ``start``, that no other process of this boot has."""
    return f"{namespace('pid')}-{pid}-{start_time(pid) if start is None else start}"


def has_ended(marked: str) -> bool:
    """Whether the process of which ``marked`` begins with the :func:`mark` is known to have ended.

    Other namespaces' process numbers say nothing here.
    """
    match = re.match(r"([0-9]+)-([0-9]+)-([0-9]+)-", marked)
    return match is not None and int(match[1]) == namespace("pid") and lives(int(match[2]), int(match[3])) is False


def nearest_without(variable: str, proc: Path = PROC) -> tuple[int, int] | None:
    """Number and start time of the nearest ancestor that was started without ``variable``: the rank's launcher.

    None if every process up to the namespace's first one has it, as in a container that was made for one rank. An
    ancestor whose environment is closed to us belongs to somebody else: it counts as the launcher.
    """
    wanted = variable.encode() + b"="
    pid = os.getppid()
    while pid > 0:
        row = stat(pid, proc)
        if row is None:
            return None
        try:
            environment = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            environment = []
        if not any(entry.startswith(wanted) for entry in environment):
            return pid, row.start
        pid = row.parent
    return None
