"""The trade-off of a plan: rate against depth, trees and weights; and what ``--size`` gains by plans with fewer trees.

For each job the points of ``blink plan --trade-off`` with their predicted times, and by how much the choice at a size
is faster than it was among algorithms alone (``blink`` left out beyond 20 ranks, where packing takes it minutes).

    python benchmarks/trade_off.py [--only TEXT]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.baselines.candidate import Conditions
from blinkccl.choice.auto import Auto, prepare
from blinkccl.choice.candidates import code_of
from blinkccl.choice.trade_off import OPTIMAL, trade_off
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.report.text import bytes_text, columns, seconds_text
from blinkccl.report.trade_off_text import trade_off_text
from blinkccl.simulate.calibration import calibration_for
from blinkccl.topology.loss import without
from blinkccl.topology.spec import parse_gpus, parse_spec

SIZES = tuple(1 << k for k in range(10, 31, 4))
#: Beyond, the multiplicative weights of ``blink`` are not waited for, nor a choice among all algorithms.
MOST_RANKS, MOST_CHOSEN = 20, 64


@dataclass(frozen=True)
class Job:
    """What is planned; ``lost`` are places among the NICs of the topology."""

    name: str
    collective: str
    spec: str
    gpus: str | None = None
    lost: Sequence[int] = ()

    def request(self) -> Request:
        topology = parse_spec(self.spec)
        ranks = parse_gpus(self.gpus, topology)
        nics = [vertex.id for vertex in topology.vertices if vertex.kind == "nic"]
        if self.lost:
            topology = without(topology, (), [nics[place] for place in self.lost])
        root = {"root": 0} if "root" in COLLECTIVES[self.collective].parameters else {}
        return Request(topology, Collective(self.collective, len(ranks), **root), ranks)


JOBS = (
    *(Job("DGX-1V, 8 GPUs", name, "dgx-1v") for name in ("allreduce", "allgather", "broadcast")),
    *(Job("DGX-1V, GPUs 0-4", name, "dgx-1v", "0-4") for name in ("allreduce", "allgather")),
    *(Job("MI250", name, "mi250") for name in ("allreduce", "broadcast")),
    *(Job("2 MI250", name, "2x mi250") for name in ("allreduce", "allgather")),
    Job("2 DGX A100, 8 and 7 GPUs", "allgather", "2x dgx-a100", "0-7+0-6"),
    Job("16 DGX A100, the last of 5", "allgather", "16x dgx-a100", "0-7+" * 15 + "0-4"),
    Job("16 DGX A100 without two NICs", "allgather", "16x dgx-a100", lost=(3, 126)),
)


def chosen(request: Request) -> tuple[Auto, Auto]:
    """The choice with and without plans of fewer trees."""
    names = {name: row for name, row in ALGORITHMS.items() if name != "blink" or len(request.ranks) <= MOST_RANKS}
    with patch.dict(ALGORITHMS, names, clear=True):
        found = prepare(request, Conditions(calibration_for(request.topology)), code_of(request))
    alone = tuple(one for one in found.plans if not one.name.startswith(f"{OPTIMAL} "))
    return found, replace(found, plans=alone)


def gains(request: Request) -> list[str]:
    """A row per size: who is chosen, who was, and the ratio of their times."""
    found, before = chosen(request)
    rows = []
    for size in SIZES:
        now, then = found.choose(size).best, before.choose(size).best
        seconds = [one.estimate.seconds for one in (then, now)]
        cells = [f"{one.plan.name}" for one in (then, now)]
        rows.append([bytes_text(size), *map(seconds_text, seconds), *cells, f"{seconds[0] / seconds[1]:.3f}"])
    return columns(("size", "before", "now", "was", "is", "ratio"), rows, left=(3, 4))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="jobs whose names have it")
    given = parser.parse_args()
    for job in JOBS:
        if given.only in job.name:
            request = job.request()
            print(f"## {job.name}, {job.collective}\n", flush=True)
            found = trade_off(request, Conditions(calibration_for(request.topology)), code_of(request), SIZES)
            print(trade_off_text(found, request), flush=True)
            if len(request.ranks) <= MOST_CHOSEN:
                print("\n".join(gains(request)), flush=True)
                print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
