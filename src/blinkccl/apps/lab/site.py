"""One site of a program in a laboratory: a rank of the host engine on a host of its own.

The *sites* of a program are its ranks, its relays, and the homes of its staged queues. Each path between two sites is a
rail with a device of its own at both ends, and UCX sends over TCP. So a laboratory measures the engine that jobs use.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from threading import Thread

import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines.host import Endpoint, NativeOp, awaited, format_segment, segment_bytes, shape_of, statuses
from blinkccl.engines.host_plan import Area, HostPlan
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.runtime import ucx
from blinkccl.schedule.liveness import liveness_fault
from blinkccl.schedule.program import Program, Queue, Role
from blinkccl.schedule.wiring import connect

#: Vertex ids along the links of a path.
Path = tuple[int, ...]
#: Messages of all sizes leave at once: an offer costs a round trip, in which a shaped link would be idle.
_AT_ONCE = 1 << 62
#: The device of rail 0, which carries nothing.
_NO_DEVICE = "lo"


def among_sites(program: Program) -> Program:
    """``program`` with every site as a rank: relays and homes of staged queues receive, send, and keep nothing.

    UnsupportedError if it can deadlock in the order in which a home forwards.
    """
    homes = {queue.home for queue in program.queues if queue.is_staged} - {*program.vertices}
    vertices = program.vertices + tuple(sorted(homes))
    queues, halves = list(program.queues), dict[int, int]()
    for number, queue in enumerate(program.queues):
        if queue.is_staged:
            at, (near, far) = vertices.index(queue.home), queue.legs
            queues[number], halves[number] = Queue(queue.src, at, near, queue.home), len(queues)
            queues.append(Queue(at, queue.dst, far, far[-1]))
    roles: list[Role] = []
    for role in program.roles:
        roles.append(replace(role, receives=tuple(halves.get(queue, queue) for queue in role.receives)))
        for sent in (number for number in role.sends if number in halves):
            at, channel, tick = queues[sent].dst, role.channel, role.offset + 1
            forward = Role(at, channel, role.share, "relay", tick, role.slice, False, False, False, (sent,), ())
            roles.append(replace(forward, sends=(halves[sent],)))
    made = replace(program, ranks=vertices, relays=(), queues=tuple(queues), roles=tuple(roles))
    fault = liveness_fault(made, connect(made)) if halves else None
    if fault is not None:
        raise UnsupportedError(f"the laboratory cannot stage messages at vertices {sorted(homes)}: {fault}")
    return made


def name_of(vertex: int, ranks: Sequence[int]) -> str:
    """The site's name in messages; ``ranks`` are the job's vertices."""
    return f"rank {ranks.index(vertex)}" if vertex in ranks else f"the relay at vertex {vertex}"


def rails_of(program: Program) -> dict[Path, int]:
    """The rail of each path of a program among sites; both directions of a link are one rail."""
    numbers: dict[Path, int] = {}
    for queue in program.queues:
        rail = len(numbers) // 2 + 1
        numbers.setdefault(queue.path, rail)
        numbers.setdefault(queue.path[::-1], rail)
    return numbers


@dataclass(frozen=True, slots=True)
class Opening:
    """A program to connect: its number, and the devices at both ends of each path."""

    number: int
    program: Program
    devices: Mapping[Path, tuple[str, str]]


class Site:
    """The site at ``vertex`` of a program; UnsupportedError if UCX cannot use its devices."""

    def __init__(self, opening: Opening, vertex: int) -> None:
        self.ranks, self.collective = opening.program.ranks, opening.program.collective
        self.vertex = vertex
        self._program = among_sites(opening.program)
        self._rank = self._program.ranks.index(vertex)
        rails = rails_of(self._program)
        self._plan = HostPlan(self._program, Area(), [rails[queue.path] for queue in self._program.queues])
        shape, token = shape_of(len(self._program.ranks), self._plan.area), secrets.token_bytes(16)
        nbytes = segment_bytes(shape)
        self._memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        format_segment(self._memory.ctypes.data, nbytes, shape, token)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._endpoint = Endpoint(self._memory.ctypes.data, nbytes, self._rank, token)
        self._ops: dict[tuple[CollectiveCall, int], NativeOp] = {}
        self._peers: dict[int, int] = {}
        self.addresses = {0: self._endpoint.open_network(ucx.find(), self._bell, _NO_DEVICE)}
        for path, (first, last) in opening.devices.items():
            if vertex in (path[0], path[-1]) and rails[path] not in self._peers:
                self._peers[rails[path]] = path[-1] if vertex == path[0] else path[0]
                device = first if vertex == path[0] else last
                self.addresses[rails[path]] = self._endpoint.open_rail(rails[path], device)

    def connect(self, addresses: Mapping[int, Mapping[int, bytes]]) -> None:
        """Connect to the other sites, whose addresses are given by vertex and rail."""
        for rank, vertex in enumerate(self._program.ranks):
            if vertex != self.vertex:
                self._endpoint.connect(rank, addresses[vertex][0])
        for rail, peer in self._peers.items():
            self._endpoint.connect(self._program.ranks.index(peer), addresses[peer][rail], rail)
        self._endpoint.send_at_once(_AT_ONCE)
        self._endpoint.share_core(True)

    def op(self, call: CollectiveCall, chunk_bytes: int) -> NativeOp:
        """The operation of a call; kept."""
        if (call, chunk_bytes) not in self._ops:
            self._ops[call, chunk_bytes] = NativeOp(self._endpoint, self._plan, call, chunk_bytes)
        return self._ops[call, chunk_bytes]

    @contextmanager
    def ended_by(self, control: Connection) -> Iterator[None]:
        """A context in which a message on ``control`` ends the current call; its error then tells this site's wait."""
        ended, waited = os.eventfd(0), list[str]()

        def watch() -> None:
            if control in wait([control, ended]):
                waiting = statuses(self._memory.ctypes.data, len(self._memory))[self._rank]
                waited.append(awaited(waiting))
                self._endpoint.abort(str(control.recv()[-1]))

        watcher = Thread(target=watch)
        watcher.start()
        try:
            yield
        except CommunicationError as error:
            if waited:
                raise CommunicationError(f"{name_of(self.vertex, self.ranks)} waits {waited[0]}") from error
            raise
        finally:
            os.eventfd_write(ended, 1)
            watcher.join()
            os.close(ended)

    def close(self) -> None:
        """Close the connections."""
        for op in self._ops.values():
            op.close()
        self._endpoint.close()
        os.close(self._bell)
