"""The post "NCCL ring vs tree": a ring in Python over send and receive, compared with NCCL, on 2 × 8 H100."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from itertools import pairwise
from math import ceil

from blinkccl.cost.baselines.nccl_model import choose
from blinkccl.cost.baselines.staged import PLAIN_NET_GB_PER_S, PLAIN_STEP_US, plain_ring, prepare_plain_ring
from blinkccl.trees.forest.model import Forest, link_use, tree_depth
from blinkccl.units import GB, bus_factor
from reproduction.claim import Context, Page, Value
from reproduction.jobs import GIB, KIB, MIB, channels, conditions, nccl_winners, plan, request, wrong_elements

PAGE = Page("D")

CLUSTER, RANKS = "2x hgx-h100", 16
THREE = "3x hgx-h100"
#: "Results": size, ms of the ring, ms of NCCL. The post's GB/s for them are busbw, of sizes in powers of 1024.
TABLE = (
    ("4 KB", 4 * KIB, 1.81, 0.05),
    ("256 KB", 256 * KIB, 2.19, 0.13),
    ("4 MB", 4 * MIB, 1.61, 0.20),
    ("64 MB", 64 * MIB, 6.99, 1.21),
    ("512 MB", 512 * MIB, 50.3, 7.40),
    ("8 GB", 8 * GIB, 806.0, 115.0),
)
#: nccl-tests at 8 GB, GB/s: algbw and busbw on two and on three servers; and the post's column for NCCL.
ALGBW, BUSBW, ALGBW_THREE, BUSBW_THREE, PYTORCH = 257, 482, 204, 392, 140
NIC_GB_PER_S, NICS = 50, 8
#: The printed traces of phase 1: per step, the contents of ranks 0 to 3 as chunk and contributors.
TRACE = (("D03", "A01", "B12", "C23"), ("C230", "D031", "A012", "B123"), ("B1230", "C2301", "D0312", "A0123"))
CONTAINER, NCCL_2_28_9 = date(2024, 12, 1), date(2025, 11, 18)


def chunk_sizes(elements: int, ranks: int) -> tuple[int, ...]:
    """Sizes of torch.chunk's pieces: ⌈elements / ranks⌉, at most ``ranks`` of them, the last one shorter."""
    size = max(1, ceil(elements / ranks))
    return tuple(min(size, elements - start) for start in range(0, elements, size))


def traced(ranks: int) -> list[list[tuple[int, frozenset[int]]]]:
    """Phase 1 by the code's indices: per step and rank the chunk just reduced, and its contributors."""
    held = [[frozenset({rank})] * ranks for rank in range(ranks)]
    steps = []
    for step in range(ranks - 1):
        sent = [held[rank][(rank - step) % ranks] for rank in range(ranks)]
        combined = []
        for rank in range(ranks):
            chunk = (rank - step - 1) % ranks
            held[rank][chunk] |= sent[rank - 1]
            combined.append((chunk, held[rank][chunk]))
        steps.append(combined)
    return steps


def agreeing(trace: Sequence[Sequence[str]], steps: Sequence[Sequence[tuple[int, frozenset[int]]]]) -> int:
    """Number of entries of a printed trace that agree with the steps."""
    return sum(
        text[0] == "ABCD"[chunk] and {int(x) for x in text[1:]} == whose
        for printed, step in zip(trace, steps, strict=True)
        for text, (chunk, whose) in zip(printed, step, strict=True)
    )


def receives_that_do_not_fit(elements: int, ranks: int) -> int:
    """Receives of phase 1 whose message size differs from the code's one buffer, which has the size of chunk 0."""
    sizes = chunk_sizes(elements, ranks)
    padded = (*sizes, *[0] * (ranks - len(sizes)))
    received = [padded[(rank - step - 1) % ranks] for step in range(ranks - 1) for rank in range(ranks)]
    return sum(size != sizes[0] for size in received)


@lru_cache(maxsize=4)
def one_ring(spec: str) -> Forest:
    """The post's ring: one, in the order of the ranks."""
    return plain_ring(request(spec, "allreduce"))


@PAGE.claim("R1", "Why Ring is Bandwidth-Optimal")
def _traffic(context: Context) -> tuple[Value, ...]:
    """Each GPU sends 2(N-1)/N times the data: 1.875 for 16 GPUs."""
    sent: dict[int, float] = {}
    for (src, _), use in link_use(one_ring(CLUSTER).shares).items():
        sent[src] = sent.get(src, 0.0) + float(use)
    ranks = request(CLUSTER, "allreduce").ranks
    basis = f"links out of each rank of plain-ring on {CLUSTER}"
    return (
        Value("most that a rank sends", 1.875, max(sent[rank] for rank in ranks), "S", basis=basis),
        Value("least that a rank sends", 1.875, min(sent[rank] for rank in ranks), "S", basis=basis),
    )


