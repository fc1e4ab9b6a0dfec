"""Gains of in-network reduction in switches: rates and simulated times of in_switch and of optimal.

    python benchmarks/in_switch.py [-o in_switch.md]

Every plan goes through the independent checker, from its JSON. Seconds are of one core, planning and checking together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.candidate import Conditions, planned
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.errors import UnsupportedError
from blinkccl.proof.check import check_plan
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import dumps, to_document
from blinkccl.trees.forest.model import Forest

MACHINES = (
    *("dgx-a100", "hgx-h100", "dgx-2"),
    *(f"{n}x dgx-a100 @ 200Gbps" for n in (2, 4, 8, 16)),
    *(f"{n}x hgx-h100 @ fabric=rails" for n in (2, 4, 16)),
    *("4x hgx-h100 @ fabric=rails:2", "4x hgx-h100 @ fabric=tree:2", "16x hgx-h100 @ fabric=tree:4"),
    *("16x hgx-h100 @ fabric=tree:4:2", "2x mi300x", "4x mi300x", "16x mi300x"),
)
KINDS = ("servers", "network", "all")
OTHERS = ("broadcast", "reduce", "allgather", "reduce_scatter")
ON = ("hgx-h100", "2x dgx-a100 @ 200Gbps", "4x hgx-h100 @ fabric=rails", "16x dgx-a100 @ 200Gbps")
SIZES = (1 << 20, 16 << 20, 256 << 20, 1 << 30)


def combining(machine: Topology, which: str) -> Topology:
    """The machine with switches that reduce: those of servers, those between them, or all."""
    inside = {machine.vertex[rank].server for rank in machine.ranks}
    wanted = {"servers": (True,), "network": (False,), "all": (True, False)}[which]
    return replace(
        machine,
        vertices=tuple(
            replace(v, combines=v.kind == "switch" and (v.server in inside) in wanted) for v in machine.vertices
        ),
    )


def request(machine: Topology, name: str = "allreduce", objective: str = "shallow") -> Request:
    root = 0 if name in ("broadcast", "reduce") else None
    return Request(machine, Collective(name, len(machine.ranks), root), machine.ranks, objective=objective)


def checked(forest: Forest) -> Forest:
    """The plan, after the checker has accepted it."""
    verdict = check_plan(json.loads(dumps(to_document(forest))))
    if verdict.violations or (verdict.rate, verdict.bound) != (forest.rate, forest.bound):
        raise SystemExit(f"{forest.topology.name}: {verdict.violations[:3]}")
    return forest


def rates() -> Iterator[str]:
    yield "| machine | GPUs | ranks alone | combine | GB/s | times | of the bound | proof | trees | steps | s |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for spec in MACHINES:
        machine = parse_spec(spec)
        alone = algorithm("optimal").plan(request(machine, objective="exact")).algbw_gb_per_s
        cases = {combining(machine, kind).vertices: kind for kind in reversed(KINDS)}  # all, if it differs
        for vertices, which in reversed(cases.items()):
            began = process_time()
            try:
                forest = checked(algorithm("in_switch").plan(request(replace(machine, vertices=vertices))))
            except UnsupportedError:  # no switch joins three ranks
                continue
            seconds = process_time() - began
            kind = "prices" if forest.certificate.kind == "dual" else "cut"
            yield (
                f"| `{spec}` | {len(machine.ranks)} | {alone:.1f} | {which} | {forest.algbw_gb_per_s:.1f} | "
                f"{forest.algbw_gb_per_s / alone:.2f} | {float(forest.rate / forest.bound):.3f} | {kind} | "
                f"{len(forest.shares)} | {forest.depth} | {seconds:.1f} |"
            )


def one_way() -> Iterator[str]:
    yield "| machine | collective | ranks alone | all combine | link crossings, of those of ranks alone |"
    yield "|---|---|---|---|---|"
    for spec in ON:
        machine = parse_spec(spec)
        for name in OTHERS:
            alone = algorithm("optimal").plan(request(machine, name, "exact"))
            plan = checked(algorithm("in_switch").plan(request(combining(machine, "all"), name)))
            used, before = (float(sum(each.link_load.values()) / each.rate) for each in (plan, alone))
            yield (
                f"| `{spec}` | {name} | {alone.algbw_gb_per_s:.1f} | {plan.algbw_gb_per_s:.1f} | {used / before:.2f} |"
            )


def times() -> Iterator[str]:
    yield f"| machine | {' | '.join(f'{size >> 20} MiB' for size in SIZES)} |"
    yield f"|---|{'---|' * len(SIZES)}"
    for spec in ON:
        machine = combining(parse_spec(spec), "all")
        conditions = Conditions(calibration_for(machine))
        plans = [planned(name, algorithm(name).plan(request(machine)), conditions) for name in ("optimal", "in_switch")]
        ratios = [plans[0].at(size).seconds / plans[1].at(size).seconds for size in SIZES]
        yield f"| `{spec}` | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |"


PAGE = """# In-network reduction

    python benchmarks/in_switch.py

This page compares `--algo in_switch` with `optimal`: trees in which NVSwitches and InfiniBand's switches reduce and
multicast (SHARP). Code that shares none with the planner checks each plan from its file. Only the reference engine of
Blink runs these plans.

## AllReduce

*Combine* names the switches that reduce: those of servers, those between them, or all. *Times* is the rate over that
of trees of ranks alone, *s* the seconds of one core for planning and checking. **Every rate is the bound**, proved by
a cut that all data leaves, or by prices with sets where no cut is reached.

- If only servers' switches reduce, four servers gain at most 3 % and sixteen nothing, because as much data crosses the
  network between servers as before.
- If the network's switches also reduce, a server sends all its data once.
- The links of GPUs without a switch limit the rate of these GPUs.

{rates}

## One direction

Collectives in one direction have no higher rate, because the cut in their proof also holds for switches, and trees of
ranks reach it. They cross fewer links, because data that a switch multicasts enters it once.

{one_way}

## Simulated times of AllReduce

The table has `optimal`'s time over `in_switch`'s, both by copy engines on the machine's calibration. A switch reduces
at the rate of its links, chunk by chunk, and issues nothing. GPUs reduce at their measured or assumed rate.

{times}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", type=Path, default=Path(__file__).with_suffix(".md"))
    tables = {name: "\n".join(table()) for name, table in (("rates", rates), ("one_way", one_way), ("times", times))}
    parser.parse_args().o.write_text(PAGE.format(**tables), encoding="utf-8")


if __name__ == "__main__":
    main()
