"""NCCL as a baseline: version 2.4, whose rings and trees are timed as plans, and version 2.30 by its own cost model.

``nccl-2.4`` is the baseline of Blink's paper. Its rings, with the fall-back to PCIe, are timed by the kernel as a plan
on their links. Between servers it is the faster of rings and double binary trees. (NCCL's own threshold selects trees
on two servers at every size, a pair per channel; the plan here is one pair.) ``nccl-2.4-as-written`` follows Blink
(MLSys 2020, §3.5) on a DGX-2: double binary trees below 16 KB. NCCL 2.4.2 itself never uses trees inside a server
(v2.4.2, src/init.cu). ``nccl-2.30`` is today's NCCL: its channel search and its cost model with NVLS, without a plan
and without the kernel.

Two figures for NCCL stand beside every plan: :func:`nccl_today`, the time of 2.30 at the rates that links reach, and
:func:`ring_baseline`, the nominal rate of a ring by the rule of 2.4, as in Blink's paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil

from blinkccl.cost.baselines.candidate import Conditions, Estimate, Formula, Prepared, TimedPlan, planned
from blinkccl.cost.baselines.nccl_links import arch_named
from blinkccl.cost.baselines.nccl_model import SERVED
from blinkccl.cost.baselines.nccl_server import NcclPrediction, NcclServer
from blinkccl.cost.baselines.nccl_system import check_nvidia
from blinkccl.cost.simulate.calibration import Calibration, machine_name
from blinkccl.cost.simulate.run import Simulation, simulate_frame
from blinkccl.errors import BlinkError, TopologyError, UnsupportedError
from blinkccl.schedule.chunking import ALIGNMENT_BYTES
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import FAST_KINDS
from blinkccl.topology.select import PCIE_CHOICES, joining_links
from blinkccl.trees.algorithms import ring
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.ring import in_channels
from blinkccl.trees.algorithms.shapes import by_server
from blinkccl.trees.forest.model import Forest

#: NCCL 2.4 forwards data in slices: a buffer of 4 MiB has 8 steps. Rings of AllReduce, AllGather and ReduceScatter use
#: two steps at once, and cut each rank's part into at least two (v2.4.2, src/include/collectives.h, primitives.h).
NCCL_SLICE_BYTES = 512 * 1024
STEPS_PER_SLICE = {"allreduce": 2, "allgather": 2, "reduce_scatter": 2}
#: A slice of LL: 8 bytes of data for each of 256 threads, 8 times (core.h).
LL_SLICE_BYTES = 16 * 1024
#: Threads of a channel with LL (core.h).
LL_THREADS = 256
#: Channels on each lane of a ring, and the maximum (p2p.cu, "Duplicate the rings for direct NVLink"; core.h).
CHANNELS_PER_LANE, MOST_CHANNELS = 2, 16
#: NCCL 2.4 uses double binary trees on a DGX-2 below this size, according to Blink.
AS_WRITTEN_BYTES = 16 * 1024
#: Calibrations of NCCL 2.4 by machine and protocol; other machines use the calibration of the job.
NCCL_24_PROTOCOLS = {
    "dgx-1v": {"Simple": "nccl-2.4-v100", "LL": "nccl-2.4-v100-ll"},
    "dgx-1p": {"Simple": "nccl-2.4-p100", "LL": "nccl-2.4-p100-ll"},
    "dgx-2": {"Simple": "nccl-2.4-v100", "LL": "nccl-2.4-v100-ll"},
}


@dataclass(frozen=True)
class SlicedPlan(TimedPlan):
    """A plan of NCCL 2.4, whose chunks are its slices of at most ``slice_bytes``.

    Each share of AllReduce, AllGather and ReduceScatter is at least two slices.
    """

    slice_bytes: int = NCCL_SLICE_BYTES

    def _run(self, size_bytes: int) -> Simulation:
        parts = STEPS_PER_SLICE.get(self.forest.collective.name, 1)
        longest = max(float(part.stop - part.start) for part in self.program.slices)
        chunk_bytes = max(ALIGNMENT_BYTES, min(self.slice_bytes, ceil(longest * size_bytes / parts)))
        return simulate_frame(self.frame, size_bytes, chunk_bytes)


@dataclass(frozen=True)
class ByProtocol:
    """An algorithm of NCCL 2.4: LL up to ``ll_bytes``, Simple above; ``known`` are its estimates by size."""

    simple: TimedPlan
    ll: TimedPlan | None = None
    ll_bytes: int = 0
    known: dict[int, Estimate] = field(default_factory=dict, compare=False, repr=False)

    def at(self, size_bytes: int) -> Estimate:
        if size_bytes not in self.known:
            plan = self.simple if self.ll is None or size_bytes > self.ll_bytes else self.ll
            self.known[size_bytes] = plan.at(size_bytes)
        return self.known[size_bytes]


@dataclass(frozen=True)
class Alternatives:
    """Algorithms of one library by name; ``choose`` selects one for each size, or else the fastest is selected."""

    name: str
    algorithms: Mapping[str, ByProtocol]
    choose: Callable[[int], str] | None = None

    @property
    def forest(self) -> Forest:
        return self.algorithms["ring"].simple.forest

    def at(self, size_bytes: int) -> Estimate:
        """The estimate of the plan for this size; ``detail`` names the plan."""
        names = list(self.algorithms) if self.choose is None else [self.choose(size_bytes)]
        best = min((self.algorithms[name].at(size_bytes) for name in names), key=lambda estimate: estimate.seconds)
        return replace(best, name=self.name)


def prepare_nccl_24(request: Request, conditions: Conditions) -> Prepared:
    """NCCL 2.4: rings inside a server, rings or double binary trees between servers."""
    alone = len(by_server(request.topology, request.ranks)) == 1 or request.collective.name != "allreduce"
    algorithms = ("ring",) if alone else ("ring", "double_binary_tree")
    return Alternatives("nccl-2.4", {how: _nccl_24(how, request, conditions) for how in algorithms})


def prepare_nccl_24_as_written(request: Request, conditions: Conditions) -> Prepared:
    """NCCL 2.4 as Blink describes it on a DGX-2: double binary trees below 16 KB, rings above."""
    name = "nccl-2.4-as-written"
    if request.collective.name != "allreduce":
        raise UnsupportedError(f"{name} differs from nccl-2.4 for allreduce only; use nccl-2.4")
    plans = {how: _nccl_24(how, request, conditions) for how in ("ring", "double_binary_tree")}
    return Alternatives(name, plans, lambda size: "double_binary_tree" if size < AS_WRITTEN_BYTES else "ring")


@lru_cache(maxsize=8)
def _nccl_24(algorithm: str, request: Request, conditions: Conditions) -> ByProtocol:
    """One algorithm in each protocol, with the calibrations and slices of NCCL instead of the job's.

    Both rows of NCCL 2.4 have the same rings, which take seconds on 72 GPUs.
    """
    check_nvidia(request.topology, request.ranks)
    rings = algorithm == "ring"
    if rings:
        lane_gb_per_s = arch_named(guess_arch(request.topology)).nominal_gb_per_s
        forest = in_channels(request, lane_gb_per_s, CHANNELS_PER_LANE, MOST_CHANNELS)
    else:
        forest = ALGORITHMS[algorithm].plan(request)
    name_on_links = ("rings" if rings else "double binary trees") + f" over {_kinds(forest)}"
    settings = replace(conditions.settings, even_chunks=False)
    base = planned("nccl-2.4", forest, replace(conditions, settings=settings))

    def sliced(calibration: Calibration, slice_bytes: int, protocol: str) -> SlicedPlan:
        own = replace(base.conditions, calibration=calibration)
        return SlicedPlan(base.name, forest, base.program, own, f"{name_on_links}, {protocol}", slice_bytes)

    slice_bytes = NCCL_SLICE_BYTES * (STEPS_PER_SLICE.get(request.collective.name, 1) if rings else 1)
    named = NCCL_24_PROTOCOLS.get(machine_name(request.topology))
    if named is None:
        return ByProtocol(sliced(conditions.calibration, slice_bytes, conditions.calibration.name))
    return ByProtocol(
        sliced(conditions.named(named["Simple"]), slice_bytes, "Simple"),
        sliced(conditions.named(named["LL"]), LL_SLICE_BYTES, "LL"),
        _ll_bytes(request, forest, rings),
    )


def _ll_bytes(request: Request, forest: Forest, rings: bool) -> int:
    """The largest size for which NCCL 2.4 uses LL, by the bytes of each thread (v2.4.2, src/enqueue.cu, getKernelInfo).

    One simplification: all smaller sizes use LL, always with all channels and threads.
    """
    name, ranks = request.collective.name, len(request.ranks)
    chunks = ranks if rings and name not in ("broadcast", "reduce") else 1
    roots = ranks if chunks > 1 else 1
    volta = machine_name(request.topology) != "dgx-1p"
    servers = len(by_server(request.topology, request.ranks))
    per_thread = (64 if volta else 32) * (2 if servers > 1 else 1) * (1 if rings else 4)
    return max(1, len(forest.shares) // roots) * LL_THREADS * chunks * per_thread


def _kinds(forest: Forest) -> str:
    kinds: Sequence[str] = sorted({link.kind for link in forest.topology.links})
    return ", ".join(kinds)


def nccl_230_fault(request: Request) -> str | None:
    """The reason that NCCL 2.30's model cannot time the job, before its search runs; a sentence without full stop."""
    try:
        check_nvidia(request.topology, request.ranks)
    except UnsupportedError as error:
        return str(error)
    name = request.collective.name
    if name not in SERVED:
        return f"NCCL runs {name} as sends and receives, which its cost model does not cover"
    if request.links in PCIE_CHOICES and request.links != joining_links(request.topology, request.ranks)[0]:
        return f"NCCL selects its links itself and cannot follow --links {request.links}"
    return NcclServer.of(request.topology, request.ranks).fault(name)


