"""Cost of small calls through torch: Blink beside gloo and torch's backend "fake", which sends nothing, in turns.

    torchrun --standalone --nproc-per-node 2 benchmarks/torch_calls.py [--size 4096] [--rounds 25] [--calls 100]

A block is ``--calls`` calls of one backend after a barrier, and a round has a block of each backend. Times are
microseconds of rank 0, medians over the rounds. "Above fake" is the median of the differences within a round: the cost
that a backend can change, in wall time and in processor time of all threads, which other programs change less. "Wakes"
counts how often a call of Blink was left to another thread of its process, per call.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.testing._internal.distributed.fake_pg  # registers "fake"

import blinkccl

BACKENDS = ("blink", "fake", "gloo")
#: torch's own names, which are older than the documented ones.
OPS = torch.ops._c10d_functional


def calls(group: dist.ProcessGroup, elements: int) -> dict[str, Callable[[], Any]]:
    """Each kind of call on ``group``, by name."""
    size, name = dist.get_world_size(group), group.group_name
    tensor, gathered = torch.zeros(elements), torch.zeros(elements * size)
    several = [torch.zeros(elements) for _ in range(4)]

    def reduced(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor + 1, "sum", group) * 2

    compiled = torch.compile(reduced, fullgraph=True)

    def together() -> None:
        with dist._coalescing_manager(group, async_ops=True) as manager:
            for each in several:
                dist.all_reduce(each, group=group)
        manager.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(gathered, tensor, group=group),
        "barrier": lambda: dist.barrier(group=group),
        "async all_reduce": lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(),
        "async all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
            gathered, tensor, group=group, async_op=True
        ).wait(),
        "functional all_reduce": lambda: functional.wait_tensor(functional.all_reduce(tensor, "sum", group)),
        "functional all_gather": lambda: functional.wait_tensor(functional.all_gather_tensor(tensor, 0, group)),
        "functional reduce_scatter": lambda: functional.wait_tensor(
            functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        ),
        "op all_reduce": lambda: OPS.wait_tensor(OPS.all_reduce(tensor, "sum", name)),
        "op all_gather_into_tensor": lambda: OPS.wait_tensor(OPS.all_gather_into_tensor(tensor, size, name)),
        "compiled all_reduce": lambda: compiled(tensor),
        "eager twin of it": lambda: reduced(tensor) + 0,
        "4 coalesced all_reduce": together,
        "functional all_reduce of 4": lambda: [
            functional.wait_tensor(each) for each in functional.all_reduce_coalesced(several, "sum", group)
        ],
    }


def block_us(call: Callable[[], Any], number: int) -> tuple[float, float]:
    """Microseconds, wall and processor time, of one of ``number`` calls after a barrier."""
    dist.barrier()
    begun, processor = time.perf_counter(), time.process_time()
    for _ in range(number):
        call()
    took = time.perf_counter() - begun, time.process_time() - processor
    return took[0] / number * 1e6, took[1] / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure small calls of torch.distributed.")
    parser.add_argument("--size", type=int, default=4096, help="bytes of a rank's tensor")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=100, help="per block")
    parser.add_argument("--only", default="", help="a part of the names of calls")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames its functions
    dist.init_process_group("blink")
    of = {backend: calls(dist.new_group(backend=backend), options.size // 4) for backend in BACKENDS}
    if dist.get_rank() == 0:
        print(f"{options.size} bytes, {dist.get_world_size()} ranks; microseconds")
        print(f"{'':54}  {'above fake: blink':>20}  {'gloo':>16}")
        print(f"{'call':30}{'blink':>8}{'fake':>8}{'gloo':>8}" + 2 * f"  {'wall':>8}{'processor':>11}" + "  wakes")
    for name in (name for name in of["blink"] if options.only in name):
        for backend in BACKENDS:
            block_us(of[backend][name], 10)
        before = blinkccl.torch.stats().get("thread_wakes", 0)
        rounds = [
            {backend: block_us(of[backend][name], options.calls) for backend in BACKENDS} for _ in range(options.rounds)
        ]
        wakes = (blinkccl.torch.stats().get("thread_wakes", 0) - before) / options.rounds / options.calls
        if dist.get_rank() == 0:
            times = "".join(f"{median(each[backend][0] for each in rounds):8.1f}" for backend in BACKENDS)
            above = "".join(
                f"  {median(each[backend][0] - each['fake'][0] for each in rounds):8.1f}"
                f"{median(each[backend][1] - each['fake'][1] for each in rounds):11.1f}"
                for backend in ("blink", "gloo")
            )
            print(f"{name:30}{times}{above}  {wakes:5.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
