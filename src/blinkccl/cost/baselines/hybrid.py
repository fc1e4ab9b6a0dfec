"""``hybrid`` timed: Eq 8's split for each size, at the rates that both sets of trees reach with their parts.

PCIe begins T_dpa later (Blink, MLSys 2020, §3.4). Each set is timed by itself, as if the other were not there, and the
job ends with the later one: they share no link, but for the bus between sockets of an AC922.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blinkccl.cost.baselines.candidate import Conditions, Estimate, TimedPlan, modelled, planned
from blinkccl.trees.algorithms.hybrid import LinkClassSplit, class_plan, hybrid_split
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

NAME = "hybrid"
#: How often the split is found anew with the rates that the parts before reached.
_ROUNDS = 4


@dataclass(frozen=True)
class HybridJob:
    """Both sets of trees; ``t_dpa_s`` is what switching peer access takes before PCIe can begin."""

    request: Request
    nvlink: TimedPlan
    pcie: TimedPlan
    t_dpa_s: float
    name: str = NAME

    @property
    def forest(self) -> Forest:
        """The NVLink trees: all there is for small sizes."""
        return self.nvlink.forest

    def split(self, size_bytes: int, over_pcie: int) -> LinkClassSplit | None:
        """Eq 8 at the rates that each set reaches with its part of a split; None where nothing moves."""
        pcie, nvlink = self.pcie.at(over_pcie), self.nvlink.at(size_bytes - over_pcie)
        if not pcie.algbw_gb_per_s or not nvlink.algbw_gb_per_s:
            return None
        return hybrid_split(size_bytes, pcie.algbw_gb_per_s, nvlink.algbw_gb_per_s, self.t_dpa_s)

    def at(self, size_bytes: int) -> Estimate:
        """The later end of both sets at the best of a few splits: rates depend on parts, and parts on rates."""
        alone = self.nvlink.at(size_bytes)
        best = replace(alone, name=self.name, detail=f"NVLink alone: PCIe does not pay with {self._wait()}")
        over_pcie = size_bytes // 2
        for _ in range(_ROUNDS):
            split = self.split(size_bytes, over_pcie)
            over_pcie = 0 if split is None else int(split.pcie_bytes)
            if over_pcie == 0:
                break
            slow_s = self.t_dpa_s + self.pcie.at(over_pcie).seconds
            seconds = max(self.nvlink.at(size_bytes - over_pcie).seconds, slow_s)
            if seconds < best.seconds:
                detail = f"{over_pcie / size_bytes:.1%} over PCIe after {self._wait()}"
                best = modelled(self.name, self.request, size_bytes, seconds, detail)
        return best

    def _wait(self) -> str:
        return f"a T_dpa of {self.t_dpa_s * 1e3:.2f} ms"


def prepare(request: Request, conditions: Conditions) -> HybridJob:
    """The trees of both classes."""
    t_dpa_s = conditions.calibration.engine.peer_access_us.value * 1e-6 * len(request.ranks)
    nvlink = planned(NAME, class_plan(request, "fast"), conditions)
    pcie = planned(NAME, class_plan(request, "pcie"), conditions)
    return HybridJob(request, nvlink, pcie, t_dpa_s)
