"""The cost of one order: AllReduce, Reduce and ReduceScatter with one order of operands for all elements.

Compared with the bound, on all connected allocations of 3 to 7 GPUs of a DGX-1V, whole machines, clusters and rules.
Then between processes: calls of groups that promise one order against groups that do not, in turns on the same ranks.

    python benchmarks/order.py [--no-run] [--every] [-o order.md]
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from time import process_time

import numpy as np

from blinkccl.collectives.spec import Collective
from blinkccl.errors import TopologyError
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.store import FileStore
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.bounds import SOLVED
from blinkccl.trees.algorithms.order import order_bound
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.nested_groups import NestedGroup, neighbours, pack_group
from blinkccl.trees.packing.oracles import cheapest_hops

MACHINES = (
    "dgx-1v",
    "dgx-1p",
    "dgx-2",
    "dgx-a100",
    "hgx-h100",
    "mi300x",
    "mi250",
    "pcie-8gpu",
    "2x dgx-1v @ 100Gbps",
    "2x dgx-a100 @ 200Gbps",
    "4x dgx-a100 @ 200Gbps",
    "16x dgx-a100 @ 200Gbps",
    "ring:8",
    "hypercube:3",
    "torus:4x4",
    "random:12:seed=3",
    "random:20",
    "random:32",
    "torus:6x6",
    "2x mi250",
)
REDUCING = ("allreduce", "reduce", "reduce_scatter")
SIZES = tuple(1 << k for k in range(10, 27, 4))
ROUNDS, CALLS = 9, 20
#: Of a size, the call's time at least; more calls where it is short.
RANKS = (2, 4)


@dataclass(frozen=True)
class Row:
    """A job's prices by collective, the least price of an AllReduce in any order, the order, and planning seconds."""

    job: str
    prices: tuple[float, ...]
    least: float | None
    order: str
    seconds: float


def planned(topology: Topology, ranks: tuple[int, ...], name: str) -> Forest:
    """The plan with one order."""
    collective = Collective(name, len(ranks), root=0 if name == "reduce" else None)
    return algorithm("auto").plan(Request(topology, collective, ranks, deterministic="order"))


def row(spec: str) -> Row:
    """The row of a whole machine."""
    topology = parse_spec(spec)
    began = process_time()
    plans = [planned(topology, topology.ranks, REDUCING[0])]
    seconds = process_time() - began
    plans += [planned(topology, topology.ranks, name) for name in REDUCING[1:]]
    order, proved = plans[0].order or "", None
    if len(topology.ranks) <= SOLVED:
        proved = order_bound(rank_network_of(plans[0].topology, topology.ranks).network)
    least = None if proved is None else float(max(plans[0].bound / proved, 1))
    return Row(spec, tuple(float(plan.price) for plan in plans), least, order, seconds)


def allocations() -> Iterator[tuple[int, ...]]:
    """The 180 sets of 3 to 7 GPUs of a DGX-1V that NVLink joins."""
    topology = parse_spec("dgx-1v")
    for count in range(3, 8):
        for gpus in itertools.combinations(topology.ranks, count):
            try:
                Request(topology, Collective("allreduce", count), gpus).network  # noqa: B018
            except TopologyError:
                continue
            yield gpus


def prices_of_allocations() -> list[str]:
    """A line per number of GPUs, and one for all."""
    topology = parse_spec("dgx-1v")
    by_count: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
    for gpus in allocations():
        by_count.setdefault(len(gpus), []).append((float(planned(topology, gpus, "allreduce").price), gpus))
    by_count[0] = [each for several in by_count.values() for each in several]
    lines = ["| GPUs | allocations | pay nothing | geometric mean | worst |", "|---|---|---|---|---|"]
    for count, several in by_count.items():
        mean = exp(sum(log(price) for price, _ in several) / len(several))
        worst, where = max(several)
        free = sum(price == 1 for price, _ in several)
        name = str(count) if count else "3 to 7"
        lines.append(f"| {name} | {len(several)} | {free} | {mean:.3f} | {worst:.3f} ({','.join(map(str, where))}) |")
    return lines


