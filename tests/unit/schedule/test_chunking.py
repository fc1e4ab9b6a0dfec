"""Programs for given sizes: no element is cut or lost."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import Collective
from blinkccl.errors import ScheduleError, UsageError
from blinkccl.schedule.chunking import Bound, bind, boundary
from blinkccl.schedule.program import Program, Slice

#: The boundaries of slices, and the size.
SIZES = given(
    cuts=st.lists(st.fractions(0, 1, max_denominator=60), max_size=5),
    count=st.integers(0, 5000),
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
    chunk_bytes=st.integers(1, 3000),
)


def program(*cuts: Fraction, name: str = "allreduce", n: int = 2) -> Program:
    points = [Fraction(0), *cuts, Fraction(1)]
    blocks = [item.block for item in Collective(name, n).items()]
    slices = tuple(Slice(b, x, y) for b in blocks for x, y in itertools.pairwise(points))
    return Program(Collective(name, n), tuple(range(n)), Fraction(1), slices, (), (), ())


def spans(bound: Bound) -> list[tuple[int, int, int]]:
    return [(e.offset, e.length, e.chunks) for e in bound.extents]


def test_shares_fall_on_16_bytes() -> None:
    assert spans(bind(program(Fraction(1, 3)), 100, 4, 64)) == [(0, 32, 2), (32, 68, 5)]
    assert spans(bind(program(Fraction(1, 3)), 100, 1, 64)) == [(0, 32, 1), (32, 68, 2)]
    assert spans(bind(program(Fraction(1, 3)), 100, 16, 64)) == [(0, 33, 9), (33, 67, 17)]
    assert spans(bind(program(Fraction(1, 3)), 100, 32, 64)) == [(0, 33, 17), (33, 67, 34)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, [(0, 0, 0), (0, 0, 0)]),
        (1, [(0, 0, 0), (0, 1, 1)]),
        (4, [(0, 0, 0), (0, 4, 1)]),
        (8, [(0, 4, 1), (4, 4, 1)]),
    ],
)
def test_fewer_elements_than_shares(count: int, expected: list[tuple[int, int, int]]) -> None:
    assert spans(bind(program(Fraction(1, 2)), count, 4, 1024)) == expected


@pytest.mark.parametrize(
    ("itemsize", "chunk_bytes", "elements"),
    [
        (4, 1, 1),
        (4, 4, 1),
        (4, 15, 3),
        (4, 16, 4),
        (4, 31, 4),
        (4, 1000, 248),
        (8, 24, 2),
        (2, 17, 8),
        (1, 15, 15),
        (32, 16, 1),
        (32, 100, 3),
    ],
)
def test_chunks_are_whole_groups_if_they_hold_one(itemsize: int, chunk_bytes: int, elements: int) -> None:
    assert bind(program(), 10_000, itemsize, chunk_bytes).chunk_elements == elements


@SIZES
def test_slices_tile_every_count(cuts: list[Fraction], count: int, itemsize: int, chunk_bytes: int) -> None:
    bound = bind(program(*sorted(cuts)), count, itemsize, chunk_bytes)
    reached = 0
    for extent in bound.extents:
        assert extent.offset == reached or extent.length == 0
        assert extent.offset % max(1, 16 // itemsize) == 0 or extent.offset == count
        assert (extent.chunks - 1) * bound.chunk_elements < max(1, extent.length)
        assert extent.chunks * bound.chunk_elements >= extent.length
        reached = extent.offset + extent.length
    assert reached == count


def test_the_places_of_slices_in_the_buffers() -> None:
    bound = bind(program(Fraction(1, 2), name="allgather", n=3), 8, 4, 64)
    assert [bound.source(1, i) for i in range(6)] == [None, None, 0, 4, None, None]
    assert [bound.target(1, i) for i in range(6)] == [0, 4, 8, 12, 16, 20]
    assert bound.contributions(0) == 1
    scattered = bind(program(name="reduce_scatter", n=3), 8, 4, 64)
    assert [scattered.source(2, i) for i in range(3)] == [0, 8, 16]
    assert [scattered.target(2, i) for i in range(3)] == [None, None, 0]
    assert scattered.contributions(0) == 3


def test_boundaries_never_leave_the_block() -> None:
    assert boundary(Fraction(-1, 2), 100, 4) == 0
    assert boundary(Fraction(3, 2), 100, 4) == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 4, 64), "count must be at least 0, got -1"),
        ((1, 0, 64), "itemsize must be at least 1"),
        ((1, 4, 0), "chunk_bytes must be at least 1"),
    ],
)
def test_numbers_out_of_range(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bind(program(), *arguments)


def test_a_block_that_the_collective_does_not_have_is_refused() -> None:
    wrong = Program(Collective("allreduce", 2), (0, 1), Fraction(1), (Slice(7, Fraction(0), Fraction(1)),), (), (), ())
    with pytest.raises(ScheduleError, match="slice 0: allreduce on 2 ranks has no block 7"):
        bind(wrong, 4, 4, 64)


@SIZES
def test_even_chunks_are_as_many_for_every_slice(
    cuts: list[Fraction], count: int, itemsize: int, chunk_bytes: int
) -> None:
    arguments = program(*sorted(cuts)), count, itemsize, chunk_bytes
    even, equal = bind(*arguments, even_chunks=True), bind(*arguments)
    most, group = max(extent.chunks for extent in equal.extents), max(1, 16 // itemsize)
    for extent, same in zip(even.extents, equal.extents, strict=True):
        assert (extent.offset, extent.length) == (same.offset, same.length)
        assert same.chunk_elements == equal.chunk_elements
        assert (extent.chunks - 1) * extent.chunk_elements < max(1, extent.length)
        assert extent.chunks * extent.chunk_elements >= extent.length
        assert extent.chunk_elements <= even.chunk_elements
        # As many as the largest slice has; fewer only if chunks are rounded up to whole groups.
        assert extent.chunks <= most
        assert (extent.chunk_elements - group) * most < max(1, extent.length)


def test_even_chunks_of_unequal_slices() -> None:
    bound = bind(program(Fraction(1, 4)), 1600, 4, 1200, even_chunks=True)
    assert spans(bound) == [(0, 400, 4), (400, 1200, 4)]
    assert [extent.chunk_elements for extent in bound.extents] == [100, 300]
