"""Diagnoses of logs of today's servers, by the log alone: healthy ones, and ones with one value at half.

    python benchmarks/doctor_today.py                    the table
    python benchmarks/doctor_today.py --write            … into docs/doctor.md

A log is what people paste: nccl-tests' list of GPUs and its table, and NCCL's own lines (the tree of the server, the
rings, the numbers of channels). No file describes the machine, so the names of the GPUs have to. Rates of healthy
servers are published ones where ``FIGURES`` has one, and else NCCL's model, each times 0.93 to 1.03. The doctor uses
the same model, so for those this tests its conclusions and not that model.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from doctor_machines import PAGE, replaced

from blinkccl.apps.doctor.diagnose import Diagnosis, diagnose
from blinkccl.apps.doctor.reading import read_files
from blinkccl.apps.doctor.rules.job import RCCL_PART, bound_of, expected_of
from blinkccl.apps.doctor.rules.nccl_lines import counted_gb_per_s
from blinkccl.cost.baselines.nccl_search import search
from blinkccl.topology.catalog import machine
from blinkccl.topology.gpu_models import gpu_model
from blinkccl.topology.model import Topology
from blinkccl.units import bus_factor

MARKS = ("<!-- benchmarks/doctor_today.py -->", "<!-- end of today -->")
GIB = 1 << 30


@dataclass(frozen=True)
class Server:
    """A machine of the catalogue, the name of its GPUs in logs, and the ranks and hosts of the job."""

    machine: str
    gpu: str
    ranks: int
    hosts: int = 1

    @property
    def topology(self) -> Topology:
        return machine(self.machine)

    @property
    def fast(self) -> str:
        """The word of NCCL's tree for its NVLinks or xGMI links; "" without such links."""
        kinds = {x.kind for x in self.topology.links}
        return "NVL" if "nvlink" in kinds else "XGMI" if "xgmi" in kinds else ""

    @property
    def reduces(self) -> bool:
        """True if its switch reduces, and NCCL uses this: for three GPUs of a host or more."""
        return self.ranks // self.hosts > 2 and any(vertex.combines for vertex in self.topology.vertices)


