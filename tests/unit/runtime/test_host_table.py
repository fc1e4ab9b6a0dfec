"""A host's table: measured rows serve exactly their measured ranges, and only if all ranks have them."""

import ctypes
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import LaunchError
from blinkccl.runtime import host_table
from blinkccl.runtime.host_table import Crossing, agreed, built_in, machine, path_of_host, table_for, wished_crossing
from blinkccl.trees.algorithms import tables
from blinkccl.trees.algorithms.tables import BUILT_IN, COPIED, HOST, NO_LIMIT, Cell, MeasuredTable, Time, Way
from support.examples import examples

LIMITS = st.lists(st.integers(0, 1 << 30), min_size=2, max_size=8, unique=True).map(sorted)
RING, COPIES = Way("ring", "", 128 << 10), Way("ring", COPIED, 8 << 20, 2)
BASE = Time(BUILT_IN, "", 2e-5, 9)


def cell(name="allreduce", least=1 << 10, below=1 << 20, ways=(RING,), ranks=2, **changed):
    times = (Time.of(ways, 1e-5, 9), BASE) if ways else (BASE,)
    made = Cell(name, -1, tuple(range(ranks)), least, least, below, "2026-01-01", times)
    return msgspec.structs.replace(made, **changed)


@given(st.sampled_from(sorted(COLLECTIVES)), st.integers(2, 9), LIMITS, st.data())
@examples(200)
def test_ranges_serve_where_they_were_measured_and_nowhere_else(name, ranks, limits, data):
    cells = [
        cell(name, least, below, (msgspec.structs.replace(RING, chunk_bytes=64 << place), COPIES), ranks)
        for place, (least, below) in enumerate(zip(limits[::2], limits[1::2], strict=False))
    ]
    base, table = built_in(ranks), built_in(ranks).measured(data.draw(st.permutations(cells)), "a file")
    sizes = {size + beside for size in (*limits, *(row.below for row in base.rows[name])) for beside in (-1, 0, 1)}
    for size in (size for size in sizes if 0 <= size < NO_LIMIT):
        for crossing in Crossing:
            cover = [one for one in cells if one.least <= size < one.below]
            got = table.choose(name, size, crossing)
            if not cover:
                assert got == base.choose(name, size, crossing)
                continue
            wanted = [way for way in cover[0].times[0].ways if way.copied or crossing is not Crossing.WHEREVER_POSSIBLE]
            wanted = [way for way in wanted if not way.copied or crossing is not Crossing.NEVER]
            assert [(way.algorithm, way.copied) for way in got] == [(way.algorithm, way.copied) for way in wanted]
    for other in set(COLLECTIVES) - {name}:
        assert table.rows[other] == base.rows[other]


def test_the_digest_is_of_the_rows():
    base = built_in(2)
    same, other = base.measured([], "a file"), base.measured([cell()], "a file")
    assert base.digest == same.digest != other.digest
    assert 0 <= base.digest < 1 << 62
    assert built_in(3).digest != base.digest


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))

    def written(*cells, **changed):
        table = MeasuredTable(machine(), "2 ranks", HOST, machine(), cells=cells)
        tables.write(path_of_host(2), msgspec.structs.replace(table, **changed))
        return table_for(2)

    return written


def test_measured_rows_serve_their_range(write):
    assert table_for(2) is built_in(2)
    table = write(cell(), cell("broadcast", ways=()))
    assert table.source == str(path_of_host(2))
    assert [way.algorithm for way in table.choose("allreduce", 64 << 10)] == ["ring"]
    assert table.choose("allreduce", 1 << 20) == built_in(2).choose("allreduce", 1 << 20)
    assert table.rows["broadcast"] == built_in(2).rows["broadcast"]


def test_unconfirmed_and_foreign_rows_are_ignored(write):
    table = write(cell(confirmed=False), cell("reduce"), cell("gather", ranks=3))
    for name in ("allreduce", "gather"):
        assert table.rows[name] == built_in(2).rows[name]
    assert table.rows["reduce"] != built_in(2).rows["reduce"]


@pytest.mark.parametrize("changed", [{"machine": "another"}, {"kind": "gpus"}, {"format": 99}])
def test_tables_of_other_hosts_are_ignored(write, changed):
    assert write(cell(), **changed) is built_in(2)


def test_a_file_of_the_format_before_is_ignored_with_a_line(write, caplog):
    path = path_of_host(2)
    path.parent.mkdir(mode=0o700)
    path.write_text('{"format": 1, "machine": "AMD EPYC, 2 CPUs", "ranks": 2, "cells": []}')
    assert table_for(2) is built_in(2)
    assert caplog.messages == [f"{path}: its format is 1, this version reads 2; it is ignored: run blink tune"]

    """Rank 0 of two; the other one has the table ``theirs``."""


class Pair:
    """Rank 0 of two; the other one has ``theirs``."""

    rank = 0

    def __init__(self, theirs, crosses=True):
        self.theirs, self.crosses = theirs, crosses

    def can_cross(self):
        return True

    def run(self, call, send, recv):
        mine = np.ctypeslib.as_array((ctypes.c_int64 * call.elements).from_address(recv))
        other = Crossing.WHEREVER_POSSIBLE if self.crosses else Crossing.NEVER
        np.minimum(mine, [other, self.theirs.digest, -self.theirs.digest], out=mine)


def test_a_table_is_used_by_all_ranks_or_none(caplog):
    own, other = built_in(2).measured([cell()], "here"), built_in(2).measured([cell(below=1 << 19)], "there")
    same = built_in(2).measured([cell()], "elsewhere")
    assert agreed(Pair(same), Crossing.MEASURED, own) == (Crossing.MEASURED, own)
    assert agreed(Pair(same, crosses=False), Crossing.MEASURED, own) == (Crossing.NEVER, own)
    assert not caplog.records
    for table in (other, built_in(2)):
        assert agreed(Pair(table), Crossing.NEVER, own)[1] is built_in(2)
        assert agreed(Pair(own), Crossing.NEVER, table)[1] is built_in(2)
    assert "ranks have read different tables (rank 0: here)" in caplog.text


def test_an_unknown_wish_is_an_error(monkeypatch):
    for text, wanted in (("", Crossing.MEASURED), ("0", Crossing.NEVER), ("1", Crossing.WHEREVER_POSSIBLE)):
        monkeypatch.setenv("BLINK_CROSS_MEMORY", text)
        assert wished_crossing() is wanted
    monkeypatch.setenv("BLINK_CROSS_MEMORY", "yes")
    with pytest.raises(LaunchError, match="BLINK_CROSS_MEMORY='yes': expected 0"):
        wished_crossing()


def test_an_unknown_machine_has_a_name(monkeypatch):
    machine.cache_clear()
    monkeypatch.setattr(host_table.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "model name\t: A  processor\n")
    assert machine() == "A processor, 3 CPUs"
    machine.cache_clear()
