"""One job of ``forestcoll.py`` in our planner, in a process of its own: JSON on stdin, the answers on stdout.

The process is fresh, so it uses no result of an earlier job. Planning begins with a parsed topology and ends with the
forest and its certificate; the time to load modules is counted separately.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from fractions import Fraction
from typing import Any

BEGAN = time.process_time()

# Modules that the planner loads on first use: the solver of its linear programs, and native code.
import highspy  # noqa: E402, F401
import numpy  # noqa: E402, F401

from blinkccl.collectives.spec import Collective  # noqa: E402
from blinkccl.topology.json_format import from_fields  # noqa: E402
from blinkccl.topology.model import Topology  # noqa: E402
from blinkccl.trees.algorithms import optimal  # noqa: E402
from blinkccl.trees.algorithms.bounds import certificate_for  # noqa: E402
from blinkccl.trees.algorithms.request import Request  # noqa: E402
from blinkccl.trees.forest.model import Forest  # noqa: E402
from blinkccl.trees.packing import native_flows  # noqa: E402

native_flows.load()
IMPORTED = time.process_time() - BEGAN


def rates(topology: Topology) -> dict[tuple[int, int], float]:
    """GB/s of every link, from the capacity in plans."""
    return {arc: link.capacity * topology.unit_gb_per_s for arc, link in topology.link.items()}


def request(job: dict[str, Any], fields: dict[str, Any]) -> Request:
    """The request of a job, on all links of its topology."""
    topology = from_fields(fields, "the topology of a job")
    root = 0 if job["collective"] == "broadcast" else None
    collective = Collective(job["collective"], len(topology.ranks), root)
    wanted = Request(topology, collective, topology.ranks, objective=job["objective"])
    if rates(wanted.network) != rates(topology):
        raise SystemExit(f"{topology.name}: the planner's links are not those that the other half has")
    return wanted


def shape(forest: Forest) -> dict[str, Any]:
    """The columns of a forest."""
    roots = 1 if forest.collective.root is not None else len(forest.ranks)
    return {
        "depth": forest.depth,
        "trees_per_root": len(forest.shares) / roots,
        "denominator": forest.longest_weight,
    }


def planned(wanted: Request, trees: bool) -> dict[str, Any]:
    """Rate, seconds and, if trees are wanted, their shape."""
    wall, began = time.perf_counter(), time.process_time()
    if trees:
        forest = optimal.plan(wanted)
        rate, bound = forest.rate, forest.bound
    else:
        rate = bound = certificate_for(wanted.collective, wanted.ranks, wanted.network).bound
    taken = {"seconds": time.process_time() - began, "wall_s": time.perf_counter() - wall}
    answer = {
        "optimum": str((bound * Fraction(wanted.network.unit_gb_per_s)).limit_denominator(10**6)),
        "reached": float(rate / bound),
        **taken,
    }
    return answer | (shape(forest) if trees else {})


def main() -> None:
    """Read one job, run it, print the answers."""
    job = json.load(sys.stdin)
    answers = [planned(request(job, fields), job["trees"]) for fields in job["topologies"]]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    json.dump({"answers": answers, "import_s": IMPORTED, "peak_mib": peak}, sys.stdout)


if __name__ == "__main__":
    main()
