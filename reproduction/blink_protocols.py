"""Blink's protocols beyond one set of trees: NVLink with PCIe, DGX-2, several servers (§3.4, §3.5, §5.2.3, §5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinkccl.cost.baselines.candidate import planned
from blinkccl.cost.baselines.nccl import AS_WRITTEN_BYTES
from blinkccl.topology.spec import parse_gpus
from blinkccl.trees.algorithms.hybrid import hybrid_split
from blinkccl.units import GB
from reproduction.blink_graph import broadcast_optimum, network, ring_allreduce
from reproduction.blink_microbenchmarks import lane_gb_per_s
from reproduction.claim import BY_CONSTRUCTION, Context, Page, Value
from reproduction.jobs import (
    COPY_ENGINES,
    MB,
    SIZE_BYTES,
    blink,
    conditions,
    nccl,
    plan,
    request,
    topology_of,
)
from reproduction.laboratory import two_servers_value
from reproduction.traffic import CALIBRATION

PAGE = Page("A")

#: Tolerance of a simulated number against a measured one, since calibrations have errors of some percent.
TOLERANCE = 0.15
#: Rate of trees over PCIe. The paper prints none; its Fig 21 implies this one with T_dpa = 0.31 ms per GPU.
PCIE_GB_PER_S = Fraction(11, 2)
SPLIT_BASIS = f"Eq 8 with PCIe at 5.5 GB/s, minimum cuts in lanes of {CALIBRATION}, its peer_access_us"


def t_dpa_s(context: Context, ranks: int) -> Fraction:
    """T_dpa for a number of GPUs, proportional to it (§5.3)."""
    return Fraction(context.calibration(CALIBRATION).engine.peer_access_us.value) / 1_000_000 * ranks


def nvlink_gb_per_s(context: Context, ranks: int) -> Fraction:
    """Rate of broadcast trees among the first GPUs of a DGX-1V, at the calibrated rate of a lane."""
    lanes = broadcast_optimum(network("dgx-1v", tuple(range(ranks))))
    return lanes * Fraction(lane_gb_per_s(context.calibration(CALIBRATION)))


def eq_8_as_printed(total_bytes: int, pcie_gb_per_s: Fraction, nvlink: Fraction, wait_s: Fraction) -> Fraction:
    """D_PCIe in bytes, without the clamp."""
    both = pcie_gb_per_s + nvlink
    return total_bytes * pcie_gb_per_s / both - wait_s * pcie_gb_per_s * nvlink * GB / both


@PAGE.claim("B17", "§3.4, Eq 8", agrees=BY_CONSTRUCTION)
def _eq_8(context: Context) -> tuple[Value, ...]:
    """The data is split so that PCIe, after T_dpa, and NVLink end at the same time.

    This needs large data: E5. Ours is the same equation, solved, so both ends meet by construction.
    """
    values = []
    for ranks in (3, 8):
        nvlink, wait_s = nvlink_gb_per_s(context, ranks), t_dpa_s(context, ranks)
        split = hybrid_split(SIZE_BYTES, PCIE_GB_PER_S, nvlink, wait_s)
        over_pcie_s = split.pcie_bytes / (PCIE_GB_PER_S * GB) + wait_s
        over_nvlink_s = split.nvlink_bytes / (nvlink * GB)
        printed = eq_8_as_printed(SIZE_BYTES, PCIE_GB_PER_S, nvlink, wait_s)
        what = f"500 MB to {ranks} GPUs"
        values += [
            Value(f"{what}: T_PCIe + T_dpa over T_NVL", 1, float(over_pcie_s / over_nvlink_s), basis=SPLIT_BASIS),
            Value(f"{what}: over PCIe", float(printed / MB), float(split.pcie_bytes / MB), "MB", basis=SPLIT_BASIS),
        ]
    return tuple(values)


@PAGE.claim("B18", "§3.5", wrong=True)
def _dgx_2(context: Context) -> tuple[Value, ...]:
    """On a DGX-2 Blink's AllReduce has m one-hop trees with 1/m of the data each; NCCL takes double binary trees below
    16 KB.

    E7: in NCCL 2.4.2 ncclTreeThreshold() is 0 with fewer than two nodes, so one server uses only rings by default, at
    every size. B30 has both baselines.
    """
    forest = plan("one_hop", "dgx-2", "allreduce")
    switches = {vertex.id for vertex in forest.topology.vertices if vertex.kind == "switch"}
    direct = sum(
        len(tree.edges) == 15 and all(set(path[1:-1]) <= switches and tree.root in path for path in tree.edges)
        for share in forest.shares
        for tree in share.trees()
    )
    basis = "one_hop plan for allreduce, 16 GPUs of a DGX-2"
    baseline = nccl(context, request("dgx-2", "allreduce"), "nccl-2.4-v100")
    below = [1 << k for k in range(10, 40) if 1 << k < AS_WRITTEN_BYTES]
    trees = sum("tree" in baseline.at(size_bytes).detail for size_bytes in below)
    return (
        Value("one-hop trees", 16, len({share.root for share in forest.shares}), basis=basis),
        Value("data of each", 1 / 16, float(max(share.weight for share in forest.shares)), "S", basis=basis),
        Value("trees that join their root to 15 leaves", 32, direct, basis=f"{basis}, up and down"),
        Value(
            "sizes below 16 KB at which NCCL 2.4.2 takes double binary trees",
            len(below),
            trees,
            basis="the rule of NCCL 2.4.2's ncclTreeThreshold, as baseline nccl-2.4 has it",
        ),
    )


#: The GPUs of Fig 22's job are not stated. In these, both servers' NVLinks carry two lanes.
FRAGMENTED = "0,1,3+0,1,2,3,4"


@PAGE.claim("B19", "§3.5, Fig 10")
def _three_phases(_: Context) -> tuple[Value, ...]:
    """Over n servers AllReduce reduces inside each, crosses by n one-hop trees, and broadcasts inside each.

    The plan also passes the verifier, which follows every contribution to every rank.
    """
    spec = "2x dgx-1v @ 40Gbps"
    topology = topology_of(spec)
    forest = plan("three_phase", spec, "allreduce", parse_gpus(FRAGMENTED, topology))
    server = {vertex.id: vertex.server for vertex in forest.topology.vertices}
    inward: list[int] = []
    outward: list[int] = []
    for share in forest.shares:
        assert share.reduce is not None
        assert share.broadcast is not None
        for tree, counts in ((share.reduce, inward), (share.broadcast, outward)):
            crossing = [path for path in tree.edges if server[path[0]] != server[path[-1]]]
            # Between servers a tree is one hop: to the root that reduces, and from it.
            counts.append(sum(share.root in path for path in crossing) if crossing else 0)
    roots = {server[share.root] for share in forest.shares}
    basis = f"three_phase plan for allreduce, {spec}, GPUs {FRAGMENTED}"
    return (
        Value("cross-server hops into each root, n − 1 of them", 1, max(inward), basis=basis),
        Value("fewest of these", 1, min(inward), basis=basis),
        Value("cross-server hops from each root", 1, max(outward), basis=basis),
        Value("servers that root one-hop trees, of n = 2", 2, len(roots), basis=basis),
        Value("rate, of the network's 5 GB/s", None, forest.algbw_gb_per_s, "GB/s", basis=basis),
    )


def dgx_2_curves(context: Context, sizes: Sequence[int]) -> list[list[float]]:
    """Algbw in GB/s by size: of Blink's one-hop trees, and of both baselines of NCCL 2.4."""
    side, job = blink(context, "dgx-2", "allreduce", how="one_hop"), request("dgx-2", "allreduce")
    curves = [[side.at(size).algbw_gb_per_s for size in sizes]]
    for baseline in BASELINES:
        prepared = nccl(context, job, "nccl-2.4-v100", baseline)
        curves.append([prepared.at(size).algbw_gb_per_s for size in sizes])
    return curves


