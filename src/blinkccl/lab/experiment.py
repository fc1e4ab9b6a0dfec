"""What is compared in a laboratory, and how: programs for one job in turns, on the same links.

All candidates are plans, run by engine ``sockets``: so only the trees differ. ``ring`` is all rings at once that NCCL
2.4 finds, over PCIe where fast links close none; ``one_ring`` is the first of them alone. Beside what is measured stand
the plan's rate, and what the simulator finds for these chunks, which fill a pipeline, on links without latency.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from blinkccl.algorithms import ring
from blinkccl.algorithms.registry import Request, algorithm
from blinkccl.bench.pattern import Work as Pattern
from blinkccl.bench.sizes import block_count
from blinkccl.engines.sockets import Sites
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.forest.model import Forest, attained_rate, link_use
from blinkccl.lab.laboratory import Laboratory, Run
from blinkccl.lab.layout import lay_out
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.simulate.calibration import calibration
from blinkccl.simulate.run import simulate
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for

#: What ``all`` means.
ALL = ("optimal", "blink", "ring", "one_ring")
#: What all links together may carry, per processor: a third of what a processor moves through shaped links.
_BYTES_PER_S = 150e6
#: No link is faster than this, whatever the job leaves: its packets would follow each other too closely.
_MOST_BIT_PER_S = 800e6
_ITEMSIZE = 4
#: Bytes of a chunk: less takes the processor more time than the link.
_CHUNK_BYTES = (32 * 1024, 256 * 1024)
#: What part of the time filling the pipeline may take, where chunks can be so small.
_FILL = 0.02
#: Of each end of a connection: enough for a link to go on while its receiver does something else for some milliseconds.
BUFFER_BYTES = 128 * 1024


@dataclass(frozen=True)
class Candidate:
    """A plan that is run."""

    name: str
    forest: Forest
    program: Program

    def chunk_bytes(self, size_bytes: int) -> int:
        """The largest chunk for which filling the pipeline takes little."""
        hops = max((role.offset for role in self.program.roles), default=0)
        part = max((float(piece.stop - piece.start) for piece in self.program.slices), default=1.0)
        block = size_bytes / self.forest.collective.total_blocks()
        least, most = _CHUNK_BYTES
        return int(min(most, max(least, part * block * _FILL / max(1, hops))))

    @property
    def gb_per_s(self) -> float:
        """What all links of the machine together carry at the plan's rate."""
        return float(sum(link_use(self.forest.shares).values())) * self.forest.algbw_gb_per_s

    def simulated_gb_per_s(self, size_bytes: int, chunk_bytes: int) -> float:
        """Algbw on links that have their rates and no latency: what the plan's rate loses to its pipeline."""
        # Against so much data no latency of the calibration counts.
        many = 10_000
        found = simulate(
            self.program,
            self.forest.topology,
            calibration("nominal"),
            size_bytes * many,
            chunk_bytes=chunk_bytes * many,
        )
        return size_bytes * many / found.seconds / 1e9


@dataclass
class Measured:
    """A candidate's runs of one size. Rates are those of the machine, as the laboratory's are ``slower`` times less."""

    candidate: Candidate
    pattern: Pattern
    chunk_bytes: int
    slower: float
    runs: list[Run] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(run.seconds for run in self.runs)

    @property
    def gb_per_s(self) -> float:
        """Algbw, as if the links had the machine's rates."""
        return self.pattern.size / self.seconds * self.slower / 1e9

    @property
    def part(self) -> float:
        """Of the plan's algbw."""
        return self.gb_per_s / self.candidate.forest.algbw_gb_per_s

    @cached_property
    def simulated(self) -> float:
        """Of the plan's algbw, by the simulator."""
        found = self.candidate.simulated_gb_per_s(self.pattern.size, self.chunk_bytes)
        return found / self.candidate.forest.algbw_gb_per_s

    @property
    def wrong(self) -> int:
        return sum(run.wrong for run in self.runs)

    @property
    def busy(self) -> float:
        return median(run.busy for run in self.runs)


@dataclass(frozen=True)
class Field:
    """The candidates of a job and, with the reason, those that there are none of.

    Links are ``slower`` times slower in the laboratory than in the machine.
    """

    request: Request
    candidates: tuple[Candidate, ...]
    absent: tuple[tuple[str, str], ...]
    slower: float

    @property
    def lane_gb_per_s(self) -> float:
        return lane_gb_per_s(self.request)

    @property
    def lane_mbit_per_s(self) -> float:
        return self.lane_gb_per_s * 8e3 / self.slower

    def laboratory(self) -> Laboratory:
        """One for all candidates, not yet entered."""
        return laboratory(self.candidates, self.slower)


