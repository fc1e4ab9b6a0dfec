"""``blink dump PID`` on live jobs: its output is correct, and the job is not affected."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job import Job, Start, tell, wait_for

from blinkccl.engines import native_library
from blinkccl.errors import DeadlineError, UnsupportedError
from blinkccl.runtime import dump
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.dump import GroupState, groups_of
from support.processes import open_files

Blink = Callable[..., Any]


def wait_until(job: Job, rank: int, wanted: Callable[[GroupState], bool], within_s: float = 10.0) -> GroupState:
    """Return the first state of the rank's largest group that ``wanted`` accepts."""
    end = time.monotonic() + within_s
    while True:
        group, *_ = groups_of(job.pid(rank))
        if wanted(group):
            return group
        assert time.monotonic() < end, f"the job never was as wanted; at last: {group}"
        time.sleep(0.02)


def test_ranks_that_have_not_come_are_no_threads_of_one_process(tmp_path: Path) -> None:
    """The lock shows whether processes are alive: here none holds it."""
    own = native_library.RankStatus(pid=os.getpid(), joined=1)
    absent = [native_library.RankStatus(), native_library.RankStatus()]
    with (tmp_path / "segment").open("w+") as file:
        assert not dump._lives(file.fileno(), 0, [own, *absent])
        assert dump._lives(file.fileno(), 0, [own, own, *absent])  # threads hold no locks of their own


def works_for_ever(comm: Communicator, elements: int) -> None:
    array = np.ones(elements, np.float32)
    tell(comm, "working")
    while True:
        array[:] = 1
        comm.allreduce(array)


def test_a_stopped_rank_is_named_with_the_others_waits(start: Start, blink: Blink) -> None:
    job = start(3, works_for_ever, 2_000_000)
    job.hear("working")
    job.signal(1, signal.SIGSTOP)
    # Until all ranks are at rest, one may wait for a rank that is about to continue, or is not stopped yet.
    states = ["waiting", "stopped", "waiting"]
    group = wait_until(job, 0, lambda g: g.awaited() == {1: [0, 2]} and [rank.state for rank in g.ranks] == states)
    assert group.size == 3
    assert group.failure is None
    assert [rank.pid for rank in group.ranks] == [job.pid(rank) for rank in range(3)]
    for rank in (group.ranks[0], group.ranks[2]):
        assert rank.call == "allreduce of 2000000 × float32, sum"
        assert rank.calls in (group.ranks[1].calls, group.ranks[1].calls + 1)
        assert 0 <= rank.waiting_s < 60
    text = blink("dump", job.pid(2))
    assert text.code == 0
    assert f"Cause: ranks 0,2 wait for rank 1 (process {job.pid(1)}): a signal or a debugger stopped it" in text.out
    document = json.loads(blink("dump", job.pid(2), "--json").out)
    assert (document["schema_version"], document["pid"]) == (2, job.pid(2))
    assert document["groups"][0]["awaited"] == [{"rank": 1, "by": [0, 2]}]
    job.signal(1, signal.SIGCONT)
    wait_until(job, 0, lambda g: g.ranks[1].calls > group.ranks[0].calls + 3)  # the job continues


def meets_a_deadline(comm: Communicator) -> None:
    array = np.ones(3_000_000, np.float64)
    tell(comm, "working")
    while True:
        comm.allreduce(array, deadline_s=2.5)


def test_the_timeouts_message_agrees_with_the_dump(start: Start) -> None:
    """Rank, chunk, channel and peer of a wait: from the dump while it lives, from the error at the deadline."""
    job = start(2, meets_a_deadline)
    job.hear("working")
    job.signal(1, signal.SIGSTOP)

    def at_rest(group: GroupState) -> bool:
        """Return whether rank 1 is stopped, and rank 0 has reduced all its earlier messages."""
        (waiting, stopped) = group.ranks
        return (waiting.state, stopped.state) == ("waiting", "stopped") and waiting.waiting_s > 0.5

    (shown, stopped) = wait_until(job, 0, at_rest).ranks
    (error,) = job.errors(0)
    assert isinstance(error, DeadlineError)
    assert re.search(r"rank 0 waited \d+\.\d s for ", str(error))
    assert shown.awaits in str(error)
    if shown.chunk is not None:
        assert f"chunk {shown.chunk} of channel {shown.channel}" in str(error)
    assert shown.peer == stopped.rank == 1
    job.signal(1, signal.SIGCONT)
    (late,) = job.errors(1)
    assert isinstance(late, DeadlineError)
    assert str(error) == str(late)


def stays(comm: Communicator, fails: bool) -> None:
    if fails and comm.rank == 0:
        comm.abort("of no more use")
    tell(comm, "ready")
    time.sleep(30)


def test_a_group_that_has_ended_gives_the_reason(start: Start, blink: Blink) -> None:
    job = start(2, stays, True)
    job.hear("ready")
    (group,) = groups_of(job.pid(1))
    assert "the communicator was aborted: of no more use" in group.failure
    assert "This group has ended: " in blink("dump", job.pid(1)).out


