"""Predicted times of a program on GPUs, in the kernels that are generated from it.

The simulator times the program. Its calibration gives the generated kernels the costs of NCCL's trees in NCCL's own
model (NCCL 2.30, src/graph/tuning.cc; tables from :mod:`blinkccl.cost.baselines.nccl_model`):

=============================  ======  ======  ======  ================================================================
µs                             LL      LL128   Simple
=============================  ======  ======  ======  ================================================================
a call                         6.8     14      8.4     ``BASE_US["tree"]``
a hop over NVLink              0.6     1.25    4.0     ``STEP_US["nvlink", "tree"]``
a hop over anything else       1.0     1.9     4.0     ``STEP_US["pcie", "tree"]``
part of a link's rate          1/2     0.86    1       4 of 8 bytes; 120 of 128, of which NCCL counts 0.92
=============================  ======  ======  ======  ================================================================

A generated kernel takes 2.5 us more per call (:data:`PROLOGUE_US`): it first loads the rows of its program and decodes
them, while NCCL's kernel has its numbers at the start.

A call takes at least as long as its busiest block (:mod:`~blinkccl.cost.choice.block_costs`).

An NVLink lane has NCCL's count of its rate: 20 GB/s of a V100's 25. PCIe has NCCL's count too
(:func:`counted_gb_per_s`), and messages through an Intel processor load it by a fifth more. A plan is therefore
predicted to beat NCCL by better trees, not by better kernels. NCCL's limit on LL applies as well.

Copy engines are timed on the calibration of Blink's own figures (``v100-copy-engine``). It has 10 µs per chunk, in
which the host issues at least three commands (Blink, MLSys 2020, §4.2.1), and the rate that reduction leaves of a link.
For a fair comparison, links with copies get a part of NCCL's count: the part of NCCL's rate that copies reach there,
22.0 of 22.75 GB/s. One thread issues all commands of a rank, and each message takes it 10 µs. Kernels are therefore
mostly predicted to be faster. They were so in practice.

If the slices of a program differ, generated code cuts each into as many chunks as the largest, so that trees share
links by their weights. The timing follows (``even_chunks`` of :func:`~blinkccl.schedule.chunking.bind`).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import inf

from msgspec.structs import replace

from blinkccl.codegen.text import COPIES
from blinkccl.cost.baselines.nccl_links import Arch, arch_named, kind_of
from blinkccl.cost.baselines.nccl_model import BASE_US, LL_GB_PER_S, PROTOCOLS, ROWS, STEP_US
from blinkccl.cost.choice.block_costs import PIECE_BYTES, block_gb_per_s, busiest_block_s
from blinkccl.cost.choice.programs import CandidateProgram
from blinkccl.cost.simulate.calibration import (
    Calibration,
    EngineCosts,
    LinkClass,
    Number,
    calibration,
    calibration_for,
    link_cost,
)
from blinkccl.cost.simulate.chunk_search import near_best
from blinkccl.cost.simulate.run import Simulation, bind_bytes, simulate_frame
from blinkccl.cost.simulate.translate import Frame, Settings, frame
from blinkccl.schedule.program import Program, Queue
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import LINK_KINDS, Topology
from blinkccl.topology.select import PCIE_KINDS
from blinkccl.units import bus_factor

#: An estimate, the middle of 2 to 3 us: 17 sequential 64-bit divisions by one thread, and four dependent loads of
#: global memory (``native/device/blink/rows.h``). An empty call has not been timed on a GPU yet.
PROLOGUE_US = 2.5
#: NCCL's names of the protocols.
NCCL_NAMES = {"simple": "Simple", "ll": "LL", "ll128": "LL128"}
#: The part of a link's rate that each protocol leaves for data.
RATE = {"simple": 1.0, "ll": 4 / 8, "ll128": 0.92 * 120 / 128}
#: Maximum size of each protocol: above, LL and LL128 have never been faster.
MOST_BYTES = {"ll": 4 << 20, "ll128": 64 << 20, "simple": (1 << 63) - 1, COPIES: (1 << 63) - 1}
#: The calibrations of a DGX-1V's copy engines, and of NCCL's kernels there.
_COPY_ENGINES, _THEIR_KERNELS = "v100-copy-engine", "nccl-2.4-v100"
#: Tasks of a simulation while a communicator waits; above, several chunks are timed as one.
BUDGET = 20_000
_SETTINGS = Settings(budget=BUDGET)
#: Limits of :class:`PredictedTime`.
LINKS, BLOCKS, LL_CAP, ISSUING = "links", "the busiest block", "NCCL's cap on LL", "the thread that issues copies"
_GROUP = 16
_IN_SIGNAL = Number(0.0, "contained in signal_us")


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """A predicted time: the chunk of one part's message, the limiting cost, and the simulation of links and hops."""

    seconds: float
    chunk_bytes: int
    limit: str = LINKS
    simulation: Simulation | None = None


