"""``blink explain``: the algorithm that runs a call, and the reasons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from blinkccl.cli import arguments, console
from blinkccl.errors import UsageError

if TYPE_CHECKING:
    from blinkccl.collectives.spec import Collective

HELP = """
Examples:

\b
  blink explain allreduce --size 64M --topo dgx-1v --gpus 1,4,5,6
  blink explain broadcast --size 1M --topo dgx-1p --root 3
  blink explain allgather --size 256M --topo node7.xml --json
  blink explain allreduce --size 1M -g 4              between processes of this host

Explain one call of this size: the choice of libblink.so, the fastest algorithm and its lead, NCCL's time, the
bound, and the parts of the time. If blink tune has measured GPUs of such a machine, its times are used, and the
report says so.
"""


def explain(
    name: arguments.CollectiveName,
    size: Annotated[str, Option("--size", "-s", metavar="SIZE", help="Bytes as nccl-tests counts them, such as 64M.")],
    behind: arguments.SpecBehind = None,
    spec: arguments.Spec = None,
    gpus: arguments.Gpus = None,
    root: arguments.Root = None,
    links: arguments.Links = None,
    relays: arguments.Relays = False,
    processes: Annotated[
        int | None,
        Option("-g", "--ranks", metavar="N", min=2, max=250, help="Explain a call between N processes on this host."),
    ] = None,
    measured: Annotated[
        Path | None,
        Option("--measured", metavar="FILE", help="Use times that blink tune or blink lab -o measured."),
    ] = None,
    why: Annotated[bool, Option("--why", help="Also list the algorithms that cannot serve the job, and why.")] = False,
    json: arguments.Json = False,
) -> None:
    """Explain one call."""
    from blinkccl.cost.baselines.candidate import Conditions
    from blinkccl.cost.simulate.calibration import calibration_for
    from blinkccl.cost.simulate.run import parse_size
    from blinkccl.show import explain as advice
    from blinkccl.show.explain import explain_document, explain_text

    size_bytes = parse_size("--size", size)
    spec = arguments.one_spec(behind, spec)
    used = arguments.typed(topo=spec, gpus=gpus, links=links, relays=relays, measured=measured)
    if processes is not None and used:
        raise UsageError(f"-g is for processes on this host's CPUs, {used[0]} for GPUs: leave one out")
    if processes is not None or (spec is None and not arguments.has_gpus(arguments.this_machine())):
        _on_cpus(arguments.collective(name, range(processes or 2), root), size_bytes, json)
        return
    request = arguments.request(name, spec, gpus, root, links, relays)
    table = arguments.measured(measured, request.topology, here=True)
    with console.Progress("planning") as progress:
        progress(0, 1)
        explanation = advice.explain(request, size_bytes, Conditions(calibration_for(request.topology)), table)
        progress(1, 1)
    if json:
        console.emit_json(explain_document(explanation))
    else:
        console.emit_sentences(explain_text(explanation, why))


def _on_cpus(collective: Collective, size_bytes: int, json: bool) -> None:
    from blinkccl.show.explain import explain_host

    explanation = explain_host(collective, size_bytes)
    if json:
        console.emit_json(explanation.document())
    else:
        console.emit_sentences(explanation.text())
