"""Diagnoses of simulated machines with one hidden fault each, and of healthy ones, by ``blink doctor``.

    python benchmarks/doctor_machines.py                 the table
    python benchmarks/doctor_machines.py --write         … into docs/doctor.md

A machine of the catalogue is described by the files that its owner would attach: NCCL's XML, nvidia-smi's matrix or
``blink topo --gather``; nccl-tests' output with NCCL's own lines; RAS, a flight recorder, a watchdog's lines.
Measurements are NCCL's model times a random factor. Healthy machines have features that often resemble a fault: links
that idle at 2.5 GT/s, host memory between sockets, one network card, harmless settings, decimal commas. A seed
determines everything. The doctor uses the same model of NCCL, so this tests its conclusions and not that model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import random
import re
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from blinkccl.apps.doctor.diagnose import Diagnosis, diagnose
from blinkccl.apps.doctor.reading import read_files
from blinkccl.apps.doctor.rules.job import expected_of
from blinkccl.cost.baselines.nccl_search import search
from blinkccl.show.text import plain
from blinkccl.topology.catalog import machine
from blinkccl.topology.json_format import to_document, write
from blinkccl.topology.model import Topology
from blinkccl.topology.nccl_xml_write import write as write_xml
from blinkccl.units import bus_factor

PAGE = Path(__file__).parents[1] / "docs/doctor.md"
CORPUS = Path(__file__).parents[1] / "tests/doctor/corpus"
MARKS = ("<!-- benchmarks/doctor_machines.py -->", "<!-- end -->")
SAMPLE_MARKS = ("<!-- samples: benchmarks/doctor_machines.py -->", "<!-- end of samples -->")
#: A published case of each family of rules.
SAMPLES = (
    "a100-pairs-three", "v100-nvlink-inactive", "iommu-corruption", "rtx5070ti-staged", "nics-on-one-socket",
    "shm-64mb", "ras-mismatch", "virtual-bridges",
)  # fmt: skip
NVSWITCH = ("dgx-2", "dgx-a100", "hgx-h100", "hgx-h200")
MESH = ("dgx-1p", "dgx-1v", "cedar")
PAIRS = ("pcie-4gpu-nvlink-pairs", "pcie-8gpu-nvlink-pairs")
PCIE = ("pcie-8gpu",)
ALL = (*NVSWITCH, *MESH, *PAIRS, *PCIE)
NAMES = {
    "dgx-1p": "Tesla P100-SXM2-16GB", "dgx-1v": "Tesla V100-SXM2-32GB", "cedar": "Tesla V100-SXM2-16GB",
    "dgx-2": "Tesla V100-SXM3-32GB", "dgx-a100": "NVIDIA A100-SXM4-80GB", "hgx-h100": "NVIDIA H100 80GB HBM3",
    "hgx-h200": "NVIDIA H200", "pcie-8gpu": "Tesla V100-PCIE-32GB",
}  # fmt: skip
HARMLESS = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_TIMEOUT": "22", "NCCL_P2P_LEVEL": "NVL"}


@dataclass
class Scene:
    """A machine and a run on it, before they are written to files."""

    base: str
    rng: random.Random
    form: str
    topology: Topology
    gpus: tuple[int, ...]
    hosts: int = 1
    width: dict[int, int] = field(default_factory=dict)
    gt_per_s: dict[int, float] = field(default_factory=dict)
    uplinks: bool = False
    down: dict[int, int] = field(default_factory=dict)
    nics: str = ""
    iommu: str = ""
    acs: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    peers: str = ""
    network: str = "IB/{}/GDRDMA"
    factor: float = 0.95
    falls: bool = False
    wrong: int = 0
    rows: bool = True
    info: bool = True
    family: int | None = None
    version: str = "2.27.5"
    shm_bytes: int = 64 << 30
    quota: float | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return len(self.gpus) * self.hosts

    def add(self, name: str, text: str) -> None:
        self.files[name] = text.encode()


def scene(base: str, rng: random.Random, form: str = "") -> Scene:
    """A healthy machine with random harmless features."""
    topology = machine(base)
    made = Scene(base, rng, form or rng.choice(("xml", "xml", "matrix", "gather")), topology, topology.ranks)
    made.factor = rng.uniform(0.8, 1.05)
    made.settings = dict(rng.sample(sorted(HARMLESS.items())[:3], rng.randint(0, 2)))
    made.iommu = rng.choice(("off", "passthrough"))
    made.nics = rng.choice(("near", "one")) if base in (*PAIRS, *PCIE) else ""
    made.info = rng.random() < 0.7
    return made


# Files.


def render(made: Scene) -> dict[str, bytes]:
    """Write the files of a machine."""
    if made.form == "xml":
        made.add("topology.xml", xml(made))
    elif made.form == "matrix":
        made.add("topo.txt", matrix(made))
    elif made.form == "gather":
        made.add("gathered.json", json.dumps(gathered(made)))
    if made.rows:
        made.add("run.log", (info(made) if made.info else "") + results(made))
    return made.files


def xml(made: Scene) -> str:
    lines = write_xml(made.topology).splitlines()
    for number, line in enumerate(lines):
        gpu = re.search(r'<gpu dev="(\d+)"', line)
        if gpu is None:
            continue
        index, pci = int(gpu[1]), number - 1
        if index in made.width:
            lines[pci] = re.sub(r'link_width="\d+"', f'link_width="{made.width[index]}"', lines[pci])
        if index in made.gt_per_s:
            lines[pci] = re.sub(r'link_speed="[^"]*"', f'link_speed="{made.gt_per_s[index]} GT/s PCIe"', lines[pci])
        if made.uplinks and 'class="0x060400"' in lines[pci - 1]:
            lines[pci - 1] = re.sub(r'link_speed="[^"]*"', 'link_speed="2.5 GT/s PCIe"', lines[pci - 1])
            lines[pci - 1] = re.sub(r'link_width="\d+"', 'link_width="1"', lines[pci - 1])
        if index in made.down:
            lanes = re.search(r'count="(\d+)"', lines[number + 1])
            assert lanes is not None
            lines[number + 1] = lines[number + 1].replace(lanes[0], f'count="{int(lanes[1]) - made.down[index]}"')
    text = "\n".join(lines)
    if made.family is not None:
        text = re.sub(r'familyid="\d+"', f'familyid="{made.family}"', text)
    return _with_nics(text, made.nics)


def _with_nics(text: str, nics: str) -> str:
    if not nics:
        return text
    text = re.sub(r"\s*<pci [^>]*>\s*<nic>.*?</nic>\s*</pci>", "", text, flags=re.DOTALL)
    parts = re.split(r"(<cpu [^>]*>)", text)
    for number, place in enumerate(range(2, len(parts), 2)):
        cards = {"near": 1, "one": int(number == 0), "far": 4 * int(number == 0)}[nics]
        parts[place] = "".join(_card(10 * number + card) for card in range(cards)) + parts[place]
    return "".join(parts)


def _card(number: int) -> str:
    return (
        f'<pci busid="0000:f{number:x}:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic>'
        f'<net name="mlx5_{number}" dev="{number}" speed="200000" port="1" maxconn="65536" gdr="1"/>'
        "</nic></pci>"
    )


def distance(topology: Topology, a: int, b: int) -> str:
    """nvidia-smi's word for the path between two GPUs."""
    links = {x.src: {} for x in topology.links}
    for x in topology.links:
        links[x.src][x.dst] = x
    lane = 20 if topology.name == "dgx-1p" else 25
    if b in links[a] and links[a][b].kind == "nvlink":
        return f"NV{round(links[a][b].gb_per_s / lane)}"
    for middle, x in links[a].items():
        if x.kind == "nvlink" and middle in links[b] and topology.is_transit(middle):
            return f"NV{round(x.gb_per_s / lane)}"
    over = [_above(topology, gpu) for gpu in (a, b)]
    common = next((v for v in over[0] if v in over[1]), None)
    if common is None:
        return "SYS"
    return "PHB" if topology.vertex[common].kind == "host" else "PIX"


