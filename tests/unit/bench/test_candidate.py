"""Ranks connect and reply; one that is lost, late or wrong is reported and ended."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blinkccl.bench import candidate
from blinkccl.bench.candidate import CandidateLaunch, Process, RunningCandidate, ended_by_signals
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, UnsupportedError
from support.fake_ranks import launch
from support.processes import until_gone

WORK = TimedCall(Collective("allreduce", 2), 1000, "int32", warmup=1, iterations=4, deadline_s=20)


@pytest.mark.parametrize("in_place", [False, True])
def test_ranks_run_and_reply(in_place):
    with RunningCandidate(launch()) as candidate:
        assert candidate.library == "fake 1.2.3"
        assert len(set(candidate.pids)) == 2
        for count in (1000, 1, 100_000, 1000):
            measured = candidate.run(commands(replace(WORK, count=count, in_place=in_place, keep=count > 1)))
            assert measured.wrong == 0
            assert np.allclose(measured.seconds, [[1e-3, 2e-3, 3e-3, 4e-3], [2e-3, 4e-3, 6e-3, 8e-3]])
        pids, room = candidate.pids, candidate._directory
    until_gone(pids)
    assert not room.exists()


def test_ranks_have_time_to_write_their_timelines(tmp_path, monkeypatch):
    monkeypatch.setattr(candidate, "END_S", 0.1)
    monkeypatch.setenv("BLINK_TIMELINE", str(tmp_path))
    RunningCandidate(launch("writing")).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("length", [80, 200])
def test_the_temporary_directory_may_have_a_long_name(tmp_path, monkeypatch, length):
    long = tmp_path / ("x" * length)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with RunningCandidate(launch()) as candidate:
        assert candidate.run(commands(WORK)).wrong == 0


def test_a_wrong_element_is_counted():
    with RunningCandidate(launch("wrong")) as candidate:
        assert candidate.run(commands(WORK)).wrong == 1
        assert candidate.run(commands(replace(WORK, check=False))).wrong == 0


def test_a_refusal_leaves_it_usable():
    with RunningCandidate(launch("refusing")) as candidate:
        with pytest.raises(UnsupportedError, match="fake, rank 0: no int8 here"):
            candidate.run(commands(replace(WORK, dtype="int8")))
        assert candidate.run(commands(WORK)).wrong == 0


def test_a_failure_is_reported_and_ends_the_candidate():
    candidate = RunningCandidate(launch("failing"))
    with pytest.raises(CommunicationError, match="fake, rank 0: CommunicationError: rank 0 waited for nobody"):
        candidate.run(commands(WORK))
    until_gone(candidate.pids)
    with pytest.raises(CommunicationError, match="fake has ended"):
        candidate.run(commands(WORK))


@pytest.mark.parametrize(
    ("fault", "message"),
    [("dying", r"rank \d .*\n  the last words of rank 1"), ("silent", r"fake: rank \d ")],
    ids=["a rank that dies is named with its last words", "a rank that is late ends by its own alarm"],
)
def test_a_rank_that_does_not_reply(fault, message):
    candidate = RunningCandidate(launch(fault))
    pids, began = candidate.pids, time.monotonic()
    with pytest.raises(CommunicationError, match=message):
        candidate.run(commands(replace(WORK, deadline_s=1)))
    assert time.monotonic() - began < 15
    until_gone(pids)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("absent", r"exited with 1 before ranks 0, 1 connected; it printed:\n  there is nobody here"),
        ("twice", "expected 2 ranks, each once; got rank 0 of 2"),
        ("stranger", "expected a hello of protocol 1"),
    ],
)
def test_ranks_that_do_not_connect_properly_are_refused(fault, message):
    with pytest.raises(CommunicationError, match=message):
        RunningCandidate(launch(fault))


def test_another_library_is_not_measured_under_a_wrong_name():
    with pytest.raises(CommunicationError, match=r"expected Open MPI, got fake 1\.2\.3"):
        RunningCandidate(launch(library="Open MPI"))


def test_ranks_that_do_not_connect_before_the_timeout():
    began = time.monotonic()
    with pytest.raises(CommunicationError, match="ranks 0, 1 did not connect before the timeout"):
        RunningCandidate(launch("twice"), start_s=0.0)
    assert time.monotonic() - began < 20


def test_ranks_end_when_the_coordinator_is_gone():
    candidate = RunningCandidate(launch())
    pids = candidate.pids
    for peer in candidate._sockets:
        peer.close()
    until_gone(pids)
    candidate.close()


def test_idle_ranks_take_no_time():
    with RunningCandidate(launch()) as candidate:
        candidate.run(commands(WORK))

        def ticks():
            return sum(
                int(part)
                for pid in candidate.pids
                for part in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
            )

        before = ticks()
        time.sleep(0.3)
        assert ticks() - before <= 1, f"in units of 1/{os.sysconf('SC_CLK_TCK')} s"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_a_process_starts_leaves_none(number, monkeypatch):
    started, really = [], subprocess.Popen

    def popen(*arguments, **options):
        started.append(really(*arguments, **options))
        os.kill(os.getpid(), number)  # Before the launch has stored the process.
        return started[-1]

    # Under nohup, or in the background of a shell, tests start with these signals ignored.
    before = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGHUP, signal.SIGTERM)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(candidate.subprocess, "Popen", popen)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)) as ended, ended_by_signals():
            RunningCandidate(CandidateLaunch("x", 2, lambda path, room: 2 * [Process(["sleep", "60"])]))
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert number == signal.SIGINT or ended.value.code == 128 + number
    assert [process.poll() is not None for process in started] == [True]
