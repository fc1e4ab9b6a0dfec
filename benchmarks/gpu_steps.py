"""The steps of a GPU day (``gpu_day.py``), each run as a process of its own.

    python benchmarks/gpu_steps.py STEP [--quick]

Its last line is JSON: rows for a table, and verdicts. Goals are those of an H200.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gpu_ranks
from cuda_driver import Cuda, CudaError
from gpu_conformance import conformance
from gpu_fold import measure

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.cli.exits import HARDWARE as NO_GPU
from blinkccl.codegen.build import Compiler, build
from blinkccl.codegen.text import WIRES, Kernel, cuda_text
from blinkccl.collectives.spec import Collective
from blinkccl.errors import BlinkError
from blinkccl.nccl.images import compiler_for
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_gpus, parse_spec

__all__ = ["NO_GPU", "STEPS"]

LEAST_OF_COPY, MOST_US, LEAST_BLOCKS, THREADS = 0.90, 15.0, 2, 512
MIB = 1 << 20
# Streams that share one of the GPU's queues wait for each other: fatal where one rank's kernel waits for another's.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

#: Its kind (ok; MISSED: a goal of speed; WRONG: a result; FAILED; not measured), and what of.
Verdict = tuple[str, str]


class Found(NamedTuple):
    """What a step found: rows of a table, and verdicts."""

    rows: Sequence[dict[str, Any]]
    verdicts: Sequence[Verdict]


def right(good: bool, words: str) -> Verdict:
    """A verdict on a result."""
    return ("ok" if good else "WRONG", words)


def reached(good: bool, words: str) -> Verdict:
    """A verdict on a goal of speed."""
    return ("ok" if good else "MISSED", words)


def _compiler(cuda: Cuda) -> Compiler:
    return compiler_for(cuda.architecture, cuda.driver[0] * 1000 + cuda.driver[1] * 10)


def machine(quick: bool) -> Found:
    cuda = Cuda()
    driver = _driver_version()
    try:
        compiler = _compiler(cuda).fingerprint().split("\n")[0]
    except BlinkError as error:
        compiler = f"none: {error}"
    row = {
        "GPU": cuda.name,
        "architecture": cuda.architecture,
        "multiprocessors": cuda.multiprocessors,
        "driver": f"{driver} (CUDA {'.'.join(map(str, cuda.driver))})",
        "compiler": compiler,
        "commit": _commit(),
    }
    return Found([row], [("ok", f"{cuda.name}, driver {driver}")])


def occupancy(quick: bool) -> Found:
    """Registers and local memory of a plan's kernels, as the driver loads them, and how many blocks fit."""
    cuda = Cuda()
    topology = parse_spec("hgx-h100")
    request = Request(topology, Collective("allreduce", 8), parse_gpus(None, topology))
    names = ["one_hop"] if quick else ["one_hop", "optimal"]
    kernels = [Kernel(name, lower(ALGORITHMS[name].plan(request))) for name in names]
    compiler = _compiler(cuda)

    def image(of: tuple[Kernel, str]) -> bytes:
        """The kernel with one protocol: files are compiled side by side."""
        kernel, protocol = of
        mine = f"BLINK_ENTRY({kernel.entry(protocol)},"
        lines = cuda_text([kernel]).split("\n")
        kept = [line for line in lines if "_ENTRY(" not in line or line.startswith(mine)]
        return build("\n".join([*kept, ""]), compiler).read_bytes()

    work = [(kernel, protocol) for kernel in kernels for protocol in WIRES]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        images = list(pool.map(image, work))
    rows = []
    for (kernel, protocol), code in zip(work, images, strict=True):
        function = cuda.function(code, kernel.entry(protocol))
        row = {"kernel": f"{kernel.name}, {protocol}", **cuda.needs(function)}
        rows.append({**row, "blocks": cuda.occupancy(function, THREADS)})
    least = min(row["blocks"] for row in rows)
    words = f"at least {least} blocks of {THREADS} threads per multiprocessor (goal: {LEAST_BLOCKS})"
    return Found(rows, [reached(least >= LEAST_BLOCKS, words)])


def fold(quick: bool) -> Found:
    rows = measure(Cuda(), (16 if quick else 256) * MIB, 3 if quick else 15, 2 if quick else 10)
    verdicts = []
    for row in rows:
        shape = f"{row['dtype']}, {row['sources']} sources, {row['destinations']} destinations"
        words = f"{shape}: {row['of_copy']:.3f} of the copy (goal: {LEAST_OF_COPY})"
        verdicts.append(reached(row["of_copy"] >= LEAST_OF_COPY, words) if row["right"] else ("WRONG", shape))
    return Found(rows, verdicts)