def architecture(capability: int) -> str:
    """The name of GPUs of this compute capability (90 for 9.0) in NCCL's model."""
    return "pascal" if capability < 70 else ("volta", "ampere", "hopper", "blackwell")[_row(capability)]


def protocols_of(candidate: CandidateProgram, capability: int) -> tuple[str, ...]:
    """The kernels' protocols that are safe for the program.

    LL128 needs stores of 128 bytes that arrive in one piece. By NCCL's rule (src/graph/tuning.cc), compute capability
    7.0 or later and a plan on NVLink alone, with or without switches, guarantee this.
    """
    return ("ll", "simple") if ll128_fault(candidate, capability) else ("ll", "ll128", "simple")


def ll128_fault(candidate: CandidateProgram, capability: int) -> str | None:
    """The reason that LL128 is not safe for the program, as a sentence without full stop; None if it is safe."""
    if capability < 70:
        return (
            "LL128 needs compute capability 7.0 or later, whose stores of 128 bytes arrive whole; got "
            f"{capability // 10}.{capability % 10}"
        )
    if any(queue.home != queue.path[-1] for queue in candidate.program.queues):
        return "LL128 needs stores of 128 bytes that arrive whole, which only stores into a GPU's memory guarantee"
    other = sorted(_kinds(candidate.program, candidate.network) - {"nvlink"})
    if other:
        return f"LL128 needs NVLink alone, which keeps stores of 128 bytes whole; the plan also uses {', '.join(other)}"
    return None


def timing(
    candidate: CandidateProgram,
    protocol: str,
    size_bytes: int,
    capability: int,
    parts: int,
    capacity_bytes: int,
    settings: Settings = _SETTINGS,
) -> PredictedTime:
    """The predicted time of one call of S bytes.

    ``parts`` is the number of blocks of a channel, ``capacity_bytes`` the maximum data in a message of one block. The
    program's code overrides ``even_chunks`` of ``settings``. Cost: three to four simulations of half a millisecond or
    two each with the default; several times that for copies, whose chunk must leave time to issue.
    """
    of = _frame(candidate, protocol, capability, settings)
    program, costs, most = of.program, of.calibration, parts * capacity_bytes
    run = near_best(of, size_bytes, most)
    if protocol == COPIES:
        run, times = _by_copies(candidate, of, run, most)
    else:
        bound, step_us = bind_bytes(program, size_bytes, size_bytes + 1), costs.engine.signal_us.value
        rate = block_gb_per_s(protocol, _row(capability))
        busy_s = busiest_block_s(candidate.work, bound, parts, rate, step_us)
        times = {LINKS: run.seconds, BLOCKS: costs.engine.launch_us.value * 1e-6 + busy_s}
    if protocol == "ll":
        collective = program.collective
        busbw = float(LL_GB_PER_S[_row(capability)][0]) * 1e9
        times[LL_CAP] = size_bytes * float(bus_factor(collective.name, collective.world_size)) / busbw
    limit = max(times, key=lambda name: times[name])
    part_chunk = _of_part(candidate, size_bytes, run.chunk_bytes, parts, capacity_bytes)
    return PredictedTime(times[limit], part_chunk, limit, run)


@lru_cache(maxsize=512)
def _frame(candidate: CandidateProgram, protocol: str, capability: int, settings: Settings) -> Frame:
    """The program at the costs of its protocol, with slices cut as in its code."""
    program, network = candidate.program, candidate.network
    fast = _kinds(program, network) <= {"nvlink"}
    costs = calibration_of(protocol, fast, architecture(capability), calibration_for(network))
    settings = dataclasses.replace(settings, even_chunks=candidate.evenly)
    return frame(program, network, costs, settings, pcie_gb_per_s(candidate, protocol, capability))


