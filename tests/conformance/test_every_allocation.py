"""Every connected allocation of both DGX-1s × every collective, root and pair is planned, proved, checked and run."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

import pytest

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference
from blinkccl.proof.check import check_plan
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.topology.catalog import connected_allocations, machine
from blinkccl.trees.algorithms.blink import one_root_optimum
from blinkccl.trees.algorithms.rank_network import rank_network_of
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.document import to_document
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.packing.undirected import most_central
from support.examples import ALL_TESTS
from support.execution import difference
from support.planned import with_ends

ALLOCATIONS = [(name, gpus) for name in ("dgx-1v", "dgx-1p") for gpus in connected_allocations(name)]
PRIME = 10_007
ITEMSIZE = 4


def test_there_are_46_and_14_of_them() -> None:
    assert [len(connected_allocations(name)) for name in ("dgx-1v", "dgx-1p")] == [46, 14]


def every_collective(world_size: int) -> Iterator[Collective]:
    """All nine collectives with every root and every ordered pair of ends."""
    for name, definition in COLLECTIVES.items():
        if definition.parameters == ("root",):
            yield from (Collective(name, world_size, root=root) for root in range(world_size))
        elif definition.parameters:
            yield from (Collective(name, world_size, src=s, dst=d) for s, d in permutations(range(world_size), 2))
        else:
            yield Collective(name, world_size)


def planned(name: str, gpus: tuple[int, ...], collective: Collective) -> Forest:
    return algorithm("optimal").plan(Request(machine(name), collective, gpus))


def units(forest: Forest) -> int:
    """The units into which the scaled integral packing divides S: p for an optimum p/q per item, times the items."""
    parts = 1 if forest.collective.total_blocks() == 1 else forest.collective.world_size
    return parts * (forest.rate / parts).numerator


def is_a_star_of_each(forest: Forest) -> bool:
    """True if every rank is the root of an equal share, one hop from all others."""
    roots = sorted(share.root for share in forest.shares)
    return forest.depth == 1 and roots == sorted(forest.ranks) and len({share.weight for share in forest.shares}) == 1


@pytest.mark.parametrize(("name", "gpus"), ALLOCATIONS)
def test_every_root_and_pair_is_optimal_checked_and_valid(name: str, gpus: tuple[int, ...]) -> None:
    for collective in every_collective(len(gpus)):
        forest = planned(name, gpus, collective)
        assert forest.rate == forest.bound, (collective, forest.rate, forest.bound)
        verdict = check_plan(to_document(forest))
        assert verdict.violations == [], (collective, verdict.violations)
        assert verdict.rate == verdict.bound == forest.rate
        whole = all((share.weight * units(forest)).denominator == 1 for share in forest.shares)
        assert whole or is_a_star_of_each(forest), collective
        if collective.name in ("allgather", "reduce_scatter"):
            network = rank_network_of(forest.topology, gpus).network
            assert forest.depth <= max(map(network.eccentricity, range(network.n))) + 1
        for slots in (1, 2):
            assert violations(lower(forest, slots=slots), forest.topology) == [], (collective, slots)


def one_of_each(world_size: int) -> list[Collective]:
    """Each collective once, with the last rank as root; sendrecv sends from it to the first."""
    return [with_ends(name, world_size, root=-1) for name in COLLECTIVES]


def small_chunk(forest: Forest, count: int) -> int:
    """Chunk bytes that give the narrowest share at least three chunks, with a ragged last one if possible."""
    narrowest = min(
        (share.weight / forest.item(share).weight for share in forest.shares if share.weight), default=Fraction(1)
    )
    return max(16, int(narrowest * count * ITEMSIZE * 2 // 7) // 16 * 16)


@pytest.mark.parametrize(("name", "gpus"), ALLOCATIONS)
def test_one_of_each_runs_and_equals_the_oracle(name: str, gpus: tuple[int, ...]) -> None:
    """Every collective also runs with much data; ``make test`` does that for a third of them, by allocation."""
    large = 1 << (20 if ALL_TESTS else 18) if len(gpus) == 8 else 65_536
    for number, collective in enumerate(one_of_each(len(gpus))):
        forest = planned(name, gpus, collective)
        much = (large,) if ALL_TESTS or (number + ALLOCATIONS.index((name, gpus))) % 3 == 0 else ()
        for slots, counts in ((1, (0, 1, len(gpus) - 1, *much)), (2, (PRIME, *much) if ALL_TESTS else (PRIME,))):
            program = lower(forest, slots=slots)
            for count in counts:
                error = difference(
                    reference.run,
                    program,
                    count=count,
                    dtype="float32" if collective.reduces else "int32",
                    op="sum",
                    chunk_bytes=small_chunk(forest, count),
                    seed=count,
                    in_place=slots == 1 and collective.name != "alltoall",
                )
                assert error is None, (collective, slots, count, error)


@pytest.mark.parametrize(("name", "gpus"), ALLOCATIONS)
def test_optimal_is_never_below_a_ring(name: str, gpus: tuple[int, ...]) -> None:
    for collective in one_of_each(len(gpus)):
        if collective.name in ("broadcast", "reduce", "allreduce", "allgather", "reduce_scatter"):
            request = Request(machine(name), collective, gpus)
            optimal, ring = (algorithm(each).plan(request).algbw_gb_per_s for each in ("optimal", "ring"))
            assert optimal >= ring, (collective, optimal, ring)


@pytest.mark.parametrize(("name", "gpus"), ALLOCATIONS)
def test_blink_is_within_five_percent(name: str, gpus: tuple[int, ...]) -> None:
    """The reference is the optimum for one-to-all and AllReduce, and blink's own one-root bound for the rest.

    ``make test`` runs AllReduce and two of the others.
    """
    others = ("broadcast", "gather", "allgather", "reduce", "scatter", "reduce_scatter")
    turn = ALLOCATIONS.index((name, gpus)) % 3
    names = {"allreduce", *(others if ALL_TESTS else others[turn::3])}
    for collective in one_of_each(len(gpus)):
        if collective.name not in names:
            continue
        request = Request(machine(name), collective, gpus)
        forest = algorithm("blink").plan(request)
        reachable = algorithm("optimal").plan(request).rate
        if collective.name in ("allgather", "reduce_scatter"):
            network = rank_network_of(request.network, gpus).network
            reachable = one_root_optimum(network, most_central(network)) * len(gpus)
        assert Fraction(95, 100) * reachable <= forest.rate <= reachable, (collective, forest.rate, reachable)
        assert check_plan(to_document(forest)).violations == [], collective
        assert violations(lower(forest), forest.topology) == [], collective
