"""Plans exported to MSCCL++: limits of the format, and correctness of the files.

Every plan is written, and read back by a reader that shares no code with the export. It is verified and run on whole
numbers in two orders of its thread blocks against the collective's definition.

    python benchmarks/exports.py [-o exports.md] [--astra-sim FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import astra_sim

from blinkccl.api import export
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import Collective
from blinkccl.engines.reference import run as run_program
from blinkccl.errors import BlinkError
from blinkccl.formats.foreign import mscclpp
from blinkccl.formats.foreign.verify import SERVED, audit
from blinkccl.formats.mscclpp import MOST_BLOCKS
from blinkccl.formats.registry import Choices
from blinkccl.proof.audit import audit as audit_plan
from blinkccl.schedule.lower import lower
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.nccl_graph import parse as parse_graphs
from blinkccl.topology.spec import parse_gpus, parse_spec
from blinkccl.trees.algorithms.given_channels import forest_of
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import to_document
from blinkccl.trees.forest.model import Forest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.foreign_files import run

#: Jobs: the catalog, allocations without a ring or with unequal links, clusters, rules.
JOBS = (
    ("dgx-1v", None),
    ("dgx-1v", "1,4,5,6"),
    ("dgx-1v", "0,1,3,4,5,7"),
    ("dgx-1p", None),
    ("dgx-2", None),
    ("dgx-a100", "0,3,5,6"),
    ("hgx-h100", None),
    ("mi300x", None),
    ("mi250", None),
    ("mist", None),
    ("pcie-8gpu", None),
    ("2x dgx-1v @ 100Gbps", "0,1,2+1,2"),
    ("2x dgx-a100 @ 200Gbps", None),
    ("torus:3x3", None),
    ("random:8:seed=3", None),
)
#: A prime that serves as the common denominator of two trees' weights.
PRIME = 1_000_000_007


@dataclass(frozen=True)
class Row:
    """An export; ``reason``: why nothing was written; else the use of the file's limits."""

    job: str
    collective: str
    reason: str = ""
    chunks: int = 0
    blocks: int = 0
    steps: int = 0
    channels: int = 0


def forest_for(spec: str, gpus: str | None, name: str, algo: str = "optimal") -> Forest:
    topology = parse_spec(spec)
    ranks = parse_gpus(gpus, topology)
    root = 0 if name in ("broadcast", "reduce", "gather") else None
    return ALGORITHMS[algo].plan(Request(topology, Collective(name, len(ranks), root=root), ranks))


def fullness(text: str) -> tuple[int, int, int]:
    """The most thread blocks of a GPU, and operations and channels of a thread block."""
    gpus = json.loads(text)["gpus"]
    listed = [tb for gpu in gpus for tb in gpu["threadblocks"]]
    return (
        max(len(gpu["threadblocks"]) for gpu in gpus),
        max(sum(1 + len(op.get("ops", ())) for op in tb["ops"]) for tb in listed),
        max(len(channels["channel_ids"]) for tb in listed for channels in tb["channels"]),
    )


def row(job: str, forest: Forest, in_place: bool = False) -> Row:
    """Export a plan and check the file completely."""
    name = forest.collective.name
    try:
        (file,) = export.exported(lower(forest), forest, "mscclpp", Choices(in_place))
    except BlinkError as error:
        return Row(job, name, str(error))
    return Row(job, name, "", judged(job, file.text, forest, in_place), *fullness(file.text))


def judged(job: str, text: str, forest: Forest, in_place: bool) -> int:
    """Number of chunks of a block; AssertionError if the file breaks a guarantee."""
    report = audit(mscclpp.read(text.encode(), job))
    assert report.faults == (), report.faults[0]
    assert (report.plan.collective, report.plan.in_place) == (forest.collective, in_place)
    sizes = report.plan.judged_bytes or (0,)
    for plan in [report.plan.sized(size) for size in sizes] if report.plan.sized else [report.plan]:
        inputs = make_inputs(forest.collective, plan.chunks, "int32")
        wanted = oracle(forest.collective, inputs)
        for seed in (None, 1):
            assert mismatch(run(plan, inputs, seed=seed), wanted, plan.chunks) is None
    return report.plan.chunks


def jobs() -> Iterator[Row]:
    """A row per job and collective."""
    for spec, gpus in JOBS:
        for name in SERVED:
            yield row(f"`{spec}`{f' {gpus}' if gpus else ''}", forest_for(spec, gpus, name))


def allocations() -> tuple[list[Row], int]:
    """Rows of all classes of allocations of a DGX-1V (AllReduce in place, AllGather out of place), and their number."""
    classes = connected_allocations("dgx-1v")
    rows = []
    for gpus in classes:
        named = ",".join(map(str, gpus))
        for name in ("allreduce", "allgather"):
            rows.append(row(named, forest_for("dgx-1v", named, name), name == "allreduce"))
    return rows, len(classes)


def of_prime(forest: Forest) -> Forest:
    """The same trees with weights whose common denominator is :data:`PRIME`."""
    shares = list(forest.shares)
    shift = Fraction(1, PRIME)
    shares[0] = replace(shares[0], weight=shares[0].weight + shift)
    shares[1] = replace(shares[1], weight=shares[1].weight - shift)
    return replace(forest, shares=tuple(shares))