def lane_gb_per_s(request: Request) -> float:
    """A lane of the job's machine: the unit of its fast links, or of PCIe where these do not join its ranks."""
    try:
        return network_for(request.topology, request.ranks, "fast").unit_gb_per_s
    except TopologyError:
        return request.network.unit_gb_per_s


def laboratory(candidates: Sequence[Candidate], slower: float) -> Laboratory:
    """A laboratory for these plans, on the links of all of them, ``slower`` times slower than they are."""
    sites = [Sites(one.program) for one in candidates]
    networks: list[Topology] = [one.forest.topology for one in candidates]
    paths = [leg.path for one in sites for leg in one.legs]
    return Laboratory(lay_out(networks, paths, 8e9 / slower), [v for one in sites for v in one.vertices])


def prepare(request: Request, names: Sequence[str], lane_mbit_per_s: float | None = None, slots: int = 2) -> Field:
    """Plans, lowers and verifies; an algorithm that refuses is told with its reason.

    Without ``lane_mbit_per_s`` links are as fast as this machine's processors hold for these plans.
    """
    found, absent = [], []
    for name in names:
        try:
            forest = one_ring(request) if name == "one_ring" else algorithm(name).plan(request)
        except (UnsupportedError, TopologyError) as error:
            absent.append((name, str(error)))
            continue
        program = lower(forest, slots)
        verify(program, forest.topology)
        found.append(Candidate(name, forest, program))
    if not found:
        raise UnsupportedError(f"there is nothing to run: {'; '.join(reason for _, reason in absent)}")
    lane = lane_mbit_per_s or held_mbit_per_s(request, found)
    return Field(request, tuple(found), tuple(absent), lane_gb_per_s(request) * 8e3 / lane)


def held_mbit_per_s(request: Request, candidates: Sequence[Candidate]) -> float:
    """The rate of a lane at which this machine's processors hold what all links carry together."""
    fastest = max(link.gb_per_s for one in candidates for link in one.forest.topology.links)
    held = _BYTES_PER_S * len(os.sched_getaffinity(0)) / max(one.gb_per_s for one in candidates)
    return lane_gb_per_s(request) * min(8 * held, _MOST_BIT_PER_S / fastest) / 1e6


def one_ring(request: Request) -> Forest:
    """The first of NCCL 2.4's rings with all of the data; UnsupportedError where there is only one."""
    forest = ring.plan(request)
    rings = len(ring.rings_for(request)[1])
    if rings == 1:
        raise UnsupportedError("one_ring: there is but one ring, which ring is")
    first = forest.shares[: len(forest.shares) // rings]
    total = sum(share.weight for share in first)
    shares = tuple(replace(share, weight=share.weight / total) for share in first)
    return replace(forest, algorithm="one_ring", shares=shares, rate=attained_rate(forest.topology, shares))


def measure(
    field: Field,
    lab: Laboratory,
    sizes: Sequence[int],
    rounds: int,
    deadline_s: float,
    chunk_bytes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[list[Measured]]:
    """Per size, all candidates, ``rounds`` times in turns, every result checked."""
    numbers = [lab.open(one.program, BUFFER_BYTES) for one in field.candidates]
    total, done = len(sizes) * rounds * len(numbers), 0
    for size in sizes:
        row = [planned(one, size, chunk_bytes, field.slower) for one in field.candidates]
        for _ in range(rounds):
            for number, measured in zip(numbers, row, strict=True):
                measured.runs.append(lab.run(number, measured.pattern, measured.chunk_bytes, deadline_s))
                done += 1
                progress(done, total)
        yield row
    for number in numbers:
        lab.close(number)


def planned(candidate: Candidate, size: int, chunk_bytes: int | None, slower: float) -> Measured:
    """A candidate with a size, to be run."""
    collective = candidate.forest.collective
    count = block_count(collective, size, _ITEMSIZE)
    pattern = Pattern(collective, count, in_place=collective.name != "alltoall")
    return Measured(candidate, pattern, chunk_bytes or candidate.chunk_bytes(size), slower)
