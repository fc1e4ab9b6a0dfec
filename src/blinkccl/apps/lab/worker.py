"""The process of one vertex of a laboratory: it executes the laboratory's commands until the pipe closes.

It is started in its namespace with the number of a descriptor: one end of a pipe that carries pickled messages in both
directions. A message is a serial number and a command with its arguments. The answer has the same number, and "ok"
with a value or "error" with an exception.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from blinkccl.apps.lab.layout import HOST_DEVICE
from blinkccl.bench.pattern import TimedCall as Pattern
from blinkccl.bench.pattern import commands, fill, wrong_elements
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.engines import sockets
from blinkccl.engines.buffers import RankBuffers, allocate
from blinkccl.engines.sites import Connections, Sites, connect, listen
from blinkccl.errors import BlinkError, CommunicationError
from blinkccl.schedule.program import Program

#: Port on which every worker listens, in a namespace of its own.
PORT = 7000


@dataclass(frozen=True, slots=True)
class Opening:
    """A program to connect: its number, the address for each leg, and the bytes of a connection's buffers."""

    number: int
    program: Program
    addresses: Mapping[tuple[int, ...], str]
    buffer_bytes: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class GlooOpening:
    """A process group of gloo among the hosts ``order``, which connect through the file ``store``."""

    number: int
    collective: Collective
    ranks: tuple[int, ...]
    order: tuple[int, ...]
    store: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A call of an opened program, ``count`` elements per block, all in chunks of ``chunk_bytes``."""

    number: int
    pattern: Pattern
    chunk_bytes: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """The time at which a site finished, by the clock that all processes share, and its number of wrong elements."""

    at: float
    wrong: int


@dataclass
class _Program:
    """A program whose sites are connected."""

    sites: Sites
    vertex: int
    connections: Connections

    @property
    def collective(self) -> Collective:
        return self.sites.program.collective

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.sites.program.ranks

    def prepare(self, request: ProgramCall, buffers: RankBuffers) -> Callable[[float, sockets.Watch], None]:
        """Return a function that runs the call within a timeout in seconds."""
        pattern = request.pattern
        call = CollectiveCall.of(self.collective, pattern.dtype, pattern.count, pattern.op)
        work = sockets.Work.of(self.sites.program, call, None, request.chunk_bytes)
        site = sockets.Site(self.sites, self.vertex, self.connections)
        return lambda left_s, watch: sockets.drive([site], work, buffers, left_s, watch)

    def close(self) -> None:
        self.connections.close()


@dataclass
class _Gloo:
    """A process group of gloo, for AllReduce in place."""

    group: Any
    collective: Collective
    ranks: tuple[int, ...]
    vertex: int

    def prepare(self, request: ProgramCall, buffers: RankBuffers) -> Callable[[float, sockets.Watch], None]:
        """Return a function that runs the call; it reads no messages meanwhile, and ends at its timeout."""
        import torch

        tensor = torch.from_numpy(buffers.outputs[self.ranks.index(self.vertex)])

        def run(left_s: float, _: sockets.Watch) -> None:
            try:
                self.group.allreduce([tensor]).wait(timedelta(seconds=max(0.001, left_s)))
            except RuntimeError as error:
                raise CommunicationError(f"vertex {self.vertex}: gloo: {' '.join(str(error).split())}") from error

        return run

    def close(self) -> None:
        self.group = None


@dataclass
class _Prepared:
    """A call that waits for its beginning."""

    run: Callable[[float, sockets.Watch], None]
    opened: _Program | _Gloo
    buffers: RankBuffers
    request: ProgramCall


@contextmanager
def _before_others() -> Iterator[None]:
    """Run threads of this process before others of the machine, if permitted: links do not model the others."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Worker:
    """State of a process: the open programs, by number."""

    def __init__(self, vertex: int, control: Connection) -> None:
        self._vertex, self._control = vertex, control
        self._listener = listen("", PORT)
        self._open: dict[int, _Program | _Gloo] = {}
        self._prepared: _Prepared | None = None

    def open(self, opening: Opening) -> None:
        """Connect to the other sites of a program."""
        sites = Sites(opening.program)
        connections = connect(
            sites,
            self._vertex,
            self._listener,
            lambda leg: (opening.addresses[leg.path], PORT),
            opening.deadline_s,
            opening.buffer_bytes,
        )
        self._open[opening.number] = _Program(sites, self._vertex, connections)

    def open_gloo(self, opening: GlooOpening) -> None:
        """Join a process group."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(interface=HOST_DEVICE)]
        options._timeout = timedelta(seconds=opening.deadline_s)
        size, rank = len(opening.order), opening.order.index(self._vertex)
        with _before_others():  # its threads, too
            group = dist.ProcessGroupGloo(dist.FileStore(opening.store, size), rank, size, options)
        self._open[opening.number] = _Gloo(group, opening.collective, opening.ranks, self._vertex)

    def close(self, number: int) -> None:
        """Close a program; does nothing if it failed to open."""
        opened = self._open.pop(number, None)
        if opened is not None:
            opened.close()

    def prepare(self, request: ProgramCall) -> None:
        """Fill the buffers of a rank."""
        opened, pattern = self._open[request.number], request.pattern
        row = element_type(pattern.dtype)
        buffers = allocate(opened.collective, pattern.count, row, pattern.in_place)
        rank = self._rank(opened)
        if rank is not None and (source := buffers.inputs[rank]) is not None:
            command = commands(pattern)[rank]
            fill(source.view(np.uint8), command.fill, command.in_blocks, row.itemsize)
        self._prepared = _Prepared(opened.prepare(request, buffers), opened, buffers, request)

    def go(self, at: float) -> Done:
        """Run the prepared call from this time on, and check its result."""
        prepared, self._prepared = self._prepared, None
        assert prepared is not None
        time.sleep(max(0.0, at - time.monotonic()))
        with _before_others():
            left_s = at + prepared.request.deadline_s - time.monotonic()
            prepared.run(left_s, (self._control.fileno(), self._told))
            ended = time.monotonic()
        pattern = prepared.request.pattern
        rank = self._rank(prepared.opened)
        wrong = 0
        if rank is not None and pattern.check and (target := prepared.buffers.outputs[rank]) is not None:
            command = commands(pattern)[rank]
            wrong = wrong_elements(target.view(np.uint8), command.expected, command.out_blocks, command.itemsize)
        return Done(ended, wrong)

    def _rank(self, opened: _Program | _Gloo) -> int | None:
        return opened.ranks.index(self._vertex) if self._vertex in opened.ranks else None

    def _told(self) -> None:
        """Read the only message that can come during a collective: another site has failed."""
        raise CommunicationError(str(self._control.recv()[-1]))


def main(descriptor: int) -> None:
    """Run one command after the other, until the laboratory closes the pipe or is killed."""
    # The laboratory may be killed while this process waits elsewhere than on the pipe.
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
        if name == "fail":  # the call that this refers to has ended here
            continue
        try:
            answer: tuple[int, str, Any] = serial, "ok", getattr(worker, name)(*arguments)
        except (BlinkError, OSError, MemoryError) as error:
            answer = serial, "error", error
        control.send(answer)
