"""A program with its fastest protocol for each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from blinkccl.codegen.text import COPIES
from blinkccl.cost.baselines.candidate import Estimate
from blinkccl.cost.choice.costs import LINKS, MOST_BYTES, NCCL_NAMES, PredictedTime, protocols_of, timing
from blinkccl.cost.choice.programs import CandidateProgram, Gpu, largest
from blinkccl.cost.simulate.translate import Settings
from blinkccl.trees.forest.model import Forest
from blinkccl.units import algbw_gb_per_s, bus_factor

#: Ratio of times above which a slower protocol is not tried for larger sizes.
_CLEARLY = 1.1
#: Tasks of an interactive simulation: a tenth of a second. Above, several chunks are timed as one.
_BUDGET = 200_000


class FastestProtocol:
    """The protocols of a program, by ascending rate and latency; a protocol that cannot win is not timed.

    A protocol's time for a size is a lower bound for larger sizes. A protocol that lost clearly to one with a higher
    rate loses for all larger sizes. Ascending sizes therefore save the most simulations.
    """

    def __init__(self, protocols: Sequence[str], time: Callable[[str, int], PredictedTime]) -> None:
        self._protocols, self._time = tuple(protocols), time
        self._floor: dict[str, tuple[int, float]] = {}
        self._lost: dict[str, int] = {}

    def at(self, size_bytes: int) -> tuple[str, PredictedTime]:
        """The fastest protocol for S bytes, and its time."""
        # A protocol that the user forced has no size limit.
        most = MOST_BYTES if len(self._protocols) > 1 else {}
        times: dict[str, PredictedTime] = {}
        for protocol in self._protocols:
            if size_bytes > most.get(protocol, inf) or size_bytes >= self._lost.get(protocol, inf):
                continue
            best_s = min((timed.seconds for timed in times.values()), default=inf)
            floor_bytes, floor_s = self._floor.get(protocol, (inf, 0.0))
            if size_bytes >= floor_bytes and floor_s >= best_s:
                continue
            times[protocol] = self._time(protocol, size_bytes)
            if size_bytes < floor_bytes:
                self._floor[protocol] = size_bytes, times[protocol].seconds
        best = min(times, key=lambda protocol: times[protocol].seconds)
        for protocol in self._protocols[: self._protocols.index(best)]:
            if protocol in times and times[protocol].seconds > times[best].seconds * _CLEARLY:
                self._lost[protocol] = min(size_bytes, self._lost.get(protocol, size_bytes))
        return best, times[best]


@dataclass(frozen=True)
class KernelPlan:
    """A plan in kernels on all blocks of a rank, alone although its communicator may alternate between plans.

    ``forced``: the only protocol, which may be copy engines or one that no prediction selects.
    """

    candidate: CandidateProgram
    gpu: Gpu
    settings: Settings
    forced: str = ""

    @property
    def name(self) -> str:
        return self.candidate.algorithm

    @property
    def forest(self) -> Forest:
        return self.candidate.forest

    @property
    def own_protocols(self) -> tuple[str, ...]:
        """The protocols that may run the plan."""
        return (self.forced,) if self.forced else protocols_of(self.candidate, self.gpu.capability)

    def timing(self, protocol: str, size_bytes: int) -> PredictedTime:
        """The time with one of its protocols and the largest messages."""
        # Copy engines do not cut a message into parts.
        parts = 1 if protocol == COPIES else self.candidate.parts(self.gpu.blocks)
        settings = replace(self.settings, budget=self.settings.budget or _BUDGET)
        capacity = largest(parts).capacity_bytes(protocol)
        return timing(self.candidate, protocol, size_bytes, self.gpu.capability, parts, capacity, settings)

    @cached_property
    def protocols(self) -> FastestProtocol:
        """Its protocols, best queried with ascending sizes."""
        return FastestProtocol(self.own_protocols, self.timing)

    def at(self, size_bytes: int) -> Estimate:
        """The estimate with its fastest protocol."""
        protocol, timed = self.protocols.at(size_bytes)
        run, program = timed.simulation, self.candidate.program
        assert run is not None
        trees, depth = len(self.forest.shares), max((role.offset for role in program.roles), default=0)
        detail = f"{NCCL_NAMES[protocol]}, {trees} share{'' if trees == 1 else 's'}, depth {depth}"
        detail += "" if timed.limit == LINKS else f"; limited by {timed.limit}"
        algbw = algbw_gb_per_s(size_bytes, timed.seconds) if run.seconds else 0.0
        factor = float(bus_factor(program.collective.name, program.collective.world_size))
        return Estimate(
            self.name, size_bytes, timed.seconds, algbw, algbw * factor, detail, run.chunk_bytes, run, protocol
        )