def one_after_another(comm: Communicator) -> None:
    """Rank 2 has left, rank 1 is busy, rank 0 waits for it; and there is a subgroup of ranks 0 and 1."""
    part = comm.split(None if comm.rank == 2 else 0)
    comm.barrier()
    tell(comm, "ready")
    if comm.rank == 0:
        comm.barrier()
    elif comm.rank == 1:
        time.sleep(30)
    assert comm.rank == 2 or part is not None


def test_left_and_busy_ranks_are_distinguished(start: Start, blink: Blink) -> None:
    job = start(3, one_after_another)
    job.hear("ready")
    job.outcomes(2)
    wait_until(job, 0, lambda g: [rank.state for rank in g.ranks] == ["waiting", "between calls", "left"])
    whole, part = groups_of(job.pid(0))
    # Both exchanges of split(), the barrier and, on rank 0, another call: the group's own calls do not count.
    assert [rank.calls for rank in whole.ranks] == [4, 3, 3]
    assert [(rank.calls, rank.call) for rank in part.ranks] == [(0, None)] * 2
    assert (part.size, part.awaited()) == (2, {})
    text = blink("dump", job.pid(0)).out
    assert f"for rank 1 (process {job.pid(1)}): it is in the program's own code, after call " in text
    assert "No rank waits" in text
    assert "left" in text


def test_a_dead_rank_is_gone_before_anybody_notices(start: Start) -> None:
    job = start(2, stays, False)
    job.hear("ready")
    job.signal(1, signal.SIGKILL)
    wait_until(job, 0, lambda g: [r.state for r in g.ranks] == ["between calls", "gone"])


def waits_for_messages(comm: Communicator) -> None:
    tell(comm, "ready")
    array = np.zeros(100_000)
    if comm.rank == 0:
        comm.recv(array, tag=5, deadline_s=20)
    elif comm.rank == 1:
        comm.send(array, 2, tag=6)
    wait_for(comm.store, "go")
    if comm.rank == 2:
        comm.recv(array, 1, tag=6)
        comm.send(array, 0, tag=5)
    comm.store.set(f"done/{comm.rank}", b"")
    wait_for(comm.store, "end")


def test_waits_for_messages_are_shown_until_they_end(start: Start) -> None:
    job = start(3, waits_for_messages)
    job.hear("ready")
    group = wait_until(job, 0, lambda g: [r.state for r in g.ranks] == ["waiting", "waiting", "between calls"])
    assert [rank.awaits for rank in group.ranks] == [
        "for a message with tag 5 from any rank", "for a message with tag 6 from or to rank 2", None,
    ]  # fmt: skip
    assert group.awaited() == {2: [1]}
    job.store.set("go", b"")
    wait_until(job, 0, lambda g: [r.state for r in g.ranks] == ["between calls"] * 3)
    job.store.set("end", b"")
    job.values()


def test_cycles_of_waits_are_detected() -> None:
    from blinkccl.runtime.dump import RankState

    def ranks(*peers: int | None) -> tuple[RankState, ...]:
        return tuple(RankState(rank, rank, "waiting", 1, peer=peer) for rank, peer in enumerate(peers))

    assert GroupState(1, 4, None, ranks(2, 0, 1, 0)).awaited() == {0: [0, 1, 2, 3]}
    assert GroupState(1, 5, None, ranks(3, 2, 1, None, 3)).awaited() == {3: [0, 4], 1: [1, 2]}
    assert GroupState(1, 2, None, ranks(None, None)).awaited() == {}


def test_dumps_change_nothing_for_the_job(start: Start) -> None:
    """The locks that show ranks as alive are kept too, and opened files are closed."""
    job = start(3, counts_calls, 400)
    job.hear("working")
    before = open_files()
    seen = 0
    while job.ranks[0].process.is_alive() and seen < 200:
        try:
            groups_of(job.pid(seen % 3))
        except UnsupportedError:  # the process has ended meanwhile
            break
        seen += 1
    assert open_files() <= before
    assert job.values() == [400] * 3
    assert seen > 20


def counts_calls(comm: Communicator, calls: int) -> int:
    array = np.ones(100_000)
    tell(comm, "working")
    for _ in range(calls):
        comm.allreduce(array, op="max")
        time.sleep(0.001)
    return calls


def test_other_processes_are_rejected_with_the_reason(start: Start, blink: Blink) -> None:
    job = start(2, dumps_itself)
    job.hear("ready")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(20)
    for pid, why in (
        (ended.pid, f"there is no process {ended.pid}"),
        (os.getpid(), f"process {os.getpid()} is in no group of Blink"),
    ):
        refused = blink("dump", pid)
        assert refused.code == 2
        assert why in refused.err
        assert refused.out == ""
    for bad in ("0", "-3", "x", "99999999999999999999"):
        assert blink("dump", "--", bad).code == 2
    job.values()


def dumps_itself(comm: Communicator) -> None:
    """Looking at one's own group, or another rank's, would release the lock that shows this rank as alive."""
    comm.barrier()
    tell(comm, "ready")
    for peer in comm.group.peers:
        with pytest.raises(UnsupportedError, match="is a rank of a group of process"):
            groups_of(peer.pid)
    comm.barrier()


def test_another_users_process_is_refused(blink: Blink, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", closed)
    refused = blink("dump", 1)
    assert refused.code == 2
    assert "process 1 belongs to another user" in refused.err
