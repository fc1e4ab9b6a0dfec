"""Ranks that die, stop, or never come: all others raise an error that names them, in time, in every situation."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import kills
import numpy as np
import pytest
from job import PATIENT_S, Start, member, tell, wait_for
from rank_processes import RankProcess, outcomes

from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError
from blinkccl.runtime import host_group
from blinkccl.runtime.bootstrap import Bootstrap
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.store import open_store

#: Time after a kill by which all other ranks must have raised.
LIMIT_S = 2.0

# ---- the ranks' work until one of them is lost, in addition to that of benchmarks/kills.py


def between_calls(comm: Communicator, victim: int) -> None:
    if comm.rank == victim:
        time.sleep(30)
    comm.barrier()


def rooted_at_the_victim(comm: Communicator, victim: int) -> None:
    comm.broadcast(np.ones(400_000), victim)
    comm.reduce(np.ones(400_000), root=victim)
    comm.gather(np.ones(1000), root=victim)


def messages_from_anybody(comm: Communicator, victim: int) -> None:
    if comm.rank == victim:
        time.sleep(30)
    comm.recv(np.empty(10), tag=3)


Work = Callable[[Communicator, Any], None]
WORK: dict[str, Work] = {
    "between_calls": between_calls,
    "small_collectives": kills.small,
    "large_collectives": kills.large,
    "shared_arrays": kills.shared,
    "rooted_at_the_victim": rooted_at_the_victim,
    "several_under_way": kills.asynchronous,
    "messages": kills.messages,
    "messages_from_anybody": messages_from_anybody,
    "parts": kills.parts,  # created again and again: a kill may fall into their rendezvous
}


def in_time(kill: Callable[[], float]) -> None:
    """``kill`` kills a rank and returns the delay of the last report."""
    late = [kill()]
    if late[0] >= LIMIT_S:  # a second try, because a busy machine may have delayed ranks
        late.append(kill())
    assert min(late) < LIMIT_S, late


def until_lost(comm: Communicator, name: str, victim: int) -> tuple[float, int, str]:
    """Return the time, the lost rank and the error that this rank gets."""
    work = WORK[name]
    argument = victim if work.__module__ == __name__ else random.Random(7)
    if name not in ("between_calls", "messages_from_anybody"):
        work(comm, argument)
    tell(comm, "working")
    try:
        while True:
            work(comm, argument)
    except PeerLostError as error:
        return time.monotonic(), error.rank, str(error)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("name", WORK)
def test_a_killed_rank_is_named_by_all_others_within_the_limit(start: Start, name: str, victim: int) -> None:
    def kill() -> float:
        job = start(3, until_lost, name, victim)
        job.hear("working")
        time.sleep(random.Random(name).uniform(0, 0.2))
        killed = job.signal(victim, signal.SIGKILL)
        others = [rank for rank in range(3) if rank != victim]
        reports = job.values(*others)
        assert [lost for _, lost, _ in reports] == [victim] * 2, reports
        assert all("its process ended" in text or "hung up" in text for *_, text in reports), reports
        return max(at for at, *_ in reports) - killed

    in_time(kill)


def part_behind_the_others(comm: Communicator) -> int:
    """Make a subgroup: the last rank dies in it, the first ends after its error, and the second looks after both."""
    watch = comm.group.watch

    def later(ranks: Sequence[int]) -> Callable[[], None]:
        if comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 1:
            wait_for(comm.store, "said/heard/0")
            time.sleep(0.3)
        return watch(ranks)

    comm.group.watch = later
    with pytest.raises(PeerLostError) as lost:
        comm.split(0)
    if comm.rank == 0:
        tell(comm, "heard")
        os.kill(os.getpid(), signal.SIGKILL)
    return lost.value.rank


def test_a_rank_that_ended_because_of_another_is_not_the_cause(start: Start) -> None:
    """Both have ended when rank 1 looks: rank 0 has reported the lost rank before."""
    assert start(3, part_behind_the_others).values(1) == [2]


def part_that_one_leaves(comm: Communicator) -> float:
    """The last rank disconnects while a subgroup is made, and continues with the whole group, as do the others."""

    def hang_up(bootstrap: Bootstrap, *_: object) -> None:
        bootstrap.close()
        raise KeyboardInterrupt

    if comm.rank == 2:
        with patch.object(host_group, "share_memory", hang_up), pytest.raises(KeyboardInterrupt):
            comm.split(0)
    else:
        with pytest.raises(PeerLostError, match="rank 2"):
            comm.split(0)
    return float(comm.allreduce(np.ones(1))[0])


def test_leaving_a_subgroup_does_not_end_the_group(start: Start) -> None:
    assert start(3, part_that_one_leaves).values(0, 1, 2) == [3.0, 3.0, 3.0]


# ---- while a group is made


def dies_at(url: str, rank: int, size: int, point: str) -> None:
    """Join a group and end at ``point`` without a report."""

    def die(*_: object, **__: object) -> None:
        Path(url.removeprefix("file://"), "died").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    owner = host_group.HostGroup if point == "barrier" else host_group
    setattr(owner, point, die)
    member(url, rank, size, PATIENT_S, between_calls, (rank,))


def hears_while_joining(url: str, rank: int, size: int) -> tuple[float, int, int | None]:
    with pytest.raises(PeerLostError) as lost:
        member(url, rank, size, PATIENT_S, between_calls, (-1,))
    return time.monotonic(), lost.value.rank, lost.value.pid


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("point", ["share_memory", "process_heap", "Endpoint", "_map_heap", "HostMemory", "barrier"])
def test_a_rank_that_dies_while_the_group_is_made(tmp_path: Path, start: Start, point: str, victim: int) -> None:
    """After the meeting: before memory is shared, before joining it, and before the first call."""
    url = f"file://{tmp_path}/store"

    def kill() -> float:
        ranks = [
            RankProcess(dies_at, url, rank, 3, point) if rank == victim else
            RankProcess(hears_while_joining, url, rank, 3)
            for rank in range(3)
        ]  # fmt: skip
        ended = outcomes(ranks)
        assert ended[victim].exitcode == -signal.SIGKILL
        others = [outcome for rank, outcome in enumerate(ended) if rank != victim]
        assert [outcome.error for outcome in others] == [None, None]
        assert [outcome.value[1] for outcome in others] == [victim, victim]
        return max(outcome.value[0] for outcome in others) - float((tmp_path / "store/died").read_text())

    in_time(kill)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_others_are_missing(tmp_path: Path, start: Start, victim: int) -> None:
    url = f"file://{tmp_path}/store"

    def kill() -> float:
        ranks = [RankProcess(hears_while_joining, url, rank, 3) for rank in range(2)]
        for key in ("blink/bootstrap", "blink/here/1"):
            wait_for(open_store(url, 1, 0), key)
        time.sleep(0.3)  # their meeting is not visible from outside
        killed = time.monotonic()
        ranks[victim].kill()
        (other,) = outcomes([ranks[1 - victim]])
        assert other.error is None, other.error
        assert other.value[1:] == (victim, ranks[victim].process.pid)
        return float(other.value[0] - killed)

    in_time(kill)


# ---- other ends of a rank


def leaves(comm: Communicator, how: str) -> str:
    if comm.rank == 1:
        if how == "close":
            comm.close()
            time.sleep(0.5)
        elif how == "error":
            raise ValueError("a mistake of the program's own")
        elif how == "os._exit":
            os._exit(7)
        elif how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        return ""
    with pytest.raises(PeerLostError) as lost:
        comm.allreduce(np.ones(10))
    return str(lost.value)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("close", "it closed its communicator"),
        ("error", "it closed its communicator"),
        ("os._exit", "its process ended"),
        ("segfault", "its process ended"),
    ],
)
def test_every_end_of_a_rank_is_reported_to_the_others(start: Start, how: str, why: str) -> None:
    job = start(3, leaves, how)
    for text in job.values(0, 2):
        assert f"rank 1 was lost: {why} during call" in text


def works_without_the_one_that_left(comm: Communicator) -> int:
    """A rank that leaves in order affects only ranks that need data from it."""
    if comm.rank == 2:
        comm.send(np.full(3, 7), 0, tag=5)
        return 0
    if comm.rank == 1:
        wait_for(comm.store, "go")
        comm.send(np.full(3, 8), 0, tag=6)
        return int(_lost_rank(lambda: comm.recv(np.empty(3), 2)) == 2)
    array = np.zeros(3, int)
    anybody = comm.recv(np.zeros(3, int), tag=6, wait=False)  # rank 2 is a possible sender
    assert comm.recv(array, 2, tag=5) == 2
    time.sleep(0.3)
    comm.store.set("go", b"")
    assert anybody.result(PATIENT_S) == 1
    assert _lost_rank(lambda: comm.recv(array, 2)) == 2
    assert _lost_rank(lambda: comm.recv(array, 2, tag=9)) == 2  # the second time too
    assert _lost_rank(lambda: comm.send(array, 2)) == 2
    return int(array[0])


def _lost_rank(call: Callable[[], Any]) -> int:
    with pytest.raises(PeerLostError) as lost:
        call()
    return lost.value.rank


def test_a_rank_that_left_disturbs_no_messages_of_others(start: Start) -> None:
    assert start(3, works_without_the_one_that_left).values() == [7, 1, 0]


# ---- stopped ranks


def stalls(comm: Communicator, elements: int) -> None:
    array = np.ones(elements, np.float32)
    tell(comm, "working")
    while True:
        comm.allreduce(array, deadline_s=1.5)


@pytest.mark.parametrize("elements", [16, 1_500_000])
def test_a_stopped_rank_is_named_and_gets_the_error_later(start: Start, elements: int) -> None:
    job = start(3, stalls, elements)
    job.hear("working")
    job.signal(1, signal.SIGSTOP)
    errors = job.errors(0, 2)
    for error in errors:
        assert isinstance(error, DeadlineError)
        assert re.search(r"rank [02] waited \d+\.\d s for .*rank 1", str(error)), error
    assert str(errors[0]) == str(errors[1])
    job.signal(1, signal.SIGCONT)
    (late,) = job.errors(1)
    assert isinstance(late, DeadlineError)


def stalls_in_a_message(comm: Communicator) -> str:
    """Rank 1 is stopped in the middle of a long message, in both directions."""
    big = np.ones(4_000_000)
    tell(comm, "working")
    if comm.rank == 1:
        for _ in range(200):
            comm.send(big, 0, tag=1)
            comm.recv(big, 0, tag=2)
        return ""
    try:
        while True:
            comm.recv(big, 1, tag=1, deadline_s=1.0)
            comm.send(big, 1, tag=2, deadline_s=1.0)
    except DeadlineError as error:
        text = str(error)
    began = time.monotonic()
    for call in (lambda: comm.recv(big, 1, tag=1, deadline_s=1.0), lambda: comm.send(big, 1, deadline_s=1.0)):
        with pytest.raises(CommunicationError):
            call()
    assert time.monotonic() - began < 5, "calls on a broken wire must end too"
    return text


def test_messages_of_a_stopped_rank_have_a_deadline(start: Start) -> None:
    job = start(2, stalls_in_a_message)
    job.hear("working")
    time.sleep(0.2)
    job.signal(1, signal.SIGSTOP)
    (text,) = job.values(0)
    assert "rank 0 timed out waiting for" in text
    assert "rank 1" in text


def waits_for_nobody(comm: Communicator) -> list[float]:
    """Timeouts of calls with and without their own, and of both kinds of messages."""
    if comm.rank == 1:
        wait_for(comm.store, "done")
        return []
    waits = []
    for call in (
        lambda: comm.recv(np.empty(3), 1, deadline_s=0.3),
        lambda: comm.recv(np.empty(3), deadline_s=0.3),
        lambda: comm.recv(np.empty(3), 1),
        lambda: comm.barrier(deadline_s=0.4),
    ):
        began = time.monotonic()
        with pytest.raises(DeadlineError):
            call()
        waits.append(time.monotonic() - began)
    comm.store.set("done", b"")
    return waits


def test_every_wait_has_a_deadline(start: Start) -> None:
    named, from_anybody, default, collective = start(2, waits_for_nobody, deadline_s=3.0).values(0)[0]
    assert 0.3 <= named < 2.5
    assert 0.3 <= from_anybody < 2.5
    assert 3.0 <= default < 6.0
    assert 0.4 <= collective < 2.5


def test_the_environment_sets_the_timeout_of_calls(tmp_path: Path, start: Start) -> None:
    """BLINK_TIMEOUT, through init(), in a script as users write it."""
    script = "import blinkccl\ntry:\n    blinkccl.init()\nexcept Exception as e:\n    print(type(e).__name__, e)"
    environ = dict(os.environ, BLINK_TIMEOUT="0.5", BLINK_RANK="0", BLINK_WORLD_SIZE="2",
                   BLINK_STORE=f"file://{tmp_path}/store")  # fmt: skip
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert "RendezvousTimeout missing rank 1, present rank 0" in ended.stdout
    assert time.monotonic() - began < 25


def test_ten_calls_raise_once_the_group_has_failed(start: Start) -> None:
    """Later calls raise too, not only the one that failed."""
    start(2, fails_again_and_again).values()


def fails_again_and_again(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.abort("enough")
    for call in range(10):
        with pytest.raises(CommunicationError, match="enough"):
            comm.allreduce(np.ones(1 + 50_000 * (call % 3)))


@pytest.mark.parametrize(
    ("wait", "heard"), [("False", "rank 0 ended with ValueError"), ("None", "rank 0 was lost: its process ended")]
)
def test_a_script_that_fails_tells_the_others(tmp_path: Path, start: Start, wait: str, heard: str) -> None:
    script = (
        "import sys, numpy as np, blinkccl\n"
        "comm = blinkccl.init()\n"
        "if comm.rank == 0:\n"
        f"    {wait} is None or comm.allreduce(np.ones(3), wait={wait})\n"
        "    raise ValueError('a mistake')\n"
        "comm.recv(np.ones(3), 0)\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=dict(os.environ, BLINK_RANK=str(rank), BLINK_WORLD_SIZE="2", BLINK_STORE=f"file://{tmp_path}/store"),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [run.communicate(timeout=PATIENT_S)[1] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert "ValueError: a mistake" in outputs[0]
    assert heard in outputs[1]


# ---- a user's Ctrl-C


def is_interrupted(comm: Communicator, wait: str) -> tuple[str, float, str]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    array = np.ones(3_000_000 if wait == "large call" else 5)
    comm.allreduce(array)  # planned before the signal, because an interrupted planning is not reported to other ranks
    tell(comm, "ready")
    try:
        if comm.rank == 1:
            wait_for(comm.store, "interrupted")
            comm.allreduce(np.ones(5))
        elif wait in ("call", "large call"):
            comm.allreduce(array)
        elif wait == "call behind another":
            comm.allreduce(np.ones(5), wait=False)
            comm.allreduce(np.ones(5))
        elif wait == "message":
            comm.recv(np.ones(5), 1)
    except KeyboardInterrupt:
        at = time.monotonic()
        comm.store.set("interrupted", b"")
        return "KeyboardInterrupt", at, ""
    except CommunicationError as error:
        return type(error).__name__, time.monotonic(), str(error)
    return "nothing", 0.0, ""


@pytest.mark.parametrize("wait", ["call", "large call", "call behind another", "message"])
def test_ctrl_c_ends_a_wait_on_all_ranks(start: Start, wait: str) -> None:
    job = start(2, is_interrupted, wait)
    job.hear("ready")
    time.sleep(0.5)
    pressed = job.signal(0, signal.SIGINT)
    (kind, at, _), (other, _, why) = job.values()
    assert kind == "KeyboardInterrupt"
    assert at - pressed < LIMIT_S
    assert other == "CommunicationError"
    assert "interrupt" in why


class Impatient(Exception):  # noqa: N818
    """An exception of a program's own signal handler."""


