"""A measured table: read as written, refused where it is not for this machine, taken only if all ranks have it."""

from __future__ import annotations

import json
import os

import msgspec
import numpy as np
import pytest

from blinkccl.cost.choice.host_table import HostChoice, built_in
from blinkccl.errors import LaunchError, UsageError
from blinkccl.runtime import tuned
from blinkccl.runtime.tuned import TunedCell, TunedFile

RING = HostChoice("ring", False, 128 << 10)
COPIED = HostChoice("ring", False, 8 << 20, variant=True, cross_memory=True)


def cell(name="allreduce", least=1 << 10, below=1 << 20, rows=(RING,)):
    return TunedCell(name, 64 << 10, least, below, "2026-01-01", 1e-5, 2e-5, 9, rows)


def file(*cells, **changed):
    return msgspec.structs.replace(TunedFile(tuned.machine(), 2, tuple(cells)), **changed)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    return tuned.path_of(2)


def test_what_is_written_is_read_and_serves_its_range(cache):
    assert tuned.table_for(2) is built_in(2)
    written = file(cell(), cell("broadcast", rows=()))
    tuned.write(cache, written)
    assert tuned.read(cache, 2) == written
    table = tuned.table_for(2)
    assert table.source == str(cache)
    assert [row.algorithm for row in table.choose("allreduce", 64 << 10)] == ["ring"]
    assert table.choose("allreduce", 1 << 20) == built_in(2).choose("allreduce", 1 << 20)
    assert table.rows["broadcast"] == built_in(2).rows["broadcast"]
    assert os.stat(cache).st_mode & 0o077 == 0


def test_rows_that_nobody_confirmed_serve_nobody(cache):
    tuned.write(cache, file(msgspec.structs.replace(cell(), confirmed=False), cell("reduce")))
    table = tuned.table_for(2)
    assert table.rows["allreduce"] == built_in(2).rows["allreduce"]
    assert table.rows["reduce"] != built_in(2).rows["reduce"]


def test_a_new_cell_takes_the_place_of_those_it_overlaps():
    found = file(cell(least=0, below=10), cell(least=10, below=20), cell("broadcast", least=0, below=99))
    found = found.with_cell(cell(least=5, below=12)).with_cell(cell(least=12, below=15))
    kept = [(one.collective, one.least, one.below) for one in found.cells]
    assert kept == [("broadcast", 0, 99), ("allreduce", 5, 12), ("allreduce", 12, 15)]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (file(cell(), machine="another"), r"it was measured on another, this is "),
        (file(cell(), ranks=3), "it is for 3 ranks, not for 2"),
        (file(cell(), format=99), "its format is 99, this version reads 1"),
        (file(cell("gossip")), "gossip at 65536 bytes: there is no such collective"),
        (file(cell(least=5, below=5)), "its range is 5 to 5"),
        (file(cell(), cell(least=5, below=2000)), "two ranges of allreduce have 1024 bytes"),
        (file(cell(rows=(RING,) * 9)), "9 rows, expected at most 8"),
        (file(cell(rows=(COPIED,))), "the first row is no variant"),
        (file(cell(rows=(RING, RING))), "the first row is no variant, and all others are"),
        (file(cell()), None),
        (file(cell(rows=(HostChoice("magic", False, 1),))), "unknown algorithm magic"),
        (file(cell(rows=(HostChoice("ring", False, 0),))), "chunks of 0 bytes in 0 parts"),
        (file(cell(rows=(RING, HostChoice("one_hop", False, 64, variant=True)))), "variants do the same"),
    ],
)
def test_what_is_not_for_this_job_is_refused_and_ignored_aloud(cache, caplog, changed, why):
    if why is None:  # not even a table
        cache.parent.mkdir(mode=0o700)
        cache.write_text('{"machine": 3')
        why = "is no table of blink tune"
    else:
        tuned.write(cache, changed)
    with pytest.raises(UsageError, match=why):
        tuned.read(cache, 2)
    assert tuned.table_for(2) is built_in(2)
    assert "what is built in serves instead: run blink tune" in caplog.text


def test_fields_that_nobody_knows_links_and_long_files_are_refused(cache):
    tuned.write(cache, file(cell()))
    document = json.loads(cache.read_text())
    cache.write_text(json.dumps(document | {"more": 1}))
    with pytest.raises(UsageError, match="more"):
        tuned.read(cache, 2)
    cache.write_bytes(b" " * (tuned.MAX_FILE_BYTES + 1))
    assert tuned.table_for(2) is built_in(2)
    cache.unlink()
    cache.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match=r"symbolic|loop|Too many"):
        tuned.read(cache, 2)


def test_jobs_may_do_without(cache, monkeypatch):
    tuned.write(cache, file(cell()))
    monkeypatch.setenv("BLINK_TUNED", "0")
    assert tuned.table_for(2) is built_in(2)
    monkeypatch.setenv("BLINK_TUNED", "maybe")
    with pytest.raises(LaunchError, match=r"BLINK_TUNED='maybe': expected 0 .* or nothing"):
        tuned.table_for(2)
    monkeypatch.delenv("BLINK_TUNED")
    monkeypatch.setenv("BLINK_CACHE", "")
    assert tuned.table_for(2) is built_in(2)


class Pair:
    """Rank 0 of two; the other one has ``theirs``."""

    rank = 0

    def __init__(self, theirs):
        self.theirs = theirs

    def run(self, call, send, recv):
        import ctypes

        mine = np.ctypeslib.as_array((ctypes.c_int64 * 2).from_address(recv))
        np.minimum(mine, [self.theirs.digest, -self.theirs.digest], out=mine)


def test_all_ranks_have_it_or_none_goes_by_it(caplog):
    own, other = file(cell()).table("here"), file(cell(below=1 << 19)).table("there")
    assert tuned.agreed(Pair(file(cell()).table("elsewhere")), own) is own
    assert not caplog.records
    for theirs in (other, built_in(2)):
        assert tuned.agreed(Pair(theirs), own) is built_in(2)
        assert tuned.agreed(Pair(own), theirs) is built_in(2)
    assert "ranks have read different tables (rank 0: here)" in caplog.text
