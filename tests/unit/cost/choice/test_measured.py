"""A table of measured times: read as written, refused where it is not for this machine or contradicts itself."""

from __future__ import annotations

import os

import msgspec
import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.cost.choice import measured
from blinkccl.cost.choice.measured import GPUS, LABORATORY, NCCL, Cell, MeasuredTable, Time, cell_at
from blinkccl.errors import LaunchError, UsageError

MACHINE = "0123456789abcdef"
OPTIMAL, THEIRS = Time("optimal", "ll", 2e-5, 50), Time(NCCL, "", 3e-5, 50)


def cell(name="allreduce", least=1 << 10, below=1 << 20, times=(OPTIMAL, THEIRS), **changed):
    made = Cell(name, -1, (0, 1, 2, 3), 64 << 10, least, below, "2026-01-01", tuple(times))
    return msgspec.structs.replace(made, **changed)


def table(*cells, **changed):
    made = MeasuredTable(MACHINE, "four", GPUS, "a GPU", gpu="a GPU", nccl=23007, cells=tuple(cells))
    return msgspec.structs.replace(made, **changed)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    return measured.path_of(MACHINE)


def test_what_is_written_is_read(cache):
    assert measured.read_or_ignore(MACHINE) is None
    written = table(cell(), cell("broadcast", root=0))
    measured.write(cache, written)
    assert measured.read_or_ignore(MACHINE) == written
    assert os.stat(cache).st_mode & 0o077 == 0
    assert written.of([0, 1, 2, 3]) == written.cells
    assert written.of((0, 1, 3, 2)) == ()


def test_a_cell_says_what_its_range_takes():
    cells = (cell(), cell("broadcast", root=0))
    allreduce = Collective("allreduce", 4)
    assert cell_at(cells, allreduce, 1 << 10) is cells[0]
    assert cell_at(cells, allreduce, 1 << 20) is None
    assert cell_at(cells, Collective("broadcast", 4, root=0), 1 << 10) is cells[1]
    assert cell_at(cells, Collective("broadcast", 4, root=1), 1 << 10) is None
    slow = Time("optimal", "simple", 9e-5, 2)
    several = cell(times=(slow, OPTIMAL, THEIRS))
    assert several.best("optimal") is OPTIMAL
    assert several.best("optimal", ("simple",)) is slow
    assert several.best("ring") is None


def test_a_new_cell_takes_the_place_of_those_it_overlaps():
    others = cell(ranks=(0, 1), least=0, below=1 << 30), cell("broadcast", root=1), cell("broadcast", root=0)
    first, second = cell(least=0, below=70_000), cell(size_bytes=100_000, least=70_000, below=1 << 20)
    now = cell(size_bytes=80_000, least=75_000, below=90_000)
    kept = table(*others, first, second).with_cell(now).cells
    assert second not in kept
    assert sorted(kept, key=repr) == sorted((*others, first, now), key=repr)
    assert kept == table(*reversed(kept[1:])).with_cell(kept[0]).cells, "whoever came first"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (table(cell(), machine="f" * 16), r"measured on machine f{16} \(four\), and this one is 0123456789abcdef"),
        (table(cell(), format=99), "its format is 99, this version reads 1"),
        (table(cell(), kind="a guess"), "kind 'a guess', 1.0 times slower: expected gpus or laboratory"),
        (table(cell(), kind=LABORATORY, slower=0.0), "0.0 times slower"),
        (table(cell(), by="a\x1b[31m GPU"), "table: by"),
        (table(cell("gossip")), "'gossip': there is no such collective"),
        (table(cell(ranks=(0, 0))), r"root -1 among ranks \[0, 0\]"),
        (table(cell(root=4)), r"root 4 among ranks"),
        (table(cell(least=100_000)), "its range is 100000 to 1048576"),
        (table(cell(), cell(size_bytes=2000, least=1999, below=2001)), "two ranges of allreduce among .* have 1999"),
        (table(cell(times=(Time("magic", "ll", 1.0, 1),))), "unknown algorithm 'magic'"),
        (table(cell(times=(Time("optimal", "ll", -1.0, 1),))), "optimal took -1.0 s in 1 calls"),
        (table(cell(times=(OPTIMAL, Time("optimal", "ll", 9e-5, 1)))), "two times for one algorithm"),
        (None, "is no table of measurements"),
    ],
)
def test_what_is_no_good_is_refused_and_ignored_with_one_line(cache, caplog, changed, why):
    measured.write(cache, changed or table(cell()))
    if changed is None:
        cache.write_bytes(cache.read_bytes()[:-100])  # cut off
    with pytest.raises(UsageError, match=why):
        measured.read(cache, MACHINE)
    assert measured.read_or_ignore(MACHINE) is None
    (line,) = caplog.messages
    assert line.endswith("it is ignored: run blink tune")


def test_jobs_may_do_without(cache, monkeypatch):
    measured.write(cache, table(cell()))
    monkeypatch.setenv("BLINK_TUNED", "0")
    assert measured.read_or_ignore(MACHINE) is None
    monkeypatch.setenv("BLINK_TUNED", "yes")
    with pytest.raises(LaunchError, match="BLINK_TUNED='yes': expected 0"):
        measured.read_or_ignore(MACHINE)


def test_a_write_that_fails_leaves_the_old_table(cache, monkeypatch):
    measured.write(cache, table(cell()))
    before = cache.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(LaunchError, match="No space left"):
        measured.write(cache, table())
    assert cache.read_bytes() == before
    assert list(cache.parent.iterdir()) == [cache]
