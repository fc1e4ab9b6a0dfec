"""Every choice can be run: its algorithm serves the collective, and its messages fit into a segment."""

from __future__ import annotations

import pytest

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines.host_plan import Area
from blinkccl.engines.registry import ENGINES
from blinkccl.runtime.plans import choose, host_plan
from support.host_rows import all_ranks
from support.planned import asked

#: S in bytes: powers of two, and one element beside each.
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
            choice = choose(name, count * itemsize * blocks, ranks, crosses=ranks == 2 and count % 2 == 0)
            plan = host_plan(wanted, choice.algorithm, choice.inline, Area())
            dtype = "uint8" if itemsize == 1 else "float64"
            for rank in all_ranks(plan, count, choice.chunk_bytes, dtype):
                assert rank.numbers.count == count
                assert not choice.inline or all(row.chunks <= 1 for row in rank.roles)


def test_chunks_are_whole_cache_lines() -> None:
    for name in COLLECTIVES:
        for nbytes in SIZES:
            assert choose(name, nbytes, 4).chunk_bytes % 64 == 0


def test_the_system_copies_only_what_is_large() -> None:
    assert choose("allreduce", 4 << 20, 2, crosses=True).cross_memory
    assert not choose("allreduce", 64 << 20, 2, crosses=True).cross_memory
    for name in set(COLLECTIVES) - {"allreduce"}:
        assert not choose(name, 1 << 20, 2).cross_memory
        assert choose(name, 1 << 20, 2, crosses=True).cross_memory == (name != "reduce")
        assert not choose(name, 1 << 10, 2, crosses=True).cross_memory


def test_small_messages_carry_their_flags_and_large_ones_do_not() -> None:
    for name in COLLECTIVES:
        for ranks in (2, 5, 16):
            assert choose(name, 64, ranks).inline
            assert not choose(name, 64 << 20, ranks).inline
