"""The client of these tests detects a library that does nothing."""

from pathlib import Path

from preloaded import DOUBLES, Preloaded

from doubles.build import compile_library


def test_client_notices_a_collective_that_did_nothing(preloaded: Preloaded, tmp_path: Path) -> None:
    lazy = compile_library([DOUBLES / "client" / "lazy_allreduce.c"], tmp_path / "liblazy.so")
    (ended,) = preloaded.client("all", 2, sizes="0,3,1000,4099", LD_PRELOAD=lazy).ended
    assert ended.code == 1
    assert "output of ncclAllReduce" in ended.said[0]["what"]
