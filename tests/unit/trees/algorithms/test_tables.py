"""Tables of measured times: read as written, refused if for another machine or contradictory."""

import os

import msgspec
import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.errors import LaunchError, UsageError
from blinkccl.trees.algorithms import tables
from blinkccl.trees.algorithms.tables import (
    BUILT_IN,
    COPIED,
    GPUS,
    HOST,
    LABORATORY,
    NCCL,
    Cell,
    MeasuredTable,
    Time,
    Way,
    cell_at,
)

MACHINE = "0123456789abcdef"
OPTIMAL, THEIRS = Time("optimal", "ll", 2e-5, 50), Time(NCCL, "", 3e-5, 50)


def cell(name="allreduce", least=1 << 10, below=1 << 20, times=(OPTIMAL, THEIRS), **changed):
    basis = Cell(name, -1, (0, 1, 2, 3), 64 << 10, least, below, "2026-01-01", tuple(times))
    return msgspec.structs.replace(basis, **changed)


def table(*cells, **changed):
    basis = MeasuredTable(MACHINE, "four", GPUS, "a GPU", gpu="a GPU", nccl=23007, cells=tuple(cells))
    return msgspec.structs.replace(basis, **changed)


RING, COPIES = Way("ring", "", 128 << 10), Way("ring", COPIED, 8 << 20)


def host(*ways):
    return table(cell(times=(Time.of(ways, 1e-5, 9), Time(BUILT_IN, "", 2e-5, 9))), kind=HOST)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    return tables.path_of_gpus(MACHINE)


def test_a_written_table_is_read_back(cache):
    assert tables.read_or_ignore(cache, MACHINE) is None
    written = table(cell(), cell("broadcast", root=0))
    tables.write(cache, written)
    assert tables.read_or_ignore(cache, MACHINE) == written
    assert os.stat(cache).st_mode & 0o077 == 0
    assert written.of([0, 1, 2, 3]) == written.cells
    assert written.of((0, 1, 3, 2)) == ()


def test_a_cell_holds_for_its_range():
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
    new_cell = cell(size_bytes=80_000, least=75_000, below=90_000)
    cells = table(*others, first, second).with_cell(new_cell).cells
    assert second not in cells
    assert sorted(cells, key=repr) == sorted((*others, first, new_cell), key=repr)
    assert cells == table(*reversed(cells[1:])).with_cell(cells[0]).cells, "independent of the order"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (table(cell(), machine="f" * 16), r"measured on machine f{16} \(four\), but this one is 0123456789abcdef"),
        (table(cell(), format=99), "its format is 99, this version reads 2"),
        (table(cell(), kind="a guess"), "kind 'a guess', 1.0 times slower: expected gpus, laboratory or host"),
        (table(cell(), kind=LABORATORY, slower=0.0), "0.0 times slower"),
        (table(cell(), by="a\x1b[31m GPU"), "table: by"),
        (table(cell("gossip")), "'gossip': there is no such collective"),
        (table(cell(ranks=(0, 0))), r"root -1 among ranks \[0, 0\]"),
        (table(cell(root=4)), r"root 4 among ranks"),
        (table(cell(least=100_000)), "its range is 100000 to 1048576"),
        (
            table(cell(), cell(size_bytes=2000, least=1999, below=2001)),
            "two ranges of allreduce among .* overlap at 1999",
        ),
        (table(cell(times=(Time("magic", "ll", 1.0, 1),))), "unknown algorithm 'magic'"),
        (table(cell(times=(Time("optimal", "ll", -1.0, 1),))), "optimal took -1.0 s in 1 calls"),
        (table(cell(times=(OPTIMAL, Time("optimal", "ll", 9e-5, 1)))), "two times for one algorithm"),
        (host(RING), None),
        (host(*[RING] * 9), "9 ways, expected at most 8"),
        (host(COPIES), "the first variant of ring has protocol copies, which only later variants may have"),
        (
            host(RING, Way("one_hop", "", 64)),
            "expected variants of ring that differ only in size and parts of messages, got one_hop",
        ),
        (host(Way("ring", "ll", 64), COPIES), "expected variants of ring ll that .*, got ring copies"),
        (host(Way("ring", "", 0)), "messages of 0 bytes in 0 parts"),
        (host(RING, Way("ring", COPIED, 1, 65)), "messages of 1 bytes in 65 parts"),
        (host(Way(NCCL)), "unknown algorithm 'nccl'"),
        (table(cell(times=(Time(BUILT_IN, "", 1.0, 1),))), "unknown algorithm 'built in'"),
        (None, "is no table of measurements"),
    ],
)
def test_an_invalid_table_is_refused_and_ignored_with_one_line(cache, caplog, changed, why):
    tables.write(cache, changed or table(cell()))
    if why is None:
        assert tables.read(cache, MACHINE) == changed
        return
    if changed is None:
        cache.write_bytes(cache.read_bytes()[:-100])  # cut off
    with pytest.raises(UsageError, match=why):
        tables.read(cache, MACHINE)
    assert tables.read_or_ignore(cache, MACHINE) is None
    (line,) = caplog.messages
    assert line.endswith("it is ignored: run blink tune")


def test_unknown_fields_links_and_long_files_are_refused(cache):
    tables.write(cache, table(cell()))
    cache.write_text(cache.read_text().replace('"kind"', '"more": 1, "kind"'))
    with pytest.raises(UsageError, match="more"):
        tables.read(cache, MACHINE)
    cache.write_bytes(b" " * (tables.MAX_FILE_BYTES + 1))
    assert tables.read_or_ignore(cache, MACHINE) is None
    cache.unlink()
    cache.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match=r"symbolic|loop|Too many"):
        tables.read(cache, MACHINE)


def test_jobs_may_ignore_the_table(cache, monkeypatch):
    tables.write(cache, table(cell()))
    monkeypatch.setenv("BLINK_TUNED", "0")
    assert tables.read_or_ignore(cache, MACHINE) is None
    monkeypatch.setenv("BLINK_TUNED", "yes")
    with pytest.raises(LaunchError, match="BLINK_TUNED='yes': expected 0"):
        tables.read_or_ignore(cache, MACHINE)


def test_a_write_that_fails_leaves_the_old_table(cache, monkeypatch):
    tables.write(cache, table(cell()))
    before = cache.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(LaunchError, match="No space left"):
        tables.write(cache, table())
    assert cache.read_bytes() == before
    assert list(cache.parent.iterdir()) == [cache]
