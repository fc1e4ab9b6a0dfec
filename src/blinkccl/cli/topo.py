"""``blink topo``: show the links of a machine, their rates, and the source of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.errors import TopologyError

if TYPE_CHECKING:
    from blinkccl.topology.model import Topology

HELP = """
Examples:

\b
  blink topo                                 this machine
  blink topo --list                          names of machines, rules, formats of files
  blink topo dgx-1v --gpus 1,4,5,6           the part of a machine that a job uses
  blink topo node7.txt --json                from "nvidia-smi topo -m" text; the links that a plan would use
  blink topo "node7.txt @ nvlink=50GB/s"     with a rate that nvidia-smi does not print; also pcie, smp, nic
  blink topo dgx-1v --links all -o x.xml     as NCCL topology XML (x.json, x.svg)
  blink topo "4x dgx-spark @ cables=ring"    machines joined by cables, without a switch
  srun blink topo --measure -o job.json      measure the networks between a job's hosts; for BLINK_TOPO=job.json
  blink topo --gather node7.json             all facts about this machine, for a report or blink doctor

Show a topology as a matrix like that of nvidia-smi (whose NODE is PHB here), with the source of every link.

Text and files show all links unless --links is given; --json shows those that a plan would use (--links fast).
"""


def topo(
    spec: Annotated[str | None, Argument(metavar="SPEC", help="Topology; default: this machine.")] = None,
    gpus: arguments.Gpus = None,
    links: Annotated[str | None, Option("--links", metavar="fast|pcie|staged|all", help="Links to show.")] = None,
    known: Annotated[bool, Option("--list", help="List the machines, rules and formats of files.")] = False,
    json: arguments.Json = False,
    output: arguments.Output = None,
    measure: Annotated[
        bool,
        Option("--measure", help="Measure the networks between hosts; start it on each, as with srun."),
    ] = False,
    gather: Annotated[
        Path | None,
        Option(
            "--gather",
            metavar="FILE",
            help="Write the facts of NVML, sysfs and the kernel about this machine, without any that identify it.",
        ),
    ] = None,
) -> None:
    """Print the topology as text or JSON, and write it to a file."""
    if known:
        if spec is not None:
            raise typer.BadParameter(f"--list takes no SPEC: leave {spec} out")
        _list(json)
        return
    if gather is not None:
        _gather(gather, spec)
        return
    if output is not None:
        _check_output(output)
    if measure:
        if spec is not None or gpus is not None:
            raise typer.BadParameter("--measure takes no SPEC and no --gpus: it measures the hosts of the job")
        measured = _measured()
        if measured is None:
            return
        topology, ranks = measured, measured.ranks
    else:
        topology, ranks = arguments.load(spec, gpus)
    whole = topology
    if gpus is not None or links is not None:
        whole = _cut_down(topology, ranks, "all" if links is None else links)
    if output is not None:
        _write(output, whole)
    if json:
        from blinkccl.topology.json_format import write

        console.emit(write(_as_planned(topology, ranks, links)))
    elif output is None:
        from blinkccl.show.topology_text import topology_text

        console.emit(topology_text(whole, console.paint(), console.width()))


def _list(json: bool) -> None:
    """Print the names and rules that SPEC may be, besides a file."""
    from blinkccl.topology.catalog import ALIASES, CATALOG
    from blinkccl.topology.formats import FORMATS
    from blinkccl.topology.synthetic import FAMILIES

    others = {name: [other for other, meant in ALIASES.items() if meant == name] for name in CATALOG}
    if json:
        machines = [{"name": name, "also": others[name], "about": row.about} for name, row in CATALOG.items()]
        rules = [{"form": family.form, "about": family.about} for family in FAMILIES.values()]
        console.emit_json({"machines": machines, "rules": rules})
        return
    lines = ["machines"]
    for name, row in CATALOG.items():
        also = f" (also {', '.join(others[name])})" if others[name] else ""
        lines.append(f"  {name:<26}  {row.about}{also}")
    lines += ["rules", *(f"  {family.form:<26}  {family.about}" for family in FAMILIES.values())]
    lines.append('several servers: "2x dgx-1v @ 40Gbps"; cables without a switch: "4x dgx-spark @ cables=ring"')
    lines.append('switches between them: "16x dgx-a100 @ fabric=tree:4:2", fabric=rails, fabric=dragonfly:4')
    lines.append(f"a file: {', '.join(form.name for form in FORMATS)}")
    console.emit_sentences("\n".join(lines) + "\n")


def _measured() -> Topology | None:
    """The topology between the hosts of this process's job, on rank 0; None on other ranks."""
    from blinkccl.runtime.communicator import init
    from blinkccl.runtime.probe import probe

    comm = init()
    try:
        with console.Progress("messages between hosts") as advance:
            topology = probe(comm.group, advance if comm.rank == 0 else lambda done, total: None)
        return topology if comm.rank == 0 else None
    finally:
        comm.close()


def _gather(path: Path, nccl_xml: str | None) -> None:
    """Write the facts of this machine to ``path``, with NCCL's dump of it if ``nccl_xml`` names one."""
    from blinkccl.apps.doctor.this_machine import summary
    from blinkccl.topology import limits
    from blinkccl.topology import nccl_xml as xml
    from blinkccl.trees.forest.document import dumps

    text = None
    if nccl_xml is not None:
        source = Path(nccl_xml)
        text = console.read_file(source, limits.MAX_FILE_BYTES).decode("utf-8", "replace")
        if not xml.looks_like(text):
            raise typer.BadParameter(f"{nccl_xml}: with --gather, expected a file written by NCCL_TOPO_DUMP_FILE")
    console.check_writable(path)
    document = arguments.gathered(text)
    console.write_file(path, dumps(document))
    console.note(f"{summary(document)}; blink doctor {path} reads it")


def _cut_down(topology: Topology, ranks: tuple[int, ...], links: str) -> Topology:
    from blinkccl.topology.select import network_for

    return network_for(topology, ranks, links, stored=False)


def _as_planned(topology: Topology, ranks: tuple[int, ...], links: str | None) -> Topology:
    """The links that a plan would use; all links, with a note, if the fast ones do not connect the ranks."""
    try:
        return _cut_down(topology, ranks, "fast" if links is None else links)
    except TopologyError as error:
        if links is not None:
            raise
        console.note(f"{error}; all links are shown")
        return topology


def _check_output(path: Path) -> None:
    """Refuse, before anything is read, a file that cannot be written."""
    if path.suffix not in _formats():
        raise typer.BadParameter(f"-o {path}: expected a name that ends in one of {', '.join(_formats())}")
    console.check_writable(path)


def _formats() -> dict[str, Callable[[Topology], str]]:
    from blinkccl.show.picture import folded, machine_picture
    from blinkccl.show.shapes import svg_file
    from blinkccl.topology.formats import WRITERS

    return {**WRITERS, ".svg": lambda topology: svg_file(folded(machine_picture(topology)))}


def _write(path: Path, topology: Topology) -> None:
    """Write the topology in the format of the suffix, and note the differences of a file that is read back."""
    text = _formats()[path.suffix](topology)
    if path.suffix == ".xml":
        from blinkccl.topology.nccl_xml_write import differences

        for difference in differences(topology, text):
            console.note(f"{path} loses facts that JSON would keep: read back, {difference}")
    console.write_file(path, text)