def _above(topology: Topology, gpu: int) -> list[int]:
    """The vertices above a GPU in the PCIe tree, up to its processor."""
    ways = [[gpu]]
    for way in ways:
        if topology.vertex[way[-1]].kind == "host":
            return way[1:]
        up = [x.dst for x in topology.links if x.src == way[-1] and x.kind == "pcie"]
        ways += [[*way, v] for v in up if v not in topology.ranks and v not in way]
    raise ValueError(gpu)


def matrix(made: Scene) -> str:
    topology, gpus = made.topology, made.topology.ranks
    cells = {(a, b): "X" if a == b else distance(topology, a, b) for a in gpus for b in gpus}
    for gpu, lost in made.down.items():
        for other in gpus:
            if cells[gpu, other].startswith("NV") and topology.link.get((gpu, other)) is None:
                cells[gpu, other] = cells[other, gpu] = f"NV{int(cells[gpu, other][2:]) - lost}"
            elif cells[gpu, other].startswith("NV"):
                left = int(cells[gpu, other][2:]) - lost
                cells[gpu, other] = cells[other, gpu] = f"NV{left}" if left > 0 else "PHB"
                break
    hosts = [_above(topology, gpu)[-1] for gpu in gpus]
    order = sorted(set(hosts))
    names = [f"GPU{gpu}" for gpu in gpus]
    head, rows = list(names), []
    cards = {"near": order, "one": order[:1], "far": [order[0]] * 2}.get(made.nics, [])
    head += [f"NIC{number}" for number in range(len(cards))] + ["CPU Affinity", "NUMA Affinity"]
    for gpu, host in zip(gpus, hosts, strict=True):
        near = ["PHB" if card == host else "SYS" for card in cards]
        node = order.index(host)
        rows.append(
            [names[gpu], *(cells[gpu, other] for other in gpus), *near, f"{16 * node}-{16 * node + 15}", str(node)]
        )
    for number, card in enumerate(cards):
        among = ["X" if other == number else "PHB" if cards[other] == card else "SYS" for other in range(len(cards))]
        rows.append([f"NIC{number}", *("PHB" if card == host else "SYS" for host in hosts), *among])
    return "\n".join("\t".join(row) for row in [["", *head], *rows]) + "\n"


