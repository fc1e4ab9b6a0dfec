"""Where a Program's messages lie: the tables of the host engine, without the library that reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from programs_by_hand import one_message_held_back

from blinkccl.algorithms.registry import ALGORITHMS
from blinkccl.engines.host_plan import BLOCK_BYTES, INLINE, NOWHERE, PAYLOAD_BYTES, Area, HostPlan
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Channel, Program
from blinkccl.testing.programs import random_program
from support.planned import asked


def rows_of(table: NDArray[np.void]) -> list[SimpleNamespace]:
    return [SimpleNamespace(**dict(zip(table.dtype.names or (), row, strict=True))) for row in table.tolist()]


class Rank:
    """One rank's tables with names."""

    def __init__(self, plan: HostPlan, bound: Bound, rank: int, averages: bool = False) -> None:
        tables = plan.tables(bound, rank, averages)
        self.rank = rank
        self.roles = rows_of(tables.roles)
        self.receives = rows_of(tables.receives)
        self.sends = tables.sends.tolist()
        self.rings = rows_of(tables.rings)
        self.readers = rows_of(tables.readers)
        self.queues = tables.queues
        self.in_place = tables.direct_read_in_place, tables.direct_write_in_place

    def readers_of(self, ring: SimpleNamespace) -> list[SimpleNamespace]:
        return self.readers[ring.first_reader : ring.first_reader + ring.readers]


def all_ranks(
    program: Program, count: int = 1000, chunk_bytes: int = 64, area: Area | None = None, averages: bool = False
) -> list[Rank]:
    plan = HostPlan(program, area)
    bound = plan.bind(count, 4, chunk_bytes)
    return [Rank(plan, bound, rank, averages) for rank in range(len(program.ranks))]


def planned(algorithm: str, name: str = "allreduce", spec: str = "clique:4", slots: int = 2) -> Program:
    return lower(ALGORITHMS[algorithm].plan(asked(spec, name)), slots)


def small(program: Program) -> Program:
    channels = tuple(Channel(channel.shares, channel.slots, INLINE) for channel in program.channels)
    return replace(program, channels=channels)


# ---- both ends of every message


