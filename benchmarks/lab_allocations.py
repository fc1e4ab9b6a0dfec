"""Trees and rings in the laboratory, on all allocations of a DGX-1V and a DGX-1P that NVLink connects.

    python benchmarks/lab_allocations.py lab.json                measure what is not in the file yet (root, 20 minutes)
    python benchmarks/lab_allocations.py lab.json --write docs   the table and the figures, from the file

Each machine is built once, with all links of all plans; for each allocation a lane is as fast as the processors hold,
and optimal trees, Blink's and all of NCCL's rings at once run in turns. ``--seconds`` ends it after so long, and the
next call goes on from there. The file of this package is src/blinkccl/paper/laboratory.json. ``--hybrid`` takes what
``blink lab broadcast --topo dgx-1v --gpus 0-2 --algo optimal@fast,hybrid@all,optimal@all -b 1M -e 32M --json`` printed,
for 0-2 to 0-7, and adds a table of it; ``--libraries`` likewise what ``--algo
optimal,blink,ring,one_ring,gloo_links,gloo_ranks,openmpi`` printed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from blinkccl.algorithms.registry import Request
from blinkccl.collectives.spec import Collective
from blinkccl.lab import experiment
from blinkccl.lab.experiment import Field, Measured
from blinkccl.paper import drawing
from blinkccl.paper.laboratory import Allocation, read
from blinkccl.report.plotting import pyplot
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.spec import parse_spec

MACHINES, COLLECTIVES = ("dgx-1v", "dgx-1p"), ("broadcast", "allreduce")
ALGORITHMS = ("optimal", "blink", "ring")
#: The links of a laboratory are built this fast, and slowed down from it.
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
                (row,) = experiment.measure(field, lab, [size], rounds, 120.0)
                done[name] = recorded(field, row)
                lines = ",\n".join(f"{json.dumps(one)}: {json.dumps(entry)}" for one, entry in done.items())
                path.write_text(f"{{\n{lines}\n}}\n")
                print(name, *(f"{one.candidate.name} {one.part:.3f}" for one in row), flush=True)
    print("all is measured")


def recorded(field: Field, row: Sequence[Measured]) -> dict[str, Any]:
    """A line of the file: per algorithm the plan's rate and that of every run, in GB/s of the machine."""
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