def gathered(made: Scene) -> dict[str, object]:
    topology = made.topology
    speeds = {12.0: 8.0, 24.0: 16.0, 48.0: 32.0}
    devices = []
    for gpu in topology.ranks:
        rate = next((x.gb_per_s for x in topology.links if x.src == gpu and x.kind == "pcie"), 12.0)
        most = speeds.get(rate, 8.0)
        idle = gpu not in made.gt_per_s
        devices.append(
            {
                "kind": "gpu",
                "name": f"GPU{gpu}",
                "model": NAMES.get(made.base, "NVIDIA A100-PCIE-40GB"),
                "numa": 0,
                "width": made.width.get(gpu, 16),
                "max_width": 16,
                "gt_per_s": made.gt_per_s.get(gpu, 2.5),
                "max_gt_per_s": most,
                "idle": idle,
            }
        )
    lanes = {
        g: sum(x.gb_per_s for x in topology.links if x.src == g and x.kind == "nvlink") / 25 for g in topology.ranks
    }
    links = [
        {"gpu": f"GPU{g}", "up": round(n) - made.down.get(g, 0), "down": made.down.get(g, 0) + 2 * (made.base in PAIRS)}
        for g, n in lanes.items()
        if n
    ]
    broken = made.peers == "nvlink"
    peers = [
        {
            "a": f"GPU{a}", "b": f"GPU{b}",
            "allowed": not (made.peers == "refused" or (broken and (a, b) == topology.ranks[:2])),
            "nvlink": distance(topology, a, b).startswith("NV"), "why": "",
        }
        for a in topology.ranks for b in topology.ranks if a < b
    ]  # fmt: skip
    return {
        "blink_gather": 1, "schema_version": 2, "topology": to_document(topology), "devices": devices, "nvlinks": links,
        "peers": peers, "kernel": {"iommu": made.iommu, "how": "sysfs", "acs_bridges": 24, "acs_redirecting": made.acs},
        "host": {"cpus": 64, "numa_nodes": 2, "quota": made.quota, "shm_bytes": made.shm_bytes,
                 "shm_free_bytes": made.shm_bytes * 9 // 10},
        "settings": made.settings,
    }  # fmt: skip


def info(made: Scene) -> str:
    """NCCL's own lines: settings, network, channels and hops."""
    tags = [
        f"node{1 + rank // len(made.gpus)}:{700 + rank}:{900 + rank} [{rank % len(made.gpus)}] NCCL INFO"
        for rank in range(made.world)
    ]
    lines = [f"NCCL version {made.version}+cuda12.8"]
    lines += [f"{tag} {name} set by environment to {value}." for name, value in made.settings.items() for tag in tags]
    cards = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(2))
    if made.hosts > 1:
        socket = "Socket" in made.network
        lines += [
            f"{tags[0]} NET/IB : No device found."
            if socket
            else f"{tags[0]} NET/IB : Using {cards} [RO]; OOB eth0:10.0.0.1<0>"
        ]
        lines += [f"{tags[0]} Using network {'Socket' if socket else 'IB'}"]
    else:
        rings = search(made.topology, made.gpus)
        speed = f"bw {rings.gb_per_s_per_channel:f}/{rings.gb_per_s_per_channel:f}"
        lines += [
            f"{tags[0]} Pattern 4, crossNic 0, nChannels {rings.count}, {speed}, type {rings.kind}/PIX, sameChannels 1"
        ]
    if made.peers == "nvlink":
        lines += [f"{tags[0]} P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case"]
    for channel, rank, other in _hops(made):
        if rank // len(made.gpus) != other // len(made.gpus):
            via = "[send] via NET/" + made.network.format(channel)
        else:
            via = "via " + _transport(made, rank % len(made.gpus), other % len(made.gpus))
        lines.append(f"{tags[rank]} Channel {channel:02d}/0 : {rank}[{rank % 8}] -> {other}[{other % 8}] {via}")
    return "\n".join(lines) + "\n"