#: NCCL 2.4 by its code, and by the paper's description.
BASELINES = {"nccl-2.4": "rings only", "nccl-2.4-as-written": "trees below 16 KB"}
#: Sizes of Figs 19 and 20, each four times the one before: latencies below 16 KB, and throughput from there to 1 GiB.
SMALL = (1 << 10, 1 << 11, 1 << 12, 1 << 13)
LARGE = tuple(AS_WRITTEN_BYTES << k for k in range(0, 18, 2))


@PAGE.claim("B30", "§5.2.3, Figs 19 and 20")
def _dgx_2_ratios(context: Context) -> tuple[Value, ...]:
    """On a DGX-2 with 16 GPUs AllReduce has up to 3.32× less latency and up to 3.5× more throughput than NCCL's.

    Compared with the default of NCCL 2.4.2 (only rings) and with the paper's description. Two steps stand against 30 of
    a ring or 8 of a tree. The duration of a step of NCCL's low-latency protocol decides: 0.6 µs by its own tables,
    whereas the paper's ratio implies about 1.8 µs.
    """
    values = []
    trees, *curves = dgx_2_curves(context, (*SMALL, *LARGE))
    for (baseline, what), rings in zip(BASELINES.items(), curves, strict=True):
        gains = [a / b for a, b in zip(trees, rings, strict=True)]
        basis = f"one_hop plan, dgx-2, near-best chunk; {baseline} on nccl-2.4-v100 and nccl-2.4-v100-ll"
        latency, throughput = gains[: len(SMALL)], gains[len(SMALL) :]
        values += [
            Value(f"largest latency ratio, 1–8 KB, {what}", 3.32, max(latency), "×", TOLERANCE, basis=basis),
            Value(f"largest throughput ratio, from 16 KB, {what}", 3.5, max(throughput), "×", TOLERANCE, basis=basis),
            Value(f"throughput ratio at 1 GiB, {what}", None, throughput[-1], "×", basis=basis),
        ]
    return tuple(values)