@pytest.mark.parametrize("block", range(4))
def test_both_ends_of_every_message_name_the_same_place(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        ranks = all_ranks(random_program(Random(seed))[0], Random(seed).choice([3, 50, 1000]))
        read = Counter[tuple[int, int]]()
        for rank in ranks:
            for role in rank.roles:
                for row in rank.receives[role.first_receive : role.first_receive + role.receives]:
                    sender = ranks[row.rank]
                    (ring,) = (ring for ring in sender.rings if ring.line == row.line)
                    assert (ring.staging, ring.stride, ring.slots) == (row.staging, row.stride, row.slots)
                    assert (ring.direct_read, ring.reply_to) == (row.direct_read, row.reply_to)
                    (reader,) = (reader for reader in sender.readers_of(ring) if reader.ack_line == row.ack_line)
                    assert reader.rank == rank.rank
                    assert reader.write_offset == (role.target if row.direct_write else NOWHERE)
                    read[row.rank, row.ack_line] = 1
            taken = [i for row in rank.roles for i in range(row.first_receive, row.first_receive + row.receives)]
            given = [i for row in rank.roles for i in range(row.first_send, row.first_send + row.sends)]
            assert taken == list(range(len(rank.receives)))
            assert given == list(range(len(rank.sends)))
            assert set(rank.sends) == set(range(len(rank.rings)))
            assert {row.queue for row in rank.receives} == set(range(rank.queues))
        assert sum(read.values()) == sum(len(rank.readers) for rank in ranks)


@pytest.mark.parametrize("block", range(4))
def test_nothing_lies_over_anything_else(block: int) -> None:
    in_place = 0
    for seed in range(block * 60, block * 60 + 60):
        program, area = random_program(Random(seed))[0], Area(lines=128, staging_bytes=64 * 1024)
        ranks = all_ranks(program, area=area)
        for rank in ranks:
            lines = [ring.line for ring in rank.rings] + [reader.ack_line for reader in rank.readers]
            assert len(set(lines)) == len(lines)
            assert all(0 <= line < area.lines for line in lines)
            ends = 0
            for ring in sorted((ring for ring in rank.rings if not ring.reply_to), key=lambda ring: ring.line):
                assert (ring.staging % 64, ring.stride % 64) == (0, 0)
                assert ring.staging >= ends
                ends = ring.staging + ring.stride * ring.slots
            assert ends <= area.staging_bytes
        replies = Counter((ring.reply_to, ring.staging) for rank in ranks for ring in rank.rings if ring.reply_to)
        for (host, staging), rings in replies.items():
            in_place += rings
            assert rings == 1, "two replies to one message"
            assert any(ring.staging == staging and not ring.reply_to for ring in ranks[host - 1].rings)
    assert in_place > 0, "no reply reused the slot of its message"


# ---- one copy for all readers


def test_one_shot_sends_its_input_once() -> None:
    for rank in all_ranks(planned("one_shot")):
        assert [ring.readers for ring in rank.rings] == [3]
        assert len(rank.sends) == 1


def test_a_value_for_several_readers_lies_in_one_ring() -> None:
    root, *others = all_ranks(planned("one_hop", "broadcast"))
    assert [ring.readers for ring in root.rings] == [3]
    assert all(rank.rings == [] for rank in others)


def test_who_sends_into_several_queues_has_a_slot_more() -> None:
    root = all_ranks(one_message_held_back())[0]
    slots = {reader.rank: ring.slots for ring in root.rings for reader in root.readers_of(ring)}
    assert slots[2] == 2
    assert [ring.slots for ring in all_ranks(planned("one_hop", "broadcast", slots=3))[0].rings] == [4]


def test_a_lone_queue_has_the_slots_of_its_channel() -> None:
    # An order of gather in which every rank sends to the root alone.
    for rank in all_ranks(planned("optimal", "gather", slots=3))[1:]:
        assert [ring.slots for ring in rank.rings] == [3]


def test_no_memory_is_kept_for_slots_that_are_never_used() -> None:
    assert [ring.slots for ring in all_ranks(planned("one_hop", "broadcast"), count=4)[0].rings] == [1]
    assert [ring.stride for ring in all_ranks(planned("one_hop", "broadcast"), count=0)[0].rings] == [0]


# ---- no copy, in place


@pytest.mark.parametrize(
    ("algorithm", "name", "direct", "push"),
    [
        ("one_hop", "allreduce", True, True),  # the root has all inputs before it writes the sum over them
        ("one_shot", "allreduce", False, True),  # a rank may have its sum while others still read its input
        ("ring", "allreduce", True, True),
        ("one_hop", "reduce_scatter", True, True),
        ("one_hop", "allgather", True, True),
        ("one_hop", "broadcast", True, True),
    ],
)
def test_what_may_be_shared_in_place(algorithm: str, name: str, direct: bool, push: bool) -> None:
    for rank in all_ranks(planned(algorithm, name)):
        assert rank.in_place == (direct, push)


def test_own_input_and_kept_values_are_read_where_they_lie() -> None:
    no, from_input, from_output = range(3)
    root, *others = all_ranks(planned("one_hop", "reduce"))
    assert [ring.direct_read for rank in others for ring in rank.rings] == [from_input] * 3
    assert [row.direct_read for row in root.receives] == [from_input] * 3
    chain = all_ranks(planned("ring", "allreduce", "ring:3"))
    assert {ring.direct_read for rank in chain for ring in rank.rings} == {no, from_input, from_output}


def test_sums_are_pushed_to_who_only_keeps_them() -> None:
    for rank in all_ranks(planned("one_hop")):
        pushed = [(row, role) for role in rank.roles for row in rank.receives[role.first_receive :][: role.receives]]
        for row, role in pushed:
            assert row.direct_write == (role.source == NOWHERE)
    for rank in all_ranks(planned("one_hop", "broadcast")):
        assert not any(row.direct_write for row in rank.receives), "nothing is combined here"


@pytest.mark.parametrize(("name", "spec", "halved"), [
    ("broadcast", "clique:2", 1), ("scatter", "clique:2", 1), ("gather", "clique:2", 1),
    ("reduce", "clique:2", 0), ("allgather", "clique:2", 0), ("broadcast", "clique:3", 0),
])  # fmt: skip
def test_one_way_between_two_is_halved(name: str, spec: str, halved: int) -> None:
    ranks = all_ranks(planned("one_hop", name, spec))
    rows = [row for rank in ranks for row in (*rank.receives, *rank.rings)]
    assert {row.split for row in rows} == {halved}
    if halved:
        assert {row.direct_read for row in rows} == {1}
        assert {row.direct_write for rank in ranks for row in rank.receives} == {1}


def test_only_readers_of_whom_nothing_more_comes_are_waited_for() -> None:
    for rank in all_ranks(planned("one_hop")):
        for ring in rank.rings:
            # Whoever gave its input gets the sum back, and knows by it; the root of a share hears no more of it.
            assert ring.drain == (ring.direct_read == 2)


# ---- for one size


def test_an_average_ends_where_the_sum_is_complete() -> None:
    for rank in all_ranks(planned("one_hop"), averages=True):
        assert sorted(row.divisor for row in rank.roles) == [1] * (len(rank.roles) - 1) + [4]
    for rank in all_ranks(planned("one_hop")):
        assert {row.divisor for row in rank.roles} == {1}


def test_chunks_shrink_until_the_rings_fit() -> None:
    program, area = planned("ring"), Area(staging_bytes=8192)
    plan = HostPlan(program, area)
    bound = plan.bind(100_000, 4, 1 << 20)
    assert 16 <= bound.chunk_elements * 4 < 8192
    assert bound.chunk_elements % 4 == 0
    used = [sum(ring.stride * ring.slots for ring in Rank(plan, bound, r).rings if not ring.reply_to) for r in range(4)]
    assert max(used) <= 8192
    assert max(used) > 4096, "smaller than needed"
    assert HostPlan(program).bind(1000, 4, 1 << 60).extents[0].chunks == 1


def test_rings_that_never_fit_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"rings need \d+ bytes .* there are 64: use a plan with fewer trees"):
        HostPlan(planned("ring"), Area(staging_bytes=64)).bind(1000, 4, 64)


