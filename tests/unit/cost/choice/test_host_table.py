"""Measured ranges in a host's table: they serve exactly where they were measured, and all else is as before."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.cost.choice.host_table import NO_LIMIT, Crossing, HostChoice, MeasuredRange, built_in, with_measured
from support.examples import examples

LIMITS = st.lists(st.integers(0, 1 << 30), min_size=2, max_size=8, unique=True).map(sorted)
ROWS = (
    HostChoice("ring", False, 128 << 10),
    HostChoice("ring", False, 8 << 20, variant=True, cross_memory=True, parts=2),
)


@given(st.sampled_from(sorted(COLLECTIVES)), st.integers(2, 9), LIMITS, st.data())
@examples(200)
def test_ranges_serve_where_they_were_measured_and_nowhere_else(name, ranks, limits, data):
    pairs = list(zip(limits[::2], limits[1::2], strict=False))
    found = [
        MeasuredRange(name, least, below, tuple(replace(row, chunk_bytes=64 << place) for row in ROWS))
        for place, (least, below) in enumerate(pairs)
    ]
    base, table = built_in(ranks), with_measured(built_in(ranks), data.draw(st.permutations(found)), "a file")
    sizes = {size + beside for size in (*limits, *(row.below for row in base.rows[name])) for beside in (-1, 0, 1)}
    for size in (size for size in sizes if 0 <= size < NO_LIMIT):
        for crossing in Crossing:
            there = [one for one in found if one.least <= size < one.below]
            got = table.choose(name, size, crossing)
            if not there:
                assert got == base.choose(name, size, crossing) or _without_limits(got) == _without_limits(
                    base.choose(name, size, crossing)
                )
                continue
            wanted = [row for row in there[0].rows if row.cross_memory or crossing is not Crossing.WHEREVER_POSSIBLE]
            wanted = [row for row in wanted if not row.cross_memory or crossing is not Crossing.NEVER]
            assert [(row.algorithm, row.cross_memory) for row in got] == [
                (row.algorithm, row.cross_memory) for row in wanted
            ]
    for other in set(COLLECTIVES) - {name}:
        assert table.rows[other] == base.rows[other]


def _without_limits(rows):
    return [replace(row, below=0) for row in rows]


def test_the_digest_is_of_the_rows():
    base = built_in(2)
    same = with_measured(base, [], "a file")
    other = with_measured(base, [MeasuredRange("allreduce", 0, 1 << 20, ROWS[:1])], "a file")
    assert base.digest == same.digest != other.digest
    assert 0 <= base.digest < 1 << 62
    assert built_in(3).digest != base.digest