#: Rates between servers, Gb/s.
NETWORKS_GBIT = (40, 100, 200, 300, 400, 600, 800)


def crossings(context: Context) -> list[tuple[float, float, float]]:
    """Fig 22b, AllReduce of 100 MB over faster and faster networks: of the network, Blink and NCCL 2.4, in GB/s.

    Among 3 and 5 GPUs of two DGX-1V.
    """
    rates = []
    for rate in NETWORKS_GBIT:
        spec = f"2x dgx-1v @ {rate}Gbps"
        gpus = parse_gpus(FRAGMENTED, topology_of(spec))
        costs = COPY_ENGINES["dgx-1v"]
        under = conditions(context, costs)
        side = planned("three_phase", plan("three_phase", spec, "allreduce", gpus), under)
        rings = nccl(context, request(spec, "allreduce", gpus), costs).at(100 * MB)
        rates.append((rate / 8, side.at(100 * MB).algbw_gb_per_s, rings.algbw_gb_per_s))
    return rates


@PAGE.claim("B34", "§5.4, Fig 22b")
def _fig_22b(context: Context) -> tuple[Value, ...]:
    """With 3 and 5 GPUs in two servers AllReduce of 100 MB keeps up with the network until about 300 Gb/s; NCCL is
    bound by PCIe.

    A simulation in the paper as well. The paper does not state the GPUs; ours have two lanes in both servers. NCCL
    2.4's trees use NVLink lines in these servers, so NVLink bounds our baseline, above the bound of PCIe.
    """
    rates = crossings(context)
    kept_up = min(blink_rate / network for network, blink_rate, _ in rates if network <= 300 / 8)
    most = max(blink_rate for _, blink_rate, _ in rates)
    basis = f"three_phase plans, v100-copy-engine, near-best chunk; GPUs {FRAGMENTED}, 100 MB"
    by_gbit = {network * 8: nccl_gb_per_s for network, _, nccl_gb_per_s in rates}
    pcie = min(lane_gb_per_s(context.calibration("nccl-2.4-v100"), kind) for kind in ("pcie", "smp"))
    return (
        Value("Blink's part of the network, 40 to 300 Gb/s", 1, kept_up, "", TOLERANCE, basis=basis),
        Value("where Blink stops", 300, most * 8, "Gb/s", TOLERANCE, basis=basis),
        Value("NCCL at 800 Gb/s against 200", 1, by_gbit[800] / by_gbit[200], "×", TOLERANCE, basis="nccl-2.4"),
        Value("where NCCL stops, NVLink inside servers", None, max(by_gbit.values()) * 8, "Gb/s", basis="nccl-2.4"),
        Value(
            "where NCCL stops, PCIe inside servers",
            None,
            float(ring_allreduce(Fraction(pcie), 8)) * 8,
            "Gb/s",
            basis="8/14 of a ring over PCIe and both sockets, nccl-2.4-v100",
        ),
        two_servers_value(),
    )
