"""Laboratory measurements on the allocations of Blink's evaluation: trees and rings on equally shaped links.

``benchmarks/lab_allocations.py`` writes ``laboratory.json``, except the results of ``blink lab`` for hybrid and for two
servers, and those of :mod:`reproduction.chunk_search`. Rates are scaled to the machine's links, in GB/s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from statistics import geometric_mean, median
from typing import Any

from reproduction.claim import Value

BASIS = "optimal plans and NCCL 2.4's rings, run in the laboratory on 16 MiB (docs/lab.md)"


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """An algorithm on an allocation: the plan's rate, and every run's algbw."""

    plan: float
    runs: tuple[float, ...]

    @property
    def gb_per_s(self) -> float:
        return median(self.runs)

    @property
    def part(self) -> float:
        """Part of the plan's rate."""
        return self.gb_per_s / self.plan


@dataclass(frozen=True, slots=True)
class Allocation:
    """Measurements on some GPUs, at the stated rate of a lane; by algorithm."""

    gpus: tuple[int, ...]
    lane_mbit_per_s: float
    by: Mapping[str, MeasuredPlan]

    def speedup(self, algorithm: str = "optimal", over: str = "ring") -> float:
        """Measured speed-up."""
        return self.by[algorithm].gb_per_s / self.by[over].gb_per_s

    def planned_speedup(self, algorithm: str = "optimal", over: str = "ring") -> float:
        """Speed-up by the plans' rates."""
        return self.by[algorithm].plan / self.by[over].plan


def read(document: Mapping[str, Any], machine: str, collective: str) -> tuple[Allocation, ...]:
    """The allocations of a machine, by size and then by ids."""
    allocations = []
    for name, entry in document.items():
        where, what, gpus = name.split()
        if (where, what) == (machine, collective):
            by = {how: MeasuredPlan(plan, tuple(runs)) for how, (plan, *runs) in entry["algbw_gb_per_s"].items()}
            allocations.append(Allocation(tuple(map(int, gpus.split(","))), entry["lane_mbit_per_s"], by))
    return tuple(sorted(allocations, key=lambda one: (len(one.gpus), one.gpus)))


@lru_cache(maxsize=8)
def measured(machine: str, collective: str) -> Sequence[Allocation]:
    """The measurements in this package."""
    text = files("reproduction").joinpath("laboratory.json").read_text(encoding="utf-8")
    return read(json.loads(text), machine, collective)


def speedup_values(machine: str, collective: str) -> tuple[Value, ...]:
    """Speed-up of trees over all rings at once, for a claim; no document has run this."""
    speedups = [one.speedup() for one in measured(machine, collective)]
    where = f"{collective}, {machine}, measured in the laboratory"
    return (
        Value(f"{where}: largest", None, max(speedups), "×", basis=BASIS),
        Value(f"{where}: geometric mean", None, geometric_mean(speedups), "×", basis=BASIS),
    )


def hybrid_values() -> tuple[Value, ...]:
    """Gain by PCIe beside NVLink in a broadcast, for a claim."""
    basis = (
        "blink lab broadcast --topo dgx-1v --links all --algo optimal@fast,hybrid on 128 MiB, as if a lane had 25 GB/s"
    )
    return tuple(
        Value(
            f"gain for {len(one.gpus)} GPUs, measured in the laboratory",
            None,
            one.by["hybrid"].gb_per_s - one.by["optimal@fast"].gb_per_s,
            "GB/s",
            basis=basis,
        )
        for one in measured("dgx-1v", "broadcast-with-pcie")
    )


def chunk_values() -> tuple[Value, ...]:
    """The search for a chunk beside fixed chunks, for a claim."""
    values = []
    for collective in ("broadcast", "allreduce"):
        (one,) = measured("dgx-1v", f"{collective}-chunks")
        fixed = [plan.gb_per_s for name, plan in one.by.items() if name not in ("search", "chosen")]
        part = one.by["chosen"].gb_per_s / max(fixed)
        near = next(i for i, rate in enumerate(one.by["search"].runs, start=1) if rate >= 0.99 * max(fixed))
        basis = "reproduction.chunk_search: optimal plan of GPUs 0-3 in the laboratory, 16 MiB, from 4 KiB on"
        whose = f"{collective}, measured in the laboratory"
        values += [
            Value(f"{whose}: iterations until within 1 % of the best fixed chunk", None, near, basis=basis),
            Value(f"{whose}: the chosen chunk's rate over that one's", None, part, basis=basis),
        ]
    return tuple(values)


def two_servers_value() -> Value:
    """Part of the network's rate that three phases reached between 3 and 5 GPUs of two servers."""
    (one,) = measured("2x-dgx-1v-40Gbps", "allreduce")
    basis = "blink lab allreduce --topo '2x dgx-1v @ 40Gbps' --gpus 0,1,3+0,1,2,3,4 --algo three_phase on 16 MiB"
    return Value("Blink's part of 40 Gb/s, measured in the laboratory", None, one.by["three_phase"].part, basis=basis)
