"""Messages of libblink.so: the rows of a path table that it can run, and the slots of their paths."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from blinkccl.cli.app import app
from blinkccl.codegen.layout import Geometry, SegmentLayout
from blinkccl.errors import UnsupportedError
from blinkccl.nccl import planner
from blinkccl.nccl.geometry import Budget
from blinkccl.nccl.message_paths import WHOLE, limits_beside, place, plan
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms import path_table
from blinkccl.trees.algorithms.path_table import PairSplits, Part, PathTable, Split
from support.examples import examples

DIRECT = Split((Part((0, 1), Fraction(1)),), 1 << 20, 1, 45.0, 45.0)
#: Paths of Cedar's GPUs 0 and 1: direct, over GPU 2, and through the host, vertex 4.
SPLIT = Split(
    (Part((0, 1), Fraction(1, 2)), Part((0, 2, 1), Fraction(1, 3)), Part((0, 4, 1), Fraction(1, 6), 2)),
    None,
    4,
    90.0,
    45.0,
)


def cedar(ranks=(0, 1, 2, 3)):
    return JobPlacement(parse_spec("cedar"), ranks)


def table(*splits, src=0, dst=1):
    return PathTable("", "", "").merged(PairSplits(src, dst, splits))


def test_with_nccl_blink_runs_only_splits_beyond_the_direct_path():
    (split,) = plan(cedar(), table(DIRECT, SPLIT), False, {}).splits
    assert (split.src, split.dst, split.least, split.chunks) == (0, 1, (1 << 20) + 1, 4)
    homes = [(path.home, path.on_host, path.stream, stop) for path, stop in split.parts]
    assert homes == [
        (1, False, 0, WHOLE // 2),
        (2, False, 0, round(WHOLE * 5 / 6)),
        (4, True, 0, round(WHOLE * 11 / 12)),
        (4, True, 1, WHOLE),
    ]
    assert "50.0 % on 0-1, 33.3 % on 0-2-1, 16.7 % on 0-4-1 in 2 streams" in split.why
    assert "90 GB/s, 45 directly" in split.why
    assert plan(cedar(), None, False, {}).splits == plan(cedar(), table(DIRECT), False, {}).splits == ()


def test_a_table_filled_for_copy_engines_is_run_whole(tmp_path):
    """Most paths of a maximum flow on a DGX-1V cross several GPUs."""
    file = tmp_path / "paths.json"
    words = ["sim", "sendrecv", "--topo", "dgx-1v", "--gpus", "0,5", "--relays", "--algo", "multi_path"]
    ended = CliRunner().invoke(app, [*words, "-o", str(file)])
    assert ended.exit_code == 0, ended.output
    where = JobPlacement(parse_spec("dgx-1v"), tuple(range(8)))
    filled = path_table.read(file, path_table.machine_key(where.topology))
    notes = []
    splits = plan(where, filled, False, {}, notes.append).splits
    assert notes == []
    assert len(splits[-1].parts) > 2
    assert splits[-1].most == 2**63 - 1


def test_an_empty_part_is_left_out():
    """A part that is too small for the denominator of ends is empty, and libblink.so refuses empty parts."""
    crumb = Fraction(1, 1 << 24)
    parts = Part((0, 1), Fraction(1, 2)), Part((0, 2, 1), crumb), Part((0, 3, 1), Fraction(1, 2) - crumb)
    (split,) = plan(cedar(), table(Split(parts)), False, {}).splits
    assert [(path.home, stop) for path, stop in split.parts] == [(1, WHOLE // 2), (3, WHOLE)]


def test_the_rows_for_the_library():
    """Memories are numbered after the ranks; the third path's slots are in the first memory."""
    messages, _ = place(
        plan(cedar(), table(SPLIT), False, {}), SegmentLayout(Geometry(), (), (0,) * 4, 4), (), Budget(8, 1 << 20)
    )
    size, names = messages.slot_bytes, ("src", "dst", "home", "on_host", "copy_ring", "copy_tail", "copy_head")
    assert [tuple(row[name] for name in names) for row in messages.connections()] == [
        (0, 1, 1, 0, 0, 4 * size, 0),
        (0, 1, 2, 0, 0, 4 * size + 128, 128),
        (0, 1, 4, 1, 0, 4 * size, 4 * size + 128),
        (0, 1, 4, 1, 4 * size + 256, 8 * size + 256, 8 * size + 384),
    ]
    ((split, parts),) = messages.rows(7)
    assert (split["src"], split["dst"], split["least"], split["most"], split["chunks"]) == (0, 1, 1, 2**63 - 1, 4)
    assert [(part["path"], part["stop"]) for part in parts[:2]] == [(7, 524288), (8, 873813)]


