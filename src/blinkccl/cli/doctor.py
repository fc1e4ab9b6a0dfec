"""``blink doctor``: diagnose this machine, or the files of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED

if TYPE_CHECKING:
    from blinkccl.apps.doctor.evidence import Case, Evidence

#: Width of a report without a terminal: it goes into tickets and logs, where long lines are cut or need scrolling.
PIPED_WIDTH = 120

HELP = """
Examples:

\b
  blink doctor                                   this machine
  blink doctor -g 4 --measure                    for four ranks on CPUs, with a short measurement
  blink doctor run.log                           nccl-tests output, NCCL_DEBUG=INFO lines, PyTorch's watchdog
  blink doctor run.log node7.xml                 several files of one run together
  blink doctor run.log --topo dgx-1v --gpus 1,4,5,6
  blink doctor run.log "topo.txt @ pcie=gen5"    a matrix, and the rates that it leaves open
  blink doctor ras.json                          the rank that a hanging job waits for
  blink doctor node7.json                        a file of blink topo --gather, from another machine

For each problem, print expected against measured, the cause, and one command to try.

\b
Formats, known by content: nccl-tests (text, -J), NCCL_DEBUG=INFO lines, NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE,
nvidia-smi topo -m and nvlink -s, lspci -vvv, ncclras (text, JSON), NCCL Inspector, PyTorch's flight recorder
and watchdog, blink topo --gather and --json, blink bench --json, blink dump --json, a file with a line per cable.

Exit code 1: a problem was found, or nothing could be read; 0: no problem was found. Evidence without a known machine
cannot be judged: the verdict says so, and --json lists it in not_judged. "p2p" in --json is one verdict on P2P.
"""


def doctor(
    files: Annotated[
        list[Path] | None,
        Argument(metavar="[FILE]...", help="Files, or folders of them; - reads stdin. Default: this machine."),
    ] = None,
    topo: Annotated[str | None, Option("--topo", metavar="SPEC", help="The machine, if no file describes it.")] = None,
    gpus: arguments.Gpus = None,
    ranks: Annotated[int | None, Option("--ranks", "-g", min=1, help="Number of CPU ranks to run here.")] = None,
    measure: Annotated[
        bool, Option("--measure", help="On CPUs: also time an AllReduce between -g processes (2); a second or two.")
    ] = False,
    json: arguments.Json = False,
) -> None:
    """Diagnose files, or this machine."""
    from blinkccl.apps.doctor.diagnose import diagnose

    case = _files(files, topo) if files or topo else _here(ranks, measure)
    _choose(case, topo, gpus)
    diagnosis = diagnose(case)
    if json:
        console.emit_json(diagnosis.document())
    else:
        console.emit(diagnosis.text(console.paint(), console.width() or PIPED_WIDTH))
    if diagnosis.wrong or not diagnosis.known:
        raise typer.Exit(CHECK_FAILED)


def _files(files: list[Path] | None, topo: str | None) -> Case:
    from msgspec.structs import replace

    from blinkccl.apps.doctor.evidence import Location, MachineRead
    from blinkccl.apps.doctor.reading import read_files
    from blinkccl.topology.spec import machine_named

    named = [str(file) for file in files or ()]
    if topo is not None and machine_named(topo) is None and Path(_file_of(topo)).is_file() and topo not in named:
        named.append(topo)  # read like the others, for the GPUs' names and all else that it holds
    #: By file: its name with rates behind it ("node7.txt @ pcie=gen5").
    rated = {_file_of(name): name for name in named if " @ " in name}
    with console.Progress("reading") as bar:
        case = read_files([Path(_file_of(name)) for name in named], bar)
    for number, piece in enumerate(case.pieces):
        if isinstance(piece, MachineRead) and piece.place.source in rated:
            spec = rated[piece.place.source]
            case.pieces[number] = replace(piece, place=Location(spec), topology=arguments.load(spec)[0])
    if topo is not None and all(machine.place.source != topo for machine in case.of(MachineRead)):
        case.pieces.append(MachineRead(Location(topo), arguments.load(topo)[0]))
    return case


def _file_of(spec: str) -> str:
    return spec.partition(" @ ")[0]


def _here(ranks: int | None, measure: bool) -> Case:
    from msgspec.structs import replace

    from blinkccl.apps.doctor import gathered
    from blinkccl.apps.doctor.evidence import THIS_MACHINE, Case, Host

    case = Case()
    case.add(gathered.pieces(arguments.gathered(), THIS_MACHINE))
    case.read[THIS_MACHINE] = gathered.looked_at(case.pieces)
    case.pieces = [replace(one, ranks=ranks) if isinstance(one, Host) else one for one in case.pieces]
    if measure:
        case.add(_measured(min(ranks or 2, case.of(Host)[-1].cpus)))
    return case


def _measured(ranks: int) -> list[Evidence]:
    """The result of ``blink bench`` on these processors, in a process of its own; [] after a note if it fails."""
    import json
    import subprocess
    import sys

    from blinkccl.apps.doctor.readers.documents import benchmark

    typed = ["bench", "allreduce", "-g", str(max(2, ranks)), "-b", "16M", "-e", "16M", "--json"]
    ended = subprocess.run([sys.executable, "-m", "blinkccl", *typed], capture_output=True, text=True, check=False)
    if ended.returncode:
        console.note(f"blink {' '.join(typed)} failed: {ended.stderr.strip()[-300:]}")
        return []
    return list(benchmark(json.loads(ended.stdout), f"blink {' '.join(typed)}"))


def _choose(case: Case, topo: str | None, gpus: str | None) -> None:
    """Turn ``--gpus`` into vertices of the machine that was read."""
    if gpus is None:
        return
    from blinkccl.apps.doctor.evidence import MachineRead
    from blinkccl.topology.spec import parse_gpus

    machines = case.of(MachineRead)
    if not machines:
        raise typer.BadParameter("--gpus needs a machine, and no file describes one: give --topo SPEC too")
    case.gpus = parse_gpus(gpus, machines[-1].topology)
