"""Groups and measured tables: all ranks go by the same one, and what cannot run is replaced on all of them alike."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from job import Ran

from blinkccl.cost.choice.host_table import NO_LIMIT, HostChoice
from blinkccl.runtime import tuned
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.tuned import TunedCell, TunedFile

COUNT = 40_001


def written(directory: Path, ranks: int, row: HostChoice, name: str = "allreduce") -> str:
    """A table in a cache of its own, whose only row serves every size of one collective."""
    path = tuned.path_of(ranks, {"BLINK_CACHE": str(directory)})
    assert path is not None
    cell = TunedCell(name, 1 << 20, 0, NO_LIMIT, "2026-01-01", 1.0, 2.0, 2, (row,))
    tuned.write(path, TunedFile(tuned.machine(), ranks, (cell,)))
    return str(directory)


def summed(comm: Communicator, *caches: str) -> str:
    """AllReduce and AllToAll by another communicator, made with this rank's cache; where its table is from."""
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
    cache = written(tmp_path / "one", ranks, HostChoice("ring", False, 64 << 10))
    found = ran(ranks, summed, *[cache] * ranks)
    assert set(found) == {str(tuned.path_of(ranks, {"BLINK_CACHE": cache}))}


def test_ranks_with_different_tables_go_by_none(ran: Ran, tmp_path: Path) -> None:
    one = written(tmp_path / "one", 2, HostChoice("ring", False, 64 << 10))
    other = written(tmp_path / "other", 2, HostChoice("one_hop", False, 64 << 10))
    for caches in ((one, other), (one, str(tmp_path / "none")), (str(tmp_path / "none"), one)):
        assert ran(2, summed, *caches) == ["", ""]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (HostChoice("ring", False, 64 << 10), "alltoall"),  # which rings do not serve
        (HostChoice("one_hop", True, 64 << 10), "allreduce"),  # flags inside messages that are too long for it
    ],
)
def test_what_cannot_run_is_replaced_on_all_ranks(ran: Ran, tmp_path: Path, row: HostChoice, name: str) -> None:
    cache = written(tmp_path / "one", 2, row, name)
    assert all(ran(2, summed, cache, cache))
