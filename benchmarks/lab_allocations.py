"""Trees and rings in the laboratory, on all allocations of a DGX-1V and a DGX-1P that NVLink connects.

    python benchmarks/lab_allocations.py lab.json                measure cases missing in the file (root, 20 minutes)
    python benchmarks/lab_allocations.py lab.json --write docs   the tables, from the file

Each machine is built once, with all links of all plans. For each allocation a lane is as fast as the processors hold;
optimal trees, Blink's and all of NCCL's rings at once run in turns. ``--seconds`` is a limit of time, and the next call
continues. This package's file is reproduction/laboratory.json.

Three options add tables from the JSON output of ``blink lab``:

- ``--hybrid``: ``blink lab broadcast --topo dgx-1v --gpus 0-2 --algo optimal@fast,hybrid@all,optimal@all -b 64K -e 64M
  -f 4 --json``, for 0-2 to 0-7;
- ``--libraries``: the same with ``--algo optimal,blink,ring,one_ring,gloo_links,gloo_ranks,openmpi``;
- ``--messages``: ``blink lab sendrecv --topo mist --gpus 0,1 --algo multi_path,one_hop,path:0-4-1 --json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from blinkccl.apps.lab import experiment
from blinkccl.apps.lab.experiment import Field, Measured
from blinkccl.collectives.spec import Collective
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.request import Request
from blinkccl.units import size_text

sys.path.insert(0, str(Path(__file__).parents[1]))

from reproduction.laboratory import Allocation, read

MACHINES, COLLECTIVES = ("dgx-1v", "dgx-1p"), ("broadcast", "allreduce")
ALGORITHMS = ("optimal", "blink", "ring")
#: Rate at which the links of a laboratory are built, before they are slowed down.
BUILT_MBIT_PER_S = 400.0


def jobs(machine: str) -> Iterator[tuple[str, Request]]:
    """Every allocation with every collective, and its name in the file; rooted ones at the first GPU."""
    topology = parse_spec(machine)
    for gpus in connected_allocations(machine):
        for name in COLLECTIVES:
            collective = Collective(name, len(gpus), root=0 if name == "broadcast" else None)
            yield f"{machine} {name} {','.join(map(str, gpus))}", Request(topology, collective, gpus)


def measure(path: Path, size: int, rounds: int, seconds: float) -> None:
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    began = time.monotonic()
    for machine in MACHINES:
        missing = {name: experiment.prepare(request, ALGORITHMS) for name, request in jobs(machine) if name not in done}
        if not missing:
            continue
        fields = list(missing.values())
        built = experiment.lane_gb_per_s(fields[0].request) * 8e3 / BUILT_MBIT_PER_S
        candidates = [one for field in fields for one in field.candidates]
        with experiment.laboratory(candidates, built) as lab:
            for number, (name, field) in enumerate(missing.items()):
                if time.monotonic() - began > seconds:
                    print(f"{len(missing) - number} of {machine} are left: call it again")
                    return
                lab.reshape(built / field.slower)
                (row,) = experiment.measure(field.ready(lab, 120.0), lab, [size], rounds, 120.0)
                done[name] = recorded(field, row)
                lines = ",\n".join(f"{json.dumps(one)}: {json.dumps(entry)}" for one, entry in done.items())
                path.write_text(f"{{\n{lines}\n}}\n")
                print(name, *(f"{one.candidate.name} {one.part:.3f}" for one in row), flush=True)
    print("all is measured")


def recorded(field: Field, row: Sequence[Measured]) -> dict[str, Any]:
    """A line of the file: the plan's rate and the rate of every run, by algorithm, in GB/s of the machine."""
    rates = {
        one.candidate.name: [
            one.candidate.forest.algbw_gb_per_s,
            *(round(one.pattern.size / run.seconds * one.slower / 1e9, 3) for run in one.runs),
        ]
        for one in row
    }
    wrong = sum(one.wrong for one in row)
    return {
        "lane_mbit_per_s": round(field.lane_mbit_per_s, 1),
        "size_bytes": row[0].pattern.size,
        "wrong": wrong,
        "algbw_gb_per_s": rates,
    }


