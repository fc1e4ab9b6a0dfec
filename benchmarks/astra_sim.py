"""Chakra traces of plans in ASTRA-sim, compared with ``blink sim`` on the same links; a section of ``exports.py``.

ASTRA-sim gets the network of our simulator: its rate, its latency, and the chunks of the traces. Its analytical
networks are a ring, a full mesh or a switch with equal links. With ``aware``, messages wait for a busy link; with
``unaware`` each message has the whole rate.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from blinkccl.api import export
from blinkccl.collectives.spec import Collective
from blinkccl.cost.simulate.calibration import calibration_for
from blinkccl.cost.simulate.run import Simulation, simulate
from blinkccl.formats import chakra
from blinkccl.formats.registry import Choices
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_gpus, parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

#: Job, GPUs, and ASTRA-sim's name of the network. In the last job, GPUs need time for sums.
JOBS = (
    ("ring:4", None, "Ring"),
    ("ring:8", None, "Ring"),
    ("clique:4", None, "FullyConnected"),
    ("clique:8", None, "FullyConnected"),
    ("star:4", None, "Switch"),
    ("star:8", None, "Switch"),
    ("dgx-1p", "0-3", "FullyConnected"),
)
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce")
SIZES = {"1 MiB": 2**20, "8 MiB": 2**23, "64 MiB": 2**26}
#: ASTRA-sim's name of a collective that a trace can replace, and its number in Chakra. All others run as AllReduce.
SLOTS = {"allreduce": ("all-reduce", 0), "allgather": ("all-gather", 2), "alltoall": ("all-to-all", 6)}
SLOTS["reduce_scatter"] = ("reduce-scatter", 7)
NETWORKS = ("aware", "unaware")
#: Bytes per second of ASTRA-sim's GB/s.
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """Seconds of ``blink sim``, and of ASTRA-sim by network and with the trace as the workload (``alone``)."""

    job: str
    collective: str
    size: str
    blink: float
    aware: float
    unaware: float
    alone: float


def network_file(kind: str, ranks: int, of: Simulation) -> str:
    """ASTRA-sim's network file for the links of ``of``, which have one rate and one latency."""
    workload = of.translation.workload
    hops = workload.hops
    links = hops.path_of[1:] - hops.path_of[:-1]
    (rate,) = {float(rate) for rate in workload.rates}
    (latency_ns,) = {round(1e9 * float(s) / int(n), 3) for s, n in zip(hops.latency_s, links, strict=True)}
    assert not any(hops.signal_s)
    rows = {"topology": kind, "npus_count": ranks, "bandwidth": rate / GIB, "latency": latency_ns}
    return "".join(f"{name}: [ {value} ]\n" for name, value in rows.items())


def workload_file(number: int, size: int) -> bytes:
    """The workload of a rank: one collective."""
    node = chakra._number(1, 1) + chakra._text(2, "collective") + chakra._number(3, 7)
    for name, kind, value in (("is_cpu_op", "bool", 0), ("comm_type", "int64", number), ("comm_size", "int64", size)):
        node += chakra._field(10, chakra._attribute(name, kind, value))
    return b"".join(chakra._varint(len(one)) + one for one in (chakra._text(1, chakra.SCHEMA), node))


def finished(folder: Path, binary: Path, workload: str, ranks: int) -> float:
    """Seconds until the last rank finishes."""
    options = {"workload": workload, "system": "system.json", "remote-memory": "memory.json", "network": "network.yml"}
    command = [str(binary), *(f"--{name}-configuration={value}" for name, value in options.items())]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
    ends = dict(re.findall(r"sys\[(\d+)\] finished, (\d+) cycles", done.stdout))
    assert len(ends) == ranks, f"{len(ends)} of {ranks} ranks end: {done.stdout[-500:]}{done.stderr[-500:]}"
    return max(map(int, ends.values())) * 1e-9