def handles_signals(comm: Communicator) -> list[str]:
    """Handlers that do nothing, that use the group, that close it, and that raise an exception of their own."""
    notes: list[str] = []

    def note(*_: object) -> None:
        notes.append("noted")

    def use(*_: object) -> None:
        for call in (lambda: comm.allreduce(np.ones(3)), comm.close):
            try:
                call()
            except CommunicationError as error:
                notes.append(str(error))

    def give_up(*_: object) -> None:
        raise Impatient("enough")

    signal.signal(signal.SIGUSR1, note)
    signal.signal(signal.SIGUSR2, use)
    signal.signal(signal.SIGTERM, give_up)
    tell(comm, "ready")
    if comm.rank == 1:
        wait_for(comm.store, "go")
        comm.barrier()
        wait_for(comm.store, "done")
        return notes
    try:
        while True:
            comm.barrier()
            notes.append("passed")
    except Impatient as error:
        notes.append(f"Impatient: {error}")
    comm.store.set("done", b"")
    return notes


def test_signal_handlers_run_in_long_waits(start: Start) -> None:
    job = start(2, handles_signals)
    job.hear("ready")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        time.sleep(0.4)
        job.signal(0, number)
        if number == signal.SIGUSR2:
            time.sleep(0.4)
            job.store.set("go", b"")  # the wait continues undisturbed
    (notes,) = job.values(0)
    assert notes[0] == "noted"
    assert all("runs during a call" in text for text in notes[1:3])
    assert notes[3:] == ["passed", "Impatient: enough"]


# ---- random kills at random moments: fifty of those of benchmarks/kills.py


@pytest.mark.parametrize("seed", range(5))
def test_random_kills_reach_all_others_in_time(start: Start, seed: int) -> None:
    _kill_ten(seed)


@pytest.mark.usefixtures("hosts")  # skips where none can be made; the program makes its own
def test_random_kills_reach_the_ranks_of_two_hosts() -> None:
    _kill_ten(5, "--hosts")


def _kill_ten(seed: int, *options: str) -> None:
    program = Path(__file__).parents[2] / "benchmarks/kills.py"
    command = [sys.executable, program, "-n", "10", "--seed", str(seed), *options]
    output = ""
    for _ in range(2):  # a second try, because a busy machine may have delayed ranks
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "10 kills in " in ended.stdout, ended.stderr
        assert "wrong: " not in ended.stdout, ended.stdout
        output += ended.stdout
        if ended.returncode == 0:
            return
    pytest.fail(output)