def prices_of_machines() -> list[str]:
    """A line per machine."""
    lines = [
        "| machine | allreduce | at least | reduce | reduce_scatter | order | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for spec in MACHINES:
        result = row(spec)
        order = result.order if len(result.order) < 50 else f"{result.order[:49]}…"
        least = "" if result.least is None else f"{result.least:.3f}"
        prices = " | ".join([f"{result.prices[0]:.3f}", least, *(f"{price:.3f}" for price in result.prices[1:])])
        lines.append(f"| `{spec}` | {prices} | `{order}` | {result.seconds:.1f} |")
    return lines


def groups_of(count: int) -> list[NestedGroup]:
    """All nested groups of ``count`` ranks in which every group can have a head."""
    groups = [NestedGroup(tuple(range(count)))]
    seen = set(groups)
    for group in groups:
        fresh = [each for each in neighbours(group) if each not in seen]
        seen.update(fresh)
        groups += fresh
    return groups


def cheapest_of_all() -> list[str]:
    """A line per allocation (one per isomorphism class) with a price above 1: the best rate over all orders."""
    topology, lines = parse_spec("dgx-1v"), ["| GPUs | orders | rate found | best rate of all |", "|---|---|---|---|"]
    every: dict[int, list[NestedGroup]] = {}
    for gpus in connected_allocations("dgx-1v"):
        plan = planned(topology, gpus, "allreduce")
        if plan.price == 1:
            continue
        network = rank_network_of(plan.topology, gpus).network
        hops = cheapest_hops(network, dict.fromkeys(network.capacity, 1))[0]
        groups = every.setdefault(len(gpus), groups_of(len(gpus)))
        packed = (pack_group(network, group, bound=plan.bound) for group in groups if group.in_trees(hops))
        best = max(forest.rate for forest in packed if forest is not None)
        lines.append(f"| {','.join(map(str, gpus))} | {len(groups)} | {plan.rate} | {best} |")
    return lines


# ---- between processes


def ratios(rank: int, ranks: int, place: str) -> list[tuple[int, float, float]]:
    """By size: microseconds of a call without the promise, and the median ratio with it over without."""
    store = FileStore(Path(place))
    groups = {
        wanted: Communicator.create(store, rank, ranks, prefix=f"with-{wanted}", deterministic=wanted)
        for wanted in ("", "order")
    }
    results = []
    for size in SIZES:
        send = np.ones(size // 4, np.float32)
        recv = np.empty_like(send)
        calls = CALLS if size > 1 << 20 else 10 * CALLS
        times: dict[str, list[float]] = {"": [], "order": []}
        for turn in range(ROUNDS + 1):
            for wanted in ("", "order") if turn % 2 else ("order", ""):
                taken = groups[wanted].time("allreduce", send, recv, iterations=calls)
                if turn:  # the first one warms up pages and caches
                    times[wanted].append(float(np.median(taken)))
        pairs = [a / b for a, b in zip(times["order"], times[""], strict=True)]
        results.append((size, 1e6 * float(np.median(times[""])), float(np.median(pairs))))
    for group in groups.values():
        group.close()
    return results


def measured(ranks: int) -> list[str]:
    """A line per size, from processes that this starts."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, __file__, "--rank"]
        processes = [
            subprocess.Popen([*command, f"{rank},{ranks},{place}"], stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    lines = []
    for line in outputs[0].splitlines():
        size, without, ratio = line.split()
        lines.append(f"| {ranks} | {int(size) >> 10} KiB | {float(without):.1f} | {float(ratio):.2f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-run", action="store_true", help="prices alone")
    parser.add_argument("--every", action="store_true", help="try all orders on the allocations: ten minutes")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.rank:
        rank, ranks, place = options.rank.split(",")
        for size, without, ratio in ratios(int(rank), int(ranks), place):
            print(size, without, ratio)
        return 0
    lines = ["Prices of an AllReduce on the connected allocations of a DGX-1V:", "", *prices_of_allocations(), ""]
    lines += ["Whole machines, and processor seconds of the AllReduce's plan:", "", *prices_of_machines(), ""]
    if options.every:
        lines += ["Of all orders that trees of ranks can make:", "", *cheapest_of_all(), ""]
    if not options.no_run:
        lines += [f"Between processes ({os.cpu_count()} CPUs), AllReduce of float32:", ""]
        lines += ["| ranks | size | µs without | with / without |", "|---|---|---|---|"]
        lines += [line for ranks in RANKS for line in measured(ranks)]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
