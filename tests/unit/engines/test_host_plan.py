"""The layout of messages in the tables of the host engine."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from programs_by_hand import one_message_held_back

from blinkccl.collectives.ops import element_type
from blinkccl.engines.host_plan import BLOCK_BYTES, INLINE, NOWHERE, PAYLOAD_BYTES, Area, HostPlan
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Channel, Program, Slice
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support import host_rows
from support.engines import ENGINES
from support.host_rows import BoundRank
from support.planned import asked
from support.programs import random_program

pytestmark = pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))


def all_ranks(
    program: Program, count: int = 1000, chunk_bytes: int = 64, area: Area | None = None, op: str = "sum"
) -> list[BoundRank]:
    return host_rows.all_ranks(HostPlan(program, area), count, chunk_bytes, op=op)


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
            receives = [i for row in rank.roles for i in range(row.first_receive, row.first_receive + row.receives)]
            sends = [i for row in rank.roles for i in range(row.first_send, row.first_send + row.sends)]
            assert receives == list(range(len(rank.receives)))
            assert sends == list(range(len(rank.sends)))
            assert set(rank.sends) == set(range(len(rank.rings)))
            assert {row.queue for row in rank.receives} == set(range(rank.numbers.queue_count))
        assert sum(read.values()) == sum(len(rank.readers) for rank in ranks)


@pytest.mark.parametrize("block", range(4))
def test_places_of_messages_do_not_overlap(block: int) -> None:
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


def test_a_ring_with_several_queues_has_one_slot_more() -> None:
    root = all_ranks(one_message_held_back())[0]
    slots = {reader.rank: ring.slots for ring in root.rings for reader in root.readers_of(ring)}
    assert slots[2] == 2
    assert [ring.slots for ring in all_ranks(planned("one_hop", "broadcast", slots=3))[0].rings] == [4]


def test_a_lone_queue_has_the_slots_of_its_channel() -> None:
    # In this plan every rank sends only to the root.
    for rank in all_ranks(planned("optimal", "gather", slots=3))[1:]:
        assert [ring.slots for ring in rank.rings] == [3]


def test_no_memory_is_kept_for_slots_that_are_never_used() -> None:
    assert [ring.slots for ring in all_ranks(planned("one_hop", "broadcast"), count=4)[0].rings] == [1]
    assert [ring.stride for ring in all_ranks(planned("one_hop", "broadcast"), count=0)[0].rings] == [0]


# ---- no copy, in place


@pytest.mark.parametrize(
    ("algorithm", "name", "direct", "push"),
    [
        ("one_hop", "allreduce", True, True),  # The root has all inputs before it writes the sum over them.
        ("one_shot", "allreduce", False, True),  # A rank may have its sum while others still read its input.
        ("ring", "allreduce", True, True),
        ("one_hop", "reduce_scatter", True, True),
        ("one_hop", "allgather", True, True),
        ("one_hop", "broadcast", True, True),
    ],
)
def test_direct_access_that_is_allowed_in_place(algorithm: str, name: str, direct: bool, push: bool) -> None:
    for rank in all_ranks(planned(algorithm, name)):
        assert rank.in_place == (direct, push)


def test_own_input_and_kept_values_are_read_directly() -> None:
    no, from_input, from_output = range(3)
    root, *others = all_ranks(planned("one_hop", "reduce"))
    assert [ring.direct_read for rank in others for ring in rank.rings] == [from_input] * 3
    assert [row.direct_read for row in root.receives] == [from_input] * 3
    chain = all_ranks(planned("ring", "allreduce", "ring:3"))
    assert {ring.direct_read for rank in chain for ring in rank.rings} == {no, from_input, from_output}


def test_sums_are_written_directly_to_ranks_that_only_keep_them() -> None:
    for rank in all_ranks(planned("one_hop")):
        pushed = [(row, role) for role in rank.roles for row in rank.receives[role.first_receive :][: role.receives]]
        for row, role in pushed:
            assert row.direct_write == (role.source == NOWHERE)
    for rank in all_ranks(planned("one_hop", "broadcast")):
        assert not any(row.direct_write for row in rank.receives), "a broadcast reduces nothing"


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


def test_only_readers_that_send_no_answer_are_waited_for() -> None:
    for rank in all_ranks(planned("one_hop")):
        for ring in rank.rings:
            # A sender of input gets the sum back, which proves that its input was read; a share's root gets no answer.
            assert ring.drain == (ring.direct_read == 2)


# ---- for one size


def test_an_average_ends_where_the_sum_is_complete() -> None:
    for rank in all_ranks(planned("one_hop"), op="avg"):
        assert sorted(row.divisor for row in rank.roles) == [1] * (len(rank.roles) - 1) + [4]
    for rank in all_ranks(planned("one_hop")):
        assert {row.divisor for row in rank.roles} == {1}


def test_chunks_shrink_until_the_rings_fit() -> None:
    program, area = planned("ring"), Area(staging_bytes=8192)
    ranks = all_ranks(program, 100_000, 1 << 20, area)
    (elements,) = {row.chunk_elements for rank in ranks for row in rank.roles}
    assert 16 <= elements * 4 < 8192
    assert elements % 4 == 0
    used = [sum(ring.stride * ring.slots for ring in rank.rings if not ring.reply_to) for rank in ranks]
    assert max(used) <= 8192
    assert max(used) > 4096, "smaller than needed"
    assert {row.chunks for rank in all_ranks(program, 1000, 1 << 60) for row in rank.roles} == {1}


def test_trees_on_rails_have_equally_many_chunks() -> None:
    """Trees that take turns on a cable then get its capacity by their weights, as the plan assumes."""
    program = planned("optimal", spec="dgx-1v")
    rails = [1] * len(program.queues)
    for count, nbytes in ((100_000, 4096), (1000, 64), (3, 64), (0, 64), (100_000, 1 << 60)):
        expected = bind(program, count, 4, nbytes, even_chunks=True).extents
        for rank in host_rows.all_ranks(HostPlan(program, None, rails), count, nbytes):
            for row in rank.roles:
                extent = expected[row.share]
                assert (row.length, row.chunks) == (extent.length, extent.chunks)
                assert row.chunks <= 1 or row.chunk_elements == extent.chunk_elements


def test_rings_that_never_fit_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"rings need \d+ bytes .* segment has 64: use a plan with fewer trees"):
        all_ranks(planned("ring"), area=Area(staging_bytes=64))


def test_too_many_lines_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"needs \d+ counters in shared .*, but a group has 3 per rank"):
        HostPlan(planned("ring"), Area(lines=3))


# ---- small messages


def test_small_messages_are_one_chunk_of_whole_blocks() -> None:
    elements = PAYLOAD_BYTES // 4 * 4 + 4  # Four slices, of which the last needs a second block.
    for rank in all_ranks(small(planned("one_hop")), elements):
        assert {row.chunks for row in rank.roles} == {1}
        assert {ring.stride for ring in rank.rings} == {BLOCK_BYTES, 2 * BLOCK_BYTES}
        assert all((ring.staging % BLOCK_BYTES, ring.slots) == (0, 1) for ring in rank.rings)
        assert {ring.direct_read for ring in rank.rings} == {0}
        assert not any(row.direct_write or row.reply_to for row in rank.receives)


def test_small_messages_have_a_limit() -> None:
    program, area = small(planned("one_shot")), Area(inline_bytes=2 * BLOCK_BYTES)
    most = 2 * PAYLOAD_BYTES // 4
    all_ranks(program, most, area=area)
    with pytest.raises(UnsupportedError, match=f"{most + 1} elements of 4 bytes are too many for protocol 'll'"):
        all_ranks(program, most + 1, area=area)


# ---- successive calls


@pytest.mark.parametrize("program", [planned("one_hop"), small(planned("one_hop"))])
def test_successive_calls_lie_side_by_side(program: Program) -> None:
    plan = HostPlan(program)
    unit, area = (BLOCK_BYTES, plan.area.inline_bytes) if plan.inline else (64, plan.area.staging_bytes)
    for rank in host_rows.all_ranks(plan, 256, 1 << 16):
        step, times = rank.numbers.shift_bytes, rank.numbers.shifts
        ends = [ring.staging + ring.stride * ring.slots for ring in rank.rings if not ring.reply_to]
        assert max(ends) <= step
        assert times > 1
        assert step * times <= area
        assert step % unit == 0


# ---- the same everywhere


@given(
    cuts=st.lists(st.fractions(0, 1, max_denominator=40), max_size=3),
    count=st.integers(0, 5000),
    dtype=st.sampled_from(["uint8", "float16", "float32", "float64"]),
    chunk_bytes=st.integers(1, 1 << 14),
)
@example([Fraction(1234567890123456789012, 3**45)], 3000, "float32", 64)  # Beyond the range of the library's numbers.
def test_slices_are_cut_as_for_every_other_engine(
    cuts: list[Fraction], count: int, dtype: str, chunk_bytes: int
) -> None:
    program, ends = planned("one_hop", "scatter", "clique:3"), [Fraction(0), *sorted(cuts), Fraction(1)]
    slices = tuple(Slice(part.block, *pair) for part in program.slices for pair in pairwise(ends))
    roles = tuple(
        replace(role, slice=role.slice * (len(ends) - 1) + part)
        for role in program.roles
        for part in range(len(ends) - 1)
    )
    program = replace(program, slices=slices, roles=roles)
    itemsize = element_type(dtype).itemsize
    bound = bind(program, count, itemsize, chunk_bytes)
    for rank, rows in enumerate(host_rows.all_ranks(HostPlan(program), count, chunk_bytes, dtype)):
        roles_of_rank = [role for role in program.roles if role.rank == rank]
        assert len(rows.roles) == len(roles_of_rank)
        for row, role in zip(rows.roles, roles_of_rank, strict=True):
            extent = bound.extents[role.slice]
            assert (row.length, row.chunks) == (extent.length, extent.chunks)
            for place, expected in (
                (row.source, bound.source(rank, role.slice) if role.contributes else None),
                (row.target, bound.target(rank, role.slice) if role.keeps else None),
            ):
                assert place == (NOWHERE if expected is None else expected * itemsize)


def test_signatures_differ_by_call_and_agree_on_ranks() -> None:
    def signature(program: Program, area: Area | None = None, **changed: Any) -> int:
        ranks = host_rows.all_ranks(HostPlan(program, area), **{"count": 1000, "chunk_bytes": 64} | changed)
        (signature,) = {rank.numbers.signature for rank in ranks}
        return signature

    one_hop = planned("one_hop")
    signatures = [
        signature(one_hop),
        signature(one_hop, count=1001),
        signature(one_hop, chunk_bytes=128),
        signature(one_hop, dtype="int32"),
        *(signature(one_hop, op=op) for op in ("avg", "premul_sum", "max")),
        signature(one_hop, area=Area(staging_bytes=1 << 20)),
        signature(planned("one_shot")),
        signature(small(one_hop)),
        *(signature(lower(ALGORITHMS["one_hop"].plan(asked("clique:4", "broadcast", root=root)))) for root in (0, 1)),
    ]
    low = {each & 0xFFFFFF for each in signatures}
    assert len(low) == len(signatures), "the part in small messages is the same"
    assert signature(one_hop) == signatures[0]


def test_digests_differ_by_program() -> None:
    programs = [planned("one_hop"), planned("one_shot"), small(planned("one_hop")), planned("one_hop", slots=3)]
    assert len({HostPlan(program).digest for program in programs}) == 4
    assert HostPlan(planned("one_hop")).digest == HostPlan(planned("one_hop")).digest