def nccl_230(request: Request, calibration: Calibration | None = None) -> NcclServer:
    """NCCL 2.30 on the job; UnsupportedError for a :func:`nccl_230_fault`, or if the search finds no channels."""
    fault = nccl_230_fault(request)
    if fault is not None:
        raise UnsupportedError(fault)
    return NcclServer.of(request.topology, request.ranks, calibration)


def nccl_today(request: Request, size_bytes: int) -> NcclPrediction | str:
    """NCCL's time for S bytes, or the reason that its model has none, as a sentence without full stop.

    Cost: NCCL's search for channels, some 10 ms for 8 GPUs and a quarter of a second for 128.
    """
    try:
        return nccl_230(request).predicted(request.collective.name, size_bytes)
    except BlinkError as error:
        return " ".join(str(error).split())


def prepare_nccl_230(request: Request, conditions: Conditions) -> Prepared:
    """NCCL 2.30's channel search, and its cost model for each size."""
    nccl = nccl_230(request, conditions.calibration)
    channels = nccl.channels
    on_channels = f"{channels.count} × {channels.gb_per_s_per_channel:g} GB/s over {channels.kind} (NCCL's own model)"

    def seconds(size_bytes: int) -> tuple[float, str]:
        chosen = nccl.at(request.collective.name, size_bytes)
        if chosen.algorithm == "NVLS":
            return chosen.seconds, "NVLS: the switch reduces and multicasts"
        return chosen.seconds, f"{chosen.algorithm}, {chosen.protocol}; {on_channels}"

    return Formula("nccl-2.30", request, seconds)


