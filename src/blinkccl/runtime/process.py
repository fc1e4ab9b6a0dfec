"""Identity and life of processes, from Linux's /proc; on other systems the answers are "unknown".

A process number with its start time, in ticks since the host booted, is unique. Numbers belong to a PID namespace: if
/proc shows another one, as after ``unshare --pid`` alone, numbers give no information.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
#: Flag of an exiting process. The kernel sets it before it closes the files and sockets.
_EXITING = 0x4


@dataclass(frozen=True, slots=True)
class Stat:
    """A process's row in /proc; ``start`` is in clock ticks.

    ``ends``: it has ended, or is about to and may already have closed its connections.
    """

    state: str
    ends: bool
    parent: int
    start: int


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """Return the row of process ``pid``; None if there is no such process, or no /proc."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may contain anything, also ")": the numbers follow the last one.
    fields = text[text.rfind(")") + 1 :].split()
    if len(fields) <= 19:
        return None
    ends = fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)
    return Stat(fields[0], ends, int(fields[1]), int(fields[19]))


def start_time(pid: int) -> int:
    """Start time of process ``pid`` in ticks since boot; 0 if unknown."""
    row = stat(pid) if _numbers_are_ours() else None
    return row.start if row is not None else 0


def lives(pid: int, start: int) -> bool | None:
    """True if the process with number ``pid`` and start time ``start`` is alive; None: unknown on this system."""
    if not start or not _numbers_are_ours():
        return None
    row = stat(pid)
    return row is not None and row.start == start and not row.ends


def namespace(kind: str) -> int:
    """Return the inode of this process's namespace of ``kind`` ("net", "pid"); 0 on systems without namespaces."""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return 0


def number_here(pid: int, processes: int) -> int | None:
    """Return the local number of process ``pid`` of the PID namespace with inode ``processes``.

    None: it is not visible, as from a container beside its own.
    """
    if not _numbers_are_ours():  # here they belong to other processes, which a signal would reach
        return None
    if processes in (0, namespace("pid")):
        return pid
    for folder in PROC.glob("[0-9]*"):
        try:
            if os.stat(folder / "ns/pid").st_ino != processes:
                continue
            numbers = re.search(r"^NSpid:(.*)$", (folder / "status").read_text(), re.MULTILINE)
        except OSError:  # it has ended, or belongs to another user
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
    """Return a name for process ``pid``, which started at ``start``, that is unique in this boot."""
    return f"{namespace('pid')}-{pid}-{start_time(pid) if start is None else start}"


def has_ended(marked: str) -> bool:
    """True if the process whose :func:`mark` begins ``marked`` is known to have ended.

    For process numbers of other namespaces this is unknown.
    """
    match = re.match(r"([0-9]+)-([0-9]+)-([0-9]+)-", marked)
    return match is not None and int(match[1]) == namespace("pid") and lives(int(match[2]), int(match[3])) is False


def nearest_without(variable: str, proc: Path = PROC) -> tuple[int, int] | None:
    """Number and start time of the nearest ancestor that was started without ``variable``: the rank's launcher.

    None if every process up to the namespace's first one has it, as in a container that was made for one rank. An
    ancestor with an unreadable environment belongs to another user: it counts as the launcher.
    """
    prefix = variable.encode() + b"="
    pid = os.getppid()
    while pid > 0:
        row = stat(pid, proc)
        if row is None:
            return None
        try:
            environment = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            environment = []
        if not any(entry.startswith(prefix) for entry in environment):
            return pid, row.start
        pid = row.parent
    return None
