"""The notes "NCCL algorithms and how it achieves 900 GB/s": arithmetic of rings and trees on 8 H200."""

from __future__ import annotations

from functools import lru_cache

from blinkccl.cost.baselines.nccl_model import choose, cost_lines
from blinkccl.show.models import peak_flops_per_s
from blinkccl.topology.assembly import exact_unit
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest, link_use
from blinkccl.units import GB, algbw_gb_per_s, bus_factor
from reproduction.claim import Context, Page, Value
from reproduction.jobs import GIB, KIB, MIB, channels, nccl_winners, plan, request, seconds
from reproduction.ring_vs_tree import agreeing, traced

PAGE = Page("E")

MACHINE, RANKS = "hgx-h200", 8
#: §5: GB, algbw and busbw in GB/s.
MEASURED = ((1, 257, 449), (4, 280, 490), (8, 291, 509))
#: §9: bytes, µs, algbw and busbw as printed.
SAMPLE = ((MIB, 382.1, 2.75, 4.81), (64 * MIB, 2431.6, 27.60, 48.30), (512 * MIB, 14985.5, 358.28, 626.98))
#: §10: parameters, tokens of a step, bytes of gradients.
PARAMETERS, TOKENS, GRADIENT_BYTES = 70 * 10**9, 4 * 2048, 140 * 10**9
LINK_GB_PER_S = 450
#: §2: contents of ranks 0 to 3 after step 1 and after the last step of phase 1, as chunk and contributors.
FIRST_STEP, LAST_STEP = ("C23", "D01", "A12", "B23"), ("D0123", "A0123", "B0123", "C0123")
#: §4: the two trees, child to parent.
TREE_A, TREE_B = {1: 0, 2: 0, 3: 1, 4: 1}, {3: 4, 0: 4, 2: 3, 1: 3}


@lru_cache(maxsize=4)
def ring(spec: str) -> Forest:
    """The rings of NCCL 2.4 on one server."""
    return plan("ring", spec, "allreduce")


def job() -> Request:
    """The AllReduce of the notes."""
    return request(MACHINE, "allreduce")


def roofline_seconds(size_bytes: int) -> float:
    """Least time of an AllReduce of S bytes, without latency: 2 (N-1)/N · S over a GPU's links (§6)."""
    return float(bus_factor("allreduce", RANKS) * size_bytes) / (LINK_GB_PER_S * GB)


def out_of(forest: Forest, rank: int) -> int:
    """Capacity of the links out of a rank, in the topology's units."""
    return sum(link.capacity for link in forest.topology.links if link.src == rank)


@PAGE.claim("N1", "§5")
def _links(context: Context) -> tuple[Value, ...]:
    """An H200 has 18 NVLinks of 50 GB/s both ways: 900 GB/s, to every other GPU.

    The rate holds per GPU and through the switches: to all seven others at once, each gets a seventh.
    """
    topology = job().topology
    nvlinks = [link for link in topology.links if link.kind == "nvlink"]
    out = sum(link.gb_per_s for link in nvlinks if link.src == 0)
    back = sum(link.gb_per_s for link in nvlinks if link.dst == 0)
    everyone = plan("optimal", MACHINE, "alltoall")
    each = everyone.algbw_gb_per_s / RANKS
    return (
        Value("out of a GPU", 450, out, "GB/s", basis="catalog's hgx-h200"),
        Value("both directions", 900, out + back, "GB/s", basis="catalog's hgx-h200"),
        Value("to each of the others at once, each way", None, each, "GB/s", basis="optimal alltoall on hgx-h200"),
    )


@PAGE.claim("N2", "§5")
def _bus_factor(context: Context) -> tuple[Value, ...]:
    """busbw = algbw * 2(N-1)/N, 1.75 for 8 GPUs."""
    return (Value("busbw / algbw, 8 GPUs", 1.75, float(bus_factor("allreduce", RANKS)), basis="2(n-1)/n"),)


