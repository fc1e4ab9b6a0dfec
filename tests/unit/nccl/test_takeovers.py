"""The calls that Blink runs and their gains, recomputed from bytes per link, per block and per channel.

With -s it prints a table: for each machine and collective the size classes that Blink runs, and in each the ratio of
NCCL's predicted time to Blink's.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, pairwise

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_search import search
from blinkccl.cost.choice.costs import timing
from blinkccl.cost.choice.programs import CandidateProgram, largest
from blinkccl.nccl.choices import FIRST_CLASS, LAST_CLASS, MARGIN, PREDICTED_MARGIN, ChoiceRow, Terms, rows_of
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import DEFAULT, CandidatePrograms, candidates, collectives
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.spec import parse_spec
from support.examples import ALL_TESTS

#: Jobs: machine, GPUs or None for all, compute capability, default blocks.
JOBS = [
    ("dgx-1v", (1, 4, 5, 6), 70, 20),
    ("hgx-h100", None, 90, 32),
]
MORE = [
    ("dgx-1v", None, 70, 20),
    ("dgx-1v", (0, 1, 2, 3, 4), 70, 20),
    ("dgx-1p", None, 60, 14),
    ("dgx-1p", (1, 4, 5, 6), 60, 14),
    ("dgx-2", None, 70, 20),
    ("dgx-a100", None, 80, 27),
    ("hgx-h100", (0, 1, 2, 3), 90, 32),
    ("hgx-h200", None, 90, 32),
    ("mist", None, 70, 20),
    ("cedar", None, 70, 20),
    ("pcie-8gpu", None, 80, 20),
    ("pcie-8gpu-nvlink-pairs", None, 80, 20),
]
#: Ratio of NCCL's count of an NVLink to the vendor's rate (its topo.h).
COUNTED = {60: 18 / 20, 70: 20 / 25, 80: 20 / 25, 90: 20.6 / 25}
#: Part of a link's rate by protocol: 4 bytes in 8; 120 in 128, of which NCCL counts 0.92.
LEFT = {"simple": 1.0, "ll": 0.5, "ll128": 0.92 * 120 / 128}
#: GB/s that a block moves (docs/gpu.md, Block rates): three times NCCL's of a channel of a tree (its tuning.cc).
BLOCK_GB_PER_S = {
    60: {"simple": 79.5, "ll": 39.75, "ll128": 60.0},
    70: {"simple": 79.5, "ll": 39.75, "ll128": 60.0},
    80: {"simple": 72.0, "ll": 36.0, "ll128": 60.0},
    90: {"simple": 116.1, "ll": 58.05, "ll128": 110.1},
}
#: Measured busbw of NVLS AllReduce on H100s, GB/s by number of GPUs: published runs of nccl-tests.
IN_SWITCH = {4: 370.0, 8: 480.0}
#: Machines with an NVSwitch that reduces.
SWITCHES_THAT_REDUCE = ("hgx-h100", "hgx-h200")


@dataclass(frozen=True)
class Job:
    name: str
    place: JobPlacement
    capability: int
    blocks: int

    @property
    def ranks(self) -> int:
        return len(self.place.ranks)


@lru_cache(maxsize=1)
def taken_of(
    name: str, gpus: tuple[int, ...] | None, capability: int, blocks: int
) -> tuple[Job, CandidatePrograms, list[ChoiceRow]]:
    topology = parse_spec(name)
    job = Job(name, JobPlacement(topology, topology.ranks if gpus is None else gpus), capability, blocks)
    planned = candidates(job.place, DEFAULT, blocks, {})
    terms = Terms(capability, blocks, no_copies="not asked for")
    predictor = NcclPredictor(job.place, capability)
    # Roots other than the first are left out, because they take most of the time.
    first = [one for one in collectives(job.ranks) if not one.root]
    return job, planned, [row for one in first for row in rows_of(one, planned, terms, predictor)]


def link_seconds(job: Job, one: CandidateProgram, protocol: str, size_bytes: int) -> float:
    """Seconds of the busiest link for all messages of a call, a lower bound for every schedule."""
    program, unit = one.program, Fraction(one.network.unit_gb_per_s).limit_denominator(1000)
    shares = {item.block: item.weight for item in program.collective.items()}
    load: Counter[tuple[int, int]] = Counter()
    for role in program.roles:
        part = program.slices[role.slice]
        for queue in role.sends:
            for arc in pairwise(program.queues[queue].path):
                load[arc] += (part.stop - part.start) * shares[part.block]
    slowest = 0.0
    for arc, share in load.items():
        link = one.network.link[arc]
        gb_per_s = float(link.capacity * unit) * LEFT[protocol]
        gb_per_s *= COUNTED[job.capability] if link.kind == "nvlink" else 1.0
        slowest = max(slowest, float(share) * size_bytes / gb_per_s / 1e9)
    return slowest


def block_seconds(job: Job, one: CandidateProgram, protocol: str, size_bytes: int) -> float:
    """Seconds of a rank's blocks for all its reads and stores, with equal work for all blocks."""
    program = one.program
    shares = {item.block: item.weight for item in program.collective.items()}
    moved: Counter[int] = Counter()
    read: set[tuple[int, int, int]] = set()
    for role in program.roles:
        part = program.slices[role.slice]
        # Own data that several sends of one chunk share are read once (codegen/channels.py).
        again = not role.receives and (role.rank, role.slice, role.offset) in read
        if not role.receives:
            read.add((role.rank, role.slice, role.offset))
        operands = len(role.receives) + role.keeps + len(role.sends) + (role.contributes and not again)
        moved[role.rank] += operands * (part.stop - part.start) * shares[part.block]
    rate = BLOCK_GB_PER_S[job.capability][protocol] * 1e9 * job.blocks
    return float(max(moved.values())) * size_bytes / rate


