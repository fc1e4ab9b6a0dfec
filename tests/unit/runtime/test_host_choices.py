"""Every row of the table works: its algorithm supports the collective, and its messages fit into a segment."""

import pytest

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines.host_plan import Area
from blinkccl.runtime.host_table import Crossing, built_in
from blinkccl.runtime.plans import host_plan
from blinkccl.trees.algorithms.tables import Way
from support.engines import ENGINES
from support.host_rows import all_ranks
from support.planned import asked


def choose(name: str, nbytes: int, ranks: int, crossing: Crossing = Crossing.NEVER) -> tuple[Way, ...]:
    return built_in(ranks).choose(name, nbytes, crossing)


#: S in bytes: powers of two, and one element more and less.
SIZES = [2**power + beside for power in range(0, 31, 3) for beside in (-1, 0, 1)]


@pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_choice_can_be_bound(name: str, ranks: int) -> None:
    wanted = asked(f"clique:{ranks}", name, root=ranks - 1).collective
    blocks = wanted.total_blocks()
    for nbytes in SIZES:
        for itemsize in (1, 8):
            count = nbytes // (blocks * itemsize)
            dtype = "uint8" if itemsize == 1 else "float64"
            for choice in choose(name, count * itemsize * blocks, ranks, Crossing.MEASURED):
                plan = host_plan(wanted, choice.algorithm, choice.inline, Area())
                for rank in all_ranks(plan, count, choice.chunk_bytes, dtype):
                    assert rank.numbers.count == count
                    assert not choice.inline or all(row.chunks <= 1 for row in rank.roles)


def test_chunks_are_whole_cache_lines() -> None:
    for name in COLLECTIVES:
        for nbytes in SIZES:
            for choice in choose(name, nbytes, 4, Crossing.MEASURED):
                assert choice.chunk_bytes == 1 or choice.chunk_bytes % 64 == 0


def test_the_system_copies_only_large_messages() -> None:
    assert crossed("allreduce", 4 << 20) == [False, False, True]
    assert crossed("allreduce", 64 << 20) == [False, False]
    for name in set(COLLECTIVES) - {"allreduce"}:
        assert not any(crossed(name, 1 << 20, Crossing.NEVER))
        assert any(crossed(name, 1 << 20)) == (name != "reduce")
        assert all(crossed(name, 1 << 20, Crossing.WHEREVER_POSSIBLE)) == (name != "reduce")
        assert not any(crossed(name, 1 << 10, Crossing.WHEREVER_POSSIBLE))


def crossed(name: str, nbytes: int, crossing: Crossing = Crossing.MEASURED) -> list[bool]:
    return [choice.copied for choice in choose(name, nbytes, 2, crossing)]


@pytest.mark.parametrize(("name", "moves"), [("broadcast", 1), ("gather", 2), ("scatter", 2)])
def test_two_ranks_share_one_way_copies(name: str, moves: int) -> None:
    """Each rank copies every other chunk, so the moved block (S, or half of it) must have two chunks."""
    for nbytes in (128 << 10, 1 << 20, 2 << 20, 64 << 20):
        for row in choose(name, nbytes, 2, Crossing.WHEREVER_POSSIBLE):
            assert row.copied
            assert 2 * row.chunk_bytes * moves <= nbytes


def test_variants_do_the_same_in_other_ways() -> None:
    for name in COLLECTIVES:
        for nbytes in SIZES:
            rows = choose(name, nbytes, 2, Crossing.MEASURED)
            assert len({(row.algorithm, row.inline) for row in rows}) == 1
            assert len({(row.chunk_bytes, row.copied) for row in rows}) == len(rows)


def test_small_messages_carry_their_flags_and_large_ones_do_not() -> None:
    for name in COLLECTIVES:
        for ranks in (2, 5, 16):
            assert all(choice.inline for choice in choose(name, 64, ranks))
            assert not any(choice.inline for choice in choose(name, 64 << 20, ranks))
