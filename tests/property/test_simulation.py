"""Properties of simulated times for any program, any costs and any sharing of links."""

import pathlib
from dataclasses import replace
from functools import lru_cache
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.cost.simulate.calibration import Calibration, Number
from blinkccl.cost.simulate.run import simulate
from blinkccl.cost.simulate.translate import SHARINGS, STREAMS, Settings, translate
from blinkccl.cost.simulate.workload import Workload
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.model import LINK_KINDS, Topology
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest.model import Forest, Path, Share, Tree
from support.examples import examples
from support.forests import random_forest
from support.planned import asked, plan_or_reason, renumbered
from support.processes import said_with_any_hash_seed
from support.programs import random_program
from support.timed import bits, calibration_of, link_class, with_links

SEEDS = st.integers(0, 2**32)
EASY = examples(40)
EVERY_SHARING = pytest.mark.parametrize("sharing", SHARINGS)

Job = tuple[Program, Topology]


def costs(random: Random, latencies: bool = True) -> Calibration:
    """A random calibration. Without ``latencies`` only bytes take time."""

    def some(least: float, most: float) -> float:
        return random.choice([0.0, random.uniform(least, most)]) if latencies else 0.0

    return calibration_of(
        *(link_class(kind, 0.0, random.uniform(0.3, 1), some(0.1, 3)) for kind in LINK_KINDS),
        launch_us=some(1, 10),
        issue_us=random.uniform(1, 10) if latencies else 0.0,
        signal_us=some(1, 5),
        reduce_us=some(1, 10),
        reduce_gb_per_s=random.choice([0.0, random.uniform(10, 400)]),
        combining=random.uniform(0.5, 1),
        copy_engines=float(random.choice([0, 0, 1, 3])),
    )


#: Links at the rate that plans assume; nothing else takes time.
IDEAL = calibration_of(*(link_class(kind, 0.0, 1.0) for kind in LINK_KINDS))


SPECS = ("star:5", "torus:2x3", "random:6:seed=1", "random:6:seed=2:directed", "dgx-a100", "2x dgx-1p @ 100Gbps")
PLACES = [(name, gpus) for name in ("dgx-1v", "dgx-1p") for gpus in connected_allocations(name)]
PLACES += [(spec, None) for spec in SPECS]


@lru_cache(maxsize=512)
def planned(spec: str, gpus: tuple[int, ...] | None, algo: str, name: str) -> Forest | None:
    """The plan of an algorithm for an allocation, with the last rank as root; None if it is not supported."""
    plan = plan_or_reason(algo, asked(spec, name, gpus, root=-1))
    return plan if isinstance(plan, Forest) else None


def any_plan(random: Random) -> Forest:
    """A plan of a random algorithm for a random supported collective, on a random allocation."""
    while True:
        spec, gpus = random.choice(PLACES)
        forest = planned(spec, gpus, random.choice([*ALGORITHMS]), random.choice([*COLLECTIVES]))
        if forest is not None:
            return forest


def any_job(random: Random) -> Job:
    """A lowered plan or random forest, or a random program that our lowering would never make."""
    kind = random.randrange(3)
    if kind == 0:
        return random_program(random)
    forest = random_forest(random) if kind == 1 else any_plan(random)
    return lower(forest, random.choice([1, 2, 3]), random.choice([None, 1])), forest.topology


