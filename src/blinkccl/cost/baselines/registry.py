"""The candidates that are timed: every algorithm of the registry on one calibration, and the baselines, each named.

A candidate is prepared once for a job (planned, verified) and then asked for as many sizes as wanted. To add one is to
add a row: algorithms come from their own registry, baselines from :data:`BASELINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from blinkccl.cost.baselines.by_size import MultiPath, prepare_hybrid, prepare_multi_path
from blinkccl.cost.baselines.candidate import Baseline, Conditions, Estimate, Prepared, planned
from blinkccl.cost.baselines.nccl import prepare_nccl_24, prepare_nccl_24_as_written, prepare_nccl_230
from blinkccl.cost.baselines.staged import prepare_host_staged, prepare_plain_ring
from blinkccl.errors import TopologyError, UnsupportedError, UsageError, did_you_mean
from blinkccl.topology.assembly import exact_unit
from blinkccl.trees.algorithms.bounds import certificate_for
from blinkccl.trees.algorithms.path_table import PairSplits
from blinkccl.trees.algorithms.registry import ALGORITHMS, NOT_RUN, Algorithm, algorithm
from blinkccl.trees.algorithms.request import Request

#: The registry.
BASELINES: dict[str, Baseline] = {
    "nccl-2.4": Baseline("NCCL 2.4: rings, PCIe fall-back", "NCCL 2.4; Blink, MLSys 2020, §2.1", prepare_nccl_24),
    "nccl-2.4-as-written": Baseline(
        "NCCL 2.4 as Blink describes it: double binary trees below 16 KB",
        "Blink, MLSys 2020, §3.5",
        prepare_nccl_24_as_written,
    ),
    "nccl-2.30": Baseline(
        "NCCL 2.30: relaying rings, LL, LL128 and Simple, ring or tree",
        "NCCL 2.30, src/graph/search.cc and tuning.cc",
        prepare_nccl_230,
    ),
    "plain-ring": Baseline(
        "a ring over send and recv, step by step, without pipelining", "NCCL ring vs tree", prepare_plain_ring
    ),
    "mpi-host-staged": Baseline(
        "AllReduce through host memory, reduced by the CPU",
        "multi-path GPU-to-GPU copies with UCX",
        prepare_host_staged,
    ),
}


def candidates() -> dict[str, Baseline]:
    """All there are, algorithms first."""
    found = _rows(ALGORITHMS)
    # How much goes which way depends on the size, which these algorithms' forests do not know.
    by_size: dict[str, Callable[[Request, Conditions], Prepared]] = {
        "hybrid": prepare_hybrid,
        "multi_path": prepare_multi_path,
    }
    split = {name: replace(found[name], prepare=prepare) for name, prepare in by_size.items()}
    return found | split | BASELINES


def candidates_not_run() -> dict[str, Baseline]:
    """What is timed only for who names it, since no engine runs it."""
    return _rows(NOT_RUN)


def _rows(algorithms: Mapping[str, Algorithm]) -> dict[str, Baseline]:
    return {name: Baseline(row.about, row.source, _of_algorithm(name)) for name, row in algorithms.items()}


def _of_algorithm(name: str) -> Callable[[Request, Conditions], Prepared]:
    def prepare(request: Request, conditions: Conditions) -> Prepared:
        return planned(name, algorithm(name).plan(request), conditions)

    return prepare


@dataclass(frozen=True)
class JobCandidates:
    """The candidates of one job that could be prepared, and why the others could not.

    ``named``: somebody asked for just these. ``of_plan``: it is a plan from a file, whose links are all that is known.
    """

    request: Request
    prepared: tuple[Prepared, ...]
    absent: dict[str, str]
    named: bool = False
    of_plan: bool = False

    @cached_property
    def path_row(self) -> PairSplits | None:
        """How ``multi_path`` splits the message, where it is one of these."""
        return next((one.row for one in self.prepared if isinstance(one, MultiPath)), None)

    @cached_property
    def bound_gb_per_s(self) -> float:
        """The proved bound on algbw at nominal rates of the links asked for; plans that add other links may pass it."""
        stated = "optimal" if not self.of_plan else self.prepared[0].name
        optimal = next((one.forest for one in self.prepared if one.name == stated), None)
        if optimal is not None:
            return float(optimal.certificate.bound * exact_unit(optimal.topology))
        request = self.request
        proof = certificate_for(request.collective, request.ranks, request.network)
        return float(proof.bound * exact_unit(request.network))


def enter(
    request: Request,
    conditions: Conditions,
    names: Sequence[str] = (),
    tick: Callable[[int, int], None] = lambda done, total: None,
    known: Mapping[str, Baseline] | None = None,
) -> JobCandidates:
    """Prepares all of ``known`` (None: of :func:`candidates`) that serve the job, or ``names``, which must.

    ``tick`` gets (done, total) after each.
    """
    known = known or candidates()
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise UsageError(f"unknown algorithm {name!r}{near}; expected one of {', '.join(known)}")
    wanted = list(dict.fromkeys(names)) or list(known)
    ready: list[Prepared] = []
    absent: dict[str, str] = {}
    for done, name in enumerate(wanted):
        try:
            ready.append(known[name].prepare(request, conditions))
        except UnsupportedError as error:
            if names:
                raise
            absent[name] = str(error)
        tick(done + 1, len(wanted))
    if not ready:
        raise UsageError(f"nothing can serve this job: {next(iter(absent.values()))}")
    return JobCandidates(request, tuple(ready), absent, named=bool(names))


def time_all(
    field: JobCandidates, sizes: Sequence[int], tick: Callable[[int, int], None] = lambda done, total: None
) -> tuple[JobCandidates, list[list[Estimate]]]:
    """Every candidate's estimates, a row per size, and the field of those that have them.

    One whose links have no class in the calibration is left out with the reason, if others can and nobody named it.
    """
    columns: list[list[Estimate]] = []
    able: list[Prepared] = []
    absent, first = dict(field.absent), None
    for done, one in enumerate(field.prepared):
        try:
            columns.append([one.at(size) for size in sizes])
            able.append(one)
        except (TopologyError, UnsupportedError) as error:
            if field.named:
                raise
            first = first or error
            absent[one.name] = str(error)
        tick(done + 1, len(field.prepared))
    if first is not None and not able:
        raise first
    rows = [list(row) for row in zip(*columns, strict=True)]
    return replace(field, prepared=tuple(able), absent=absent), rows


@dataclass(frozen=True, slots=True)
class Win:
    """``name`` is the fastest from ``first_bytes`` to ``last_bytes`` of the sizes that were timed."""

    name: str
    first_bytes: int
    last_bytes: int


def moves_nothing(row: Sequence[Estimate]) -> bool:
    """Whether all plans of a size have blocks without elements: there is nothing to win."""
    plans = [estimate.simulation for estimate in row if estimate.simulation is not None]
    return bool(plans) and all(plan.translation.bound.count == 0 for plan in plans)


def wins(rows: Sequence[Sequence[Estimate]]) -> list[Win]:
    """Who wins from which size: one entry per run of sizes; ``rows`` by size, ascending. Ties go to the first.

    Sizes at which plans move nothing have no winner.
    """
    found: list[Win] = []
    for row in rows:
        if moves_nothing(row):
            continue
        best = min(row, key=lambda estimate: estimate.seconds)
        if found and found[-1].name == best.name:
            found[-1] = Win(best.name, found[-1].first_bytes, best.size_bytes)
        else:
            found.append(Win(best.name, best.size_bytes, best.size_bytes))
    return found
