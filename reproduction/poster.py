"""The Blink poster: internal broadcast and cross-group forwarding on DGX-1s."""

from __future__ import annotations

from itertools import permutations

from blinkccl.cost.baselines.nccl import prepare_nccl_24
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.cycles import max_disjoint_cycles
from blinkccl.trees.algorithms.ring import ring_count
from blinkccl.units import bus_factor
from reproduction.claim import Context, Page, Value
from reproduction.jobs import GIB, Gpus, conditions, connected_allocations, plan, request, seconds, wrong_elements

PAGE = Page("B")

MACHINE = "dgx-1p"
EIGHT = tuple(range(8))
SIZES = (4, 5, 6, 7)
#: One bidirectional ring in NCCL's count: one per direction.
BOTH_WAYS = 2
PRIMITIVES = ("broadcast", "gather", "allgather", "allreduce")
#: Fig 1 (a): both rings as printed, a valid ring, and the links that are drawn as not used.
PRINTED, PRINTED_OTHER, CORRECTED, DASHED = "ABCD", "ACDB", "ABDC", ("AD", "BC")


def allocations(size: int, with_ring: bool) -> list[Gpus]:
    """NVLink-connected allocations of one size, one per class, with or without a ring of NCCL over NVLink."""
    sets = [gpus for gpus in connected_allocations(MACHINE) if len(gpus) == size]
    return [gpus for gpus in sets if (rings(gpus) > 0) is with_ring]


def rings(gpus: Gpus) -> int:
    """Number of NCCL 2.4's rings on NVLink, in lanes."""
    return ring_count(request(MACHINE, "allreduce", gpus))


def links_among(gpus: Gpus) -> int:
    """NVLinks between these GPUs, both directions one link."""
    links = parse_spec(MACHINE).links
    return sum(x.kind == "nvlink" and x.src < x.dst and {x.src, x.dst} <= set(gpus) for x in links)


def speedup(context: Context, gpus: Gpus) -> float:
    """Speed-up of the poster's AllReduce of 1 GiB over NCCL's rings."""
    job = request(MACHINE, "allreduce", gpus)
    nccl_s = prepare_nccl_24(job, conditions(context, "p100-copy-engine")).at(GIB).seconds
    forest = plan("internal_broadcast", MACHINE, "allreduce", gpus)
    return nccl_s / seconds(context, forest, "p100-copy-engine", GIB)


@PAGE.claim("P1", "§1, Fig 1")
def _four_in_a_clique(context: Context) -> tuple[Value, ...]:
    """Among four fully connected GPUs two rings broadcast n bytes in n/2b, three trees in n/3b."""
    clique = dict.fromkeys(permutations(range(4), 2), 1)
    cycles = sum(times for _, times in max_disjoint_cycles(clique, range(4)))
    trees = plan("internal_broadcast", "clique:4", "broadcast")
    best = plan("optimal", "clique:4", "broadcast")
    return (
        Value("rings", 2, cycles, "links", basis="link-disjoint Hamiltonian cycles of clique:4"),
        Value("broadcast by trees", 3, float(trees.rate), "links", basis="internal_broadcast on clique:4"),
        Value("proved bound", None, float(best.bound), "links", basis="cut of optimal on clique:4"),
    )


@PAGE.claim("P2", "§2")
def _rings_by_size(context: Context) -> tuple[Value, ...]:
    """NCCL forms one bidirectional ring on a DGX-1P if 4 to 7 GPUs are used.

    True of 5, 6 and 7 GPUs that have a ring. Among four, NCCL 2.4 has six rings of half a link, in sum three.
    """
    basis = "nccl-2.4's rings on the NVLink-connected allocations of dgx-1p"
    return tuple(
        Value(
            f"{size} GPUs, most rings of any allocation",
            BOTH_WAYS,
            max(map(rings, allocations(size, True))),
            "lanes",
            relation="<=",
            basis=basis,
        )
        for size in SIZES
    )


@PAGE.claim("P3", "§2", wrong=True)
def _idle_links(context: Context) -> tuple[Value, ...]:
    """Over half of the links stay idle: six GPUs use 6 of 16 NVLinks.

    Six GPUs have 8 or 9 links among them; the other 7 or 8 lead to GPUs outside the job.
    """
    basis = "NVLinks of dgx-1p among the allocation's GPUs"
    most = max(map(links_among, allocations(6, True)))
    four = links_among((0, 1, 2, 3))
    return (
        Value("NVLinks among six GPUs, of which a ring uses six", 16, most, basis=basis),
        Value("idle with a ring of six", 50, 100 * (1 - 6 / most), "%", relation=">=", basis=basis),
        Value("idle with a ring of four", 50, 100 * (1 - 4 / four), "%", relation=">=", basis=basis),
    )


