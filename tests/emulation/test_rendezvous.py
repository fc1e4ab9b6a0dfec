"""Ranks that are processes meet and share memory: all there, one missing, twice there, killed, forged, side by side."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rank_processes import CONTEXT, Outcome, RankProcess, outcomes

from blinkccl.errors import CommunicationError, PeerLostError, PlanMismatchError, RendezvousTimeout
from blinkccl.runtime.door import Door, Hello, pack
from blinkccl.runtime.handover import share
from blinkccl.runtime.rendezvous import decode, encode, meet, own_card, same_host
from blinkccl.runtime.store import open_store

#: Long enough for a busy machine where all come; short where somebody is missing on purpose.
PATIENT_S = 15.0
SHORT_S = 1.0


@pytest.fixture(params=["file", "tcp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def met(url: str, rank: int, size: int, wait_s: float, linger_s: float = 0.0, version: str = "") -> list[int]:
    """The processes of all ranks."""
    deadline = time.monotonic() + wait_s
    store = open_store(url, rank, deadline)
    card = own_card(rank, size)
    card = msgspec.structs.replace(card, version=version or card.version)
    try:
        cards = [decode(data) for data in meet(store, "job", rank, size, encode(card), deadline)]
    finally:
        time.sleep(linger_s)  # who serves the store goes last
    assert same_host(cards)
    assert [card.rank for card in cards] == list(range(size))
    return [card.pid for card in cards]


def pids(found: list[Outcome]) -> list[list[int]]:
    assert [outcome.error for outcome in found] == [None] * len(found)
    return [outcome.value for outcome in found]


def linger(url: str, rank: int) -> float:
    return 0.5 if rank == 0 and url.startswith("tcp") else 0.0


def test_all_ranks_get_all_cards(url: str) -> None:
    ranks = [RankProcess(met, url, rank, 3, PATIENT_S, linger(url, rank)) for rank in range(3)]
    expected = [rank.process.pid for rank in ranks]
    assert pids(outcomes(ranks)) == [expected] * 3


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_missing_rank_is_named_by_all_that_wait(url: str, absent: int) -> None:
    there = [rank for rank in range(3) if rank != absent]
    # The server of a TCP store lasts longest, so that the others can still ask who came.
    gate = CONTEXT.Barrier(2)
    ranks = [RankProcess(met, url, r, 3, SHORT_S + linger(url, r), linger(url, r), gate=gate) for r in there]
    found = outcomes(ranks)
    for outcome in found:
        assert isinstance(outcome.error, RendezvousTimeout)
        assert outcome.error.missing == (absent,)
        if not (url.startswith("tcp") and absent == 0):  # else there is no store to ask who else came
            assert outcome.error.present == tuple(there)


@pytest.mark.parametrize("twice", [0, 1])
def test_a_rank_that_is_there_twice_is_an_error_on_all(tmp_path: Path, twice: int) -> None:
    """The usual way in which this happens: one number is given twice, another not at all."""
    url = f"file://{tmp_path}/store"
    ranks = [RankProcess(met, url, rank, 3, PATIENT_S) for rank in range(2)]
    wait_for(lambda: list(tmp_path.glob("store/*card*1")))
    ranks.append(RankProcess(met, url, twice, 3, PATIENT_S))
    for outcome in outcomes(ranks):
        assert isinstance(outcome.error, PlanMismatchError)
        assert f"rank {twice} is claimed by" in str(outcome.error)
        assert str(ranks[twice].process.pid) in str(outcome.error)
        assert str(ranks[2].process.pid) in str(outcome.error)


@pytest.mark.parametrize(
    ("sizes", "versions", "what"), [((2, 3), ("", ""), "world_size"), ((2, 2), ("1.0", "1.1"), "version")]
)
def test_ranks_that_disagree_all_hear_of_it(
    url: str, sizes: tuple[int, int], versions: tuple[str, str], what: str
) -> None:
    ranks = [RankProcess(met, url, r, sizes[r], PATIENT_S, linger(url, r), versions[r]) for r in range(2)]
    for outcome in outcomes(ranks):
        assert isinstance(outcome.error, PlanMismatchError)
        assert f"ranks disagree on {what}" in str(outcome.error)
        assert all(f"rank {rank} (process" in str(outcome.error) for rank in range(2))


def test_jobs_side_by_side_do_not_meet(tmp_path: Path) -> None:
    jobs = [
        [RankProcess(met, f"file://{tmp_path}/job{job}", rank, 2, PATIENT_S) for rank in range(2)] for job in range(2)
    ]
    expected = [[rank.process.pid for rank in job] for job in jobs]
    assert [pids(outcomes(job)) for job in jobs] == [[pair] * 2 for pair in expected]


def test_a_rank_that_is_killed_may_be_started_again(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    first = RankProcess(met, url, 1, 3, PATIENT_S)
    leader = RankProcess(met, url, 0, 3, PATIENT_S)
    wait_for(lambda: list(tmp_path.glob("store/*card*1")))
    first.kill()
    again, last = RankProcess(met, url, 1, 3, PATIENT_S), RankProcess(met, url, 2, 3, PATIENT_S)
    expected = [rank.process.pid for rank in (leader, again, last)]
    assert pids(outcomes([leader, again, last])) == [expected] * 3


def test_rank_0_may_be_started_again_too(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    first = RankProcess(met, url, 0, 3, PATIENT_S)
    other = RankProcess(met, url, 1, 3, PATIENT_S)
    wait_for(lambda: list(tmp_path.glob("store/*card*1")))
    first.kill()
    again, last = RankProcess(met, url, 0, 3, PATIENT_S), RankProcess(met, url, 2, 3, PATIENT_S)
    expected = [rank.process.pid for rank in (again, other, last)]
    assert pids(outcomes([again, other, last])) == [expected] * 3


def test_a_store_may_be_used_again(tmp_path: Path) -> None:
    """What an earlier job left, complete or not, is nobody's card today; rank 1 comes long before rank 0."""
    url = f"file://{tmp_path}/store"
    pids(outcomes([RankProcess(met, url, rank, 2, PATIENT_S) for rank in range(2)]))
    outcomes([RankProcess(met, url, 0, 3, 0.2)])
    late = RankProcess(met, url, 1, 2, PATIENT_S)
    time.sleep(0.2)
    early = RankProcess(met, url, 0, 2, PATIENT_S)
    expected = [early.process.pid, late.process.pid]
    assert pids(outcomes([early, late])) == [expected] * 2


