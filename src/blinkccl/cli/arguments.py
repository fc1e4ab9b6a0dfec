"""Options shared by several verbs, and their conversion to topologies, ranks and collectives."""

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
    """Shell completions of a collective's name."""
    from blinkccl.collectives.spec import COLLECTIVES

    return [name for name in COLLECTIVES if name.startswith(incomplete)]


def _machines(incomplete: str) -> list[str]:
    """Shell completions of a topology, beside files."""
    from blinkccl.topology.catalog import ALIASES, CATALOG

    return [name for name in [*CATALOG, *ALIASES] if name.startswith(incomplete)]


def spelled(name: str) -> str:
    """The collective's own name for one of PyTorch or nccl-tests; any other text unchanged."""
    from blinkccl.collectives.spec import SPELLINGS

    return SPELLINGS.get(name, name)


CollectiveName = Annotated[
    str,
    Argument(
        metavar="COLLECTIVE",
        autocompletion=_collectives,
        callback=spelled,
        help="broadcast, reduce, allreduce, allgather, reduce_scatter, gather, scatter, alltoall or sendrecv; "
        "all_reduce, all_gather and all_to_all work too.",
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
        help="Ranks of the job, in order: 1,4,5,6 or GPU1,GPU4 or 0-3; on several servers: 0,1,2+0,3,4. sendrecv sends "
        "from the first to the last. Default: all.",
    ),
]
Links = Annotated[
    str | None,
    Option(
        "--links",
        metavar="fast|pcie|staged|all",
        help="fast: NVLink or xGMI, and PCIe only if a server has none of these; between servers the network. "
        "pcie: PCIe alone. staged: PCIe through the hosts' memories. all: every link. Default: the first that connects "
        "the GPUs.",
    ),
]
Root = Annotated[
    int | None,
    Option(
        "--root",
        "-r",
        metavar="ID",
        help="Root of broadcast, reduce, gather or scatter, numbered as in --gpus; default: the first rank.",
    ),
]
#: Listed by hand, because help is shown before any registry is loaded.
_NAMES = (
    "optimal, blink, ring, double_binary_tree, one_hop, one_shot, internal_broadcast, flat, three_stage, three_phase, "
    "hybrid or multi_path"
)
Algorithm = Annotated[
    str,
    Option(
        "--algo",
        metavar="NAME",
        help=f"auto (optimal; with --size the fastest), {_NAMES}.",
    ),
]
Algorithms = Annotated[
    str | None,
    Option(
        "--algo",
        metavar="NAMES",
        help=f"all, or some of auto, {_NAMES}, separated by commas; with --topo and without -g only one.",
    ),
]
Relays = Annotated[bool, Option("--relays", help="Let GPUs outside --gpus forward data.")]
Plan = Annotated[Path, Argument(metavar="PLAN", help="File written by blink plan -o; - reads stdin.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Output = Annotated[Path | None, Option("-o", "--output", metavar="FILE", help="Write to FILE.")]


def typed(**options: object) -> list[str]:
    """The names of the options that were typed: those that are neither None nor False."""
    return [f"--{name}" for name, value in options.items() if value is not None and value is not False]


def one_spec(behind: str | None, spec: str | None) -> str | None:
    """The topology from behind the collective or from ``--topo``; UsageError if both are typed."""
    if behind is not None and spec is not None:
        raise UsageError(f"the topology is {behind} and --topo {spec}: leave one out")
    return spec if behind is None else behind


def load(spec: str | None, gpus: str | None = None, option: str = "--gpus") -> tuple[Topology, tuple[int, ...]]:
    """The topology that ``--topo`` names (None: this machine, ``-``: standard input), and the ranks in ``gpus``.

    ``option`` is the option of ``gpus``, for messages.
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
    """The name of a plan file in messages, and its audit, on the links of ``--topo`` if given.

    ``content`` is the file's content if it has been read. An NCCL graph file is accepted as a plan: its rings are the
    plan of an AllReduce.
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
            raise UsageError(f"--links {links}: an NCCL graph file names its own links; leave --links out")
        return source, audit(_channels(content, source, spec), source=source)
    document = loads(content, source)
    if "vertices" in document and "collective" not in document:
        raise UsageError(
            f"{source}: expected a plan, got a topology; blink plan COLLECTIVE --topo {source} -o FILE makes a plan"
        )
    if "gpus" in document and "shares" not in document:
        raise UsageError(f"{source}: expected a plan of blink, got an MSCCL++ execution plan; blink check verifies it")
    return source, audit(document, None if spec is None else load(spec)[0], links, source)


def may_be_graph_file(path: Path) -> bool:
    """True if ``path`` is an NCCL graph file; also for standard input, which is not read here."""
    if not path.is_file():
        return str(path) == "-"
    with path.open("rb") as file:
        return is_xml(file.read(512))


def refuse_false(source: str, faults: Sequence[str]) -> None:
    """Exit with code 1 if the plan named ``source`` has false statements."""
    if faults:
        console.error(f"{source} is not a correct plan: {'; '.join(faults[:3])} (blink check lists all faults)")
        raise typer.Exit(CHECK_FAILED)


def is_xml(content: bytes) -> bool:
    """True for XML: of the inputs that hold a plan, only NCCL graph files are XML."""
    return content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _channels(content: bytes, source: str, spec: str | None) -> dict[str, Any]:
    """The plan of an NCCL graph file, as a document to check: its channels on the machine."""
    from blinkccl.topology import nccl_graph
    from blinkccl.topology.limits import MAX_FILE_BYTES
    from blinkccl.trees.algorithms.given_channels import forest_of
    from blinkccl.trees.forest.document import to_document

    if len(content) > MAX_FILE_BYTES:
        raise TopologyError(f"{source}: expected an NCCL graph file of at most {MAX_FILE_BYTES >> 20} MiB, got more")
    try:
        graphs = nccl_graph.parse(content.decode("utf-8-sig"), source)
    except UnicodeDecodeError as error:
        raise TopologyError(f"{source}: byte {content[error.start]:#04x} is no UTF-8 text") from None
    if spec is None:
        raise UsageError(f"{source}: an NCCL graph file has no links: give its machine as --topo SPEC")
    try:
        return to_document(forest_of(graphs, load(spec)[0], "allreduce"))
    except UnsupportedError as error:
        raise UnsupportedError(f"{source}: {error}") from None


def this_machine() -> Topology:
    """The machine of this process; HardwareError if its driver fails."""
    from blinkccl.topology.probe import probe

    try:
        return probe()
    except (TopologyError, UnsupportedError) as error:
        raise HardwareError(str(error)) from error


def has_gpus(topology: Topology) -> bool:
    """True if the ranks are GPUs, False if they are processors."""
    return topology.vertex[topology.ranks[0]].kind == "gpu"


def gathered(nccl_xml: str | None = None) -> dict[str, Any]:
    """The document of this machine that ``blink topo --gather`` writes; errors as in :func:`this_machine`."""
    from blinkccl.apps.doctor.this_machine import gather

    try:
        return gather(nccl_xml)
    except (TopologyError, UnsupportedError) as error:
        raise HardwareError(str(error)) from error


def collective(name: str, ranks: Sequence[int], root: int | None = None) -> Collective:
    """The collective among ``ranks``; ``root`` is a vertex id."""
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
    """The request to plan; ``lost`` lists failed links and GPUs, as ``--without`` takes them."""
    from blinkccl.api.job import request as request_of

    topology, ranks = load(spec, gpus)
    if lost is not None:
        topology, ranks = _after_loss(topology, ranks, lost)
    return request_of(topology, ranks, name, (root, None, None), (links, relays), "--", console.note)


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
        raise UsageError(f"--without {lost}: these are all GPUs of the job; expected some to be left")
    return without(topology, pairs, gone), left


def path_table(path: Path, topology: Topology) -> PathTable | None:
    """The table of paths in a file; None, after a note with the reason, if it is not for this machine."""
    from blinkccl.trees.algorithms import path_table as tables

    content = console.read_file(path, tables.MAX_FILE_BYTES)
    try:
        return tables.from_json(content, tables.machine_key(topology), console.source_name(path))
    except TopologyError as error:
        console.note(f"{error}; the file is ignored")
        return None


def measured(path: Path | None, topology: Topology, here: bool = False) -> MeasuredTable | None:
    """The table of measurements in a file; None, after a note with the reason, if it is not for this machine.

    ``here``: without a file, use the table that ``blink tune`` wrote for GPUs of such a machine.
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
        console.note(f"{error}; the file is ignored")
        return None


def write_path_row(path: Path, topology: Topology, row: PairSplits, source: str, kind: str) -> None:
    """Add a row to the table in ``path``; a table of another machine or kind is replaced."""
    from blinkccl.trees.algorithms import path_table as tables

    old = path_table(path, topology) if path.is_file() and path.stat().st_size else None
    table = tables.PathTable(tables.machine_key(topology), topology.name, source, kind=kind)
    if old is not None and old.kind == kind:
        text = source if old.source == source else f"{old.source}; {source}"[:200]
        table = tables.PathTable(table.machine, table.name, text, old.pairs, kind)
    elif old is not None:
        console.note(f"{path}: the new paths, {source}, replace the old ones, {old.source}")
    with console.written(path):
        tables.write(path, table.merged(row))