@PAGE.claim("R2", "The Algorithm; The Implementation; Correctness Verification")
def _code(context: Context) -> tuple[Value, ...]:
    """The ring in Python gives the same sums as NCCL, and its trace for four GPUs is right.

    This holds if the size is a multiple of the number of ranks; E12 has the other sizes.
    """
    entries = sum(map(len, TRACE))
    right = agreeing(TRACE, traced(4))
    whole = sum(whose == frozenset(range(RANKS)) for _, whose in traced(RANKS)[-1])
    wrong = wrong_elements(one_ring(CLUSTER), 4 * RANKS)
    return (
        Value("entries of the printed trace that hold", entries, right, basis="the code's indices, step by step"),
        Value("ranks with a whole sum after phase 1", RANKS, whole, basis="the code's indices among 16 ranks"),
        Value("wrong sums, sizes divisible by 16", 0, wrong, basis="plain-ring on the reference engine"),
    )


@PAGE.claim("R3", "Results")
def _table(context: Context) -> tuple[Value, ...]:
    """4 KB to 8 GB on 2 servers with 8 H100 each: the ring takes 1.81 to 806 ms, NCCL 0.05 to 115 ms.

    The ring's rows between the fitted ones are predictions. No model in which time grows with the size gives its 4 MB,
    which took less time than 4 KB. 20 GB/s are less than half of a NIC: NCCL gives a peer few channels (issue 1272 of
    nccl). NCCL's column is 2.0 to 2.7 times the prediction of its own cost model, and at 8 GB 3.4 times the time of
    nccl-tests on the same servers (R5).
    """
    ring = prepare_plain_ring(request(CLUSTER, "allreduce"), conditions(context, "h100"))
    basis = f"plain-ring on h100; {PLAIN_STEP_US.value:g} µs a step is fitted to 4 KB and "
    basis += f"{PLAIN_NET_GB_PER_S.value:g} GB/s between servers to 8 GB"
    how = f"NCCL 2.30's cost model on {CLUSTER}, rings and trees"
    values = []
    for name, size, ms, _ in TABLE:
        values.append(Value(f"ring, {name}", ms, 1e3 * ring.at(size).seconds, "ms", 0.1, basis=basis))
    for name, size, _, ms in TABLE:
        best = choose(channels(CLUSTER), "allreduce", size)
        values.append(Value(f"NCCL, {name}", ms, 1e3 * best.seconds, "ms", 0.1, basis=how))
    return tuple(values)


@PAGE.claim("R4", "Comparison with nccl-tests")
def _nccl_tests(context: Context) -> tuple[Value, ...]:
    """nccl-tests at 8 GB: 257 GB/s and busbw 482 on two servers, 204 and 392 on three.

    Only the consistency of the numbers can be checked.
    """
    factors = [float(bus_factor("allreduce", ranks)) for ranks in (16, 24)]
    basis = "2(n-1)/n"
    return (
        Value("two servers, busbw", BUSBW, ALGBW * factors[0], "GB/s", 0.005, basis=basis),
        Value("three servers, busbw", BUSBW_THREE, ALGBW_THREE * factors[1], "GB/s", 0.005, basis=basis),
    )


@PAGE.claim("R5", "Comparison with nccl-tests; Key Takeaways 4", wrong=True)
def _tuning(context: Context) -> tuple[Value, ...]:
    """Tuning takes NCCL from 140 to 257 GB/s: 83 % more.

    140 is busbw and 257 algbw. 482 is 3.44 times 140.
    """
    *_, (_, size, _, ms) = TABLE
    algbw = size / ms / 1e-3 / GB
    busbw = algbw * float(bus_factor("allreduce", RANKS))
    return (
        Value("8 GiB in 115 ms as algbw", PYTORCH, algbw, "GB/s", 0.005, basis="size over time"),
        Value("as busbw", None, busbw, "GB/s", basis="size over time, 2(n-1)/n"),
        Value("gain by tuning", 83, 100 * (BUSBW / busbw - 1), "%", 0.02, basis="busbw over busbw"),
    )


def nic_use(forest: Forest) -> float:
    """Part of S that crosses the fullest link from a NIC into the network."""
    kind = {vertex.id: vertex.kind for vertex in forest.topology.vertices}
    out = [part for (src, dst), part in link_use(forest.shares).items() if (kind[src], kind[dst]) == ("nic", "switch")]
    return float(max(out))


@PAGE.claim("R6", "Comparison with nccl-tests; Key Takeaways 5", wrong=True)
def _nics(context: Context) -> tuple[Value, ...]:
    """A busbw of 482 GB/s means 49 GB/s on each of 8 InfiniBand ports, 98 % of the line rate.

    482/8 is 60, more than a port carries. Rings would have to send this much, so the algorithm was not a ring: trees,
    or in-network reduction, send S once out of each server, which is 32 GB/s per port.
    """
    rings, least = (nic_use(plan(how, CLUSTER, "allreduce")) for how in ("ring", "three_phase"))
    return (
        Value("busbw over 8 NICs", 49, BUSBW / NICS, "GB/s", 0.01, basis="482 / 8"),
        Value(
            "rings at 257 GB/s, per NIC", NIC_GB_PER_S, ALGBW * rings, "GB/s", relation="<=", basis=f"ring on {CLUSTER}"
        ),
        Value(
            "part of line rate", 98, 100 * ALGBW * least / NIC_GB_PER_S, "%", 0.01, basis=f"three_phase on {CLUSTER}"
        ),
    )


