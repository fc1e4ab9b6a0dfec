"""The engine over TCP: connections of sites, pace of channels, and errors for late and lost peers."""

from __future__ import annotations

import os
import pickle
import re
import socket
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from math import inf

import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.oracle import make_inputs
from blinkccl.engines import sockets
from blinkccl.engines.buffers import RankBuffers, filled
from blinkccl.engines.registry import ENGINES
from blinkccl.engines.sites import Connections, Leg, Sites, connect, listen
from blinkccl.engines.sockets import Site
from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError, PlanMismatchError, StalledError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.trees.algorithms.registry import algorithm
from support.execution import difference
from support.planned import asked
from support.processes import open_files

pytestmark = pytest.mark.skipif(ENGINES["sockets"].missing is not None, reason="no epoll here")


def program_for(spec: str, name: str, gpus: str | None = None, **options: object) -> Program:
    return lower(algorithm("optimal").plan(asked(spec, name, gpus, **options)))


def relayed() -> Program:
    """From 0 to 3 of a ring of six, over 1 and 2 or over 5 and 4, which are outside the job."""
    return program_for("ring:6", "sendrecv", "0,3", relays=True)


def work_for(program: Program, count: int = 4000, chunk_bytes: int = 256) -> tuple[sockets.Work, RankBuffers]:
    call = CollectiveCall.of(program.collective, "int32", count)
    buffers = filled(program.collective, make_inputs(program.collective, count, "int32"), count, "int32", False)
    return sockets.Work.of(program, call, None, chunk_bytes), buffers


def test_sites_are_ranks_relays_and_homes_joined_by_legs() -> None:
    sites = Sites(relayed())
    assert sites.vertices == (0, 3, 2, 4, 1, 5)
    assert sorted(leg.path for leg in sites.legs) == [(0, 1), (0, 5), (1, 2), (2, 3), (4, 3), (5, 4)]
    assert [leg.path for leg in sites.outgoing(0)] == [leg.path for leg in sites.legs if leg.path[0] == 0]
    assert [leg.path for leg in sites.incoming(2)] == [(1, 2)]
    assert {leg.path: leg.half for leg in sites.legs}[1, 2] == 1
    assert (sites.name(3), sites.name(1)) == ("rank 1", "the relay at vertex 1")


@pytest.mark.parametrize("spec", ["dgx-2", "pcie-8gpu"])
def test_switches_and_hosts_are_no_sites(spec: str) -> None:
    sites = Sites(program_for(spec, "allreduce", "0,1,4"))
    assert sites.vertices == (0, 1, 4)
    assert all(len(leg.path) > 2 for leg in sites.legs)


@pytest.mark.parametrize("chunk_bytes", [4, 100, 1 << 20])
@pytest.mark.parametrize("slots", [1, 3])
def test_relays_and_homes_pass_everything_on(slots: int, chunk_bytes: int) -> None:
    program = relayed()
    program = replace(program, channels=tuple(replace(channel, slots=slots) for channel in program.channels))
    for count in (0, 1, 1000):
        assert difference(sockets.run, program, count=count, chunk_bytes=chunk_bytes) is None


def test_channels_keep_within_some_ticks_of_each_other() -> None:
    """Two ticks ahead is allowed, three is not. A channel that has ended delays no other."""
    pace, ready = sockets._Pace(3), deque()
    pace.reach(0, 2)
    assert not pace.is_ahead(0)
    pace.reach(0, 3)
    assert pace.is_ahead(0)
    body = iter(())
    pace.wait(body, ready)
    assert not ready
    pace.reach(1, 1)
    assert list(ready) == [body]
    assert pace.is_ahead(0)  # channel 2 is still at 0
    pace.reach(2, inf)
    assert not pace.is_ahead(0)


def test_messages_larger_than_all_buffers_arrive() -> None:
    program = program_for("dgx-1v", "allreduce", "1,4,5,6")
    assert difference(sockets.run, program, count=1 << 20, dtype="float32", chunk_bytes=1 << 21, deadline_s=20) is None


def test_a_late_rank_is_named_with_the_link_and_the_message() -> None:
    program = program_for("ring:5", "broadcast")
    sites = Sites(program)
    work, buffers = work_for(program, count=300_000, chunk_bytes=1 << 16)
    with ExitStack() as stack:
        connections = sockets._on_loopback(sites, stack)
        punctual = [Site(sites, vertex, connections[vertex]) for vertex in sites.vertices if vertex != 1]
        wait = r"rank \d waits for chunk 0 of channel \d from rank 1 over 1 → 2 \(broadcast of share \d\)"
        with pytest.raises(StalledError, match=f"past the deadline: .*{wait}") as caught:
            sockets.drive(punctual, work, buffers, 0.3)
    stalls = pickle.loads(pickle.dumps(caught.value)).stalls  # processes send it to the laboratory
    # Ranks 2 to 4 wait in a chain. Rank 0 cannot send all of its data, because the buffers hold less.
    assert {stall.leg.path for stall in stalls if not stall.undelivered} == {(1, 2), (2, 3), (3, 4)}
    assert (0, 1) in {stall.leg.path for stall in stalls if stall.undelivered}
    assert any(re.search("rank 0 cannot send chunk .* to rank 1 over 0 → 1", stall.words) for stall in stalls)


