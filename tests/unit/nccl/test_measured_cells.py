"""The planner's use of a measured table: the cells for these GPUs and this NCCL, as part of its question."""

from dataclasses import replace

import msgspec
import pytest
from jobs_by_hand import job

from blinkccl.nccl.geometry import budget
from blinkccl.nccl.planner import _Question, measured_cells
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms import tables
from blinkccl.trees.algorithms.path_table import machine_key
from blinkccl.trees.algorithms.tables import GPUS, LABORATORY, Cell, MeasuredTable, Time

MACHINE = parse_spec("clique:4")
CELLS = tuple(
    Cell("allreduce", -1, ranks, 4096, 2048, 8192, "2026-01-01", (Time("optimal", "ll", 1e-5, 9),))
    for ranks in ((0, 1, 2, 3), (0, 2, 1, 3))
)
TABLE = MeasuredTable(machine_key(MACHINE), "clique:4", GPUS, "a GPU", gpu="A GPU", nccl=23007, cells=CELLS)


@pytest.fixture
def cells(tmp_path):
    def cells_of(table, nccl_version=23007):
        environ = {"BLINK_CACHE": str(tmp_path)}
        tables.write(tables.path_of_gpus(table.machine, environ), table)
        return measured_cells(environ, MACHINE, job(4, nccl_version=nccl_version), (0, 1, 2, 3))

    return cells_of


def test_the_cells_of_the_job_are_part_of_its_question(cells):
    assert cells(TABLE) == CELLS[:1]
    assert cells(TABLE, nccl_version=0) == CELLS[:1], "without NCCL nobody compares with it"
    question = _Question(job(4), JobPlacement(MACHINE, (0, 1, 2, 3)), {}, budget(job(4), {}), None, None)
    assert replace(question, measured=CELLS[:1]).digest() != question.digest()


@pytest.mark.parametrize("changed", [{"gpu": "Another"}, {"nccl": 23004}, {"kind": LABORATORY}])
def test_times_of_another_rig_are_ignored_with_one_line(cells, caplog, changed):
    assert cells(msgspec.structs.replace(TABLE, **changed)) == ()
    (line,) = caplog.messages
    assert "this job has A GPU and NCCL 23007: they are ignored; run blink tune again" in line
