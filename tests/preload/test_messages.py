"""ncclSend and ncclRecv over the paths of a table: every byte arrives over any paths; a bad table is ignored."""

import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
from preloaded import HERE, Outcome, Preloaded

from blinkccl.collectives.spec import Collective
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.multi_path import plan, ways
from blinkccl.trees.algorithms.path_table import PairSplits, Part, PathTable, Split, machine_key, write
from blinkccl.trees.algorithms.request import Request
from support.examples import ALL_TESTS

#: So little staging memory that long messages have more chunks than a path has slots.
NARROW = "1M"
#: Cedar: through two neighbours and the host. Mist: through the host, the only way between sockets.
JOBS = [("threads", "cedar", 1), ("process", "mist", 1), ("process", "cedar", 0)]
if ALL_TESTS:
    JOBS = [
        (mode, topo, seed) for mode in ("threads", "process", "all") for topo in ("cedar", "mist") for seed in range(4)
    ]


def table(topo: str, file: Path, but: tuple[int, int] = (0, 0), chunks: int = 2) -> Path:
    """A table with all pairs but one: up to 1000 bytes directly, then over two paths, then over all in ``chunks``."""
    topology = parse_spec(topo)
    paths_of = PathTable(machine_key(topology), topo, "a test")
    for src, dst in (pair for pair in permutations(topology.ranks, 2) if pair != but):
        ends = Collective("sendrecv", len(topology.ranks), src=topology.ranks.index(src), dst=topology.ranks.index(dst))
        options = ways(plan(Request(topology, ends, topology.ranks)))
        paths = [way.path for way in options if way.legs <= 2]
        if len(paths) == 1:
            paths_of = paths_of.merged(PairSplits(src, dst, (Split((Part(paths[0], Fraction(1), 3),), None, 2),)))
            continue
        direct = Split((Part(paths[0], Fraction(1)),), 1000)
        two = Split((Part(paths[0], Fraction(2, 3)), Part(paths[1], Fraction(1, 3))), 30_000)
        rest = Fraction(3, 5) / (len(paths) - 1)
        every = Split((Part(paths[0], Fraction(2, 5)), *(Part(path, rest, 2) for path in paths[1:])), None, chunks)
        paths_of = paths_of.merged(PairSplits(src, dst, (direct, two, every)))
    write(file, paths_of)
    return file


def reasons(outcome: Outcome, state: str) -> set[str]:
    """The reasons in the report for the library of messages."""
    return {line.why for line in outcome.usage if line.collective == "send" and line.state == state}


@pytest.mark.parametrize(("mode", "topo", "seed"), JOBS)
def test_every_byte_arrives_whatever_runs_late(
    preloaded: Preloaded, tmp_path: Path, mode: str, topo: str, seed: int
) -> None:
    paths = table(topo, tmp_path / "paths.json")
    job = {"BLINK_TOPO": topo, "BLINK_PATHS": paths, "BLINK_STAGING_BYTES": NARROW, "BLINK_DOUBLE_SEED": seed}
    outcome = preloaded.client(mode, 4, cases="messages,exchange,groups,streams", timeout_s=150, **job).right()
    # Short messages, which go directly, and messages to the rank itself are NCCL's, in the same groups as Blink's.
    assert outcome.calls("nccl")["send"] > 0
    served = reasons(outcome, "blink")
    assert any("66.7 % on 0-1, 33.3 % on 0-" in why for why in served)
    assert any("in 2 streams" in why for why in served)
    assert any("in 3 streams" in why for why in served) == (topo == "mist")


def test_messages_have_as_many_chunks_as_the_table_says(preloaded: Preloaded, tmp_path: Path) -> None:
    """Messages of 40000 int32 between all ranks, on seven streams: each chunk is copied in and out."""
    preloaded.client("threads", 4, cases="errors", BLINK_TOPO="cedar").right()  # the pairs of GPUs are tested once
    copies = []
    for chunks in (2, 4):
        journal = tmp_path / f"driver{chunks}"
        paths = {"BLINK_PATHS": table("cedar", tmp_path / "paths.json", chunks=chunks), "BLINK_DOUBLE_JOURNAL": journal}
        preloaded.client("threads", 4, cases="messages", BLINK_TOPO="cedar", **paths).right()
        copies.append(sum(line.startswith("cuMemcpy") for line in journal.read_text().splitlines()))
    assert copies[1] - copies[0] == 12 * 7 * 2 * (4 - 2)