def _hops(made: Scene) -> list[tuple[int, int, int]]:
    """(channel, sender, receiver) along the rings that NCCL's search finds on a server."""
    if made.hosts > 1:
        orders = [tuple(range(made.world))] * 2
    else:
        orders = [tuple(made.gpus.index(gpu) for gpu in ring) for ring in search(made.topology, made.gpus).rings[:2]]
    return [
        (channel, a, b) for channel, ring in enumerate(orders) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)
    ]


def _transport(made: Scene, a: int, b: int) -> str:
    way = distance(made.topology, made.gpus[a], made.gpus[b])
    direct = way.startswith("NV") or way == "PIX"
    return "P2P/IPC" if direct and made.peers != "shm" else "SHM/direct/direct"


def results(made: Scene) -> str:
    """Output of nccl-tests."""
    expected = expected_of(made.topology, made.gpus, "allreduce", 1 << 30, (2, 30))
    large = expected.busbw_gb_per_s if expected is not None else 10.0
    if made.hosts > 1:
        large = 23.0 if "Socket" not in made.network else 1.4
    name = NAMES.get(made.base, "NVIDIA A100-PCIE-40GB")
    lines = ["# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824 step: 8(factor) warmup iters: 5 iters: 20"]
    lines += ["# Collective test starting: all_reduce_perf", "# Using devices"]
    for rank in range(made.world):
        gpu = made.gpus[rank % len(made.gpus)]
        host = f"node{1 + rank // len(made.gpus)}"
        lines.append(
            f"#  Rank {rank:2d} Group  0 Pid   4711 on {host:>10} device {gpu:2d} [0000:{16 + gpu:02x}:00] {name}"
        )
    comma = made.rng.random() < 0.15
    for size in (1 << 20, 1 << 23, 1 << 26, 1 << 30) if made.rows else ():
        busbw = large * made.factor * size / (size + (16 << 20)) * made.rng.uniform(0.98, 1.02)
        busbw *= 0.3 if made.falls and size == 1 << 30 else 1
        algbw = busbw / float(bus_factor("allreduce", made.world))
        half = f"{size / algbw / 1000:9.1f} {algbw:6.2f} {busbw:6.2f} {made.wrong if size > 1 << 23 else 0:6d}"
        row = f"{size:12d} {size // 4:12d}     float     sum      -1 {half} {half}"
        lines.append(row.replace(".", ",") if comma else row)
    return "\n".join([*lines, "# Out of bounds values : 0 OK"]) + "\n"