def any_workload(random: Random, sharing: str) -> Workload:
    program, network = any_job(random)
    starts = random.choice([(), tuple(random.uniform(0, 1e-4) for _ in program.ranks)])
    chosen = Settings(sharing, random.choice(STREAMS), starts)
    count = random.choice([0, 7, random.randint(1, 100_000)])
    bound = bind(program, count, 4, max(16, 4 * count // random.randint(1, 6)), random.random() < 0.5)
    return translate(bound, network, costs(random), chosen).workload


# Names have no effect.


def relabelled(random: Random, forest: Forest) -> Forest:
    """The forest with other vertex ids, and with vertices and links of the topology in another order."""
    ids = [vertex.id for vertex in forest.topology.vertices]
    new = dict(zip(ids, random.sample(range(3 * len(ids)), len(ids)), strict=True))
    topology = renumbered(forest.topology, new)
    vertices, links = (tuple(random.sample(rows, len(rows))) for rows in (topology.vertices, topology.links))

    def path(old: Path) -> Path:
        return tuple(new[v] for v in old)

    def tree(old: Tree | None) -> Tree | None:
        return old and Tree(new[old.root], tuple(path(edge) for edge in old.edges))

    def share(old: Share) -> Share:
        block = old.block
        named = path(block) if isinstance(block, tuple) else None if block is None else new[block]
        return replace(old, block=named, root=new[old.root], reduce=tree(old.reduce), broadcast=tree(old.broadcast))

    topology = replace(topology, vertices=vertices, links=links)
    shares = tuple(share(x) for x in forest.shares)
    return replace(forest, ranks=path(forest.ranks), topology=topology, shares=shares)


@EVERY_SHARING
@EASY
@given(seed=SEEDS)
def test_other_numbers_of_vertices_change_nothing(sharing: str, seed: int) -> None:
    random = Random(seed)
    forest = random_forest(random) if random.random() < 0.5 else any_plan(random)
    calibration, size_bytes = costs(random), random.randint(0, 1 << 22)
    settings_ = Settings(sharing, random.choice(STREAMS))
    timings = [
        simulate(lower(x), x.topology, calibration, size_bytes, chunk_bytes=1 << 16, settings=settings_, traced=True)
        for x in (forest, relabelled(random, forest))
    ]
    assert bits(timings[0].outcome) == bits(timings[1].outcome)


# The same input gives the same bytes.


HASHES = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from random import Random
from support.timed import bits
from test_simulation import any_workload
from blinkccl.cost.simulate.run import run
from blinkccl.cost.simulate.translate import Settings
digest = hashlib.sha256()
for sharing in ("fifo", "fair", "unfair"):
    for seed in range(12):
        done = run(any_workload(Random(seed), sharing), Settings(sharing).kernel_sharing, True)
        digest.update(repr(bits(done)).encode())
print(digest.hexdigest())
"""


def test_the_same_input_gives_the_same_bits_in_any_process() -> None:
    output = said_with_any_hash_seed(HASHES, *map(str, pathlib.Path(__file__).parents[:2]))
    assert len(output.strip()) == 64


# Time scales with rates.


@pytest.mark.parametrize("sharing", ["fifo", "fair", "unfair"])
@EASY
@given(seed=SEEDS)
def test_twice_the_rates_give_exactly_half_the_time_of_bytes(sharing: str, seed: int) -> None:
    """All times are sums of quotients, and a factor of two changes only exponents."""
    random = Random(seed)
    program, network = any_job(random)
    calibration = costs(random, latencies=False)
    reduces = Number(2 * calibration.engine.reduce_gb_per_s.value, "a test")
    engine = msgspec.structs.replace(calibration.engine, reduce_gb_per_s=reduces)
    fast = msgspec.structs.replace(with_links(calibration, 2), engine=engine)
    size_bytes = random.randint(0, 1 << 22)
    once, twice = (
        simulate(program, network, x, size_bytes, chunk_bytes=1 << 16, settings=Settings(sharing)).seconds
        for x in (calibration, fast)
    )
    assert twice == once / 2


# Rates of plans.


CHUNKS = 96


def part_of_rate(forest: Forest, sharing: str, size_bytes: int = 1 << 26) -> tuple[float, int]:
    """Simulated algbw as a fraction of the forest's rate, and the hops of the longest path."""
    program = lower(forest)
    largest = max(float(x.stop - x.start) for x in program.slices) * size_bytes / forest.collective.total_blocks()
    timed = simulate(
        program,
        forest.topology,
        IDEAL,
        size_bytes,
        chunk_bytes=max(16, int(largest / CHUNKS)),
        settings=Settings(sharing),
    )
    depth = max(role.offset for role in program.roles) - min(role.offset for role in program.roles)
    return timed.algbw_gb_per_s / (float(forest.rate) * forest.topology.unit_gb_per_s), depth


@pytest.mark.parametrize("algo", [*ALGORITHMS])
@examples(6)
@given(seed=SEEDS)
def test_long_transfers_reach_the_rate_of_the_plan(algo: str, seed: int) -> None:
    """With FIFO links, k chunks through d hops take (k + d) / k of the time that follows from the plan's rate.

    So links with a full load in the plan are full, for any order of trees on them. Links with fair sharing give each
    tree an equal rate instead of its planned rate, so the total is never more than the plan's rate, and often less.
    """
    jobs = [(spec, gpus, algo, name) for spec, gpus in PLACES for name in COLLECTIVES]
    Random(seed).shuffle(jobs)
    forest = next(filter(None, (planned(*job) for job in jobs)))
    # Slices begin on 16 bytes, so slightly less than the plan's share may cross its most loaded link.
    rounding = 1 + 16 * len(forest.shares) * len(forest.topology.links) / (1 << 26)
    reached, depth = part_of_rate(forest, "fifo")
    assert reached <= rounding
    assert reached >= 0.995 / (1 + depth / CHUNKS)
    assert part_of_rate(forest, "fair")[0] <= rounding


def test_rings_reach_their_rate_with_fair_sharing_too() -> None:
    for spec, gpus in PLACES:
        forest = planned(spec, gpus, "ring", "allgather")
        assert forest is not None
        reached, depth = part_of_rate(forest, "fair")
        assert 0.99 / (1 + depth / CHUNKS) <= reached <= 1.001
