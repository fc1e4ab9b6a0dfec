"""``blink export``: a plan in the format of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED
from blinkccl.cli.removed import refuse_removed
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.formats.registry import File

HELP = """
Examples:

\b
  blink plan allreduce --topo dgx-1v --gpus 1,4,5,6 -o plan.json
  blink export plan.json --to cuda                 the code that GPUs would run
  blink export plan.json --to cuda -o plan.cu
  blink export rings.json --to nccl-graph -o x.xml
  blink export plan.json --to mscclpp -o ag.json   an execution plan for MSCCL++; --in-place for in-place calls
  blink export plan.json --to mscclpp --chunks 16  the same, with weights rounded to 16 chunks per block
  blink export plan.json --to goal -s 64M          a schedule for LogGOPSim and ATLAHS
  blink export plan.json --to chakra -s 64M -o ar  traces for ASTRA-sim: ar.0.et, ar.1.et, …
  blink export --to nccl-graph --topo dgx-1v --gpus 0-5     the best rings for NCCL on these GPUs, without a plan
  blink export --to mscclpp --topo dgx-h100 --in-place      an AllReduce reduced in the NVSwitch (NVLS)
  blink plan allgather --topo ring:4 --json | blink export - --to cuda --json

Check the plan and its program like blink check, and write the program in another format.

\b
Formats:
  cuda        CUDA C++ for nvcc, NVRTC, or any C++17 compiler: one loop per rank and lane, one kernel per protocol
  nccl-graph  NCCL_GRAPH_FILE: NCCL's kernels run the rings of the plan (--algo ring), or the best rings. One server,
              GPUs 0 to 9
  mscclpp     MSCCL++ execution plan (JSON); without a plan, AllReduce reduced in the switch (Hopper and later).
              Chunks: as many as the weights need, or --chunks. The file is read back and proved before it is written
  goal        GOAL, for LogGOPSim, ATLAHS and htsim: messages and reductions of one size (-s), and their dependencies
  chakra      Chakra execution traces of one size, for ASTRA-sim (…-implementation-custom): a file per rank, -o PREFIX

Exit code 1: the plan is false or its program invalid; blink check lists the faults. 2: the file is no plan, or the
format cannot express it.
"""


PlanOrNot = Annotated[
    Path | None,
    Argument(
        metavar="[PLAN]",
        help="File written by blink plan -o; - reads stdin. Default: nccl-graph: the best rings; "
        "mscclpp: AllReduce in the switch.",
    ),
]


def export(
    path: PlanOrNot = None,
    to: Annotated[str, Option("--to", metavar="FORMAT", help="cuda, nccl-graph, mscclpp, goal or chakra.")] = "",
    spec: Annotated[
        str | None,
        Option(
            "--topo",
            metavar="SPEC",
            help="The plan's machine: needed if the plan's file has no topology, and to compare with NCCL's own rings "
            "on all links.",
        ),
    ] = None,
    gpus: Annotated[str | None, Option("--gpus", metavar="IDS", help="Without a plan: GPUs of the job.")] = None,
    in_place: Annotated[
        bool, Option("--in-place", help="mscclpp: for calls whose input and output share memory.")
    ] = False,
    chunks: Annotated[
        int | None,
        Option("--chunks", metavar="N", help="mscclpp: round the weights to N chunks per block of data."),
    ] = None,
    size: Annotated[
        str | None,
        Option("--size", "-s", metavar="SIZE", help="goal, chakra: bytes as nccl-tests counts, such as 64M."),
    ] = None,
    chunk: Annotated[
        str | None,
        Option(
            "--chunk",
            metavar="SIZE",
            help="goal, chakra: bytes per message; default: chosen by the simulator's pipeline model.",
        ),
    ] = None,
    json: arguments.Json = False,
    output: Annotated[
        Path | None,
        Option("-o", "--output", metavar="FILE", help="Write to FILE; chakra: to FILE.0.et, FILE.1.et, …"),
    ] = None,
) -> None:
    """Write the plan as ``--to``, to standard output or to a file."""
    from blinkccl.api.export import exported, packed
    from blinkccl.formats.registry import FORMATS, Choices, format_of
    from blinkccl.schedule.text import program_hash

    if not to:
        raise typer.BadParameter(f"--to is missing: give one of {', '.join(FORMATS)}")
    refuse_removed(f"export --to {to}")
    row = format_of(to)
    if row.per_rank and output is None and not json:
        raise UsageError(f"--to {to} writes one binary file per rank: give -o PREFIX, or --json")
    if output is not None:
        console.check_writable(output.with_name(f"{output.name}.0.et") if row.per_rank else output)
    choices = Choices(in_place, chunks, _bytes("-s", size), _bytes("--chunk", chunk))
    row.check(choices, plan=path is not None)
    if path is None:
        _write(packed(*arguments.load(spec, gpus), to, choices), {"format": to}, json, output)
        return
    if gpus is not None:
        raise UsageError(f"--gpus {gpus}: the plan has its own ranks; leave --gpus out")
    source, checked = arguments.audited(path, spec)
    if not checked.ok or checked.program is None:
        faults = checked.all_faults
        console.error(
            f"{source} is not exported: {len(faults)} of its statements or steps are wrong, the "
            f"first: {faults[0]}; blink check lists them"
        )
        raise typer.Exit(CHECK_FAILED)
    machine = None if spec is None else arguments.load(spec)[0]
    files = exported(checked.program, checked.forest, to, choices, machine)
    about = {
        "format": to,
        "collective": checked.program.collective.name,
        "ranks": list(checked.program.ranks),
        "program": program_hash(checked.program),
    }
    _write(files, about, json, output)


def _bytes(option: str, text: str | None) -> int | None:
    from blinkccl.cost.simulate.run import parse_size

    size_bytes = None if text is None else parse_size(option, text)
    if size_bytes == 0:
        raise UsageError(f"{option} {text}: expected at least one byte")
    return size_bytes


def _write(files: Sequence[File], about: dict[str, Any], json: bool, output: Path | None) -> None:
    for note in filter(None, (file.note for file in files)):
        console.note(note)
    if output is not None:
        paths = _paths(output, files)
        console.check_files(*paths)
        for path, file in zip(paths, files, strict=True):
            if file.data is None:
                console.write_file(path, file.text)
            else:
                console.write_bytes(path, file.data)
    if json:
        named = [{"name": file.name, **_content(file)} for file in files]
        console.emit_json({**about, "files": named})
    elif output is None:
        console.emit("\n".join(file.text for file in files))


def _paths(output: Path, files: Sequence[File]) -> list[Path]:
    """PREFIX plus the rank for files per rank; else FILE for the first, and its directory for the others."""
    if files[0].data is not None:
        return [output.with_name(f"{output.name}.{file.name.partition('.')[2]}") for file in files]
    return [output, *(output.with_name(file.name) for file in files[1:])]


def _content(file: File) -> dict[str, str]:
    from base64 import b64encode

    return {"text": file.text} if file.data is None else {"base64": b64encode(file.data).decode()}