@dataclass(frozen=True)
class RingBaseline:
    """The algbw of NCCL 2.4's rings in GB/s; None without a ring, with the ``reason``.

    ``rings`` counts distinct rings, in lanes if ``fast`` (NVLink or its kin); else NCCL uses PCIe or ``cables``.
    """

    gb_per_s: float | None
    rings: int = 0
    fast: bool = False
    reason: str = ""
    draw: Callable[[], Forest] | None = None
    cables: bool = False

    @cached_property
    def forest(self) -> Forest | None:
        """The rings' plan, built on first use because 8 rings on 1,024 GPUs have 8 million hops."""
        return None if self.draw is None else self.draw()


def ring_baseline(request: Request) -> RingBaseline:
    """The rate of rings for ``request``, which never relay through other GPUs. Cost: one search for cycles."""
    request = replace(request, relays=False)
    try:
        ring.require_served(request)
        network, rings = ring.rings_for(request)
    except (UnsupportedError, TopologyError) as error:
        if request.collective.name not in ring.SERVED:
            return RingBaseline(None, reason=str(error))
        if ring.over_cables(request.topology, request.ranks):
            return RingBaseline(None, reason=str(error).removeprefix("ring: ").removesuffix("; use --algo optimal"))
        if cables_of(request.topology):
            return RingBaseline(None, reason="NCCL 2.4's rule finds no ring over NVLink and these cables")
        # The messages of ring advise users of --algo ring, so a baseline needs its own.
        if len({request.topology.vertex[rank].server for rank in request.ranks}) > 1:
            return RingBaseline(None, reason="the network does not connect the servers' chains of GPUs into a ring")
        where = "" if request.links in PCIE_CHOICES else "no NVLink ring through all ranks, and "
        return RingBaseline(None, reason=f"{where}no ring over PCIe")

    def draw() -> Forest:
        return ring.on_rings(request, "ring", network, rings)

    fast = any(link.kind in FAST_KINDS for link in network.links)
    rate = ring.rate(request, rings) if request.collective.root is None else draw().rate
    lanes = ring.counted(request.topology, network, rings) if fast else 1
    cables = ring.over_cables(network, request.ranks)
    return RingBaseline(float(rate) * network.unit_gb_per_s, lanes, fast, draw=draw, cables=cables)
