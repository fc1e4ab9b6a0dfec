"""The measurements of ``blink tune`` select the programs, and a killed tuner leaves its written results intact.

Times on doubles have no meaning: slow cases have an added delay, or a table that declares them slow.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded import Preloaded

from blinkccl.bench.gpu_tune import Ways, job_table, settings_of
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms import tables
from blinkccl.trees.algorithms.path_table import machine_key
from blinkccl.trees.algorithms.tables import GPUS, NCCL, Cell, MeasuredTable, Time, Way
from support.processes import until

RANKS = 3
#: The client's call in bytes.
SIZE = 4000


def _runs_python(preloaded: Preloaded) -> None:
    if preloaded.others:
        pytest.skip(preloaded.others)


def tune(preloaded: Preloaded, *words: str, **variables: object) -> subprocess.Popen[str]:
    """``blink tune`` on the doubles."""
    _runs_python(preloaded)
    own = {"LD_PRELOAD": None, "BLINK_ALGO": None, "BLINK_TOPO": None, "BLINK_DEBUG": None, "BLINK_MAX_BLOCKS": 2}
    return subprocess.Popen(
        [sys.executable, "-m", "blinkccl", "tune", "reduce", "--topo", "clique:2", "--budget", "0.1", *words],
        env=preloaded.environment(**own, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("fastest", ["one_shot", NCCL])
def test_the_fastest_in_the_table_runs(preloaded: Preloaded, tmp_path: Path, fastest: str) -> None:
    machine = machine_key(parse_spec("clique:3"))
    times = [Time("one_shot", "ll", 2e-5, 9), Time("optimal", "ll128", 4e-5, 9), Time(NCCL, "", 3e-5, 9)]
    times = [Time(one.algorithm, one.protocol, 1e-6, 9) if one.algorithm == fastest else one for one in times]
    cell = Cell("allreduce", -1, (0, 1, 2), 4096, 0, 8192, "2026-01-01", tuple(times))
    table = MeasuredTable(machine, "clique:3", GPUS, "a double", gpu="Test Double GPU", nccl=23203, cells=(cell,))
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    path = tables.path_of_gpus(machine, {"BLINK_CACHE": str(cache)})
    assert path is not None
    tables.write(path, table)
    call = {"calls": 1, "count": SIZE // 4, "BLINK_TOPO": "clique:3", "BLINK_ALGO": None, "BLINK_CACHE": cache}
    outcome = preloaded.scene("many_calls", RANKS, **call).right()
    (line,) = {(one.state, one.protocol, one.why) for one in outcome.usage if one.collective == "allreduce"}
    if fastest == NCCL:
        assert line[:2] == ("nccl", "")
        assert "(allreduce: blink one_shot ll 20 us, NCCL 1 us measured at 4K)" in line[2]  # of the whole plan
    else:
        assert line == ("blink", "ll", "blink one_shot ll 1 us, NCCL 30 us measured at 4K")


def _table(path: Path) -> MeasuredTable:
    return tables.read(path, machine_key(parse_spec("clique:2")))


def test_a_way_runs_its_own_program(preloaded: Preloaded, tmp_path: Path) -> None:
    """libblink.so's programs, or NCCL alone, on the same GPUs."""
    _runs_python(preloaded)

    def environment(way: Way, report: Path) -> dict[str, str]:
        return preloaded.environment(BLINK_TOPO="clique:2", BLINK_DEBUG=None, BLINK_REPORT=report, **settings_of(way))

    with Ways([1, 0], ["reduce"], environment, tmp_path) as ways:
        job = ways.job()
        assert [(peer.device, peer.uuid[-2:]) for peer in job.peers] == [(1, "01"), (0, "00")]
        table, where = job_table(job)
        assert (table.machine, where.ranks) == (machine_key(parse_spec("clique:2")), (1, 0))
        assert table.by.startswith("Test Double GPU, driver of CUDA 13.0, NCCL 2.32, Blink ")
        for way in (Way(NCCL), Way("optimal", "ll"), Way("optimal", "ll")):
            seconds = ways.seconds(way, "reduce", 4096, 2)
            assert seconds is not None
            assert seconds > 0
        assert ways.lost == []
        assert ways.seconds(Way("one_shot", "ll"), "reduce", 4096, 2) is None
        (why,) = ways.lost
        assert why.startswith("one_shot ll: libblink.so did not run reduce: ")
        assert "one_shot does not support reduce" in why


def test_a_killed_tuner_leaves_its_results(preloaded: Preloaded, tmp_path: Path) -> None:
    """Without Blink's candidates the run is short; NCCL's times are written all the same."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    own = {"BLINK_CACHE": cache, "BLINK_STAGING_BYTES": "none"}
    path = tables.path_of_gpus(machine_key(parse_spec("clique:2")), {"BLINK_CACHE": str(cache)})
    assert path is not None
    with tune(preloaded, "-b", "4K", "-e", "64M", **own) as process:
        until(lambda: path.exists() or process.poll() is not None, 100)
        process.kill()
        process.communicate()
    before = _table(path).cells
    assert before
    assert {time.algorithm for cell in before for time in cell.times} == {NCCL}
    until(lambda: not [one for one in preloaded._left() if one.startswith("process")], 20)
    with tune(preloaded, "--show", "--json", **own) as process:
        out, _ = process.communicate()
    assert len(json.loads(out)["cells"]) == len(before)


@pytest.mark.slow
def test_a_run_resumes_and_finds_the_fastest(preloaded: Preloaded, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    path = tables.path_of_gpus(machine_key(parse_spec("clique:2")), {"BLINK_CACHE": str(cache)})
    assert path is not None
    slow = {"BLINK_CACHE": cache, "BLINK_DOUBLE_SLOW_KERNEL": "optimal_ll:100000"}  # LL128 too
    tables_read: list[MeasuredTable] = []
    for end, progress in (("4K", "wrote"), ("16K", "wrote"), ("16K", "all sizes were measured before")):
        with tune(preloaded, "-b", "4K", "-e", end, "-f", "4", **slow) as process:
            out, err = process.communicate()
        assert (process.returncode, progress in err) == (0, True), err
        assert "optimal simple" in out
        tables_read.append(_table(path))
    first, second, third = tables_read
    assert second == third
    assert [cell.size_bytes for cell in second.cells] == [4096, 16384]
    assert first.cells[0].size_bytes == 4096
    for cell in second.cells:
        times = [time for time in cell.times if time.algorithm == "optimal"]
        assert times[0].protocol == "simple"
        assert {time.protocol for time in times} == {"simple", "ll", "ll128"}
    assert os.stat(path).st_mode & 0o077 == 0
