"""The layout of connections: places do not overlap, each is on its own line, and programs of a group share."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.codegen.layout import Geometry, ProgramGroup, SegmentLayout
from blinkccl.collectives.spec import Collective
from blinkccl.errors import UsageError
from blinkccl.schedule.program import Program
from support.planned import with_homes
from support.programs import random_program

GEOMETRIES = st.builds(
    Geometry,
    parts=st.integers(1, 5),
    slots=st.integers(1, 4),
    slot_bytes=st.integers(1, 9).map(lambda n: 128 * n),
    line_bytes=st.integers(1, 9).map(lambda n: 128 * n),
)


def a_program(seed: int, name: str = "allreduce", ranks: int = 4) -> Program:
    root = 1 if name == "broadcast" else None
    program, _ = random_program(Random(seed), Collective(name, ranks, root))
    return replace(program, ranks=tuple(range(ranks)))


def places(layout: SegmentLayout, rank: int) -> list[tuple[int, int]]:
    """The places (start, end) in the segment of a rank or memory, sorted."""
    geometry = layout.geometry
    rings, counters = geometry.parts * geometry.slots, geometry.parts * 128
    spans = []
    for at in layout.connections:
        if at.home == rank:
            spans += [
                (at.ring, at.ring + rings * geometry.slot_bytes),
                (at.lines, at.lines + 2 * rings * geometry.line_bytes),
            ]
        is_staged = at.home >= layout.ranks
        if (at.home if is_staged else at.dst) == rank:
            spans.append((at.tail, at.tail + counters))
        if (at.home if is_staged else at.src) == rank:
            spans.append((at.head, at.head + counters))
        if at.dst == rank:
            spans.append((at.dst_position, at.dst_position + counters))
        if at.src == rank:
            spans.append((at.src_position, at.src_position + counters))
    return sorted(spans)


@given(st.integers(0, 30), GEOMETRIES)
def test_nothing_overlaps_and_the_segment_is_full(seed: int, geometry: Geometry) -> None:
    group = (
        ProgramGroup([a_program(seed), a_program(seed + 100, "broadcast")])
        if seed % 2
        else ProgramGroup([a_program(seed)])
    )
    if seed % 3 == 0:
        group = ProgramGroup([with_homes(a_program(seed)), a_program(seed + 100, "broadcast")])
        assert group.memories == (90, 91)
    layout = group.layout(geometry)
    assert len(layout.connections) == len(group.ways)
    assert len(layout.segment_bytes) == len(group.ranks) + len(group.memories)
    for rank, size in enumerate(layout.segment_bytes):
        reached = 0
        for start, end in places(layout, rank):
            assert start == reached
            assert start % 128 == 0
            reached = end
        assert reached == size


def test_programs_share_as_many_connections_as_the_widest_needs() -> None:
    one, two = a_program(3), a_program(4, "broadcast")
    group = ProgramGroup([one, two])
    for program in (one, two):
        ids = group.connections_of(program)
        assert len(dict.fromkeys(ids)) == len(ids) == len(program.queues)
        assert [group.ways[i] for i in ids] == [(queue.src, queue.dst, queue.dst) for queue in program.queues]
    for way in dict.fromkeys(group.ways):
        need = max(sum((q.src, q.dst) == way[:2] for q in program.queues) for program in (one, two))
        assert group.ways.count(way) == need
    # In order: the first queue of a pair has its first connection, in every program.
    first = one.queues[0]
    assert group.connections_of(one)[0] == group.ways.index((first.src, first.dst, first.dst))


def test_empty_and_mixed_groups_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one program"):
        ProgramGroup([])
    with pytest.raises(UsageError, match="same ranks"):
        ProgramGroup([a_program(1), a_program(1, ranks=3)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"parts": 0}, "parts"), ({"slots": 0}, "slots"), ({"slot_bytes": 100}, "128"), ({"line_bytes": 0}, "line_bytes")],
)
def test_geometries_out_of_range_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Geometry(**wrong)


def test_the_capacity_of_a_message_is_what_its_protocol_carries() -> None:
    geometry = Geometry(1, 2, 4096, 256)
    assert [geometry.capacity_bytes(name) for name in ("simple", "ll", "ll128")] == [4096, 128, 240]
