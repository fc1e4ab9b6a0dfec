"""Random workloads: layers of actors over shared links, and real programs translated under random calibrations.

Equal seeds give equal workloads, in any version of Python. Costs have continuous distributions, so that simultaneous
events are rare: the winner of two actors that request one engine at the same instant is undefined.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from blinkccl.cost.simulate.calibration import Calibration
from blinkccl.cost.simulate.translate import STREAMS, Settings, translate
from blinkccl.cost.simulate.workload import Workload
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.model import LINK_KINDS, Topology
from blinkccl.trees.algorithms.registry import algorithm
from support.examples import ALL_TESTS
from support.forests import random_forest
from support.planned import asked
from support.programs import random_program
from support.timed import calibration_of, link_class
from support.workload_rows import ActorRow, HopRow, workload

#: Longer runs find nothing new and take SimGrid long.
MOST_TASKS = 250
#: Latencies of hops in relation to their weights. any: unrelated, all weights 1. equal: equal latencies for hops that
#: share links, directly or through others, all weights 1. weighted: weights are in proportion to 1/latency.
LATENCIES = ("any", "equal", "weighted")

Made = tuple[Program, Topology]


def random_workload(random: Random, latencies: str = "any", memories: bool = False) -> Workload:
    """Return layers of actors; every hop leads to a later layer, so that one slot is enough for progress.

    With ``memories`` half of the hops are stored on their path.
    """
    layers = [random.randint(1, 4) for _ in range(random.randint(2, 4))]
    layer_of = [layer for layer, count in enumerate(layers) for _ in range(count)]
    rates = [float(random.randint(1_000_000_000, 50_000_000_000)) for _ in range(random.randint(1, 6))]
    pairs = _pairs(random, layer_of)
    paths = [tuple(random.sample(range(len(rates)), random.randint(1, min(3, len(rates))))) for _ in pairs]
    latency_s = _latencies(random, paths, latencies)
    longest = max(latency_s)
    engines = [random.randint(1, 2) for _ in layer_of]
    limited, shared = random.random() < 0.5, random.random() < 0.3
    hops = [
        HopRow(
            tail,
            head,
            path,
            stream=random.randrange(len(pairs)) if shared else 2 * tail + random.randint(0, 1),
            pool=(tail // 2 if shared else tail) if limited else -1,
            slots=random.randint(1, 3),
            latency_s=seconds,
            signal_s=random.choice([0.0, random.uniform(1e-7, 1e-5)]),
            weight=longest / seconds if latencies == "weighted" else 1.0,
        )
        for (tail, head), path, seconds in zip(pairs, paths, latency_s, strict=True)
    ]
    chunks = random.randint(1, 5)
    actors = [_actor(random, number, chunks, pairs) for number in range(len(layer_of))]
    if memories:
        _store(random, actors, hops)
    return workload(actors, hops, rates, engines)


def _store(random: Random, actors: list[ActorRow], hops: list[HopRow]) -> None:
    """Add a memory to half of the hops: the receiver reads it over the same links, in a stream of its own."""
    for number, hop in enumerate(tuple(hops)):
        if random.random() < 0.5:
            continue
        tail, head, second = actors[hop.tail], actors[hop.head], len(hops)
        hops[number] = replace(hop, head=len(actors))
        stream = 1 + max(row.stream or 0 for row in (*hops, *actors))
        hops.append(replace(hop, tail=len(actors), stream=stream, path=hop.path[::-1], pool=-1, slots=1, frees=number))
        actors.append(ActorRow(tail.chunks, tail.bytes, tail.last_bytes))
        receives = tuple(second if each == number else each for each in head.receives or ())
        actors[hop.head] = replace(head, receives=receives)


def _pairs(random: Random, layer_of: list[int]) -> list[tuple[int, int]]:
    """Return tail and head of every hop: each actor behind the first layer has one at least."""
    pairs = []
    for head, layer in enumerate(layer_of):
        before = [tail for tail, other in enumerate(layer_of) if other < layer]
        pairs += [(tail, head) for tail in random.sample(before, min(len(before), random.randint(1, 3)))]
    return pairs


def _latencies(random: Random, paths: list[tuple[int, ...]], latencies: str) -> list[float]:
    if latencies != "equal":
        return [random.uniform(1e-6, 2e-5) for _ in paths]
    group = list(range(len(paths)))
    for a, one in enumerate(paths):
        for b, other in enumerate(paths[:a]):
            if not set(one).isdisjoint(other):
                joined = group[b]
                group = [group[a] if number == joined else number for number in group]
    of_group = [random.uniform(1e-6, 2e-5) for _ in paths]
    return [of_group[number] for number in group]


def _actor(random: Random, number: int, chunks: int, pairs: list[tuple[int, int]]) -> ActorRow:
    receives = [hop for hop, (_, head) in enumerate(pairs) if head == number]
    sends = [hop for hop, (tail, _) in enumerate(pairs) if tail == number]
    random.shuffle(receives)
    random.shuffle(sends)
    size = random.randint(1_000, 1_000_000)
    return ActorRow(
        chunks,
        size,
        random.choice([size, random.randint(1, size)]),
        stream=random.choice([-1, 2 * number]),
        launch_s=random.uniform(0, 1e-5),
        pace_s_per_byte=random.uniform(0, 1e-10),
        start_s=random.uniform(0, 2e-5),
        receives=tuple(receives),
        sends=tuple(sends),
    )


def random_calibration(random: Random, link_latency: bool = True) -> Calibration:
    """Return any calibration; without ``link_latency`` all transfers have only the latency of their issue."""

    def sometimes(least: float, most: float) -> float:
        return random.uniform(least, most) if random.random() < 0.5 else 0.0

    links = [
        link_class(
            kind,
            0.0,
            random.uniform(0.3, 1),
            random.uniform(0.1, 5) if link_latency else 0.0,
            random.uniform(0.5, 1),
        )
        for kind in LINK_KINDS
    ]
    return calibration_of(
        *links,
        issue_us=random.uniform(0.5, 20),
        signal_us=sometimes(0.1, 5),
        reduce_us=sometimes(0.1, 10),
        reduce_gb_per_s=sometimes(20, 400),
        combining=random.uniform(0.5, 1),
        copy_engines=float(random.choice([0, 0, 1, 2])),
    )


def random_translation(random: Random, made: Made, latencies: str = "any") -> Workload:
    """Return the workload of a program for a random size, on links of random rates."""
    program, topology = made
    network = replace(topology, links=tuple(replace(link, gb_per_s=random.uniform(2, 50)) for link in topology.links))
    settings = Settings("fair", random.choice([STREAMS[0], *STREAMS[:1] * 2, STREAMS[1]]))
    enters_s = [random.uniform(0, 2e-5) for _ in program.ranks] + [0.0] * len(program.relays)
    calibration = random_calibration(random, latencies != "equal")
    count = random.randint(2_000, 200_000)
    for chunk_bytes in (count // random.randint(1, 8), count, 4 * count):
        workload = translate(bind(program, count, 4, max(16, chunk_bytes)), network, calibration, settings).workload
        if workload.tasks <= MOST_TASKS:
            break
    start_s = workload.actors.start_s.copy()
    start_s[: len(program.roles)] += [enters_s[role.rank] for role in program.roles]
    return _apart(random, replace(workload, actors=replace(workload.actors, start_s=start_s)), latencies)


def _apart(random: Random, workload: Workload, latencies: str) -> Workload:
    """Return the workload with starts up to a microsecond apart on each rank, and slightly different latencies."""
    actors, hops = workload.actors, workload.hops
    start_s = actors.start_s + np.asarray([random.uniform(0, 1e-6) for _ in actors.chunks])
    workload = replace(workload, actors=replace(actors, start_s=start_s))
    if latencies == "equal":
        return workload
    latency_s = hops.latency_s * np.asarray([random.uniform(1, 1.01) for _ in hops.tail])
    weight = latency_s.max() / latency_s if latencies == "weighted" else hops.weight
    return replace(workload, hops=replace(hops, latency_s=latency_s, weight=weight))


def random_lowered(random: Random) -> Made:
    """Return a random forest on a random topology, some paths through a switch."""
    forest = random_forest(random)
    return lower(forest, random.choice([1, 2, 3]), random.choice([None, 1, 2])), forest.topology


def random_plan(random: Random) -> Made:
    """Return an algorithm's plan for an allocation of a DGX-1 or a synthetic topology."""
    name = random.choice(["allreduce", "broadcast", "allgather", "reduce"])
    if random.random() < 0.5:
        spec = random.choice(["dgx-1v", "dgx-1p"])
        gpus, algorithms = random.choice(connected_allocations(spec)), ["optimal", "blink", "ring"]
    else:
        spec, gpus = random.choice(["ring:5", "torus:2x3", "star:5", "random:5:seed=7", "random:5:directed"]), None
        algorithms = ["optimal"] if "directed" in spec else ["optimal", "blink"]
    forest = algorithm(random.choice(algorithms)).plan(asked(spec, name, gpus, random.randrange(8)))
    return lower(forest, random.choice([1, 2, 3])), forest.topology


