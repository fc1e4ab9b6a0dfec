"""A ring AllReduce over send and recv against the library's own: gloo on CPUs, NCCL on GPUs.

    python benchmarks/ring_against_library.py [--nproc 4] [--sizes 4K,256K,4M,64M] [--chunk 1M] [--json]
    torchrun --nproc-per-node 8 benchmarks/ring_against_library.py --backend nccl

The first form starts the processes itself. Ours is a Program like any other (the ring's forest, lowered), run by
``engines/torch_p2p``. Both results are checked in every element, on data whose sum is exact in any order. A time is the
median over the iterations of the slowest rank's; ring and library take turns. Exit 1 if anything was wrong.
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

from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.collectives.spec import Collective
from blinkccl.engines.torch_p2p import TorchP2P
from blinkccl.errors import CommunicationError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from blinkccl.units import algbw_gb_per_s, bus_factor, parse_bytes

#: Options that every rank gets; the launcher would take --nproc for its own.
PASSED = ("sizes", "backend", "chunk", "ahead", "iterations", "warmup", "timeout")


@dataclass(frozen=True, slots=True)
class Row:
    """One size; bandwidths in GB/s, ``ratio`` is ring time / library time, ``wrong`` counts elements of both."""

    size_bytes: int
    ring_ms: float
    library_ms: float
    ring_algbw: float
    ring_busbw: float
    library_algbw: float
    library_busbw: float
    ratio: float
    wrong: int


def ring_program(ranks: int) -> Program:
    """The ring in one direction through ``ranks`` ranks."""
    topology = parse_spec(f"ring:{ranks}" if ranks > 2 else f"chain:{ranks}")
    return lower(algorithm("ring").plan(Request(topology, Collective("allreduce", ranks), topology.ranks)))


def measure(execution: TorchP2P, size_bytes: int, device: torch.device, options: argparse.Namespace) -> Row:
    """Checks and times one size, on all ranks at once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = size_bytes // 4
    pattern = torch.arange(count, dtype=torch.int64, device=device) % 97
    given = (pattern + rank).to(torch.float32)
    expected = (ranks * pattern + ranks * (ranks - 1) // 2).to(torch.float32)
    tensor = torch.empty_like(given)
    calls: list[Callable[[], object]] = [
        lambda: execution.run(tensor, tensor, count, "sum", options.chunk_bytes, deadline_s=options.timeout),
        lambda: dist.all_reduce(tensor),
    ]
    wrong = 0
    taken = torch.zeros(2, options.iterations, dtype=torch.float64)
    for iteration in range(-options.warmup, options.iterations):
        for which, call in enumerate(calls):
            tensor.copy_(given)
            settle(device)
            began = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if iteration >= 0:
                taken[which, iteration] = time.perf_counter() - began
            wrong += int((tensor != expected).sum())
    slowest, total = taken.to(device), torch.tensor(wrong, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    ring_s, library_s = (statistics.median(times) for times in slowest.tolist())
    bandwidths = [algbw_gb_per_s(count * 4, seconds) for seconds in (ring_s, library_s)]
    bus = float(bus_factor("allreduce", ranks))
    return Row(
        count * 4,
        ring_s * 1e3,
        library_s * 1e3,
        bandwidths[0],
        bandwidths[0] * bus,
        bandwidths[1],
        bandwidths[1] * bus,
        ring_s / library_s,
        int(total),
    )


def settle(device: torch.device) -> None:
    """All ranks begin at about the same time."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(rows: list[Row], options: argparse.Namespace) -> None:
    """Prints the table, or one JSON object."""
    ranks = dist.get_world_size()
    if options.json:
        settings = {"backend": options.backend, "ranks": ranks, "chunk_bytes": options.chunk_bytes}
        lines = [asdict(row) for row in rows]
        print(json.dumps({"schema_version": 1, **settings, "torch": torch.__version__, "rows": lines}, indent=1))
        return
    print(f"allreduce float32 sum, {ranks} ranks, {options.backend}, torch {torch.__version__}; bandwidths in GB/s")
    print(f"{'':>12}  {'ring over send/recv':^29}  {'library':^29}  {'ring /':>8}")
    columns = f"{'ms':>11} {'algbw':>8} {'busbw':>8}"
    print(f"{'bytes':>12}  {columns}  {columns}  {'library':>8}  wrong")
    for row in rows:
        ring = f"{row.ring_ms:11.3f} {row.ring_algbw:8.3f} {row.ring_busbw:8.3f}"
        library = f"{row.library_ms:11.3f} {row.library_algbw:8.3f} {row.library_busbw:8.3f}"
        print(f"{row.size_bytes:12}  {ring}  {library}  {row.ratio:8.2f}  {row.wrong}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Ring AllReduce over send and recv against the library's own.")
    parser.add_argument("--nproc", type=int, default=4, help="processes to start, without torchrun (default 4)")
    parser.add_argument("--sizes", default="4K,256K,4M,64M", help="bytes, comma-separated (default %(default)s)")
    parser.add_argument("--backend", default="gloo", help="gloo or nccl (default gloo)")
    parser.add_argument("--chunk", default="1M", help="bytes per message (default %(default)s)")
    parser.add_argument("--ahead", type=int, default=1, help="rounds a message may take (default 1)")
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
    """Becomes PyTorch's launcher, which starts this script once per rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={options.nproc}"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost"]
    given = [f"--{name}={getattr(options, name)}" for name in PASSED] + ["--json"] * options.json
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(sys.executable, [*launcher, *rendezvous, os.path.abspath(__file__), *given])


def main() -> int:
    """Starts the processes, or is one of them."""
    options = arguments()
    if "RANK" not in os.environ:
        start_ranks(options)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if options.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    try:
        execution = TorchP2P(ring_program(dist.get_world_size()), device=device, ahead=options.ahead)
        rows = [measure(execution, size, device, options) for size in options.bytes]
    except CommunicationError as error:
        print(f"rank {dist.get_rank()}: {error}", file=sys.stderr)
        return 4
    if dist.get_rank() == 0:
        report(rows, options)
    dist.destroy_process_group()
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
