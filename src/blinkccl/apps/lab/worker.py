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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from blinkccl.apps.lab.layout import HOST_DEVICE
from blinkccl.apps.lab.site import Opening, Site
from blinkccl.bench.pattern import TimedCall as Pattern
from blinkccl.bench.pattern import commands, fill, wrong_elements
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.collectives.spec import Collective
from blinkccl.engines.buffers import RankBuffers, allocate
from blinkccl.errors import BlinkError, CommunicationError

#: Seconds after a call's timeout at which a site gives up by itself: before that, the laboratory ends the call.
_LATE_S = 2.0


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

    site: Site

    @property
    def collective(self) -> Collective:
        return self.site.collective

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.site.ranks

    def prepare(self, request: ProgramCall, buffers: RankBuffers) -> Callable[[float], None]:
        """Return a function that runs the call within a timeout in seconds."""
        pattern = request.pattern
        call = CollectiveCall.of(self.collective, pattern.dtype, pattern.count, pattern.op)
        op = self.site.op(call, request.chunk_bytes)
        ends: list[int | None] = [None, None]
        if self.site.vertex in self.ranks:
            rank = self.ranks.index(self.site.vertex)
            both = buffers.inputs[rank], buffers.outputs[rank]
            ends = [None if one is None else one.ctypes.data for one in both]
        return lambda left_s: op.run(ends[0], ends[1], int(left_s * 1e6))

    def ended_by(self, control: Connection) -> AbstractContextManager[None]:
        """See :meth:`Site.ended_by`."""
        return self.site.ended_by(control)

    def close(self) -> None:
        self.site.close()


@dataclass
class _Gloo:
    """A process group of gloo, for AllReduce in place."""

    group: Any
    collective: Collective
    ranks: tuple[int, ...]
    vertex: int

    def prepare(self, request: ProgramCall, buffers: RankBuffers) -> Callable[[float], None]:
        """Return a function that runs the call."""
        import torch

        tensor = torch.from_numpy(buffers.outputs[self.ranks.index(self.vertex)])

        def run(left_s: float) -> None:
            try:
                self.group.allreduce([tensor]).wait(timedelta(seconds=max(0.001, left_s)))
            except RuntimeError as error:
                raise CommunicationError(f"vertex {self.vertex}: gloo: {' '.join(str(error).split())}") from error

        return run

    def ended_by(self, control: Connection) -> AbstractContextManager[None]:
        """Nothing: gloo ends at its timeout."""
        return nullcontext()

    def close(self) -> None:
        self.group = None


@dataclass
class _Prepared:
    """A call that waits for its beginning."""

    run: Callable[[float], None]
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
        self._open: dict[int, _Program | _Gloo] = {}
        self._prepared: _Prepared | None = None

    def open(self, opening: Opening) -> dict[int, bytes]:
        """Open this site's networks for a program; return its addresses, by rail."""
        site = Site(opening, self._vertex)
        self._open[opening.number] = _Program(site)
        return site.addresses

    def connect(self, number: int, addresses: Mapping[int, Mapping[int, bytes]]) -> None:
        """Connect an open program to its other sites."""
        opened = self._open[number]
        assert isinstance(opened, _Program), "gloo connects by itself"
        opened.site.connect(addresses)

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
        with prepared.opened.ended_by(self._control), _before_others():
            time.sleep(max(0.0, at - time.monotonic()))
            prepared.run(at + prepared.request.deadline_s + _LATE_S - time.monotonic())
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
