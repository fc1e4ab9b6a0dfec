"""Every algorithm as our own code runs it, and the baselines beside them.

Kernels run what the GPUs of one server do. Copy engines are for messages, for machines without our kernels, and for
who asks for them: they are what the papers measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from blinkccl.cost.baselines import registry
from blinkccl.cost.baselines.candidate import Baseline, Conditions, Prepared, TimedPlan, planned
from blinkccl.cost.choice.programs import Gpu, compiled, gpu_of, kernels_fault, on_stores
from blinkccl.cost.choice.timed import KernelPlan
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.trees.algorithms.hybrid import ALGORITHM as HYBRID
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.forest.model import Forest

KERNELS, COPY_ENGINES = "kernels", "copies"
CODES = (KERNELS, COPY_ENGINES)


@dataclass(frozen=True, slots=True)
class Code:
    """What runs our plans: kernels on ``gpu``, or where that is None copy engines, and why they do."""

    gpu: Gpu | None
    why: str = ""

    @property
    def name(self) -> str:
        return COPY_ENGINES if self.gpu is None else KERNELS

    def about(self, conditions: Conditions) -> str:
        """In words, with where its costs are from."""
        if self.gpu is not None:
            return (
                f"our kernels on {self.gpu.arch} GPUs, {self.gpu.blocks} blocks each, by the fastest protocol, at the "
                "costs that NCCL 2.30 counts its own for"
            )
        costs = conditions.calibration
        return f"copy engines{f' ({self.why})' if self.why else ''}, calibration {costs.name}: {costs.about}"


def code_of(request: Request, wanted: str | None = None, why: str = "") -> Code:
    """What runs the job: ``wanted``, or if that is None kernels where they can; ``why`` somebody wants it."""
    if wanted is not None and wanted not in CODES:
        raise UsageError(f"unknown code {wanted!r}; expected one of {', '.join(CODES)}")
    if wanted == COPY_ENGINES:
        return Code(None, why)
    fault = kernels_fault(request)
    if fault is None:
        return Code(gpu_of(request.topology))
    if wanted is not None:
        raise UnsupportedError(f"{fault}; leave --code {KERNELS} out")
    return Code(None, fault)


def candidates(code: Code) -> dict[str, Baseline]:
    """All there are, algorithms first."""
    found = registry.candidates()
    if code.gpu is None:
        return found
    gpu = code.gpu
    ours = {name: Baseline(row.about, row.source, _by_kernels(name, gpu)) for name, row in ALGORITHMS.items()}
    return found | ours


def _by_kernels(name: str, gpu: Gpu) -> Callable[[Request, Conditions], Prepared]:
    def prepare(request: Request, conditions: Conditions) -> Prepared:
        if name == HYBRID:
            raise UnsupportedError(
                "when hybrid's part over PCIe begins nobody has measured with kernels, so libblink.so tries it "
                f"(BLINK_ALGO=hybrid); --code {COPY_ENGINES} has the paper's"
            )
        return of_forest(ALGORITHMS[name].plan(on_stores(request)), Code(gpu), conditions)

    return prepare


def shared_fairly(plan: Prepared) -> Prepared | None:
    """The same plan, its links shared fairly; None for what is no plan of one run."""
    if isinstance(plan, KernelPlan):
        return replace(plan, settings=replace(plan.settings, sharing="fair"))
    if type(plan) is TimedPlan:
        conditions = plan.conditions
        return replace(plan, conditions=replace(conditions, settings=replace(conditions.settings, sharing="fair")))
    return None


def of_forest(forest: Forest, code: Code, conditions: Conditions) -> Prepared:
    """A forest as a candidate; no kernels combine in switches."""
    if code.gpu is None or forest.combining:
        return planned(forest.algorithm, forest, conditions)
    return KernelPlan(
        compiled(forest.algorithm, forest, code.gpu.blocks, code.gpu.counted), code.gpu, conditions.settings
    )
