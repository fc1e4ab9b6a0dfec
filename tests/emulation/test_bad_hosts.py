"""Faults between two hosts, which are network namespaces: all ranks report the error by the deadline; nothing is left.

Ranks 0 and 1 are on the first host, ranks 2 and 3 on the second.
"""

import ctypes
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import several_hosts
from job import Start, tell, wait_for
from rank_processes import RankProcess, outcomes

import blinkccl
from blinkccl.codegen.host_compiler import host_compiler
from blinkccl.engines import native_library
from blinkccl.errors import BlinkError, CommunicationError, DeadlineError, PeerLostError, PlanMismatchError
from blinkccl.runtime import peer_info
from blinkccl.runtime.addresses import own_interfaces
from blinkccl.runtime.bootstrap import part
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.store import JobPort

PORT = 29461
DEADLINE_S = 2.0

pytestmark = pytest.mark.timeout(90)


def four(hosts: Sequence[str]) -> list[str]:
    """Return the host of each of four ranks."""
    return [host for host in hosts for _ in range(2)]


# ---- the wrong ranks


def joins(host: str, rank: int, size: int, wait_s: float, late_s: float = 0.0, identity: int = 0) -> tuple[str, float]:
    """Return the result of a rank that makes a communicator, and its seconds past the deadline.

    ``identity``, if not 0, replaces the number of the namespace, as on the clone of a running machine.
    """
    several_hosts.enter(host)
    time.sleep(late_s)
    number = peer_info.namespace
    deadline = time.monotonic() + wait_s
    with patch.object(peer_info, "namespace", (lambda _: identity) if identity else number):
        try:
            port = JobPort(several_hosts.address(0), PORT)
            with closing(Communicator.create(port, rank, size, deadline_s=wait_s)) as comm:
                text = f"met {len({peer.host for peer in comm.group.peers})} hosts"
        except BlinkError as error:
            text = f"{type(error).__name__}: {error}"
    return text, time.monotonic() - deadline


def reports(ranks: Sequence[RankProcess]) -> list[str]:
    values = [outcome.value for outcome in outcomes(ranks)]
    assert all(late_s < 2 for _, late_s in values), values
    return [text for text, _ in values]


