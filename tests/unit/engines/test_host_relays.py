"""Engine host with relays and staged queues: who does a relay's work, and where messages are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blinkccl.algorithms.registry import algorithm
from blinkccl.engines import host
from blinkccl.engines.host_plan import STAGES, HostPlan
from blinkccl.engines.native_library import load
from blinkccl.engines.relays import relays_at_ranks
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.testing.execution import difference
from support.planned import asked

WAYS = {
    "private": host.HostOptions(),
    "shared": host.HostOptions(shared=True),
    "cross memory": host.HostOptions(cross_memory=True),
}


@pytest.fixture
def native():
    try:
        load()
    except UnsupportedError as reason:
        pytest.skip(str(reason))


def _relayed(between, name="sendrecv"):
    """Two ranks with so many GPUs outside the job between them; every second of them is a relay."""
    forest = algorithm("optimal").plan(asked(f"chain:{between + 2}", name, (0, between + 1), relays=True))
    return lower(forest)


def _stats(program, count, options, **choices):
    stats: list[dict[str, int]] = []
    noted = replace(options, stats=stats)

    def run(*given, **settings):
        return host.run(*given, **settings, options=noted)

    assert difference(run, program, count=count, **choices) is None
    return {key: sum(each[key] for each in stats) for key in stats[0]}


@pytest.mark.parametrize(("between", "relays"), [(1, 0), (2, 1), (3, 1), (5, 2)])
@pytest.mark.parametrize("way", WAYS)
def test_a_message_is_stored_anew_by_every_relay_and_nowhere_else(native, way, between, relays):
    program = _relayed(between)
    assert len(program.relays) == relays
    found = _stats(program, 1000, WAYS[way], dtype="int32", chunk_bytes=256)
    assert found["message_bytes"] == found["staged_bytes"] == 4000 * (relays + 1)
    assert found["direct_read_bytes"] == found["direct_write_bytes"] == 0


def test_only_what_is_staged_keeps_to_its_slots(native):
    """With shared tensors NVLink's messages lie in the ranks' own buffers, those that PCIe stages in slots."""
    forest = algorithm("hybrid").plan(asked("dgx-1v", "broadcast", "0-3"))
    program = lower(forest)
    staged = [number for number, queue in enumerate(program.queues) if queue.is_staged]
    assert 0 < len(staged) < len(program.queues)
    found = _stats(program, 79 * 400, WAYS["shared"], dtype="int32", chunk_bytes=4096)
    part = sum(
        program.slices[role.slice].stop - program.slices[role.slice].start
        for role in program.roles
        for queue in role.receives
        if queue in staged
    )
    assert found["staged_bytes"] == pytest.approx(float(part * 4 * 79 * 400), rel=0.02)
    assert found["direct_read_bytes"] > 0


@pytest.mark.parametrize("name", ["allreduce", "alltoall", "allgather"])
def test_relays_work_where_their_messages_are_taken(name):
    program = _relayed(4, name)
    hosted = relays_at_ranks(program)
    ranks = len(program.ranks)
    assert len(program.relays) == 4  # two each way
    assert {role.rank for role in program.roles} == set(range(ranks + 4))
    assert {role.rank for role in hosted.roles} == set(range(ranks))
    for before, after in zip(program.roles, hosted.roles, strict=True):
        assert replace(after, rank=before.rank) == before
        if before.rank >= ranks:
            [taker] = [role for role in hosted.roles if before.sends[0] in role.receives]
            assert after.rank == taker.rank
    for number, queue in enumerate(hosted.queues):
        assert (queue.src == queue.dst) == (program.queues[number].src >= ranks)


def test_a_program_without_relays_is_left_alone():
    program = _relayed(0)
    assert relays_at_ranks(program) is program


def test_what_only_relays_of_their_own_can_run_is_refused():
    """A rank that waits for its message before it does the relay's work, in the same tick, waits for ever."""
    program = _relayed(2)
    receiver, relay, sender = sorted(program.roles, key=lambda role: -role.offset)
    assert relay.stage == "relay"
    roles = (replace(receiver, offset=relay.offset), relay, sender)
    late = replace(program, roles=roles)
    forest = algorithm("optimal").plan(asked("chain:4", "sendrecv", (0, 3), relays=True))
    assert violations(late, forest.topology) == []
    with pytest.raises(UnsupportedError, match=r"ranks cannot do the work of relays \[2\] here: .*rank 1"):
        HostPlan(late)


def test_waits_name_relays():
    assert STAGES.index("relay") == 3