@PAGE.claim("R7", "Comparison with nccl-tests", wrong=True)
def _hops(context: Context) -> tuple[Value, ...]:
    """2 of 16 hops cross InfiniBand on two servers, 6 of 24 on three.

    A ring enters and leaves each server once: 3 of 24, the same eighth as 2 of 16.
    """
    values = []
    for spec, printed, ranks in ((CLUSTER, 2, 16), (THREE, 6, 24)):
        forest = one_ring(spec)
        kinds = {pair: link.kind for pair, link in forest.topology.link.items()}
        down = forest.shares[0].broadcast
        assert down is not None
        order = [down.root, *(path[-1] for path in down.edges)]
        hops = {path[0]: path for share in forest.shares for tree in share.trees() for path in tree.edges}
        crossing = sum(any(kinds[pair] == "net" for pair in pairwise(hops[rank])) for rank in order)
        basis = f"plain-ring on {spec}"
        values.append(Value(f"hops of {ranks} over InfiniBand", printed, crossing, basis=basis))
    return tuple(values)


@PAGE.claim("R8", "Why NCCL is 34x Faster; Key Takeaways 3", wrong=True)
def _steps(context: Context) -> tuple[Value, ...]:
    """At 4 KB the ring takes 15 steps of 120 µs, NCCL's tree 4 steps.

    The code has two phases of 15 steps. A tree goes up and down: 2 log2 16 steps, as the post states elsewhere.
    """
    share = one_ring(CLUSTER).shares[0]
    steps = sum(map(tree_depth, share.trees()))
    trees = plan("double_binary_tree", "dgx-2", "allreduce").shares
    levels = max(sum(map(tree_depth, share.trees())) for share in trees)
    return (
        Value("steps of the ring", 15, steps, basis=f"depths of plain-ring on {CLUSTER}"),
        Value("a step at 4 KB", 120, 1e3 * TABLE[0][2] / steps, "µs", 0.01, basis="1.81 ms over these steps"),
        Value("steps of a tree", 4, levels, basis="depths of double_binary_tree among the 16 GPUs of dgx-2"),
    )


@PAGE.claim("R9", "When to Use Each; Setup", wrong=True)
def _switch(context: Context) -> tuple[Value, ...]:
    """NCCL takes trees below 256 KB and rings above; NCCL 2.28.9 in the container pytorch:24.12.

    By its cost model rings and trees alternate several times between two servers, and trees win up to a larger size.
    NCCL 2.28.9 came out eleven months after that container.
    """
    winners = nccl_winners(channels(CLUSTER))
    last_tree = max(i for i, (_, algorithm) in enumerate(winners) if algorithm == "tree")
    months = 12 * (NCCL_2_28_9.year - CONTAINER.year) + NCCL_2_28_9.month - CONTAINER.month
    return (
        Value(
            "rings only, from",
            256,
            winners[last_tree + 1][0] / KIB,
            "KiB",
            0.1,
            basis=f"NCCL 2.30's cost model on {CLUSTER}",
        ),
        Value("months from the container to its NCCL", 0, months, relation="<=", basis="release dates"),
    )


@PAGE.claim("E12", "The Implementation", wrong=True)
def _bugs(context: Context) -> tuple[Value, ...]:
    """The code is for any tensor: 'chunk' gives each rank a piece, and a buffer of the first one's size is enough.

    torch.chunk may give fewer chunks than ranks, and a shorter last one: then sizes do not match, or a rank fails while
    others wait. Also, the tensor must be contiguous, ranks of a subgroup are used as global ones, and only sums are
    supported.
    """
    basis = "sizes as torch.chunk cuts them, indices of the code"
    own = sum(wrong_elements(plan("ring", "ring:4", "allreduce"), count) for count in (5, 10))
    return (
        Value("chunks of 5 elements for 4 ranks", 4, len(chunk_sizes(5, 4)), basis=basis),
        Value("10 elements, 4 ranks: receives that do not fit", 0, receives_that_do_not_fit(10, 4), basis=basis),
        Value("16 elements, 4 ranks: receives that do not fit", 0, receives_that_do_not_fit(16, 4), basis=basis),
        Value("memory beside the tensor, 16 ranks", None, 1 + 1 / RANKS, "S", basis="receive buffer and final copy"),
        Value("wrong sums of our ring, 5 and 10 elements", None, own, basis="ring on ring:4, reference engine"),
    )
