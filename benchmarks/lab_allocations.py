"""Trees and rings in the laboratory, on all allocations of a DGX-1V and a DGX-1P that NVLink connects.

    python benchmarks/lab_allocations.py lab.json                measure what is not in the file yet (root, 20 minutes)
    python benchmarks/lab_allocations.py lab.json --write docs   the tables, from the file

Each machine is built once, with all links of all plans; for each allocation a lane is as fast as the processors hold,
and optimal trees, Blink's and all of NCCL's rings at once run in turns. ``--seconds`` ends it after so long, and the
next call goes on from there. The file of this package is reproduction/laboratory.json; ``--other`` takes those of
other sizes, of which the summary is written. ``--hybrid`` takes what ``blink lab broadcast --topo dgx-1v --gpus 0-2
--algo optimal@fast,hybrid@all,optimal@all -b 64K -e 64M -f 4 --json`` printed, for 0-2 to 0-7, and adds a table of it;
``--libraries`` likewise what ``--algo optimal,blink,ring,one_ring,gloo_links,gloo_ranks,openmpi`` printed, and
``--messages`` what ``blink lab sendrecv --topo mist --gpus 0,1 --algo multi_path,one_hop,path:0-4-1 --json`` did.
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
from blinkccl.show.text import bytes_text
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.request import Request

sys.path.insert(0, str(Path(__file__).parents[1]))

from reproduction.laboratory import Allocation, read

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
                (row,) = experiment.measure(field.ready(lab, 120.0), lab, [size], rounds, 120.0)
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
    alone, *names = ("optimal@fast", "hybrid@all", "optimal@all")
    by = {
        (row["algorithm"], len(document["ranks"]), row["size_bytes"]): row
        for document in found
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
    text = bytes_text(size_bytes)
    return f"{text[:-1]} {text[-1]}iB"


def _gain(row: Mapping[str, Any], alone: Mapping[str, Any]) -> str:
    """Of both over NVLink alone, in brackets where both are the same plan."""
    gain = f"{row['algbw_gb_per_s'] / alone['algbw_gb_per_s'] - 1:+.1%}"
    return f"({gain})" if row["plan_algbw_gb_per_s"] == alone["plan_algbw_gb_per_s"] else gain


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


def messages(documents: Sequence[Path]) -> str:
    """One message over all paths beside the direct one and the sum of what each path reaches alone."""
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
            rows.append([document["topology"], bytes_text(size), *cells])
    return MESSAGES + table(
        ["machine", "size", "multi_path", "direct", "ratio", "other paths", "of sum", "turns"], rows
    )


MESSAGES = """
## One message over all paths

