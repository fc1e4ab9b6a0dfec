"""What the laboratory measured on the allocations of Blink's evaluation: trees and rings on links shaped alike.

``laboratory.json`` is written by ``benchmarks/lab_allocations.py``, but for what ``blink lab`` said of hybrid and of
two servers. Rates are those of the machine's links, in GB/s.
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
    """An algorithm on an allocation: what its plan is rated at, and every run's algbw."""

    plan: float
    runs: tuple[float, ...]

    @property
    def gb_per_s(self) -> float:
        return median(self.runs)

    @property
    def part(self) -> float:
        """Of the plan's rate."""
        return self.gb_per_s / self.plan


@dataclass(frozen=True, slots=True)
class Allocation:
    """What was measured on some GPUs, where a lane had so many Mbit/s; by algorithm."""

    gpus: tuple[int, ...]
    lane_mbit_per_s: float
    by: Mapping[str, MeasuredPlan]

    def speedup(self, algorithm: str = "optimal", over: str = "ring") -> float:
        """Measured."""
        return self.by[algorithm].gb_per_s / self.by[over].gb_per_s

    def planned_speedup(self, algorithm: str = "optimal", over: str = "ring") -> float:
        """By the plans' rates."""
        return self.by[algorithm].plan / self.by[over].plan


def read(document: Mapping[str, Any], machine: str, collective: str) -> tuple[Allocation, ...]:
    """The allocations of a machine, by size and then by ids."""
    found = []
    for name, entry in document.items():
        where, what, gpus = name.split()
        if (where, what) == (machine, collective):
            by = {how: MeasuredPlan(plan, tuple(runs)) for how, (plan, *runs) in entry["algbw_gb_per_s"].items()}
            found.append(Allocation(tuple(map(int, gpus.split(","))), entry["lane_mbit_per_s"], by))
    return tuple(sorted(found, key=lambda one: (len(one.gpus), one.gpus)))


@lru_cache(maxsize=8)
def measured(machine: str, collective: str) -> Sequence[Allocation]:
    """What is recorded in this package."""
    text = files("reproduction").joinpath("laboratory.json").read_text(encoding="utf-8")
    return read(json.loads(text), machine, collective)


def speedup_values(machine: str, collective: str) -> tuple[Value, ...]:
    """How many times as fast as all rings at once trees were, for a claim; no document has run this."""
    found = [one.speedup() for one in measured(machine, collective)]
    where = f"{collective}, {machine}, measured in the laboratory"
    return (
        Value(f"{where}: largest", None, max(found), "×", basis=BASIS),
        Value(f"{where}: geometric mean", None, geometric_mean(found), "×", basis=BASIS),
    )


def hybrid_values() -> tuple[Value, ...]:
    """What PCIe beside NVLink added to a broadcast, for a claim."""
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


def two_servers_value() -> Value:
    """What part of the network three phases had between 3 and 5 GPUs of two servers."""
    (one,) = measured("2x-dgx-1v-40Gbps", "allreduce")
    basis = "blink lab allreduce --topo '2x dgx-1v @ 40Gbps' --gpus 0,1,3+0,1,2,3,4 --algo three_phase on 16 MiB"
    return Value("Blink's part of 40 Gb/s, measured in the laboratory", None, one.by["three_phase"].part, basis=basis)
