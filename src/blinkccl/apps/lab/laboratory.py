"""A laboratory that runs programs: a process per vertex, each in its namespace, and their controller.

Times are those of the machine's one clock: all sites begin at a time agreed in advance, and a collective ends with its
last site. The processes stay, so programs can run in turns.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blinkccl.apps.lab.layout import Layout
from blinkccl.apps.lab.namespaces import Namespaces, shape
from blinkccl.apps.lab.openmpi import launch
from blinkccl.apps.lab.worker import Done, GlooOpening, Opening, ProgramCall
from blinkccl.bench.candidate import RunningCandidate
from blinkccl.bench.pattern import TimedCall as Pattern
from blinkccl.bench.pattern import commands
from blinkccl.engines.sites import Sites
from blinkccl.engines.sockets import Stall
from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError, StalledError, UsageError
from blinkccl.schedule.program import Program

#: Command of a laboratory's process, which also distinguishes it from others.
_WORK = "from blinkccl.apps.lab import worker; worker.main"
#: Seconds for a process to start, to connect, and to answer beyond a timeout.
_START_S = 60.0
_CONNECT_S = 30.0
_GRACE_S = 2.0
#: Seconds within which errors with one cause arrive.
_TOGETHER_S = 0.5
#: Seconds between the order and the beginning, so that all sites have received it.
_LEAD_S = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """One collective: seconds, wrong elements in all, and the busy part of the processors' time."""

    seconds: float
    wrong: int
    busy: float


@dataclass
class _Process:
    """The process of a vertex, and the laboratory's end of the pipe to it."""

    vertex: int
    child: subprocess.Popen[bytes]
    pipe: Connection


