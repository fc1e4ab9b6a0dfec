"""The double of NCCL works without Blink, and the client notices where a library under it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from preloaded import DOUBLES, Preloaded

from doubles.build import compile_library

ALONE = {"LD_PRELOAD": None, "sizes": "0,3,1000,4099"}


@pytest.mark.parametrize(("mode", "ranks"), [("threads", 3), ("all", 4), ("group", 2), ("threads", 1), ("process", 4)])
@pytest.mark.parametrize("seed", [0, 5])
def test_client_finds_everything_right(preloaded: Preloaded, mode: str, ranks: int, seed: int) -> None:
    outcome = preloaded.client(mode, ranks, cases="all", BLINK_DOUBLE_SEED=seed, **ALONE).right()
    assert {one.err for one in outcome.ended} == {""}
    lines = [line for one in outcome.ended for line in one.said]
    assert len({line["case"] for line in lines}) == 21
    assert len(lines) == 21 * (ranks if mode in ("threads", "process") else 1)


def test_client_notices_a_collective_that_did_nothing(preloaded: Preloaded, tmp_path: Path) -> None:
    lazy = compile_library([DOUBLES / "client" / "lazy_allreduce.c"], tmp_path / "liblazy.so")
    (ended,) = preloaded.client("all", 2, **ALONE | {"LD_PRELOAD": lazy}).ended
    assert ended.code == 1
    assert "output of ncclAllReduce" in ended.said[0]["what"]


def test_nobody_waits_for_a_rank_that_died(preloaded: Preloaded) -> None:
    dying = [{}, {"BLINK_DOUBLE_FAIL": "cuMemcpyDtoHAsync_v2:40:2"}]
    outcome = preloaded.client("process", 2, cases="types,sizes", each=dying, timeout_s=20, **ALONE)
    assert [one.code for one in outcome.ended] == [1, 1]
