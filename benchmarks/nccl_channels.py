"""Comparison of Blink's model of NCCL's search with NCCL itself, on every set of GPUs of a machine.

    python benchmarks/nccl_channels.py [--versions 2.27.5,2.30.7] [--machines dgx-1v,"2x dgx-a100"] [--sets 40]

Each version's library is a wheel from PyPI, kept in ``nccl`` of BLINK_CACHE or of Blink's cache directory, or the file
that ``--library`` names. Both get the same machine, NCCL as a topology file. Compared are, for rings and for chains,
the number of channels, GB/s of each, the farthest kind of path and whether all are the same; and that NCCL's own orders
fit the links of the model. ``2x`` compares the channels of each of two servers, where each GPU has its network card.
``--nvls`` prints NCCL's NVLS graphs, which the model lacks. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path

from nccl_wheel import WHEELS, Graph, Wheel, fetched

from blinkccl.cost.baselines.nccl_links import ARCHS, BROADWELLS, OLDER_AMD, VERSION
from blinkccl.cost.baselines.nccl_search import Chains, Channels, search
from blinkccl.cost.baselines.nccl_system import NcclMachine, see
from blinkccl.private_files import cache_directory
from blinkccl.topology.catalog import machine
from blinkccl.topology.fabric import compose
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import Topology
from blinkccl.topology.nccl_xml_write import write

DEFAULT_MACHINES = "dgx-1v,dgx-a100,hgx-h100"
BROADWELL_MODEL = "79"
#: NCCL's number of a family: 23, for which topology files have 25.
OLDER_AMD_FAMILY = "143"


@dataclass(frozen=True, slots=True)
class Job:
    """Some GPUs of one server, or the same ones of two servers."""

    spec: str
    one: Topology
    gpus: tuple[int, ...]
    servers: int
    nic_gb_per_s: Fraction | None

    @property
    def name(self) -> str:
        return f"{self.spec} {','.join(map(str, self.gpus))}"

    def expected(self, version: tuple[int, int] = VERSION) -> Channels:
        """The model's channels for a version of NCCL."""
        if self.servers == 1:
            return search(self.one, self.gpus, version=version)
        joined = compose(self.one, self.servers, self.nic_gb_per_s)
        size = len(self.one.ranks)
        ranks = [server * size + gpu for server in range(self.servers) for gpu in self.gpus]
        return search(joined, ranks, version=version)

    def file(self) -> str:
        """The server as NCCL's topology file, with the job's GPUs and the network cards marked as NCCL marks them."""
        root = ET.fromstring(write(self.one if self.nic_gb_per_s is None else _alone(self.one, self.nic_gb_per_s)))
        for gpu in root.iter("gpu"):
            number = int(gpu.attrib.pop("rank"))
            gpu.set("sm", str(ARCHS[guess_arch(self.one)].sm))
            if number in self.gpus:
                gpu.set("rank", str(self.gpus.index(number)))
                gpu.set("keep", "1")
        for net in root.iter("net") if self.servers > 1 else ():
            net.attrib |= {"keep": "1", "rail": "-1", "plane": "-1"}  # the last two since 2.32
        for cpu in root.iter("cpu") if self.one.name in BROADWELLS else ():
            cpu.set("modelid", BROADWELL_MODEL)
        for cpu in root.iter("cpu") if self.one.name in OLDER_AMD else ():
            cpu.set("familyid", OLDER_AMD_FAMILY)
        return ET.tostring(root, encoding="unicode")


def _alone(one: Topology, nic_gb_per_s: Fraction) -> Topology:
    """A server with its network cards, without the network."""
    both = compose(one, 1, nic_gb_per_s)
    here = {v.id for v in both.vertices if v.server == 0}
    links = tuple(x for x in both.links if x.src in here and x.dst in here)
    return replace(both, vertices=tuple(v for v in both.vertices if v.id in here), links=links)


