"""The report of a program's NCCL or MPI calls: lines that the library appends to the file of BLINK_REPORT.

One JSON object per line, from each process at the end of each of its communicators and at its exit::

    {"pid": 4711, "rank": 0, "nranks": 4, "comm": "3f2a…", "state": "blink", "why": "…", "collective": "allreduce",
     "dtype": "float32", "op": "sum", "least": 1024, "most": 65536, "program": 0, "protocol": "ll", "calls": 120,
     "bytes": 31457280}

``state`` is "blink", "nccl" or "mpi". ``least`` and ``most`` are the smallest and largest S of a call as defined by
nccl-tests, ``bytes`` is the sum over all calls. A line with ``mark`` "begin" comes with a rank's first call, and one
with "end" after its other lines: a rank without "end" was killed before it could report. Marks have no ``state``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from blinkccl.schema import SCHEMA_VERSION

#: Maximum bytes of a report to read.
MAX_BYTES = 64 << 20
#: Prefix of the reason that NCCL ran all calls of a communicator if a compiler for its GPUs is missing or fails.
NOT_COMPILED = "the plan's code was not compiled: "


class ReportLine(msgspec.Struct, frozen=True):
    """One line; a line about a whole communicator has no collective and no calls."""

    pid: int
    rank: int
    nranks: int
    comm: str
    state: str = ""
    why: str = ""
    collective: str = ""
    dtype: str = ""
    op: str = ""
    least: int = 0
    most: int = 0
    program: int = -1
    protocol: str = ""
    calls: int = 0
    bytes: int = 0
    mark: str = ""


class ReportedRank(msgspec.Struct, frozen=True, order=True):
    """A rank of a process."""

    rank: int
    pid: int


class ReportedCalls(msgspec.Struct, frozen=True):
    """Calls of a communicator that ran in the same way; ``calls`` and ``bytes`` count the busiest rank."""

    collective: str
    dtype: str
    op: str
    least: int
    most: int
    state: str
    protocol: str
    calls: int
    bytes: int
    why: str


class ReportedCommunicator(msgspec.Struct, frozen=True):
    """A communicator, its processes in the order of the ranks, and its calls."""

    comm: str
    nranks: int
    pids: list[int]
    rows: list[ReportedCalls]


@dataclass(frozen=True)
class CallReport:
    """A whole report. ``begun``: ranks that made calls; ``silent``: ranks killed before they could report.

    ``reported``: the ``groups`` with a report from at least one rank. ``unread``: the number of invalid lines.
    """

    groups: tuple[ReportedCommunicator, ...]
    reported: tuple[ReportedCommunicator, ...] = ()
    unread: int = 0
    begun: tuple[ReportedRank, ...] = ()
    silent: tuple[ReportedRank, ...] = ()

    @property
    def processes(self) -> int:
        """The number of processes in reported communicators."""
        return len({pid for group in self.reported for pid in group.pids})

    def calls(self, state: str) -> int:
        """The number of calls with this state, of the busiest rank per communicator."""
        return sum(row.calls for group in self.groups for row in group.rows if row.state == state)

    def not_compiled(self) -> dict[str, int]:
        """The compilers' messages, each with the number of communicators whose calls all went to NCCL because of it."""
        communicators: Counter[str] = Counter()
        for group in self.groups:
            reasons = (row.why.partition(NOT_COMPILED)[2] for row in group.rows)
            communicators.update([reason for reason in reasons if reason][:1])
        return dict(communicators)

    def document(self, command: Sequence[str], exit_code: int, other: str = "nccl") -> dict[str, object]:
        """The report as JSON; ``other`` is the state of calls that Blink did not run."""
        return {
            "schema_version": SCHEMA_VERSION,
            "command": list(command),
            "exit_code": exit_code,
            "used": bool(self.groups),
            "calls": {"blink": self.calls("blink"), other: self.calls(other)},
            "communicators": [msgspec.to_builtins(group) for group in self.groups],
            "silent": [msgspec.to_builtins(rank) for rank in self.silent],
            "unread_lines": self.unread,
        }


def read_call_report(data: bytes) -> CallReport:
    """The report in ``data``; invalid lines, as from a process that was killed while it wrote, are counted."""
    lines_of: dict[str, list[ReportLine]] = {}
    unread = 0
    for text in data.splitlines():
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text.decode(errors="replace"), type=ReportLine)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            unread += 1
            continue
        lines_of.setdefault(line.comm, []).append(line)
    marks = Counter((line.comm, line.rank, line.pid, line.mark) for lines in lines_of.values() for line in lines)
    begun = {(comm, rank, pid) for comm, rank, pid, mark in marks if mark == "begin"}
    silent = {key for key in begun if marks[*key, "begin"] > marks[*key, "end"]}
    groups = {comm: _group(comm, lines) for comm, lines in lines_of.items()}
    reported = tuple(groups[comm] for comm, lines in lines_of.items() if any(line.mark != "begin" for line in lines))
    return CallReport(tuple(groups.values()), reported, unread, _ranks(begun), _ranks(silent))


def _ranks(keys: set[tuple[str, int, int]]) -> tuple[ReportedRank, ...]:
    return tuple(sorted({ReportedRank(rank, pid) for _, rank, pid in keys}))


def _group(comm: str, lines: Sequence[ReportLine]) -> ReportedCommunicator:
    by_way: dict[tuple[str, ...], list[ReportLine]] = {}
    for line in lines:
        if line.calls or line.why:
            key = (line.collective, line.dtype, line.op, line.state, line.protocol, line.why)
            by_way.setdefault(key, []).append(line)
    rows = [_row(same) for same in by_way.values()]
    rows.sort(key=lambda row: (row.collective, row.dtype, row.op, row.least, row.state))
    pids = dict.fromkeys(line.pid for line in sorted(lines, key=lambda line: line.rank))
    return ReportedCommunicator(comm, max(line.nranks for line in lines), list(pids), rows)


def _row(same: Sequence[ReportLine]) -> ReportedCalls:
    per_rank: dict[tuple[int, int], tuple[int, int]] = {}
    for line in same:
        calls, size = per_rank.get((line.pid, line.rank), (0, 0))
        per_rank[line.pid, line.rank] = calls + line.calls, size + line.bytes
    calls, size = max(per_rank.values())
    one = same[0]
    least, most = min(line.least for line in same), max(line.most for line in same)
    return ReportedCalls(one.collective, one.dtype, one.op, least, most, one.state, one.protocol, calls, size, one.why)
