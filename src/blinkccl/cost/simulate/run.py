"""Simulation of a program for a size: select chunks, count tasks against the budget, run the workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, sqrt

from blinkccl.cost.simulate.calibration import Calibration, link_cost
from blinkccl.cost.simulate.kernel import run
from blinkccl.cost.simulate.translate import Frame, Settings, Translation, frame
from blinkccl.cost.simulate.workload import Outcome
from blinkccl.errors import UsageError
from blinkccl.schedule.chunking import ALIGNMENT_BYTES, Bound, bind
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Topology
from blinkccl.units import algbw_gb_per_s, bus_factor, parse_bytes, size_text

#: Bytes of an element, a float where only bytes matter.
ITEMSIZE = 4
#: Default maximum tasks of a run. With a timeline a task takes 90 bytes, and a million take 1 to 2 s on a busy core.
EVENT_BUDGET = 20_000_000
MAX_SIZE_BYTES = 2**63 - 1
#: Limits of selected chunks.
LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 16 * 1024, 64 * 1024 * 1024


@dataclass(frozen=True)
class Simulation:
    """A program timed for S = ``size_bytes``; ``aggregated`` chunks of ``chunk_bytes`` were timed as one."""

    translation: Translation
    outcome: Outcome
    size_bytes: int
    chunk_bytes: int
    aggregated: int = 1

    @property
    def seconds(self) -> float:
        return self.outcome.seconds

    @property
    def in_chunks(self) -> bool:
        """True if some slice has several chunks."""
        return any(extent.chunks > 1 for extent in self.translation.bound.extents)

    @property
    def algbw_gb_per_s(self) -> float:
        """S / t in GB/s; 0 if no data moves."""
        return algbw_gb_per_s(self.size_bytes, self.seconds) if self.seconds else 0.0

    @cached_property
    def busbw_gb_per_s(self) -> float:
        """nccl-tests' bus bandwidth."""
        collective = self.translation.bound.program.collective
        return self.algbw_gb_per_s * float(bus_factor(collective.name, collective.world_size))

    def traced(self) -> Simulation:
        """The same run repeated with a trace."""
        translation = self.translation
        outcome = run(translation.workload, translation.settings.kernel_sharing, traced=True)
        return replace(self, outcome=outcome)


def simulate(
    program: Program,
    network: Topology,
    calibration: Calibration,
    size_bytes: int,
    *,
    chunk_bytes: int | None = None,
    settings: Settings | None = None,
    traced: bool = False,
) -> Simulation:
    """Time ``program`` for S = ``size_bytes`` as defined by nccl-tests, 0 to 2^63 − 1.

    The default chunk is :func:`best_chunk_bytes`. ``traced`` keeps a trace. Tasks are counted against the budget of
    ``settings`` before they are created. If the budget is too small, the result is an estimate. It keeps bandwidth
    terms and the cost of every chunk, but its pipeline fills more slowly, by at most the depth times the larger chunk.
    """
    return simulate_frame(frame(program, network, calibration, settings), size_bytes, chunk_bytes, traced)


def simulate_frame(of: Frame, size_bytes: int, chunk_bytes: int | None = None, traced: bool = False) -> Simulation:
    """Time a program as :func:`simulate`, from a frame that serves several sizes and chunks."""
    if not 0 <= size_bytes <= MAX_SIZE_BYTES:
        raise UsageError(f"a size of {size_bytes} bytes; expected 0 to 2^63 - 1")
    program, settings = of.program, of.settings
    budget = settings.budget or EVENT_BUDGET
    if chunk_bytes is None:
        chunk_bytes = best_chunk_bytes(program, of.network, of.calibration, size_bytes)
    bound = bind_bytes(program, size_bytes, chunk_bytes, settings.even_chunks)
    together = 1
    if bound.tasks > budget:
        together, bound = _coarser(bound, size_bytes, settings.even_chunks, budget)
    translation = of.at(bound)
    if together > 1:
        translation = _times(translation, together)
    outcome = run(translation.workload, settings.kernel_sharing, traced)
    return Simulation(translation, outcome, size_bytes, chunk_bytes, together)


