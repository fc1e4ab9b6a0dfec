"""ForestColl's released Python (arXiv 2402.06787) beside our planner: the same topologies, one run.

    git clone https://github.com/liangyuRain/ForestColl
    python benchmarks/forestcoll.py --forestcoll ForestColl [--limit 200] [--only WORD] [--json FILE]

Prints tables in Markdown; forestcoll.md holds one run. Without ``--forestcoll`` only our half runs. ForestColl needs
networkx; ``--python`` names an interpreter with it, if this one lacks it.

Every plan is made in a fresh process. Seconds are user and system time of all threads, because others may share the
cores; below a tenth of a second, where the system counts in ticks, wall time. Ours are medians of ``--runs``;
ForestColl runs once, and is stopped after ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

from blinkccl.errors import TopologyError
from blinkccl.topology.json_format import to_document
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_gpus, parse_spec
from blinkccl.trees.algorithms.request import OBJECTIVES

HERE = Path(__file__).parent
Job = Mapping[str, Any]
Answer = dict[str, Any]
#: Limit of processor seconds for one of our processes.
LONGEST = 600
#: The system counts processor seconds in ticks of up to 10 ms.
TICKS_BELOW = 0.1
#: The goal: this factor over ForestColl, from this number of ranks on.
GOAL, GOAL_FROM = 50, 16


@dataclass(frozen=True, slots=True)
class Row:
    """One topology and collective. ``foreign`` is a topology of ForestColl: its function's name, and servers."""

    spec: str
    gpus: str | None = None
    foreign: tuple[str, int] | None = None
    collective: str = "allgather"
    objective: str = "shallow"
    trees: bool = True

    @property
    def name(self) -> str:
        parts = [f"GPUs {self.gpus}"] * (self.gpus is not None)
        parts += ["rate and certificate"] * (not self.trees)
        return ", ".join([self.spec, *parts])


BESIDE = (
    *(Row("dgx-1v", gpus) for gpus in ("0-2", "1,4,5", "0-4", "1,2,4,5,7", "0-5", "0,2-6", None)),
    Row("a100_topology(1)", foreign=("a100_topology", 1)),
    Row("mi250_topology(1)", foreign=("mi250_topology", 1)),
    Row("2x hgx-h100"),
    Row("2x dgx-a100"),
    Row("a100_topology(2)", foreign=("a100_topology", 2)),
    Row("mi250_topology(2)", foreign=("mi250_topology", 2)),
    Row("4x dgx-a100"),
    Row("a100_topology(4)", foreign=("a100_topology", 4)),
    *(Row("2x dgx-a100", gpus) for gpus in ("0,1+0-4", "0,1+0-5", "0-2+0-4", "0-3+0-4", "0-7+0-6")),
    Row("4x dgx-a100", "0-7+0-7+0-7+0-6"),
    Row("8x dgx-a100"),
    Row("a100_topology(8)", foreign=("a100_topology", 8)),
)
ALONE = (
    Row("16x dgx-a100"),
    Row("64x dgx-a100"),
    Row("128x dgx-a100", trees=False),
    Row("128x dgx-a100"),
    Row("torus:32x32"),
    Row("ring:256"),
    Row("hypercube:8"),
    *(
        Row(spec, collective="allreduce")
        for spec in ("ring:64", "clique:32", "8x dgx-1v @ 100Gbps", "hypercube:8", "torus:16x16", "16x dgx-a100")
    ),
    Row("random:128", collective="allreduce"),
    Row("random:256", collective="allreduce"),
    *(Row(f"random:{n}:directed", collective="allreduce") for n in (32, 64, 128, 256)),
    Row("oneway:256", collective="allreduce"),
    *(Row("2x dgx-a100", "0-7+0-6", collective=name) for name in ("allreduce", "broadcast")),
    Row("8x dgx-a100", "+".join(["0-7"] * 7 + ["0-6"]), collective="allreduce"),
    *(Row(spec, collective="broadcast") for spec in ("2x mi250", "4x mi250", "8x mi250", "16x mi250")),
    *(
        Row(f"{servers}x {machine} @ fabric={rule}", collective=name)
        for servers, machine, rule in (
            (4, "hgx-h100", "rails"),
            (8, "dgx-a100", "tree:2:4"),
            (8, "dgx-a100", "dragonfly:2"),
        )
        for name in ("allgather", "allreduce")
    ),
)


