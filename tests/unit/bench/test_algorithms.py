"""Comparison of algorithms: the planned ones, the commands to ranks, and the crossovers."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from blinkccl.bench.algorithms import CHUNKS, Job, Planned, plan_algorithms, this_host
from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.interleave import BenchSettings, Interleaved
from blinkccl.bench.libraries import OwnLibrary
from blinkccl.bench.output import of_host
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.perform import Performer
from blinkccl.bench.protocol import COMMAND, Command, Flag, Kind, ReplyStatus, read_command
from blinkccl.bench.rows import Crossover, SizeRow, SizeTiming, crossovers, failed
from blinkccl.bench.sizes import sweep
from blinkccl.bench.table import BenchTable
from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.schedule.text import from_json, to_json
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.planned import asked

ALLREDUCE = Collective("allreduce", 4)
KIB, MIB = 1024, 1024**2


def _planned(names, request=None, here=True):
    notes: list[str] = []
    return plan_algorithms(names, request or this_host(ALLREDUCE), here=here, note=notes.append), notes


def test_all_means_the_choice_of_communicators_and_every_algorithm_that_serves():
    planned, notes = _planned("all")
    assert [each.name for each in planned] == [
        "auto",
        "optimal",
        "blink",
        "ring",
        "double_binary_tree",
        "one_shot",
    ]
    assert planned[0].program is None
    for star in ("one_hop", "flat"):
        assert f"{star} is left out: its program is the same as that of optimal here" in notes
    assert any(note.startswith("without hybrid: hybrid needs PCIe") for note in notes)
    texts = [to_json(replace(each.program, forest_hash="")) for each in planned[1:]]
    assert len(set(texts)) == len(texts)


def test_algorithms_on_a_machines_links_have_its_ranks():
    planned, notes = _planned("all", asked("dgx-1v", gpus="1,4,5,6"), here=False)
    assert {each.program.ranks for each in planned} == {(1, 4, 5, 6)}
    assert "auto" not in {each.name for each in planned}
    assert len(planned) + len(notes) == len(ALGORITHMS)
    assert "hybrid" in {each.name for each in _planned("all", asked("dgx-1v", gpus="0-3"), here=False)[0]}
    [auto], _ = _planned("auto", asked("dgx-1v"), here=False)
    [optimal], _ = _planned("optimal", asked("dgx-1v"), here=False)
    assert auto.program == optimal.program


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ("rings", UsageError, "unknown algorithm 'rings' (did you mean 'ring'?); expected one of auto, optimal"),
        ("ring,ring", UsageError, "--algo ring,ring: expected all, a name, or different names"),
        ("all,ring", UsageError, "--algo all,ring: expected all, a name"),
        (",", UsageError, "--algo ,: expected all"),
        ("ring,hybrid", UnsupportedError, "hybrid needs PCIe between all ranks"),
    ],
)
def test_names_that_are_refused(names, error, message):
    with pytest.raises(error, match=re.escape(message)):
        _planned(names)


class Ranks:
    """Ranks that record their commands; a run takes ``takes(program, chunk)`` seconds."""

    def __init__(self, takes=lambda program, chunk: 1e-3):
        self.takes, self.program, self.diary = takes, (None, 0), []

    def run(self, commands):
        command = commands[0]
        if command.kind is Kind.PROGRAM:
            assert {each.fill for each in commands} == {command.fill}
            self.program = (from_json(command.fill) if command.fill else None, command.count)
            self.diary.append(self.program)
            return RankTimes(np.empty((len(commands), 0)), 0)
        self.diary.append(command)
        seconds = self.takes(*self.program)
        return RankTimes(np.full((len(commands), command.iterations), seconds), 0)


def _participants(names, ranks):
    planned, _ = _planned(names)
    return Job(ALLREDUCE, tuple(planned), "star:4").participants(ranks)


def _commands(count, **choices):
    return commands(TimedCall(ALLREDUCE, count, **choices))


def test_a_trial_chooses_the_fastest_size_of_messages():
    ranks = Ranks(lambda program, chunk: {64 * KIB: 3e-3, 256 * KIB: 1e-3, MIB: 2e-3}[chunk])
    [ring] = _participants("ring", ranks)
    times = ring.runs.run(_commands(16 * MIB))
    assert (times.variant, times.seconds.max()) == ("256K", 1e-3)
    trials = [each for each in ranks.diary if isinstance(each, Command)][:-1]
    assert [each.flags & Flag.CHECK for each in trials] == [0] * 3
    assert [chunk for each, chunk in (x for x in ranks.diary if isinstance(x, tuple))] == [*CHUNKS, 256 * KIB]
    before = len(ranks.diary)
    ring.runs.run(_commands(16 * MIB))
    assert len(ranks.diary) == before + 1  # The same call again needs no trial and no Program.
    ring.runs.run(_commands(16 * MIB, in_place=False))
    assert len(ranks.diary) > before + 4


def test_small_messages_may_carry_flags_and_chunks_beyond_a_slice_are_not_tried():
    def takes(program, chunk):
        return 1e-6 if program.channels[0].protocol == "ll" else 1e-5

    ranks = Ranks(takes)
    [one_hop] = _participants("one_hop", ranks)
    assert one_hop.runs.run(_commands(4 * KIB)).variant == "ll"
    assert [chunk for _, chunk in (x for x in ranks.diary if isinstance(x, tuple))] == [CHUNKS[0]] * 3


def test_ways_that_ranks_refuse_are_not_chosen():
    def takes(program, chunk):
        if program.channels[0].protocol == "ll":
            raise UnsupportedError("too many for ll")
        return 1e-5

    [one_hop] = _participants("one_hop", Ranks(takes))
    assert one_hop.runs.run(_commands(4 * KIB)).variant == "64K"


def test_if_ranks_refuse_every_way_the_error_is_raised():
    def takes(program, chunk):
        raise UnsupportedError("no float32 here")

    [one_hop] = _participants("one_hop", Ranks(takes))
    with pytest.raises(UnsupportedError, match="no float32 here"):
        one_hop.runs.run(_commands(4 * KIB))


def test_algorithms_take_turns_on_the_same_ranks_and_each_runs_its_own_program():
    times = {None: 4e-6}
    planned, _ = _planned("auto,ring,one_shot")
    for each, seconds in zip(planned[1:], (3e-6, 2e-6), strict=True):
        times[each.program] = seconds
    ranks = Ranks(lambda program, chunk: times[program])
    job = Job(ALLREDUCE, tuple(planned), "star:4")
    settings = BenchSettings(iterations=3, rounds=2, shared=True)
    [row] = Interleaved(ALLREDUCE, settings, job.participants(ranks)).rows([MIB])
    assert [name for name, *_ in row.peers] == ["ring", "one_shot"]
    assert row.in_place.median_s == 4e-6
    assert [into.median_s for _, _, into in row.peers] == [3e-6, 2e-6]
    assert [into.variant for _, _, into in row.peers] == ["64K"] * 2
    runs = [each for each in ranks.diary if isinstance(each, Command)]
    assert all(each.flags & Flag.SHARED for each in runs)


# ---- commands at a rank


def _program_command(text, chunk_bytes=64):
    return Command(Kind.PROGRAM, itemsize=1, in_blocks=1, period=len(text), count=chunk_bytes, fill=text)


def test_the_program_travels_in_the_command():
    text = to_json(_planned("ring")[0][0].program).encode()
    packed = _program_command(text).pack()
    head, fill, expected = read_command(packed[: COMMAND.size])
    assert (head.kind, head.count, fill, expected) == (Kind.PROGRAM, 64, len(text), 0)
    assert packed[COMMAND.size :] == text


class Group:
    """A group that records prepared operations."""

    def __init__(self):
        self.prepared, self.closed = [], 0

    def prepare(self, plan, count, dtype, op, chunk_bytes):
        self.prepared.append((plan.digest, count, dtype, op, chunk_bytes))
        return SimpleNamespace(close=lambda: setattr(self, "closed", self.closed + 1))

    def time(self, prepared, send, recv, iterations, with_barrier=False):
        return np.zeros(iterations)


def test_ranks_run_the_program_of_the_command():
    library = OwnLibrary.__new__(OwnLibrary)
    group = Group()
    library._plan, library.communicator = (
        None,
        SimpleNamespace(group=group, time=lambda *_, iterations, **__: np.ones(iterations)),
    )
    program = _planned("ring")[0][0].program
    performer = Performer(library)
    text = to_json(program).encode()
    assert performer.perform(_program_command(text), text, b"").status is ReplyStatus.OK
    work = Command(Kind.RUN, itemsize=4, in_blocks=1, out_blocks=1, count=8, period=1, iterations=2, warmup=1)
    reply = performer.perform(work, b"\0" * 4, b"")
    assert (reply.status, len(reply.seconds)) == (ReplyStatus.OK, 16)
    assert group.prepared == [(HostPlan(program).digest, 8, "float32", "sum", 64)]
    assert group.closed == 1
    performer.perform(_program_command(b""), b"", b"")
    assert np.frombuffer(performer.perform(work, b"\0" * 4, b"").seconds).tolist() == [1.0, 1.0]
    assert len(group.prepared) == 1


def test_an_invalid_program_is_a_failure_and_not_the_end():
    library = OwnLibrary.__new__(OwnLibrary)
    reply = Performer(library).perform(_program_command(b"{}"), b"{}", b"")
    assert reply.status is ReplyStatus.FAILED
    assert "not a program" in reply.text


# ---- the table


def _row(size, *medians, wrong=0):
    timings = [None if each is None else SizeTiming(each, 1.0, 1.0, wrong, median_s=each) for each in medians]
    names = ("ring", "one_shot", "double_binary_tree")[: len(timings) - 1]
    return SizeRow(
        size, size // 4, timings[0], timings[0], tuple((n, t, t) for n, t in zip(names, timings[1:], strict=True))
    )


def test_crossovers_are_where_another_one_is_faster_by_more_than_a_tie():
    rows = [_row(1, 2.0, 1.0, 4.0), _row(2, 1.0, 1.04, 4.0), _row(4, 1.0, 1.06, 4.0), _row(8, 1.0, 2.0, None)]
    assert crossovers(rows, "auto") == [
        Crossover(1, "ring"),
        Crossover(4, "auto", "ring", pytest.approx(1.06)),
    ]
    assert crossovers([_row(1, 1.0), *rows[:1]], "auto")[1:] == [Crossover(1, "ring", "auto", 2.0)]
    left = crossovers([_row(1, 2.0, 1.0), _row(2, 2.0, None)], "auto")
    assert left[-1] == Crossover(2, "auto", "ring")


def _about(names):
    job = Job(ALLREDUCE, tuple(Planned(name, None) for name in names), "star:4")
    return of_host(job, BenchSettings(), [1, 2, 3, 4], None, None, {"openmpi 4.1.4": "Open MPI"})


def test_a_column_per_algorithm_and_stars_beside_the_best():
    names = ["auto", "optimal", "blink", "one_hop", "ring", "double_binary_tree", "one_shot", "internal_broadcast"]
    about = _about(names)
    text = BenchTable(about).header(sweep("4K", "64M"))
    *_, titles = text.splitlines()
    assert titles[9:].split() == [
        "auto",
        "optimal",
        "blink",
        "one",
        "hop",
        "ring",
        "tree",
        "one",
        "shot",
        "broadcast",
        "4.1.4",
    ]
    assert max(map(len, text.splitlines()[-3:])) <= 100
    assert "Planned for star:4; the host engine runs the plans in this host's memory" in text
    row = BenchTable(about).line(_row(67108864, 1.0, 0.96, None, 0.5e-3))
    assert row.split() == ["67108864", "1000000", "960000", "-", "500.0*"]
    assert len(BenchTable(about).line(_row(67108864, 1.0)).rstrip()) == len("#size (B)") + 10
    assert BenchTable(about).footer([_row(4096, 1.0, 0.5), _row(8192, 1.0, 2.0)]) == (
        "# Out of bounds values : 0 OK\n"
        "# Crossovers (the fastest by more than 5%):\n"
        "#   from 4K: ring\n"
        "#   from 8K: auto (ring takes 2.00 times as long there)\n"
    )


def test_wrong_results_of_every_algorithm_count_and_those_of_peers_do_not():
    good, bad = _row(4, 1.0), _row(4, 1.0, 1.0, wrong=1)
    rows = [replace(bad, out_of_place=good.out_of_place, in_place=good.in_place)]
    assert failed(rows, ["auto", "ring"]) == 2
    assert failed(rows, ["auto"]) == 0
