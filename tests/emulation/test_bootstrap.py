"""Ranks that are processes meet and share memory: all present, one missing, duplicate, killed, restarted."""

import errno
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from job import wait_for
from rank_processes import CONTEXT, Outcome, RankProcess, outcomes

from blinkccl.errors import (
    CommunicationError,
    LaunchError,
    PeerLostError,
    PlanMismatchError,
    RendezvousTimeout,
)
from blinkccl.runtime import addresses, peer_info
from blinkccl.runtime import bootstrap as bootstrap_module
from blinkccl.runtime.addresses import own_addresses
from blinkccl.runtime.bootstrap import Bootstrap, Published, _Joining, join
from blinkccl.runtime.peer_info import own_peer_info, same_host
from blinkccl.runtime.spanning_group import open_group
from blinkccl.runtime.store import FileStore, JobPort, Store, open_store

#: Timeouts: for ranks that all come, on a busy machine; and for a rank that is missing on purpose.
PATIENT_S = 15.0
SHORT_S = 1.0


@pytest.fixture(params=["file", "tcp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def opened(url: str, rank: int, size: int, wait_s: float) -> Bootstrap:
    deadline = time.monotonic() + wait_s
    return join(open_store(url, rank, deadline), "job", rank, size, deadline)


def met(url: str, rank: int, size: int, wait_s: float, version: str = "") -> list[int]:
    """Return the processes of all ranks."""
    if version:
        peer_info.package_version = lambda: version
    with opened(url, rank, size, wait_s) as bootstrap:
        peers = bootstrap.peers
    assert same_host(peers)
    assert [peer.rank for peer in peers] == list(range(size))
    return [peer.pid for peer in peers]


def pids(found: list[Outcome]) -> list[list[int]]:
    assert [outcome.error for outcome in found] == [None] * len(found)
    return [outcome.value for outcome in found]


def two_of_three(directory: str) -> list[RankProcess]:
    """Return ranks 0 and 1, which have met."""
    ranks = [RankProcess(met, directory, rank, 3, PATIENT_S) for rank in range(2)]
    for key in ("job/bootstrap", "job/here/1"):
        wait_for(open_store(directory, 1, 0), key)
    time.sleep(0.3)  # their meeting is not visible from outside
    return ranks


def test_all_ranks_know_all_ranks(url: str) -> None:
    ranks = [RankProcess(met, url, rank, 3, PATIENT_S) for rank in range(3)]
    expected = [rank.process.pid for rank in ranks]
    assert pids(outcomes(ranks)) == [expected] * 3


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_missing_rank_is_named_by_all_that_wait(url: str, absent: int) -> None:
    present = [rank for rank in range(3) if rank != absent]
    gate = CONTEXT.Barrier(2)
    ranks = [RankProcess(met, url, r, 3, SHORT_S, gate=gate) for r in present]
    for outcome in outcomes(ranks):
        assert isinstance(outcome.error, RendezvousTimeout)
        assert outcome.error.missing == (absent,)
        if not (url.startswith("tcp") and absent == 0):  # else no store shows the ranks that came
            assert outcome.error.present == tuple(present)


@pytest.mark.parametrize("twice", [0, 1])
def test_a_duplicate_rank_is_an_error_on_all(directory: str, twice: int) -> None:
    """The usual mistake: two processes get one number, and another number is missing."""
    ranks = two_of_three(directory)
    ranks.append(RankProcess(met, directory, twice, 3, PATIENT_S))
    for outcome in outcomes(ranks):
        assert isinstance(outcome.error, PlanMismatchError)
        assert f"rank {twice} is claimed by" in str(outcome.error)
        assert str(ranks[twice].process.pid) in str(outcome.error)
        assert str(ranks[2].process.pid) in str(outcome.error)


def test_two_ranks_0_that_come_at_once_find_each_other(directory: str) -> None:
    gate = CONTEXT.Barrier(2)
    for outcome in outcomes([RankProcess(met, directory, 0, 2, PATIENT_S, gate=gate) for _ in range(2)]):
        assert isinstance(outcome.error, PlanMismatchError), outcome


@pytest.mark.parametrize(
    ("sizes", "versions", "what"), [((2, 3), ("", ""), "world_size"), ((2, 2), ("1.0", "1.1"), "version")]
)
def test_a_disagreement_is_an_error_on_all(
    url: str, sizes: tuple[int, int], versions: tuple[str, str], what: str
) -> None:
    ranks = [RankProcess(met, url, r, sizes[r], PATIENT_S, versions[r]) for r in range(2)]
    for outcome in outcomes(ranks):
        assert isinstance(outcome.error, PlanMismatchError)
        assert f"ranks disagree on {what}" in str(outcome.error)
        assert all(f"rank {rank} (process" in str(outcome.error) for rank in range(2))


@pytest.mark.parametrize("again", [0, 1])
def test_a_rank_that_is_killed_may_be_started_again(directory: str, again: int) -> None:
    first = two_of_three(directory)
    gate = CONTEXT.Barrier(3)
    late = [RankProcess(met, directory, rank, 3, PATIENT_S, gate=gate) for rank in (again, 2)]
    first[again].kill()
    gate.wait(PATIENT_S)
    ranks = [late[0] if rank == again else first[rank] for rank in range(2)] + [late[1]]
    assert pids(outcomes(ranks)) == [[rank.process.pid for rank in ranks]] * 3


def opens(url: str, rank: int, size: int) -> None:
    opened(url, rank, size, PATIENT_S).close()


def dies_before_it_connects(url: str, rank: int, size: int) -> None:
    """End after rank 0 began, because an earlier entry of a dead rank may be of an earlier run."""
    _Joining._enter = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    wait_for(open_store(url, rank, time.monotonic() + PATIENT_S), "job/bootstrap")
    opens(url, rank, size)


def test_a_rank_that_shows_itself_and_ends_before_it_connects_is_named(directory: str) -> None:
    ranks = [RankProcess(dies_before_it_connects if rank == 1 else opens, directory, rank, 3) for rank in range(3)]
    zero, ended, two = outcomes(ranks)
    assert ended.exitcode == -signal.SIGKILL
    for outcome in (zero, two):
        assert isinstance(outcome.error, PeerLostError)
        assert (outcome.error.rank, outcome.error.pid) == (1, ranks[1].process.pid)


def test_a_store_may_be_used_again(directory: str) -> None:
    """Entries of an earlier job, complete or not, have no effect; rank 1 comes long before rank 0."""
    pids(outcomes([RankProcess(met, directory, rank, 2, PATIENT_S) for rank in range(2)]))
    outcomes([RankProcess(met, directory, 0, 3, 0.2)])
    late = RankProcess(met, directory, 1, 2, PATIENT_S)
    time.sleep(1.5)
    early = RankProcess(met, directory, 0, 2, PATIENT_S)
    expected = [early.process.pid, late.process.pid]
    assert pids(outcomes([early, late])) == [expected] * 2


def test_garbage_in_the_store_is_named(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.set("job/bootstrap", b"\xc1")
    for rank in (0, 1):
        with pytest.raises(CommunicationError, match="key 'job/bootstrap' of the store has no entry of Blink"):
            join(store, "job", rank, 2, time.monotonic() + SHORT_S)


def over_tcp(url: str, rank: int, host: str) -> int:
    """Rank 1 claims to be on another host: it connects over TCP, which carries no descriptors."""
    deadline = time.monotonic() + PATIENT_S
    store = open_store(url, rank, deadline)
    store.addresses = lambda: [host]
    if rank == 1:
        peer_info._boot_id = lambda: "another"
    with join(store, "job", rank, 2, deadline) as bootstrap:
        assert not same_host(bootstrap.peers)
        words, _ = bootstrap.all_gather(b"word", deadline)
        with pytest.raises(CommunicationError, match="descriptors cannot travel to ranks on other hosts"):
            bootstrap.all_gather(b"", deadline, [0])
    return len(words)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ranks_of_several_hosts_share_no_descriptors(directory: str, host: str) -> None:
    if own_addresses(host) != [host]:
        pytest.skip(f"this machine has no {host}")
    ended = outcomes([RankProcess(over_tcp, directory, rank, host) for rank in range(2)])
    assert ended == [Outcome(value=2)] * 2


# ---- Inconsistent hosts --------------------------------------------------------------------------------------------


class OlderPeerInfo(msgspec.Struct):
    """The peer info of an earlier version."""

    rank: int
    hostname: str
    pid: int
    version: str = "0.0.9"
    host = ("another", 1)


def on_hosts(rank: int, size: int, url: str, change: str = "") -> None:
    """Ranks 0 and 1 are on one host, others on another, all in this namespace; ``change`` names the error."""
    deadline = time.monotonic() + 4
    os.environ["BLINK_HOSTID"] = "a" if rank < 2 else "b"
    if change == "peer info":
        bootstrap_module.own_peer_info = lambda rank, *_: OlderPeerInfo(rank, "host", os.getpid())
        OlderPeerInfo.world_size = size
    elif change:
        read = _Joining._published
        _Joining._published = lambda self: elsewhere(read(self), change)
    with join(open_store(url, rank, deadline), "job", rank, size, deadline):
        pass


def elsewhere(published: Published | None, place: str) -> Published | None:
    """Return the entry with an address at which nobody listens."""
    return published and msgspec.structs.replace(published, places=[place])


def errors_on_hosts(url: str, change: str, wrong: int) -> list[BaseException | None]:
    """Return the errors of three ranks that begin at once, so that their deadlines are one."""
    gate = CONTEXT.Barrier(3)
    changes = [change if rank == wrong else "" for rank in range(3)]
    ranks = [RankProcess(on_hosts, rank, 3, url, changes[rank], gate=gate) for rank in range(3)]
    return [outcome.error for outcome in outcomes(ranks)]


@pytest.mark.parametrize("wrong", [0, 2])
def test_another_version_on_one_host_is_named_on_all(url: str, wrong: int) -> None:
    for error in errors_on_hosts(url, "peer info", wrong):
        assert isinstance(error, PlanMismatchError)
        assert "ranks disagree on version: rank 0 (process " in str(error)
        assert "0.0.9" in str(error)
        assert wrong == 0 or "rank 2 (process " in str(error)


def takes_itself_for_another_host(url: str, rank: int, crowded: int = 0) -> int:
    """Rank 1 does not find rank 0's UNIX socket; the first ``crowded`` times, as with very many ranks at once."""
    real, knocks = _Joining._connected, iter(range(crowded or 10**6))

    def connected(self: _Joining, place: str, token: str, host: str | None) -> Bootstrap | None:
        if rank == 1 and place.startswith("unix:") and next(knocks, None) is not None:
            self._note = (
                f"cannot connect to rank 0 at {place}: {os.strerror(errno.EAGAIN if crowded else errno.ECONNREFUSED)}"
            )
            return None
        return real(self, place, token, host)

    _Joining._connected = connected
    deadline = time.monotonic() + PATIENT_S
    group = open_group(open_store(url, rank, deadline), rank, 3, deadline_s=PATIENT_S)
    group.close()
    return group.size


def port_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def test_hosts_that_take_themselves_for_one_are_named_on_all() -> None:
    url = port_url()
    began = time.monotonic()
    for outcome in outcomes([RankProcess(takes_itself_for_another_host, url, rank) for rank in range(3)]):
        assert isinstance(outcome.error, PlanMismatchError), outcome
        assert re.search(r"rank 1 \(process .*\) does not find rank 0 on its host: .*BLINK_HOSTID", str(outcome.error))
    assert time.monotonic() - began < PATIENT_S


def test_a_crowd_before_rank_0_is_not_another_host() -> None:
    url = port_url()
    ranks = [RankProcess(takes_itself_for_another_host, url, rank, 3) for rank in range(3)]
    assert outcomes(ranks) == [Outcome(value=3)] * 3


def test_a_host_without_a_path_to_rank_0_is_named_on_all(directory: str) -> None:
    """The rank itself learns it at its deadline, since nobody can tell it more."""
    errors = errors_on_hosts(directory, "tcp:127.0.0.1:1", 2)
    for error in errors:
        assert isinstance(error, CommunicationError)
        assert isinstance(error, RendezvousTimeout) == (error is errors[2])
        assert re.search(
            r"rank 2 .*\(process .*\) cannot connect to rank 0 \(process .*\) at 127.0.0.1:1: .*refused", str(error)
        )


# ---- Ports -----------------------------------------------------------------------------------------------------


def test_a_taken_port_is_an_error_with_port_and_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"cannot listen at 127.0.0.1:{port}: .*; set BLINK_STORE=tcp"):
            opened(f"tcp://127.0.0.1:{port}", 0, 2, SHORT_S)


def test_a_second_job_at_the_port_of_one_that_still_meets_is_told() -> None:
    url = port_url()
    first = RankProcess(met, url, 0, 2, PATIENT_S)
    time.sleep(1)  # its listening is not visible without a disturbance
    second = RankProcess(met, url, 0, 2, PATIENT_S)
    for outcome in outcomes([first, second]):
        assert isinstance(outcome.error, PlanMismatchError), outcome
        assert "rank 0 is claimed by process" in str(outcome.error)


def test_a_process_may_meet_again_at_its_port() -> None:
    """A program retries after an error, or after it has closed its communicator."""
    url = port_url()
    assert isinstance(outcomes([RankProcess(met, url, 0, 2, 0.2)])[0].error, RendezvousTimeout)
    ranks = [RankProcess(meets_twice, url, rank) for rank in range(2)]
    assert outcomes(ranks) == [Outcome()] * 2


def meets_twice(url: str, rank: int) -> None:
    for _ in range(2):
        met(url, rank, 2, PATIENT_S)


def test_a_rank_0_that_ends_at_a_port_is_named() -> None:
    url = port_url()
    ranks = [RankProcess(met, url, rank, 3, PATIENT_S) for rank in range(2)]
    time.sleep(1.5)
    ranks[0].kill()
    (other,) = outcomes([ranks[1]])
    assert isinstance(other.error, PeerLostError), other
    assert other.error.rank == 0


def test_another_jobs_ranks_are_strangers_at_a_port() -> None:
    url = port_url()
    port = int(url.rpartition(":")[2])

    def one(rank: int, prefix: str, wait_s: float) -> str:
        deadline = time.monotonic() + wait_s
        try:
            with join(JobPort("127.0.0.1", port), prefix, rank, 2, deadline):
                return ""
        except CommunicationError as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        zero = pool.submit(one, 0, "one job", PATIENT_S)
        other = pool.submit(one, 1, "another job", SHORT_S)
        text = other.result()
        assert "missing rank 0" in text
        one_of_it = pool.submit(one, 1, "one job", PATIENT_S)
        assert (zero.result(), one_of_it.result()) == ("", "")


def test_a_name_that_is_a_loopback_address_here_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "head.example"
    known = socket.getaddrinfo

    def resolved(host: str, *more: object, **kinds: object) -> object:
        return known("127.0.1.1" if host == name else host, *more, **kinds)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(RendezvousTimeout, match=r"missing rank 0.*head\.example is 127\.0\.1\.1 on this host: if"):
        join(JobPort(name, int(port_url().rpartition(":")[2])), "a job", 1, 2, time.monotonic() + SHORT_S)


def test_thousands_of_strangers_at_a_port_take_little_memory_and_time() -> None:
    url = port_url()
    port = int(url.rpartition(":")[2])
    ranks = [RankProcess(met, url, 0, 2, PATIENT_S)]
    sayings = (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, struct.pack("<4I", 0x324B4C42, 1, 0, 0xFFFFFFFF) + b"x")
    crowd = []
    for number in range(2000):
        with suppress(OSError):  # dropped at once, or this process has no more descriptors
            crowd.append(socket.create_connection(("127.0.0.1", port), 10))
            crowd[-1].sendall(sayings[number % len(sayings)])
    pages = int(Path(f"/proc/{ranks[0].process.pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 400 << 20
    ranks.append(RankProcess(met, url, 1, 2, PATIENT_S))
    assert pids(outcomes(ranks)) == [[rank.process.pid for rank in ranks]] * 2
    for stranger in crowd:
        stranger.close()


def test_another_protocol_of_the_bootstrap_is_an_error_on_both_sides(directory: str) -> None:
    """Its ranks send the same hello, and perhaps more; they get the error in any case."""
    zero = RankProcess(met, directory, 0, 2, PATIENT_S)
    store = open_store(directory, 1, 0)
    published = msgspec.msgpack.decode(wait_for(store, "job/bootstrap"), type=Published)
    hello = struct.pack("<4I64s64s", 3, 1, 2, os.getpid(), published.token.encode(), b"there") + bytes(40)
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(10)
        other.connect("\0" + published.places[0].removeprefix("unix:"))
        other.sendall(struct.pack("<4I", 0x324B4C42, 1, 0, len(hello)) + hello)
        answer = other.recv(10_000)
    (outcome,) = outcomes([zero])
    assert isinstance(outcome.error, PlanMismatchError)
    for text in (str(outcome.error), answer.decode(errors="replace")):
        assert re.search(r"disagree on the bootstrap's protocol: rank 0 .* has 2, rank 1 \(.* on there\) has 3;", text)


def test_a_rank_that_calls_itself_another_is_an_error() -> None:
    words = [msgspec.msgpack.encode(own_peer_info(rank, size)) for rank, size in ((0, 2), (0, 2), (1, 3))]
    for word, claim in ((words[1], "0 of 2"), (words[2], "1 of 3")):
        with pytest.raises(CommunicationError, match=f"^rank 1 of 2 .process .* calls itself rank {claim}; give every"):
            peer_info.decode_all([words[0], word])


def test_a_loopback_by_the_hosts_own_name_is_not_where_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's hosts files map a host's own name to 127.0.1.1."""
    ways = {"me": "127.0.1.1", "192.0.2.1": "10.1.2.3", "127.0.0.1": "127.0.0.1", "far": "10.9.9.9"}
    monkeypatch.setattr(addresses, "_source_address", ways.get)
    monkeypatch.setattr(addresses, "own_interfaces", dict)
    assert own_addresses("me") == ["10.1.2.3"]
    assert own_addresses("127.0.0.1") == ["127.0.0.1"]
    assert own_addresses("far") == ["10.9.9.9", "10.1.2.3"]
    monkeypatch.undo()
    assert not any(address.startswith("127.") for address in own_addresses("nowhere"))


def test_the_first_address_of_rank_0_that_answers_is_taken_and_its_name_remembered() -> None:
    """A name that resolves to 127.0.1.1 on rank 0's own host still leads to it from others."""
    joining = _Joining(Store(), "", own_peer_info(1, 2), time.monotonic() + PATIENT_S)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        places = ["tcp:127.0.0.1:1", f"tcp:localhost:{port}"]
        assert joining._reached(places) == (f"tcp:127.0.0.1:{port}", "localhost", "")
    place, host, troubles = joining._reached(places)
    assert (place, host) == ("", "")
    assert re.search(rf"^127.0.0.1:1: .*refused, localhost:{port}: .*refused$", troubles)


# ---- Memory ----------------------------------------------------------------------------------------------------


def memory(text: str) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    return fd


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared(url: str, rank: int, size: int, mine: int = 1, room: int = 0) -> list[list[str]]:
    """Return the content of all ranks' files, after checking that no other descriptor stays open."""
    native = opened(f"{url}-first", 0, 1, PATIENT_S)  # opens all files that stay open for ever
    native.close()
    own = [memory(f"rank {rank}") for _ in range(mine)]
    before = open_files()
    deadline = time.monotonic() + PATIENT_S
    try:
        with opened(url, rank, size, PATIENT_S) as bootstrap:
            if room:
                few_files()
            _, files = bootstrap.all_gather(b"", deadline, own)
    except BaseException:
        assert room or open_files() == before
        raise
    held = []
    for of_rank in files:
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in of_rank)
        held.append([os.pread(fd, 100, 0).decode() for fd in of_rank])
        for fd in of_rank:
            os.close(fd)
    assert open_files() == before
    return held


def few_files() -> None:
    import resource

    highest = max(map(int, os.listdir("/proc/self/fd")))
    held = [os.dup(0) for _ in range(highest)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 2, max(held) + 2))


def test_everybody_gets_everybodys_files(directory: str) -> None:
    ranks = [RankProcess(shared, directory, rank, 4, 2 if rank == 0 else int(rank != 2)) for rank in range(4)]
    expected = [["rank 0", "rank 0"], ["rank 1"], [], ["rank 3"]]
    assert pids(outcomes(ranks)) == [expected] * 4


def test_too_few_open_files_are_an_error_on_both_sides(directory: str) -> None:
    ranks = [RankProcess(shared, directory, 0, 2, 3), RankProcess(shared, directory, 1, 2, 0, 1)]
    for outcome in outcomes(ranks):
        assert isinstance(outcome.error, CommunicationError)
        assert "rank 1" in str(outcome.error)
        assert "ulimit -n" in str(outcome.error)


def test_peers_know_their_host_and_whether_they_live() -> None:
    mine = own_peer_info(0, 1)
    assert peer_info.decode(msgspec.msgpack.encode(mine)) == mine
    assert peer_info.alive(mine) is True
    assert str(mine) == f"process {os.getpid()} on {mine.hostname}"
    ended = RankProcess(os.getpid)
    pid = ended.process.pid or 0
    peer = msgspec.structs.replace(mine, pid=pid, start=peer_info.start_time(pid))
    ended.kill()
    assert peer_info.alive(peer) is False
    assert peer_info.alive(msgspec.structs.replace(mine, start=mine.start + 1)) is False  # a later process's number
    assert peer_info.alive(msgspec.structs.replace(mine, boot_id="another host's")) is None
    assert same_host([mine, msgspec.structs.replace(mine, rank=1, pid=1)])
    assert not same_host([mine, msgspec.structs.replace(mine, network=1)])
    for data in (b"", b"\xc1", b"\x90", msgspec.msgpack.encode(mine)[:-1]):
        with pytest.raises(CommunicationError, match="not a rank's peer info"):
            peer_info.decode(data)


# ---- Launchers -------------------------------------------------------------------------------------------------

LAUNCHER = """
import os, subprocess, sys
rows = []
for rank in range(2):
    place = {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2}
    environ = {**os.environ, **{key: str(value) for key, value in place.items()}}
    # A shell between launcher and rank, as in many jobs.
    rows.append(subprocess.Popen(["sh", "-c", '"$0" "$@"; exit $?', sys.executable, *sys.argv[1:]], env=environ))
sys.exit(max([row.wait(20) for row in rows]))
"""
RANK = """
import os, time
from blinkccl.runtime.environment import launch, store_of
from blinkccl.runtime.bootstrap import join
from blinkccl.runtime.store import open_store
place, deadline = launch(os.environ), time.monotonic() + 15
store = open_store(store_of(place), place.rank, deadline)
with join(store, "job", place.rank, 2, deadline, os.environ["JOB"]) as bootstrap:
    assert [peer.deterministic for peer in bootstrap.peers] == [os.environ["JOB"]] * 2, "another job's ranks"
"""


def test_ranks_of_one_launcher_meet_without_a_store(tmp_path: Path) -> None:
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
    assert len(list(tmp_path.glob("blink/job-*"))) >= 1  # the other one may be removed already
