"""Random kills of ranks at random moments: all others must report the killed rank in time.

    python benchmarks/kills.py [-n 1000] [--seed 0] [--limit 2.0] [--only "shared arrays"]
    sudo python benchmarks/kills.py --hosts [-n 200]

Each kill has a job of its own: 2 to 5 processes repeat one of the activities below, and one of them gets SIGKILL. All
others must raise PeerLostError with its rank. With ``--hosts`` they are on two hosts, the network namespaces of
benchmarks/several_hosts.py. The table has the time from the signal to the last error, by activity.
Exit code 1: an error was missing or wrong, or later than the limit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import several_hosts

import blinkccl
from blinkccl.errors import PeerLostError
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.store import FileStore

CONTEXT = multiprocessing.get_context("forkserver")
#: Timeout of all waits; a rank that does not detect a kill reaches it.
DEADLINE_S = 20.0
#: Largest random delay of a kill after the moment that it is aimed at.
SPREAD_S = {"while the group is made": 0.1}
DEFAULT_SPREAD_S = 0.15

# ---- activities of ranks


def small(comm: Communicator, rng: random.Random) -> None:
    comm.allreduce(np.ones(rng.randrange(1, 500), np.float32))


def large(comm: Communicator, rng: random.Random) -> None:
    comm.allreduce(np.ones(rng.randrange(100_000, 2_000_000), np.float32))


def shared(comm: Communicator, rng: random.Random) -> None:
    array = blinkccl.empty(rng.randrange(100_000, 2_000_000))
    comm.allreduce(array)
    comm.allgather(array[: array.size // 4])


def rooted(comm: Communicator, rng: random.Random) -> None:
    comm.broadcast(np.ones(rng.randrange(1, 300_000)), rng.randrange(comm.size))
    comm.reduce(np.ones(rng.randrange(1, 300_000)), root=rng.randrange(comm.size))


def asynchronous(comm: Communicator, rng: random.Random) -> None:
    futures = [comm.allreduce(np.ones(rng.randrange(1, 200_000)), wait=False) for _ in range(4)]
    for future in futures:
        future.result(2 * DEADLINE_S)


def messages(comm: Communicator, rng: random.Random) -> None:
    array = np.ones(rng.randrange(1, 60_000))
    sent = comm.send(array, (comm.rank + 1) % comm.size, wait=False)
    comm.recv(np.empty_like(array), (comm.rank - 1) % comm.size)
    sent.result(2 * DEADLINE_S)


def mixed(comm: Communicator, rng: random.Random) -> None:
    rng.choice((small, large, shared, rooted, asynchronous, messages))(comm, rng)


def parts(comm: Communicator, rng: random.Random) -> None:
    part = comm.split(0)
    assert part is not None
    try:
        part.allreduce(np.ones(100))
    finally:
        part.close()


def apart(comm: Communicator, rng: random.Random) -> None:
    """Time passes between calls, more of it on other ranks than the first."""
    time.sleep(0.02 * comm.rank)
    comm.barrier()


WORK: dict[str, Callable[[Communicator, random.Random], None]] = {
    "small collectives": small,
    "large collectives": large,
    "shared arrays": shared,
    "rooted collectives": rooted,
    "several under way": asynchronous,
    "messages": messages,
    "all of these": mixed,
    "parts made and closed": parts,
    "between calls": apart,
    "while the group is made": mixed,
}


def rank_until_lost(
    connection: Connection, directory: Path, rank: int, size: int, work: str, seed: int, host: str | None
) -> None:
    """Run a rank until an error; send the lost rank and the time, or the other error."""
    lost, other = -1, ""
    try:
        if host is not None:
            several_hosts.enter(host)
        store = FileStore(directory) if host is None else several_hosts.SharedDirectory(directory)
        comm = Communicator.create(store, rank, size, deadline_s=DEADLINE_S)
        store.set(f"working/{rank}", b"")
        rng = random.Random(seed)
        while True:
            WORK[work](comm, rng)
    except PeerLostError as error:
        lost, other = error.rank, str(error)
    except BaseException as error:
        other = f"{type(error).__name__}: {error}"
    connection.send((time.monotonic(), lost, other))


# ---- kills


@dataclass
class Tally:
    """Kills of one kind: seconds to the last error, and faults."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def kill_one(directory: Path, work: str, rng: random.Random, tally: Tally, hosts: Sequence[str]) -> None:
    """Run one job with one kill, on this host or on ``hosts``."""
    size = rng.randrange(2, 6)
    first = rng.randrange(1, size)  # the ranks of the first host
    places = [hosts[rank >= first] if hosts else None for rank in range(size)]
    victim = rng.randrange(size)
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
    seed = rng.randrange(1 << 30)
    ranks = [
        CONTEXT.Process(
            target=rank_until_lost, args=(sender, directory, rank, size, work, seed, places[rank]), daemon=True
        )
        for rank, (_, sender) in enumerate(pipes)
    ]
    try:
        for process, (_, sender) in zip(ranks, pipes, strict=True):
            process.start()
            sender.close()
        # Rank 0 publishes its address, and the others show their presence; then they connect.
        making = work == "while the group is made"
        patterns = {"*bootstrap*": 1, "*here*": size - 1} if making else {"kworking*": size}
        end = time.monotonic() + DEADLINE_S
        while any(len(list(directory.glob(pattern))) < wanted for pattern, wanted in patterns.items()):
            if time.monotonic() > end:
                texts = [f"rank {r}: {receiver.recv()[2]}" for r, (receiver, _) in enumerate(pipes) if receiver.poll()]
                entries = sorted(path.name for path in directory.glob("k*"))
                tally.wrong.append(
                    f"{size} ranks did not start: {texts or 'without a report'}; the store has {entries}"
                )
                return
            time.sleep(0.002)
        time.sleep(rng.uniform(0.05 if making else 0, SPREAD_S.get(work, DEFAULT_SPREAD_S)))
        pid = ranks[victim].pid
        assert pid is not None
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        heard = []
        for rank, (receiver, _) in enumerate(pipes):
            if rank == victim:
                continue
            if not receiver.poll(2 * DEADLINE_S):
                tally.wrong.append(f"rank {rank} of {size} hung after rank {victim} was killed")
                continue
            try:
                at, lost, reason = receiver.recv()
            except EOFError:
                tally.wrong.append(f"rank {rank} of {size} ended without a report after rank {victim} was killed")
                continue
            heard.append(at - killed)
            if lost != victim:
                tally.wrong.append(f"rank {rank} of {size}, rank {victim} killed: {reason}")
        tally.seconds.append(max(heard, default=0.0))
    finally:
        for process, (receiver, _) in zip(ranks, pipes, strict=True):
            if process.pid is not None:
                process.kill()
                process.join(10)
                process.close()
            receiver.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=1000, help="kills (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=WORK, help="activity of jobs (default: all in turn)")
    parser.add_argument("--limit", type=float, default=2.0, help="seconds in which all must have heard (default 2)")
    parser.add_argument("--hosts", action="store_true", help="ranks on two hosts (needs root, ip and tc)")
    arguments = parser.parse_args()
    CONTEXT.set_forkserver_preload(["blinkccl.runtime.communicator", "blinkccl.runtime.store", "several_hosts"])
    rng = random.Random(arguments.seed)
    tallies = {work: Tally() for work in ([arguments.only] if arguments.only else WORK)}
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no namespace behind
    with ExitStack() as undo:
        scratch = undo.enter_context(tempfile.TemporaryDirectory())
        hosts = undo.enter_context(several_hosts.hosts(2, 0)) if arguments.hosts else ()
        for number in range(arguments.n):
            work = list(tallies)[number % len(tallies)]
            kill_one(Path(scratch) / str(number), work, rng, tallies[work], hosts)
            if number == 0:  # the server that forks ranks is there now
                descriptors = len(os.listdir("/proc/self/fd"))
    return report(tallies, arguments.limit, time.monotonic() - began, len(os.listdir("/proc/self/fd")) - descriptors)


def report(tallies: dict[str, Tally], limit: float, took_s: float, descriptors: int) -> int:
    """Print the results; return the exit code."""
    print(f"{'doing':<26}{'kills':>7}{'median':>10}{'99 %':>10}{'max':>10}{'late':>6}{'wrong':>7}")
    rows = {work: tally for work, tally in tallies.items() if tally.seconds}
    every = [second for tally in rows.values() for second in tally.seconds]
    wrongs = [wrong for tally in tallies.values() for wrong in tally.wrong]
    whole = {"all": Tally(every or [0.0], wrongs)}
    for work, tally in (rows | whole).items():
        ordered = sorted(tally.seconds)
        late = sum(second > limit for second in ordered)
        cells = [statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]]
        times = "".join(f"{1e3 * cell:>7.0f} ms" for cell in cells)
        print(f"{work:<26}{len(ordered):>7}{times}{late:>6}{len(tally.wrong):>7}")
    for wrong in whole["all"].wrong[:20]:
        print(f"wrong: {wrong}")
    print(f"{len(every)} kills in {took_s:.0f} s; {descriptors} descriptors more than before")
    return int(bool(whole["all"].wrong) or any(second > limit for second in every))


if __name__ == "__main__":
    sys.exit(main())
