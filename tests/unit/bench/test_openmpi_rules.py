"""Open MPI's decision rules: what the file says to it, which algorithms are tried, and which are taken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from blinkccl.bench import openmpi_rules
from blinkccl.bench.candidate import CandidateLaunch, RunningCandidate
from blinkccl.bench.interleave import Participant
from blinkccl.bench.openmpi_rules import TunedSize, algorithms, confirmed, text_of, tuned
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.peers import registry
from blinkccl.bench.rows import Series
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, UnsupportedError
from blinkccl.export.ompi_rules import NUMBERS, Rule, rules_text

LISTING = """\
mca:coll:tuned:param:coll_tuned_bcast_algorithm:enumerator:value:0:ignore
mca:coll:tuned:param:coll_tuned_bcast_algorithm:enumerator:value:1:basic_linear
mca:coll:tuned:param:coll_tuned_bcast_algorithm:enumerator:value:2:chain
mca:coll:tuned:param:coll_tuned_bcast_algorithm_count:value:9
mca:coll:tuned:param:coll_tuned_allgatherv_algorithm:enumerator:value:1:default
"""
#: (number of a collective, size of a communicator, bytes) → (algorithm, fan-out, bytes of a segment)
Table = dict[int, list[tuple[int, list[tuple[int, int, int, int]]]]]


def installed() -> bool:
    try:
        registry.installation("openmpi", None)
    except UnsupportedError:
        return False
    return True


OPEN_MPI = pytest.mark.skipif(not installed(), reason="there is no Open MPI on PATH")


def read(text: str) -> Table:
    """As Open MPI's reader goes through it: numbers, comments to the end of a line, and nothing behind the last."""
    numbers = [int(word) for line in text.split("\n") for word in line.partition("#")[0].split()]
    at = iter(numbers)
    table: Table = {}
    for _ in range(next(at)):
        number = next(at)
        assert number not in table
        communicators = table.setdefault(number, [])
        for _ in range(next(at)):
            size, count = next(at), next(at)
            rules = [(next(at), next(at), next(at), next(at)) for _ in range(count)]
            assert rules[0][0] == 0
            assert rules == sorted(rules, key=lambda rule: rule[0])
            communicators.append((size, rules))
        assert communicators == sorted(communicators, key=lambda one: one[0])
    assert list(at) == []
    return table


def taken(table: Table, collective: str, ranks: int, size: int) -> tuple[int, int, int]:
    """What coll/tuned takes: the last that is not larger, or the first."""
    communicators = table[NUMBERS[collective][0]]
    _, rules = ([one for one in communicators if one[0] <= ranks] or communicators[:1])[-1]
    return [rule for rule in rules if rule[0] <= size][-1][1:]


def test_a_file_is_for_what_was_measured_and_nothing_else() -> None:
    rules = {
        "broadcast": [Rule(0, 1), Rule(1024, 2, 32768, 4, "chain"), Rule(4096, 2, 32768, 4), Rule(65536, 0)],
        "allreduce": [Rule(512, 3)],
    }
    table = read(rules_text(4, rules, ["# a remark", "and 5 more"]))
    assert list(table) == [2, 7]
    for ranks in range(1, 9):
        for size in (0, 1, 511, 512, 1023, 1024, 4096, 65535, 65536, 2**31):
            wanted = (0, 0, 0)
            if ranks == 4:
                wanted = (1, 0, 0) if size < 1024 else (2, 4, 32768) if size < 65536 else (0, 0, 0)
            assert taken(table, "broadcast", ranks, size) == wanted
            assert taken(table, "allreduce", ranks, size) == ((3, 0, 0) if ranks == 4 and size >= 512 else (0, 0, 0))
    assert sum(len(rules) for _, rules in table[7]) == 5  # what goes on is not said again


def test_sizes_stand_for_those_around_them() -> None:
    found = [_size(1024, 2), _size(4096, 0), _size(16384, 3)]
    table = read(text_of(2, found, {1024: 512, 4096: 2048, 16384: 8192}))
    sizes = (0, 511, 512, 2047, 2048, 8191, 8192, 32767, 32768, 2**30)
    assert [taken(table, "allreduce", 2, size)[0] for size in sizes] == [0, 0, 2, 2, 0, 0, 3, 3, 0, 0]


def _size(size: int, algorithm: int, ratio: float = 2.0) -> TunedSize:
    return TunedSize("allreduce", size, 2.0, Rule(0, algorithm, remark=f"number {algorithm}"), 1.0, ratio)


def test_every_algorithm_is_tried_with_segments_where_it_has_some() -> None:
    found = algorithms("broadcast", LISTING)
    assert [(rule.algorithm, rule.segment_bytes, rule.fan_out) for rule in found] == [
        (1, 0, 0),
        (2, 0, 4),
        (2, 32768, 4),
        (2, 131072, 4),
    ]
    assert [rule.remark for rule in found][:3] == ["basic_linear", "chain", "chain, segments of 32768 bytes"]
    with pytest.raises(
        UnsupportedError, match="ompi_info lists no coll_tuned_allgather_algorithm: is coll/tuned a part"
    ):
        algorithms("allgather", LISTING)


MADE_UP = [*(Rule(0, number, remark=f"number {number}") for number in (1, 2, 3)), Rule(0, 4, remark="two_proc")]