def ranks(size: int, quick: bool) -> Found:
    calls, wrong = conformance(size, "few" if quick else "all")
    words = f"{size} ranks on one GPU, {calls} calls as the oracle says"
    return Found([], [right(False, one) for one in wrong[:10]] or [("ok", words)])


def graphs(quick: bool) -> Found:
    cuda, size = Cuda(), 2 if quick else 8
    verdicts = []
    for nbytes in (4096, 1 << 20):
        told = gpu_ranks.replays(cuda, size, nbytes, 10 if quick else 100)
        words = f"{told.replays} replays of an AllReduce of {nbytes} bytes on {size} ranks"
        verdicts += [right(told.right, f"{words} are right"), right(told.same_bits, f"{words} give the same bits")]
    found = gpu_ranks.order(cuda, size, 1 if quick else 5)
    return Found([], [*verdicts, right(found, "graphs and calls in several streams keep their order")])


def latency(quick: bool) -> Found:
    row = gpu_ranks.latency(Cuda(), 2 if quick else 8, 4096, 20 if quick else 500)
    words = f"{row['ranks']} ranks, 4096 bytes, one-hop AllReduce as a graph: {row['median_us']:.2f} us"
    return Found([row], [reached(row["median_us"] < MOST_US, f"{words} (goal: below {MOST_US:g})")])


def sanitizer(tool: str, quick: bool) -> Found:
    found = shutil.which("compute-sanitizer")
    if found is None:
        return Found([], [("not measured", "no compute-sanitizer on PATH; it comes with the CUDA toolkit")])
    program = [sys.executable, str(Path(__file__).with_name("gpu_conformance.py")), "2", "few"]
    ended = subprocess.run([found, "--tool", tool, "--error-exitcode", "9", *program], check=False)
    return Found([], [right(ended.returncode == 0, f"{tool} of 2 ranks: exit code {ended.returncode}")])


def nccl(quick: bool) -> Found:
    try:
        sizes = (4096, 64 << 10, MIB, 16 * MIB, 64 * MIB)
        rows = gpu_ranks.against_nccl(Cuda(), 2, sizes, 5 if quick else 40)
    except CudaError as error:
        return Found([], [("not measured", str(error))])
    return Found(
        rows, [right(row["right"], f"{row['bytes']} bytes: {row['times_as_fast']:.2f} times NCCL") for row in rows]
    )


@dataclass(frozen=True)
class Row:
    """What a step is, how long it may take, and what it does: ``run(quick)``."""

    what: str
    deadline_s: float
    run: Callable[[bool], Found]


#: In the order of what could fail first.
STEPS = {
    "machine": Row("The GPU, its driver and a compiler for it.", 30, machine),
    "occupancy": Row(f"Kernels of a plan for 8 GPUs; blocks of {THREADS} threads that fit.", 100, occupancy),
    "fold": Row("Sources combined into destinations against the device's own copy, bytes read and written.", 100, fold),
    "two": Row("Two ranks on one GPU against the oracle.", 90, lambda quick: ranks(2, quick)),
    "eight": Row("Eight ranks on one GPU against the oracle.", 130, lambda quick: ranks(8, quick)),
    "graphs": Row("Replays, and the order of graphs and calls.", 60, graphs),
    "latency": Row("One-hop AllReduce of 8 ranks on one GPU, one replay, events around it.", 60, latency),
    "memcheck": Row("compute-sanitizer memcheck on two ranks.", 60, lambda quick: sanitizer("memcheck", quick)),
    "racecheck": Row("compute-sanitizer racecheck on two ranks.", 60, lambda quick: sanitizer("racecheck", quick)),
    "nccl": Row("AllReduce of 2 ranks on one GPU in turns with NCCL 2.30 or later.", 60, nccl),
}


def main() -> int:
    name, quick = sys.argv[1], "--quick" in sys.argv[2:]
    if name == "machine":
        try:
            Cuda()
        except CudaError as error:
            print(f"benchmarks/gpu_day.py needs an NVIDIA GPU: {' '.join(str(error).split())}")
            return NO_GPU
    try:
        found = STEPS[name].run(quick)
    except (BlinkError, CudaError) as error:
        found = Found([], [("FAILED", " ".join(str(error).split()))])
    print(json.dumps(found._asdict()))
    return 0


def _driver_version() -> str:
    """The driver's own version, where the kernel module tells it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


def _commit() -> str:
    """Of the checkout, where git tells it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except OSError:
        told = ""
    return told.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
