"""The post "NCCL ring vs tree" as a program: AllReduce by a ring and by two trees, over torch's send and receive.

    torchrun --nproc-per-node 4 -m reproduction.send_and_recv [--sizes 4K,256K,4M] [--iterations 5]

Each rank executes its own roles in the order of their ticks, so the bits equal those of the reference engine. A time is
the median of the slowest rank's. The last column is gloo's own AllReduce. Exit 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import Collective
from blinkccl.engines import reference
from blinkccl.engines.buffers import Arithmetic, RankBuffers, execute, role_views
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.units import parse_bytes

#: Algorithm and topology by name.
PLANS = {"ring": ("ring", "ring"), "trees": ("double_binary_tree", "clique")}
CHUNK_BYTES = 1 << 20


def program(name: str, ranks: int) -> Program:
    """A plan of :data:`PLANS` for ``ranks`` ranks."""
    how, family = PLANS[name]
    topology = parse_spec(f"{family}:{ranks}" if ranks > 2 else f"chain:{ranks}")
    return lower(algorithm(how).plan(Request(topology, Collective("allreduce", ranks), topology.ranks)))


def run(program: Program, rank: int, data: NDArray[np.float32]) -> None:
    """Reduce ``data`` in place over the ranks of the default process group; all ranks call it."""
    call = CollectiveCall("allreduce", "float32", len(data))
    values = Arithmetic.of(program.collective, call, None)
    bound = bind(program, len(data), data.itemsize, CHUNK_BYTES)
    ranks = len(program.ranks)
    buffers = RankBuffers((data,) * ranks, (data,) * ranks)
    roles = [role for role in program.roles if role.rank == rank]
    views = [role_views(bound, buffers, role, values) for role in roles]
    leaving = []
    for place, _, span in bound.executions(roles):
        messages = []
        for queue in roles[place].receives:
            message = torch.empty(span.stop - span.start)
            dist.recv(message, program.queues[queue].src, tag=queue)
            messages.append(message.numpy())
        value = execute(roles[place], views[place], span, messages, values)
        for queue in roles[place].sends:
            sent = torch.from_numpy(value.copy())
            leaving.append((dist.isend(sent, program.queues[queue].dst, tag=queue), sent))
    for work, _ in leaving:
        work.wait()


def measure(count: int, iterations: int) -> bool:
    """Print the times of ``count`` elements; False if a result has other bits than the reference engine's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs = [np.random.default_rng(each).standard_normal(count, np.float32) for each in range(ranks)]
    call, right, line = CollectiveCall("allreduce", "float32", count), True, f"{count * 4:12}"
    for name in (*PLANS, "library"):
        plan = program(name, ranks) if name in PLANS else None
        expected = None if plan is None else reference.run(plan, inputs, call, chunk_bytes=CHUNK_BYTES)[rank]
        seconds = torch.zeros(iterations, dtype=torch.float64)
        for turn in range(iterations):
            data = inputs[rank].copy()
            dist.barrier()
            began = time.perf_counter()
            if plan is None:
                dist.all_reduce(torch.from_numpy(data))
            else:
                run(plan, rank, data)
            seconds[turn] = time.perf_counter() - began
            right = right and (expected is None or data.tobytes() == expected.tobytes())
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        line += f"{statistics.median(seconds.tolist()) * 1e3:12.3f}"
    if rank == 0:
        print(line)
    wrong = torch.tensor([not right], dtype=torch.int32)
    dist.all_reduce(wrong)
    return not wrong.item()


def main() -> int:
    """Run one rank of ``torchrun``."""
    parser = argparse.ArgumentParser(description="AllReduce by ring and trees over send and receive.")
    parser.add_argument("--sizes", default="4K,256K,4M", help="bytes, comma-separated (default %(default)s)")
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(f"ms among {dist.get_world_size()} ranks\n{'bytes':>12}{'ring':>12}{'trees':>12}{'library':>12}")
    right = [measure(parse_bytes(size) // 4, options.iterations) for size in options.sizes.split(",")]
    dist.destroy_process_group()
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