def pcie_gb_per_s(candidate: CandidateProgram, protocol: str, capability: int) -> dict[tuple[int, int], float]:
    """The rate of each PCIe link and bus for a program: NCCL's count, or the lower measured rate of its rings."""
    left = _copies_reach() if protocol == COPIES else RATE[protocol]
    measured, links, rates = calibration_for(candidate.network), candidate.network.link, {}
    for arc, counted in counted_gb_per_s(candidate, arch_named(architecture(capability))).items():
        reached = link_cost(measured, links[arc]).rate / 1e9 if measured.link_class(links[arc]).kernels else inf
        rates[arc] = left * min(counted, reached)
    return rates


def _by_copies(
    candidate: CandidateProgram, of: Frame, run: Simulation, most_bytes: int
) -> tuple[Simulation, dict[str, float]]:
    """The best run whose chunk lets a rank's thread issue all commands in time, and its times.

    ``run`` has the best chunk for the links, so only larger chunks are tried.
    """

    def times(run: Simulation) -> dict[str, float]:
        return {LINKS: run.seconds, ISSUING: _issuing_s(candidate, run.size_bytes, run.chunk_bytes, of.calibration)}

    best = run
    while times(run)[ISSUING] > run.seconds and run.chunk_bytes < most_bytes:
        run = simulate_frame(of, run.size_bytes, min(2 * run.chunk_bytes, most_bytes))
        best = min(best, run, key=lambda one: max(times(one).values()))
    return best, times(best)


def _issuing_s(candidate: CandidateProgram, size_bytes: int, chunk_bytes: int, costs: Calibration) -> float:
    """Seconds of the busiest rank's thread to issue all commands."""
    program = candidate.program
    extents = bind_bytes(program, size_bytes, chunk_bytes, candidate.evenly).extents
    messages = dict.fromkeys(range(len(program.ranks)), 0)
    for role in program.roles:
        messages[role.rank] += extents[role.slice].chunks * max(1, len(role.sends))
    return max(messages.values()) * costs.engine.issue_us.value * 1e-6