def test_without_nccls_direct_path_all_sizes_are_blinks(preloaded: Preloaded) -> None:
    job = {"BLINK_TOPO": "dgx-1v", "BLINK_PROTOCOL": "copies", "BLINK_STAGING_BYTES": NARROW}
    outcome = preloaded.client("threads", 4, cases="messages,exchange", **job).right()
    assert outcome.calls("nccl")["send"] == 0
    assert "from rank 0 to rank 3 all on 0-3" in reasons(outcome, "blink")


def test_unusual_messages(preloaded: Preloaded, tmp_path: Path) -> None:
    """Relays without calls, NCCL's messages, a group whose first part waits for the rest, graphs, a missing peer."""
    library = preloaded.built.library
    variables = {"LD_PRELOAD": None, "BLINK_NCCL_LIB": preloaded.built.doubles.nccl, "BLINK_TOPO": "cedar"}
    file = table("cedar", tmp_path / "paths.json", but=(3, 1))
    job = {"BLINK_PATHS": file, "BLINK_STAGING_BYTES": NARROW, "BLINK_TIMEOUT": 3}
    outcome = preloaded.run([[sys.executable, HERE / "message_roads.py", library]], **variables, **job)
    (ended,) = outcome.ended
    assert [line for line in ended.said if not line["ok"]] == []
    assert ended.code == 0, ended.err[-2000:]
    assert len(ended.said) == 28
    late = [line.partition("waited 3 s for ")[2] for line in outcome.blink if "waited 3 s for " in line]
    assert [line.partition(" on connection ")[0] for line in late] == ["room for message 4", "message 0"]
    assert all("from rank 0 to rank 1" in line for line in late)


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def of_another_machine(file: Path) -> None:
    table("mist", file)


def with_a_path_in_a_circle(file: Path) -> None:
    file.write_text(file.read_text().replace('"path": [0, 1]', '"path": [0, 2, 0, 1]'))


def of_deep_json(file: Path) -> None:
    file.write_text("[" * 100_000)


def gone(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("spoil", [cut_off, of_another_machine, with_a_path_in_a_circle, of_deep_json, gone])
def test_a_bad_table_is_ignored_with_a_line(
    preloaded: Preloaded, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    file = table("cedar", tmp_path / "paths.json")
    spoil(file)
    outcome = preloaded.scene("many_calls", 4, BLINK_TOPO="cedar", BLINK_PATHS=file, BLINK_DEBUG="WARN").right()
    assert outcome.calls("blink")["allreduce"] > 0
    (line,) = [line for one in outcome.ended for line in one.err.splitlines() if "it is ignored" in line]
    assert str(file) in line
    assert len(line) < 500


def test_paths_over_broken_links_are_left_out(preloaded: Preloaded, tmp_path: Path) -> None:
    """A pair whose links failed the peer check: its paths are used as without a table."""
    file = table("cedar", tmp_path / "paths.json")
    cache = preloaded.directory / "own"
    job = {"BLINK_TOPO": "cedar", "BLINK_PATHS": file, "BLINK_DOUBLE_BAD_PEER": "0-2", "BLINK_CACHE": cache}
    outcome = preloaded.client("threads", 4, cases="messages", **job).right()
    assert not any("0-2-1" in why for why in reasons(outcome, "blink"))


def test_the_report_names_pairs_and_paths(preloaded: Preloaded, tmp_path: Path) -> None:
    file = table("cedar", tmp_path / "paths.json")
    outcome = preloaded.client("process", 4, cases="messages", BLINK_TOPO="cedar", BLINK_PATHS=file).right()
    whys = reasons(outcome, "blink")
    for src, dst in permutations(range(4), 2):
        assert any(f"from rank {src} to rank {dst} 66.7 % on {src}-{dst}, 33.3 % on " in why for why in whys)
