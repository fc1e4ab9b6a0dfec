"""Groups with one order of summation: an element has the bits of that order, at any size, place and collective."""

import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job import PATIENT_S, Ran, Start
from test_tuned_groups import written

from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.spec import Collective
from blinkccl.errors import LaunchError, PlanMismatchError, UnsupportedError
from blinkccl.runtime.communicator import Communicator
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.tables import Way
from support.orders import evaluated, rough, same_bits

#: Elements of every rank, repeated in buffers of any length.
TILE = 1009
#: 1 byte (for a type of that size) to 100 MB.
DECADES = tuple(10**power for power in range(9))


def tiled(values: Any, count: int) -> Any:
    """Return ``count`` elements of the repeated tile."""
    return np.resize(values, count)


def in_rank_order(size: int) -> str:
    return "+".join(map(str, range(size)))


def ordered(comm: Communicator, wanted: str | None, prefix: str = "ordered") -> closing[Communicator]:
    """Open another communicator of the same ranks, deterministic or not."""
    made = Communicator.create(
        comm.store, comm.rank, comm.size, prefix=prefix, deadline_s=PATIENT_S, deterministic=wanted
    )
    return closing(made)


def sums(
    comm: Communicator, wanted: str, order: str, nbytes: tuple[int, ...], kinds: tuple[tuple[str, str], ...]
) -> int:
    """Run AllReduce, Reduce and ReduceScatter of ``nbytes``; return the number of elements compared."""
    with ordered(comm, wanted) as group:
        assert group.group.deterministic == wanted
        return sum(compared(group, order, size, *kind) for kind in kinds for size in nbytes)


def compared(comm: Communicator, order: str, nbytes: int, dtype: str, op: str) -> int:
    """Compare every element of every result; above a megabyte only the AllReduce's."""
    row, chosen = element_type(dtype), operation(op)
    values = rough(row, comm.size, TILE, seed=comm.size)
    factors = {rank: row.scalar(0.3 + rank) for rank in range(comm.size)} if chosen.scales else None
    scale = None if factors is None else 0.3 + comm.rank
    expected = evaluated(order, dict(enumerate(values)), row, chosen, factors)
    count = max(1, nbytes // row.itemsize)
    send = tiled(values[comm.rank], count)
    assert same_bits(comm.allreduce(send, np.empty_like(send), op, scale=scale), tiled(expected, count)), (
        "allreduce",
        nbytes,
    )
    if nbytes > 1_000_000:
        return count
    root = count % comm.size
    reduced = comm.reduce(send, np.empty_like(send), op, root=root, scale=scale)
    assert comm.rank != root or same_bits(reduced, tiled(expected, count)), ("reduce", nbytes)
    block = -(-count // comm.size)
    part = comm.reduce_scatter(tiled(values[comm.rank], block * comm.size), None, op, scale=scale)
    mine = tiled(expected, block * comm.size)[comm.rank * block :][:block]
    assert same_bits(part, mine), ("reduce_scatter", nbytes)
    return 2 * count + block


def test_two_ranks_over_nine_decades(ran: Ran) -> None:
    """From one byte to 100 MB."""
    ran(2, sums, "order", in_rank_order(2), DECADES[:4], (("float8_e5m2", "sum"),))
    assert ran(2, sums, "order", in_rank_order(2), DECADES, (("float32", "sum"),))[0] > 25_000_000


@pytest.mark.parametrize("size", [3, 5, 8])
def test_more_ranks_and_narrow_types(ran: Ran, size: int) -> None:
    kinds = (
        ("bfloat16", "sum"),
        ("float16", "avg"),
        ("bfloat16", "premul_sum"),
        ("float32", "sum"),
        ("float32", "min"),
    )
    ran(size, sums, "order", in_rank_order(size), DECADES[: 7 if size < 5 else 5], kinds)


def with_cache(comm: Communicator, cache: str, *arguments: Any) -> int:
    os.environ["BLINK_CACHE"] = cache
    return sums(comm, *arguments)


def test_a_measured_table_with_another_order_gives_way(ran: Ran, tmp_path: Path) -> None:
    """A ring sums every part in another order."""
    cache = written(tmp_path / "one", 3, Way("ring", "", 64 << 10))
    arguments = in_rank_order(3), (10, 100_000), (("float32", "sum"),)
    ran(3, with_cache, cache, "order", *arguments)
    with pytest.raises(AssertionError, match="allreduce"):
        ran(3, with_cache, cache, "", *arguments)


def test_calls_without_the_order_are_rejected_by_name(ran: Ran) -> None:
    assert ran(3, refusals) == [None] * 3


def refusals(comm: Communicator) -> None:
    os.environ["BLINK_DETERMINISTIC"] = "order"
    with ordered(comm, None) as group:
        assert group.group.deterministic == "order"
        ring = lower(algorithm("ring").plan(Request(parse_spec("ring:3"), Collective("allreduce", 3), (0, 1, 2))))
        values = np.ones(9, np.float32)
        assert "does not sum in rank order: rank " in refused(lambda: group.run(ring, values, values.copy()))
        part = group.split(0)
        assert part.group.deterministic == "order"
    os.environ["BLINK_DETERMINISTIC"] = "bits"
    with pytest.raises(LaunchError, match="BLINK_DETERMINISTIC='bits': expected order, or nothing"):
        ordered(comm, None, "unmade")


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(UnsupportedError) as caught:
        call()
    return str(caught.value)


def test_the_order_needs_all_ranks(start: Start) -> None:
    errors = start(2, differing).values()
    for error in errors:
        assert re.search(
            r"ranks disagree on BLINK_DETERMINISTIC: rank 0 \(process .*\) has order, rank 1 \(.*\) has nothing; set",
            error,
        )


def differing(comm: Communicator) -> str:
    """One rank requests an order, the other does not."""
    with pytest.raises(PlanMismatchError) as caught:
        ordered(comm, "order" if comm.rank == 0 else "")
    return str(caught.value)