def summary(found: Sequence[Allocation]) -> list[str]:
    """Cells of a line: of the plan's rate, and of the predicted ratio."""
    parts = [[one.by[algorithm].part for one in found] for algorithm in ALGORITHMS]
    off = [one.speedup() / one.planned_speedup() for one in found]
    return [
        *(f"{geometric_mean(some):.3f}, least {min(some):.3f}" for some in parts),
        f"{geometric_mean([one.speedup() for one in found]):.3f}",
        f"{geometric_mean([one.planned_speedup() for one in found]):.3f}",
        f"{min(off) - 1:+.1%} … {max(off) - 1:+.1%}",
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def detail(found: Sequence[Allocation]) -> str:
    rows = []
    for one in found:
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
    """How much faster NVLink and PCIe together are than NVLink alone, as the paper splits data and as one forest."""
    found = [json.loads(path.read_text()) for path in documents]
    names = ("optimal@fast", "hybrid@all", "optimal@all")
    sizes = sorted({row["size_bytes"] for document in found for row in document["rows"]})
    rows = []
    for document in found:
        by = {(row["algorithm"], row["size_bytes"]): row for row in document["rows"]}
        for how in names[1:]:
            gains = [by[how, size]["algbw_gb_per_s"] / by[names[0], size]["algbw_gb_per_s"] - 1 for size in sizes]
            planned = by[how, sizes[0]]["plan_algbw_gb_per_s"] / by[names[0], sizes[0]]["plan_algbw_gb_per_s"] - 1
            ranks = f"0-{len(document['ranks']) - 1}"
            rows.append([ranks, how.partition("@")[0], *(f"{gain:+.1%}" for gain in gains), f"{planned:+.1%}"])
    return HYBRID + table(["GPUs", "plan", *(f"{size >> 20} MiB" for size in sizes), "planned"], rows)


def libraries(documents: Sequence[Path]) -> str:
    """Plans beside other libraries, which know hosts and no links."""
    found = [json.loads(path.read_text()) for path in documents]
    names = list(dict.fromkeys(row["algorithm"] for document in found for row in document["rows"]))
    rows = []
    for document in found:
        by = {row["algorithm"]: row for row in document["rows"]}
        cells = [
            f"{by[name]['algbw_gb_per_s']:.1f} of {by[name]['plan_algbw_gb_per_s']:.1f}" if name in by else ""
            for name in names
        ]
        rows.append([",".join(map(str, document["ranks"])), *cells])
    return LIBRARIES + table(["GPUs", *names], rows)


LIBRARIES = """
## AllReduce beside other libraries

GB/s of what is planned, 16 MiB on a DGX-1V, in turns on the same links. gloo goes around in the order of the ranks or
of a ring of links, Open MPI as it chooses; both take NVLink between GPUs that have one, else PCIe, and a ring in their
order stands for what could be expected. Where GPUs have no NVLink ring these and NCCL's fall back to PCIe.

"""

HYBRID = """
## NVLink and PCIe at once

Broadcast on a DGX-1V, PCIe staged in the hosts' memories by processes there: how much faster than NVLink alone, in the
paper's split for large data (`hybrid`) and as one forest on all links (`optimal`). Nothing is switched here. What
stands for T_dpa is by how much later a small call ends that uses both, and since this was measured the first calls of
`hybrid` find it: on sizes for which Eq 8 gains less, up to 64 KiB on 3 GPUs and 1 MiB on 8, it sends over NVLink alone.

"""


def write(path: Path, folder: Path, beside: Sequence[Path], both: Sequence[Path]) -> None:
    found = json.loads(path.read_text())
    sections = {(m, c): read(found, m, c) for m in MACHINES for c in COLLECTIVES}
    sections = {where: there for where, there in sections.items() if there}
    overview = [[f"{c}, {m}", str(len(there)), *summary(there)] for (m, c), there in sections.items()]
    every = [one for there in sections.values() for one in there]
    overview.append(["all", str(len(every)), *summary(every)])
    header = [
        "",
        "allocations",
        "optimal of plan",
        "blink of plan",
        "rings of plan",
        "trees over rings",
        "planned",
        "off",
    ]
    text = TEXT.format(
        size=", ".join(f"{one:,}" for one in sorted({entry["size_bytes"] for entry in found.values()})),
        runs=", ".join(map(str, sorted({len(some.runs) for one in every for some in one.by.values()}))),
        wrong=sum(entry["wrong"] for entry in found.values()),
        overview=table(header, overview),
    )
    for (machine, collective), there in sections.items():
        text += f"\n## {collective} on {machine}\n\n{detail(there)}"
    if beside:
        text += libraries(beside)
    if both:
        text += hybrid(both)
    (folder / "lab.md").write_text(text)
    draw(folder, sections)


TEXT = """# Trees and rings in the laboratory

`blink lab` builds a machine from network namespaces, with a shaped pair of devices per link ([design.md](design.md)).
Here it is a DGX-1V and a DGX-1P, on all 60 allocations of 3 to 8 GPUs that NVLink connects: {size} bytes of float32,
medians of {runs} runs in turns, every element checked ({wrong} wrong). Links keep their ratios; a lane (25 GB/s, on a
DGX-1P 20) has as many Mbit/s as two virtual cores hold for the allocation. Rates below are those of the machine's
links, in GB/s: what the same plan reaches if nothing but links counts. `rings` is all of NCCL 2.4's rings at once, over
PCIe where NVLink closes none. Written by `benchmarks/lab_allocations.py`.

Goals: geometric mean at least 0.90 of the plan, none under 0.80; the ratio within 10 % of the plans'.

{overview}
"of plan": geometric mean, and the least of all. "off": measured ratio of trees over rings against that of the plans.

![Fig 14](lab-fig-14.svg)
![Fig 15](lab-fig-15.svg)
![Fig 17](lab-fig-17.svg)
"""


def draw(folder: Path, sections: Mapping[tuple[str, str], Sequence[Allocation]]) -> None:
    """Blink's Figs 14, 15 and 17 from what was measured, and what the paper prints."""
    plt = pyplot()
    plt.rcParams["svg.hashsalt"] = "lab"  # the same picture is the same file
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    boxes = {}
    for (machine, collective), there in sections.items():
        boxes[f"{collective}\n{machine}\nmeasured"] = [one.speedup() for one in there]
        boxes[f"{collective}\n{machine}\nplanned"] = [one.planned_speedup() for one in there]
    axes.boxplot(list(boxes.values()), tick_labels=list(boxes), whis=(5, 95), widths=0.6)
    axes.tick_params(axis="x", labelsize=7)
    drawing.published_level(axes, 6, "published: up to 6× in theory")
    drawing.finish(axes, "Fig 14: trees over rings", "times as fast", grid="y")
    _save(figure, folder / "lab-fig-14.svg")
    for number, collective, published in ((15, "broadcast", (6, 2)), (17, "allreduce", (8, 2))):
        there = sections.get(("dgx-1v", collective), ())
        if there:
            _allocations(folder / f"lab-fig-{number}.svg", f"Fig {number}: {collective}", published, there)


def _allocations(path: Path, title: str, published: tuple[float, float], there: Sequence[Allocation]) -> None:
    figure, (above, below) = pyplot().subplots(2, 1, figsize=(13, 7), sharex=True, layout="constrained")
    groups = [",".join(map(str, one.gpus)) for one in there]
    names = {"optimal": "optimal trees", "blink": "Blink's trees", "ring": "NCCL's rings"}
    heights = {names[how]: [one.by[how].gb_per_s for one in there] for how in ALGORITHMS}
    width = drawing.bars(above, groups, heights, (drawing.OURS, drawing.SKY, drawing.THEIRS))
    for place, how in enumerate(ALGORITHMS):
        places = [at + (place - 1) * width for at in range(len(groups))]
        planned = [one.by[how].plan for one in there]
        label = "_" if place else "planned"
        above.plot(places, planned, "_", color=drawing.BLACK, markersize=5, zorder=3, label=label)
    title = f"{title} on the {len(groups)} allocations of a DGX-1V, measured in the laboratory"
    drawing.finish(above, title, "algbw (GB/s)", legend="upper left", columns=4, grid="y")
    speedups = [one.speedup() for one in there]
    mean = geometric_mean(speedups)
    name = f"optimal trees over rings: up to {max(speedups):.2g}×, geometric mean {mean:.3g}×"
    below.plot(groups, speedups, "o", markersize=5, color=drawing.OURS, label=name)
    drawing.published_level(below, published[0], f"published: up to {published[0]:g}×")
    drawing.published_level(below, published[1], f"published: geometric mean {published[1]:g}×", "--")
    below.set_ylim(0, 1.3 * max(*published, *speedups))
    drawing.upright(below)
    below.set_xlabel("GPUs")
    drawing.finish(below, ylabel="speed-up (×)", legend="upper left", columns=3)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    pyplot().close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--libraries", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--hybrid", type=Path, nargs="*", default=[], metavar="FILE")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.file, arguments.write, arguments.libraries, arguments.hybrid)
    else:
        measure(arguments.file, arguments.size, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