class Halves:
    """The two halves: our planner, and ForestColl's if there is a checkout."""

    def __init__(self, checkout: Path | None, python: str, limit: int, runs: int) -> None:
        self.checkout, self.python, self.limit, self.runs = checkout, python, limit, runs

    def ours(self, job: Job, runs: int) -> Answer:
        """The run whose first plan took the median time."""
        answers = [child([sys.executable, str(HERE / "forestcoll_ours.py")], job, LONGEST) for _ in range(runs)]
        return sorted(answers, key=took)[runs // 2]

    def theirs(self, job: Job, limit: int) -> Answer:
        """ForestColl's answer, or ``{"over": seconds}``."""
        return child([self.python, str(HERE / "forestcoll_theirs.py"), str(self.checkout)], job, limit)

    def topology(self, row: Row) -> dict[str, Any]:
        """The row's topology in our JSON: exactly the links that both halves plan on."""
        if row.foreign is not None:
            drawn: dict[str, Any] = self.theirs(job_of(row), LONGEST)["topology"]
            return drawn
        machine = parse_spec(row.spec)
        return fields_of(network_for(machine, parse_gpus(row.gpus, machine)))


def took(half: Answer) -> float:
    """Seconds of the first plan, or until the process was stopped."""
    if "over" in half:
        return float(half["over"])
    first = half["answers"][0]
    return float(first["seconds"] if first["seconds"] > TICKS_BELOW else first["wall_s"])


def fields_of(topology: Topology) -> dict[str, Any]:
    """The topology's fields in our JSON, without the version."""
    fields = to_document(topology)
    del fields["schema_version"]
    return fields


def job_of(row: Row, *topologies: dict[str, Any]) -> Job:
    """The job for a child: the row on these topologies; without any, to generate one of ForestColl's."""
    keys = ("foreign", "collective", "objective", "trees")
    return {"topologies": topologies, **{key: getattr(row, key) for key in keys}}


def child(command: list[str], job: Job, limit: int) -> Answer:
    """The answer of a process, or ``{"over": limit}`` if it exceeds this limit of processor seconds."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))

    done = subprocess.run(
        command,
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=bounded,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        timeout=20 * limit,
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"over": limit}
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}, see above")
    answer: Answer = json.loads(done.stdout)
    return answer


def agreed(name: str, own: Answer, other: Answer) -> None:
    """Exit with an error unless both halves have exactly the same rates."""
    optima = [[one["optimum"] for one in half["answers"]] for half in (own, other)]
    if optima[0] != optima[1]:
        raise SystemExit(f"{name}: the optimum is {optima[0]} by ours, {optima[1]} by theirs")


def measured(row: Row, halves: Halves, beside: bool) -> dict[str, Any]:
    """Measurements of both halves of a row."""
    fields = halves.topology(row)
    job = job_of(row, fields)
    own = halves.ours(job, halves.runs)
    other = halves.theirs(job, halves.limit) if beside else None
    if other and "over" not in other and "over" not in own:
        agreed(row.name, own, other)
    ranks = sum(vertex["kind"] in ("gpu", "cpu") for vertex in fields["vertices"])
    return {"name": row.name, "collective": row.collective, "ranks": ranks, "ours": own, "theirs": other}


# ---- every allocation of a DGX-1V


def allocations() -> Iterator[dict[str, Any]]:
    """The 180 sets of 3 to 7 GPUs of a DGX-1V that NVLink connects."""
    machine = parse_spec("dgx-1v")
    for size in range(3, 8):
        for gpus in combinations(machine.ranks, size):
            try:
                network = network_for(machine, gpus)
            except TopologyError:
                continue
            if all(link.kind == "nvlink" for link in network.links):
                yield fields_of(network) | {"name": f"dgx-1v {','.join(map(str, gpus))}"}


def compared(what: str, ours: Answer, theirs: Answer, key: str, names: list[str]) -> str:
    """Numbers of allocations on which ours is less, equal, more; and the names of the last if they are few."""
    pairs = [(a[key], b[key]) for a, b in zip(ours["answers"], theirs["answers"], strict=True)]
    more = [name for name, (one, other) in zip(names, pairs, strict=True) if one > other]
    counts = [sum(one < other for one, other in pairs), sum(one == other for one, other in pairs), len(more)]
    return f"| {what} | {' | '.join(map(str, counts))} | {'; '.join(more) if len(more) < 6 else ''} |"


def allocations_text(halves: Halves) -> str:
    """AllReduce beside ReduceScatter + AllGather (half of the AllGather's rate), and both halves' trees."""
    topologies = list(allocations())

    def plans(row: Row) -> Answer:
        return halves.ours(job_of(row, *topologies), 1)

    gathered, reduced = plans(Row("dgx-1v")), plans(Row("dgx-1v", collective="allreduce"))
    ratios = [
        2 * Fraction(one["optimum"]) / Fraction(other["optimum"])
        for one, other in zip(reduced["answers"], gathered["answers"], strict=True)
    ]
    mean = statistics.geometric_mean(map(float, ratios))
    lines = [
        f"Of {len(ratios)} allocations:\n",
        f"- AllReduce: faster than ReduceScatter and AllGather on {sum(ratio > 1 for ratio in ratios)}, slower on "
        f"{sum(ratio < 1 for ratio in ratios)}; times as fast {mean:.3f} (geometric mean of all), "
        f"at most {max(ratios)}",
    ]
    if halves.checkout is not None:
        other = halves.theirs(job_of(Row("dgx-1v"), *topologies), LONGEST)
        names = [str(fields["name"]).removeprefix("dgx-1v ") for fields in topologies]
        lines += ["- AllGather: the same optimum on all; of ours", ""]
        lines += ["| | less than ForestColl | the same | more | namely |", "|---|---|---|---|---|"]
        for objective in OBJECTIVES:
            own = gathered if objective == "shallow" else plans(Row("dgx-1v", objective=objective))
            agreed(f"allocations of dgx-1v, {objective}", own, other)
            suffix = "" if objective == "shallow" else f" with `--objective {objective}`"
            for key, what in (("depth", "depth"), ("trees_per_root", "trees"), ("denominator", "denominator")):
                lines.append(compared(what + suffix, own, other, key, names))
    return "\n".join(lines)


# ---- tables


def seconds_text(value: float) -> str:
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


#: Measures of a forest; less is better.
SHAPE = ("depth", "trees_per_root", "denominator")


def columns(half: Answer) -> list[str]:
    """Seconds, depth, trees per root, denominator and memory of one half."""
    if "over" in half:
        return [f"> {half['over']}", "", "", "", ""]
    (answer,) = half["answers"]
    shape = [f"{answer[key]:.3g}" if key in answer else "" for key in SHAPE]
    return [seconds_text(took(half)), *shape, f"{half['peak_mib']:.0f}"]


def marked(ours: Answer, theirs: Answer) -> list[str]:
    """Our columns, with bold cells if the forest's shape is worse than ForestColl's."""
    cells = columns(ours)
    if "over" not in ours and "over" not in theirs:
        pairs = [[half["answers"][0][key] for half in (ours, theirs)] for key in SHAPE]
        cells[1:4] = [
            f"**{cell}**" if one > other else cell for cell, (one, other) in zip(cells[1:4], pairs, strict=True)
        ]
    return cells


def rate_text(half: Answer) -> str:
    if "over" in half:
        return ""
    (answer,) = half["answers"]
    return answer["optimum"] + ("" if answer["reached"] == 1 else f" ({answer['reached']:.2%} reached)")


def ratio_text(theirs: Answer, ours: Answer, ranks: int) -> str:
    """Our speedup; bold if it misses the goal."""
    if "over" in ours:
        return ""
    ratio = took(theirs) / took(ours)
    text = f"{'> ' if 'over' in theirs else ''}{ratio:,.0f}"
    return f"**{text}**" if ratio < GOAL and ranks >= GOAL_FROM else text


def table(head: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def beside_table(rows: list[dict[str, Any]]) -> str:
    """The table with both halves: theirs, ours."""
    pairs = ("seconds", "depth", "trees per root", "denominator", "MiB")
    head = ("topology", "ranks", "GB/s", "ratio", *(cell for name in pairs for cell in (name, "")))
    return table(
        head,
        (
            [
                row["name"],
                str(row["ranks"]),
                rate_text(row["ours"]),
                ratio_text(row["theirs"], row["ours"], row["ranks"]),
            ]
            + [
                cell
                for pair in zip(columns(row["theirs"]), marked(row["ours"], row["theirs"]), strict=True)
                for cell in pair
            ]
            for row in rows
        ),
    )


def alone_table(rows: list[dict[str, Any]]) -> str:
    head = ("topology", "collective", "ranks", "GB/s", "seconds", "depth", "trees per root", "denominator", "MiB")
    return table(
        head,
        (
            [row["name"], row["collective"], str(row["ranks"]), rate_text(row["ours"]), *columns(row["ours"])]
            for row in rows
        ),
    )


def main() -> None:
    """Measure all rows and print them."""
    parser = argparse.ArgumentParser(description="ForestColl's released Python beside our planner.")
    parser.add_argument("--forestcoll", type=Path, metavar="PATH", help="a checkout of it; without, our half alone")
    parser.add_argument("--python", default=sys.executable, help="interpreter with networkx for it (default: this one)")
    parser.add_argument("--limit", type=int, default=200, help="seconds for each of its plans (default 200)")
    parser.add_argument("--runs", type=int, default=3, help="our runs, of which the median counts (default 3)")
    parser.add_argument("--only", default="", metavar="WORD", help="rows whose topology has this in its name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    options = parser.parse_args()
    path = options.forestcoll and options.forestcoll.resolve()
    if path is not None and not (path / "pipeline_allgather.py").is_file():
        parser.error(f"--forestcoll {path}: no pipeline_allgather.py there; give a checkout of ForestColl")
    halves = Halves(path, options.python, options.limit, options.runs)
    tables: dict[str, list[dict[str, Any]]] = {"beside": [], "alone": []}
    for row in (*BESIDE, *ALONE):
        if options.only not in row.name or (path is None and row.foreign is not None):
            continue
        beside = path is not None and row in BESIDE
        result = measured(row, halves, beside)
        tables["beside" if beside else "alone"].append(result)
        print(f"{row.name}, {row.collective}: {seconds_text(took(result['ours']))} s", file=sys.stderr, flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(tables, indent=1) + "\n")
    if not any(tables.values()):
        parser.error(f"--only {options.only}: no row has this in its name")
    for title, of_rows in (("beside", beside_table), ("alone", alone_table)):
        if tables[title]:
            print(of_rows(tables[title]), end="\n\n", flush=True)
    if not options.only:
        print(allocations_text(halves))


if __name__ == "__main__":
    main()