@PAGE.claim("N3", "§5", wrong=True)
def _nine_hundred(context: Context) -> tuple[Value, ...]:
    """Rings on 8 H200 measure 257, 280 and 291 GB/s at 1, 4 and 8 GB: busbw 449, 490 and 509.

    Links of 450 GB/s each way carry a busbw of 450 at most, with any algorithm. More requires in-network reduction
    (NVLS), which is no ring; for rings NCCL's maintainers name about 370 GB/s, for NVLS 480.
    """
    exact = bus_factor("allreduce", RANKS)
    factor = float(exact)
    values = [
        Value(f"{size} GB, busbw of {algbw}", busbw, algbw * factor, "GB/s", 0.005, basis="2(n-1)/n")
        for size, algbw, busbw in MEASURED
    ]
    *_, (size, _, most) = MEASURED
    best = plan("optimal", MACHINE, "allreduce")
    bound = float(best.bound * exact * exact_unit(best.topology))
    simulated = algbw_gb_per_s(size * GIB, seconds(context, ring(MACHINE), "h100", size * GIB)) * factor
    model = choose(channels(MACHINE), "allreduce", size * GIB).busbw_gb_per_s
    return (
        *values,
        Value("8 GB, the most that links carry", most, bound, "GB/s", basis=f"proved bound of optimal on {MACHINE}"),
        Value("8 GB, rings", most, simulated, "GB/s", 0.05, basis=f"ring on {MACHINE}, h100, near-best chunk"),
        Value("8 GB, rings by NCCL", most, model, "GB/s", 0.05, basis=f"NCCL 2.30's cost model on {MACHINE}"),
        Value("twice 509, as what a GPU's links carry", 900, 2 * most, "GB/s", 0.005, basis="the notes' own check"),
    )


@PAGE.claim("N4", "§2", wrong=True)
def _fraction_of_peak(context: Context) -> tuple[Value, ...]:
    """A ring uses (N-1)/N of the peak: 87.5 % with 8 GPUs, 93.75 % with 16.

    Every link of the ring is busy all the time, which is the meaning of busbw. algbw is N/2(N-1) of the link: 57 % with
    8 GPUs.
    """
    values = []
    for spec, ranks, printed in ((MACHINE, 8, 87.5), ("dgx-2", 16, 93.75)):
        forest = ring(spec)
        busbw = float(forest.rate * bus_factor("allreduce", ranks) / out_of(forest, forest.ranks[0]))
        values.append(Value(f"{ranks} GPUs, busbw over the link", printed, 100 * busbw, "%", basis=f"ring on {spec}"))
    forest = ring(MACHINE)
    algbw = float(forest.rate / out_of(forest, forest.ranks[0]))
    return (*values, Value("8 GPUs, algbw over the link", None, 100 * algbw, "%", basis=f"ring on {MACHINE}"))


@PAGE.claim("N5", "§6")
def _roofline(context: Context) -> tuple[Value, ...]:
    """The roofline of 1 GB among 8 H200 is 3.9 ms, which matches the measured time, about 4 ms.

    The arithmetic holds. Rings reach 82 % of their links' rate; the measurement is that of N3.
    """
    least = 1e3 * roofline_seconds(GB)
    rings = 1e3 * seconds(context, ring(MACHINE), "h100", GB)
    return (
        Value("1 GB at 450 GB/s", 3.9, least, "ms", 0.005, basis="2(n-1)/n · S over the rate"),
        Value("1 GB, measured", 4.0, rings, "ms", 0.1, basis=f"ring on {MACHINE}, h100, near-best chunk"),
    )


@PAGE.claim("N6", "§4, §7", wrong=True)
def _thresholds(context: Context) -> tuple[Value, ...]:
    """NCCL takes P2P below 1 KB, trees up to 1 MB, rings above; on NVSwitch double binary trees are its default.

    NCCL's cost model decides. Inside one server its tree is a chain (issue 672 of nccl), which never wins here; double
    binary trees are used between servers. No AllReduce consists of P2P.
    """
    rings_from = next(size for size, algorithm in nccl_winners(channels(MACHINE)) if algorithm == "ring")
    trees = sum(choose(channels(MACHINE), "allreduce", KIB << power).algorithm == "tree" for power in range(10))
    chains = channels(MACHINE).tree
    assert chains is not None
    basis = f"NCCL 2.30's cost model on {MACHINE}"
    return (
        Value("rings from", MIB, rings_from, "bytes", 0.1, basis=basis),
        Value("sizes 1 KB, 2 KB, … 512 KB with a tree", 10, trees, basis=basis),
        Value("levels of its tree among 8 GPUs", 3, len(chains.orders[0][0]) - 1, basis="NCCL 2.30's search: a chain"),
    )


@PAGE.claim("N7", "§9", wrong=True)
def _sample_output(context: Context) -> tuple[Value, ...]:
    """Sample output: 2.75, 27.60 and 358.28 GB/s at 1, 64 and 512 MB, busbw 4.81, 48.30 and 626.98.

    512 MB in 14985.5 µs are 35.8 GB/s: the last row is ten times too high.
    """
    values = []
    for size, us, algbw, busbw in SAMPLE:
        true = algbw_gb_per_s(size, us * 1e-6)
        name, basis = f"{size // MIB} MB", "size over the printed time"
        values += [
            Value(f"{name}, algbw", algbw, true, "GB/s", 0.005, basis=basis),
            Value(f"{name}, busbw", busbw, true * float(bus_factor("allreduce", RANKS)), "GB/s", 0.005, basis=basis),
        ]
    return tuple(values)


