"""Properties of simulated times for any program, any costs and any sharing of links."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.cost.simulate.calibration import Calibration, Number
from blinkccl.cost.simulate.run import bind_bytes, run, simulate
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
from support.timed import bits, calibration_of, link_class, lowered, with_links

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


# Bounds. They share no code with the kernel.


def least_s(workload: Workload) -> float:
    """Lower bound on the time of a run: the α–β bound.

    It is the larger of two times: that of the bytes of the most loaded link, and that of the smallest chunk through the
    longest chain of hops, on otherwise idle links.
    """
    by_link = (workload.link_bytes / workload.rates).max(initial=0.0)
    return max(float(by_link), _longest_chain_s(workload))


def serial_s(workload: Workload) -> float:
    """Upper bound on the time of a run: all transfers and executions one after the other, on idle links."""
    actors, hops = workload.actors, workload.hops
    total = float(actors.start_s.max(initial=0.0))
    for hop, tail in enumerate(hops.tail.tolist()):
        fixed_s = float(hops.latency_s[hop] + hops.signal_s[hop])
        per_byte = 1.0 / _slowest(workload, hop)
        total += int(actors.chunks[tail]) * fixed_s + float(workload.hop_bytes[hop]) * per_byte
    for actor, stream in enumerate(actors.stream.tolist()):
        chunks = int(actors.chunks[actor])
        if stream >= 0 and chunks:
            moved = (chunks - 1) * float(actors.bytes[actor]) + float(actors.last_bytes[actor])
            total += chunks * float(actors.launch_s[actor]) + moved * float(actors.pace_s_per_byte[actor])
    return total


def _slowest(workload: Workload, hop: int) -> float:
    """Bytes per second of a hop's slowest link."""
    first, last = workload.hops.path_of[hop], workload.hops.path_of[hop + 1]
    return float(workload.rates[workload.hops.path[first:last]].min(initial=float("inf")))


def _longest_chain_s(workload: Workload) -> float:
    """Time of the longest path through actors and hops, with the smallest chunk on each."""
    actors, hops = workload.actors, workload.hops
    size = [min(a, b) for a, b in zip(actors.bytes.tolist(), actors.last_bytes.tolist(), strict=True)]
    chunks = actors.chunks.tolist()
    ready_s = actors.start_s.tolist()
    following: list[list[int]] = [[] for _ in chunks]
    waits = [0] * len(chunks)
    for hop, (tail, head) in enumerate(zip(hops.tail.tolist(), hops.head.tolist(), strict=True)):
        following[tail].append(hop)
        waits[head] += 1
    last = 0.0
    for actor in _in_order(workload, following, waits):
        if chunks[actor] == 0:
            continue
        done_s = ready_s[actor]
        if actors.stream[actor] >= 0:
            done_s += float(actors.launch_s[actor]) + size[actor] * float(actors.pace_s_per_byte[actor])
        last = max(last, done_s)
        for hop in following[actor]:
            moved_s = size[actor] / _slowest(workload, hop)
            arrived_s = done_s + float(hops.latency_s[hop]) + moved_s + float(hops.signal_s[hop])
            head = int(hops.head[hop])
            ready_s[head] = max(ready_s[head], arrived_s)
    return last


def _in_order(workload: Workload, following: Sequence[Sequence[int]], waits: list[int]) -> list[int]:
    """Actors, senders before receivers. Actors on a cycle are left out, which only weakens the bound."""
    order = [actor for actor, count in enumerate(waits) if count == 0]
    for actor in order:
        for hop in following[actor]:
            head = int(workload.hops.head[hop])
            waits[head] -= 1
            if waits[head] == 0:
                order.append(head)
    return order


@EVERY_SHARING
@EASY
@given(seed=SEEDS)
def test_runs_lie_between_their_bounds(sharing: str, seed: int) -> None:
    workload = any_workload(Random(seed), sharing)
    done = run(workload, Settings(sharing).kernel_sharing)
    assert done.seconds >= least_s(workload) * (1 - 1e-12)
    assert done.seconds <= serial_s(workload) * (1 + 1e-12)
    assert (done.transfers, done.executions) == (workload.transfers, workload.executions)
    assert (done.busy_s <= done.seconds * (1 + 1e-12)).all()


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_both_bounds_are_reached(ranks: int) -> None:
    """A single chunk on a chain takes its steps one after the other, so both bounds are equal."""
    program, network = lowered("optimal", f"chain:{ranks}", "broadcast")
    for seed in range(20):
        random = Random(seed)
        bound = bind(program, 100_000, 4, 1 << 30)
        workload = translate(bound, network, costs(random)).workload
        seconds = run(workload, "fifo").seconds
        assert least_s(workload) == pytest.approx(seconds, rel=1e-12)
        assert serial_s(workload) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_full_link_is_a_bound_that_is_reached(sharing: str) -> None:
    """All messages to a star's root cross one link. If only bytes take time, that link is never idle."""
    program, network = lowered("optimal", "star:5", "gather")
    workload = translate(bind_bytes(program, 1 << 20, 1 << 14), network, IDEAL).workload
    assert run(workload, sharing).seconds == pytest.approx((workload.link_bytes / workload.rates).max(), rel=0.02)


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


@EVERY_SHARING
@EASY
@given(seed=SEEDS)
def test_the_same_input_gives_the_same_bits(sharing: str, seed: int) -> None:
    one, other = (any_workload(Random(seed), sharing) for _ in range(2))
    for field in ("actors", "hops"):
        for column in fields(getattr(one, field)):
            first, second = (getattr(getattr(x, field), column.name) for x in (one, other))
            assert first.tobytes() == second.tobytes()
    outcomes = [run(x, Settings(sharing).kernel_sharing, True) for x in (one, one, other)]
    assert len({bits(outcome) for outcome in outcomes}) == 1


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
