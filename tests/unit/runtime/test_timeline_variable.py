"""BLINK_TIMELINE: ranks append to one file, which a strict reader accepts after each of them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blinkccl.runtime import timeline
from support.engines import ENGINES
from support.trace_reader import read_trace

PROGRAM = """
import numpy as np
import blinkccl
comm = blinkccl.init()
data = np.ones(60_000, np.float32)
for _ in range(3):
    comm.allreduce(data)
comm.close()
"""


def job(path: Path, store: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={
                **os.environ,
                "BLINK_RANK": str(rank),
                "BLINK_WORLD_SIZE": "2",
                "BLINK_STORE": f"file://{store}",
                "BLINK_TIMELINE": str(path),
            },
        )
        for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]


@pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))
def test_the_ranks_of_a_job_write_one_file_with_arrows_between_them(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for number in range(2):  # the second job overwrites it
        job(path, tmp_path / f"store{number}")
        trace = read_trace(path.read_text())
        assert len(trace.processes) == 2
        assert sorted(name.partition(" of ")[0] for name in trace.threads.values()) == ["rank 0", "rank 1"]
        calls = [span for span in trace.of("call") if "60000" in span["name"]]
        assert len(calls) == 6
        assert len(trace.arrows) >= 6
        assert {span["args"]["bytes"] for span in trace.of("execution")} == {120_000}
        assert all(sent["pid"] != taken["pid"] for sent, taken in trace.arrows)
        time.sleep(timeline._LAG_S)


def test_files_of_earlier_jobs_or_other_programs_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for text in ("", "[]", '{"traceEvents": []}'):
        path.write_text(text)
        timeline._append(path, [b'{"a": 1}', b'{"b": 2}'], 0.0)
        timeline._append(path, [b'{"c": 3}'], 0.0)
        assert json.loads(path.read_text())["traceEvents"] == [{"a": 1}, {"b": 2}, {"c": 3}]
    timeline._append(path, [b'{"d": 4}'], time.time() + 60)
    assert json.loads(path.read_text())["traceEvents"] == [{"d": 4}]
