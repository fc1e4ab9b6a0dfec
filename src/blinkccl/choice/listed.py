"""A plan of another runtime as a candidate: timed at the costs of what runs ours, in the protocol that it is for."""

from __future__ import annotations

from dataclasses import dataclass

from blinkccl.algorithms.registry import Request
from blinkccl.baselines.candidate import Conditions, Estimate
from blinkccl.choice.candidates import Code
from blinkccl.choice.costs import NCCL_NAMES, calibration_of
from blinkccl.errors import UsageError
from blinkccl.foreign.instructions import InstructionList
from blinkccl.simulate.calibration import calibration_for
from blinkccl.simulate.instructions import ListedRun, listed_run
from blinkccl.simulate.kernel import run
from blinkccl.simulate.run import EVENT_BUDGET
from blinkccl.units import algbw_gb_per_s, bus_factor

#: Ways to share links that know of programs alone.
_SHARINGS = ("fifo", "fair")


@dataclass(frozen=True)
class ListedPlan:
    """Instructions on the links of a job; ``protocol`` is ours, "" for copy engines."""

    name: str
    listed: ListedRun
    conditions: Conditions
    protocol: str
    forest: None = None

    def at(self, size_bytes: int) -> Estimate:
        """What they take for S bytes; raises as :meth:`~blinkccl.simulate.instructions.ListedRun.at`."""
        settings, plan, listed = self.conditions.settings, self.listed.plan, self.listed.of_size(size_bytes)
        message = self.conditions.chunk_bytes
        workload = listed.at(size_bytes, message, settings.budget or EVENT_BUDGET)
        seconds = run(workload, settings.kernel_sharing).seconds
        passes = listed.passes(size_bytes, message)
        about = ", ".join(f"{value} {key}" if isinstance(value, int) else value for key, value in plan.about.items())
        detail = f"{about}; {len(plan.blocks)} thread blocks, {passes} pass{'' if passes == 1 else 'es'}"
        algbw = algbw_gb_per_s(size_bytes, seconds) if seconds else 0.0
        factor = float(bus_factor(plan.collective.name, plan.collective.world_size))
        chunk = round(listed.chunk_bytes(size_bytes) / passes)
        return Estimate(self.name, size_bytes, seconds, algbw, algbw * factor, detail, chunk, None, self.protocol)


def of_instructions(
    name: str, plan: InstructionList, request: Request, code: Code, conditions: Conditions
) -> ListedPlan:
    """``plan``, which no fault was found in, as a candidate for the job that it is for.

    TopologyError where two of its GPUs have no way to each other; UsageError for a sharing that is for programs.
    """
    if conditions.settings.sharing not in _SHARINGS:
        raise UsageError(
            f"--sharing {conditions.settings.sharing} is for plans of ours; for this one: {', '.join(_SHARINGS)}"
        )
    costs, protocol, network = conditions.calibration, "", request.network
    if code.gpu is not None:
        protocol = {theirs: ours for ours, theirs in NCCL_NAMES.items()}[str(plan.about["protocol"])]
        fast = all(link.kind == "nvlink" for link in network.links)
        costs = calibration_of(protocol, fast, code.gpu.arch, calibration_for(network))
    return ListedPlan(name, listed_run(plan, request.ranks, network, costs), conditions, protocol)