# Hangs.


def ras(made: Scene, late: int, how: str) -> None:
    """RAS output as JSON: one rank is behind, or dead."""
    size = made.world
    ranks = [
        {
            "rank": rank, "host": "10.0.0.1", "pid": 700 + rank, "cuda_dev": rank % 8, "nvml_dev": rank % 8,
            "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
            "collective_counts": {"Broadcast": 3, "AllReduce": 640 - (rank == late and how == "behind")},
        }
        for rank in range(size) if not (rank == late and how == "dead")
    ]  # fmt: skip
    missing = [{"rank": late, "host": "10.0.0.1", "pid": 7, "status": {"unresponsive": True, "considered_dead": True}}]
    made.add("ras.json", json.dumps({
        "nccl_version": "2.28.9", "communicators_count": 1, "communicators": [{
            "hash": "0xfa93", "size": size, "ranks_count": len(ranks), "missing_ranks_count": size - len(ranks),
            "ranks": ranks, "missing_ranks": missing if how == "dead" else [],
        }],
    }))  # fmt: skip


def recorder(made: Scene, late: int, how: str) -> None:
    """Dumps of a flight recorder, one per rank."""
    for rank in range(made.world):
        if rank == late and how == "dead":
            continue
        last = 41 - (rank == late and how == "behind")
        other = rank == late and how == "mismatch"
        entries = [
            {
                "record_id": n, "process_group": ("0", "default_pg"), "collective_seq_id": n, "is_p2p": False,
                "profiling_name": "nccl:all_gather" if other and n == last else "nccl:all_reduce",
                "input_sizes": [[1024]],
                "state": "completed" if n < 41 else "started",
                "frames": [{"name": "step", "filename": "/job/train.py", "line": 30 + (rank == late)}],
            }
            for n in range(last - 3, last + 1)
        ]  # fmt: skip
        document = {
            "version": "2.9",
            "rank": rank,
            "entries": entries,
            "pg_config": {"0": {"ranks": str(list(range(made.world)))}},
        }
        made.files[f"trace_{rank}"] = pickle.dumps(document, 2)


def watchdog(made: Scene, late: int) -> None:
    """Lines of PyTorch's watchdog: all ranks time out; the late rank has enqueued fewer calls."""
    lines = []
    for rank in range(made.world):
        lines += [
            f"[rank{rank}]:[E603 17:48:01.0 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
            f"operation "
            f"timeout: WorkNCCL(SeqNum={808 - (rank == late)}, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, "
            "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
            f"[rank{rank}]:[E603 17:48:01.0 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
            f"failure "
            f"detected by watchdog at work sequence id: 808 PG status: last enqueued work: "
            f"{811 - 3 * (rank == late)}, last "
            f"completed work: {807 - (rank == late)}",
        ]
    made.rng.shuffle(lines)
    made.add("train.log", "\n".join(lines) + "\n")


