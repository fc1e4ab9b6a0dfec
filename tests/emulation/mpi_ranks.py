"""A rank of an MPI job whose ranks claim to be on two hosts (test_mpi_network.py).

mpirun -np 3 python mpi_ranks.py [kill]
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import blinkccl
from blinkccl.errors import PeerLostError
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.spanning_group import SpanningGroup


def main() -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ |= {"BLINK_HOSTID": "a" if rank == 0 else "b", "BLINK_NETWORK": "mpi"}
    comm = blinkccl.init(deadline_s=30)
    assert isinstance(comm.group, SpanningGroup)
    if sys.argv[1:] == ["kill"]:
        killed(comm)
    else:
        all_at_once(comm)
        part = comm.split(None if rank == 1 else 0)  # a rank of each host
        if part is not None:
            all_at_once(part)
            part.close()
        comm.close()
    print(f"rank {rank} is done", flush=True)


def all_at_once(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    inputs = [np.random.default_rng(peer).integers(-9, 9, 300_001) for peer in range(size)]
    sums = [comm.allreduce(inputs[rank] + turn, wait=False) for turn in range(3)]
    gathered = comm.allgather(inputs[rank][:999])
    got = np.empty(5000, np.int64)
    sent = comm.send(inputs[rank][:5000].copy(), (rank + 1) % size, tag=3, wait=False)
    assert comm.recv(got, tag=3) == (rank - 1) % size
    assert np.array_equal(got, inputs[rank - 1][:5000])
    assert np.array_equal(gathered.reshape(size, -1), [each[:999] for each in inputs])
    for turn, each in enumerate(sums):
        assert np.array_equal(each.result(30), sum(inputs) + turn * size)
    sent.result(30)


def killed(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 2:
        os._exit(0)  # neither a signal nor an error: mpirun would end the others before they can report
    began, lost = time.monotonic(), None
    while lost is None:
        try:
            comm.allreduce(np.ones(300_000, np.float32))
        except PeerLostError as error:
            lost = error.rank
    assert lost == 2
    assert time.monotonic() - began < 10
    print(f"rank {comm.rank} is done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