def nccl_seconds_at_most(job: Job, collective: Collective, size_bytes: int) -> float:
    """Seconds of NCCL's rings or NVLS at its own bandwidths without latency, never more than NCCL's best time."""
    steps = {"allreduce": 2 * (job.ranks - 1) / job.ranks, "broadcast": 1.0, "reduce": 1.0}
    ways = steps.get(collective.name, (job.ranks - 1) / job.ranks)
    arch = {60: "pascal", 70: "volta", 80: "ampere", 90: "hopper"}[job.capability]
    channels = search(job.place.topology, job.place.ranks, arch)
    seconds = ways * size_bytes / (channels.count * channels.gb_per_s_per_channel * 1e9)
    if job.name in SWITCHES_THAT_REDUCE and collective.name == "allreduce":
        seconds = min(seconds, ways * size_bytes / (IN_SWITCH[job.ranks] * 1e9))
    return seconds


def classes(row: ChoiceRow) -> Iterator[int]:
    return (1 << k for k in range(FIRST_CLASS, LAST_CLASS + 1) if row.least <= 1 << k < row.below)


@pytest.mark.parametrize(("name", "gpus", "capability", "blocks"), [*JOBS, *(MORE if ALL_TESTS else ())])
def test_calls_of_blink_are_faster_by_the_margin(
    name: str, gpus: tuple[int, ...] | None, capability: int, blocks: int
) -> None:
    job, _, rows = taken_of(name, gpus, capability, blocks)
    predictor, lines, checked = NcclPredictor(job.place, capability), [], 0
    known = {(one.name, -1 if one.root is None else one.root): one for one in collectives(job.ranks)}
    ratios: dict[str, list[tuple[int, str, float]]] = {}
    for row in rows:
        if row.candidate is None:
            continue
        collective, one = known[row.collective, row.root], row.candidate
        capacity = largest(blocks).capacity_bytes(row.protocol)
        for size in classes(row):
            blink_s = timing(one, row.protocol, size, capability, blocks, capacity).seconds
            prediction = predictor.at(collective, size)
            assert blink_s * PREDICTED_MARGIN < prediction.seconds, (row.collective, size)
            least = max(link_seconds(job, one, row.protocol, size), block_seconds(job, one, row.protocol, size))
            assert least <= blink_s * 1.001, (row.collective, size, "faster than links and blocks")
            if size >= 1 << 28:
                assert blink_s <= 1.5 * least, (row.collective, size, "not what links and blocks say")
                if row.collective in ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce"):
                    # NCCL's latency, which the test leaves out, is less than the margin at this size.
                    assert least < nccl_seconds_at_most(job, collective, size) * 1.01, (row.collective, size)
            ratios.setdefault(row.collective, []).append((size, row.protocol, prediction.seconds / blink_s))
            checked += 1
    for collective, ratios_of_one in ratios.items():
        runs = []
        octaves = enumerate(ratios_of_one)
        for _, group in groupby(octaves, key=lambda x: x[1][0].bit_length() - x[0]):
            run = [x[1] for x in group]
            each = " ".join(f"{ratio:.2f}" for _, _, ratio in run)
            runs.append(f"{run[0][0] >> 10} to {run[-1][0] >> 10} KiB: {each}")
        lines.append(f"  {collective:15}{'; '.join(runs)}")
    print(f"\n{name} {'' if gpus is None else gpus}: {checked} classes taken", *lines, sep="\n")
    assert checked > 0


@pytest.mark.parametrize(("gpus", "below"), [(None, 4 << 20), ((0, 1, 2, 3), 32 << 20)])
def test_no_large_allreduce_is_taken_from_a_switch_that_reduces(gpus: tuple[int, ...] | None, below: int) -> None:
    """By links alone no plan beats measured NVLS by the margin, except at small sizes."""
    job, planned, rows = taken_of("hgx-h100", gpus, 90, 32)
    assert job.ranks == (8 if gpus is None else 4)
    for row in rows:
        if row.collective == "allreduce" and row.candidate is not None:
            assert row.below <= below
    collective = Collective("allreduce", job.ranks)
    for one in planned.by_key["allreduce", -1]:
        assert link_seconds(job, one, "simple", 1 << 30) * MARGIN > nccl_seconds_at_most(job, collective, 1 << 30)