class Laboratory:
    """Namespaces and processes for the programs whose paths a layout has; a context manager.

    Every call ends within its timeout, with a CommunicationError that names the missing vertices or the blocked link.
    The laboratory survives an error; the program that failed has to be opened again.
    """

    def __init__(self, layout: Layout, sites: Iterable[int]) -> None:
        self.layout = layout
        self._wanted = sorted(set(sites))
        self._stack = ExitStack()
        self._processes: dict[int, _Process] = {}
        #: Open programs by number, with the vertices that take part.
        self._open: dict[int, tuple[Sites, tuple[int, ...]]] = {}
        self._foreign: dict[int, RunningCandidate] = {}
        self._numbers = self._serial = 0

    def __enter__(self) -> Laboratory:
        try:
            self.namespaces = Namespaces(self.layout)
            self._stack.callback(self.namespaces.close)
            for vertex in self._wanted:
                self._start(vertex)
            self._answers(self._wanted, _START_S, "start", None)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, vertex: int) -> None:
        parent, child_end = Pipe()
        with self.namespaces.inside(vertex), child_end:
            child = subprocess.Popen(
                [sys.executable, "-c", f"{_WORK}({child_end.fileno()})"],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        process = _Process(vertex, child, parent)
        self._processes[vertex] = process
        self._stack.callback(_end, process)
        parent.send(vertex)

    def pid(self, vertex: int) -> int:
        """The process id of a vertex."""
        return self._processes[vertex].child.pid

    def kill(self, vertex: int) -> None:
        """Kill the process of a vertex, as if its host had died."""
        self._processes[vertex].child.send_signal(signal.SIGKILL)

    def reshape(self, part: float, links: Iterable[tuple[int, int]] | None = None, lossy: bool = False) -> None:
        """Shape these links (None: all), by (vertex, peer), to ``part`` of the layout's rate.

        ``lossy``: with a short queue that drops packets.
        """
        wanted = self.layout.port if links is None else links
        by_vertex: dict[int, list[str]] = {}
        for ends in wanted:
            by_vertex.setdefault(ends[0], []).append(shape(self.layout.port[ends], part, "change", lossy))
        for vertex, lines in by_vertex.items():
            self.namespaces.run(vertex, "tc", lines)

    def cut(self, a: int, b: int) -> None:
        """Take a link down, in both directions."""
        self.namespaces.turn(a, b, up=False)

    def join(self, a: int, b: int) -> None:
        """Bring a link up again."""
        self.namespaces.turn(a, b, up=True)

    def open(self, program: Program, buffer_bytes: int) -> int:
        """Connect the sites of a program; return its number for :meth:`run` and :meth:`close`.

        ``buffer_bytes``: size at each end of a connection.
        """
        sites = Sites(program)
        lacking = [vertex for vertex in sites.vertices if vertex not in self._processes]
        absent = [leg.path for leg in sites.legs if leg.path not in self.layout.receivers]
        if lacking or absent:
            raise UsageError(f"this laboratory was not laid out for vertices {lacking} and paths {absent[:3]}")
        addresses = {leg.path: self.layout.receivers[leg.path] for leg in sites.legs}
        opening = Opening(self._number(sites, sites.vertices), program, addresses, buffer_bytes, _CONNECT_S)
        self._ask(opening.number, _CONNECT_S, "connect", "open", opening)
        return opening.number

    def open_gloo(self, program: Program, order: tuple[int, ...]) -> int:
        """Open as :meth:`open`, but gloo does the AllReduce of ``program``, with its ranks (vertices) in this order."""
        lacking = [vertex for vertex in order if vertex not in self._processes or vertex not in self.layout.hosts]
        if lacking:
            raise UsageError(f"this laboratory was not laid out for gloo at vertices {lacking}")
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="blink-lab-")))
        number = self._number(Sites(program), order)
        ranks = program.ranks
        opening = GlooOpening(number, program.collective, ranks, order, str(folder / f"gloo-{number}"), _CONNECT_S)
        self._ask(number, _START_S, "join gloo", "open_gloo", opening)
        return number

    def open_mpi(self, program: Program) -> int:
        """Open as :meth:`open`, but Open MPI does the AllReduce of ``program``."""
        launched = launch({vertex: self.pid(vertex) for vertex in program.ranks})
        with self.namespaces.inside(program.ranks[0]):
            candidate = RunningCandidate(launched, _START_S)
        self._stack.callback(candidate.close)
        number = self._number(Sites(program), ())
        self._foreign[number] = candidate
        return number

    def _number(self, sites: Sites, vertices: tuple[int, ...]) -> int:
        self._numbers += 1
        self._open[self._numbers] = sites, vertices
        return self._numbers

    def close(self, number: int) -> None:
        """Close the connections of a program."""
        if number in self._foreign:
            self._foreign.pop(number).close()
        alive = [v for v in self._open[number][1] if self._processes[v].child.poll() is None]
        self._ask(number, _CONNECT_S, "hang up", "close", number, vertices=alive)
        del self._open[number]

    def run(self, number: int, pattern: Pattern, chunk_bytes: int, deadline_s: float) -> Run:
        """Run an open program once."""
        self._ask(number, deadline_s, "prepare", "prepare", ProgramCall(number, pattern, chunk_bytes, deadline_s))
        before, began = _processor_seconds(), time.monotonic() + _LEAD_S
        if number in self._foreign:
            work = replace(pattern, warmup=0, iterations=1, deadline_s=ceil(deadline_s))
            measured = self._foreign[number].run(commands(work))
            seconds, wrong = float(measured.seconds.max()), measured.wrong
        else:
            answers = self._ask(number, deadline_s + _LEAD_S, "finish", "go", began)
            done = [answer for answer in answers.values() if isinstance(answer, Done)]
            seconds, wrong = max(one.at for one in done) - began, sum(one.wrong for one in done)
        after, ended = _processor_seconds(), time.monotonic()
        spent = (after - before) / ((ended - began + _LEAD_S) * len(os.sched_getaffinity(0)))
        return Run(seconds, wrong, spent)

    def _ask(
        self, number: int, deadline_s: float, what: str, *command: Any, vertices: Sequence[int] | None = None
    ) -> dict[int, Any]:
        """The answers of all participants (or ``vertices``) to one command; ``what`` names it for error messages."""
        sites, everybody = self._open[number]
        recipients = everybody if vertices is None else vertices
        self._serial += 1
        for vertex in recipients:
            with suppress(OSError):  # then there will be no answer either
                self._processes[vertex].pipe.send((self._serial, *command))
        return self._answers(recipients, deadline_s, what, sites)

    def _answers(self, vertices: Sequence[int], deadline_s: float, what: str, sites: Sites | None) -> dict[int, Any]:
        """One answer of each vertex. A failure is sent to all others, so that none waits any longer."""
        answers = _Answers(self._serial, {v: self._processes[v].pipe for v in vertices})
        errors: list[Exception] = []
        deadline = time.monotonic() + deadline_s + _GRACE_S
        while answers.missing and (news := answers.next(deadline)) is not None:
            errors += [self._dead(v, sites) if error is None else error for v, error in news]
            # Sites that reach their timeouts report at the same time, and all reports together identify the link.
            if errors and deadline > (soon := time.monotonic() + _TOGETHER_S):
                deadline = soon
        if answers.missing and not errors:
            errors.append(DeadlineError(f"{_names(sites, answers.missing)} did not {what} within {deadline_s:g} s"))
        if not errors:
            return answers.values
        cause = _cause(errors)
        for vertex in list(answers.missing):
            with suppress(OSError):
                self._processes[vertex].pipe.send((self._serial, "fail", str(cause)))
        while answers.missing and answers.next(time.monotonic() + _GRACE_S) is not None:
            pass
        raise cause

    def _dead(self, vertex: int, sites: Sites | None) -> CommunicationError:
        """The error for a process that has ended."""
        child = self._processes[vertex].child
        try:
            code = child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return DeadlineError(f"the process of vertex {vertex} hung up and did not end")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if sites is not None and vertex in sites.program.ranks:
            return PeerLostError(sites.program.ranks.index(vertex), f"its process {how}", child.pid)
        return CommunicationError(f"the process {child.pid} of vertex {vertex} {how}; its own output says why")