def refusals() -> Iterator[str]:
    """Plans that do not fit, with the error message."""
    cases = [
        ("mscclpp", "alltoall of 72 GPUs", lambda: forest_for("gb200-nvl72", None, "alltoall", "one_hop")),
        ("mscclpp", f"weights over the prime {PRIME:,}", lambda: of_prime(forest_for("ring:4", None, "broadcast"))),
        ("mscclpp", "gather", lambda: forest_for("ring:4", None, "gather")),
        ("nccl-graph", "trees of a DGX-1V", lambda: forest_for("dgx-1v", "1,4,5,6", "allreduce")),
    ]
    for form, about, make in cases:
        forest = make()
        try:
            export.exported(lower(forest), forest, form)
        except BlinkError as error:
            yield f"- `{form}`, {about}: {error}"
        else:
            raise AssertionError(f"{form}, {about}: written")


def graph_row(spec: str, gpus: str | None) -> str:
    """Rings for NCCL, read back as a plan, checked, lowered, verified and run."""
    forest = forest_for(spec, gpus, "allreduce", "ring")
    try:
        file = export.exported(lower(forest), forest, "nccl-graph", machine=parse_spec(spec))[0]
    except BlinkError as error:
        return f"| `{spec}` {gpus or ''} | {error} |"
    back = forest_of(parse_graphs(file.text, "export"), parse_spec(spec), "allreduce")
    report = audit_plan(to_document(back), source="export")
    assert report.ok, report.all_faults
    program = lower(back)
    inputs = make_inputs(back.collective, 96, "int32")
    outputs = run_program(program, inputs, CollectiveCall.of(back.collective, "int32", 96, "sum"), chunk_bytes=64)
    assert mismatch(outputs, oracle(back.collective, inputs), 96) is None
    return f"| `{spec}` {gpus or ''} | {len(back.shares)} shares, yes |"


def switch_row(spec: str, gpus: str | None, in_place: bool) -> str:
    """Export of an in-network reduction, with the same checks."""
    topology = parse_spec(spec)
    forest = forest_for(spec, gpus, "allreduce")
    (file,) = export.packed(topology, forest.ranks, "mscclpp", Choices(in_place))
    judged(spec, file.text, forest, in_place)
    return f"| `{spec}`{f' {gpus}' if gpus else ''} | {'in' if in_place else 'out of'} place | yes |"


def table(rows: list[Row]) -> list[str]:
    lines = [
        f"| job | collective | chunks | blocks of {MOST_BLOCKS} | operations of {mscclpp.MOST_OPERATIONS} | "
        f"channels of {mscclpp.MOST_CHANNELS} | read, verified, equal |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        full = f"{one.chunks} | {one.blocks} | {one.steps} | {one.channels} | yes"
        lines.append(f"| {one.job} | {one.collective} | {f' | | | | {one.reason}' if one.reason else full} |")
    return lines


def summary(rows: list[Row]) -> str:
    """Number of exports that were written."""
    wrote = [one for one in rows if not one.reason]
    return f"{len(wrote)} of {len(rows)} written, all read back, verified and equal to the oracle"


def page() -> Iterator[str]:
    yield from (*PREFACE.splitlines(), "")
    rows, (shaped, classes) = list(jobs()), allocations()
    yield f"{summary(rows)}."
    yield f"All {classes} classes of allocations of a DGX-1V, AllReduce in place and AllGather: {summary(shaped)}."
    refused = Counter(one.reason for one in shaped if one.reason)
    yield from ("", "## Plans", "", *table(rows), *(f"\n{why}" for why in refused))
    yield from ("", "## Rings for NCCL", "", "| job | read back |", "|---|---|")
    for spec, gpus in (("dgx-1v", None), ("dgx-1v", "0-5"), ("dgx-2", "0-7"), ("hgx-h100", None), ("mi300x", None)):
        yield graph_row(spec, gpus)
    yield from ("", "## AllReduce in the switch", "", "| job | calls | read, verified, equal |", "|---|---|---|")
    for spec, gpus in (("hgx-h100", None), ("hgx-h100", "0-3"), ("hgx-h200", None), ("dgx-b200", None)):
        for in_place in (False, True):
            yield switch_row(spec, gpus, in_place)
    yield from ("", "## Refused", "", *refusals())


PREFACE = """# Exports

    python benchmarks/exports.py -o benchmarks/exports.md

This page checks the files that `blink export --to mscclpp` writes for optimal plans ([how](../docs/howto/export.md)).
A reader that knows nothing of exports reads each file back and proves it for every order of thread blocks. It also
runs the file on whole numbers in two of these orders and compares the result with the collective's definition.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="the page")
    parser.add_argument("--astra-sim", type=Path, help="the folder of its analytical binaries, to run traces there too")
    options = parser.parse_args()
    traces = ""
    if options.astra_sim:
        traces = "\n".join(astra_sim.section(options.astra_sim.resolve())) + "\n"
    elif options.output and options.output.exists():  # Keep the results of an earlier run.
        traces = "".join(options.output.read_text().partition(astra_sim.TITLE)[1:])
    text = "\n".join(page()) + "\n" + (f"\n{traces}" if traces else "")
    if options.output:
        options.output.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
