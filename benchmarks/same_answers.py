"""The answers that a refactoring must not change: 450 plans, their Programs, and predicted times.

    python benchmarks/same_answers.py            compare with same_answers.json; exit code 1 if an answer changed
    python benchmarks/same_answers.py --write    rewrite the file, after an intended change

The plans are seven collectives on all 60 connected allocations of a DGX-1V and a DGX-1P (one per isomorphism class),
and an AllReduce on 30 networks: every family by rule, machines of the catalog, clusters. A row of the file has a
plan's rate and bound, the digests of the plan's JSON and of its Program's, and the simulated seconds for 64 MiB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import blinkccl
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.text import to_json
from blinkccl.topology.catalog import connected_allocations
from blinkccl.trees.forest.document import dumps, to_document

FILE = Path(__file__).with_suffix(".json")
COLLECTIVES = ("broadcast", "reduce", "allreduce", "allgather", "reduce_scatter", "gather", "scatter")
NETWORKS = (
    *("ring:5", "ring:16", "oneway:6", "chain:7", "clique:6", "clique:16", "star:8"),
    *("torus:3x4", "torus:4x4", "torus:2x3x4", "hypercube:3", "hypercube:4"),
    *(
        "random:8:seed=1",
        "random:12:seed=2",
        "random:16:seed=3",
        "random:8:seed=4:directed",
        "random:12:seed=5:directed",
    ),
    *("dgx-2", "dgx-a100", "hgx-h100", "mi250", "mi300x", "pcie-8gpu", "pcie-8gpu-nvlink-pairs", "gb200-nvl72"),
    *("2x dgx-1v @ 40Gbps", "2x dgx-a100", "4x dgx-a100", "3x dgx-1p @ 100Gbps", "2x hgx-h100"),
)
#: Words of a plan or a Program that were renamed since the file was written: now, then.
RENAMED: dict[str, str] = {}


def jobs() -> Iterator[tuple[str, str, tuple[int, ...] | None]]:
    """Collective, machine and GPUs of each plan."""
    for machine in ("dgx-1v", "dgx-1p"):
        for gpus in connected_allocations(machine):
            for collective in COLLECTIVES:
                yield collective, machine, gpus
    for network in NETWORKS:
        yield "allreduce", network, None


def digest(text: str) -> str:
    """The start of a text's SHA-256, with the words from the time of the file."""
    for now, then in RENAMED.items():
        text = text.replace(now, then)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def answer(collective: str, machine: str, gpus: tuple[int, ...] | None) -> dict[str, object]:
    """The row of one plan."""
    plan = blinkccl.plan(collective, machine, gpus=gpus)
    try:
        seconds = f"{plan.simulate('64M').seconds:.9e}"
    except UnsupportedError:  # its roles have too many ends for generated code
        seconds = None
    return {
        "rate": str(plan.rate.lanes),
        "bound": str(plan.bound.lanes),
        "plan": digest(dumps(to_document(plan.forest))),
        "program": digest(to_json(lower(plan.forest))),
        "seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write same_answers.json anew")
    options = parser.parse_args()
    rows = {}
    for collective, machine, gpus in jobs():
        name = f"{collective} {machine}" + ("" if gpus is None else " " + ",".join(map(str, gpus)))
        rows[name] = answer(collective, machine, gpus)
        if sys.stderr.isatty():
            print(f"\r{len(rows)} plans", end="", file=sys.stderr)
    if options.write:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        return 0
    then = json.loads(FILE.read_text(encoding="utf-8"))
    changed = [name for name in sorted({*rows, *then}) if rows.get(name) != then.get(name)]
    for name in changed:
        print(f"{name}\n  then {then.get(name)}\n  now  {rows.get(name)}")
    print(f"{len(rows)} plans, {len(changed)} other than in {FILE.name}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
