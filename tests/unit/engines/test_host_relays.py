"""Engine host with relays and staged queues: the ranks of relays' roles, and the places of messages."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.engines import reference
from blinkccl.engines.host_plan import STAGES, HostPlan
from blinkccl.engines.native_library import load
from blinkccl.engines.relays import relays_at_ranks
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program, Queue, Role
from blinkccl.schedule.verifier import violations
from blinkccl.trees.algorithms.registry import algorithm
from support import local_host
from support.examples import examples
from support.execution import difference
from support.planned import asked
from support.programs import random_program

WAYS = {
    "private": local_host.HostOptions(),
    "shared": local_host.HostOptions(shared=True),
    "cross memory": local_host.HostOptions(cross_memory=True),
}


@pytest.fixture(scope="module")
def native():
    try:
        load()
    except UnsupportedError as reason:
        pytest.skip(str(reason))


def _relayed(between, name="sendrecv"):
    """A program of two ranks with ``between`` GPUs outside the job between them; every second of these is a relay."""
    forest = algorithm("optimal").plan(asked(f"chain:{between + 2}", name, (0, between + 1), relays=True))
    return lower(forest)


def _stats(program, count, options, **choices):
    stats: list[dict[str, int]] = []
    counted = replace(options, stats=stats)

    def run(*arguments, **settings):
        return local_host.run(*arguments, **settings, options=counted)

    assert difference(run, program, count=count, **choices) is None
    return {key: sum(each[key] for each in stats) for key in stats[0]}


@pytest.mark.parametrize(("between", "relays"), [(1, 0), (2, 1), (3, 1), (5, 2)])
@pytest.mark.parametrize("way", WAYS)
def test_a_message_is_stored_once_more_by_every_relay(native, way, between, relays):
    program = _relayed(between)
    assert len(program.relays) == relays
    stats = _stats(program, 1000, WAYS[way], dtype="int32", chunk_bytes=256)
    assert stats["message_bytes"] == stats["staged_bytes"] == 4000 * (relays + 1)
    assert stats["direct_read_bytes"] == stats["direct_write_bytes"] == 0


def test_only_staged_messages_need_slots(native):
    """With shared tensors, NVLink's messages lie in the ranks' buffers, and messages staged on PCIe in slots."""
    forest = algorithm("hybrid").plan(asked("dgx-1v", "broadcast", "0-3"))
    program = lower(forest)
    staged = [number for number, queue in enumerate(program.queues) if queue.is_staged]
    assert 0 < len(staged) < len(program.queues)
    stats = _stats(program, 79 * 400, WAYS["shared"], dtype="int32", chunk_bytes=4096)
    part = sum(
        program.slices[role.slice].stop - program.slices[role.slice].start
        for role in program.roles
        for queue in role.receives
        if queue in staged
    )
    assert stats["staged_bytes"] == pytest.approx(float(part * 4 * 79 * 400), rel=0.02)
    assert stats["direct_read_bytes"] > 0


@pytest.mark.parametrize("name", ["allreduce", "alltoall", "allgather"])
def test_relays_run_at_the_receivers_of_their_messages(name):
    program = _relayed(4, name)
    hosted = relays_at_ranks(program)
    ranks = len(program.ranks)
    assert len(program.relays) == 4  # Two per direction.
    assert {role.rank for role in program.roles} == set(range(ranks + 4))
    assert {role.rank for role in hosted.roles} == set(range(ranks))
    for before, after in zip(program.roles, hosted.roles, strict=True):
        assert replace(after, rank=before.rank) == before
        if before.rank >= ranks:
            [taker] = [role for role in hosted.roles if before.sends[0] in role.receives]
            assert after.rank == taker.rank
    for number, queue in enumerate(hosted.queues):
        assert (queue.src == queue.dst) == (program.queues[number].src >= ranks)


@pytest.mark.parametrize("target", ["none", "itself"])
def test_a_relay_without_a_receiver_runs_at_rank_0(target):
    """Unverified programs may have such a relay, which must get a rank that exists."""
    program = _relayed(2)
    relay = next(role for role in program.roles if role.rank == len(program.ranks))
    others = [role for role in program.roles if role is not relay and not role.receives]
    broken = replace(relay, sends=() if target == "none" else relay.receives)
    hosted = relays_at_ranks(replace(program, roles=(broken, *others)))
    assert [role.rank for role in hosted.roles] == [0, *(role.rank for role in others)]


def _with_relays(program: Program, random: Random) -> Program:
    """``program`` with one or two private relays on some queues, whose roles are just before the receiver's."""
    roles, queues, relays = list(program.roles), list(program.queues), list(program.relays)
    for number, queue in enumerate(program.queues):
        ends = [role for role in roles if number in role.receives]
        senders = [role for role in roles if number in role.sends]
        if len(ends) != 1 or len(senders) != 1 or ends[0].slice != senders[0].slice or random.random() < 0.5:
            continue
        taken, source = number, queue.src
        for _ in range(random.randint(1, 2)):
            relays.append(1000 + len(relays))
            relay = len(program.ranks) + len(relays) - 1
            queues[taken] = Queue(source, relay, (0, relays[-1]), relays[-1])
            queues.append(Queue(relay, queue.dst, (relays[-1], 0), 0))
            at = next(place for place, role in enumerate(roles) if taken in role.receives)
            taker = roles[at]
            receives = tuple(len(queues) - 1 if each == taken else each for each in taker.receives)
            role = Role(
                relay, taker.channel, taker.share, "relay", taker.offset, taker.slice, False, False, False,
                (taken,), (len(queues) - 1,),
            )  # fmt: skip
            roles[at : at + 1] = [role, replace(taker, receives=receives)]
            taken, source = len(queues) - 1, relay
    return replace(program, roles=tuple(roles), queues=tuple(queues), relays=tuple(relays))


@pytest.mark.parametrize("way", WAYS)
@examples(25)
@given(seed=st.integers(0, 2**32))
def test_random_programs_with_relays_equal_the_oracle(native, way, seed):
    random = Random(seed)
    program = _with_relays(random_program(random)[0], random)
    in_place = program.collective.name != "alltoall" and random.random() < 0.5
    for count in (1, 37):
        settings = {"count": count, "chunk_bytes": 32, "in_place": in_place}
        assert difference(reference.run, program, **settings) is None
        _stats(program, count, WAYS[way], chunk_bytes=32, in_place=in_place)


def test_a_program_without_relays_is_left_alone():
    program = _relayed(0)
    assert relays_at_ranks(program) is program


def test_a_program_that_needs_separate_relays_is_refused():
    """A rank that waits for its message before it runs the relay's role, in the same tick, waits for ever."""
    program = _relayed(2)
    receiver, relay, sender = sorted(program.roles, key=lambda role: -role.offset)
    assert relay.stage == "relay"
    roles = (replace(receiver, offset=relay.offset), relay, sender)
    late = replace(program, roles=roles)
    forest = algorithm("optimal").plan(asked("chain:4", "sendrecv", (0, 3), relays=True))
    assert violations(late, forest.topology) == []
    with pytest.raises(UnsupportedError, match=r"the host engine cannot run relays \[2\] at ranks: .*rank 1"):
        HostPlan(late)


def test_waits_name_relays():
    assert STAGES.index("relay") == 3
