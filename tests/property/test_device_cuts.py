"""The device layer cuts slices as ``bind`` does, for any count, and its parts tile them from any first part."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blinkccl.codegen.channels import MAX_DENOMINATOR
from blinkccl.collectives.ops import DTYPE_CODES
from blinkccl.collectives.spec import Collective
from blinkccl.schedule.chunking import bind, largest_share
from blinkccl.schedule.dealing import TURNS
from blinkccl.schedule.program import Program, Slice
from support.device_cuts import pieces
from support.engines import ENGINES
from support.examples import examples
from support.generated import LaunchCall

pytestmark = pytest.mark.skipif(ENGINES["generated"].missing is not None, reason=str(ENGINES["generated"].missing))

#: The finest cuts that generated code serves; numerator · count does not fit into a word.
FINE = st.integers(0, MAX_DENOMINATOR - 1).map(lambda n: Fraction(n, MAX_DENOMINATOR - 1))
ITEMSIZE = {"int8": 1, "float16": 2, "float32": 4, "float64": 8}


def program(cuts: list[Fraction]) -> Program:
    points = [Fraction(0), *sorted(set(cuts) - {0, 1}), Fraction(1)]
    slices = tuple(Slice(None, start, stop) for start, stop in itertools.pairwise(points))
    return Program(Collective("allreduce", 2), (0, 1), Fraction(1), slices, (), (), ())


@example(
    cuts=[Fraction(1, 3)], count=11, dtype="float32", groups=1, parts=1, least=0, turn=0
)  # a tail after the chunks of all rounds
@example(cuts=[], count=1, dtype="int8", groups=1, parts=2, least=0, turn=0)  # fewer groups than parts
@examples(120)
@given(
    cuts=st.lists(st.fractions(0, 1, max_denominator=60) | FINE, max_size=5),
    count=st.integers(0, 5000) | st.integers(0, 2**45),
    dtype=st.sampled_from(list(ITEMSIZE)),
    groups=st.integers(1, 60),
    parts=st.integers(1, 5),
    least=st.integers(0, 3000),
    turn=st.integers(0, TURNS - 1),
)
def test_chunks_are_those_of_bind(
    cuts: list[Fraction], count: int, dtype: str, groups: int, parts: int, least: int, turn: int
) -> None:
    of, itemsize = program(cuts), ITEMSIZE[dtype]
    group, share = 16 // itemsize, largest_share(of)
    call = LaunchCall(count=count, dtype=DTYPE_CODES[dtype], chunk_bytes=16 * groups)
    call.parts = 1
    bound = bind(of, count, itemsize, 16 * groups, even_chunks=share is not None)
    longest = -(-max(extent.length for extent in bound.extents) // group)
    # Device code knows the fractions of slices, but not the longest slice for this count.
    known = longest if share is None else -(-share.numerator * count // (share.denominator * group))
    most, rounds = -(-longest // groups), -(-known // groups)
    assert abs(rounds - most) <= 1
    whole = pieces(of, call, 0)
    for expected, piece in zip(bound.extents, whole, strict=True):
        assert (piece.offset, piece.length) == (expected.offset, expected.length)
        assert piece.chunks <= max(most, rounds)
        if most == rounds:
            assert piece.chunks == expected.chunks
            assert piece.chunks <= 1 or piece.chunk_elements == expected.chunk_elements
    call.parts, call.piece_bytes = parts, 16 * least
    begin = turn * parts // TURNS
    begins = (turn,) * len(of.slices)
    round_all = [pieces(of, call, (begin + step) % parts, begins) for step in range(parts)]
    for extent, *own in zip(whole, *round_all, strict=True):
        used = [piece for piece in own if piece.length]
        assert own[: len(used)] == used, "the pieces lie next to each other"
        reached = extent.offset
        for piece in used:
            assert piece.offset == reached
            assert 0 < piece.chunk_elements <= group * groups
            assert piece.chunk_elements % group == 0
            assert piece.chunks == -(-piece.length // piece.chunk_elements)
            reached += piece.length
        assert reached == extent.offset + extent.length
        whole_groups = -(-extent.length // group)
        assert len(used) == min(parts, whole_groups, -(-whole_groups // max(1, least)))
        assert all(piece.chunks == 0 for piece in own[len(used) :])


@pytest.mark.parametrize("parts", [1, 4])
def test_every_share_takes_equally_many_rounds(parts: int) -> None:
    """An AllReduce on a DGX-1V has shares of sixths, eighths, a twelfth and twenty-fourths."""
    of = program([Fraction(n, 24) for n in (4, 8, 11, 14, 16, *range(17, 24))])
    call = LaunchCall(count=24 << 20, dtype=DTYPE_CODES["float32"], chunk_bytes=1 << 18)
    call.parts = parts
    rounds = (4 << 22) // (parts << 18)
    for part in range(parts):
        assert [piece.chunks for piece in pieces(of, call, part)] == [rounds] * 13