class Told:
    """Rounds that somebody made up, by what a candidate is called and what it is to run."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, times: dict[str, dict[int, list[float]]], wrong: str = ""
    ) -> None:
        self.times, self.wrong = times, wrong
        self.rules: dict[str, str] = {}
        monkeypatch.setattr(openmpi_rules, "algorithms", lambda name: MADE_UP)
        monkeypatch.setattr(openmpi_rules, "launch", self.launch)
        monkeypatch.setattr(openmpi_rules, "_running", self.running)
        monkeypatch.setattr(openmpi_rules, "_measured", self.measured)

    def launch(self, ranks: int, cores: int, name: str, rules: str = "") -> CandidateLaunch:
        self.rules[name] = rules
        return CandidateLaunch("openmpi", ranks, lambda path, room: [], name)

    @contextmanager
    def running(self, launches: Sequence[CandidateLaunch], note: object) -> Iterator[list[Participant]]:
        yield [Participant("openmpi" if place else "", one.variant, None) for place, one in enumerate(launches)]  # type: ignore[arg-type]

    def measured(self, run: object, size: int) -> tuple[Series, list[tuple[Participant, Series]]]:
        def series(name: str) -> Series:
            return Series([np.asarray([one]) for one in self.times[name][size]], 0)

        others = [one for one in run.participants[1:] if one.variant != self.wrong]  # type: ignore[attr-defined]
        return series("own"), [(one, series(one.variant)) for one in others]


COLLECTIVE = Collective("allreduce", 2)


def test_the_fastest_is_taken_if_it_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {
        "own": {64: [1.0, 2.0, 3.0], 4096: [1.0, 2.0, 3.0]},
        "number 1": {64: [0.99, 1.98, 2.97], 4096: [0.5, 1.0, 1.5]},  # beside the same round: 1 % and 100 %
        "number 2": {64: [0.98, 2.1, 2.9], 4096: [0.6, 1.2, 0.1]},
        "number 3": {64: [0.1, 0.1, 0.1], 4096: [0.1, 0.1, 0.1]},  # wrong
    }
    times["two_proc"] = {64: [2.0] * 3, 4096: [2.0] * 3}
    told = Told(monkeypatch, times, wrong="number 3")
    found = tuned(COLLECTIVE, [64, 4096], 2, 1.0, print)
    assert [(one.rule.algorithm, round(one.ratio, 3)) for one in found] == [(0, 1.0), (1, 2.0)]
    assert taken(read(told.rules["number 1"]), "allreduce", 2, 64) == (1, 0, 0)
    assert "two_proc" in told.rules
    told.rules.clear()
    tuned(Collective("allreduce", 3), [64], 2, 1.0, print)
    assert "two_proc" not in told.rules


def test_a_rule_that_does_not_hold_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"own": {64: [1.0] * 3, 4096: [1.0] * 3}, "rules": {64: [0.5] * 3, 4096: [0.98] * 3}}
    told = Told(monkeypatch, times)
    found = confirmed(COLLECTIVE, [_size(64, 2), _size(4096, 3)], {64: 32, 4096: 512}, 2, 1.0, print)
    assert [(one.rule.algorithm, one.ratio, one.seconds) for one in found] == [(2, 2.0, 0.5), (0, 1.0, 1.0)]
    assert taken(read(told.rules["rules"]), "allreduce", 2, 4096) == (3, 0, 0)
    own = [_size(64, 0, 1.0)]
    assert confirmed(COLLECTIVE, own, {64: 32}, 2, 1.0, print) == own  # nothing is run


@OPEN_MPI
@pytest.mark.parametrize(
    ("ranks", "least", "refused"), [(3, 0, True), (3, 2**16, False), (2, 0, False), (4, 0, False), (3, 4096, True)]
)
def test_open_mpi_goes_by_the_file(ranks: int, least: int, refused: bool) -> None:
    """Its algorithm for two processes refuses three: told for a call of 4 KiB among these, and not for others."""
    two = next(rule for rule in algorithms("allgather") if rule.remark == "two_proc")
    text = rules_text(ranks, {"allgather": [Rule(least, two.algorithm)]})
    work = TimedCall(Collective("allgather", 3), 1024 // 3 + 1, iterations=2)
    assert work.size >= 4096
    with RunningCandidate(openmpi_rules.launch(3, 2, "rules", text)) as candidate:
        if refused:
            with pytest.raises(CommunicationError):
                candidate.run(commands(work))
        else:
            assert candidate.run(commands(work)).wrong == 0


@OPEN_MPI
def test_the_command_measures_and_writes(blink, tmp_path: Path) -> None:
    target = tmp_path / "rules.conf"
    asked = ["tune", "allgather", "-g", "2", "--openmpi", target, "-b", "64K", "-e", "256K", "--budget", "2"]
    document = json.loads(blink(*asked, "--json").out)
    assert [one["size_bytes"] for one in document["sizes"]] == [65536, 262144]
    table = read(target.read_text())
    for one in document["sizes"]:
        chosen = one["rule"]["algorithm"], one["rule"]["fan_out"], one["rule"]["segment_bytes"]
        assert taken(table, "allgather", 2, one["size_bytes"]) == chosen
        assert one["ratio"] == 1.0 or one["ratio"] >= 1.03
    assert taken(table, "allgather", 3, 65536) == taken(table, "allgather", 2, 2**30) == (0, 0, 0)


def test_what_is_refused(blink, tmp_path: Path) -> None:
    target = tmp_path / "rules.conf"
    blink("tune", "sendrecv", "--openmpi", target).assert_refused("sendrecv: of Open MPI, expected some of allgather,")
    blink("tune", "--openmpi", target, "--show").assert_refused("anew each time: leave the other options out")
    blink("tune", "--openmpi", tmp_path / "no" / "x").assert_refused("there is no folder")


def test_without_open_mpi_it_says_so(blink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = blink("tune", "allreduce", "--openmpi", tmp_path / "rules.conf")
    assert ended.code == 2
    assert "openmpi is not on PATH: install it" in ended.err
    assert not (tmp_path / "rules.conf").exists()
