"""Fig 12 of Blink, executed: the search for a chunk on the laboratory's links, beside all fixed chunks.

    sudo python -m reproduction.chunk_search [--gpus 0,1,2,3] [--collective broadcast] [--size 16M] [--json]

The search (MIAD, §4.2.1) gets the median rate of three runs per iteration. Afterwards fixed chunks, powers of two, run
in turns with the chosen one, on a DGX-1V. Rates are scaled to its links. ``--json`` prints the entry of
``laboratory.json``. Exit code 1 if an element is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blinkccl.apps.lab.experiment import Field, Measured, planned, prepare
from blinkccl.apps.lab.laboratory import Laboratory
from blinkccl.cost.simulate.chunk_search import Miad
from blinkccl.units import parse_bytes, size_text
from reproduction.jobs import request

MACHINE, DEADLINE_S = "dgx-1v", 60.0
#: First, step and least bytes of a chunk, and the most. The paper begins with 1 MB; the laboratory moves less data.
FIRST_BYTES, MOST_BYTES = 4 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class ChunkComparison:
    """``iterations`` of the search, then the chosen chunk and fixed ones in turns; each with its runs."""

    iterations: tuple[Measured, ...]
    chosen: Measured
    fixed: tuple[Measured, ...]

    @property
    def part(self) -> float:
        """The chosen chunk's rate over that of the best fixed chunk."""
        return self.chosen.gb_per_s / max(one.gb_per_s for one in self.fixed)

    @property
    def wrong(self) -> int:
        """Wrong elements of all runs."""
        return sum(one.wrong for one in (*self.iterations, self.chosen, *self.fixed))


def search(field: Field, lab: Laboratory, size_bytes: int, rounds: int) -> ChunkComparison:
    """Search with one plan, then compare its chunk with fixed ones."""
    (candidate,) = field.candidates
    number = candidate.open(lab)

    def measured(chunks: Sequence[int], times: int) -> list[Measured]:
        row = [replace(planned(candidate, size_bytes, field.slower), chunk_bytes=chunk, runs=[]) for chunk in chunks]
        for _ in range(times):
            for one in row:
                one.runs.append(lab.run(number, one.pattern, one.chunk_bytes, DEADLINE_S))
        return row

    measured([FIRST_BYTES], 1)  # TCP's windows grow
    state = Miad(FIRST_BYTES, step_bytes=FIRST_BYTES, least_bytes=FIRST_BYTES, most_bytes=MOST_BYTES)
    iterations: list[Measured] = []
    while not state.steady:
        iterations += measured([state.chunk_bytes], 3)
        state = state.observe(iterations[-1].gb_per_s)
    powers = [FIRST_BYTES << power for power in range((MOST_BYTES // FIRST_BYTES).bit_length())]
    chosen, *fixed = measured([state.chunk_bytes, *powers], rounds)
    return ChunkComparison(tuple(iterations), chosen, tuple(fixed))


def entry(field: Field, outcome: ChunkComparison) -> dict[str, object]:
    """The plan's rate, then measured rates: of the iterations, and of the runs of each chunk."""
    rates = {"search": [one.gb_per_s for one in outcome.iterations]}
    for name, one in (("chosen", outcome.chosen), *((size_text(one.chunk_bytes), one) for one in outcome.fixed)):
        rates[name] = [one.pattern.size / run.seconds * field.slower / 1e9 for run in one.runs]
    plan = field.candidates[0].forest.algbw_gb_per_s
    return {
        "lane_mbit_per_s": round(field.lane_mbit_per_s, 1),
        "size_bytes": outcome.chosen.pattern.size,
        "wrong": outcome.wrong,
        "algbw_gb_per_s": {name: [round(rate, 2) for rate in (plan, *row)] for name, row in rates.items()},
    }


def main() -> int:
    """Print the search and the comparison."""
    parser = argparse.ArgumentParser(description="The search for a chunk, on the laboratory's links.")
    parser.add_argument("--gpus", default="0,1,2,3")
    parser.add_argument("--collective", default="broadcast")
    parser.add_argument("--size", default="16M", help="bytes (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each fixed chunk (default %(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    gpus = tuple(int(gpu) for gpu in options.gpus.split(","))
    field = prepare(request(MACHINE, options.collective, gpus), ["optimal"])
    with field.laboratory() as lab:
        outcome = search(field, lab, parse_bytes(options.size), options.rounds)
    if options.json:
        print(json.dumps({f"{MACHINE} {options.collective}-chunks {options.gpus}": entry(field, outcome)}))
        return int(outcome.wrong > 0)
    for title, rows in (("search", outcome.iterations), ("fixed", (outcome.chosen, *outcome.fixed))):
        for one in rows:
            print(f"{title:8}{size_text(one.chunk_bytes):>8}{one.gb_per_s:10.2f} GB/s{one.part:8.1%} of the plan")
    print(f"the chosen chunk has {outcome.part:.1%} of the best fixed one's rate")
    return int(outcome.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