@pytest.mark.parametrize(("gone", "error"), [(0, PeerLostError), (3, PeerLostError), (1, CommunicationError)])
def test_a_lost_peer_is_named(gone: int, error: type[CommunicationError]) -> None:
    program = relayed()
    sites = Sites(program)
    work, buffers = work_for(program, 400_000)
    with ExitStack() as stack:
        connections = sockets._on_loopback(sites, stack)
        connections[gone].close()
        others = [Site(sites, vertex, connections[vertex]) for vertex in sites.vertices if vertex != gone]
        with pytest.raises(error, match=rf"{sites.name(gone)} was lost: .* over .*{gone}") as caught:
            sockets.drive(others, work, buffers, 5)
    if error is PeerLostError:
        assert caught.value.rank == program.ranks.index(gone)


def test_a_watched_file_ends_a_wait() -> None:
    program = program_for("ring:5", "broadcast")
    sites = Sites(program)
    work, buffers = work_for(program)
    reader, writer = os.pipe()
    os.write(writer, b"x")

    def fail() -> None:
        raise CommunicationError("rank 4 has failed")

    with ExitStack() as stack:
        connections = sockets._on_loopback(sites, stack)
        with pytest.raises(CommunicationError, match="rank 4 has failed"):
            sockets.drive([Site(sites, 2, connections[2])], work, buffers, 5, (reader, fail))
    os.close(reader)
    os.close(writer)


class Meeting:
    """Sites that connect to each other, one thread each; ``programs`` replaces the program of some vertices."""

    def __init__(self, program: Program, programs: dict[int, Program] | None = None, absent: int | None = None) -> None:
        self.sites = Sites(program)
        self.listeners = {v: listen("127.0.0.1") for v in self.sites.vertices if v != absent}
        self.programs = programs or {}
        self.stack = ExitStack()

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def address_of(self, leg: Leg) -> tuple[str, int]:
        listener = self.listeners.get(leg.path[-1])
        if listener is not None:
            return listener.getsockname()
        with socket.create_server(("127.0.0.1", 0)) as closed:
            return closed.getsockname()

    def connect(self, vertex: int, deadline_s: float) -> Connections:
        sites = Sites(self.programs.get(vertex, self.sites.program))
        return connect(sites, vertex, self.listeners[vertex], self.address_of, deadline_s, 1 << 16)

    def all(self, deadline_s: float) -> dict[int, Connections | Exception]:
        with ThreadPoolExecutor(len(self.listeners)) as pool:
            futures = {v: pool.submit(self.connect, v, deadline_s) for v in self.listeners}
        for listener in self.listeners.values():
            listener.close()
        return {
            v: future.exception() or self.stack.enter_context(closing(future.result())) for v, future in futures.items()
        }


def test_sites_find_each_other_and_work() -> None:
    with Meeting(relayed()) as meeting:
        connections = meeting.all(10)
        assert all(isinstance(one, Connections) for one in connections.values()), connections
        work, buffers = work_for(meeting.sites.program)
        sockets.drive([Site(meeting.sites, v, one) for v, one in connections.items()], work, buffers, 10)
    assert (buffers.outputs[1] == buffers.inputs[0]).all()


def test_an_absent_site_is_named() -> None:
    with Meeting(relayed(), absent=1) as meeting:
        errors = meeting.all(0.4)
    assert isinstance(errors[0], DeadlineError)
    assert re.search(r"rank 0 cannot connect to the relay at vertex 1 over 0 → 1 at 127.0.0.1", str(errors[0]))
    assert isinstance(errors[2], DeadlineError)
    assert "waited past the deadline for connections from the relay at vertex 1 over 1 → 2" in str(errors[2])


def test_another_program_is_refused() -> None:
    program = program_for("ring:5", "broadcast")
    with Meeting(program, {1: replace(program, forest_hash="other")}) as meeting:
        assert any(isinstance(one, PlanMismatchError) for one in meeting.all(1).values())


def test_connections_are_closed_after_runs_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    assert difference(sockets.run, relayed(), count=100) is None
    with pytest.raises(DeadlineError):
        difference(partial(sockets.run, deadline_s=0.0), relayed(), count=1_000_000)
    assert open_files() <= before
