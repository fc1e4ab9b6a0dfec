"""``blink tune``: halving finds the fastest, takes it only if it is clearly faster, and spends what it may."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest

from blinkccl.bench import tune
from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.protocol import Flag, Kind
from blinkccl.bench.tune import CLEARLY, MOST_CALLS, PAIRS, Candidate, TimedRows, candidates, fastest, ranges, untuned
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.cost.choice.host_table import HostChoice
from blinkccl.engines.registry import ENGINES
from blinkccl.errors import InternalError, UnsupportedError
from blinkccl.runtime import tuned
from support.planned import with_ends

ALLREDUCE = with_ends("allreduce", 2)


class Timed:
    """Ranks whose calls take what the rows' chunk says, in microseconds; ``refused`` chunks cannot run."""

    def __init__(self, seconds=None, refused=(), wrong=()):
        self.seconds, self.refused, self.wrong = seconds or (lambda chunk: chunk * 1e-6), refused, wrong
        self.chunk, self.calls, self.told = 0, 0, 0

    def run(self, commands):
        command = commands[0]
        if command.kind is Kind.CHOICE:
            self.chunk = msgspec.json.decode(command.fill, type=tuple[HostChoice, ...])[0].chunk_bytes
            self.told += 1
            return RankTimes(np.zeros((2, 0)), 0)
        if self.chunk in self.refused:
            raise UnsupportedError("no")
        checked = Flag.CHECK in command.flags
        self.calls += command.iterations + checked
        taken = self.seconds(self.chunk)
        return RankTimes(
            np.array([[taken] * command.iterations, [taken / 2] * command.iterations]),
            int(checked and self.chunk in self.wrong),
        )


def on(ranks):
    return TimedRows(ranks, ALLREDUCE, 1 << 16)


def of(chunk, name=None):
    return Candidate(name or str(chunk), (HostChoice("ring", False, chunk),))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_the_fastest_wins(count):
    base, others = of(100, "built in"), [of(10 + 3 * place) for place in range(count)]
    winner, seconds, base_s, tried = fastest(on(Timed()), base, others[::-1], 1.0)
    assert (winner.name, seconds, base_s, tried) == ("10", pytest.approx(10e-6), pytest.approx(100e-6), count + 1)


def test_what_is_not_clearly_faster_leaves_what_is_built_in():
    base = of(1000, "built in")
    for chunk, wins in ((980, False), (int(1000 / CLEARLY) + 1, False), (int(1000 / CLEARLY) - 1, True), (1500, False)):
        winner, *_ = fastest(on(Timed()), base, [of(chunk)], 1.0)
        assert (winner is not base) == wins
    alone, seconds, base_s, tried = fastest(on(Timed()), base, [], 1.0)
    assert (alone, seconds, tried) == (base, base_s, 1)


def test_what_cannot_run_here_takes_no_part():
    ranks = Timed(refused=(10, 20))
    winner, _, _, tried = fastest(on(ranks), of(100), [of(10), of(20), of(30)], 1.0)
    assert (winner.name, tried) == ("30", 2)


def test_a_winner_is_asked_once_more():
    cell = tuned.TunedCell("allreduce", 1 << 16, 1 << 15, 1 << 17, "", 1e-5, 1e-4, 3, of(10).rows, confirmed=False)
    kept = tune.confirmed(Timed(lambda chunk: 1e-5 if chunk == 10 else 2e-5), ALLREDUCE, cell)
    assert (kept.rows, kept.seconds, kept.built_in_seconds, kept.confirmed) == (cell.rows, 1e-5, 2e-5, True)
    dropped = tune.confirmed(Timed(lambda chunk: 1e-5), ALLREDUCE, cell)
    assert (dropped.rows, dropped.seconds, dropped.built_in_seconds) == ((), 1e-5, 1e-5)


def test_what_is_built_in_stays_a_variant_of_its_kind():
    base = untuned(ALLREDUCE, 4 << 20)
    kind = base.rows[0].algorithm
    found = tune.with_variants(Candidate("it", (HostChoice(kind, False, 64 << 10),)), base)
    assert [row.variant for row in found.rows] == [False, *[True] * len(base.rows)]
    assert {row.chunk_bytes for row in base.rows} | {64 << 10} == {row.chunk_bytes for row in found.rows}
    cell = tuned.TunedCell("allreduce", 4 << 20, 1 << 21, 1 << 23, "", 1.0, 1.0, 1, found.rows)
    assert tuned._fault_of_cell(cell) == ""
    other = Candidate("it", (HostChoice("ring", False, 64 << 10),))
    assert tune.with_variants(other, base) is other