@PAGE.claim("N8", "§10", wrong=True)
def _gradients(context: Context) -> tuple[Value, ...]:
    """A step of a 70B model with 4 * 2048 tokens computes for 1.7 ms and communicates for 355 ms, which dominates.

    It takes 1.7 seconds, not milliseconds, and 3.5 without the sparse peak. The notes' own §6 gives 544 ms for 140 GB:
    compute dominates.
    """
    work = 6 * PARAMETERS * TOKENS  # Kaplan et al. 2020, §2.1
    compute, dense = (1e3 * work / peak_flops_per_s("h200", sparse) for sparse in (True, False))
    least = 1e3 * roofline_seconds(GRADIENT_BYTES)
    return (
        Value("compute at 1979 TFLOPS", 1.7, compute, "ms", 0.05, basis="6 · parameters · tokens"),
        Value("compute at the dense peak, 989 TFLOPS", None, dense, "ms", basis="6 · parameters · tokens"),
        Value("AllReduce of 140 GB", 355, least, "ms", 0.005, basis="the notes' own roofline, §6"),
        Value("AllReduce over compute", 355 / 1.7, least / compute, "times", 0.05, basis="the two above"),
    )


@PAGE.claim("N9", "§10", wrong=True)
def _zero3(context: Context) -> tuple[Value, ...]:
    """ZeRO-3 is necessary because it replaces AllReduce with ReduceScatter, which moves only S/N.

    ReduceScatter sends (N-1)/N S. With both AllGathers ZeRO-3 sends 3/2 of AllReduce's data; it saves memory instead.
    """
    scatter = plan("optimal", MACHINE, "reduce_scatter")
    sent = max(float(use) for (src, _), use in link_use(scatter.shares).items() if src in scatter.ranks)
    gathers, scatters, reduces = (bus_factor(name, RANKS) for name in ("allgather", "reduce_scatter", "allreduce"))
    ratio = (2 * gathers + scatters) / reduces
    printed = 1 / RANKS / float(bus_factor("allreduce", RANKS))
    return (
        Value("what ReduceScatter sends per GPU", 1 / RANKS, sent, "S", basis=f"optimal reduce_scatter on {MACHINE}"),
        Value("ZeRO-3 over AllReduce, sent per step", printed, float(ratio), "times", basis="3(n-1)/n over 2(n-1)/n"),
    )


@PAGE.claim("N10", "§8")
def _protocols(context: Context) -> tuple[Value, ...]:
    """LL packs data and flag into 8 bytes, LL128 into 128; Simple uses DMA.

    LL's 8 bytes hold 4 of data, LL128's 128 hold 120. In Simple, threads copy too; this is from NCCL's source and not
    computed here.
    """
    lines = cost_lines(channels("mist"), "allreduce")
    rings = {line.protocol: line.gb_per_s for line in lines if line.algorithm == "ring"}
    each = float(4 * rings["Simple"] / rings["LL"])
    return (Value("LL, bytes sent for 4 of data", 8, each, "bytes", basis="NCCL 2.30's cost model of rings on mist"),)


def edges(tree: dict[int, int]) -> set[frozenset[int]]:
    """The links of a tree, both directions as one."""
    return {frozenset(pair) for pair in tree.items()}


@PAGE.claim("E11", "§2, §4", wrong=True)
def _traces(context: Context) -> tuple[Value, ...]:
    """The trace of the ring among four GPUs; double trees do ReduceScatter on one tree and AllGather on the other.

    GPU 0 receives C3 and has C0+C3; GPUs 0 to 3 end up with A, B, C, D. Each tree carries half of the data up and down.
    The printed trees have one link of seven in common.
    """
    steps = traced(4)
    # The notes rotate the ring by one chunk: rank r sends chunk r - 1 first, not chunk r.
    turned = [[((chunk - 1) % 4, whose) for chunk, whose in step] for step in steps]
    shares = plan("double_binary_tree", MACHINE, "allreduce").shares
    both = sum(share.reduce is not None and share.broadcast is not None for share in shares)
    common = edges(TREE_A) & edges(TREE_B)
    return (
        Value("sums after step 1 that hold", 4, agreeing([FIRST_STEP], turned[:1]), basis="the notes' own sends"),
        Value("owners after phase 1 that hold", 4, agreeing([LAST_STEP], turned[-1:]), basis="the notes' own sends"),
        Value("trees that carry their half both ways", 0, both, basis=f"double_binary_tree on {MACHINE}"),
        Value("links in both trees", len(edges(TREE_A) | edges(TREE_B)), len(common), basis="the trees as printed"),
    )
