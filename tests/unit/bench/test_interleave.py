"""Candidates run in turns, are compared within rounds, and are left out after a failure."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from blinkccl.bench import interleave
from blinkccl.bench.bound import least_traffic
from blinkccl.bench.candidate import RankTimes, RunningCandidate
from blinkccl.bench.interleave import BenchSettings, Interleaved, Participant
from blinkccl.bench.protocol import Flag
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, UnsupportedError
from support.fake_ranks import launch
from support.planned import with_ends

ALLREDUCE = Collective("allreduce", 2)


@dataclass
class Scripted:
    """Ranks that take the given seconds, one number per block (the last repeats), and record their runs in a diary."""

    name: str
    seconds: list[float]
    diary: list[tuple[str, int, int]] = field(default_factory=list)
    fails: Exception | None = None
    wrong: int = 0
    commands: list = field(default_factory=list)

    def run(self, commands):
        if self.fails is not None:
            raise self.fails
        [command, *_] = commands
        self.commands.append(command)
        self.diary.append((self.name, command.count, command.iterations))
        first = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return RankTimes(np.array([[first] * command.iterations, [first / 2] * command.iterations]), self.wrong)


def _run(participants, sizes=(4096,), collective=ALLREDUCE, probe=None, **settings):
    notes: list[str] = []
    benchmark = Interleaved(
        collective, BenchSettings(**{"rounds": 3, "iterations": 4, **settings}), participants, probe, notes.append
    )
    return list(benchmark.rows(sizes)), notes


def test_turns_shift_from_round_to_round():
    diary = []
    participants = [Participant(name, "", Scripted(name, [1e-3], diary), last=(1e-3, 4096)) for name in ("", "a", "b")]
    _run(participants)
    assert "".join(name or "-" for name, _, _ in diary) == "-abab-b-a-abab-b-a"


def test_ratios_are_those_of_one_round():
    """On a host that slows down, the ratio of the medians would be 3, but the ratio of every round is 2."""
    own = Scripted("", [1.0, 2.0, 8.0])
    peer = Scripted("peer", [2.0, 4.0, 16.0])
    participants = [Participant("", "", own), Participant("peer", "", peer, last=(1.0, 10**9))]
    [row], _ = _run(participants, collective=Collective("alltoall", 2))
    [(name, out, into)] = row.peers
    assert (name, into) == ("peer", None)
    assert out.ratio == 2.0
    assert (row.out_of_place.seconds, out.seconds) == (2.0, 4.0)
    assert row.out_of_place.algbw_gb_per_s == pytest.approx(4096 / 2.0 / 1e9)


@pytest.mark.parametrize(("with_barrier", "seconds"), [(False, 1.0), (True, 0.75)])
def test_the_time_of_an_iteration_is_the_slowest_or_with_a_barrier_the_mean(with_barrier, seconds):
    ranks = Scripted("", [1.0])
    [row], _ = _run([Participant("", "", ranks)], with_barrier=with_barrier)
    assert row.out_of_place.seconds == seconds
    assert {Flag.WITH_BARRIER in command.flags for command in ranks.commands} == {with_barrier}


def test_the_fastest_variant_stands_for_its_peer():
    participants = [
        Participant("", "", Scripted("", [1.0])),
        Participant("mpi", "slow", Scripted("slow", [4.0])),
        Participant("mpi", "fast", Scripted("fast", [3.0])),
    ]
    [row], _ = _run(participants)
    [(_, out, into)] = row.peers
    assert (out.variant, out.ratio, into.variant) == ("fast", 3.0, "fast")


def test_a_peer_that_fails_is_left_out_and_noted():
    broken = Scripted("broken", [1.0], fails=CommunicationError("rank 1 is lost"))
    rows, notes = _run(
        [Participant("", "", Scripted("", [1.0])), Participant("broken", "", broken)], sizes=(4096, 8192)
    )
    assert [row.peers for row in rows] == [(("broken", None, None),)] * 2
    assert notes == ["continuing without broken: rank 1 is lost"]


def test_a_peer_that_refuses_a_size_is_tried_at_the_next():
    peer = Scripted("peer", [1.0], fails=UnsupportedError("no"))
    [row], notes = _run([Participant("", "", Scripted("", [1.0])), Participant("peer", "", peer)])
    assert (row.peers, notes) == ((("peer", None, None),), [])
    peer.fails = None
    [row], _ = _run([Participant("", "", Scripted("", [1.0])), Participant("peer", "", peer)])
    assert row.peers[0][1].ratio == 1.0


@pytest.mark.parametrize("error", [CommunicationError("rank 1 is lost"), UnsupportedError("no fp4")])
def test_a_failure_of_blink_is_raised(error):
    with pytest.raises(type(error), match=str(error)):
        _run([Participant("", "", Scripted("", [1.0], fails=error))])


def test_a_slow_peer_gets_fewer_iterations_or_none():
    own, slow = Scripted("", [1e-3]), Scripted("slow", [0.4])
    _run([Participant("", "", own), Participant("slow", "", slow)], iterations=100)
    assert {iterations for _, _, iterations in own.diary} == {100}
    assert [iterations for _, _, iterations in slow.diary] == [1] + [5] * 6
    hopeless = Scripted("hopeless", [0.9 * interleave.HOPELESS_S])
    rows, notes = _run([Participant("", "", own), Participant("hopeless", "", hopeless)], sizes=(4096, 8192), rounds=1)
    assert rows[0].peers[0][1] is not None
    assert rows[1].peers[0][1:] == (None, None)
    assert notes[0] == "leaving hopeless out at 8192 bytes: 4096 bytes took 9.0 s"
    assert len(notes) == 1


def test_peers_never_get_shared_buffers():
    own, peer = Scripted("", [1.0]), Scripted("peer", [1.0])
    _run([Participant("", "", own), Participant("peer", "", peer)], shared=True)
    assert all(command.flags & Flag.SHARED for command in own.commands)
    assert not any(command.flags & Flag.SHARED for command in peer.commands)


def test_bound_is_the_least_traffic_at_the_probed_rate():
    participants = [Participant("", "", Scripted("", [2e-6]))]
    [row], _ = _run(participants, probe=SimpleNamespace(rate=lambda working_bytes: 16e9))
    least_s = 2 * 2 * 4096 / 16e9
    assert row.in_place.bound_percent == pytest.approx(100 * least_s / 2e-6)
    [row], _ = _run(participants)
    assert row.in_place.bound_percent is None


def test_wrong_elements_are_summed_over_rounds():
    [row], _ = _run([Participant("", "", Scripted("", [1.0], wrong=2))])
    assert (row.out_of_place.wrong, row.in_place.wrong) == (6, 6)


def test_ticks_are_as_many_as_announced():
    ticks = []
    participants = [
        Participant("", "", Scripted("", [1.0])),
        Participant("p", "", Scripted("p", [1.0], fails=UnsupportedError("no"))),
    ]
    benchmark = Interleaved(ALLREDUCE, BenchSettings(rounds=2), participants, tick=lambda: ticks.append(1))
    list(benchmark.rows([4, 8]))
    assert len(ticks) == benchmark.ticks([4, 8]) == 2 * 2 * 2 * 2


def test_with_real_processes():
    with RunningCandidate(launch()) as own, RunningCandidate(launch("dying", name="peer")) as peer:
        [row], notes = _run([Participant("", "", own), Participant("peer", "", peer, last=(1e-3, 4096))], deadline_s=1)
    assert (row.out_of_place.wrong, row.in_place.wrong) == (0, 0)
    assert row.peers == (("peer", None, None),)
    assert len(notes) == 1
    assert notes[0].startswith("continuing without peer: peer: rank ")


N, S = 4, 48


@pytest.mark.parametrize(
    ("name", "out_of_place", "in_place"),
    [
        ("allreduce", 2 * N * S, 2 * N * S),
        ("broadcast", (N + 1) * S, N * S),
        ("reduce", (N + 1) * S, (N + 1) * S),
        ("allgather", (N + 1) * S, N * S),
        ("reduce_scatter", (N + 1) * S, (N + 1) * S),
        ("gather", 2 * S, 2 * S * (N - 1) / N),
        ("scatter", 2 * S, 2 * S * (N - 1) / N),
        ("alltoall", 2 * N * S, None),
        ("sendrecv", 2 * S, 2 * S),
    ],
)
def test_least_traffic_equals_its_table(name, out_of_place, in_place):
    collective = with_ends(name, N, root=1)
    block = S // collective.total_blocks()
    assert least_traffic(collective, block, False) == out_of_place
    if in_place is not None:
        assert least_traffic(collective, block, True) == in_place
