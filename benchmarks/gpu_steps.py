"""The steps of a GPU day (``gpu_day.py``), each run as a process of its own.

    python benchmarks/gpu_steps.py STEP [--quick]

A step prints a line of JSON with rows of a table and verdicts as soon as it has some, so a later failure loses
nothing. Goals are those of an H200.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gpu_grid
import gpu_processes
import gpu_ranks
from cuda_driver import Cuda, CudaError
from gpu_conformance import conformance
from gpu_fold import measure
from gpu_kernels import THREADS
from gpu_litmus import litmus

from blinkccl.cli.exits import HARDWARE as NO_GPU
from blinkccl.codegen.text import WIRES, Kernel, cuda_text
from blinkccl.collectives.spec import Collective
from blinkccl.cost.choice.block_costs import block_gb_per_s, work_of
from blinkccl.errors import BlinkError
from blinkccl.nccl.images import compiler_for
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_gpus, parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request

__all__ = ["NO_GPU", "STEPS"]

LEAST_OF_COPY, MOST_US, LEAST_BLOCKS = 0.90, 10.0, 2
MIB = 1 << 20
#: Environment of all steps. Streams that share one of the GPU's queues wait for each other, which deadlocks if one
#: rank's kernel waits for another's. And a kernel times out before its step.
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "BLINK_TIMEOUT": "20"}

#: Kind (ok; MISSED: a goal of speed; WRONG: a result; FAILED; not measured), and subject.
Verdict = tuple[str, str]


class Found(NamedTuple):
    """A part of a step's result: rows of its table, and verdicts."""

    rows: Sequence[dict[str, Any]]
    verdicts: Sequence[Verdict]


def right(good: bool, words: str) -> Verdict:
    """A verdict on a result."""
    return ("ok" if good else "WRONG", words)


def reached(good: bool, words: str) -> Verdict:
    """A verdict on a goal of speed."""
    return ("ok" if good else "MISSED", words)


def _slowness(cuda: Cuda) -> int:
    """Divisor of sizes: the double of a driver has few multiprocessors and runs at this CPU's speed."""
    return 1 if cuda.multiprocessors >= 20 else 4096


def machine(quick: bool) -> Iterator[Found]:
    cuda = Cuda()
    driver, version = _driver_version(), cuda.driver
    try:
        compiler = compiler_for(cuda.architecture, version[0] * 1000 + version[1] * 10).fingerprint().split("\n")[0]
    except BlinkError as error:
        compiler = f"none: {error}"
    row = {
        "GPU": cuda.name,
        "architecture": cuda.architecture,
        "multiprocessors": cuda.multiprocessors,
        "driver": f"{driver} (CUDA {'.'.join(map(str, version))})",
        "compiler": compiler,
        "commit": _commit(),
    }
    yield Found([row], [("ok", f"{cuda.name}, driver {driver}")])


def torn(quick: bool) -> Iterator[Found]:
    cuda = Cuda()
    pairs = cuda.multiprocessors
    each = (5 * 10**6 if quick else 10**8) // _slowness(cuda) // (pairs * THREADS // 32)
    seen = litmus(cuda, pairs, THREADS, each)
    if seen.rounds == 0:
        yield Found([], [("not measured", "this machine writes no line by one store")])
        return
    words = f"{seen.rounds} rounds: {seen.first} torn lanes at the first look, {seen.second} behind the vote"
    whole = seen.rounds == each * pairs * THREADS // 32
    yield Found([seen._asdict()], [right(seen.second == 0 and whole, words)])


def grid(quick: bool) -> Iterator[Found]:
    cuda = Cuda()
    for size in (2, 8):
        faults = gpu_grid.conformance(cuda, size, 2, counts=(1037,) if quick else (1, 17, 1037, 100_003))
        words = f"{size} ranks in one grid, AllReduce and broadcast on each wire"
        yield Found([], [right(False, one) for one in faults[:10]] or [("ok", words)])


def sanitizer(tool: str) -> Iterator[Found]:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        yield Found([], [("not measured", "no compute-sanitizer on PATH; it comes with the CUDA toolkit")])
        return
    program = [sys.executable, gpu_grid.__file__, "2"]
    ended = subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "9", *program], check=False)
    yield Found([], [right(ended.returncode == 0, f"{tool} of 2 ranks in one grid: exit code {ended.returncode}")])


