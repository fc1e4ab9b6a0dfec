"""Shared memory: private to its user, unnamed, freed after any end, not in /dev/shm; and no growth."""

import os
import random
import signal
import socket
import stat
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from job import PATIENT_S, Ran, Start, tell, wait_for

import blinkccl
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.runtime.bootstrap import Published
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.heap import process_heap


def own_memory() -> dict[int, tuple[str, int]]:
    """Return inode → (name, mode) of this process's memory files of Blink, by its descriptors."""
    files = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name, row = os.readlink(entry), entry.stat()
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if name.startswith("/memfd:blink-"):
            files[row.st_ino] = (name, stat.S_IMODE(row.st_mode))
    return files


def holders(inodes: set[int]) -> list[str]:
    """Return the visible processes that have one of these files open or mapped."""
    places = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for entry in (process / "fd").iterdir():
                if os.readlink(entry).startswith("/memfd:blink-") and entry.stat().st_ino in inodes:
                    places.append(str(entry))
            for line in (process / "maps").read_text(errors="replace").splitlines():
                fields = line.split()
                if "memfd:blink-" in line and int(fields[4]) in inodes:
                    places.append(f"{process}: {line}")
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return places


def shows_its_memory(comm: Communicator) -> dict[int, tuple[str, int]]:
    array = blinkccl.empty(500_000)
    comm.allreduce(array)
    files = own_memory()
    tell(comm, "ready")
    wait_for(comm.store, "seen")
    return files


def test_memory_is_private_and_has_no_name(start: Start, tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    job = start(3, shows_its_memory)
    job.hear("ready")
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "blink" in name]
    (path,) = tmp_path.glob("job0/*bootstrap*")
    name = msgspec.msgpack.decode(path.read_bytes(), type=Published).places[0].removeprefix("unix:")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late, pytest.raises(ConnectionRefusedError):
        late.connect(f"\0{name}")
    job.store.set("seen", b"")
    for memory in job.values():
        assert len(memory) == 4, "the segment, and a heap per rank"
        for name, mode in memory.values():
            assert mode == 0o600
            assert name.endswith("(deleted)"), "no directory has it"


def waits_for_its_end(comm: Communicator) -> None:
    array = blinkccl.empty(3_000_000)
    array[:] = 1
    inodes = ",".join(map(str, own_memory()))
    comm.store.set(f"inodes/{comm.rank}", inodes.encode())
    tell(comm, "working")
    while True:
        comm.allreduce(array)


def test_nothing_is_left_when_all_ranks_are_killed_at_once(start: Start) -> None:
    before = set(os.listdir("/dev/shm"))
    job = start(3, waits_for_its_end)
    job.hear("working")
    inodes = {int(i) for rank in range(3) for i in wait_for(job.store, f"inodes/{rank}").split(b",")}
    assert len(inodes) == 4
    assert len(holders(inodes)) >= 3 * 4
    for rank in range(3):
        job.signal(rank, signal.SIGKILL)
    job.outcomes()
    assert holders(inodes) == []
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "blink" in name]


def closes_and_counts(comm: Communicator, rounds: int) -> dict[str, int]:
    """Groups that are created and closed leave no descriptors, threads or mappings."""

    def one() -> None:
        part = comm.split(0)
        part.allreduce(np.ones(100), wait=False).result(PATIENT_S)
        sent = part.send(np.ones(9), (part.rank + 1) % part.size, wait=False)
        part.recv(np.ones(9))
        sent.result(PATIENT_S)
        part.close()

    one()
    before = resources()
    for _ in range(rounds):
        one()
    return growth(before)


def test_groups_leave_nothing_behind_when_they_are_closed(ran: Ran) -> None:
    for grown in ran(3, closes_and_counts, 8):
        assert (grown["descriptors"], grown["threads"], grown["mapped memory of ours"]) == (0, 0, 0)


def test_arrays_in_shared_memory_give_their_pages_back(ran: Ran) -> None:
    (grown,) = ran(1, makes_arrays)
    assert grown < 32 << 20


def makes_arrays(comm: Communicator) -> int:
    """Return the growth of the system's memory for this process in bytes, after 12 × 64 MiB."""
    used = []
    for _ in range(12):
        array = blinkccl.empty(16 << 20)
        array[:] = 1
        del array
        used.append(comm.memory_bytes()["heap_used"])
    assert used == [0] * 12
    return os.fstat(process_heap().fd).st_blocks * 512


def resources() -> dict[str, int]:
    """Return this process's resources: bytes of private memory, descriptors, threads."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "anonymous bytes": int(fields["RssAnon"].split()[0]) << 10,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "mapped memory of ours": Path("/proc/self/maps").read_text().count("memfd:blink-"),
    }


def growth(before: dict[str, int]) -> dict[str, int]:
    return {what: number - before[what] for what, number in resources().items()}


def many_calls(comm: Communicator, calls: int, warm: int) -> dict[str, int]:
    """Return the growth of each resource between the ``warm``-th call and the last."""
    plan = random.Random(1)
    shared = blinkccl.empty(200_000, "float32")
    before: dict[str, int] = {}
    for number in range(calls):
        if number == warm:
            before = resources()
        count = int(2 ** plan.uniform(0, 15))
        name = plan.choice([name for name in COLLECTIVES if name != "sendrecv"])
        collective = CollectiveCall(name, "float32", count, root=plan.randrange(comm.size)).among(comm.size)
        into, out = collective.input_blocks(comm.rank), collective.output_blocks(comm.rank)
        send = shared[: into * count] if plan.random() < 0.3 else np.ones(into * count, np.float32)
        recv = np.empty(out * count, np.float32) if out else None
        root = collective.root or 0
        wait = plan.random() < 0.7
        done = comm._call((name, "sum", root, 0), send if into else None, recv, wait=wait)
        if not wait:
            done.result(PATIENT_S)
        if number % 10 == 0:
            peer = (comm.rank + 1) % comm.size
            sent = comm.send(np.ones(count), peer, wait=False)
            comm.recv(np.empty(count))
            sent.result(PATIENT_S)
    return growth(before)


def test_nothing_grows_with_the_number_of_calls(ran: Ran) -> None:
    """There are more sizes than cached prepared calls, so that the oldest are freed too.

    The full length: ``BLINK_LEAK_CALLS=10000 pytest tests/emulation/test_memory.py``.
    """
    for grown in ran(3, many_calls, int(os.environ.get("BLINK_LEAK_CALLS", "2500")), 1300):
        assert grown["descriptors"] == 0
        assert grown["threads"] == 0
        assert grown["mappings"] <= 8
        assert grown["anonymous bytes"] < 8 << 20, grown
