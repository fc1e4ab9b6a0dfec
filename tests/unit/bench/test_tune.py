"""``blink tune``: halving finds the fastest way, selects it only if it is clearly faster, and keeps to its budget."""

import json
import re

import msgspec
import numpy as np
import pytest

from blinkccl.bench import tune
from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.protocol import Flag, Kind
from blinkccl.bench.tune import CLEARLY, MOST_CALLS, PAIRS, HostTuner, Race, TimedWays, candidates, ranges, untuned
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import InternalError, UnsupportedError
from blinkccl.runtime.host_table import machine, path_of_host
from blinkccl.trees.algorithms import tables
from blinkccl.trees.algorithms.tables import BUILT_IN, HOST, Cell, Time, Way, cell_fault
from support.engines import ENGINES
from support.planned import with_ends

ALLREDUCE = with_ends("allreduce", 2)


class Timed:
    """Ranks whose calls take the ways' chunk as microseconds; ``refused`` chunks cannot run."""

    def __init__(self, seconds=None, refused=(), wrong=()):
        self.seconds, self.refused, self.wrong = seconds or (lambda chunk: chunk * 1e-6), refused, wrong
        self.chunk, self.calls, self.choices = 0, 0, 0

    def run(self, commands):
        command = commands[0]
        if command.kind is Kind.CHOICE:
            self.chunk = msgspec.json.decode(command.fill, type=tuple[Way, ...])[0].chunk_bytes
            self.choices += 1
            return RankTimes(np.zeros((2, 0)), 0)
        if self.chunk in self.refused:
            raise UnsupportedError("no")
        checked = Flag.CHECK in command.flags
        self.calls += command.iterations + checked
        seconds = self.seconds(self.chunk)
        return RankTimes(
            np.array([[seconds] * command.iterations, [seconds / 2] * command.iterations]),
            int(checked and self.chunk in self.wrong),
        )


def of(chunk):
    return (Way("ring", "", chunk),)


def fastest(ranks, base, others, budget_s=1.0):
    """The winner of a race, its seconds and those of the base, and the number of ways that ran."""
    timed = TimedWays(ranks, ALLREDUCE, 1 << 16)
    race = Race(base, timed.seconds, MOST_CALLS, PAIRS, timed.settle)
    last = race.run(others, budget_s)
    won = last[0] if last is not None and tune.is_faster(last[1]) else base
    assert timed.calls == ranks.calls or ranks.refused
    return won, race.times[won][0], race.times[base][0], len(race.times)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_the_fastest_wins(count):
    base, others = of(100), [of(10 + 3 * place) for place in range(count)]
    result = fastest(Timed(), base, others[::-1])
    assert result == (of(10), pytest.approx(10e-6), pytest.approx(100e-6), count + 1)


def test_a_way_that_is_not_clearly_faster_does_not_win():
    base = of(1000)
    for chunk, wins in ((980, False), (int(1000 / CLEARLY) + 1, False), (int(1000 / CLEARLY) - 1, True), (1500, False)):
        assert (fastest(Timed(), base, [of(chunk)])[0] is not base) == wins
    assert fastest(Timed(), base, []) == (base, 1e-3, 1e-3, 1)


def test_a_way_that_cannot_run_takes_no_part():
    winner, _, _, tried = fastest(Timed(refused=(10, 20)), of(100), [of(10), of(20), of(30)])
    assert (winner, tried) == (of(30), 2)


@pytest.mark.parametrize(("others_s", "stays"), [(2e-5, True), (1e-5, False)])
def test_a_winner_is_confirmed(others_s, stays, monkeypatch):
    tuner = HostTuner(2)
    monkeypatch.setattr(HostTuner, "runs", Timed(lambda chunk: 1e-5 if chunk == 10 else others_s))
    times = Time.of(of(10), 1e-5, 9), Time(BUILT_IN, "", 1e-4, 9)
    before = Cell("allreduce", -1, (0, 1), 1 << 16, 1 << 15, 1 << 17, "", times, 3, confirmed=False)
    after = tuner.confirmed(before)
    assert (after.confirmed, after.tried, after.times[-1].seconds) == (True, 3, others_s)
    assert [one.algorithm for one in after.times] == (["ring", BUILT_IN] if stays else [BUILT_IN])


def test_the_built_in_choice_stays_a_variant_of_its_kind():
    base = untuned(ALLREDUCE, 4 << 20)
    kind = base[0].algorithm
    ways = tune.with_variants((Way(kind, "", 64 << 10),), base)
    assert len(ways) == len(base) + 1
    assert {way.chunk_bytes for way in base} | {64 << 10} == {way.chunk_bytes for way in ways}
    assert fault_of(ways, 4 << 20) == ""
    other = (Way("ring", "", 64 << 10),)
    assert tune.with_variants(other, base) is other


