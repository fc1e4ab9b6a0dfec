"""``blink tune`` on GPUs, before any measurement: refusals, and the output of existing tables."""

import io
import json

import msgspec
import pytest

from blinkccl.topology.json_format import write
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms import tables
from blinkccl.trees.algorithms.path_table import machine_key
from blinkccl.trees.algorithms.tables import GPUS, NCCL, Cell, MeasuredTable, Time

MACHINE = machine_key(parse_spec("clique:3"))
TIMES = (Time("one_shot", "ll", 2e-5, 9), Time(NCCL, "", 3e-5, 9))
CELL = Cell("allreduce", -1, (0, 1, 2), 4096, 2048, 8192, "2026-01-01", TIMES)
TABLE = MeasuredTable(MACHINE, "clique:3", GPUS, "somebody", gpu="a GPU", nccl=23007, cells=(CELL,))


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    return tables.path_of_gpus(MACHINE)


def test_gpus_that_are_renumbered_are_refused(blink, path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    blink("tune", "--topo", "clique:3").assert_refused("unset it, and name GPUs by --gpus as nvidia-smi numbers them")


def test_a_topology_on_standard_input_is_refused(blink, path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(write(parse_spec("clique:3")).encode())))
    blink("tune", "--topo", "-").assert_refused("every process reads the topology itself")


def test_without_a_driver_it_says_so(blink, path, monkeypatch):
    monkeypatch.setenv("BLINK_CUDA_LIB", "/no/such/libcuda.so.1")
    tables.write(path, TABLE)
    before = path.read_bytes()
    ended = blink("tune", "allreduce", "--topo", "clique:3", "-b", "1K", "-e", "1K")
    assert (ended.code, ended.out) == (3, "")
    assert "/no/such/libcuda.so.1" in ended.err
    assert path.read_bytes() == before


def test_an_existing_table_is_shown(blink, path):
    show = ("tune", "--topo", "clique:3", "--show")
    assert blink(*show).out == f"{path}\nnothing is measured yet\n"
    tables.write(path, TABLE)
    shown = blink(*show).out
    assert "GPUs 0-2 of clique:3: somebody\n" in shown
    assert "allreduce     4K  one_shot ll 20.0 µs, nccl 30.0 µs\n" in shown
    document = json.loads(blink(*show, "--json").out)
    assert document["cells"][0] == msgspec.json.decode(msgspec.json.encode(CELL))
    path.write_bytes(b'{"machine": 3')
    damaged = blink(*show)
    assert "is no table of measurements" in damaged.err
    assert "new measurements replace it" in damaged.err