def wait_for(condition: Callable[[], object], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.005)


# ---- Handover --------------------------------------------------------------------------------------------------


def memory(text: str) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    return fd


def content(fd: int | None) -> str | None:
    return None if fd is None else os.pread(fd, 100, 0).decode()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared(url: str, rank: int, size: int, wait_s: float, with_heap: bool = True) -> tuple[str, list[str | None]]:
    """What the segment and the heaps hold; and nothing else is left open."""
    deadline = time.monotonic() + wait_s
    store = open_store(url, rank, deadline)
    heap = memory(f"heap {rank}") if with_heap else None
    before = open_files()
    try:
        got = share(store, "job", rank, size, lambda: memory("segment"), heap, deadline)
    except BaseException:
        assert open_files() == before
        raise
    for fd in (got.segment_fd, *got.heap_fds):
        assert fd is None or fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert got.heap_fds[rank] == heap
    result = content(got.segment_fd) or "", [content(fd) for fd in got.heap_fds]
    got.close()
    got.close()
    assert open_files() == before
    assert content(heap) == (f"heap {rank}" if with_heap else None)
    return result


def given(found: list[Outcome]) -> list[tuple[str, list[str | None]]]:
    assert [outcome.error for outcome in found] == [None] * len(found)
    return [outcome.value for outcome in found]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def door_of(tmp_path: Path) -> Callable[[], Door]:
    def found() -> Door:
        wait_for(lambda: list(tmp_path.glob("store/*door*")))
        (path,) = tmp_path.glob("store/*door*")
        return msgspec.msgpack.decode(path.read_bytes(), type=Door)

    return found


def test_everybody_gets_the_segment_and_all_heaps(directory: str) -> None:
    ranks = [RankProcess(shared, directory, rank, 4, PATIENT_S, rank != 2) for rank in range(4)]
    expected = ("segment", ["heap 0", "heap 1", None, "heap 3"])
    assert given(outcomes(ranks)) == [expected] * 4


def test_one_rank_shares_with_itself(directory: str) -> None:
    assert given(outcomes([RankProcess(shared, directory, 0, 1, PATIENT_S)])) == [("segment", ["heap 0"])]


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_does_not_come_is_named(directory: str, absent: int) -> None:
    there = [rank for rank in range(4) if rank != absent]
    gate = CONTEXT.Barrier(3)
    for outcome in outcomes([RankProcess(shared, directory, rank, 4, SHORT_S, gate=gate) for rank in there]):
        assert isinstance(outcome.error, RendezvousTimeout)
        assert outcome.error.missing == (absent,)


def test_a_rank_that_is_killed_ends_the_wait_of_rank_0(
    directory: str, tmp_path: Path, door_of: Callable[[], Door]
) -> None:
    leader = RankProcess(shared, directory, 0, 3, PATIENT_S)
    lost = RankProcess(come_in_and_stay, door_of(), 1, tmp_path / "inside")
    wait_for((tmp_path / "inside").exists)
    pid = lost.process.pid
    lost.kill()
    (outcome,) = outcomes([leader])
    assert isinstance(outcome.error, PeerLostError)
    assert (outcome.error.rank, outcome.error.pid) == (1, pid)