def fault_of(ways, size, name="allreduce"):
    """The reason why a host's table refuses these ways; "" if it accepts them."""
    cell = Cell(name, -1, (0, 1), size, size // 2, size * 2, "", (Time.of(ways, 1.0, 1),))
    return cell_fault(cell, HOST)


def test_wrong_results_end_it():
    with pytest.raises(InternalError, match="ring in messages of 20 gives 1 wrong elements at 65536 bytes"):
        fastest(Timed(wrong=(20,)), of(100), [of(10), of(20)])


@pytest.mark.parametrize("budget_s", [0.01, 0.1, 1.0])
def test_a_race_keeps_to_its_budget(budget_s):
    """The calls are whole, at least a few per candidate and pair, and never more than the most."""
    ranks = Timed()
    fastest(ranks, (Way("one_hop", "", 100),), [of(90 + place) for place in range(9)], budget_s)
    least = (
        10 * 4 + 4 * 2 * 10 + 4 * 2 * PAIRS
    ) * 100e-6  # The first round, and all rounds and pairs with the fewest calls.
    assert ranks.calls * 100e-6 < max(least, 2.2 * budget_s)
    assert ranks.calls <= 10 * MOST_CALLS * 4 + 2 * PAIRS * MOST_CALLS


def test_ranges_cover_all_sizes_once():
    covered = ranges([1 << 10, 1 << 12, 1 << 14])
    assert covered == [(1 << 10, 512, 2048), (1 << 12, 2048, 8192), (1 << 14, 8192, 1 << 15)]
    assert ranges([100]) == [(100, 50, 200)]


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - {"sendrecv"}))
@pytest.mark.parametrize("size", [4 << 10, 1 << 20])
def test_candidates_are_rows_that_a_table_may_have(name, size):
    collective = tune.collective_of(name, 3)
    rows = candidates(collective, size)
    assert len(set(rows)) == len(rows)
    assert {fault_of(ways, size, name) for ways in rows} == {""}
    assert any(way.inline for ways in rows for way in ways) == (size <= tune.INLINE_BYTES)
    assert any(way.copied for ways in rows for way in ways) == (size >= tune.CROSSED_FROM)
    assert untuned(collective, size)


@pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))
def test_the_verb_measures_writes_and_continues(blink, tmp_path, monkeypatch):
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    command = ("tune", "allreduce", "reduce", "-b", "4K", "-e", "64K", "-f", "16", "--budget", "0.4")
    document = json.loads(blink(*command, "--json").out)
    assert [(cell["collective"], cell["size_bytes"]) for cell in document["cells"]] == [
        ("reduce", 4 << 10),
        ("reduce", 64 << 10),
        ("allreduce", 4 << 10),
        ("allreduce", 64 << 10),
    ]
    for cell in document["cells"]:
        assert cell["times"][-1]["algorithm"] == BUILT_IN
        assert all(time["seconds"] > 0 for time in cell["times"])
        assert cell["tried"] > 2
        assert len(cell["times"]) in (1, 2)
    path = path_of_host(2)
    before = path.read_bytes()
    ended = blink(*command)
    assert "all sizes were measured before" in ended.err
    assert path.read_bytes() == before
    cut_off = tables.read(path, machine())
    times = Time("ring", "", 1e-9, 9, 1 << 16), cut_off.cells[3].times[-1]
    tables.write(path, cut_off.with_cell(msgspec.structs.replace(cut_off.cells[3], times=times, confirmed=False)))
    assert "ring in messages of 64K, not confirmed yet" in blink("tune", "--show").out
    ended = blink(*command)
    assert "not confirmed yet" not in ended.out
    assert all(cell.confirmed for cell in tables.read(path, machine()).cells)
    assert re.search(r"^allreduce +64K .*\n\n\d of 4 are faster than the built-in choice$", ended.out, re.MULTILINE)
    assert blink("tune", "--show").out == ended.out
    blink("tune", "gossip").assert_refused("collective 'gossip': expected some of")
    text = blink("explain", "allreduce", "-g", "2", "--size", "64K").out
    assert "blink tune measured " in text or "built-in choice; blink tune -g 2" in text
    explained = json.loads(blink("explain", "allreduce", "--size", "64K", "-g", "2", "--json").out)
    assert explained["rows"]
