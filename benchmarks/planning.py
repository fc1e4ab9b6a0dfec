"""Planning times: medians, with every cache cleared between runs.

    python benchmarks/planning.py [--runs N] [--json]

In-process lines time one call of an algorithm, after the modules are loaded. Process lines time a whole command,
from the start of the interpreter to its exit.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from blinkccl.collectives.spec import Collective
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.bounds import certificate_for
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request


@dataclass(frozen=True, slots=True)
class Line:
    """One benchmark: the timed function, and the goal of the project in seconds."""

    name: str
    below_s: float
    run: Callable[[], object]


def clear_caches() -> None:
    """Clear the package's caches, so that every run does the whole work again."""
    package = [sys.modules[name] for name in sorted(sys.modules) if name.startswith("blinkccl.")]
    for module in package:
        for value in vars(module).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def request(spec: str, name: str, **ends: int) -> Request:
    """A request with a new topology, because cached properties live on the objects."""
    topology = parse_spec(spec)
    return Request(topology, Collective(name, len(topology.ranks), **ends), topology.ranks)


def plan(spec: str, name: str, algo: str = "optimal", **ends: int) -> Callable[[], object]:
    """Planning, from the text of the topology on."""
    return lambda: algorithm(algo).plan(request(spec, name, **ends))


def certificate(spec: str, name: str) -> Callable[[], object]:
    """Rate and proof without the trees."""

    def run() -> object:
        wanted = request(spec, name)
        return certificate_for(wanted.collective, wanted.ranks, wanted.network)

    return run


def command(*arguments: str) -> Callable[[], object]:
    """A whole process."""
    return lambda: subprocess.run([sys.executable, "-m", "blinkccl", *arguments], check=True, stdout=subprocess.DEVNULL)


LINES = (
    Line("plan allreduce, dgx-1v, 8 GPUs", 0.030, plan("dgx-1v", "allreduce")),
    Line("plan broadcast, dgx-1v, 8 GPUs", 0.030, plan("dgx-1v", "broadcast", root=0)),
    Line("plan allgather, dgx-1v, 8 GPUs", 0.100, plan("dgx-1v", "allgather")),
    Line("plan broadcast by blink, dgx-1v, 8 GPUs", 0.500, plan("dgx-1v", "broadcast", "blink", root=0)),
    Line("certificate allgather, 16x dgx-a100 (128 GPUs)", 0.500, certificate("16x dgx-a100", "allgather")),
    Line("plan allgather, 2x dgx-a100 (16 GPUs)", 1.000, plan("2x dgx-a100", "allgather")),
    Line("process: blink --help", 0.200, command("--help")),
    Line("process: blink plan broadcast --topo dgx-1v", 0.500, command("plan", "broadcast", "--topo", "dgx-1v")),
    Line(
        "process: blink plan allreduce --topo dgx-1v --gpus 1,4,5,6",
        0.500,
        command("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6"),
    ),
)


def median_s(line: Line, runs: int) -> float:
    """The median of ``runs`` cold runs, after one that loads modules and does not count."""
    line.run()
    taken = []
    for _ in range(runs):
        clear_caches()
        gc.collect()
        began = time.perf_counter()
        line.run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    """Measure all lines and print them."""
    parser = argparse.ArgumentParser(description="Measure planning times.")
    parser.add_argument("--runs", type=int, default=9, help="cold runs per line (default 9)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    measured = [(line, median_s(line, options.runs)) for line in LINES]
    if options.json:
        rows = [{"name": line.name, "median_s": taken, "below_s": line.below_s} for line, taken in measured]
        print(json.dumps({"schema_version": 1, "runs": options.runs, "lines": rows}, indent=1))
        return
    print(f"{'median of ' + str(options.runs):>12}  {'wanted':>9}")
    for line, taken in measured:
        print(f"{taken * 1e3:9.1f} ms  < {line.below_s * 1e3:4.0f} ms  {line.name}")


if __name__ == "__main__":
    main()
