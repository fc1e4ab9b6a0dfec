"""Collective calls as text, as the number that native code compares, and as a collective among ranks."""

import itertools

import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import UsageError


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_call_fits_into_a_number(name: str) -> None:
    for dtype, op, root in itertools.product(DTYPES, OPS, (0, 3, 2**31)):
        call = CollectiveCall(name, dtype, 12345, op, root)
        assert call.number() < 2**64
        assert CollectiveCall.from_number(call.number(), 12345) == call


def test_a_call_of_another_version_reads_as_a_question_mark() -> None:
    assert str(CollectiveCall.from_number(0xFFFFFF, 9)) == "? of 9 × ?"
    assert CollectiveCall.from_number(0, 0).collective == "nothing yet"


def test_the_text_of_a_call_has_only_its_own_fields() -> None:
    assert str(CollectiveCall("allgather", "int8", 5, "sum", 2)) == "allgather of 5 × int8"
    assert str(CollectiveCall("reduce", "int8", 5, "max", 2)) == "reduce of 5 × int8, max, root 2"


def test_a_call_is_of_a_collective_among_ranks() -> None:
    for collective in (
        Collective("reduce", 4, root=3),
        Collective("sendrecv", 4, src=2, dst=1),
        Collective("alltoall", 4),
    ):
        assert CollectiveCall.of(collective, "int8", 5).among(4) == collective
    with pytest.raises(UsageError, match="unknown collective 'sum'"):
        CollectiveCall("sum", "int8", 5).among(4)
    with pytest.raises(UsageError, match="root 4 is outside"):
        CollectiveCall("reduce", "int8", 5, root=4).among(4)
