"""The process of one vertex of a laboratory: it does what the laboratory says, until that is gone.

It is started in its namespace with the number of a descriptor: one end of a pipe that both ways carries pickled
messages. A message is a serial number and a command with its arguments; the answer has the same number, and "ok" with
a value or "error" with an exception.
"""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from blinkccl.bench.pattern import Work as Pattern
from blinkccl.bench.pattern import commands, fill, wrong_elements
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.engines import sockets
from blinkccl.engines.buffers import RankBuffers, allocate
from blinkccl.errors import BlinkError, CommunicationError
from blinkccl.schedule.program import Program

#: Where every worker listens, in a namespace of its own.
PORT = 7000


@dataclass(frozen=True, slots=True)
class Opening:
    """A program to be connected: its number, whom to call for each leg, and the bytes of a connection's buffers."""

    number: int
    program: Program
    addresses: Mapping[tuple[int, ...], str]
    buffer_bytes: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Execution:
    """A call of an opened program, ``count`` elements per block, all in chunks of ``chunk_bytes``."""

    number: int
    pattern: Pattern
    chunk_bytes: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """When a site had done its part, by the clock that all processes share, and how many elements were wrong."""

    at: float
    wrong: int


@dataclass
class _Prepared:
    """An execution that waits for its beginning."""

    site: sockets.Site
    work: sockets.Work
    buffers: RankBuffers
    execution: Execution


class Worker:
    """What a process holds: connections by program."""

    def __init__(self, vertex: int, control: Connection) -> None:
        self._vertex, self._control = vertex, control
        self._listener = sockets.listen("", PORT)
        self._open: dict[int, tuple[sockets.Sites, sockets.Connections]] = {}
        self._prepared: _Prepared | None = None

    def open(self, opening: Opening) -> None:
        """Connects to the other sites of a program."""
        sites = sockets.Sites(opening.program)
        connections = sockets.connect(
            sites,
            self._vertex,
            self._listener,
            lambda leg: (opening.addresses[leg.path], PORT),
            opening.deadline_s,
            opening.buffer_bytes,
        )
        self._open[opening.number] = sites, connections

    def close(self, number: int) -> None:
        """Hangs up; nothing where it failed to open."""
        found = self._open.pop(number, None)
        if found is not None:
            found[1].close()

    def prepare(self, execution: Execution) -> None:
        """Fills the buffers of a rank."""
        sites, connections = self._open[execution.number]
        program, pattern = sites.program, execution.pattern
        row = element_type(pattern.dtype)
        call = CollectiveCall.of(program.collective, pattern.dtype, pattern.count, pattern.op)
        work = sockets.Work.of(program, call, row, None, execution.chunk_bytes)
        buffers = allocate(program.collective, pattern.count, row, pattern.in_place)
        rank = self._rank(program)
        if rank is not None and (source := buffers.inputs[rank]) is not None:
            command = commands(pattern)[rank]
            fill(source.view(np.uint8), command.fill, command.in_blocks, row.itemsize)
        self._prepared = _Prepared(sockets.Site(sites, self._vertex, connections), work, buffers, execution)

    def go(self, at: float) -> Done:
        """Does what was prepared, from this time on, and checks what came out."""
        prepared, self._prepared = self._prepared, None
        assert prepared is not None
        time.sleep(max(0.0, at - time.monotonic()))
        left = at + prepared.execution.deadline_s - time.monotonic()
        sockets.drive([prepared.site], prepared.work, prepared.buffers, left, (self._control.fileno(), self._told))
        ended = time.monotonic()
        pattern = prepared.execution.pattern
        rank = self._rank(prepared.site.sites.program)
        wrong = 0
        if rank is not None and pattern.check and (target := prepared.buffers.outputs[rank]) is not None:
            command = commands(pattern)[rank]
            wrong = wrong_elements(target.view(np.uint8), command.expected, command.out_blocks, command.itemsize)
        return Done(ended, wrong)

    def _rank(self, program: Program) -> int | None:
        return program.ranks.index(self._vertex) if self._vertex in program.ranks else None

    def _told(self) -> None:
        """While a collective runs there is one message only: that another site has failed."""
        raise CommunicationError(str(self._control.recv()[-1]))


def main(descriptor: int) -> None:
    """Does one command after the other, until the laboratory hangs up or is killed."""
    # The laboratory may be killed while this process waits for something else than its words.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    for number in (signal.SIGINT, signal.SIGHUP):  # to a whole group of processes: the laboratory decides
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        _serve(Connection(descriptor))


def _serve(control: Connection) -> None:
    worker = Worker(control.recv(), control)
    control.send((0, "ok", None))
    while True:
        serial, name, *arguments = control.recv()
        if name == "fail":  # what this was about is over here
            continue
        try:
            answer: tuple[int, str, Any] = serial, "ok", getattr(worker, name)(*arguments)
        except (BlinkError, OSError, MemoryError) as error:
            answer = serial, "error", error
        control.send(answer)