def come_in_and_stay(door: Door, rank: int, told: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{door.name}")
        connection.send(pack(Hello(door.token, rank, False)))
        told.touch()
        time.sleep(PATIENT_S)


def test_the_others_learn_that_rank_0_is_lost(directory: str) -> None:
    name = f"blink-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"\0{name}")
        door.listen()
        door.settimeout(20)
        open_store(directory, 0, time.monotonic()).set("job/door", pack(Door(name, "token", 4711)))
        other = RankProcess(shared, directory, 1, 3, PATIENT_S)
        connection, _ = door.accept()
        with connection:
            assert msgspec.msgpack.decode(connection.recv(1000), type=Hello) == Hello("token", 1, True)
    (outcome,) = outcomes([other])
    assert isinstance(outcome.error, PeerLostError)
    assert (outcome.error.rank, outcome.error.pid) == (0, 4711)


def test_the_others_learn_why_there_is_no_segment(directory: str) -> None:
    leader = RankProcess(without_memory, directory)
    other = RankProcess(shared, directory, 1, 2, PATIENT_S)
    found = outcomes([leader, other])
    assert isinstance(found[0].error, MemoryError)
    assert isinstance(found[1].error, CommunicationError)
    assert "MemoryError: 1 TiB is too much" in str(found[1].error)


def without_memory(url: str) -> None:
    def make() -> int:
        raise MemoryError("1 TiB is too much")

    deadline = time.monotonic() + PATIENT_S
    share(open_store(url, 0, deadline), "job", 0, 2, make, None, deadline)


def test_too_few_open_files_are_an_error_on_both_sides(directory: str) -> None:
    leader = RankProcess(shared, directory, 0, 2, PATIENT_S)
    found = outcomes([leader, RankProcess(few_files, directory)])
    assert "ulimit -n" in str(found[1].error)
    assert isinstance(found[0].error, CommunicationError)
    assert "rank 1 could not take its descriptors" in str(found[0].error)


def few_files(url: str) -> object:
    import resource

    # Room for the connection alone: the segment's and rank 0's heap's descriptors find none.
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held = [os.dup(0) for _ in range(highest)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 3, max(held) + 3))
    return shared(url, 1, 2, PATIENT_S)


Forgery = Callable[[socket.socket, Door], None]


def wrong_token(connection: socket.socket, door: Door) -> None:
    connection.send(pack(Hello(secrets.token_hex(16), 1, False)))


def garbage(connection: socket.socket, door: Door) -> None:
    connection.send(b"GET / HTTP/1.1\r\n\r\n" * 100)


def too_long(connection: socket.socket, door: Door) -> None:
    connection.send(b"\0" * 100_000)


def no_such_rank(connection: socket.socket, door: Door) -> None:
    connection.send(pack(Hello(door.token, 7, False)))


def too_many_descriptors(connection: socket.socket, door: Door) -> None:
    socket.send_fds(connection, [pack(Hello(door.token, 1, True))], [0] * 200)


def promised_descriptor(connection: socket.socket, door: Door) -> None:
    connection.send(pack(Hello(door.token, 1, True)))


def no_memory(connection: socket.socket, door: Door) -> None:
    socket.send_fds(connection, [pack(Hello(door.token, 1, True))], [connection.fileno()])


def hang_up(connection: socket.socket, door: Door) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def say_nothing(connection: socket.socket, door: Door) -> None:
    assert connection.fileno() >= 0


FORGERIES: list[Forgery] = [
    wrong_token, garbage, too_long, no_such_rank, too_many_descriptors, promised_descriptor, no_memory, hang_up,
    say_nothing,
]  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_forged_connections_are_sent_away_and_the_ranks_go_on(
    directory: str, door_of: Callable[[], Door], forgery: Forgery
) -> None:
    leader = RankProcess(shared, directory, 0, 2, PATIENT_S)
    door = door_of()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(f"\0{door.name}")
        forgery(connection, door)
        expected = ("segment", ["heap 0", "heap 1"])
        assert given(outcomes([leader, RankProcess(shared, directory, 1, 2, PATIENT_S)])) == [expected] * 2
        answer, ancillary, _, _ = connection.recvmsg(10_000, 10_000)
        assert not ancillary
        assert b"shared" not in answer


def test_a_crowd_that_says_nothing_keeps_no_rank_out(directory: str, door_of: Callable[[], Door]) -> None:
    leader = RankProcess(shared, directory, 0, 2, PATIENT_S)
    name = door_of().name
    crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
    try:
        for connection in crowd:
            connection.connect(f"\0{name}")
        found = outcomes([leader, RankProcess(shared, directory, 1, 2, PATIENT_S)])
    finally:
        for connection in crowd:
            connection.close()
    assert given(found) == [("segment", ["heap 0", "heap 1"])] * 2


