"""Every connected allocation of DGX-1V (46) and DGX-1P (14) × nine collectives × every root and pair.

Prints the times of planning, of the independent check and of the verifier, and the results. Exit 1 if a plan is not
optimal, is refused by the checker, or is invalid.

    python benchmarks/sweep.py
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.proof.check import check_plan
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.topology.catalog import connected_allocations, machine
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import to_document


def every_collective(world_size: int) -> Iterator[Collective]:
    """All nine collectives with every root and every ordered pair of ends."""
    for name, definition in COLLECTIVES.items():
        if definition.parameters == ("root",):
            yield from (Collective(name, world_size, root=root) for root in range(world_size))
        elif definition.parameters:
            yield from (Collective(name, world_size, src=s, dst=d) for s, d in permutations(range(world_size), 2))
        else:
            yield Collective(name, world_size)


def main() -> int:
    seconds: Counter[str] = Counter()
    outcome: Counter[str] = Counter()
    for name in ("dgx-1v", "dgx-1p"):
        allocations = connected_allocations(name)
        print(f"{name}: {len(allocations)} connected allocations of 3 to 8 GPUs")
        for gpus in allocations:
            for collective in every_collective(len(gpus)):
                start = time.perf_counter()
                forest = algorithm("optimal").plan(Request(machine(name), collective, gpus))
                planned = time.perf_counter()
                verdict = check_plan(to_document(forest))
                checked = time.perf_counter()
                broken = violations(lower(forest, slots=1), forest.topology)
                seconds["plan"] += planned - start
                seconds["check"] += checked - planned
                seconds["lower and verify"] += time.perf_counter() - checked
                outcome["plans"] += 1
                outcome["optimal"] += forest.rate == forest.bound == verdict.rate == verdict.bound
                outcome["refused by the checker"] += bool(verdict.violations)
                outcome["invalid"] += bool(broken)
    print(", ".join(f"{label} {spent:.2f} s" for label, spent in seconds.items()))
    print(", ".join(f"{count} {label}" for label, count in outcome.items()))
    good = outcome["optimal"] == outcome["plans"]
    return 0 if good and not outcome["refused by the checker"] and not outcome["invalid"] else 1


if __name__ == "__main__":
    sys.exit(main())
