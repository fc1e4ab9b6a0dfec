"""A program in the protocol that is fastest for a size."""

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

#: By so much a protocol must lose before it is given up for larger sizes.
_CLEARLY = 1.1
#: Tasks of a simulation that a person waits for: a tenth of a second. Above, several chunks are timed as one.
_BUDGET = 200_000


class FastestProtocol:
    """The protocols of a program, by rising rate and rising latency; what cannot win is not timed.

    What a protocol takes for a size it takes at least for any larger one, and one that has lost clearly to a faster
    rate loses for all larger sizes. So most is saved by asking for rising sizes.
    """

    def __init__(self, protocols: Sequence[str], time: Callable[[str, int], PredictedTime]) -> None:
        self._protocols, self._time = tuple(protocols), time
        self._floor: dict[str, tuple[int, float]] = {}
        self._lost: dict[str, int] = {}

    def at(self, size_bytes: int) -> tuple[str, PredictedTime]:
        """The fastest for S bytes."""
        # Of one alone nobody asks whether it is for such sizes: somebody wants it.
        most = MOST_BYTES if len(self._protocols) > 1 else {}
        found: dict[str, PredictedTime] = {}
        for protocol in self._protocols:
            if size_bytes > most.get(protocol, inf) or size_bytes >= self._lost.get(protocol, inf):
                continue
            best_s = min((timed.seconds for timed in found.values()), default=inf)
            floor_bytes, floor_s = self._floor.get(protocol, (inf, 0.0))
            if size_bytes >= floor_bytes and floor_s >= best_s:
                continue
            found[protocol] = self._time(protocol, size_bytes)
            if size_bytes < floor_bytes:
                self._floor[protocol] = size_bytes, found[protocol].seconds
        best = min(found, key=lambda protocol: found[protocol].seconds)
        for protocol in self._protocols[: self._protocols.index(best)]:
            if protocol in found and found[protocol].seconds > found[best].seconds * _CLEARLY:
                self._lost[protocol] = min(size_bytes, self._lost.get(protocol, size_bytes))
        return best, found[best]


@dataclass(frozen=True)
class KernelPlan:
    """A plan as kernels run it: on all blocks of a rank, whatever else its communicator runs by turns.

    ``forced``: the only protocol, be it copy engines' or one that no prediction would take.
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
        """Those that may run it."""
        return (self.forced,) if self.forced else protocols_of(self.candidate, self.gpu.capability)

    def timing(self, protocol: str, size_bytes: int) -> PredictedTime:
        """One of its protocols, with the largest messages."""
        # Copy engines do not cut a message into parts.
        parts = 1 if protocol == COPIES else self.candidate.parts(self.gpu.blocks)
        settings = replace(self.settings, budget=self.settings.budget or _BUDGET)
        capacity = largest(parts).capacity_bytes(protocol)
        return timing(self.candidate, protocol, size_bytes, self.gpu.capability, parts, capacity, settings)

    @cached_property
    def protocols(self) -> FastestProtocol:
        """Its protocols, asked for rising sizes."""
        return FastestProtocol(self.own_protocols, self.timing)

    def at(self, size_bytes: int) -> Estimate:
        """What its fastest protocol takes."""
        protocol, found = self.protocols.at(size_bytes)
        run, program = found.simulation, self.candidate.program
        assert run is not None
        trees, depth = len(self.forest.shares), max((role.offset for role in program.roles), default=0)
        detail = f"{NCCL_NAMES[protocol]}, {trees} share{'' if trees == 1 else 's'}, depth {depth}"
        detail += "" if found.limit == LINKS else f"; {found.limit} decides"
        algbw = algbw_gb_per_s(size_bytes, found.seconds) if run.seconds else 0.0
        factor = float(bus_factor(program.collective.name, program.collective.world_size))
        return Estimate(
            self.name, size_bytes, found.seconds, algbw, algbw * factor, detail, run.chunk_bytes, run, protocol
        )