`sendrecv` from GPU 0 to 1 of a socket of Mist (directly, and staged in its processor's memory by a process there) and
of Cedar (also through each of the two idle GPUs), medians in turns, GB/s of what the machine's links have. "Of sum" is
what part `multi_path` reaches of the direct path and all others, each alone; in brackets where its plan is the direct
path, as its first calls do not promise to save 5 %: that is chance.

"""

LIBRARIES = """
## AllReduce beside other libraries

GB/s of what is planned, 16 MiB on a DGX-1V, in turns on the same links. gloo goes around in the order of the ranks or
of a ring of links, Open MPI as it chooses; both take NVLink between GPUs that have one, else PCIe, and a ring in their
order stands for what could be expected. Where GPUs have no NVLink ring these and NCCL's fall back to PCIe.

"""

HYBRID = """
## NVLink and PCIe at once

Broadcast on a DGX-1V, PCIe staged in the hosts' memories by processes there: how much faster than NVLink alone, in the
paper's split (`hybrid`) and as one forest on all links (`optimal`). Medians of 41 turns up to 256 KiB, 25 of 1 MiB, 15
of 4 MiB, 7 of 16 MiB, 3 of 64 and 128 MiB, which stand for the 500 MB of Fig 21: on 8 GPUs a call takes 4 s.

The first calls of `hybrid`, ten of 64 KiB and of 4 MiB over NVLink, PCIe and both, decide for each size: PCIe gets what
Eq 8 says by the rates and the later end of both that they had, but no more than by the rates of its links, and nothing
where both are not 1 % faster. Then `hybrid` is the plan of NVLink alone, and what stands here, in brackets, is chance.

One forest for 8 GPUs used to lag, by 3 to 20 %. It was the basis of one program over all links: 31 trees, the least
with 1/31,824 of the data, and each cut into as many chunks as the largest. So 16 MiB were 25,000 messages of 5 KiB,
which kept both processors busy (95 %, NVLink alone 40 %): 0.917 of its plan. Now it is the six trees of NVLink and
three of PCIe, at the same proved rate. And 128 KiB in each buffer of a connection let trees over slow links drift by
100 ms: with 64 KiB `hybrid` went from 0.927 to 0.960 of its plan, NVLink alone from 0.961 to 0.965. What the simulator
finds below a plan's rate, 0.69 at 1 MiB and 0.99 at 64 MiB, is a pipeline of five hops that fills: NVLink alone has
0.71 and 0.99.

Nothing is switched here, so gains do not fall with T_dpa as in Fig 21, where they go from 5 GB/s (3 or 4 GPUs) to 2 (7
or 8). What PCIe adds is what its links carry, by the plans 12 GB/s for 3 GPUs and 6 for more: ever less beside NVLink.
Of 64 and 128 MiB some runs take 0.2 to 0.25 s longer, as long as TCP waits before it sends again, and medians of three
do not hide that: gains above the planned ones are NVLink's bad luck.

"""
Sections = dict[tuple[str, str], tuple[Allocation, ...]]


def sections_of(document: Mapping[str, Any]) -> Sections:
    """The allocations by machine and collective, where there are any."""
    sections = {(m, c): read(document, m, c) for m in MACHINES for c in COLLECTIVES}
    return {where: there for where, there in sections.items() if there}


def overview(documents: Sequence[Mapping[str, Any]]) -> str:
    """A line per collective, machine and size, and those of all of a size."""
    rows = []
    for document in documents:
        ((size,), sections) = {entry["size_bytes"] for entry in document.values()}, sections_of(document)
        parts = {f"{collective}, {machine}": there for (machine, collective), there in sections.items()}
        parts["**all**"] = tuple(one for there in sections.values() for one in there)
        rows += [[_size(size), name, str(len(there)), *summary(there)] for name, there in parts.items()]
    shown = ["size", "", "allocations", *(f"{how} of plan" for how in ("optimal", "blink", "rings"))]
    return table([*shown, "trees over rings", "planned", "off"], rows)


def write(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.write
    found = {
        name: entry
        for name, entry in json.loads(arguments.file.read_text()).items()
        if name.split()[0] in MACHINES and name.split()[1] in COLLECTIVES
    }
    documents = [found, *(json.loads(path.read_text()) for path in arguments.other)]
    documents.sort(key=lambda document: next(iter(document.values()))["size_bytes"])
    sections = sections_of(found)
    every = [one for document in documents for there in sections_of(document).values() for one in there]
    text = TEXT.format(
        sizes=", ".join(_size(next(iter(one.values()))["size_bytes"]) for one in documents),
        size=_size(next(iter(found.values()))["size_bytes"]),
        runs=", ".join(map(str, sorted({len(some.runs) for one in every for some in one.by.values()}))),
        wrong=sum(entry["wrong"] for document in documents for entry in document.values()),
        overview=overview(documents),
    )
    for (machine, collective), there in sections.items():
        text += f"\n## {collective} on {machine}\n\n{detail(there)}"
    if arguments.libraries:
        text += libraries(arguments.libraries)
    if arguments.hybrid:
        text += hybrid(arguments.hybrid)
    if arguments.messages:
        text += messages(arguments.messages)
    (folder / "lab.md").write_text(text)


TEXT = """# Trees and rings in the laboratory

`blink lab` builds a machine from network namespaces, with a shaped pair of devices per link ([running.md](running.md);
[how to run one](howto/laboratory.md)).
Here it is a DGX-1V and a DGX-1P, on all 60 allocations of 3 to 8 GPUs that NVLink connects: {sizes} of
float32, medians of {runs} runs in turns, every element checked ({wrong} wrong). Links keep their ratios; a lane (25
GB/s, on a DGX-1P 20) has as many Mbit/s as two virtual cores hold for the allocation. Rates below are those of the
machine's links, in GB/s: what the same plan reaches if nothing but links counts. `rings` is all of NCCL 2.4's rings at
once, over PCIe where NVLink closes none. Written by `benchmarks/lab_allocations.py`; the tables of
allocations are those of {size}.

`-o table.json` writes what each algorithm took into a table with the laboratory's scale; `blink explain` goes by it
with `--measured table.json`. It says which trees are faster on such links, and nothing of kernels: what libblink.so
takes stays predicted, or measured on GPUs.

Goals: geometric mean at least 0.90 of the plan, none under 0.80; the ratio within 10 % of the plans'.

{overview}
"of plan": geometric mean, and the least of all. "off": measured ratio of trees over rings against that of the plans.
All of a size are 120, both collectives on 60 allocations. Connections had buffers of 128 KiB here, and chunks up to
256: now both have 64 at most. Where chunks were larger than buffers, links stood still: AllReduces of 32 MiB in one
tree got 0.80 to 0.93 of their plans in chunks of 163 KiB. Two of them again, in chunks of 64: 0.982 for optimal trees
and 0.980 for Blink's on 0,1,2,4,7 of a DGX-1P (0.927 and 0.824 above), 0.971 and 0.982 on 0,3,6,7 of a DGX-1V (0.895
both).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--other", type=Path, nargs="*", default=[], metavar="FILE")
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