@PAGE.claim("P4", "§3.1, Fig 2")
def _protocol(context: Context) -> tuple[Value, ...]:
    """AllReduce: reduce-scatter in each group of four, across with the partner, and back within the group.

    It computes the sum. Among six and eight GPUs it is below the optimum, among eight also below NCCL's rings.
    """
    values = []
    for gpus in ((0, 1, 2, 3), (0, 1, 2, 4, 5, 6), EIGHT):
        mine, best = (plan(how, MACHINE, "allreduce", gpus) for how in ("internal_broadcast", "optimal"))
        names = ",".join(map(str, gpus))
        wrong = wrong_elements(mine, 101)
        values += [
            Value(f"{names}: wrong sums", 0, wrong, basis="internal_broadcast on the reference engine"),
            Value(f"{names}: rate", None, float(mine.rate), "lanes", basis="internal_broadcast on dgx-1p"),
            Value(f"{names}: optimum", None, float(best.rate), "lanes", basis="optimal on dgx-1p"),
        ]
    ring = rings(EIGHT) / float(bus_factor("allreduce", 8))
    return (*values, Value("all 8: NCCL's rings", None, ring, "lanes", basis="nccl-2.4's rings on dgx-1p"))


@PAGE.claim("P5", "§3.2, Fig 3")
def _twice_as_fast(context: Context) -> tuple[Value, ...]:
    """AllReduce of 1 GB among 4 to 7 GPUs has twice the throughput of NCCL 2.

    With the links of a DGX-1P the protocol's rate is at most 1.5 times that of one bidirectional ring, and NCCL 2.4 has
    more than this among four. The GPUs and the version of NCCL are not stated; on GPUs without an NVLink ring NCCL
    falls back to PCIe, and the gain is far more than 2.
    """
    timed = "internal_broadcast on p100-copy-engine, nccl-2.4 on nccl-2.4-p100, 1 GiB"
    values = []
    for size in SIZES:
        sets = allocations(size, True)
        rate = max(plan("internal_broadcast", MACHINE, "allreduce", gpus).rate for gpus in sets)
        ideal = float(rate * bus_factor("allreduce", size) / BOTH_WAYS)
        best = max(speedup(context, gpus) for gpus in sets)
        values += [
            Value(f"{size} GPUs, best allocation", 2, best, "times", tolerance=0.1, basis=timed),
            Value(f"{size} GPUs, by rates", 2, ideal, "times", 0.1, basis="internal_broadcast over one ring both ways"),
        ]
    lone = max(speedup(context, gpus) for gpus in allocations(5, False))
    return (*values, Value("5 GPUs without an NVLink ring", None, lone, "times", basis=timed))


@PAGE.claim("P6", "§1")
def _four_primitives(context: Context) -> tuple[Value, ...]:
    """Protocols for Broadcast, Gather, AllGather and AllReduce on up to 8 GPUs.

    The poster describes AllReduce alone; the other three follow its two phases as we read them.
    """
    right = [
        name
        for name in PRIMITIVES
        if not any(wrong_elements(plan("internal_broadcast", MACHINE, name, EIGHT[:n]), 17) for n in range(2, 9))
    ]
    basis = "internal_broadcast among 2 to 8 GPUs of dgx-1p on the reference engine"
    return (Value("primitives without a wrong element", len(PRIMITIVES), len(right), basis=basis),)


def _hops(order: str) -> list[str]:
    return [a + b for a, b in zip(order, order[1:] + order[0], strict=True)]


@PAGE.claim("E10", "§1, Fig 1 (a)", wrong=True)
def _printed_ring(context: Context) -> tuple[Value, ...]:
    """The rings A, B, C, D, A and A, C, D, B, A leave the links A-D and B-C unused.

    The first ring as printed crosses both. The poster means A, B, D, C, A, whose reverse is the second ring.
    """
    dashed = {link for pair in DASHED for link in (pair, pair[::-1])}
    basis = "the poster's Fig 1 (a), hop by hop"
    backward = {hop[::-1] for hop in _hops(PRINTED)}
    return (
        Value("links drawn as idle that A, B, C, D, A uses", 0, len(dashed & set(_hops(PRINTED))), basis=basis),
        Value("hops of the other ring that reverse it", 4, len(backward & set(_hops(PRINTED_OTHER))), basis=basis),
        Value("links drawn as idle that A, B, D, C, A uses", None, len(dashed & set(_hops(CORRECTED))), basis=basis),
    )