def summary(cases: Sequence[Allocation]) -> list[str]:
    """Cells of a line: parts of the plan's rate, and of the predicted ratio."""
    parts = [[one.by[algorithm].part for one in cases] for algorithm in ALGORITHMS]
    off = [one.speedup() / one.planned_speedup() for one in cases]
    return [
        *(f"{geometric_mean(some):.3f}, least {min(some):.3f}" for some in parts),
        f"{geometric_mean([one.speedup() for one in cases]):.3f}",
        f"{geometric_mean([one.planned_speedup() for one in cases]):.3f}",
        f"{min(off) - 1:+.1%} … {max(off) - 1:+.1%}",
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def detail(cases: Sequence[Allocation]) -> str:
    rows = []
    for one in cases:
        cells = [",".join(map(str, one.gpus)), f"{one.lane_mbit_per_s:.0f}"]
        for algorithm in ALGORITHMS:
            some = one.by[algorithm]
            cells += [f"{some.gb_per_s:.1f} of {some.plan:.1f}", f"{some.part:.3f}"]
        rows.append([*cells, f"{one.speedup():.2f}", f"{one.planned_speedup():.2f}"])
    header = [
        "GPUs",
        "lane",
        "optimal",
        "of plan",
        "blink",
        "of plan",
        "rings",
        "of plan",
        "trees over rings",
        "planned",
    ]
    return table(header, rows)


def hybrid(documents: Sequence[Path]) -> str:
    """Gain of NVLink and PCIe together over NVLink alone, with the paper's split and as one forest."""
    results = [json.loads(path.read_text()) for path in documents]
    alone, *names = ("optimal@fast", "hybrid@all", "optimal@all")
    by = {
        (row["algorithm"], len(document["ranks"]), row["size_bytes"]): row
        for document in results
        for row in document["rows"]
    }
    sizes = sorted({size for _, _, size in by})
    largest = sizes[-1]
    rows = []
    for count in sorted({count for _, count, _ in by}):
        for how in names:
            cells = [_gain(by[how, count, size], by[alone, count, size]) for size in sizes]
            plans = [by[name, count, largest]["plan_algbw_gb_per_s"] for name in (how, alone)]
            more = by[how, count, largest]["algbw_gb_per_s"] - by[alone, count, largest]["algbw_gb_per_s"]
            name = how.partition("@")[0]
            rows.append([f"0-{count - 1}", name, *cells, f"{plans[0] / plans[1] - 1:+.1%}", f"{more:+.1f}"])
    header = ["GPUs", "plan", *map(_size, sizes), "planned", f"GB/s at {_size(largest)}"]
    return HYBRID + table(header, rows)


def _size(size_bytes: int) -> str:
    text = size_text(size_bytes)
    return f"{text[:-1]} {text[-1]}iB"


def _gain(row: Mapping[str, Any], alone: Mapping[str, Any]) -> str:
    """Gain of both over NVLink alone, in brackets if both are the same plan."""
    gain = f"{row['algbw_gb_per_s'] / alone['algbw_gb_per_s'] - 1:+.1%}"
    return f"({gain})" if row["plan_algbw_gb_per_s"] == alone["plan_algbw_gb_per_s"] else gain


def libraries(documents: Sequence[Path]) -> str:
    """Rates of plans and of other libraries, which know hosts but no links."""
    results = [json.loads(path.read_text()) for path in documents]
    names = list(dict.fromkeys(row["algorithm"] for document in results for row in document["rows"]))
    rows = []
    for document in results:
        by = {row["algorithm"]: row for row in document["rows"]}
        cells = [
            f"{by[name]['algbw_gb_per_s']:.1f} of {by[name]['plan_algbw_gb_per_s']:.1f}" if name in by else ""
            for name in names
        ]
        rows.append([",".join(map(str, document["ranks"])), *cells])
    return LIBRARIES + table(["GPUs", *names], rows)


def messages(documents: Sequence[Path]) -> str:
    """Rate of one message over all paths, over the direct one, and the sum over the paths alone."""
    rows = []
    for path in documents:
        document = json.loads(path.read_text())
        for size in dict.fromkeys(row["size_bytes"] for row in document["rows"]):
            by = {row["algorithm"]: row for row in document["rows"] if row["size_bytes"] == size}
            every, direct = by["multi_path"]["algbw_gb_per_s"], by["one_hop"]["algbw_gb_per_s"]
            alone = [row["algbw_gb_per_s"] for name, row in by.items() if name.startswith("path:")]
            part = f"{every / (direct + sum(alone)):.3f}" if alone else ""
            turns, same = len(by["one_hop"]["seconds"]), by["multi_path"]["plan_algbw_gb_per_s"]
            ratio = (
                f"({every / direct:.3f})" if same == by["one_hop"]["plan_algbw_gb_per_s"] else f"{every / direct:.3f}"
            )
            cells = [
                f"{every:.1f}",
                f"{direct:.1f}",
                ratio,
                " + ".join(f"{one:.1f}" for one in alone),
                part,
                str(turns),
            ]
            rows.append([document["topology"], size_text(size), *cells])
    return MESSAGES + table(
        ["machine", "size", "multi_path", "direct", "ratio", "other paths", "of sum", "turns"], rows
    )


MESSAGES = """
## One message over all paths

These are medians in turns of `sendrecv` from GPU 0 to 1 of one socket, in GB/s of the machine's links. On Mist the
paths are the direct link, and one staged by a process in the processor's memory. Cedar also has one through each of
the two idle GPUs. "Of sum" is the rate of `multi_path` divided by the sum of the rates of all paths, each alone. A
ratio in brackets is noise: the plan is the direct path, because the first calls did not promise a gain of 5 %.

"""

LIBRARIES = """
## AllReduce beside other libraries

These are rates and plans in GB/s for 16 MiB on a DGX-1V, in turns on the same links. gloo forms a ring in the order of
the ranks or of a ring of links; Open MPI selects its own order. Both use NVLink between GPUs that have one, otherwise
PCIe, and their expected rate is that of a ring in their order. Without an NVLink ring, NCCL and these libraries fall
back to PCIe.

"""

HYBRID = """
## NVLink and PCIe at once

The table shows the gain of both over NVLink alone for a Broadcast on a DGX-1V, where processes stage PCIe data in the
hosts' memories. `hybrid` is the paper's split, `optimal` one forest on all links. Medians are of 41 turns up to 256
KiB, 25 turns of 1 MiB, 15 of 4 MiB and 7 of 16 MiB. Of 64 and 128 MiB they are of 3 turns (5 of 64 MiB on 8 GPUs).
These two sizes stand for the 500 MB of Fig 21, because a call on 8 GPUs takes 4 s.

**Split.** The first calls of `hybrid` decide for each size: ten of 64 KiB and of 4 MiB over NVLink, PCIe and both.
PCIe gets the part of Eq 8 by the measured rates and the later end of both, limited by the rates of its links. It gets
nothing if both together are not 1 % faster. Then `hybrid` is the plan of NVLink alone, and its difference, in
brackets, is noise.

**One forest** for 8 GPUs used to be 3 to 20 % slower. It was the basis of one program over all links, with 31 trees.
The smallest had 1/31,824 of the data, and each was cut into as many chunks as the largest. So 16 MiB were 25,000
messages of 5 KiB, which kept both processors busy (95 %, NVLink alone 40 %), and reached 0.917 of its plan. Now the
forest has the six trees of NVLink and three of PCIe, at the same proved rate.

**Buffers** of 128 KiB per connection let trees over slow links drift by 100 ms. With 64 KiB, `hybrid` went from 0.927
to 0.960 of its plan, and NVLink alone from 0.961 to 0.965. 64 KiB was chosen on 16 MiB and 8 GPUs; at 128 MiB on 3
GPUs, NVLink alone reached 0.92 of its plan with 64 KiB and 0.95 with 128 KiB. The simulator predicts 0.69 of the
plan's rate at 1 MiB and 0.99 at 64 MiB, because a pipeline of five hops fills; NVLink alone has 0.71 and 0.99.

**Beside Fig 21.** Nothing is switched here, so gains do not fall with T_dpa as in Fig 21 (5 GB/s for 3 or 4 GPUs, 2
for 7 or 8). PCIe adds the rate of its links, by the plans 12 GB/s for 3 GPUs and 6 for more, a decreasing part of
NVLink's. Some runs of 64 and 128 MiB take 0.2 to 0.25 s longer, for an unknown reason, and medians of three do not
hide this. So gains above the planned ones come from slow runs of NVLink alone.

"""
Sections = dict[tuple[str, str], tuple[Allocation, ...]]


def sections_of(document: Mapping[str, Any]) -> Sections:
    """The allocations by machine and collective, without empty sections."""
    sections = {(m, c): read(document, m, c) for m in MACHINES for c in COLLECTIVES}
    return {where: cases for where, cases in sections.items() if cases}


def overview(sections: Mapping[tuple[str, str], Sequence[Allocation]]) -> str:
    """A line per collective and machine, and one for all."""
    parts = {f"{collective}, {machine}": cases for (machine, collective), cases in sections.items()}
    parts["**all**"] = tuple(one for cases in sections.values() for one in cases)
    shown = ["", "allocations", *(f"{how} of plan" for how in ("optimal", "blink", "rings"))]
    rows = [[name, str(len(cases)), *summary(cases)] for name, cases in parts.items()]
    return table([*shown, "trees over rings", "planned", "off"], rows)


def write(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.write
    report = {
        name: entry
        for name, entry in json.loads(arguments.file.read_text()).items()
        if name.split()[0] in MACHINES and name.split()[1] in COLLECTIVES
    }
    sections = sections_of(report)
    every = [one for cases in sections.values() for one in cases]
    text = TEXT.format(
        size=_size(next(iter(report.values()))["size_bytes"]),
        runs=", ".join(map(str, sorted({len(some.runs) for one in every for some in one.by.values()}))),
        wrong=sum(entry["wrong"] for entry in report.values()),
        overview=overview(sections),
    )
    for (machine, collective), cases in sections.items():
        text += f"\n## {collective} on {machine}\n\n{detail(cases)}"
    if arguments.libraries:
        text += libraries(arguments.libraries)
    if arguments.hybrid:
        text += hybrid(arguments.hybrid)
    if arguments.messages:
        text += messages(arguments.messages)
    (folder / "lab.md").write_text(text)


TEXT = """# Trees and rings in the laboratory

`blink lab` builds a machine from network namespaces, with a shaped pair of devices per link ([running.md](running.md);
[how to run one](howto/laboratory.md)). These are results for a DGX-1V and a DGX-1P, on all 60 allocations of 3 to 8
GPUs that NVLink connects. `benchmarks/lab_allocations.py` writes this page.

- *Runs*: {size} of float32, medians of {runs} runs in turns after one that does not count, every element checked
  ({wrong} wrong). They took 15 minutes on two virtual cores without other work, with UCX 1.22 over TCP.
- *Links* keep their ratios. The rate of a lane (25 GB/s, on a DGX-1P 20) in Mbit/s is the highest that two virtual
  cores hold for the allocation.
- *Rates* are scaled to the links of the machine, in GB/s. A plan reaches them if only links limit it.
- `rings` is all of NCCL 2.4's rings together, over PCIe if the NVLinks form no ring.

`-o table.json` writes the time of each algorithm into a table with the laboratory's scale, which `blink explain` reads
with `--measured table.json`. The table compares trees on such links and says nothing about kernels: the choices of
libblink.so remain predicted, or measured on GPUs.

Goals: optimal trees at least 0.96 of the plan in geometric mean; the ratio within 5 % of the plans'.

{overview}
"Of plan" is the geometric mean and the minimum. "Off" compares the measured ratio of trees to rings with the ratio of
the plans.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--libraries", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--hybrid", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--messages", type=Path, nargs="*", default=[], metavar="FILE")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments)
    else:
        measure(arguments.file, arguments.size, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
