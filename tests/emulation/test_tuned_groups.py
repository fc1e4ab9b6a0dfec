"""Groups and measured tables: all ranks use the same one, and replace the same rows if they cannot run."""

import os
from pathlib import Path

import numpy as np
import pytest
from job import Ran

from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.host_table import machine, path_of_host
from blinkccl.trees.algorithms.tables import BUILT_IN, HOST, INLINE, NO_LIMIT, Cell, MeasuredTable, Time, Way, write

COUNT = 40_001


def written(directory: Path, ranks: int, way: Way, name: str = "allreduce") -> str:
    """Write a table to its own cache; its only row serves every size of one collective."""
    path = path_of_host(ranks, {"BLINK_CACHE": str(directory)})
    assert path is not None
    times = Time.of([way], 1.0, 2), Time(BUILT_IN, "", 2.0, 2)
    cell = Cell(name, -1, tuple(range(ranks)), 1 << 20, 0, NO_LIMIT, "2026-01-01", times)
    write(path, MeasuredTable(machine(), "a test", HOST, machine(), cells=(cell,)))
    return str(directory)


def summed(comm: Communicator, *caches: str) -> str:
    """AllReduce and AllToAll on another communicator with this rank's cache; return the source of its table."""
    os.environ["BLINK_CACHE"] = caches[comm.rank]
    part = comm.split(0)
    values = np.arange(COUNT, dtype=np.float64) + comm.rank
    part.allreduce(values)
    assert (values == comm.size * np.arange(COUNT) + sum(range(comm.size))).all()
    blocks = np.arange(comm.size, dtype=np.float64) + 10 * comm.rank
    assert (part.alltoall(blocks, np.empty_like(blocks)) == comm.rank + 10.0 * np.arange(comm.size)).all()
    source: str = part.group._table.source
    return source


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_table_that_all_ranks_have_serves_them(ran: Ran, tmp_path: Path, ranks: int) -> None:
    cache = written(tmp_path / "one", ranks, Way("ring", "", 64 << 10))
    sources = ran(ranks, summed, *[cache] * ranks)
    assert set(sources) == {str(path_of_host(ranks, {"BLINK_CACHE": cache}))}


def test_different_tables_are_not_used(ran: Ran, tmp_path: Path) -> None:
    one = written(tmp_path / "one", 2, Way("ring", "", 64 << 10))
    other = written(tmp_path / "other", 2, Way("one_hop", "", 64 << 10))
    for caches in ((one, other), (one, str(tmp_path / "none")), (str(tmp_path / "none"), one)):
        assert ran(2, summed, *caches) == ["", ""]


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (Way("ring", "", 64 << 10), "alltoall"),  # rings do not support alltoall
        (Way("one_hop", INLINE, 64 << 10), "allreduce"),  # the messages are too long for flags inside
    ],
)
def test_rows_that_cannot_run_are_replaced_on_all_ranks(ran: Ran, tmp_path: Path, way: Way, name: str) -> None:
    cache = written(tmp_path / "one", 2, way, name)
    assert all(ran(2, summed, cache, cache))