def test_the_second_of_two_that_claim_a_rank_is_refused(directory: str, door_of: Callable[[], Door]) -> None:
    leader = RankProcess(shared, directory, 0, 3, PATIENT_S)
    door = door_of()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(f"\0{door.name}")
        first.send(pack(Hello(door.token, 1, False)))  # lies there before the other connects
        (second,) = outcomes([RankProcess(shared, directory, 1, 3, PATIENT_S)])
        assert f"rank 1 came twice: as process {os.getpid()}" in str(second.error)
        leader.kill()


def as_other_user(url: str, rank: int) -> None:
    """This rank with the kernel's answer to "who am I" changed: to it, everybody else is another user."""
    deadline = time.monotonic() + SHORT_S
    store = open_store(url, rank, deadline)
    os.geteuid = lambda: 54321
    share(store, "job", rank, 2, lambda: memory("segment"), None, deadline)


def test_another_user_is_sent_away_by_name(directory: str) -> None:
    user = os.geteuid()
    gate = CONTEXT.Barrier(2)
    ranks = [
        RankProcess(as_other_user, directory, 0, gate=gate),
        RankProcess(shared, directory, 1, 2, SHORT_S, gate=gate),
    ]
    leader, other = outcomes(ranks)
    assert isinstance(leader.error, RendezvousTimeout)
    assert leader.error.missing == (1,)
    assert f"expected user 54321, got user {user}" in str(leader.error)
    assert isinstance(other.error, CommunicationError)
    assert f"expected user 54321, got user {user}" in str(other.error)


def test_a_rank_trusts_no_listener_of_another_user(directory: str) -> None:
    gate = CONTEXT.Barrier(2)
    ranks = [
        RankProcess(shared, directory, 0, 2, SHORT_S, gate=gate),
        RankProcess(as_other_user, directory, 1, gate=gate),
    ]
    leader, other = outcomes(ranks)
    assert isinstance(other.error, RendezvousTimeout)
    assert f"listens user {os.geteuid()}, expected 54321" in str(other.error)
    assert isinstance(leader.error, RendezvousTimeout)
    assert leader.error.missing == (1,)
    assert "hung up" in str(leader.error)  # it was there, and told nothing


def both(url: str, rank: int, size: int) -> tuple[list[int], tuple[str, list[str | None]]]:
    return met(url, rank, size, PATIENT_S), shared(url, rank, size, PATIENT_S)


def test_jobs_side_by_side_share_their_own_memory(tmp_path: Path) -> None:
    jobs = [[RankProcess(both, f"file://{tmp_path}/job{job}", rank, 2) for rank in range(2)] for job in range(2)]
    found = [outcomes(job) for job in jobs]
    for job in found:
        assert [outcome.error for outcome in job] == [None, None]
        assert job[0].value == job[1].value
        assert job[0].value[1] == ("segment", ["heap 0", "heap 1"])
    assert found[0][0].value[0] != found[1][0].value[0]


# ---- Launchers -------------------------------------------------------------------------------------------------

LAUNCHER = """
import os, subprocess, sys
rows = []
for rank in range(2):
    place = {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2}
    environ = {**os.environ, **{key: str(value) for key, value in place.items()}}
    # A shell between launcher and rank, as many jobs have one.
    rows.append(subprocess.Popen(["sh", "-c", '"$0" "$@"; exit $?', sys.executable, *sys.argv[1:]], env=environ))
sys.exit(max([row.wait(20) for row in rows]))
"""
RANK = """
import os, time
from blinkccl.runtime.environment import launch, store_of
from blinkccl.runtime.rendezvous import decode, encode, meet, own_card
from blinkccl.runtime.store import open_store
place, deadline = launch(os.environ), time.monotonic() + 15
store = open_store(store_of(place), place.rank, deadline)
cards = meet(store, "job", place.rank, 2, encode(own_card(place.rank, 2, os.environ["JOB"].encode())), deadline)
assert [decode(card).payload for card in cards] == [os.environ["JOB"].encode()] * 2, "another job's ranks"
"""


def test_what_a_launcher_starts_meets_without_a_store(tmp_path: Path) -> None:
    jobs = []
    for job in range(2):
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("BLINK_", "RANK", "WORLD_"))}
        environ |= {"XDG_RUNTIME_DIR": str(tmp_path), "JOB": str(job)}
        jobs.append(subprocess.Popen([sys.executable, "-c", LAUNCHER, "-c", RANK], env=environ))
    try:
        assert [job.wait(30) for job in jobs] == [0, 0]
    finally:
        for job in jobs:
            job.kill()
            job.wait(10)
    assert len(list(tmp_path.glob("blink/job-*"))) >= 1  # the other may have been swept away by now