SERVERS = (
    Server("hgx-h100", "NVIDIA H100 80GB HBM3", 8),
    Server("hgx-h100", "NVIDIA H100 80GB HBM3", 4),
    Server("hgx-h200", "NVIDIA H200", 8),
    Server("hgx-h800", "NVIDIA H800", 8),
    Server("hgx-h20", "NVIDIA H20", 8),
    Server("dgx-b200", "NVIDIA B200", 8),
    Server("dgx-b300", "NVIDIA B300 SXM6 AC", 8),
    Server("gb200-tray", "NVIDIA GB200", 4),
    Server("gb300-tray", "NVIDIA GB300", 4),
    Server("gb200-nvl72", "NVIDIA GB200", 72, 18),
    Server("mi300x", "AMD Instinct MI300X", 8),
    Server("mi300x", "AMD Instinct MI300X", 4),
    Server("mi325x", "AMD Instinct MI325X", 8),
    Server("mi355x", "AMD Instinct MI355X", 8),
    Server("l40s-8", "NVIDIA L40S", 8),
    Server("rtx-pro-6000-8", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 8),
)
#: busbw of AllReduce in GB/s by machine, ranks and bytes, with the source.
FIGURES = {
    ("hgx-h100", 8, 8 * GIB): (480, "public nccl-tests logs"),
    ("hgx-h100", 4, 8 * GIB): (370, "public nccl-tests logs"),
    ("dgx-b200", 8, 8 * GIB): (832, "NVIDIA/nccl issue 1807"),
    ("dgx-b300", 8, 8 * GIB): (845, "NVIDIA/nccl issue 2140"),
    ("gb200-nvl72", 72, GIB // 2): (586, "coreweave/nccl-tests pull request 43"),
    ("gb200-nvl72", 72, 8 * GIB): (840, "coreweave/nccl-tests pull request 43: 835 to 847"),
    ("mi300x", 8, 8 * GIB): (322, "AMD's RCCL tests"),
}
#: The measured rate in a log without NCCL's own lines.
_ALONE = "the rate of a bare table"
#: Values that a log shows at half, and the causes that name this.
HALVED = {
    "the measured rate": ("measured-low",),
    _ALONE: ("measured-low",),
    "NVLink or xGMI of all GPUs": ("nvlink-down",),
    "PCIe of all GPUs": ("pcie-slow",),
    "NVLS": ("no-nvls",),
}


def halvings(server: Server) -> Iterator[str]:
    """The rows of :data:`HALVED` that exist on a server."""
    yield "the measured rate"
    yield _ALONE
    if server.fast:
        yield "NVLink or xGMI of all GPUs"
    if server.hosts == 1:
        yield "PCIe of all GPUs"
    if server.reduces:
        yield "NVLS"


def healthy_gb_per_s(server: Server, size_bytes: int) -> float:
    """busbw of a healthy server: a published figure, or else the model's."""
    figure = FIGURES.get((server.machine, server.ranks, size_bytes))
    if figure is not None:
        return float(figure[0])
    ranks = server.topology.ranks[: server.ranks]
    expected = expected_of(server.topology, ranks, "allreduce", size_bytes, (2, 30))
    if expected is not None:
        return expected.busbw_gb_per_s
    most = bound_of(server.topology, ranks, "allreduce")
    assert most is not None
    return RCCL_PART * most.busbw_gb_per_s


def log(server: Server, halved: str, rng: random.Random) -> str:
    """The text of a log."""
    lines = [] if halved == _ALONE or (not halved and rng.random() < 0.5) else _lines(server, halved)
    return "".join([_devices(server), *lines, _table(server, halved, rng)])


def _devices(server: Server) -> str:
    each = server.ranks // server.hosts
    rows = [
        f"#  Rank {rank:2d} Group  0 Pid  5120 on  node{rank // each} device {rank % each:2d} [0x1a] {server.gpu}"
        for rank in range(server.ranks)
    ]
    return "\n".join(["# Collective test starting: all_reduce_perf", "# Using devices", *rows]) + "\n"


def _lines(server: Server, halved: str) -> Iterator[str]:
    """NCCL's own lines, as rank 0 prints them."""
    version = "2.26.6+hip6.4" if server.machine.startswith("mi") else "2.28.3+cuda13.0"
    yield f"NCCL version {version}\n"
    model = gpu_model(server.gpu)
    assert model is not None
    pcie = {3: 12, 4: 24, 5: 48}[model.pcie] / (2 if halved == "PCIe of all GPUs" else 1)
    fast = 0.0 if not server.fast else counted_gb_per_s(server.topology, server.ranks)
    fast /= 2 if halved == "NVLink or xGMI of all GPUs" else 1
    each = min(8, server.ranks // server.hosts)
    yield from _info(f"=== System : maxBw {fast:.1f} totalBw {fast:.1f} ===", "CPU/0 (1/1/6)")
    for gpu in range(each):
        yield from _info(f"+ PCI[{pcie:.1f}] - GPU/{gpu + 1}1000 ({gpu})")
        if server.fast == "NVL":
            yield from _info(f"              + NVL[{fast:.1f}] - NVS/0")
        elif server.fast:
            peer = fast / (each - 1)
            others = [f"              + XGMI[{peer:.1f}] - GPU/{x + 1}1000" for x in range(each) if x != gpu]
            yield from _info(*others)
    yield from _info("==========================================")
    rings = _rings(server, halved)
    if rings:
        yield from _info(f"Pattern 4, crossNic 0, {rings}, sameChannels 1")
    nvls = 16 if server.reduces and halved != "NVLS" else 0
    yield from _info(
        f"24 coll channels, 24 collnet channels, {nvls} nvls channels, 32 p2p channels, 32 p2p channels per peer"
    )


def _info(*lines: str) -> Iterator[str]:
    yield from (f"node0:5120:5177 [0] NCCL INFO {line}\n" for line in lines)


def _rings(server: Server, halved: str) -> str:
    if server.machine.startswith("mi"):
        return "nChannels 28, bw 48.000000/48.000000, type XGMI/PIX"
    if server.hosts > 1:
        return ""
    channels = search(server.topology, server.topology.ranks[: server.ranks])
    rate = float(channels.gb_per_s_per_channel) / (2 if halved == "NVLink or xGMI of all GPUs" else 1)
    return f"nChannels {channels.count}, bw {rate:f}/{rate:f}, type {channels.kind}/PIX"


def _table(server: Server, halved: str, rng: random.Random) -> str:
    part = rng.uniform(0.93, 1.03)
    if halved in ("the measured rate", _ALONE, "NVLink or xGMI of all GPUs"):
        part /= 2
    elif halved == "NVLS":  # rings instead
        part *= 0.78
    factor = float(bus_factor("allreduce", server.ranks))
    lines = [
        "#       size         count      type   redop    root " + "    time   algbw   busbw #wrong" * 2,
        "#        (B)    (elements)                           " + "    (us)  (GB/s)  (GB/s)       " * 2,
    ]
    for size in (GIB // 2, 8 * GIB):
        busbw = part * healthy_gb_per_s(server, size)
        algbw = busbw / factor
        half = f"{size / algbw / 1e3:9.1f} {algbw:7.2f} {busbw:7.2f}      0"
        lines.append(f"{size:12d} {size // 4:13d}     float     sum      -1 {half} {half}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Outcome:
    """A log and its diagnosis; ``halved`` "" for a healthy server."""

    server: Server
    halved: str
    diagnosis: Diagnosis

    @property
    def causes(self) -> set[str]:
        """All causes, those of notes too: slow PCIe beside NVLink is no fault of a job on one host."""
        return {finding.cause for finding in self.diagnosis.findings}

    @property
    def named(self) -> bool:
        return bool(self.causes & set(HALVED[self.halved]))


def outcome(server: Server, halved: str = "", seed: int = 0) -> Outcome:
    """Diagnose a generated log."""
    rng = random.Random(f"{server.machine} {server.ranks} {halved} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.log")
        path.write_text(log(server, halved, rng))
        return Outcome(server, halved, diagnose(read_files([path])))


HEALTHY_EACH = 4


def outcomes() -> list[Outcome]:
    """All servers, healthy several times, and with each thing halved."""
    healthy = [outcome(server, seed=seed) for server in SERVERS for seed in range(HEALTHY_EACH)]
    return healthy + [outcome(server, halved) for server in SERVERS for halved in halvings(server)]


def table(all_outcomes: list[Outcome]) -> str:
    """A row per server."""
    lines = ["| server | healthy logs | false alarms | at half its value: found |", "|---|---|---|---|"]
    for server in SERVERS:
        mine = [one for one in all_outcomes if one.server == server]
        healthy = [one for one in mine if not one.halved]
        alarms = sum(bool(one.diagnosis.wrong) or bool(one.diagnosis.not_judged) for one in healthy)
        planted = [one for one in mine if one.halved]
        missed = "".join(f", not {one.halved}" for one in planted if not one.named)
        named = f"{sum(one.named for one in planted)} of {len(planted)}{missed}"
        lines.append(f"| {server.ranks} × {server.gpu} (`{server.machine}`) | {len(healthy)} | {alarms} | {named} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the table into docs/doctor.md")
    write = parser.parse_args().write
    text = table(outcomes())
    print(text)
    if write:
        PAGE.write_text(replaced(PAGE.read_text("utf-8"), MARKS, text), "utf-8")


if __name__ == "__main__":
    main()