def test_if_copy_engines_run_all_every_pair_and_size_is_served():
    of_pair = defaultdict(list)
    for split in plan(cedar(), table(DIRECT, SPLIT), True, {}).splits:
        of_pair[split.src, split.dst].append(split)
    assert set(of_pair) == set(permutations(range(4), 2))
    for splits in of_pair.values():
        assert splits[0].least == 1
        assert all(a.most + 1 == b.least for a, b in pairwise(splits))
        assert splits[-1].most == 2**63 - 1
    assert [len(split.parts) for split in of_pair[0, 1]] == [1, 4]
    assert [len(split.parts) for split in of_pair[2, 3]] == [1]


@pytest.mark.parametrize(
    ("split", "ranks", "bad", "why"),
    [
        (Split((Part((0, 2, 3, 1), Fraction(1)),)), (0, 1, 2, 3), {}, "crosses 2 memories"),
        (SPLIT, (0, 1, 3), {}, "GPU 2, which is not in the job"),
        (SPLIT, (0, 1, 2, 3), {(2, 1): "bytes were lost"}, "bytes were lost"),
        (Split((Part((0, 5, 1), Fraction(1)),)), (0, 1, 2, 3), {}, "needs a link 0 → 5, which does not exist"),
    ],
)
def test_splits_that_cannot_run_use_the_direct_path(split, ranks, bad, why):
    notes = []
    where = cedar(ranks)
    assert plan(where, table(split), False, bad, notes.append).splits == ()
    assert why in notes[0]
    (first, *_) = plan(where, table(split), True, bad).splits
    assert [path.home for path, _ in first.parts] == [1]


def test_a_pair_that_must_not_write_to_each_other_uses_the_host():
    where = JobPlacement(parse_spec("pcie-8gpu"), tuple(range(8)))
    (split,) = [one for one in plan(where, None, True, {(0, 1): "lost"}).splits if (one.src, one.dst) == (0, 1)]
    assert [path.on_host for path, _ in split.parts] == [True]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.lists(st.integers(1, 8), min_size=3, max_size=3),
    st.sampled_from([1 << 20, 256 << 20]),
)
@examples(30)
def test_slots_lie_apart_and_within_their_part_of_the_memory(weights, streams, staging):
    paths = [(0, 1), (0, 2, 1), (0, 4, 1)]
    parts = tuple(
        Part(path, Fraction(weight, sum(weights)), many)
        for path, weight, many in zip(paths, weights, streams, strict=False)
    )
    messages = plan(cedar(), table(Split(parts)), True, {})
    layout = SegmentLayout(Geometry(), (), (1000, 0, 5, 128), 4)
    limits = Budget(8, staging)
    assert limits_beside(messages, limits).staging_bytes == staging - staging // 4
    with pytest.raises(UnsupportedError, match="a quarter of BLINK_STAGING_BYTES"):
        place(messages, layout, (), Budget(8, 16 << 10))
    messages, placed = place(messages, layout, (), limits)
    areas = defaultdict(list)
    for one in messages.placed:
        areas[one.segment].append((one.ring, one.ring + 4 * messages.slot_bytes))
        for end, at in ((one.path.dst, one.tail), (one.path.src, one.head)):
            areas[one.segment if one.path.on_host else end].append((at, at + 128))
    for segment, taken in areas.items():
        taken.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(taken))
        assert taken[0][0] >= (*layout.segment_bytes, 0)[segment]
        assert taken[-1][1] <= placed.segment_bytes[segment]
        assert sum(end - begin for begin, end in taken) <= staging // 4 + 64 * 128
        assert all(begin % 128 == 0 for begin, _ in taken)
    assert len(list(messages.connections())) == len(messages.paths)
    assert len(list(messages.rows(0))) == len(messages.splits)


def test_tables_of_a_laboratory_are_not_for_gpus(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mist, file = parse_spec("mist"), tmp_path / "paths.json"
    for kind in (path_table.SIMULATED, path_table.LABORATORY):
        source = "measured in a laboratory, 750 times slower" if kind == path_table.LABORATORY else "simulated"
        path_table.write(file, PathTable(path_table.machine_key(mist), "mist", source, kind=kind))
        table_of_paths = planner._path_table({"BLINK_PATHS": str(file)}, mist)
        assert (table_of_paths is None) == (kind == path_table.LABORATORY)
    assert [record.message for record in caplog.records] == [
        f"BLINK_PATHS={file} was measured in a laboratory, 750 times slower, not for GPUs; it is ignored"
    ]