@dataclass(frozen=True)
class Kind:
    """``count`` workloads; ``program`` makes the programs to translate, None: layers."""

    count: int
    latencies: str
    program: Callable[[Random], Made] | None = None
    memories: bool = False

    @property
    def slept(self) -> bool:
        """Return whether SimGrid must get latencies as sleeps, because there they would be weights."""
        return self.latencies == "any"


#: A merge tests half of the programs.
_OFTEN = 1 + ALL_TESTS
KINDS = {
    "layers, equal latencies": Kind(220, "equal"),
    "layers, any latencies": Kind(160, "any"),
    "layers, rtt-weighted": Kind(240, "weighted"),
    "layers and memories, any latencies": Kind(120, "any", memories=True),
    "forests, equal latencies": Kind(35 * _OFTEN, "equal", random_lowered),
    "forests, any latencies": Kind(25 * _OFTEN, "any", random_lowered),
    "forests, rtt-weighted": Kind(30 * _OFTEN, "weighted", random_lowered),
    "programs, any latencies": Kind(20 * _OFTEN, "any", random_program),
    "programs, rtt-weighted": Kind(12 * _OFTEN, "weighted", random_program),
    "plans, any latencies": Kind(20 * _OFTEN, "any", random_plan),
    "plans, rtt-weighted": Kind(17 * _OFTEN, "weighted", random_plan),
}


def make(name: str, number: int) -> Workload:
    """Return workload ``number`` of the kind ``name``."""
    kind, random = KINDS[name], Random(f"{name}: {number}")
    if kind.program is None:
        return random_workload(random, kind.latencies, kind.memories)
    return random_translation(random, kind.program(random), kind.latencies)
