"""AllReduce by a ring and by two trees, over send and recv, against the library's own.

    python benchmarks/ring_against_library.py [--nproc 4] [--sizes 4K,256K,4M,64M] [--chunk 1M] [--json]
    torchrun --nproc-per-node 8 benchmarks/ring_against_library.py

The first form starts the processes itself. Ours are ordinary Programs (a ring's forest and that of double binary
trees, lowered), run by ``engines/torch_p2p``. All results are checked in every element, on data whose sum is exact in
any order. A time is the median over the iterations of the slowest rank's; plans and library take turns. Exit 1 if
any result was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NoReturn

import torch
import torch.distributed as dist

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.spec import Collective
from blinkccl.engines.torch_p2p import TorchP2P
from blinkccl.errors import CommunicationError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.units import algbw_gb_per_s, bus_factor, parse_bytes

#: Our plans: a name, the algorithm, and the topology.
PLANS = {"ring": ("ring", "ring"), "trees": ("double_binary_tree", "clique")}
#: Options that every rank gets; the launcher has a --nproc of its own.
PASSED = ("sizes", "backend", "chunk", "iterations", "warmup", "timeout")


@dataclass(frozen=True, slots=True)
class Row:
    """One plan at one size, or the library ("library"); bandwidths in GB/s.

    ``ratio`` is its time over the library's; ``wrong`` counts elements over all ranks and runs.
    """

    size_bytes: int
    plan: str
    ms: float
    algbw: float
    busbw: float
    ratio: float
    wrong: int


def program(name: str, ranks: int) -> Program:
    """A plan of :data:`PLANS` for ``ranks`` ranks."""
    how, family = PLANS[name]
    topology = parse_spec(f"{family}:{ranks}" if ranks > 2 else f"chain:{ranks}")
    return lower(algorithm(how).plan(Request(topology, Collective("allreduce", ranks), topology.ranks)))


def measure(executions: dict[str, TorchP2P], size_bytes: int, options: argparse.Namespace) -> list[Row]:
    """Check and time one size, on all ranks at once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = size_bytes // 4
    pattern = torch.arange(count, dtype=torch.int64) % 97
    values = (pattern + rank).to(torch.float32)
    expected = (ranks * pattern + ranks * (ranks - 1) // 2).to(torch.float32)
    tensor = torch.empty_like(values)

    def ours(execution: TorchP2P) -> Callable[[], object]:
        call = CollectiveCall("allreduce", "float32", count)
        options_of_call = {"chunk_bytes": options.chunk_bytes, "deadline_s": options.timeout}
        return lambda: execution.run(call, tensor, tensor, **options_of_call)

    calls = {name: ours(execution) for name, execution in executions.items()}
    calls["library"] = lambda: dist.all_reduce(tensor)
    wrong = torch.zeros(len(calls), dtype=torch.int64)
    taken = torch.zeros(len(calls), options.iterations, dtype=torch.float64)
    for iteration in range(-options.warmup, options.iterations):
        for which, call in enumerate(calls.values()):
            tensor.copy_(values)
            dist.barrier()  # all ranks begin at about the same time
            began = time.perf_counter()
            call()
            if iteration >= 0:
                taken[which, iteration] = time.perf_counter() - began
            wrong[which] += (tensor != expected).sum()
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    dist.all_reduce(wrong)
    seconds = [statistics.median(times) for times in taken.tolist()]
    factor = float(bus_factor("allreduce", ranks))
    algbw = [algbw_gb_per_s(count * 4, one) for one in seconds]
    return [
        Row(count * 4, name, one * 1e3, reached, reached * factor, one / seconds[-1], int(bad))
        for name, one, reached, bad in zip(calls, seconds, algbw, wrong.tolist(), strict=True)
    ]


def report(rows: list[Row], options: argparse.Namespace) -> None:
    """Print the table, or one JSON object."""
    ranks = dist.get_world_size()
    if options.json:
        settings = {"backend": options.backend, "ranks": ranks, "chunk_bytes": options.chunk_bytes}
        lines = [asdict(row) for row in rows]
        print(json.dumps({"schema_version": 2, **settings, "torch": torch.__version__, "rows": lines}, indent=1))
        return
    print(f"allreduce float32 sum, {ranks} ranks, {options.backend}, torch {torch.__version__}; bandwidths in GB/s")
    print(f"{'bytes':>12}  {'plan':<8} {'ms':>11} {'algbw':>8} {'busbw':>8}  {'/ library':>9}  wrong")
    for row in rows:
        bandwidths = f"{row.ms:11.3f} {row.algbw:8.3f} {row.busbw:8.3f}"
        print(f"{row.size_bytes:12}  {row.plan:<8} {bandwidths}  {row.ratio:9.2f}  {row.wrong}")


def arguments() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        description="AllReduce by ring and trees over send and recv against the library's own."
    )
    parser.add_argument("--nproc", type=int, default=4, help="processes to start, without torchrun (default 4)")
    parser.add_argument("--sizes", default="4K,256K,4M,64M", help="bytes, comma-separated (default %(default)s)")
    parser.add_argument("--backend", default="gloo", help="gloo, mpi or ucc (default gloo)")
    parser.add_argument("--chunk", default="1M", help="bytes per message (default %(default)s)")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one call (default 60)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        options.chunk_bytes = parse_bytes(options.chunk)
        options.bytes = [parse_bytes(text) for text in options.sizes.split(",")]
    except ValueError as error:
        parser.error(str(error))
    if options.nproc < 2 or options.iterations < 1 or options.chunk_bytes < 1 or min(options.bytes) < 4:
        parser.error("--nproc must be at least 2, --iterations and --chunk 1, and sizes 4")
    return options


def start_ranks(options: argparse.Namespace) -> NoReturn:
    """Become PyTorch's launcher, which starts this script once per rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={options.nproc}"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost"]
    passed = [f"--{name}={getattr(options, name)}" for name in PASSED] + ["--json"] * options.json
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(sys.executable, [*launcher, *rendezvous, os.path.abspath(__file__), *passed])


def main() -> int:
    """Start the processes, or be one of them."""
    options = arguments()
    if "RANK" not in os.environ:
        start_ranks(options)
    dist.init_process_group(options.backend)
    try:
        ranks = dist.get_world_size()
        sides = {name: TorchP2P(program(name, ranks), dist.group.WORLD) for name in PLANS}
        rows = [row for size in options.bytes for row in measure(sides, size, options)]
    except CommunicationError as error:
        print(f"rank {dist.get_rank()}: {error}", file=sys.stderr)
        return 4
    if dist.get_rank() == 0:
        report(rows, options)
    dist.destroy_process_group()
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
