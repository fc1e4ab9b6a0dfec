"""Tables of paths: written completely, read back, and ignored if malformed or for another machine."""

import json
import logging
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import TopologyError
from blinkccl.trees.algorithms import path_table
from blinkccl.trees.algorithms.path_table import CLASSES, PairSplits, Part, PathTable, Split, fill, from_json, to_json
from support.examples import examples

DIRECT = Split((Part((0, 1), Fraction(1)),))
BOTH = Split((Part((0, 1), Fraction(3, 5)), Part((0, 4, 1), Fraction(2, 5), 8)), chunks=2)
TABLE = PathTable("abc", "mist", "by hand").merged(
    PairSplits(0, 1, (Split(DIRECT.parts, 1 << 20, 1, 50.0, 50.0), BOTH))
)


def test_a_table_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "paths.json"
    path_table.write(file, TABLE)
    assert path_table.read(file, "abc") == TABLE
    assert to_json(TABLE) == to_json(from_json(to_json(TABLE).encode(), "abc"))
    assert [path.name for path in tmp_path.iterdir()] == ["paths.json"]


def test_older_tables_of_a_laboratory_are_recognized() -> None:
    older = json.loads(to_json(TABLE)) | {"source": "simulated; measured in a laboratory, 750 times slower"}
    del older["kind"]
    kinds = [
        from_json(json.dumps(document).encode(), "abc").kind for document in (older, older | {"source": "by hand"})
    ]
    assert kinds == [path_table.LABORATORY, path_table.SIMULATED]
    with pytest.raises(TopologyError, match="kind 'gpus'; expected simulated or laboratory"):
        from_json(changed(kind="gpus"), "abc")


def test_a_row_is_found_by_ends_and_size() -> None:
    pair = TABLE.pair(0, 1)
    assert pair is not None
    assert [len(pair.at(size).parts) for size in (0, 1, 1 << 20, (1 << 20) + 1, 1 << 40)] == [1, 1, 1, 2, 2]
    assert TABLE.pair(1, 0) is None
    other = TABLE.merged(PairSplits(1, 0, (DIRECT,))).merged(PairSplits(0, 1, (DIRECT,)))
    assert [(row.src, row.dst, len(row.splits)) for row in other.pairs] == [(0, 1, 1), (1, 0, 1)]


def test_chunks_of_the_longest_slice() -> None:
    assert BOTH.chunk_bytes(1 << 20) == pytest.approx(0.3 * 2**20, abs=32)
    assert DIRECT.chunk_bytes(1 << 20) - (1 << 20) in range(17)
    assert BOTH.chunk_bytes(1 << 40) == BOTH.chunk_bytes(1 << 30)
    assert BOTH.text() == "60.0 % on 0-1, 40.0 % on 0-4-1 in 8 streams, 2 chunks each"


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(to_json(TABLE)) | fields).encode()


def with_split(**fields: Any) -> bytes:
    """The table with other fields in the last split."""
    document = json.loads(to_json(TABLE))
    document["pairs"][0]["splits"][-1] |= fields
    return json.dumps(document).encode()


def with_sizes(*ends: int | None) -> bytes:
    """The table with splits up to these sizes before the last one."""
    row = json.loads(to_json(TABLE))["pairs"][0]
    first, last = row["splits"]
    return changed(pairs=[row | {"splits": [*(first | {"up_to_bytes": end} for end in ends), last]}])


def with_part(**fields: Any) -> bytes:
    return with_split(parts=[{"path": [0, 1], "weight": "1", "streams": 1} | fields])


