"""NCCL as a baseline: version 2.4, whose rings and trees are timed as plans, and 2.30 as it sees itself.

``nccl-2.4`` is the paper's: its rings, with the fall-back to PCIe, timed by the kernel as a plan on the links they use;
between servers the faster of rings and double binary trees. (Its own threshold takes trees on two servers whatever the
size, a pair per channel; the plan here is one pair.) ``nccl-2.4-as-written`` adds what Blink (MLSys 2020, §3.5) says
of a DGX-2, double binary trees below 16 KB; NCCL 2.4.2 itself never takes them inside a server (v2.4.2, src/init.cu).
``nccl-2.30`` is today's NCCL: its channel search and its cost model with NVLS, no plan and no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.algorithms.shapes import by_server
from blinkccl.baselines.candidate import Conditions, Estimate, Formula, Prepared, TimedPlan, planned
from blinkccl.baselines.nccl_model import SERVED
from blinkccl.baselines.nccl_server import NcclServer
from blinkccl.baselines.nccl_system import check_nvidia
from blinkccl.errors import UnsupportedError
from blinkccl.forest.model import Forest
from blinkccl.simulate.calibration import machine_name
from blinkccl.topology.select import PCIE_CHOICES

#: NCCL 2.4 moves data in slices: a buffer of 4 MiB has 8.
NCCL_SLICE_BYTES = 512 * 1024
#: Below this NCCL 2.4 takes double binary trees on a DGX-2, as Blink has it.
AS_WRITTEN_BYTES = 16 * 1024
#: NCCL 2.4's protocols by machine, with the calibration of each; elsewhere it is timed on the job's own.
NCCL_24_PROTOCOLS = {
    "dgx-1v": {"Simple": "nccl-2.4-v100", "LL": "nccl-2.4-v100-ll"},
    "dgx-1p": {"Simple": "nccl-2.4-p100", "LL": "nccl-2.4-p100-ll"},
    "dgx-2": {"Simple": "nccl-2.4-v100", "LL": "nccl-2.4-v100-ll"},
}


@dataclass(frozen=True)
class Alternatives:
    """Plans of one library by algorithm, each in several protocols.

    For each size it takes the fastest protocol of the algorithm that ``choose`` names, or the fastest of all.
    """

    name: str
    plans: Mapping[str, Sequence[TimedPlan]]
    choose: Callable[[int], str] | None = None

    @property
    def forest(self) -> Forest:
        return self.plans["ring"][0].forest

    def at(self, size_bytes: int) -> Estimate:
        """The estimate of the plan for this size; its ``detail`` says which it is."""
        names = list(self.plans) if self.choose is None else [self.choose(size_bytes)]
        estimates = [plan.at(size_bytes) for name in names for plan in self.plans[name]]
        return min(estimates, key=lambda estimate: estimate.seconds)


def prepare_nccl_24(request: Request, conditions: Conditions) -> Prepared:
    """NCCL 2.4: rings inside a server, rings or double binary trees between servers."""
    alone = len(by_server(request.topology, request.ranks)) == 1 or request.collective.name != "allreduce"
    algorithms = ("ring",) if alone else ("ring", "double_binary_tree")
    return Alternatives("nccl-2.4", {how: _nccl_24(how, request, conditions, "nccl-2.4") for how in algorithms})


def prepare_nccl_24_as_written(request: Request, conditions: Conditions) -> Prepared:
    """NCCL 2.4 as Blink describes it on a DGX-2: double binary trees below 16 KB, rings above."""
    name = "nccl-2.4-as-written"
    if request.collective.name != "allreduce":
        raise UnsupportedError(f"{name} differs from nccl-2.4 for allreduce only")
    plans = {how: _nccl_24(how, request, conditions, name) for how in ("ring", "double_binary_tree")}
    return Alternatives(name, plans, lambda size: "double_binary_tree" if size < AS_WRITTEN_BYTES else "ring")


def _nccl_24(algorithm: str, request: Request, conditions: Conditions, name: str) -> tuple[TimedPlan, ...]:
    """One algorithm in each protocol, with NCCL's calibrations and slices in place of the job's."""
    check_nvidia(request.topology, request.ranks)
    forest = ALGORITHMS[algorithm].plan(request)
    what = ("rings" if algorithm == "ring" else "double binary trees") + f" over {_kinds(forest)}"
    settings = replace(conditions.settings, even_chunks=False)
    own = replace(conditions, chunk_bytes=NCCL_SLICE_BYTES, channels=1, settings=settings)
    protocols = NCCL_24_PROTOCOLS.get(machine_name(request.topology))
    if protocols is None:
        return (replace(planned(name, forest, own), detail=f"{what}, {own.calibration.name}"),)
    return tuple(
        replace(planned(name, forest, replace(own, calibration=own.named(calibration))), detail=f"{what}, {protocol}")
        for protocol, calibration in protocols.items()
    )


def _kinds(forest: Forest) -> str:
    kinds: Sequence[str] = sorted({link.kind for link in forest.topology.links})
    return ", ".join(kinds)


def prepare_nccl_230(request: Request, conditions: Conditions) -> Prepared:
    """NCCL 2.30's channel search, and its cost model for each size."""
    if request.collective.name not in SERVED:
        raise UnsupportedError(f"nccl-2.30 has no ring for {request.collective.name}, only for {', '.join(SERVED)}")
    if request.links in PCIE_CHOICES:
        raise UnsupportedError(f"nccl-2.30 chooses its links itself: leave --links {request.links} out")
    if conditions.settings.start_s:
        raise UnsupportedError("nccl-2.30 is a model, which knows no start skew: leave --skew out")
    nccl = NcclServer.of(request.topology, request.ranks)
    channels = nccl.channels
    found = f"{channels.count} × {channels.gb_per_s_per_channel:g} GB/s over {channels.kind} (NCCL's own model)"

    def seconds(size_bytes: int) -> tuple[float, str]:
        chosen = nccl.at(request.collective.name, size_bytes)
        if chosen.algorithm == "NVLS":
            return chosen.seconds, "NVLS: the switch combines and multicasts"
        return chosen.seconds, f"{chosen.algorithm}, {chosen.protocol}; {found}"

    return Formula("nccl-2.30", request, seconds)
