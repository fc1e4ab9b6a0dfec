"""MPI programs with libblink_mpi.so against their own library: both in one process, in turns.

    python benchmarks/mpi_preload.py [--mpi openmpi,mpich=/tmp/mpich] [-n 2,4] [--least 8] [--most BYTES] [allreduce …]

Each round times a block of calls of ``MPI_`` (Blink) and of ``PMPI_`` (the library alone), each after a barrier. A
block takes as long as its slowest rank, and medians over 15 rounds are compared. AllReduce is checked. The goals:
MPI_Allreduce from 1 MiB on at least twice as fast, and nowhere more than 5 % slower. Exit code 1: missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from blinkccl.bench.peers.registry import Installation, installation, parse
from blinkccl.units import size_text

DEADLINE_S = 600
_HERE = Path(__file__).parent


def times(
    mpi: Installation, name: str, ranks: int, what: str, least: int, most: int
) -> list[tuple[int, float, float, int]]:
    """Bytes, microseconds of Blink and of the library, and wrong elements."""
    with tempfile.TemporaryDirectory() as room:
        program = Path(room, "mpi_preload")
        source = _HERE / "mpi_preload.c"
        subprocess.run([*mpi.compiler, str(source), "-o", str(program), *mpi.options], check=True)
        options = ["--oversubscribe", "--allow-run-as-root"] if name == "openmpi" else []
        line = [mpi.launcher, *options, "-n", str(ranks), str(program), what, str(least), str(most), "4"]
        done = subprocess.run(
            [sys.executable, "-m", "blinkccl", "run", "--mpi", "--require", "--", *line],
            env={**os.environ, **mpi.environment, "TMPDIR": room},
            stdout=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
    rows = [line.split() for line in done.stdout.splitlines()]
    return [(int(row[0]), float(row[1]), float(row[2]), int(row[3])) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collectives", nargs="*", default=["allreduce"])
    parser.add_argument("--mpi", default="openmpi,mpich", help="as blink bench --peer")
    parser.add_argument("-n", default="2,4", help="ranks")
    parser.add_argument("--least", type=int, default=8, help="bytes")
    parser.add_argument("--most", type=int, default=64 << 20, help="bytes")
    chosen = parser.parse_args()
    missed = 0
    for name, prefix in parse(chosen.mpi):
        mpi = installation(name, prefix)
        for ranks in map(int, chosen.n.split(",")):
            for what in chosen.collectives:
                print(f"# {name}, {ranks} ranks, {what}: size, µs with Blink, µs without, times as fast, wrong")
                for nbytes, blink, other, wrong in times(mpi, name, ranks, what, chosen.least, chosen.most):
                    ratio = other / blink if blink else float("inf")
                    goal = 2.0 if what == "allreduce" and nbytes >= 1 << 20 else 0.95
                    missed += ratio < goal or wrong > 0
                    mark = "" if ratio >= goal else f"   goal {goal}"
                    print(
                        f"{size_text(nbytes):>10} {blink:10.2f} {other:10.2f} {ratio:8.2f} {wrong:6}{mark}",
                        flush=True,
                    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
