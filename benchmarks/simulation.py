"""The simulator's speed: chunk hops per second of the kernel, and times of whole questions.

    python benchmarks/simulation.py [--runs N] [--json]

A chunk hop is one message of one queue: a simulated transfer. Times of kernels are medians and exclude planning and
translation; those of questions exclude only the planning, which is printed separately.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from blinkccl.collectives.spec import Collective
from blinkccl.cost.simulate import kernel
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.cost.simulate.run import bind_bytes, simulate
from blinkccl.cost.simulate.translate import Settings, translate
from blinkccl.cost.simulate.workload import Outcome, Workload
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

MIB = 1 << 20
SIZES = tuple(1 << power for power in range(16, 31, 2))  # 64 KiB to 1 GiB
COLLECTIVES = ("broadcast", "allreduce")
ALGORITHMS = ("optimal", "blink", "ring")
MACHINES = ("dgx-1v", "dgx-1p")


@dataclass(frozen=True, slots=True)
class Kernels:
    """A job whose chunk hops per second are measured, with ``chunks`` chunks in its largest slice."""

    name: str
    spec: str
    algo: str
    chunks: int


JOBS = (
    Kernels("allreduce, dgx-1v, 8 GPUs, optimal", "dgx-1v", "optimal", 64),
    Kernels("allreduce, dgx-1v, 8 GPUs, ring", "dgx-1v", "ring", 64),
    Kernels("allreduce, 4x dgx-a100, 32 GPUs, ring", "4x dgx-a100", "ring", 4),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the seconds of its answer: planning, then everything else."""

    name: str
    below_s: float
    simulations: int
    transfers: int
    planning_s: float
    seconds: float


def planned(topology: Topology, ranks: tuple[int, ...], name: str, algo: str) -> tuple[Program, Topology]:
    """A program and its network."""
    ends = {"root": 0} if name == "broadcast" else {}
    forest = algorithm(algo).plan(Request(topology, Collective(name, len(ranks), **ends), ranks))
    return lower(forest), forest.topology


def workload(job: Kernels, sharing: str) -> Workload:
    """The input of a job's kernels."""
    topology = parse_spec(job.spec)
    program, network = planned(topology, topology.ranks, "allreduce", job.algo)
    size = 64 * MIB
    largest = max(float(part.stop - part.start) for part in program.slices) * size
    bound = bind_bytes(program, size, int(largest / job.chunks))
    return translate(bound, network, calibration_for(topology), Settings(sharing)).workload


def hops_per_s(run: Callable[[Workload, str], Outcome], work: Workload, sharing: str, runs: int) -> float:
    """Median over ``runs``."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        done = run(work, sharing)
        taken.append(time.perf_counter() - began)
    return done.transfers / statistics.median(taken)


def kernels(runs: int) -> list[dict[str, object]]:
    """A row per job and mode of sharing."""
    rows: list[dict[str, object]] = []
    for job in JOBS:
        for sharing in ("fifo", "fair"):
            work = workload(job, sharing)
            row: dict[str, object] = {"name": job.name, "sharing": sharing, "transfers": work.transfers}
            rows.append({**row, "hops_per_s": hops_per_s(kernel.run, work, sharing, runs)})
    return rows


def all_allocations() -> Question:
    """Every allocation of both DGX-1s × sizes × collectives × algorithms: the charts of Blink's paper."""
    planning = simulating = 0.0
    count = transfers = 0
    for machine in MACHINES:
        topology = parse_spec(machine)
        costs = calibration_for(topology)
        for ranks in connected_allocations(machine):
            for name in COLLECTIVES:
                for algo in ALGORITHMS:
                    began = time.perf_counter()
                    program, network = planned(topology, ranks, name, algo)
                    planning += time.perf_counter() - began
                    began = time.perf_counter()
                    for size in SIZES:
                        transfers += simulate(program, network, costs, size).outcome.transfers
                        count += 1
                    simulating += time.perf_counter() - began
    return Question(f"{count // len(SIZES)} plans × {len(SIZES)} sizes", 60.0, count, transfers, planning, simulating)


def cluster(algo: str) -> Question:
    """An AllReduce of 128 GPUs."""
    began = time.perf_counter()
    topology = parse_spec("16x dgx-a100")
    program, network = planned(topology, topology.ranks, "allreduce", algo)
    planning = time.perf_counter() - began
    began = time.perf_counter()
    done = simulate(program, network, calibration_for(topology), 256 * MIB)
    taken = time.perf_counter() - began
    return Question(f"16x dgx-a100, 256 MiB, {algo}", 10.0, 1, done.outcome.transfers, planning, taken)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description="Measure the simulator's speed.")
    parser.add_argument("--runs", type=int, default=5, help="runs per kernel (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows = kernels(options.runs)
    questions = [all_allocations(), cluster("optimal"), cluster("ring")]
    if options.json:
        fields = [{slot: getattr(q, slot) for slot in Question.__slots__} for q in questions]
        print(json.dumps({"schema_version": 1, "runs": options.runs, "kernels": rows, "questions": fields}, indent=1))
        return
    print(f"{'chunk hops':>21}  {'a second':>10}")
    for row in rows:
        print(f"{row['transfers']:>21,}  {row['hops_per_s']:10,.0f}  {row['sharing']}: {row['name']}")
    print(f"\n{'simulated':>10}  {'wanted':>7}  {'planned':>9}  {'chunk hops':>12}")
    for q in questions:
        print(f"{q.seconds:8.2f} s  < {q.below_s:3.0f} s  {q.planning_s:7.2f} s  {q.transfers:12,}  {q.name}")


if __name__ == "__main__":
    main()
