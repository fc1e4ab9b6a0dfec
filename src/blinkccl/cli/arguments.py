"""What several verbs take: the options, and how their texts become topologies, ranks and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from blinkccl.cli import console
from blinkccl.cli.exits import CHECK_FAILED, HardwareError
from blinkccl.errors import TopologyError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from blinkccl.collectives.spec import Collective
    from blinkccl.proof.audit import Audit
    from blinkccl.topology.model import Topology
    from blinkccl.trees.algorithms.path_table import PairSplits, PathTable
    from blinkccl.trees.algorithms.request import Request
    from blinkccl.trees.algorithms.tables import MeasuredTable


def _collectives(incomplete: str) -> list[str]:
    """What a shell completes a collective with."""
    from blinkccl.collectives.spec import COLLECTIVES

    return [name for name in COLLECTIVES if name.startswith(incomplete)]


def _machines(incomplete: str) -> list[str]:
    """What a shell completes a topology with, beside files."""
    from blinkccl.topology.catalog import ALIASES, CATALOG

    return [name for name in [*CATALOG, *ALIASES] if name.startswith(incomplete)]


CollectiveName = Annotated[
    str,
    Argument(
        metavar="COLLECTIVE",
        autocompletion=_collectives,
        help="broadcast, reduce, allreduce, allgather, reduce_scatter, gather, scatter, alltoall or sendrecv.",
    ),
]
Spec = Annotated[
    str | None, Option("--topo", metavar="SPEC", autocompletion=_machines, help="Topology; default: this machine.")
]
SpecBehind = Annotated[str | None, Argument(metavar="SPEC", autocompletion=_machines, help="The same as --topo SPEC.")]
Gpus = Annotated[
    str | None,
    Option(
        "--gpus",
        metavar="IDS",
        help="Ranks of the job, in order: 1,4,5,6, GPU1,GPU4 or 0-3; per server: 0,1,2+0,3,4. sendrecv: from the first "
        "to the last. Default: all.",
    ),
]
Links = Annotated[
    str | None,
    Option(
        "--links",
        metavar="fast|pcie|staged|all",
        help="fast: NVLink and its kin, PCIe where there is nothing else; between servers the network. staged: PCIe "
        "through the hosts' memories, as beside NVLink; all: both. Default: the first that joins the GPUs.",
    ),
]
Root = Annotated[
    int | None,
    Option(
        "--root",
        "-r",
        metavar="ID",
        help="Root of a rooted collective, as the topology numbers it; default: the first rank.",
    ),
]
#: By hand: help is shown before any registry is loaded.
_NAMES = (
    "optimal, blink, ring, double_binary_tree, one_hop, one_shot, internal_broadcast, flat, three_stage, three_phase, "
    "hybrid or multi_path"
)
Algorithm = Annotated[
    str,
    Option(
        "--algo",
        metavar="NAME",
        help=f"auto (= optimal; with --size the fastest), {_NAMES}.",
    ),
]
Algorithms = Annotated[
    str | None,
    Option(
        "--algo",
        metavar="NAMES",
        help=f"all, or some of auto, {_NAMES}, with commas between them; a plan in this process takes one.",
    ),
]
Relays = Annotated[bool, Option("--relays", help="Let GPUs outside --gpus pass data on.")]
Plan = Annotated[Path, Argument(metavar="PLAN", help="What blink plan -o wrote; - reads stdin.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Output = Annotated[Path | None, Option("-o", "--output", metavar="FILE", help="Write to FILE.")]


def typed(**given: object) -> list[str]:
    """The options that were typed, of these by their names."""
    return [f"--{name}" for name, value in given.items() if value is not None and value is not False]


def one_spec(behind: str | None, spec: str | None) -> str | None:
    """The topology that was typed behind the collective or after ``--topo``; UsageError if there are two."""
    if behind is not None and spec is not None:
        raise UsageError(f"the topology is {behind} and --topo {spec}: leave one out")
    return spec if behind is None else behind


def load(spec: str | None, gpus: str | None = None, option: str = "--gpus") -> tuple[Topology, tuple[int, ...]]:
    """The topology that ``--topo`` names (None: this machine, ``-``: standard input), and its ``gpus``.

    ``option`` is for which they were typed.
    """
    from blinkccl.topology.spec import parse_gpus, parse_spec

    file, behind, text = (spec or "").partition("@")
    if spec is None:
        topology = this_machine()
    elif file.strip() == "-":
        from blinkccl.topology.formats import parse_topology
        from blinkccl.topology.limits import MAX_FILE_BYTES
        from blinkccl.topology.stated import NOTHING, parse_stated

        stated = parse_stated(text, repr(spec)) if behind else NOTHING
        content = console.read_file(Path("-"), MAX_FILE_BYTES)
        topology = parse_topology(content, console.source_name(Path("-")), "stdin", stated)
    else:
        topology = parse_spec(spec)
    return topology, parse_gpus(gpus, topology, option)


def audited(
    path: Path,
    spec: str | None = None,
    links: str | None = None,
    content: bytes | None = None,
) -> tuple[str, Audit]:
    """A plan file, checked on the links of ``--topo`` where that is given, and what messages call the file.

    ``content`` is what the file has, where it has been read. An NCCL graph file is one too: its rings as the plan of an
    AllReduce.
    """
    from blinkccl.proof.audit import audit
    from blinkccl.trees.forest.document import MAX_BYTES, loads

    if str(path) == "-" and spec == "-":
        raise typer.BadParameter("both the plan and --topo are -, and standard input can be read once")
    source = console.source_name(path)
    if content is None:
        content = console.read_file(path, MAX_BYTES)
    if is_xml(content):
        if links is not None:
            raise UsageError(f"--links {links}: the channels of a graph file say which links they take")
        return source, audit(_channels(content, source, spec), source=source)
    document = loads(content, source)
    if "vertices" in document and "collective" not in document:
        raise UsageError(
            f"{source}: this is a topology, and a plan is wanted here: blink plan --topo {source} makes one"
        )
    if "gpus" in document and "shares" not in document:
        raise UsageError(f"{source}: a plan of MSCCL++ has no links or trees; blink check says whether it is right")
    return source, audit(document, None if spec is None else load(spec)[0], links, source)


def may_be_graph_file(path: Path) -> bool:
    """Whether what ``path`` names is an NCCL graph file and no plan; standard input may be, and is not read here."""
    if not path.is_file():
        return str(path) == "-"
    with path.open("rb") as file:
        return is_xml(file.read(512))


def refuse_false(source: str, faults: Sequence[str]) -> None:
    """End with code 1 where the plan that ``source`` names states what is not so."""
    if faults:
        console.error(f"{source} is not what it says it is: {'; '.join(faults[:3])} (blink check says all)")
        raise typer.Exit(CHECK_FAILED)


def is_xml(content: bytes) -> bool:
    """Whether it can only be an NCCL graph file among what plans are read from."""
    return content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _channels(content: bytes, source: str, spec: str | None) -> dict[str, Any]:
    """What is to be checked of an NCCL graph file: the plan of its channels on the machine."""
    from blinkccl.topology import nccl_graph
    from blinkccl.topology.limits import MAX_FILE_BYTES
    from blinkccl.trees.algorithms.given_channels import forest_of
    from blinkccl.trees.forest.document import to_document

    if len(content) > MAX_FILE_BYTES:
        raise TopologyError(f"{source}: larger than {MAX_FILE_BYTES >> 20} MiB; no graph file is")
    try:
        graphs = nccl_graph.parse(content.decode("utf-8-sig"), source)
    except UnicodeDecodeError as error:
        raise TopologyError(f"{source}: byte {content[error.start]:#04x} is no UTF-8 text") from None
    if spec is None:
        raise UsageError(f"{source}: a graph file has no links: give --topo SPEC, the machine that it is of")
    try:
        return to_document(forest_of(graphs, load(spec)[0], "allreduce"))
    except UnsupportedError as error:
        raise UnsupportedError(f"{source}: {error}") from None


def this_machine() -> Topology:
    """The machine this runs on; that its driver fails is a :class:`HardwareError`."""
    from blinkccl.topology.probe import probe

    try:
        return probe()
    except (TopologyError, UnsupportedError) as error:
        raise HardwareError(str(error)) from error


def has_gpus(topology: Topology) -> bool:
    """Whether ranks are GPUs there, and not processors."""
    return topology.vertex[topology.ranks[0]].kind == "gpu"


def gathered(nccl_xml: str | None = None) -> dict[str, Any]:
    """What there is to say of this machine, as ``blink topo --gather`` writes it; errors as :func:`this_machine`."""
    from blinkccl.apps.doctor.this_machine import gather

    try:
        return gather(nccl_xml)
    except (TopologyError, UnsupportedError) as error:
        raise HardwareError(str(error)) from error


def collective(name: str, ranks: Sequence[int], root: int | None = None) -> Collective:
    """The collective among ``ranks`` with the root that was typed."""
    from blinkccl.api.job import collective_of

    return collective_of(name, ranks, (root, None, None), "--")


def request(
    name: str,
    spec: str | None,
    gpus: str | None,
    root: int | None,
    links: str | None,
    relays: bool,
    lost: str | None = None,
) -> Request:
    """What to plan; ``lost`` are the links and the GPUs that have failed."""
    from blinkccl.api.job import request as asked

    topology, ranks = load(spec, gpus)
    if lost is not None:
        topology, ranks = _after_loss(topology, ranks, lost)
    return asked(topology, ranks, name, (root, None, None), (links, relays), "--", console.note)


def _after_loss(topology: Topology, ranks: tuple[int, ...], lost: str) -> tuple[Topology, tuple[int, ...]]:
    """The topology and the ranks without the links and the GPUs that ``--without`` names."""
    from blinkccl.topology.loss import parse_pairs, without
    from blinkccl.topology.spec import parse_gpus

    links, gpus = ([part for part in lost.split(",") if ("-" in part) is linked] for linked in (True, False))
    pairs = parse_pairs(",".join(links), "--without") if links else ()
    gone = parse_gpus(",".join(gpus), topology, "--without") if gpus else ()
    strangers = [gpu for gpu in gone if gpu not in ranks]
    if strangers:
        raise UsageError(f"--without {lost}: GPU {strangers[0]} is no rank of the job")
    left = tuple(rank for rank in ranks if rank not in gone)
    if not left:
        raise UsageError(f"--without {lost}: these are all GPUs of the job, and none is left")
    return without(topology, pairs, gone), left


def path_table(path: Path, topology: Topology) -> PathTable | None:
    """The table of paths in a file; None, and a line that says why, where it is none for this machine."""
    from blinkccl.trees.algorithms import path_table as tables

    content = console.read_file(path, tables.MAX_FILE_BYTES)
    try:
        return tables.from_json(content, tables.machine_key(topology), console.source_name(path))
    except TopologyError as error:
        console.note(f"{error}; it is ignored")
        return None


def measured(path: Path | None, topology: Topology, here: bool = False) -> MeasuredTable | None:
    """The table of measurements in a file; None, and a line that says why, where it is none for this machine.

    ``here``: without a file, what ``blink tune`` measured on GPUs of such a machine.
    """
    from blinkccl.trees.algorithms import tables
    from blinkccl.trees.algorithms.path_table import machine_key

    if path is None:
        key = machine_key(topology)
        return tables.read_or_ignore(tables.path_of_gpus(key), key) if here else None
    content = console.read_file(path, tables.MAX_FILE_BYTES)
    try:
        return tables.from_json(content, machine_key(topology), console.source_name(path))
    except UsageError as error:
        console.note(f"{error}; it is ignored")
        return None


def write_path_row(path: Path, topology: Topology, row: PairSplits, source: str, kind: str) -> None:
    """Puts a row into the table in ``path``: into that of this machine and kind, or in the place of another."""
    from blinkccl.trees.algorithms import path_table as tables

    there = path_table(path, topology) if path.is_file() and path.stat().st_size else None
    table = tables.PathTable(tables.machine_key(topology), topology.name, source, kind=kind)
    if there is not None and there.kind == kind:
        text = source if there.source == source else f"{there.source}; {source}"[:200]
        table = tables.PathTable(table.machine, table.name, text, there.pairs, kind)
    elif there is not None:
        console.note(f"{path} has paths {there.source}, these are {source}: they take their place")
    with console.written(path):
        tables.write(path, table.merged(row))