def test_wrong_results_end_it():
    with pytest.raises(InternalError, match="20 gives wrong sums of 65536 bytes"):
        fastest(on(Timed(wrong=(20,))), of(100), [of(10), of(20)], 1.0)


@pytest.mark.parametrize("budget_s", [0.01, 0.1, 1.0])
def test_the_time_that_is_spent_is_what_was_given(budget_s):
    """As far as whole calls go: at least some of each candidate and of each pair, and never more than the most."""
    ranks = Timed()
    timed = on(ranks)
    fastest(
        timed,
        Candidate("built in", (HostChoice("one_hop", False, 100),)),
        [of(90 + place) for place in range(9)],
        budget_s,
    )
    assert timed.calls == ranks.calls
    least = (20 + 2 + 4 * 2 * 10 + 4 * 2 * PAIRS) * 100e-6  # once each, and with the fewest calls all rounds and pairs
    assert ranks.calls * 100e-6 < max(least, 2.2 * budget_s)
    assert ranks.calls <= 10 * MOST_CALLS * 4 + 2 * PAIRS * MOST_CALLS


def test_ranges_cover_all_sizes_once():
    found = ranges([1 << 10, 1 << 12, 1 << 14])
    assert found == [(1 << 10, 512, 2048), (1 << 12, 2048, 8192), (1 << 14, 8192, 1 << 15)]
    assert ranges([100]) == [(100, 50, 200)]


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - {"sendrecv"}))
@pytest.mark.parametrize("size", [4 << 10, 1 << 20])
def test_candidates_are_rows_that_a_table_may_have(name, size):
    collective = tune.collective_of(name, 3)
    found = candidates(collective, size)
    assert len({one.rows for one in found}) == len(found) == len({one.name for one in found})
    for one in found:
        cell = tuned.TunedCell(name, size, size // 2, size * 2, "", 1.0, 1.0, 1, one.rows)
        assert tuned._fault_of_cell(cell) == ""
    assert any(row.inline for one in found for row in one.rows) == (size <= tune.INLINE_BYTES)
    assert any(row.cross_memory for one in found for row in one.rows) == (size >= tune.CROSSED_FROM)
    assert untuned(collective, size).rows


@pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))
def test_the_verb_measures_writes_and_goes_on_where_it_was(blink, tmp_path, monkeypatch):
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    asked = ("tune", "allreduce", "reduce", "-b", "4K", "-e", "64K", "-f", "16", "--budget", "0.4")
    found = json.loads(blink(*asked, "--json").out)
    assert [(cell["collective"], cell["size_bytes"]) for cell in found["cells"]] == [
        ("reduce", 4 << 10),
        ("reduce", 64 << 10),
        ("allreduce", 4 << 10),
        ("allreduce", 64 << 10),
    ]
    for cell in found["cells"]:
        assert cell["seconds"] > 0
        assert cell["tried"] > 2
        assert bool(cell["rows"]) == (cell["seconds"] != cell["built_in_seconds"])
    before = tuned.path_of(2).read_bytes()
    ended = blink(*asked)
    assert "all of this was measured before" in ended.err
    assert tuned.path_of(2).read_bytes() == before
    cut_off = tuned.read(tuned.path_of(2), 2)
    won = msgspec.structs.replace(
        cut_off.cells[3], rows=(HostChoice("ring", False, 1 << 16),), confirmed=False, seconds=1e-9
    )
    tuned.write(tuned.path_of(2), cut_off.with_cell(won))
    assert "ring in messages of 64 KiB, not confirmed yet" in blink("tune", "--show").out
    ended = blink(*asked)
    assert "not confirmed yet" not in ended.out
    assert all(cell.confirmed for cell in tuned.read(tuned.path_of(2), 2).cells)
    assert re.search(r"^allreduce +64K .*\n\n\d of 4 are faster than what is built in$", ended.out, re.MULTILINE)
    assert blink("tune", "--show").out == ended.out
    blink("tune", "gossip").assert_refused("gossip: expected some of")
    text = blink("explain", "allreduce", "-g", "2", "--size", "64K").out
    assert "blink tune measured " in text or "built in; blink tune -g 2" in text
    explained = json.loads(blink("explain", "allreduce", "--size", "64K", "-g", "2", "--json").out)
    assert explained["rows"]
