"""Our primitives and a small AllReduce on one GPU: ratios of one run, with the goals for an H200 behind them.

    python benchmarks/gpu.py [-o gpu.json] [--quick] [--only fold,latency,nccl]

- fold: combining 1 to 8 sources into 1 to 4 destinations against the device-to-device copy (``gpu_fold.py``).
- latency: a 4 KiB one-hop AllReduce over 8 ranks on this GPU as one CUDA-graph replay, and whether replays give the
  same bits (``gpu_ranks.py``).
- nccl: AllReduce against NCCL on 2 ranks of this GPU, where NCCL (2.30 and later) allows that.

Each part is a process of its own with a deadline. Exit 1: a goal is missed, a result is wrong or a part failed; 3:
there is no GPU. What NCCL cannot do is said and no failure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda_driver import Cuda, CudaError
from gpu_fold import measure
from gpu_ranks import against_nccl, latency

from blinkccl.errors import BlinkError

LEAST_OF_COPY, MOST_US = 0.90, 15.0
# Streams that share one of the GPU's queues wait for each other: fatal where one rank's kernel waits for another's.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
DEADLINE_S = {"fold": 400, "latency": 300, "nccl": 200}
MIB = 1 << 20


def fold_part(cuda: Cuda, quick: bool) -> Any:
    return measure(cuda, (16 if quick else 256) * MIB, 3 if quick else 15, 2 if quick else 10)


def latency_part(cuda: Cuda, quick: bool) -> Any:
    return latency(cuda, 8, 4096, 20 if quick else 500)


def nccl_part(cuda: Cuda, quick: bool) -> Any:
    return against_nccl(cuda, 2, (4096, 64 << 10, MIB, 16 * MIB, 64 * MIB), 5 if quick else 40)


PARTS: dict[str, Callable[[Cuda, bool], Any]] = {"fold": fold_part, "latency": latency_part, "nccl": nccl_part}


def in_child(name: str, quick: bool) -> Any:
    """A part's rows, or ``{"failed": why}``."""
    command = [sys.executable, str(Path(__file__)), "--part", name, *(["--quick"] if quick else [])]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=DEADLINE_S[name], text=True, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done within {DEADLINE_S[name]} s"}
    lines = ended.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else {"failed": f"exit code {ended.returncode}, see above"}


def verdicts(found: dict[str, Any]) -> list[tuple[bool | None, str]]:
    """Each goal in words, and whether it is reached; None: not measured."""
    told: list[tuple[bool | None, str]] = []
    for name, rows in found.items():
        if isinstance(rows, dict) and "failed" in rows:
            told.append((None if name == "nccl" else False, f"{name}: {rows['failed']}"))
        elif name == "fold":
            told += [fold_verdict(row) for row in rows]
        elif name == "latency":
            words = f"{rows['ranks']} ranks, {rows['bytes']} bytes, one-hop AllReduce as a graph"
            reached = rows["median_us"] < MOST_US and rows["right"]
            told.append((reached, f"{words}: {rows['median_us']:.2f} us (goal: below {MOST_US:g})"))
            told.append((rows["same_bits"], f"{rows['compared']} replays on all ranks give the same bits"))
        else:
            told += [
                (row["right"], f"{row['ranks']} ranks, {row['bytes']} bytes: {row['times_as_fast']:.2f} x NCCL")
                for row in rows
            ]
    return told


def fold_verdict(row: dict[str, Any]) -> tuple[bool, str]:
    shape = f"{row['dtype']}, {row['sources']} sources, {row['destinations']} destinations"
    reached = row["of_copy"] >= LEAST_OF_COPY and row["right"]
    wrong = "" if row["right"] else ", WRONG BITS"
    return (
        reached,
        f"{shape}: {row['of_copy']:.3f} of the copy ({row['gb_per_s']:.0f} of {row['copy_gb_per_s']:.0f} GB/s){wrong}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--quick", action="store_true", help="small buffers and few rounds: whether it works at all")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        cuda = Cuda()
    except CudaError as error:
        print(f"benchmarks/gpu.py needs an NVIDIA GPU: {error}", file=sys.stderr)
        return 3
    if given.part:
        try:
            found = PARTS[given.part](cuda, given.quick)
        except (BlinkError, CudaError) as error:
            found = {"failed": " ".join(str(error).split())}
        print(json.dumps(found))
        return 0
    names = given.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"--only {unknown[0]}: expected some of {', '.join(PARTS)}")
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": cuda.name,
        "multiprocessors": cuda.multiprocessors,
        "driver_cuda": ".".join(map(str, cuda.driver)),
        "driver": _driver_version(),
        "command": " ".join(["python", *sys.argv]),
    }
    print(f"{document['gpu']}, driver {document['driver']} (CUDA {document['driver_cuda']}), {document['date']}")
    document["parts"] = parts = {name: in_child(name, given.quick) for name in names}
    told = verdicts(parts)
    for reached, words in told:
        print(f"{'not measured' if reached is None else 'ok' if reached else 'MISSED':12} {words}")
    if given.output:
        given.output.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(reached is False for reached, _ in told))


def _driver_version() -> str:
    """The driver's own version, where the kernel module tells it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


if __name__ == "__main__":
    sys.exit(main())
