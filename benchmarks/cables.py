"""Clusters without a switch in the laboratory: rates of plans on shaped cables, beside a ring and the bound.

``python benchmarks/cables.py`` prints the table of benchmarks/cables.md; it needs root and about eight minutes. The
candidates of a row run in turns on the same links, with every element checked; a ratio is the median over the turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import Any

#: Collective, SPEC, and the candidates beside ``optimal``.
ROWS = (
    ("allreduce", "2x dgx-spark @ cables=ring", "ring,gloo_ranks"),
    ("allreduce", "3x dgx-spark @ cables=ring", "ring,gloo_ranks"),
    ("allreduce", "4x dgx-spark @ cables=ring", "ring,gloo_ranks"),
    ("allgather", "4x dgx-spark @ cables=ring", "ring"),
    ("alltoall", "4x dgx-spark @ cables=ring", ""),
    ("allreduce", "4x dgx-spark @ cables=line", "ring"),
    ("allreduce", "8x dgx-spark @ cables=ring", "ring"),
    ("allreduce", "3x mac-studio @ cables=mesh", "ring,gloo_ranks"),
    ("allreduce", "4x mac-studio @ cables=ring", "ring"),
    ("allreduce", "4x mac-studio @ cables=mesh", "ring,gloo_ranks"),
    ("broadcast", "4x mac-studio @ cables=mesh", "ring"),
    ("allreduce", "6x mac-studio @ cables=torus:2x3", "ring"),
)
SIZE, ROUNDS = "16M", "7"
HEAD = """\
| cabling | collective | bound | optimal, of it | ring, of its plan | optimal over ring | planned | gloo, of its ring |
|---|---|---|---|---|---|---|---|"""


def measured(collective: str, spec: str, others: str) -> dict[str, Any]:
    """The output of ``blink lab --json`` for a row."""
    algorithms = ",".join(filter(None, ("optimal", others)))
    typed = ["lab", collective, "--topo", spec, "--algo", algorithms, "-b", SIZE, "-n", ROUNDS, "--json"]
    ended = subprocess.run([sys.executable, "-m", "blinkccl", *typed], capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def line(collective: str, spec: str, others: str) -> str:
    """A row of the table."""
    document = measured(collective, spec, others)
    rows = {row["algorithm"]: row for row in document["rows"]}
    assert all(row["wrong"] == 0 for row in rows.values())
    best, ring, gloo = (rows.get(name) for name in ("optimal", "ring", "gloo_ranks"))
    ratio = planned = "–"
    if ring is not None:
        turns = [slow / fast for slow, fast in zip(ring["seconds"], best["seconds"], strict=True)]
        ratio = f"{median(turns):.2f} ({min(turns):.2f} … {max(turns):.2f})"
        planned = f"{best['plan_algbw_gb_per_s'] / ring['plan_algbw_gb_per_s']:.2f}"
    apart = "none" if "gloo_ranks" in others else "–"
    cells = [
        spec,
        collective,
        f"{best['plan_algbw_gb_per_s']:.4g} GB/s",
        f"{best['part_of_plan']:.3f}",
        f"{ring['part_of_plan']:.3f}" if ring is not None else "none" if "ring" in others else "–",
        ratio,
        planned,
        f"{gloo['part_of_plan']:.3f}" if gloo is not None else apart,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, row by row."""
    print(HEAD, flush=True)
    for row in ROWS:
        print(line(*row), flush=True)


if __name__ == "__main__":
    main()