# Faults.


@dataclass(frozen=True)
class Fault:
    """A fault: its cause, the machines that can have it, and other causes that the doctor may report with it."""

    cause: str
    what: str
    bases: tuple[str, ...]
    plant: Callable[[Scene], None]
    beside: tuple[str, ...] = ()
    form: tuple[str, ...] = ("xml",)


def _set(**values: object) -> Callable[[Scene], None]:
    def plant(made: Scene) -> None:
        for name, value in values.items():
            setattr(made, name, value)

    return plant


def _one(made: Scene) -> int:
    return made.rng.choice(made.topology.ranks)


def _narrow(made: Scene) -> None:
    made.width = {_one(made): made.rng.choice((8, 4))}
    made.factor *= 0.5 if made.base in PCIE else 1


def _slow(made: Scene) -> None:
    made.gt_per_s = {_one(made): 2.5}
    made.factor *= 0.15


def _down(made: Scene) -> None:
    made.down = {_one(made): made.rng.choice((1, 2))}
    made.factor *= 0.75


def _subset(made: Scene) -> None:
    more = ((1, 4, 5, 6), (0, 1, 2, 3, 6)) if made.base == "dgx-1v" else ((0, 1, 2, 3, 5),)
    made.gpus = made.rng.choice(((0, 1, 6), (0, 1, 2, 7), *more))


def _across(made: Scene) -> None:
    made.gpus = made.rng.choice(((0, 1, 2), (0, 2, 3), (1, 2)))


def _setting(made: Scene) -> None:
    name, value = made.rng.choice(
        (("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_LEVEL", "LOC"), ("NCCL_PROTO", "LL"), ("NCCL_MAX_NCHANNELS", "1"),
         ("NCCL_BUFFSIZE", "65536"), ("NCCL_SHM_DISABLE", "1"))
    )  # fmt: skip
    made.settings[name], made.info, made.factor = value, True, made.factor * 0.3
    made.peers = "shm" if "P2P" in name else made.peers


def _hang(write: Callable[..., None], *how: str) -> Callable[[Scene], None]:
    def plant(made: Scene) -> None:
        made.rows = False
        write(made, made.rng.randrange(made.world), *how)

    return plant


def _one_way(made: Scene) -> None:
    document = json.loads(write(made.topology))
    for link in document["links"]:
        if link["kind"] == "pcie":
            link["read_capacity"], link["capacity"] = link["capacity"] * 20, link["capacity"]
            link.pop("gb_per_s", None)
    made.form = ""
    made.rows = False
    made.add("topology.json", json.dumps(document))


def _two(made: Scene) -> None:
    other = made.rng.choice([base for base in ALL if len(machine(base).ranks) != len(made.topology.ranks)])
    made.add("other.xml", write_xml(machine(other)))


def _no_result(made: Scene) -> None:
    made.rows = False
    made.add("run.log", info(made) + results(made))