class _Answers:
    """Answers from pipes, by vertex, to the command of a serial number; answers to earlier commands are dropped."""

    def __init__(self, serial: int, pipes: Mapping[int, Connection]) -> None:
        self._serial = serial
        self.missing = dict(pipes)
        self.values: dict[int, Any] = {}

    def next(self, deadline: float) -> list[tuple[int, CommunicationError | None]] | None:
        """Read the available or next answers; return their errors (None: a dead process), or None at the deadline."""
        ready = wait(list(self.missing.values()), max(0.0, deadline - time.monotonic()))
        errors: list[tuple[int, CommunicationError | None]] = []
        for vertex in [v for v, pipe in self.missing.items() if pipe in ready]:
            try:
                serial, kind, value = self.missing[vertex].recv()
            except (EOFError, OSError):
                serial, kind, value = self._serial, "error", None
            if serial != self._serial:
                continue
            del self.missing[vertex]
            if kind == "ok":
                self.values[vertex] = value
            else:
                errors.append((vertex, value))
        return errors if ready else None


def _cause(errors: Sequence[Exception]) -> Exception:
    """The error that explains the others: a dead process, or the link common to all stalls."""
    for error in errors:
        if isinstance(error, PeerLostError) and error.pid is not None:
            return error
    stalled = [error for error in errors if isinstance(error, StalledError)]
    stalls = [stall for error in stalled for stall in error.stalls]
    link = sentence(stalls)
    if link:
        return StalledError(link, stalls)
    return errors[0]


def stalled(stalls: Iterable[Stall]) -> list[Stall]:
    """The undelivered data of senders whose receivers wait for it; all other waits follow from these.

    If a link is only slow, senders behind it also hold back a few bytes from time to time. So senders with less than
    half of the largest amount are dropped.
    """
    waited, held = set(), []
    for stall in stalls:
        if stall.undelivered:
            held.append(stall)
        else:
            waited.add(stall.leg)
    blocked = [stall for stall in held if stall.leg in waited]
    most = max((stall.undelivered for stall in blocked), default=0)
    return [stall for stall in blocked if 2 * stall.undelivered >= most]


def stalled_links(stalls: Iterable[Stall]) -> list[tuple[int, int]]:
    """The links common to all legs of these stalls, or else the links of any leg; in the direction of the data."""
    links = [dict.fromkeys(pairwise(stall.leg.path)) for stall in stalls]
    shared = list(dict.fromkeys(link for leg_links in links for link in leg_links))
    common = [link for link in shared if all(link in leg_links for leg_links in links)]
    return common or shared


def sentence(stalls: Iterable[Stall]) -> str:
    """A hint for people; "" if the waits are inconclusive."""
    blocked = stalled(stalls)
    if not blocked:
        return ""
    named = " or ".join(f"{a} → {b}" for a, b in stalled_links(blocked))
    return f"nothing, or too little, comes over link {named}: {blocked[0].words}"


def _names(sites: Sites | None, vertices: Iterable[int]) -> str:
    return ", ".join(f"vertex {v}" if sites is None or v not in sites.vertices else sites.name(v) for v in vertices)


def _end(process: _Process) -> None:
    """Close the pipe, which ends a process; kill one that does not react."""
    process.pipe.close()
    try:
        process.child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.child.kill()
        process.child.wait()


def _processor_seconds() -> float:
    """Seconds of all processors so far, by the first line of /proc/stat, without idle and waiting time."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
