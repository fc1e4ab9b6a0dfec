"""All blocks of a rank move about the same bytes, in every program that ``libblink.so`` can choose.

The bytes are summed independently, role by role, from the pieces that the device layer cuts for each part.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import product
from math import ceil

import numpy as np
import pytest

from blinkccl.codegen.channels import MAX_CHANNEL_ENDS, channel_loops, require_direct_stores
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPE_CODES
from blinkccl.cost.choice.programs import SLOTS
from blinkccl.engines.reference import run as run_reference
from blinkccl.errors import PackingError, ScheduleError, TopologyError, UnsupportedError
from blinkccl.native.headers import header
from blinkccl.nccl.programs import DEFAULT, candidates, collectives, without_memories
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.schedule.balance import MOST_IMBALANCE, imbalance, weights
from blinkccl.schedule.dealing import dealt
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.select import joining_links
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from support import generated
from support.device_cuts import pieces
from support.engines import ENGINES
from support.examples import ALL_TESTS
from support.generated import GeneratedOptions, LaunchCall

pytestmark = pytest.mark.skipif(ENGINES["generated"].missing is not None, reason=str(ENGINES["generated"].missing))

PIECE_BYTES = header("call.h").constants["kPieceBytes"]
#: Machines with NVIDIA GPUs, and the default number of blocks of a rank.
BLOCKS = {
    "dgx-1p": 14,
    "dgx-1v": 20,
    "dgx-2": 20,
    "dgx-a100": 27,
    "hgx-h100": 32,
    "mist": 20,
    "cedar": 20,
    "pcie-8gpu": 20,
    "pcie-8gpu-nvlink-pairs": 20,
}
LARGE = 1 << 30
MOST_BLOCKS = 32
#: Exceptions: a single slice is more than a fifth of a rank's bytes, and one block cannot hold all connections. This
#: machine has no CUDA GPUs.
UNEVEN = {
    ("mi250", "hybrid", "allreduce", 5): Fraction(133, 100),
    ("mi250", "hybrid", "allreduce", 7): Fraction(131, 100),
}


def jobs() -> Iterator[tuple[str, tuple[int, ...], int]]:
    """(machine, GPUs, blocks): whole machines, and with all tests every allocation of both DGX-1s."""
    for name, blocks in BLOCKS.items():
        if ALL_TESTS or name in ("hgx-h100", "mist"):
            yield name, parse_spec(name).ranks, blocks
    yield "dgx-1v", (1, 4, 5, 6), 20
    if ALL_TESTS:
        for name in ("dgx-1v", "dgx-1p"):
            for gpus in connected_allocations(name):
                yield name, gpus, BLOCKS[name]
                yield name, gpus, 7


def programs(name: str, gpus: tuple[int, ...], blocks: int, algorithms: tuple[str, ...]) -> Iterator[Program]:
    place = JobPlacement(parse_spec(name), gpus)
    for one in candidates(place, algorithms, blocks, {}).every:
        if ALL_TESTS or one.collective.root in (None, 0, len(gpus) - 1):
            yield one.program


def lowered(name: str, gpus: tuple[int, ...], algorithms: tuple[str, ...]) -> Iterator[tuple[str, Program]]:
    """The programs of every collective by every algorithm that serves it, before they are dealt to blocks."""
    whole = JobPlacement(parse_spec(name), gpus)
    direct = without_memories(whole)
    for collective, algorithm in product(collectives(len(gpus)), algorithms):
        if collective.root not in (None, 0, *([len(gpus) - 1] if ALL_TESTS else [])):
            continue
        hybrid = algorithm == "hybrid"
        where, links = (whole, "all") if hybrid else (direct, joining_links(direct.topology, direct.ranks)[0])
        with suppress(PackingError, ScheduleError, TopologyError, UnsupportedError):
            forest = ALGORITHMS[algorithm].plan(Request(where.topology, collective, gpus, links))
            program = lower(forest, slots=SLOTS)
            require_direct_stores(program, forest.topology)
            yield algorithm, program


def connections(program: Program) -> int:
    """The largest number of connections of a rank."""
    met = Counter(role.rank for role in program.roles for _ in (*role.receives, *role.sends))
    return max(met.values(), default=0)


def least_even_bytes(program: Program, parts: int) -> int:
    """The least size in bytes at which every slice has a piece of at least 16 KiB for each part."""
    smallest = min((weight for weight in weights(program) if weight), default=Fraction(1))
    size = ceil(parts * PIECE_BYTES / smallest)
    return -(-size // (64 * program.collective.total_blocks())) * 64 * program.collective.total_blocks()


def moved_by_blocks(program: Program, parts: int, size_bytes: int) -> dict[int, list[int]]:
    """The elements that each block of a rank reads and stores in a call of S bytes, by rank."""
    call = LaunchCall(count=size_bytes // 4 // program.collective.total_blocks(), dtype=DTYPE_CODES["float32"])
    call.parts, call.piece_bytes, call.chunk_bytes = parts, PIECE_BYTES, 1 << 18
    lengths = [[piece.length for piece in pieces(program, call, part)] for part in range(parts)]
    moved = {rank: [0] * (parts * len(program.channels)) for rank in range(len(program.ranks))}
    for role in program.roles:
        times = len(role.receives) + role.contributes + role.keeps + len(role.sends)
        for part in range(parts):
            moved[role.rank][role.channel * parts + part] += times * lengths[part][role.slice]
    return moved


def worst(program: Program, parts: int, blocks: int, size_bytes: int) -> float:
    """The largest max/mean over the blocks of a rank, of all ranks."""
    moved = moved_by_blocks(program, parts, size_bytes).values()
    return max((max(loads) / (sum(loads) / blocks) for loads in moved if any(loads)), default=1.0)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "gpus", "blocks"), list(jobs()))
def test_blocks_move_about_the_same_bytes(name: str, gpus: tuple[int, ...], blocks: int) -> None:
    checked = 0
    algorithms = tuple(ALGORITHMS) if ALL_TESTS or len(gpus) == 4 else DEFAULT
    for program in programs(name, gpus, blocks, algorithms):
        parts = blocks // len(program.channels)
        at_1_gib = worst(program, parts, blocks, LARGE)
        assert at_1_gib <= MOST_IMBALANCE, (program.collective, len(program.channels))
        assert at_1_gib == pytest.approx(float(imbalance(program, parts, blocks)), rel=0.02)
        checked += 1
    assert checked >= 15


def machines() -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    yield "dgx-1v", (1, 4, 5, 6), tuple(ALGORITHMS)
    yield "dgx-1v", parse_spec("dgx-1v").ranks, ("blink",)
    if ALL_TESTS:
        for name in (*BLOCKS, "mi250"):
            yield name, parse_spec(name).ranks, tuple(ALGORITHMS)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "gpus", "algorithms"), list(machines()))
def test_every_number_of_blocks(name: str, gpus: tuple[int, ...], algorithms: tuple[str, ...]) -> None:
    """Only a program with more connections than the blocks hold is refused, for 1 to 32 blocks."""
    checked = 0
    for algorithm, program in lowered(name, gpus, algorithms):
        for blocks in range(1, MOST_BLOCKS + 1) if ALL_TESTS or len(gpus) == 4 else (1, 4, 7, 20):
            shared = dealt(program, blocks)
            if blocks * MAX_CHANNEL_ENDS < connections(program) * MOST_IMBALANCE:
                try:
                    channel_loops(shared, SLOTS)
                except UnsupportedError:
                    continue
            parts = blocks // len(shared.channels)
            key = name, algorithm, program.collective.name, blocks
            limit = UNEVEN.get(key, MOST_IMBALANCE)
            assert imbalance(shared, parts, blocks) <= limit, key
            checked += 1
            # One channel is cut in the same way for every number of blocks, so three numbers are enough.
            if len(shared.channels) == 1 and blocks not in (1, 7, MOST_BLOCKS):
                continue
            for size_bytes in (LARGE, least_even_bytes(shared, parts)):
                assert worst(shared, parts, blocks, size_bytes) <= limit, (key, size_bytes)
    assert checked >= 20


def test_default_plans_use_every_block() -> None:
    """All programs have one channel: the widest program of a job gets the blocks, so a wider one would take some."""
    for name in BLOCKS if ALL_TESTS else ("dgx-1v", "hgx-h100"):
        place = JobPlacement(parse_spec(name), parse_spec(name).ranks)
        for blocks in (1, 7, BLOCKS[name]):
            assert {one.channels for one in candidates(place, DEFAULT, blocks, {}).every} == {1}


def test_the_check_notices_round_robin() -> None:
    """Lane r, rank r's star, is dealt to channel r, so four blocks of a rank move as much as 12 blocks on average."""
    (one,) = candidates(JobPlacement(parse_spec("hgx-h100"), tuple(range(8))), ("optimal",), 32, {}).by_key[
        "allgather", -1
    ]
    uneven = lower(one.forest, slots=SLOTS, channels=8)
    assert imbalance(uneven, 4, 32) == Fraction(72, 23)
    assert worst(uneven, 4, 32, LARGE) == pytest.approx(72 / 23, rel=0.01)
    assert imbalance(one.program, 32, 32) == 1
    assert imbalance(one.program, 16, 32) == 2, "blocks that run nothing count"


