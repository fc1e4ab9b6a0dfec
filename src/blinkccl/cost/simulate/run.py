"""A program timed for a size: its chunks chosen, its tasks counted against the budget, its workload run."""

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

#: Elements are floats of this size where only bytes matter.
ITEMSIZE = 4
#: Tasks of a run where nobody says: with a timeline 90 bytes each, and a second or two per million on a busy core.
EVENT_BUDGET = 20_000_000
MAX_SIZE_BYTES = 2**63 - 1
#: No chunk is chosen below or above these.
LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 16 * 1024, 64 * 1024 * 1024


@dataclass(frozen=True)
class Simulation:
    """A program timed for S = ``size_bytes``; ``aggregated`` of the wanted chunks were timed as one."""

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
        """Whether any slice is cut into several."""
        return any(extent.chunks > 1 for extent in self.translation.bound.extents)

    @property
    def algbw_gb_per_s(self) -> float:
        """S / t in GB/s; 0 where nothing moves."""
        return algbw_gb_per_s(self.size_bytes, self.seconds) if self.seconds else 0.0

    @cached_property
    def busbw_gb_per_s(self) -> float:
        """nccl-tests' bus bandwidth."""
        collective = self.translation.bound.program.collective
        return self.algbw_gb_per_s * float(bus_factor(collective.name, collective.world_size))

    def traced(self) -> Simulation:
        """The same run once more, with its trace."""
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
    """Times ``program`` for S = ``size_bytes``, as nccl-tests counts it; 0 to 2^63 − 1.

    Without ``chunk_bytes`` a chunk is that of :func:`best_chunk_bytes`. ``traced`` keeps what was done when. Tasks are
    counted against the budget of ``settings`` before anything is made of them. Where that does not suffice, the answer
    is an estimate: bandwidth terms and the cost of every chunk stay, but a pipeline fills more slowly, by at most the
    depth times the larger chunk.
    """
    return simulate_frame(frame(program, network, calibration, settings), size_bytes, chunk_bytes, traced)


def simulate_frame(of: Frame, size_bytes: int, chunk_bytes: int | None = None, traced: bool = False) -> Simulation:
    """As :func:`simulate`, for who asks for more than one size or chunk of a program."""
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
    """How many chunks, as bound, to time as one so that a run keeps to its budget, and the program bound that way."""
    chunk_bytes, tasks, times, bound = fine.chunk_elements * fine.itemsize, fine.tasks, 1, fine
    while tasks > budget:
        times = max(times + 1, -(-times * tasks // budget))
        bound = bind_bytes(fine.program, size_bytes, chunk_bytes * times, even_chunks)
        tasks = bound.tasks
        if tasks > budget and all(extent.chunks <= 1 for extent in bound.extents):
            raise UsageError(
                f"one chunk per share is {tasks:,} transfers and reductions already, more than the {budget:,} "
                "that are timed; time another algorithm"
            )
    return max(1, round(_largest_chunk(bound) / _largest_chunk(fine))), bound


def _largest_chunk(bound: Bound) -> int:
    """Elements of the largest chunk that there is."""
    return max(min(extent.length, extent.chunk_elements) for extent in bound.extents)


def parse_size(option: str, text: str, most: int = MAX_SIZE_BYTES) -> int:
    """Bytes from what was typed for ``option``: ``64M``, ``1G``, ``4096``; at most ``most``."""
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
    """The chunk that makes the chunk pipeline model's time least: √(S·α·β / (d − 1)) for a path of d stages.

    S is the largest slice's part, β the rate at which the plan moves it, α the cost of a chunk in a stream. T = Σt +
    (k − 1)·t for k = S/s chunks of t = α + s/β gives it by differentiation. The slice is then cut into whole chunks of
    equal size, since the last one costs as much as the others.
    """
    slices = [float(part.stop - part.start) / program.collective.total_blocks() for part in program.slices]
    if not slices or not program.queues:
        return LEAST_CHUNK_BYTES
    largest = max(slices) * size_bytes
    depth = max(role.offset for role in program.roles)
    used = [network.link[pair] for pair in dict.fromkeys(pair for q in program.queues for pair in pairwise(q.path))]
    costs = [link_cost(calibration, link) for link in used]
    slowest_s = max((cost.latency_s for cost in costs), default=0.0)
    # What the calibration leaves of the rate that the plan was made for.
    left = min((cost.rate / (link.gb_per_s * 1e9) for cost, link in zip(costs, used, strict=True)), default=1.0)
    beta = max(slices) * left * float(program.rate) * network.unit_gb_per_s * 1e9 if program.rate else 1e9
    # A message that is signalled late holds its slot: every so many chunks wait for one signal.
    slots = min(channel.slots for channel in program.channels)
    engine = calibration.engine
    alpha_s = (engine.issue_us.value + engine.signal_us.value / slots) * 1e-6 + slowest_s
    if depth > 1:
        wanted = sqrt(largest * alpha_s * beta / (depth - 1))
    else:
        # Nothing to fill, but whole messages would hold a switch's ports for as long as they take.
        through = any(len(queue.path) > 2 for queue in program.queues)
        wanted = max(largest / 8, sqrt(largest * alpha_s * beta)) if through else largest
    wanted = min(MOST_CHUNK_BYTES, max(LEAST_CHUNK_BYTES, wanted))
    whole = ceil(largest / max(1, round(largest / wanted), ceil(largest / MOST_CHUNK_BYTES)))
    return max(LEAST_CHUNK_BYTES, -(-whole // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)


def _times(translation: Translation, together: int) -> Translation:
    """The workload with each chunk's fixed costs ``together`` times."""
    workload = translation.workload
    hops = replace(workload.hops, latency_s=workload.hops.latency_s * together)
    actors = replace(workload.actors, launch_s=workload.actors.launch_s * together)
    return replace(translation, workload=replace(workload, hops=hops, actors=actors))
