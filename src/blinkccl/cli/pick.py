"""``blink pick``: rank sets of free GPUs."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from blinkccl.cli import arguments, console

HELP = """
Examples:

\b
  blink pick -k 3 --topo dgx-1v --free 0,1,4,6,7
  blink pick -k 4 --topo node7.txt --collective allgather --json

Rank all sets of K free GPUs by the rate of their optimal plan; at equal rates, by the rate that the best set of the
remaining GPUs would reach. A set that fast links do not connect is ranked on PCIe. All rates are nominal.
NCCL 2.4, of 2019, is the baseline of Blink's paper.
"""


def pick(
    size: Annotated[int, Option("-k", "--count", metavar="K", help="Number of GPUs that the job needs.")],
    spec: arguments.Spec = None,
    free: Annotated[str | None, Option("--free", metavar="IDS", help="Free GPUs; default: all.")] = None,
    name: Annotated[str, Option("--collective", metavar="NAME", help="The job's main collective.")] = "allreduce",
    links: arguments.Links = None,
    top: Annotated[int, Option("--top", metavar="N", min=1, help="Number of sets to show.")] = 5,
    json: arguments.Json = False,
) -> None:
    """Rank the sets and print the best and the worst."""
    from blinkccl.show.pick import rank_sets, ranking_text

    topology, ranks = arguments.load(spec, free, "--free")
    with console.Progress("sets") as progress:
        ranking = rank_sets(topology, ranks, size, name, links, progress)
    if json:
        console.emit_json(ranking.document(top))
    else:
        console.emit(ranking_text(ranking, top, console.paint(), console.width()))