def test_a_late_host_is_waited_for(hosts: list[str]) -> None:
    ranks = [RankProcess(joins, host, rank, 4, 15, rank // 2) for rank, host in enumerate(four(hosts))]
    assert set(reports(ranks)) == {"met 2 hosts"}


@pytest.mark.parametrize("twice", [0, 1])
def test_a_rank_on_both_hosts_is_named_on_all(hosts: list[str], twice: int) -> None:
    places = [(hosts[0], 0), (hosts[0], 1), (hosts[1], twice)]
    for text in reports([RankProcess(joins, host, rank, 3, 15) for host, rank in places]):
        assert text.startswith(f"PlanMismatchError: rank {twice} is claimed by process "), text


def test_a_host_that_never_comes_is_named_by_its_ranks(hosts: list[str]) -> None:
    for text in reports([RankProcess(joins, hosts[0], rank, 4, 2.5) for rank in range(2)]):
        assert text.startswith("RendezvousTimeout: missing ranks 2, 3, present ranks 0, 1: "), text


def test_two_hosts_of_one_identity_are_named_on_all(hosts: list[str]) -> None:
    ranks = [RankProcess(joins, host, rank, 4, 15, 0, 7) for rank, host in enumerate(four(hosts))]
    for text in reports(ranks):
        assert text.startswith("PlanMismatchError: rank "), text
        assert "give each host a different BLINK_HOSTID" in text, text


# ---- the wrong library, network or topology

#: A library with the version of a UCX that is too old.
OLD = 'extern "C" void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1, *b = 8, *c = 2; }'


def errors_with(hosts: Sequence[str], environ: dict[str, str]) -> set[str]:
    """Return the texts of the errors of four ranks, of which the last has these variables."""
    store = {"BLINK_STORE": f"tcp://{several_hosts.address(0)}:{PORT}"}
    ranks = [
        RankProcess(once, host, rank, store | (environ if rank == 3 else {})) for rank, host in enumerate(four(hosts))
    ]
    return {str(outcome.error) for outcome in outcomes(ranks)}


NO_UCX = {"BLINK_UCX_LIB": str(native_library.find())}


@pytest.mark.parametrize(
    ("environ", "fault", "remedy"),
    [
        (NO_UCX, "is no UCX: it has no function ucp_get_version", "pip install 'blink-ccl"),
        ({"UCX_TLS": "rc"}, "rank 3 on .*: UCX cannot use a network of this host: .*with UCX_TLS=rc", "ucx_info -d"),
        ({"UCX_TLS": "posix"}, r"does not reach rank \d on .*, which has not hung up", "UCX_NET_DEVICES"),
        ({"BLINK_TOPO": "dgx-9"}, "unknown topology 'dgx-9'", "blink topo --list"),
        ({"BLINK_TOPO": "2x dgx-a100"}, "rank 0 on .* has none and rank 3 on .* has 2x dgx-a100", "all ranks the same"),
        ({"BLINK_TOPO": "measure"}, "rank 0 on .* has none and rank 3 on .* has its measured", "all ranks the same"),
    ],
)
def test_bad_input_of_one_rank_is_an_error_on_all(
    hosts: list[str], environ: dict[str, str], fault: str, remedy: str
) -> None:
    for text in errors_with(hosts, environ):
        assert re.search(fault, text), text
        assert remedy in text, text


def test_a_ucx_that_is_too_old_is_named_on_all(hosts: list[str], tmp_path: Path) -> None:
    (tmp_path / "old.cpp").write_text(OLD)
    library = str(tmp_path / "libucp.so.0")
    compiler = shlex.split(host_compiler().command)
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", library, tmp_path / "old.cpp"], check=True, timeout=60)
    (text,) = errors_with(hosts, {"BLINK_UCX_LIB": library})
    assert f"{library} is UCX 1.8.2; expected 1.13 or newer, below 2.0; name the libucp.so.0 of another" in text


def add_cable(hosts: Sequence[str]) -> None:
    several_hosts.run(*f"ip link add cable netns {hosts[0]} type veth peer name cable netns {hosts[1]}".split())
    for place, host in enumerate(hosts, 1):
        several_hosts.run(*f"ip -n {host} addr add 10.76.6.{place}/24 dev cable".split())
        several_hosts.run(*f"ip -n {host} link set cable up".split())
    until = time.monotonic() + 10
    for host in hosts:  # the kernel takes up to a second to call it up, and UCX refuses it before
        show = f"ip -n {host} link show cable".split()
        while "state UP" not in subprocess.run(show, capture_output=True, text=True, check=True).stdout:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_network_that_carries_nothing_is_named_on_all(hosts: list[str]) -> None:
    add_cable(hosts)
    lost = "10.76.6.1 lladdr 02:00:00:00:00:99 dev cable"
    several_hosts.run("ip", "-n", hosts[1], "neigh", "replace", *lost.split())
    environ = {"BLINK_STORE": f"tcp://{several_hosts.address(0)}:{PORT}", "UCX_NET_DEVICES": "cable"}
    for outcome in outcomes([RankProcess(once, host, rank, environ) for rank, host in enumerate(four(hosts))]):
        assert re.search(r"does not reach rank \d on .* UCX_NET_DEVICES=cable", str(outcome.error)), outcome


def interfaces_of(host: str) -> dict[str, str]:
    several_hosts.enter(host)
    return own_interfaces()


def test_an_interface_without_a_carrier_is_left_out(hosts: list[str]) -> None:
    add_cable(hosts)
    several_hosts.run("ip", "-n", hosts[1], "link", "set", "cable", "down")
    (ended,) = outcomes([RankProcess(interfaces_of, hosts[1])])
    assert [*ended.value] == ["nic"]


# ---- networks that fail


def works(comm: Communicator, elements: int) -> float:
    array = np.ones(elements, np.float32)
    comm.allreduce(array)
    tell(comm, "working")
    try:
        while True:
            comm.allreduce(array, deadline_s=DEADLINE_S)
    except DeadlineError as error:
        late = str(error)
    silent = "rank 0 gets no answer from ranks 2, 3" if comm.rank < 2 else "has not confirmed that all ranks"
    assert silent in late, late
    return time.monotonic()


def cut_link(host: str) -> None:
    several_hosts.run("ip", "-n", host, "link", "set", "nic", "down")


def lose_packets(host: str) -> None:
    """Send the packets for the first host to an address that no interface has."""
    neighbour = f"{several_hosts.address(0)} lladdr 02:00:00:00:00:99 dev nic"
    several_hosts.run("ip", "-n", host, "neigh", "replace", *neighbour.split())


@pytest.mark.parametrize("elements", [16, 1_000_000])
@pytest.mark.parametrize("fail", [cut_link, lose_packets])
def test_a_host_without_a_network_is_named_by_the_deadline(
    start: Start, hosts: list[str], fail: Callable[[str], None], elements: int
) -> None:
    job = start(4, works, elements, on=four(hosts))
    job.hear("working")
    time.sleep(0.2)
    began = time.monotonic()
    fail(hosts[1])
    assert max(job.values()) - began < DEADLINE_S + 2


def computes(comm: Communicator, seconds: float) -> float:
    """The last rank computes and lets no other thread run; the others have messages for it meanwhile."""
    array = np.ones(1_000_000)
    comm.barrier()
    sent = [comm.send(array, 3, wait=False) for _ in range(2)] if comm.rank == 0 else []
    if comm.rank == 3:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # with the interpreter's lock
    comm.allreduce(array)
    if comm.rank == 3:
        for _ in range(2):
            comm.recv(np.empty_like(array), 0)
    for future in sent:
        future.result(10)
    comm.barrier()
    return float(array[0])


def test_a_rank_that_computes_is_not_taken_for_dead(start: Start, hosts: list[str]) -> None:
    assert start(4, computes, 3.0, on=four(hosts)).values() == [4.0] * 4


def calls_for(comm: Communicator, seconds: float) -> int:
    array, ends, calls = np.ones(5000), np.zeros(1), 0
    tell(comm, "working")
    until = time.monotonic() + seconds
    while not ends[0]:
        ends[0] = time.monotonic() > until
        comm.allreduce(ends, op="max")
        comm.allreduce(np.ones(5000), array)
        assert (array == comm.size).all()
        calls += 1
    return calls


def disturb(host: str, place: int, connections: int) -> int:
    """Connect to every port of a host, also UCX's, and send anything or nothing."""
    several_hosts.enter(host)
    listed = subprocess.run(["ss", "-Htln"], capture_output=True, text=True, check=True, timeout=10).stdout
    ports = sorted({int(line.split()[3].rpartition(":")[2]) for line in listed.splitlines()})
    rng, left, made = random.Random(place), [], 0
    for number in range(connections):
        try:
            address = "127.0.0.1" if number // len(ports) % 2 else several_hosts.address(place - 1)
            left.append(socket.create_connection((address, ports[number % len(ports)]), 2))
            left[-1].sendall(rng.choice([b"", b"GET / HTTP/1.0\r\n\r\n", bytes(300), rng.randbytes(3000)]))
            made += 1
        except OSError:  # not at this address, or hung up
            continue
        if len(left) > 50:
            left.pop(rng.randrange(50)).close()
    return made


def test_strangers_on_every_port_change_nothing(start: Start, hosts: list[str]) -> None:
    job = start(4, calls_for, 3.0, on=four(hosts))
    job.hear("working")
    strangers = [RankProcess(disturb, host, place, 400) for place, host in enumerate(hosts, 1)]
    assert all(outcome.value > 50 for outcome in outcomes(strangers))
    assert min(job.values()) > 10


# ---- addresses and names


def once(host: str, rank: int, environ: dict[str, str], names: str = "") -> float:
    """Return the sum of four ones by ``blinkccl.init()``; ``names`` replaces the host's /etc/hosts."""
    several_hosts.enter(host)
    if names:
        bind = 4096
        assert ctypes.CDLL(None).mount(os.fsencode(names), b"/etc/hosts", None, bind, None) == 0
    os.environ.update(environ, BLINK_RANK=str(rank), BLINK_WORLD_SIZE="4", BLINK_TIMEOUT="15")
    with closing(blinkccl.init()) as comm:
        return float(comm.allreduce(np.ones(3))[0])


def test_a_name_of_127_0_1_1_leads_to_rank_0(hosts: list[str], tmp_path: Path) -> None:
    """The first host's own name is an address of its loopback interface, as on Debian."""
    for place, address in enumerate(("127.0.1.1", several_hosts.address(0))):
        (tmp_path / str(place)).write_text(f"127.0.0.1 localhost\n{address} first\n")
    place = {"BLINK_STORE": f"tcp://first:{PORT}"}
    ranks = [RankProcess(once, host, r, place, str(tmp_path / str(r // 2))) for r, host in enumerate(four(hosts))]
    assert [outcome.value or outcome.error for outcome in outcomes(ranks)] == [4.0] * 4


def test_ipv6_alone_is_enough(hosts: list[str]) -> None:
    for place, host in enumerate(hosts, 1):
        for device in ("nic", "lo"):
            several_hosts.run("ip", "-n", host, "-4", "addr", "flush", "dev", device)
        several_hosts.run("ip", "-n", host, "addr", "add", f"fd00::{place}/64", "dev", "nic", "nodad")
    ranks = [
        RankProcess(once, host, r, {"BLINK_STORE": f"tcp://[fd00::1]:{PORT}"}) for r, host in enumerate(four(hosts))
    ]
    assert [outcome.value or outcome.error for outcome in outcomes(ranks)] == [4.0] * 4


# ---- ranks that end


def is_interrupted(comm: Communicator, elements: int) -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    array = np.ones(elements)
    comm.allreduce(array)
    tell(comm, "working")
    try:
        while True:
            comm.allreduce(array)
    except (KeyboardInterrupt, CommunicationError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("elements", [5, 3_000_000])
def test_ctrl_c_on_one_host_ends_the_ranks_of_all(start: Start, hosts: list[str], elements: int) -> None:
    job = start(4, is_interrupted, elements, on=four(hosts))
    job.hear("working")
    time.sleep(0.3)
    job.signal(3, signal.SIGINT)
    *others, own = job.values()
    assert own == "KeyboardInterrupt: "
    # The signal may come between two short calls; rank 3 closes its communicator then.
    between = "|rank 3 was lost: it closed its communicator" if elements == 5 else ""
    expected = f"rank 3 was interrupted by KeyboardInterrupt{between}"
    for text in others:
        assert re.search(expected, text), text


def leaves_early(comm: Communicator, elements: int) -> Any:
    """Rank 3 sends and leaves; the others, which come to it later, get everything."""
    array = np.full(elements, 7.0)
    comm.barrier()
    if comm.rank == 3:
        comm.broadcast(array, 3)
        comm.send(array, 0)
        comm.close()
        return None
    time.sleep(1.0)
    arrays = [np.zeros(elements) for _ in range(2)]
    comm.broadcast(arrays[0], 3)
    if comm.rank == 0:
        comm.recv(arrays[1], 3)
    return [set(array) for array in arrays[: 1 + (comm.rank == 0)]]


@pytest.mark.parametrize("elements", [4, 30_000, 1_000_000])
def test_what_a_rank_sent_before_it_left_arrives(start: Start, hosts: list[str], elements: int) -> None:
    first, *others, _ = start(4, leaves_early, elements, on=four(hosts)).values()
    assert first == [{7.0}, {7.0}]
    assert others == [[{7.0}]] * 2


def sends_before_a_collective(comm: Communicator) -> list[float]:
    array = np.full(100, float(comm.rank))
    if comm.rank < 2:
        comm.send(array, comm.rank + 2)
    comm.barrier()
    if comm.rank >= 2:
        comm.recv(array, comm.rank - 2)
    return list(set(array))


def test_a_short_message_needs_no_call_of_its_receiver(start: Start, hosts: list[str]) -> None:
    assert start(4, sends_before_a_collective, on=four(hosts), deadline_s=8).values() == [[0.0], [1.0]] * 2


def waits_after_another_left(comm: Communicator, in_part: bool) -> int:
    """Rank 1 leaves a group, then rank 0 is killed, for which rank 2 waits; return the rank that it names."""
    group = comm.split(0) if in_part else comm
    assert group is not None
    group.barrier()
    if comm.rank == 1:
        group.close()
        tell(comm, "left")
        wait_for(comm.store, "end")
    if comm.rank == 0:
        wait_for(comm.store, "end")
    try:
        if comm.rank == 2:
            group.sendrecv(None, np.zeros(9), 0, 2)
    except PeerLostError as error:
        return error.rank
    return -1


@pytest.mark.parametrize("in_part", [False, True])
def test_a_killed_rank_is_named_although_another_has_left(start: Start, hosts: list[str], in_part: bool) -> None:
    job = start(3, waits_after_another_left, in_part, on=[hosts[0], hosts[0], hosts[1]])
    job.hear("left", 1)
    job.signal(0, signal.SIGKILL)
    assert job.values(2) == [0]
    job.store.set("end", b"")


def loses_its_first_rank(reported_s: float) -> None:
    """Join a part whose rank 0 is gone, which the group's monitor reports after ``reported_s``."""
    began = time.monotonic()

    def look() -> None:
        if time.monotonic() - began > reported_s:
            raise PeerLostError(0, "its process ended")

    address = " ".join(["unix:blink-nobody-is-here", "0" * 64]).encode()
    part(lambda _: [address, b""], (0, 1), 1, began + 15, look)


@pytest.mark.parametrize(("reported_s", "error"), [(0.3, PeerLostError), (20, PlanMismatchError)])
def test_a_part_names_its_killed_first_rank(reported_s: float, error: type[BlinkError]) -> None:
    with pytest.raises(error):
        loses_its_first_rank(reported_s)


def opens_again_and_again(comm: Communicator) -> list[int]:
    """Return the number of open files after each of some communicators; the first call opens those of the process."""
    counts = []
    for _ in range(3):
        part = comm.split(0)
        assert part is not None
        part.allreduce(np.ones(100_000))
        part.send(np.ones(9), (comm.rank + 2) % 4, wait=False)
        part.recv(np.ones(9), (comm.rank + 2) % 4)
        part.close()
        comm.barrier()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts


def test_a_closed_communicator_leaves_no_file(start: Start, hosts: list[str]) -> None:
    for counts in start(4, opens_again_and_again, on=four(hosts)).values():
        assert counts[1:] == counts[:1] * 2, counts
    assert not [name for name in os.listdir("/dev/shm") if "blink" in name]