def row(astra: Path, job: str, gpus: str | None, kind: str, forest: Forest, size: str) -> Row:
    program = lower(forest)
    simulation = simulate(program, forest.topology, calibration_for(forest.topology), SIZES[size])
    slot, number = SLOTS.get(forest.collective.name, SLOTS["allreduce"])
    ranks = len(forest.ranks)
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = export.exported(program, forest, "chakra", Choices(size_bytes=SIZES[size]))
        for rank, file in enumerate(files):
            (folder / f"plan.{rank}.et").write_bytes(file.data or b"")
            (folder / f"workload.{rank}.et").write_bytes(workload_file(number, SIZES[size]))
        system = {"scheduling-policy": "FIFO", "preferred-dataset-splits": 1, f"{slot}-implementation-custom": ["plan"]}
        (folder / "system.json").write_text(json.dumps(system))
        (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
        (folder / "network.yml").write_text(network_file(kind, ranks, simulation))
        aware, unaware = (astra / f"AstraSim_Analytical_Congestion_{name.title()}" for name in NETWORKS)
        return Row(
            f"`{job}`{f' {gpus}' if gpus else ''}",
            forest.collective.name,
            size,
            simulation.seconds,
            finished(folder, aware, "workload", ranks),
            finished(folder, unaware, "workload", ranks),
            finished(folder, aware, "plan", ranks),
        )


def rows(astra: Path) -> Iterator[Row]:
    for job, gpus, kind in JOBS:
        topology = parse_spec(job)
        ranks = parse_gpus(gpus, topology)
        for name in COLLECTIVES:
            root = 0 if name in ("broadcast", "reduce") else None
            forest = ALGORITHMS["optimal"].plan(Request(topology, Collective(name, len(ranks), root=root), ranks))
            for size in SIZES:
                yield row(astra, job, gpus, kind, forest, size)


TITLE = "## In ASTRA-sim"
ABOUT = """
    python benchmarks/exports.py --astra-sim build/astra_analytical/build/bin -o benchmarks/exports.md

Chakra traces replace ASTRA-sim's collectives (commit 518bd51 of March 2026, analytical network e8c5119; its Chakra at
90630ca, one commit before the one it names, and another commit of spdlog). ASTRA-sim refused no file, and every rank
ends. *aware* and *unaware* are its two networks, with the rate and latency of our simulator; *alone* is the traces as
the workload on *aware*. All values are its times divided by our simulator's, of copies in the same chunks.

- Its switch receives a whole message before it forwards it. On a star of two, 64 MiB in k chunks take 2 x + k L
  instead of x + k L, to five digits. If many trees share a port, other messages fill this time.
- Below 1 on rings and meshes: the reason seems to be the order of two messages that arrive at once. With ranks that
  start up to a nanosecond apart, our simulator has 0.90 on the mesh of 8 too; for AllGather on rings this was not
  shown.
- Sums last whole microseconds (`duration_micros`). In chunks of 64 and 128 KiB, this changed a DGX-1P's times by up to
  3 %.
- *unaware* gives each message the whole rate of a link, with any number of trees on it.
- *alone*, a rank has one send in flight at a time, with any number of links.
- It has no custom Broadcast or Reduce; they run in place of an AllReduce here. Bandwidths are GiB/s, latencies ns. Its
  congestion-aware networks have one dimension, and neither network has links of several rates.
"""


def section(astra: Path) -> Iterator[str]:
    """Lines of the section."""
    results = list(rows(astra))
    yield from (TITLE, *ABOUT.splitlines(), "", "| network | median | least | worst |", "|---|---|---|---|")
    for network in (*NETWORKS, "alone"):
        for kind in ("ring", "clique", "star", "dgx-1p"):
            parts = [getattr(one, network) / one.blink for one in results if one.job.startswith(f"`{kind}")]
            yield f"| {network}, `{kind}` | {median(parts):.3f} | {min(parts):.3f} | {max(parts):.3f} |"
    yield from ("", "| job | collective | size | ours, µs | aware | unaware | alone |", "|---|---|---|---|---|---|---|")
    for one in results:
        ratios = " | ".join(f"{seconds / one.blink:.3f}" for seconds in (one.aware, one.unaware, one.alone))
        yield f"| {one.job} | {one.collective} | {one.size} | {one.blink * 1e6:.1f} | {ratios} |"