BAD = {
    "another machine": (changed(machine="xyz"), "it is for machine xyz"),
    "cut off": (to_json(TABLE).encode()[:200], "not a table of paths"),
    "empty": (b"", "not a table of paths"),
    "no text": (b"\xff\xfe\x00", "not a table of paths"),
    "a list": (b"[]", "not a table of paths"),
    "nested": (b"[" * 100_000, "not a table of paths"),
    "another version": (changed(schema_version=99), "schema_version 99"),
    "an unknown field": (changed(more=1), "not a table of paths"),
    "control characters": (changed(name="\x1b[2J"), "control character"),
    "two rows for a pair": (changed(pairs=json.loads(to_json(TABLE))["pairs"] * 2), "pairs, each once"),
    "no splits": (changed(pairs=[{"src": 0, "dst": 1, "splits": []}]), "1 to 64 splits"),
    "an end": (with_split(up_to_bytes=1 << 30), "the last with up_to_bytes null"),
    "falling sizes": (with_sizes(2000, 1000), "must be positive and ascending, got [2000, 1000]"),
    "a size twice": (with_sizes(1000, 1000), "must be positive and ascending"),
    "no size": (with_sizes(0), "must be positive and ascending"),
    "no end in the middle": (with_sizes(1000, None), "must be positive and ascending"),
    "no chunks": (with_split(chunks=0), "1 to 64 chunks"),
    "no parts": (with_split(parts=[]), "1 to 64 parts"),
    "weights of two": (with_split(parts=[{"path": [0, 1], "weight": "1"}] * 2), "sum to 1"),
    "a negative weight": (
        with_split(parts=[{"path": [0, 1], "weight": "2"}, {"path": [0, 4, 1], "weight": "-1"}]),
        "must be positive",
    ),
    "a weight of nothing": (
        with_split(parts=[{"path": [0, 1], "weight": "1"}, {"path": [0, 4, 1], "weight": "0"}]),
        "must be positive",
    ),
    "a huge weight": (with_part(weight="9" * 10_000), "a weight is text"),
    "an exponent": (with_part(weight="1e99999999"), "a weight is text"),
    "a zero below": (with_part(weight="1/0"), "a weight divides by zero: 1/0"),
    "a number": (with_part(weight=1), "a weight is text"),
    "nine streams": (with_part(streams=9), "1 to 8 streams"),
    "other ends": (with_part(path=[0, 2]), "does not lead from 0 to 1"),
    "a loop": (with_part(path=[0, 4, 0, 1]), "each vertex once"),
    "a short path": (with_part(path=[0]), "does not lead"),
    "a long path": (with_part(path=[0, *range(2, 100), 1]), "does not lead"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_an_unusable_table_is_ignored_with_one_line(
    content: bytes, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "paths.json"
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert path_table.read_or_ignore(file, "abc") is None
    (line,) = caplog.messages
    assert message in line
    assert "\n" not in line
    assert len(line) < 600
    with pytest.raises(TopologyError, match=r"paths\.json"):
        path_table.read(file, "abc")


def test_a_file_above_the_limit_is_not_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "paths.json"
    path_table.write(file, TABLE)
    size = file.stat().st_size
    monkeypatch.setattr(path_table, "MAX_FILE_BYTES", size)
    assert path_table.read(file, "abc") == TABLE
    monkeypatch.setattr(path_table, "MAX_FILE_BYTES", size - 1)
    with pytest.raises(TopologyError, match="expected a table of paths"):
        path_table.read(file, "abc")


def test_a_missing_file_gives_no_table_and_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert path_table.read_or_ignore(tmp_path / "none.json", "abc") is None
    assert caplog.messages == []
    assert path_table.read_or_ignore(tmp_path, "abc") is None  # a directory
    assert len(caplog.messages) == 1


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 60))
@examples(100)
def test_bytes_changed_anywhere_give_a_table_or_an_error(noise: bytes, at: int, gone: int) -> None:
    content = to_json(TABLE).encode()
    try:
        table = from_json(content[:at] + noise + content[at + gone :], "abc")
    except TopologyError:
        return
    assert all(sum(part.weight for part in split.parts) == 1 for pair in table.pairs for split in pair.splits)


def test_fill_selects_the_split_that_saves_time_at_both_ends_of_a_class() -> None:
    """The direct path has 50 GB/s at once, both paths 100 GB/s after 20 µs, which is faster from 2 MB on."""
    sizes = []

    def timer(split: Split, size: int) -> float:
        return size / 50e9 if split == DIRECT else 20e-6 + size / 100e9

    def options(size: int) -> list[Split]:
        sizes.append(size)
        return [BOTH]

    pair = fill(0, 1, DIRECT, options, timer)
    assert [(split.up_to_bytes, len(split.parts)) for split in pair.splits] == [(2 << 20, 1), (None, 2)]
    assert sizes == [*CLASSES, 4 * CLASSES[-1]]
    for size in (1 << power for power in range(6, 36)):
        assert timer(pair.at(size) if len(pair.at(size).parts) > 1 else DIRECT, size) <= size / 50e9 or size < 64
    assert pair.splits[-1].direct_gb_per_s == pytest.approx(50)
    assert len(fill(0, 1, DIRECT, options, timer, gain=0.6).splits) == 1