def test_small_slices_run_side_by_side() -> None:
    """Every one of 8 uncut stars has a block of its own, and on every rank each message of an AllToAll."""
    place = JobPlacement(parse_spec("hgx-h100"), tuple(range(8)))
    programs = candidates(place, ("optimal",), 32, {}).by_key
    (stars,) = programs["allreduce", -1]
    for loads in moved_by_blocks(stars.program, 32, 8 * PIECE_BYTES).values():
        assert sum(map(bool, loads)) == 8
    (pairs,) = programs["alltoall", -1]
    for loads in moved_by_blocks(pairs.program, 32, 8 * PIECE_BYTES).values():
        assert sum(map(bool, loads)) == 15


@pytest.mark.parametrize("name", ["allreduce", "allgather", "alltoall"])
def test_dealt_programs_give_the_bits_of_the_reference(name: str) -> None:
    """Small slices run in few pieces, large ones in all, in turn on the same connections."""
    (one,) = candidates(JobPlacement(parse_spec("dgx-1v"), (1, 4, 5, 6)), ("optimal",), 5, {}).by_key[name, -1]
    program, random = one.program, np.random.default_rng(3)
    for count in (1, 700, 4000):
        call = CollectiveCall.of(program.collective, "float32", count)
        elements = count * (4 if name == "alltoall" else 1)
        inputs = [random.standard_normal(elements).astype(np.float32) for _ in range(4)]
        expected = run_reference(program, inputs, call)
        for protocol in ("simple", "ll", "ll128"):
            options = GeneratedOptions(protocol, 5, 256)
            outputs = generated.run(program, inputs, call, chunk_bytes=512, options=options)
            assert all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))