def latency(quick: bool) -> Iterator[Found]:
    cuda, size, nbytes = Cuda(), 8, 4096
    best = []
    for one in gpu_grid.grids(cuda, [gpu_grid.program_of("allreduce", size, "one_hop")], 1):
        took = gpu_grid.round_s(cuda, one, nbytes // 4, 20 if quick else 500) * 1e6
        best.append(took)
        yield Found([{"ranks": size, "bytes": nbytes, "wire": one.protocol, "us": took}], [])
    words = f"{size} ranks in one grid, {nbytes} bytes, one-hop AllReduce: {min(best):.2f} us (goal: below {MOST_US:g})"
    yield Found([], [reached(min(best) < MOST_US, words)])


def empty(quick: bool) -> Iterator[Found]:
    cuda, size = Cuda(), 8
    for one in gpu_grid.grids(cuda, [gpu_grid.program_of("allreduce", size, "one_hop")], 1):
        took = gpu_grid.round_s(cuda, one, 0, 20 if quick else 500) * 1e6
        words = f"a call of 0 elements by {one.protocol}: {took:.2f} us, which predictions should add to each call"
        yield Found([{"ranks": size, "wire": one.protocol, "us": took}], [("ok", words)])


def wires(quick: bool) -> Iterator[Found]:
    """The rate of the busiest block in a broadcast of two ranks with a block each, and the predicted rate."""
    cuda = Cuda()
    nbytes = (1 if quick else 32) * MIB // _slowness(cuda)
    program = gpu_grid.program_of("broadcast", 2, "one_hop", root=0)
    moves = float(work_of(program).moves.sum(axis=1).max())
    row = {"7": 0, "8": 1, "9": 2}.get(cuda.architecture[3:-1], 3)
    for one in gpu_grid.grids(cuda, [program], 1):
        took = gpu_grid.round_s(cuda, one, nbytes // 4, 2 if quick else 10)
        rate, predicted = moves * nbytes / took / 1e9, block_gb_per_s(one.protocol, row)
        words = f"a block moves {rate:.1f} GB/s by {one.protocol}, predictions say {predicted:.1f}"
        cells = {"wire": one.protocol, "bytes": nbytes, "gb_per_s": rate, "block_costs": predicted}
        yield Found([{**cells, "measured over predicted": rate / predicted}], [("ok", words)])


def fold(quick: bool) -> Iterator[Found]:
    cuda = Cuda()
    nbytes = (16 if quick else 256) * MIB // _slowness(cuda)
    for row in measure(cuda, nbytes, 3 if quick else 9, 2 if quick else 5):
        shape = f"{row['dtype']}, {row['sources']} sources, {row['destinations']} destinations"
        words = f"{shape}: {row['of_copy']:.3f} of the copy (goal: {LEAST_OF_COPY})"
        verdict = reached(row["of_copy"] >= LEAST_OF_COPY, words) if row["right"] else ("WRONG", shape)
        yield Found([row], [verdict])


def occupancy(quick: bool) -> Iterator[Found]:
    """Registers and local memory of a plan's kernels, as the driver loads them, and the number of blocks that fit."""
    cuda = Cuda()
    topology = parse_spec("hgx-h100")
    request = Request(topology, Collective("allreduce", 8), parse_gpus(None, topology))
    names = ["one_hop"] if quick else ["one_hop", "optimal"]
    kernels = [Kernel(name, lower(ALGORITHMS[name].plan(request))) for name in names]

    def image(of: tuple[Kernel, str]) -> bytes:
        """The kernel with one protocol; files are compiled in parallel."""
        kernel, protocol = of
        mine = f"BLINK_ENTRY({kernel.entry(protocol)},"
        lines = cuda_text([kernel]).split("\n")
        chosen = [line for line in lines if "_ENTRY(" not in line or line.startswith(mine)]
        return cuda.compiled("\n".join([*chosen, ""]))

    work = [(kernel, protocol) for kernel in kernels for protocol in WIRES]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        images = list(pool.map(image, work))
    least = []
    for (kernel, protocol), code in zip(work, images, strict=True):
        function = cuda.function(code, kernel.entry(protocol))
        row = {"kernel": f"{kernel.name}, {protocol}", **cuda.needs(function)}
        least.append(cuda.occupancy(function, THREADS))
        yield Found([{**row, "blocks": least[-1]}], [])
    words = f"at least {min(least)} blocks of {THREADS} threads per multiprocessor (goal: {LEAST_BLOCKS})"
    yield Found([], [reached(min(least) >= LEAST_BLOCKS, words)])


def ranks(size: int, quick: bool) -> Iterator[Found]:
    calls, wrong = conformance(size, "few" if quick else "all")
    words = f"{size} ranks on one GPU, {calls} calls as the oracle says"
    yield Found([], [right(False, one) for one in wrong[:10]] or [("ok", words)])


def processes(quick: bool) -> Iterator[Found]:
    wrong = gpu_processes.conformance(2, "few")
    words = "2 processes that share a GPU by CUDA IPC, as the oracle says"
    yield Found([], [right(not wrong, wrong or words)])


def killed(quick: bool) -> Iterator[Found]:
    result = gpu_processes.killed()
    yield Found([], [right(result.named, result.words)])


def replays(nbytes: int, quick: bool) -> Iterator[Found]:
    size = 2 if quick else 8
    result = gpu_ranks.replays(Cuda(), size, nbytes, 10 if quick else 100)
    words = f"{result.replays} replays of an AllReduce of {nbytes} bytes on {size} ranks"
    yield Found([], [right(result.right, f"{words} are right"), right(result.same_bits, f"{words} give the same bits")])


def order(quick: bool) -> Iterator[Found]:
    ordered = gpu_ranks.order(Cuda(), 2 if quick else 8, 1 if quick else 5)
    yield Found([], [right(ordered, "graphs and calls in several streams keep their order")])


def nccl(quick: bool) -> Iterator[Found]:
    sizes = (4096, 64 << 10, MIB, 16 * MIB, 64 * MIB)
    try:
        for row in gpu_ranks.against_nccl(Cuda(), 2, sizes, 5 if quick else 30):
            yield Found([row], [right(row["right"], f"{row['bytes']} bytes: {row['times_as_fast']:.2f} times NCCL")])
    except CudaError as error:
        yield Found([], [("not measured", str(error))])


@dataclass(frozen=True)
class Row:
    """A step: its subject, its longest time in seconds (quick: 0 to omit it), and its work: ``run(quick)``."""

    what: str
    quick_s: float
    whole_s: float
    run: Callable[[bool], Iterator[Found]]

    def deadline_s(self, quick: bool) -> float:
        return self.quick_s if quick else self.whole_s


#: Independent checks that only a GPU can make come first.
STEPS = {
    "machine": Row("The GPU, its driver and a compiler for it.", 8, 12, machine),
    "torn": Row("Lines of 128 bytes, by one store each, read while they are written.", 8, 20, torn),
    "grid": Row("Ranks as blocks of one grid against the oracle.", 16, 40, grid),
    "memcheck": Row(
        "compute-sanitizer memcheck on two ranks in one grid.", 10, 30, lambda quick: sanitizer("memcheck")
    ),
    "racecheck": Row("compute-sanitizer racecheck on these.", 0, 30, lambda quick: sanitizer("racecheck")),
    "latency": Row(
        "One-hop AllReduce of 8 ranks in one grid, a round after the other by the GPU's clock.", 6, 12, latency
    ),
    "empty": Row("The same of no elements: what every call takes before it moves anything.", 6, 10, empty),
    "wires": Row("GB/s of one block, read and stored, beside cost/choice/block_costs.py.", 7, 15, wires),
    "fold": Row("Sources combined into destinations, against the device's own copy, bytes of both sides.", 8, 30, fold),
    "occupancy": Row(f"Kernels of a plan for 8 GPUs; blocks of {THREADS} threads that fit.", 0, 25, occupancy),
    "two": Row("Two ranks on one GPU, a kernel each, against the oracle.", 12, 30, lambda quick: ranks(2, quick)),
    "eight": Row("Eight ranks on one GPU against the oracle.", 0, 50, lambda quick: ranks(8, quick)),
    "processes": Row("Two processes on one GPU, which take turns on it.", 9, 20, processes),
    "killed": Row("A rank is killed between two calls; the other one says whom it waited for.", 11, 15, killed),
    "replays": Row("A graph of each rank, 4 KiB.", 7, 15, lambda quick: replays(4096, quick)),
    "replays-1M": Row("The same, 1 MiB.", 7, 15, lambda quick: replays(MIB, quick)),
    "order": Row("The order of graphs and calls.", 0, 15, order),
    "nccl": Row("AllReduce of 2 ranks on one GPU in turns with NCCL 2.30 or later.", 0, 20, nccl),
}


def main() -> int:
    name, quick = sys.argv[1], "--quick" in sys.argv[2:]
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    if name == "machine":
        try:
            Cuda()
        except CudaError as error:
            print(f"benchmarks/gpu_day.py needs an NVIDIA GPU: {' '.join(str(error).split())}")
            return NO_GPU
    try:
        for part in STEPS[name].run(quick):
            print(json.dumps(part._asdict()), flush=True)
    except (BlinkError, CudaError) as error:
        print(json.dumps(Found([], [("FAILED", " ".join(str(error).split()))])._asdict()))
    return 0


def _driver_version() -> str:
    """The driver's own version, if the kernel module states it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


def _commit() -> str:
    """The commit of the checkout, if git states it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except OSError:
        text = ""
    return text.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
