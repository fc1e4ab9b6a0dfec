"""Loss of ``auto`` with a size against the best algorithm, and of ``optimal``, the default without a size.

Simulates our code for all 60 connected allocations of a DGX-1V and a DGX-1P, their pairs joined by NVLink, and whole
machines × AllReduce, broadcast and AllGather × eight sizes.

Prints a row per machine and collective: the largest loss of ``auto`` with a size, that of ``optimal`` and its place,
the number of cases that ``optimal`` does not win, the winners, and the number of simulations. Exit 1 if
``auto`` is slower than the best by more than 2 % anywhere.

    python benchmarks/auto_choice.py [--only dgx-1p,mist] [-o auto_choice.json]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.choice.auto import prepare
from blinkccl.cost.choice.candidates import code_of
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.show.text import columns, ids
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.request import Request
from blinkccl.units import size_text

SIZES = tuple(1 << k for k in range(10, 32, 3))
ALLOCATED = ("dgx-1v", "dgx-1p")
WHOLE = (
    "mist",
    "cedar",
    "dgx-2",
    "dgx-a100",
    "hgx-h100",
    "pcie-4gpu-nvlink-pairs",
    "pcie-8gpu",
    "pcie-8gpu-nvlink-pairs",
)
NAMES = ("allreduce", "broadcast", "allgather")
OLD = "optimal"
MOST_LOST = 0.02


@dataclass
class Loss:
    """Losses against the best: the largest, its place, and the number above :data:`MOST_LOST`."""

    worst: float = 0.0
    where: str = ""
    often: int = 0

    def add(self, lost: float, where: str) -> None:
        self.often += lost > MOST_LOST
        if lost > self.worst:
            self.worst, self.where = lost, where


@dataclass
class Row:
    """Losses of one machine and collective."""

    machine: str
    collective: str
    cases: int = 0
    plans: int = 0
    simulated: int = 0
    auto: Loss = field(default_factory=Loss)
    old: Loss = field(default_factory=Loss)
    best: Counter[str] = field(default_factory=Counter)

    def cells(self) -> list[str]:
        wins = ", ".join(f"{name} {count}" for name, count in self.best.most_common(3))
        lost = [f"{100 * self.auto.worst:.2f}", f"{100 * self.old.worst:.1f}", self.old.where, str(self.old.often)]
        part = f"{100 * self.simulated / self.plans:.0f}"
        return [self.machine, self.collective, str(self.cases), *lost, wins, part]


def jobs(machine: str) -> Iterator[tuple[int, ...]]:
    """Allocations of a machine."""
    if machine in ALLOCATED:
        yield from connected_allocations(machine, smallest=2)
    else:
        yield parse_spec(machine).ranks


def links_of(machine: str) -> str:
    """The links for planning: all if NVLink joins only pairs."""
    return "all" if machine.endswith("nvlink-pairs") else "fast"


def judged(machine: str, name: str) -> Row:
    """The losses over all allocations and sizes."""
    row = Row(machine, name)
    topology = parse_spec(machine)
    for ranks in jobs(machine):
        root = {"root": 0} if "root" in COLLECTIVES[name].parameters else {}
        request = Request(topology, Collective(name, len(ranks), **root), ranks, links_of(machine))
        prepared = prepare(request, Conditions(calibration_for(topology)), code_of(request))
        for size in SIZES:
            chosen = prepared.choose(size)
            seconds = {one.name: one.at(size).seconds for one in prepared.plans}
            best_s = min(seconds.values())
            where = f"{ids(ranks)} at {size_text(size)}"
            row.cases += 1
            row.plans += len(prepared.plans)
            row.simulated += len(chosen.timed)
            row.best[chosen.best.plan.name] += 1
            row.auto.add(chosen.best.estimate.seconds / best_s - 1, where)
            row.old.add(seconds[OLD] / best_s - 1, where)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="MACHINES", default=",".join((*ALLOCATED, *WHOLE)))
    parser.add_argument("-o", "--output", metavar="FILE")
    options = parser.parse_args()
    rows = []
    for machine in options.only.split(","):
        for name in NAMES:
            rows.append(judged(machine, name))
            print(f"{machine} {name}: {rows[-1].cases} cases", file=sys.stderr)
    header = ("machine", "collective", "cases", "auto %", "optimal %", "where", "> 2 %", "best", "simulated %")
    print("\n".join(columns(header, [row.cells() for row in rows], left=(0, 1, 5, 7))))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode() + "\n")
    return int(any(row.auto.worst > MOST_LOST for row in rows))


if __name__ == "__main__":
    sys.exit(main())