FAULTS = (
    Fault("pcie-narrow", "PCIe of a GPU at ×8 or ×4", (*PCIE, *PAIRS, *NVSWITCH), _narrow, (), ("xml", "gather")),
    Fault("pcie-slow", "PCIe of a GPU at 2.5 GT/s under load", (*PCIE, *PAIRS), _slow, (), ("xml", "gather")),
    Fault("pcie-uplink", "virtual bridges of 2.5 GT/s ×1", (*PCIE, *PAIRS, *NVSWITCH),
          _set(uplinks=True), ("socket-bus",)),
    Fault("nvlink-down", "NVLinks of a GPU down", NVSWITCH, _down, (), ("xml", "gather", "matrix")),
    Fault("nvlink-down", "a lane of a mesh down", MESH, _down, ("contradiction", "nccl-gap"), ("matrix", "gather")),
    Fault("one-way", "writes to peers 20 times slower than reads", (*PCIE, *PAIRS), _one_way),
    Fault("socket-bus", "Zen 5 counted at 16 GB/s", PAIRS, _set(family=191)),
    Fault("nvlink-peer-broken", "P2P dead over an NVLink", (*MESH, "pcie-4gpu-nvlink-pairs"),
          _set(peers="nvlink", info=True), (), ("gather", "xml")),
    Fault("p2p-off", "P2P not allowed: all through memory", (*PCIE,), _set(peers="refused"), (), ("gather",)),
    Fault("p2p-off", "P2P off between neighbours", (*PCIE, *MESH), _set(peers="shm", info=True, factor=0.4)),
    Fault("iommu", "the IOMMU translates", ALL, _set(iommu="translating"), (), ("gather",)),
    Fault("acs", "ACS on", ALL, _set(acs=16), (), ("gather",)),
    Fault("setting", "a setting left behind", ALL, _setting),
    Fault("nic-far", "all network cards on one socket", (*PCIE, *PAIRS, "dgx-a100", "hgx-h100"),
          _set(nics="far", rows=False)),
    Fault("nic-far", "the same, told by nvidia-smi", (*PCIE, *PAIRS), _set(nics="far", rows=False), (), ("matrix",)),
    Fault("net-socket", "TCP instead of InfiniBand", ("dgx-a100", "hgx-h100", "pcie-8gpu"),
          _set(hosts=2, network="Socket/{}", info=True)),
    Fault("no-gpudirect", "no GPUDirect RDMA", ("dgx-a100", "hgx-h100"), _set(hosts=2, network="IB/{}", info=True)),
    Fault("nccl-gap", "GPUs without a ring", ("dgx-1v", "dgx-1p"), _subset, ("cut",), ("xml", "matrix")),
    Fault("cut", "a job across NVLink bridges", PAIRS, _across, ("nccl-gap",), ("xml", "matrix")),
    Fault("measured-low", "slow for no visible reason", ALL, _set(factor=0.45), (), ("xml", "matrix")),
    Fault("falls-with-size", "large messages slow", ALL, _set(falls=True), (), ("xml",)),
    Fault("wrong-results", "wrong sums", ALL, _set(wrong=12), (), ("xml", "matrix")),
    Fault("shared-memory", "/dev/shm of 64 MiB", ALL, _set(shm_bytes=64 << 20), (), ("gather",)),
    Fault("cpu-quota", "a container's quota", ALL, _set(quota=8.0), (), ("gather",)),
    Fault("contradiction", "files of two machines", ALL, _two, ("nvlink-down", "cut")),
    Fault("rank-behind", "a rank behind, by RAS", ALL, _hang(ras, "behind")),
    Fault("rank-missing", "a dead rank, by RAS", ALL, _hang(ras, "dead")),
    Fault("rank-behind", "a rank behind, by flight recorders", ALL, _hang(recorder, "behind")),
    Fault("rank-missing", "no dump of a rank", ALL, _hang(recorder, "dead")),
    Fault("call-mismatch", "a rank in another call", ALL, _hang(recorder, "mismatch")),
    Fault("rank-behind", "a rank behind, by PyTorch's watchdog", ALL, _hang(watchdog)),
    Fault("no-result", "no row after the list of ranks", PCIE, _no_result),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A machine and its diagnosis; ``fault`` None: it is healthy."""

    seed: int
    base: str
    fault: Fault | None
    diagnosis: Diagnosis
    seconds: float

    @property
    def causes(self) -> list[str]:
        return [finding.cause for finding in self.diagnosis.findings if finding.wrong]

    @property
    def found(self) -> bool:
        return self.fault is not None and self.fault.cause in self.causes

    @property
    def false_alarms(self) -> list[str]:
        allowed = () if self.fault is None else (self.fault.cause, *self.fault.beside)
        return [cause for cause in self.causes if cause not in allowed]


def run(seed: int, healthy: bool = False) -> Outcome:
    """Diagnose the machine of a seed."""
    rng = random.Random(f"{'healthy' if healthy else 'fault'} {seed}")
    fault = None if healthy else FAULTS[seed % len(FAULTS)]
    base = rng.choice(ALL if fault is None else fault.bases)
    made = scene(base, rng, "" if fault is None else rng.choice(fault.form))
    if fault is not None:
        fault.plant(made)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in render(made).items():
            Path(folder, name).write_bytes(data)
        began = time.perf_counter()
        diagnosis = diagnose(read_files([Path(folder)]))
        return Outcome(seed, base, fault, diagnosis, time.perf_counter() - began)


def table(outcomes: list[Outcome]) -> str:
    """The table of faults, with detections and false alarms."""
    lines = ["| planted | must be found | machines | found | false alarms |", "|---|---|---|---|---|"]
    rows: dict[Fault | None, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.fault, []).append(outcome)
    for fault in (*FAULTS, None):
        those = rows.get(fault, [])
        wrong = sum(bool(one.false_alarms) for one in those)
        if fault is None:
            lines.append(f"| nothing | nothing | {len(those)} | | {wrong} |")
        else:
            lines.append(f"| {fault.what} | `{fault.cause}` | {len(those)} | {sum(o.found for o in those)} | {wrong} |")
    planted = [outcome for outcome in outcomes if outcome.fault is not None]
    recall = sum(outcome.found for outcome in planted) / len(planted)
    alarms = sum(bool(outcome.false_alarms) for outcome in outcomes) / len(outcomes)
    lines += ["", f"Found: {recall:.1%} of {len(planted)}. False alarms: on {alarms:.1%} of {len(outcomes)} machines."]
    return "\n".join(lines) + "\n"


def samples() -> str:
    """The first finding on published cases."""
    cases = []
    for name in SAMPLES:
        with contextlib.chdir(CORPUS / name):
            files = sorted(path for path in Path().iterdir() if path.name != "case.toml")
            text = diagnose(read_files(files)).text(plain, 110)
        case = tomllib.loads((CORPUS / name / "case.toml").read_text("utf-8"))
        first = text.split("\n\n")[1]
        typed = f"$ blink doctor {' '.join(map(str, files))}"
        cases.append(f"[{case['title']}]({case['source']}): {case['symptom']}.\n\n```\n{typed}\n…\n{first}\n```\n")
    return "\n".join(cases)


def replaced(page: str, marks: tuple[str, str], text: str) -> str:
    """The page with ``text`` between two marks."""
    before, _, rest = page.partition(marks[0])
    return f"{before}{marks[0]}\n{text}{marks[1]}{rest.partition(marks[1])[2]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="put the table into docs/doctor.md")
    parser.add_argument("--misses", action="store_true", help="print missed faults and false alarms")
    arguments = parser.parse_args()
    outcomes = [run(seed) for seed in range(arguments.machines)]
    outcomes += [run(seed, healthy=True) for seed in range(arguments.healthy)]
    text = table(outcomes)
    print(text)
    print(f"slowest {max(outcome.seconds for outcome in outcomes):.2f} s")
    if arguments.misses:
        for outcome in outcomes:
            if (outcome.fault and not outcome.found) or outcome.false_alarms:
                what = outcome.fault.what if outcome.fault else "healthy"
                print(outcome.seed, outcome.base, what, outcome.causes, *outcome.diagnosis.notes, sep=" | ")
    if arguments.write:
        page = replaced(PAGE.read_text("utf-8"), MARKS, text)
        PAGE.write_text(replaced(page, SAMPLE_MARKS, samples()), "utf-8")


if __name__ == "__main__":
    main()