def _of_part(candidate: CandidateProgram, size_bytes: int, chunk_bytes: int, parts: int, capacity_bytes: int) -> int:
    """The chunk of one part; the maximum if every slice is one chunk."""
    bound = bind_bytes(candidate.program, size_bytes, chunk_bytes, candidate.evenly)
    if all(extent.chunks <= 1 for extent in bound.extents):
        chunk_bytes = parts * capacity_bytes
    largest = max((extent.length * bound.itemsize for extent in bound.extents), default=0)
    pieces = max(1, min(parts, -(-largest // PIECE_BYTES)))
    part = -(-chunk_bytes // (pieces * _GROUP)) * _GROUP
    return max(_GROUP, min(part, capacity_bytes // _GROUP * _GROUP))


def _kinds(program: Program, network: Topology) -> set[str]:
    """The kinds of the links that its messages cross."""
    return {network.link[pair].kind for queue in program.queues for pair in pairwise(queue.path)}


def _row(capability: int) -> int:
    """The row of NCCL's tables."""
    return sum(capability >= least for least in ROWS[1:])


@lru_cache(maxsize=64)
def calibration_of(protocol: str, fast: bool, arch: str, measured: Calibration | None = None) -> Calibration:
    """The costs of generated code; ``fast``: its links are NVLink alone.

    Links have NCCL's count of their rate, or the lower rate ``measured`` for NCCL's rings.
    """
    if protocol == COPIES:
        return _copies_calibration(arch)
    column = PROTOCOLS.index(NCCL_NAMES[protocol])
    hop_us = STEP_US["nvlink" if fast else "pcie", "tree"][column]
    counted = arch_named(arch)
    lane = float(counted.lane_gb_per_s / counted.nominal_gb_per_s)

    def rate(kind: str) -> Number:
        left = RATE[protocol] * (lane if kind == "nvlink" else 1.0)
        return Number(left, "NCCL 2.30: its count of a link, and the protocol's part of it")

    slower = []
    for row in (row for row in measured.link if row.kernels) if measured else ():
        nominal = row.nominal_gb_per_s or 1.0
        part = row.gb_per_s.value / nominal * RATE[protocol]
        if part < rate(row.kind).value:
            slower.append(
                LinkClass(row.kind, row.nominal_gb_per_s, Number(part * nominal, row.gb_per_s.source), _IN_SIGNAL)
            )
    return Calibration(
        1,
        f"kernels-{protocol}",
        "generated kernels, at the costs of NCCL's own",
        EngineCosts(
            launch_us=Number(
                float(BASE_US["tree"][column]) + PROLOGUE_US,
                "NCCL 2.30: a call of a tree; estimated: the kernel's prologue",
            ),
            signal_us=Number(float(hop_us), "NCCL 2.30: a step of a tree"),
        ),
        (*slower, *(LinkClass(kind, 0.0, rate(kind), _IN_SIGNAL) for kind in LINK_KINDS)),
    )


def _copies_reach() -> float:
    """The rate of copies on a link as a part of the rate of kernels."""
    copies, kernels = (_nvlink(name) for name in (_COPY_ENGINES, _THEIR_KERNELS))
    return copies.gb_per_s.value / kernels.gb_per_s.value


def _nvlink(name: str) -> LinkClass:
    return next(row for row in calibration(name).link if row.kind == "nvlink")


def _copies_calibration(arch: str) -> Calibration:
    fitted, reached = calibration(_COPY_ENGINES), _copies_reach()
    counted = arch_named(arch)
    lane = float(counted.lane_gb_per_s / counted.nominal_gb_per_s)
    call_us = float(BASE_US["tree"][PROTOCOLS.index("Simple")])
    where = f"{_COPY_ENGINES}, and NCCL's count of a link"
    return Calibration(
        1,
        "by-copies",
        "copy engines, at the costs of Blink's figures",
        replace(fitted.engine, launch_us=Number(call_us, "as a kernel's call")),
        tuple(
            LinkClass(
                kind,
                0.0,
                Number(reached * (lane if kind == "nvlink" else 1.0), where),
                Number(0.0, "contained in issue_us"),
                _nvlink(_COPY_ENGINES).duplex,
            )
            for kind in LINK_KINDS
        ),
    )


def counted_gb_per_s(one: CandidateProgram, arch: Arch) -> dict[tuple[int, int], float]:
    """GB/s of data that the program's messages reach on each PCIe link and each bus between processors.

    NCCL's numbers depend on the machine and on the paths (:mod:`blinkccl.cost.baselines.nccl_links`): a message from
    GPU to GPU through an Intel processor loads PCIe by more than its bytes, unless it stops in the processor's memory.
    If messages on a link differ, all get the average rate.
    """
    network, unit = one.network, exact_unit(one.network)
    if not any(link.kind in PCIE_KINDS for link in network.links):
        return {}
    bytes_of, taken = defaultdict[tuple[int, int], Fraction](Fraction), defaultdict[tuple[int, int], Fraction](Fraction)
    for queue, part in _parts(one.program).items():
        share = _share(one, queue)
        for leg in queue.legs:
            for arc in pairwise(leg):
                bytes_of[arc] += part
                taken[arc] += part * (share if network.link[arc].kind == "pcie" else 1)
    rates = {}
    for arc, part in bytes_of.items():
        link = network.link[arc]
        if link.kind in PCIE_KINDS:
            counted = one.counted.gb_per_s(link.kind, link.capacity * unit, arch)
            rates[arc] = float(counted * part / taken[arc])
    return rates


def _parts(program: Program) -> Mapping[Queue, Fraction]:
    """The part of S in each queue."""
    weight = {item.block: item.weight for item in program.collective.items()}
    parts = dict.fromkeys(program.queues, Fraction(0))
    for role in program.roles:
        part = program.slices[role.slice]
        for number in role.sends:
            parts[program.queues[number]] += (part.stop - part.start) * weight[part.block]
    return {queue: part for queue, part in parts.items() if part}


def _share(one: CandidateProgram, queue: Queue) -> Fraction:
    """The load on PCIe of one GB/s of the queue's messages."""
    if queue.is_staged or not _through_processor(one.network, queue.path):
        return Fraction(1)
    return one.counted.share(kind_of(one.network, queue.path), queue.path[0])


def _through_processor(network: Topology, path: tuple[int, ...]) -> bool:
    return any(network.vertex[vertex].kind == "host" for vertex in path[1:-1])
