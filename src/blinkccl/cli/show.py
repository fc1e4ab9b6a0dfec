"""``blink show``: a picture and a page of a machine or a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.errors import ScheduleError

if TYPE_CHECKING:
    from blinkccl.show.page import Exhibit
    from blinkccl.topology.model import Topology

HELP = """
Examples:

\b
  blink show plan.json -o plan.html                      a page: machine, trees, bottleneck, what moves when
  blink show plan.json -o plan.svg                       one picture, for a paper or a slide
  blink show dgx-1v -o machine.svg
  blink show node7.txt -o machine.html                   "nvidia-smi topo -m" text
  blink plan broadcast --topo dgx-2 --json | blink show - -o plan.html

Show what a file holds: a plan or a topology. The end of the name given to -o chooses what is written: .html (one file
that needs no network), .svg or .txt; without -o it is text on standard output.
"""

#: Plans with more hops are not checked before they are shown: that takes longer than a person waits.
MOST_CHECKED_HOPS = 40_000


def show(
    what: Annotated[str, Argument(metavar="FILE|SPEC", help="A plan or a topology; a machine's name; - reads stdin.")],
    spec: Annotated[
        str | None,
        Option("--topo", metavar="SPEC", help="The machine of a plan; default: the one that it names."),
    ] = None,
    gpus: arguments.Gpus = None,
    size: Annotated[
        str, Option("--size", "-s", metavar="SIZE", help="A plan: what moves when, for so many bytes.")
    ] = "64M",
    json: arguments.Json = False,
    output: arguments.Output = None,
) -> None:
    """Read, and write in the form that the suffix names."""
    if output is not None:
        _check_output(output)
    exhibit = _exhibit(what, spec, gpus, size)
    from blinkccl.show import page

    if json:
        console.emit_json(page.exhibit_document(exhibit))
    if output is None:
        if not json:
            console.emit(exhibit.text(console.width()))
        return
    console.write_file(output, page.exhibit_file(exhibit, output))


def _check_output(path: Path) -> None:
    """Refuse what could not be written, before any work."""
    from blinkccl.show.page import check_form

    check_form(path)
    console.check_writable(path)


def _exhibit(what: str, spec: str | None, gpus: str | None, size: str) -> Exhibit:
    from blinkccl.show import show as shown
    from blinkccl.trees.forest.document import MAX_BYTES

    path = Path(what)
    is_file = what == "-" or path.is_file()
    content = console.read_file(path, MAX_BYTES) if is_file else b""
    document = _document(content, console.source_name(path)) if is_file else None
    if document is None or ("vertices" in document or "blink_gather" in document):
        _refuse("--topo", spec, "a topology is the machine itself")
        return shown.of_topology(_topology(what, content if is_file else None, gpus))
    _refuse("--gpus", gpus, "a plan has its own")
    machine = None if spec is None else arguments.load(spec)[0]
    source = console.source_name(path)
    if "shares" in document:
        return _of_plan(document, machine, source, size)
    keys = ", ".join(list(document)[:6]) or "nothing"
    raise ScheduleError(
        f"{source}: no plan or topology: it has {keys[:200]}; expected what blink plan -o or blink topo -o wrote "
        "(times are drawn by --plot of blink sim and lab)"
    )


def _refuse(option: str, given: str | None, why: str) -> None:
    if given is not None:
        raise typer.BadParameter(f"{option} {given}: {why}; leave it out")


def _document(content: bytes, source: str) -> dict[str, Any] | None:
    """The JSON object in a file; None where it is something else."""
    from blinkccl.trees.forest.document import loads

    if content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
        return None
    return loads(content, source)


def _topology(what: str, content: bytes | None, gpus: str | None) -> Topology:
    from blinkccl.topology.formats import parse_topology
    from blinkccl.topology.select import network_for
    from blinkccl.topology.spec import parse_gpus

    if content is None:
        topology = arguments.load(what)[0]
    else:
        topology = parse_topology(content, console.source_name(Path(what)), Path(what).name)
    if gpus is None:
        return topology
    return network_for(topology, parse_gpus(gpus, topology), "all", stored=False)


def _of_plan(document: dict[str, Any], machine: Topology | None, source: str, size: str) -> Exhibit:
    """The exhibit of a plan; ends with code 1 where it states what is not so."""
    from blinkccl.cost.simulate.run import parse_size
    from blinkccl.proof.audit import audit
    from blinkccl.show.show import of_plan, shape_fault
    from blinkccl.trees.forest.document import from_document, stated_hops

    size_bytes = parse_size("--size", size)
    if stated_hops(document) > MOST_CHECKED_HOPS:
        try:
            forest = from_document(document)
        except ScheduleError as error:
            raise ScheduleError(f"{source}: {error}") from None
        fault = shape_fault(forest)
        faults = [fault] if fault else []
        console.note(f"{source} is too large to be checked on the way: blink check {source} does it")
    else:
        found = audit(document, machine, source=source)
        forest, faults = found.forest, found.all_faults
    arguments.refuse_false(source, faults)
    return of_plan(forest, machine, "plan.json" if source == "standard input" else source, size_bytes)