def _coarser(fine: Bound, size_bytes: int, even_chunks: bool, budget: int) -> tuple[int, Bound]:
    """The number of chunks to time as one so that a run keeps its budget, and the program bound to such chunks."""
    chunk_bytes, tasks, times, bound = fine.chunk_elements * fine.itemsize, fine.tasks, 1, fine
    while tasks > budget:
        times = max(times + 1, -(-times * tasks // budget))
        bound = bind_bytes(fine.program, size_bytes, chunk_bytes * times, even_chunks)
        tasks = bound.tasks
        if tasks > budget and all(extent.chunks <= 1 for extent in bound.extents):
            raise UsageError(
                f"one chunk per share already makes {tasks:,} transfers and reductions, more than the budget of "
                f"{budget:,}; use another algorithm"
            )
    return max(1, round(_largest_chunk(bound) / _largest_chunk(fine))), bound


def _largest_chunk(bound: Bound) -> int:
    """Elements of the largest chunk."""
    return max(min(extent.length, extent.chunk_elements) for extent in bound.extents)


def parse_size(option: str, text: str, most: int = MAX_SIZE_BYTES) -> int:
    """Bytes of the text for ``option``: ``64M``, ``1G``, ``4096``; at most ``most``."""
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if size > most:
        limit = "2^63 - 1 bytes" if most == MAX_SIZE_BYTES else size_text(most)
        raise UsageError(f"{option} {text}: expected at most {limit}")
    return size


def bind_bytes(program: Program, size_bytes: int, chunk_bytes: int, even_chunks: bool = True) -> Bound:
    """The program for S bytes: whole elements, the same number in each block."""
    count = size_bytes // ITEMSIZE // program.collective.total_blocks()
    return bind(program, count, ITEMSIZE, max(ITEMSIZE, chunk_bytes), even_chunks)


def best_chunk_bytes(program: Program, network: Topology, calibration: Calibration, size_bytes: int) -> int:
    """The chunk with the least time in the chunk pipeline model: √(S·α·β / (d − 1)) for a path of d stages.

    S is the largest slice's part, β the plan's rate for it, α the cost of a chunk in a stream. The formula is the
    minimum of T = Σt + (k − 1)·t for k = S/s chunks of t = α + s/β. The slice is then cut into chunks of equal size,
    because the last one costs as much as the others.
    """
    slices = [float(part.stop - part.start) / program.collective.total_blocks() for part in program.slices]
    if not slices or not program.queues:
        return LEAST_CHUNK_BYTES
    largest = max(slices) * size_bytes
    depth = max(role.offset for role in program.roles)
    used = [network.link[pair] for pair in dict.fromkeys(pair for q in program.queues for pair in pairwise(q.path))]
    costs = [link_cost(calibration, link) for link in used]
    slowest_s = max((cost.latency_s for cost in costs), default=0.0)
    # The part of the plan's rate that the calibration leaves.
    left = min((cost.rate / (link.gb_per_s * 1e9) for cost, link in zip(costs, used, strict=True)), default=1.0)
    beta = max(slices) * left * float(program.rate) * network.unit_gb_per_s * 1e9 if program.rate else 1e9
    # A message holds its slot until its signal arrives, so one in ``slots`` chunks waits for a signal.
    slots = min(channel.slots for channel in program.channels)
    engine = calibration.engine
    alpha_s = (engine.issue_us.value + engine.signal_us.value / slots) * 1e-6 + slowest_s
    if depth > 1:
        chunk_bytes = sqrt(largest * alpha_s * beta / (depth - 1))
    else:
        # No pipeline has to fill, but whole messages would block the ports of a switch.
        through = any(len(queue.path) > 2 for queue in program.queues)
        chunk_bytes = max(largest / 8, sqrt(largest * alpha_s * beta)) if through else largest
    chunk_bytes = min(MOST_CHUNK_BYTES, max(LEAST_CHUNK_BYTES, chunk_bytes))
    whole = ceil(largest / max(1, round(largest / chunk_bytes), ceil(largest / MOST_CHUNK_BYTES)))
    return max(LEAST_CHUNK_BYTES, -(-whole // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)


def _times(translation: Translation, together: int) -> Translation:
    """The workload with the fixed costs of each chunk multiplied by ``together``."""
    workload = translation.workload
    hops = replace(workload.hops, latency_s=workload.hops.latency_s * together)
    actors = replace(workload.actors, launch_s=workload.actors.launch_s * together)
    return replace(translation, workload=replace(workload, hops=hops, actors=actors))
