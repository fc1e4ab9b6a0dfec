"""``blink diff``: what became of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from blinkccl.cli import arguments, console
from blinkccl.cli.exits import CHECK_FAILED
from blinkccl.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from blinkccl.forest.model import Forest

HELP = """
Examples:

\b
  blink diff before.json after.json                      rate, time by size, links and trees side by side
  blink diff before.json after.json --size 1M,64M
  blink diff plan.json graph.xml --topo dgx-1v           against the rings of an NCCL graph file
  blink plan allreduce --topo dgx-1v --algo ring --json | blink diff plan.json - --json
  blink diff old.json new.json --exit-code >diff.txt     1 if they differ, for scripts

Set two plans of one collective side by side: after another algorithm, allocation, link or version. Says which is
faster from which size on, which links carry something else, and which trees are in one plan only. Both are checked
first, as by blink check; times are those of blink sim --plan.

Exit code 0, whether they differ or not, as a difference is no fault; with --exit-code 1 if they do. Shares in another
order, another algorithm's name or another proof make no other plan.
"""

PlanA = Annotated[Path, Argument(metavar="A", help="What blink plan -o wrote; - reads stdin.")]
PlanB = Annotated[Path, Argument(metavar="B", help="Another one, of the same collective among as many ranks.")]


def diff(
    a: PlanA,
    b: PlanB,
    size: Annotated[
        str | None, Option("--size", "-s", metavar="SIZES", help="Sizes to time: 1M,64M; default: 4K, 16K, ..., 1G.")
    ] = None,
    spec: Annotated[
        str | None,
        Option(
            "--topo",
            metavar="SPEC",
            help="A topology that must have both plans' links; needed where one brings none, as an NCCL graph file.",
        ),
    ] = None,
    exit_code: Annotated[bool, Option("--exit-code", help="End with 1 if the plans differ.")] = False,
    json: arguments.Json = False,
) -> None:
    """Read both, compare, print."""
    from blinkccl.advice.diff import SIZES, compare
    from blinkccl.advice.diff_text import diff_document, diff_text

    if [str(a), str(b), spec].count("-") > 1:
        raise typer.BadParameter("- is given twice, and standard input can be read once")
    sizes = SIZES if size is None else _sizes(size)
    forests = _forests((a, b), spec)
    with console.Progress("simulating") as progress:
        found = compare(*forests, sizes, progress)
    if json:
        console.emit_json(diff_document(found))
    else:
        names = console.source_name(a), console.source_name(b)
        console.emit(diff_text(found, names, console.paint(), console.width()))
    if exit_code and not found.same:
        raise typer.Exit(CHECK_FAILED)


def _sizes(text: str) -> list[int]:
    from blinkccl.simulate.run import parse_size

    sizes = sorted({parse_size("--size", part) for part in text.split(",")})
    if sizes[0] == 0:
        raise UsageError(f"--size {text}: nothing moves at 0 bytes; expected sizes from 1 on")
    return sizes


def _forests(paths: tuple[Path, Path], spec: str | None) -> tuple[Forest, Forest]:
    """Both plans, valid; a graph file is of the other's collective."""
    from blinkccl.foreign.formats import is_foreign
    from blinkccl.forest.document import MAX_BYTES

    contents = [console.read_file(path, MAX_BYTES) for path in paths]
    for path, content in zip(paths, contents, strict=True):
        if is_foreign(content):
            source = console.source_name(path)
            raise UnsupportedError(
                f"{source}: an MSCCL algorithm or MSCCL++ execution plan says which thread block copies what, and has "
                f"no links, rates or trees to compare; blink check {path} says whether it is right, and an NCCL graph "
                "file or a plan in our JSON can be compared"
            )
    graphs = [arguments.is_xml(content) for content in contents]
    found: dict[int, Forest] = {}
    for i in sorted((0, 1), key=lambda i: graphs[i]):
        collective = found[1 - i].collective.name if graphs[i] and found else None
        source, audit = arguments.audited(paths[i], spec, collective=collective, content=contents[i])
        arguments.refuse_false(source, audit.all_faults)
        found[i] = audit.forest
    return found[0], found[1]
