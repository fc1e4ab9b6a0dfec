"""Blink's protocols beyond one set of trees: NVLink with PCIe, DGX-2, several servers (§3.4, §3.5)."""

from __future__ import annotations

from fractions import Fraction

from blinkccl.algorithms.hybrid import hybrid_split
from blinkccl.baselines.nccl_model import AS_WRITTEN_BYTES
from blinkccl.paper.blink_graph import broadcast_optimum, network
from blinkccl.paper.blink_jobs import MB, SIZE_BYTES, nccl, plan, request, topology_of
from blinkccl.paper.blink_microbenchmarks import lane_gb_per_s
from blinkccl.paper.claim import BY_CONSTRUCTION, Claim, Context, Value
from blinkccl.paper.traffic import CALIBRATION
from blinkccl.topology.spec import parse_gpus
from blinkccl.units import GB

#: What trees over PCIe reach. The paper prints no rate; its Fig 21 implies this one with T_dpa = 0.31 ms per GPU.
PCIE_GB_PER_S = Fraction(11, 2)
SPLIT_BASIS = f"Eq 8 with PCIe at 5.5 GB/s, minimum cuts in lanes of {CALIBRATION}, its peer_access_us"


def t_dpa_s(context: Context, ranks: int) -> Fraction:
    """T_dpa for so many GPUs: in proportion to them (§5.3)."""
    return Fraction(context.calibration(CALIBRATION).engine.peer_access_us.value) / 1_000_000 * ranks


def nvlink_gb_per_s(context: Context, ranks: int) -> Fraction:
    """What broadcast trees among the first GPUs of a DGX-1V reach, at the calibrated rate of a lane."""
    lanes = broadcast_optimum(network("dgx-1v", tuple(range(ranks))))
    return lanes * Fraction(lane_gb_per_s(context.calibration(CALIBRATION)))


def eq_8_as_printed(total_bytes: int, pcie_gb_per_s: Fraction, nvlink: Fraction, wait_s: Fraction) -> Fraction:
    """D_PCIe in bytes, without the clamp."""
    both = pcie_gb_per_s + nvlink
    return total_bytes * pcie_gb_per_s / both - wait_s * pcie_gb_per_s * nvlink * GB / both


def _eq_8(context: Context) -> tuple[Value, ...]:
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


def _dgx_2(context: Context) -> tuple[Value, ...]:
    forest = plan("one_hop", "dgx-2", "allreduce")
    switches = {vertex.id for vertex in forest.topology.vertices if vertex.kind == "switch"}
    direct = sum(
        len(tree.edges) == 15 and all(set(path[1:-1]) <= switches and tree.root in path for path in tree.edges)
        for share in forest.shares
        for tree in share.trees()
    )
    basis = "one_hop plan for allreduce, 16 GPUs of a DGX-2"
    theirs = nccl(context, request("dgx-2", "allreduce"), "nccl-2.4-v100")
    below = [1 << k for k in range(10, 40) if 1 << k < AS_WRITTEN_BYTES]
    trees = sum("tree" in theirs.at(size_bytes).detail for size_bytes in below)
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


def _three_phases(_: Context) -> tuple[Value, ...]:
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


CLAIMS = (
    Claim(
        "B17",
        "A",
        "§3.4, Eq 8",
        "The data is split so that PCIe, after T_dpa, and NVLink end at the same time.",
        _eq_8,
        "For data that is large enough: E5. Ours is the same equation solved, so both ends meet because it says so.",
        agrees=BY_CONSTRUCTION,
    ),
    Claim(
        "B18",
        "A",
        "§3.5",
        "On a DGX-2 Blink's AllReduce has m one-hop trees with 1/m of the data each; NCCL takes double binary trees "
        "below 16 KB.",
        _dgx_2,
        "E7: in NCCL 2.4.2 ncclTreeThreshold() is 0 with fewer than two nodes, so that one server has rings only, by "
        "default for every size. B30 has both baselines.",
        wrong=True,
    ),
    Claim(
        "B19",
        "A",
        "§3.5, Fig 10",
        "Over n servers AllReduce reduces inside each, crosses by n one-hop trees, and broadcasts inside each.",
        _three_phases,
        "The plan also passes the verifier, which follows every contribution to every rank.",
    ),
)