def jobs(spec: str, most: int | None) -> list[Job]:
    """All sets of two and more GPUs of a machine, or about ``most`` of them, evenly spread."""
    count, _, rest = spec.rpartition("x ")
    name, _, rate = rest.partition(" @ ")
    servers = int(count or 1)
    nic = Fraction(rate.removesuffix("Gbps")) / 8 if rate else None
    one = machine(name)
    # On a DGX-2 all sets of one size are equivalent.
    sets = [
        gpus
        for size in range(2 if servers == 1 else 1, len(one.ranks) + 1)
        for gpus in (combinations(one.ranks, size) if len(one.ranks) <= 8 else [one.ranks[:size], one.ranks[-size:]])
    ]
    step = max(1, len(sets) // most) if most else 1
    return [Job(spec, one, gpus, servers, nic) for gpus in sets[::-1][::step]]


def differences(job: Job, rings: Graph, chains: Graph, version: tuple[int, int] = VERSION) -> Iterator[str]:
    """A sentence for each difference between NCCL and the model."""
    expected = job.expected(version)
    across = job.servers > 1
    for what, graph, predicted in (
        ("rings", rings, _figures(expected, expected.count, across)),
        ("chains", chains, _figures(expected.tree, len(expected.tree.orders), across) if expected.tree else None),
    ):
        actual = (graph.count, graph.gb_per_s, graph.kind, *(graph.net_gb_per_s,) * across)
        if actual != predicted:
            yield f"{what}: NCCL {_text(actual)}, model {_text(predicted)}"
    if rings.same != expected.same:
        yield f"rings: NCCL {'the same' if rings.same else 'different'}, model not"
    (server,) = see(job.one, job.gpus, expected.arch, version)
    for what, graph in (("rings", rings), ("chains", chains)) if not across and len(job.gpus) > 1 else ():
        for arc in _overfull(server, graph, closed=what == "rings"):
            yield f"{what}: NCCL's own do not fit the model's link {arc}"


def _figures(channels: Channels | Chains, count: int, across: bool) -> tuple[object, ...]:
    return (count, channels.gb_per_s_per_channel, channels.kind, *(channels.net_gb_per_s_per_channel,) * across)


def _text(figures: tuple[object, ...] | None) -> str:
    return "none" if figures is None else " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in figures)


def _overfull(server: NcclMachine, graph: Graph, *, closed: bool) -> list[tuple[int, int]]:
    """Links of the model that NCCL's channels overload, beyond NCCL's own rounding."""
    used: dict[tuple[int, int], Fraction] = {}
    for order in graph.orders:
        for pair in pairwise((*order, order[0]) if closed else order):
            for arc, share in server.hops[pair].load:
                used[arc] = used.get(arc, Fraction(0)) + share * Fraction(str(graph.gb_per_s))
    return [arc for arc, gb_per_s in used.items() if gb_per_s > server.capacity[arc] * Fraction("1.001")]


def _libraries(arguments: argparse.Namespace) -> Iterator[Path]:
    if arguments.library:
        yield arguments.library
        return
    directory = cache_directory(os.environ, "nccl")
    if directory is None:
        raise SystemExit("wheels need a directory: set BLINK_CACHE, or HOME, or give --library")
    for version in arguments.versions.split(","):
        yield fetched(version, directory)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per version and machine, and the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", default=",".join(WHEELS))
    parser.add_argument("--library", type=Path)
    parser.add_argument("--machines", default=DEFAULT_MACHINES)
    parser.add_argument("--sets", type=int)
    parser.add_argument("--nvls", action="store_true")
    arguments = parser.parse_args(argv)
    wrong = 0
    for library in _libraries(arguments):
        wheel = Wheel(library)
        for spec in arguments.machines.split(","):
            wrong += _compared(wheel, jobs(spec, arguments.sets), arguments.nvls)
    return 1 if wrong else 0


def _compared(wheel: Wheel, sample: Sequence[Job], nvls: bool) -> int:
    version = ".".join(map(str, wheel.version))
    differing: Counter[str] = Counter()
    shown: list[str] = []
    for job in sample:
        rings, chains, *more = wheel.search(job.file(), across=job.servers > 1, nvls=nvls)
        sentences = list(differences(job, rings, chains, wheel.version[:2]))
        differing.update({sentence.partition(":")[0] for sentence in sentences})
        shown += [f"    {job.name}: {sentence}" for sentence in sentences]
        shown += [f"    {job.name}: NVLS {_text((x.count, x.gb_per_s, x.kind))}" for x in more]
    counts = ", ".join(f"{differing[what]} with other {what}" for what in ("rings", "chains") if differing[what])
    print(f"NCCL {version}, {sample[0].spec}: {len(sample)} sets of GPUs, {counts or 'all alike'}")
    print(*shown, sep="\n", end="\n" * bool(shown), flush=True)
    return len(differing)


if __name__ == "__main__":
    sys.exit(main())
