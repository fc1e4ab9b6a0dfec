"""Every algorithm in the code that runs it, and the baselines beside them.

Kernels run collectives of one server's GPUs. Copy engines, which the papers measured, run all else, or all on request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from blinkccl.cost.baselines import registry
from blinkccl.cost.baselines.candidate import Baseline, Conditions, Prepared, TimedPlan, planned
from blinkccl.cost.choice.programs import Gpu, compiled, gpu_of, kernels_fault, on_stores
from blinkccl.cost.choice.timed import KernelPlan
from blinkccl.cost.simulate.calibration import FALLBACK
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.trees.algorithms.hybrid import ALGORITHM as HYBRID
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

KERNELS, COPY_ENGINES = "kernels", "copies"
CODES = (KERNELS, COPY_ENGINES)


@dataclass(frozen=True, slots=True)
class Code:
    """The code that runs plans: kernels on ``gpu``, or copy engines without a ``gpu``, for the reason ``why``."""

    gpu: Gpu | None
    why: str = ""

    @property
    def name(self) -> str:
        return COPY_ENGINES if self.gpu is None else KERNELS

    def about(self, conditions: Conditions) -> str:
        """The code in words, with the source of its costs."""
        if self.gpu is not None:
            return (
                f"Blink's kernels on {self.gpu.arch} GPUs, {self.gpu.blocks} blocks each, by the fastest protocol, at "
                "NCCL 2.30's costs for its own kernels"
            )
        costs = conditions.calibration
        return f"copy engines{f' ({self.why})' if self.why else ''}, calibration {costs.name}: {costs.about}"


def code_of(request: Request, name: str | None = None, why: str = "") -> Code:
    """The code for a job: ``name`` for the reason ``why``, or by default kernels if they can run it."""
    if name is not None and name not in CODES:
        raise UsageError(f"unknown code {name!r}; expected one of {', '.join(CODES)}")
    if name == COPY_ENGINES:
        return Code(None, why)
    fault = kernels_fault(request)
    if fault is None:
        return Code(gpu_of(request.topology))
    if name is not None:
        raise UnsupportedError(f"{fault}; leave --code {KERNELS} out")
    return Code(None, fault)


def candidates(code: Code) -> dict[str, Baseline]:
    """All candidates by name, algorithms first."""
    rows = registry.candidates()
    if code.gpu is None:
        return rows | {"nccl-2.30": _at_like_rates(rows["nccl-2.30"], _COUNTED)}
    gpu = code.gpu
    for name in ("nccl-2.4", "nccl-2.4-as-written", "plain-ring"):
        rows[name] = _at_like_rates(rows[name], _NOMINAL)
    by_kernels = {name: Baseline(row.about, row.source, _by_kernels(name, gpu)) for name, row in ALGORITHMS.items()}
    return rows | by_kernels


#: Reasons of rows whose rates have no common basis with the others.
_NOMINAL = "its NVLinks are nominal here, as no calibration has them, and those of kernels are not; try --code copies"
_COUNTED = "NCCL's model has the rates that it counts, and copies have nominal NVLinks here; try --code kernels"


def _at_like_rates(row: Baseline, reason: str) -> Baseline:
    """``row``, absent where its rates and those of the other rows have no common basis.

    Without a calibration one of the two has nominal NVLinks, and the other NVLinks as NCCL counts them.
    """

    def prepare(request: Request, conditions: Conditions) -> Prepared:
        if conditions.calibration.name == FALLBACK and any(x.kind == "nvlink" for x in request.network.links):
            raise UnsupportedError(reason)
        return row.prepare(request, conditions)

    return replace(row, prepare=prepare)


def _by_kernels(name: str, gpu: Gpu) -> Callable[[Request, Conditions], Prepared]:
    def prepare(request: Request, conditions: Conditions) -> Prepared:
        if name == HYBRID:
            raise UnsupportedError(
                f"hybrid cannot be predicted with kernels; use --code {COPY_ENGINES}, or measure a job with "
                "BLINK_ALGO=hybrid and libblink.so"
            )
        return of_forest(ALGORITHMS[name].plan(on_stores(request)), Code(gpu), conditions)

    return prepare


def shared_fairly(plan: Prepared) -> Prepared | None:
    """The same plan with fair sharing of links; None for candidates other than one plan in one run."""
    if isinstance(plan, KernelPlan):
        return replace(plan, settings=replace(plan.settings, sharing="fair"))
    if type(plan) is TimedPlan:
        conditions = plan.conditions
        return replace(plan, conditions=replace(conditions, settings=replace(conditions.settings, sharing="fair")))
    return None


def of_forest(forest: Forest, code: Code, conditions: Conditions) -> Prepared:
    """A forest as a candidate; forests with in-network reduction have no kernels."""
    if code.gpu is None or forest.combining:
        return planned(forest.algorithm, forest, conditions)
    return KernelPlan(
        compiled(forest.algorithm, forest, code.gpu.blocks, code.gpu.counted), code.gpu, conditions.settings
    )
