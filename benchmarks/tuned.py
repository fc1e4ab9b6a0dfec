"""A table of ``blink tune`` against the built-in choice, and against the best fixed choice, on this host.

At every measured size, these run in turns, in rounds: the rows of the table, the built-in choice with its variants, and
every candidate of the tuner alone. A ratio is that of two times of one round, and the median over the rounds counts.
The exit code is 1 if the table is more than 3 % slower than the built-in choice at any size. It is also 1 if the table
is more than 5 % slower than the best fixed choice at more than a tenth of the sizes.

    blink tune -g 2 && python benchmarks/tuned.py [--ranks 2] [--rounds 9]
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from blinkccl.bench.candidate import RunningCandidate, ended_by_signals
from blinkccl.bench.peers.registry import own
from blinkccl.bench.tune import TimedWays, Ways, candidates, collective_of, untuned
from blinkccl.runtime.host_table import label, machine, path_of_host
from blinkccl.show.text import columns, seconds_text
from blinkccl.trees.algorithms.tables import BUILT_IN, Cell, read
from blinkccl.units import size_text

#: Seconds of one turn, and its least and largest number of calls.
TURN_S, LEAST_CALLS, MOST_CALLS = 0.01, 3, 400
SLOWER, BEHIND, OFTEN = 1.03, 1.05, 0.9


def measured(runs: RunningCandidate, cell: Cell, ranks: int, rounds: int) -> tuple[float, float, str, float]:
    """One cell: the table's ratios to the built-in and to the best fixed choice, the latter's name, and the time."""
    collective = collective_of(cell.collective, ranks)
    timed = TimedWays(runs, collective, cell.size_bytes)
    base = untuned(collective, cell.size_bytes)
    tuned = base if cell.times[0].algorithm == BUILT_IN else cell.times[0].ways
    fixed = [one for one in candidates(collective, cell.size_bytes) if timed.seconds(one, 1) is not None]
    calls = max(LEAST_CALLS, min(MOST_CALLS, int(TURN_S / max(timed.seconds(base, 3) or 0.0, 1e-7))))
    turns = list(dict.fromkeys((base, tuned, *fixed)))
    seconds: dict[Ways, list[float]] = {one: [] for one in turns}
    for number in range(rounds):
        for place in range(len(turns)):
            one = turns[(place + number) % len(turns)]
            seconds[one].append(timed.seconds(one, calls) or 0.0)
    best = min(fixed, key=lambda one: median(seconds[one]))

    def ratio(other: Ways) -> float:
        return median(a / b for a, b in zip(seconds[tuned], seconds[other], strict=True))

    return ratio(base), ratio(best), " or ".join(map(label, best)), median(seconds[tuned])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    path = path_of_host(options.ranks)
    if path is None or not path.exists():
        sys.exit(f"there is no table for {options.ranks} ranks: run blink tune -g {options.ranks}")
    file = read(path, machine())
    rows, against_base, against_best = [], [], []
    with ended_by_signals(), RunningCandidate(own(options.ranks, 60)) as runs:
        for cell in file.cells:
            base, best, name, seconds = measured(runs, cell, options.ranks, options.rounds)
            against_base.append(base)
            against_best.append(best)
            where = [cell.collective, size_text(cell.size_bytes), seconds_text(seconds)]
            rows.append(
                [*where, "" if cell.times[0].algorithm == BUILT_IN else "yes", f"{base:.2f}", f"{best:.2f}", name]
            )
    header = ("collective", "size", "time", "tuned", "/ built in", "/ best fixed", "best fixed")
    print("\n".join(columns(header, rows, left=(0, 6))))
    near = sum(ratio <= BEHIND for ratio in against_best) / len(against_best)
    worst, gained = max(against_base), sum(cell.times[0].algorithm != BUILT_IN for cell in file.cells)
    print(f"\n{gained} of {len(rows)} tuned; at worst {worst:.3f} times the built-in choice's time")
    print(f"within 5 % of the best fixed choice at {near:.0%} of the sizes")
    return int(worst > SLOWER or near < OFTEN)


if __name__ == "__main__":
    sys.exit(main())
