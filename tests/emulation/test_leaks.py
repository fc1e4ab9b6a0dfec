"""Nothing grows: memory, descriptors and threads after many collectives of random sizes.

The full length: ``BLINK_LEAK_CALLS=10000 pytest tests/emulation/test_leaks.py``.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
from job import PATIENT_S, Ran

import blinkccl
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.runtime.communicator import Communicator


def resources() -> dict[str, int]:
    """What this process holds: bytes of memory of its own, descriptors, threads."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "anonymous bytes": int(fields["RssAnon"].split()[0]) << 10,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
    }


def many_calls(comm: Communicator, calls: int, warm: int) -> dict[str, int]:
    """How much each has grown between the ``warm``-th call and the last."""
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
    after = resources()
    return {what: after[what] - before[what] for what in after}


def test_nothing_grows_with_the_number_of_calls(ran: Ran) -> None:
    """More different sizes than prepared calls are kept, so that the oldest are given up, too."""
    for grown in ran(3, many_calls, int(os.environ.get("BLINK_LEAK_CALLS", "2500")), 1300):
        assert grown["descriptors"] == 0
        assert grown["threads"] == 0
        assert grown["mappings"] <= 8
        assert grown["anonymous bytes"] < 8 << 20, grown
