"""What the laboratory measured on the allocations of Blink's evaluation: trees and rings on links shaped alike.

``laboratory.json`` is written by ``benchmarks/lab_allocations.py``. Rates are those of the machine's links, in GB/s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from statistics import geometric_mean, median
from typing import Any

from blinkccl.paper.claim import Value

BASIS = "optimal plans and NCCL 2.4's rings, run in the laboratory on 16 MiB (docs/lab.md)"


@dataclass(frozen=True, slots=True)
class Measurement:
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
    by: Mapping[str, Measurement]

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
            by = {how: Measurement(plan, tuple(runs)) for how, (plan, *runs) in entry["algbw_gb_per_s"].items()}
            found.append(Allocation(tuple(map(int, gpus.split(","))), entry["lane_mbit_per_s"], by))
    return tuple(sorted(found, key=lambda one: (len(one.gpus), one.gpus)))


@lru_cache(maxsize=8)
def measured(machine: str, collective: str) -> Sequence[Allocation]:
    """What is recorded in this package."""
    text = files("blinkccl.paper").joinpath("laboratory.json").read_text(encoding="utf-8")
    return read(json.loads(text), machine, collective)


def speedup_values(machine: str, collective: str) -> tuple[Value, ...]:
    """How many times as fast as all rings at once trees were, for a claim; no document has run this."""
    found = [one.speedup() for one in measured(machine, collective)]
    where = f"{collective}, {machine}, measured in the laboratory"
    return (
        Value(f"{where}: largest", None, max(found), "×", basis=BASIS),
        Value(f"{where}: geometric mean", None, geometric_mean(found), "×", basis=BASIS),
    )
