"""Ranks of two hosts (HOST_INDEX) for test_bad_hosts.py: "0,1/2" are the ranks of each host that join.

python bad_hosts.py RANKS/RANKS SIZE PORT DEADLINE_S
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from blinkccl.errors import BlinkError
from blinkccl.runtime.bootstrap import join
from blinkccl.runtime.store import JobPort


def main() -> None:
    ranks, size, port, wait_s = sys.argv[1].split("/"), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    mine = [int(rank) for rank in ranks[int(os.environ["HOST_INDEX"])].split(",") if rank]
    threads = [threading.Thread(target=one, args=(rank, size, port, wait_s)) for rank in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one(rank: int, size: int, port: int, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    try:
        with join(JobPort(os.environ["MASTER_ADDR"], port), "job", rank, size, deadline) as end:
            text = f"met {len({peer.host for peer in end.peers})} hosts"
    except BlinkError as error:
        text = f"{type(error).__name__}: {error}"
    row = {"host": os.environ["HOST_INDEX"], "rank": rank, "text": text, "late_s": time.monotonic() - deadline}
    sys.stdout.write(json.dumps(row) + "\n")  # in one write, unlike print, because ranks are threads
    sys.stdout.flush()


if __name__ == "__main__":
    main()
