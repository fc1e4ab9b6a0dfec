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
from math import ceil
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blinkccl.apps.lab.diagnosis import held_back, sentence
from blinkccl.apps.lab.layout import Layout
from blinkccl.apps.lab.namespaces import Namespaces, shape
from blinkccl.apps.lab.openmpi import launch
from blinkccl.apps.lab.site import Opening, among_sites, name_of
from blinkccl.apps.lab.worker import Done, GlooOpening, ProgramCall
from blinkccl.bench.candidate import RunningCandidate
from blinkccl.bench.pattern import TimedCall as Pattern
from blinkccl.bench.pattern import commands
from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError, StalledError, UsageError
from blinkccl.schedule.program import Program

#: Command of a laboratory's process, which also distinguishes it from others.
_WORK = "from blinkccl.apps.lab import worker; worker.main"
#: A namespace shows its devices in a /sys of its own, where UCX reads them.
_OWN_SYS = ("unshare", "--mount", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "sh")
#: Buffer at each end of a connection: a link continues while its receiver is busy for a millisecond. Data in it is
#: ahead of other trees: with twice as much, hybrid got 92.7 % of its plan instead of 96.0, in a broadcast on 8 GPUs of
#: a DGX-1V whose slowest links had 19 Mbit/s.
BUFFER_BYTES = 64 * 1024
#: Elements of a first call, in which connections are made.
_FIRST_ELEMENTS = 4096
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
        self._open: dict[int, tuple[Program, tuple[int, ...]]] = {}
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
                [*_OWN_SYS, sys.executable, "-c", f"{_WORK}({child_end.fileno()})"],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
                    **dict.fromkeys(("UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"), str(BUFFER_BYTES)),
                    "UCX_TLS": "tcp",
                },
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

    def open(self, program: Program) -> int:
        """Connect the sites of a program; return its number for :meth:`run` and :meth:`close`."""
        among = among_sites(program)
        lacking = [vertex for vertex in among.ranks if vertex not in self._processes]
        absent = [queue.path for queue in among.queues if queue.path not in self.layout.receivers]
        if lacking or absent:
            raise UsageError(f"this laboratory was not laid out for vertices {lacking} and paths {absent[:3]}")
        devices = {queue.path: self.layout.devices(queue.path) for queue in among.queues}
        opening = Opening(self._number(program, among.ranks), program, devices)
        addresses = self._ask(opening.number, _CONNECT_S, "open its networks", "open", opening)
        self._ask(opening.number, _CONNECT_S, "connect", "connect", opening.number, addresses)
        self.run(
            opening.number,
            Pattern(program.collective, _FIRST_ELEMENTS, in_place=False, check=False),
            BUFFER_BYTES,
            _CONNECT_S,
        )
        return opening.number

    def open_gloo(self, program: Program, order: tuple[int, ...]) -> int:
        """Open as :meth:`open`, but gloo does the AllReduce of ``program``, with its ranks (vertices) in this order."""
        lacking = [vertex for vertex in order if vertex not in self._processes or vertex not in self.layout.hosts]
        if lacking:
            raise UsageError(f"this laboratory was not laid out for gloo at vertices {lacking}")
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="blink-lab-")))
        number = self._number(program, order)
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
        number = self._number(program, ())
        self._foreign[number] = candidate
        return number

    def _number(self, program: Program, vertices: tuple[int, ...]) -> int:
        self._numbers += 1
        self._open[self._numbers] = program, vertices
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
        program, everybody = self._open[number]
        recipients = everybody if vertices is None else vertices
        self._serial += 1
        for vertex in recipients:
            with suppress(OSError):  # then there will be no answer either
                self._processes[vertex].pipe.send((self._serial, *command))
        return self._answers(recipients, deadline_s, what, program)

    def _answers(
        self, vertices: Sequence[int], deadline_s: float, what: str, program: Program | None
    ) -> dict[int, Any]:
        """One answer of each vertex. A failure is sent to all others, so that none waits any longer."""
        answers = _Answers(self._serial, {v: self._processes[v].pipe for v in vertices})
        errors: dict[int, Exception] = {}
        deadline = time.monotonic() + deadline_s
        while answers.missing and (news := answers.next(deadline)) is not None:
            errors |= {v: self._dead(v, program) if error is None else error for v, error in news}
            # A process that dies and its peers that lose it report at the same time.
            if errors and deadline > (soon := time.monotonic() + _TOGETHER_S):
                deadline = soon
        if not answers.missing and not errors:
            return answers.values
        late = list(answers.missing)
        # Read while all sites still receive, so that what is held back is held by a link.
        held = {} if errors or program is None else held_back(self.layout, among_sites(program), self.namespaces)
        why = str(next(iter(errors.values()), f"it did not {what} within {deadline_s:g} s"))
        for vertex in late:
            with suppress(OSError):
                self._processes[vertex].pipe.send((self._serial, "fail", why))
        waits: dict[int, Exception] = {}
        until = time.monotonic() + _GRACE_S
        while answers.missing and (news := answers.next(until)) is not None:
            waits |= {v: self._dead(v, program) if error is None else error for v, error in news}
        for error in (*errors.values(), *waits.values()):
            if getattr(error, "pid", None) is not None:
                raise error
        if errors:
            raise next(iter(errors.values()))
        if link := sentence(held, waits):
            raise StalledError(link)
        silent = list(answers.missing) or late
        reasons = "".join(f"; {error}" for error in list(waits.values())[:3])
        raise DeadlineError(f"{_names(program, silent)} did not {what} within {deadline_s:g} s{reasons}")

    def _dead(self, vertex: int, program: Program | None) -> CommunicationError:
        """The error for a process that has ended."""
        child = self._processes[vertex].child
        try:
            code = child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return DeadlineError(f"the process of vertex {vertex} hung up and did not end")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if program is not None and vertex in program.ranks:
            return PeerLostError(program.ranks.index(vertex), f"its process {how}", child.pid)
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


def _names(program: Program | None, vertices: Iterable[int]) -> str:
    return ", ".join(f"vertex {v}" if program is None else name_of(v, program.ranks) for v in vertices)


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