def test_too_many_lines_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"needs \d+ control lines on one rank, a segment has 3"):
        HostPlan(planned("ring"), Area(lines=3))


# ---- small messages


def test_small_messages_are_one_chunk_of_whole_blocks() -> None:
    elements = PAYLOAD_BYTES // 4 * 4 + 4  # four slices, the last of which needs a second block
    for rank in all_ranks(small(planned("one_hop")), elements):
        assert {row.chunks for row in rank.roles} == {1}
        assert {ring.stride for ring in rank.rings} == {BLOCK_BYTES, 2 * BLOCK_BYTES}
        assert all((ring.staging % BLOCK_BYTES, ring.slots) == (0, 1) for ring in rank.rings)
        assert {ring.direct_read for ring in rank.rings} == {0}
        assert not any(row.direct_write or row.reply_to for row in rank.receives)


def test_small_messages_have_a_limit() -> None:
    plan = HostPlan(small(planned("one_shot")), Area(inline_bytes=2 * BLOCK_BYTES))
    most = 2 * PAYLOAD_BYTES // 4
    plan.bind(most, 4, 64)
    with pytest.raises(UnsupportedError, match=f"{most + 1} elements of 4 bytes are too many for protocol 'll'"):
        plan.bind(most + 1, 4, 64)


# ---- successive calls


@pytest.mark.parametrize("program", [planned("one_hop"), small(planned("one_hop"))])
def test_successive_calls_lie_side_by_side(program: Program) -> None:
    plan = HostPlan(program)
    bound = plan.bind(256, 4, 1 << 16)
    step, times = plan.shifts(bound)
    area = plan.area.inline_bytes if plan.inline else plan.area.staging_bytes
    for rank in range(4):
        ends = [ring.staging + ring.stride * ring.slots for ring in Rank(plan, bound, rank).rings if not ring.reply_to]
        assert max(ends) <= step
    assert times > 1
    assert step * times <= area
    assert step % (BLOCK_BYTES if plan.inline else 64) == 0


def test_programs_are_told_apart() -> None:
    programs = [planned("one_hop"), planned("one_shot"), small(planned("one_hop")), planned("one_hop", slots=3)]
    assert len({HostPlan(program).digest for program in programs}) == 4
    assert HostPlan(planned("one_hop")).digest == HostPlan(planned("one_hop")).digest
