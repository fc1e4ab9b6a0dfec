"""The barrier that names who is missing, with threads as ranks and a store in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module

import pytest

from blinkccl.errors import DeadlineError

dist = pytest.importorskip("torch.distributed", reason="needs PyTorch")
MonitoredBarrier = import_module("blinkccl.torch_backend.monitored").MonitoredBarrier

LONG, SHORT = timedelta(seconds=20), timedelta(seconds=0.2)


def outcomes(ranks, size=4, timeout=LONG, wait_all_ranks=False):
    """``{rank: None or the error's text}`` of those ``ranks`` that come."""
    store = dist.HashStore()

    def one(rank):
        try:
            MonitoredBarrier(store, rank, size)(timeout, wait_all_ranks)
        except DeadlineError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(ranks)) as pool:
        return dict(zip(ranks, pool.map(one, ranks), strict=True))


def test_all_come():
    assert outcomes([0, 1, 2, 3]) == dict.fromkeys(range(4))
    assert outcomes([0], size=1) == {0: None}


def test_the_first_that_is_missing_is_named():
    found = outcomes([0, 1], timeout=SHORT)
    assert "Rank 2 failed to pass monitoredBarrier in 200 ms" in found[0]
    assert "Rank 1 successfully reached monitoredBarrier, but received errors" in found[1]


def test_all_that_are_missing_are_named():
    assert "Ranks 1, 3 failed to pass" in outcomes([0, 2], timeout=SHORT, wait_all_ranks=True)[0]


def test_no_time_at_all():
    assert "Rank 0 timed out in monitoredBarrier after 0 ms" in outcomes([0], timeout=timedelta(0))[0]
