"""Candidates for timing: every algorithm of the registry on one calibration, and the baselines, by name.

A candidate is prepared once for a job (planned, verified) and then timed for any sizes. A new row adds a candidate.
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
from blinkccl.trees.algorithms.bounds import bound_gb_per_s
from blinkccl.trees.algorithms.path_table import PairSplits
from blinkccl.trees.algorithms.registry import ALGORITHMS, NOT_RUN, Algorithm, algorithm
from blinkccl.trees.algorithms.request import Request

#: Rows of the baselines by name.
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
    """All candidates by name, algorithms first."""
    rows = _rows(ALGORITHMS)
    # These algorithms split the data by its size, which a forest does not know.
    by_size: dict[str, Callable[[Request, Conditions], Prepared]] = {
        "hybrid": prepare_hybrid,
        "multi_path": prepare_multi_path,
    }
    split = {name: replace(rows[name], prepare=prepare) for name, prepare in by_size.items()}
    return rows | split | BASELINES


def candidates_not_run() -> dict[str, Baseline]:
    """Candidates that no engine runs, which are timed only by name."""
    return _rows(NOT_RUN)


def _rows(algorithms: Mapping[str, Algorithm]) -> dict[str, Baseline]:
    return {name: Baseline(row.about, row.source, _of_algorithm(name)) for name, row in algorithms.items()}


def _of_algorithm(name: str) -> Callable[[Request, Conditions], Prepared]:
    def prepare(request: Request, conditions: Conditions) -> Prepared:
        return planned(name, algorithm(name).plan(request), conditions)

    return prepare


@dataclass(frozen=True)
class JobCandidates:
    """The prepared candidates of one job, and in ``absent`` the reasons of the others.

    ``named``: the caller named these candidates. ``of_plan``: it is a plan from a file, and only its links are known.
    """

    request: Request
    prepared: tuple[Prepared, ...]
    absent: dict[str, str]
    named: bool = False
    of_plan: bool = False

    @cached_property
    def path_row(self) -> PairSplits | None:
        """The splits of ``multi_path`` by size; None if it is no candidate."""
        return next((one.row for one in self.prepared if isinstance(one, MultiPath)), None)

    @cached_property
    def bound_gb_per_s(self) -> float:
        """The proved bound on algbw at nominal rates of the request's links; a plan with other links may exceed it.

        Kernels may use fewer links, on which the certificate of ``optimal`` is smaller than what ``blink plan`` states.
        """
        request = self.request
        stated = "optimal" if not self.of_plan else self.prepared[0].name
        optimal = next((one.forest for one in self.prepared if one.name == stated), None)
        if optimal is not None and (self.of_plan or optimal.topology == request.network):
            return float(optimal.certificate.bound * exact_unit(optimal.topology))
        return bound_gb_per_s(request)


def enter(
    request: Request,
    conditions: Conditions,
    names: Sequence[str] = (),
    tick: Callable[[int, int], None] = lambda done, total: None,
    known: Mapping[str, Baseline] | None = None,
) -> JobCandidates:
    """Prepare ``names``, or else all of ``known`` that serve the job; ``known`` defaults to :func:`candidates`.

    A named candidate that does not serve the job raises UnsupportedError. ``tick`` gets (done, total) after each.
    """
    known = known or candidates()
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise UsageError(f"unknown algorithm {name!r}{near}; expected one of {', '.join(known)}")
    selected = list(dict.fromkeys(names)) or list(known)
    ready: list[Prepared] = []
    absent: dict[str, str] = {}
    for done, name in enumerate(selected):
        try:
            ready.append(known[name].prepare(request, conditions))
        except UnsupportedError as error:
            if names:
                raise
            absent[name] = str(error)
        tick(done + 1, len(selected))
    if not ready:
        raise UsageError(f"no algorithm can serve this job: {next(iter(absent.values()))}")
    return JobCandidates(request, tuple(ready), absent, named=bool(names))


def time_all(
    field: JobCandidates, sizes: Sequence[int], tick: Callable[[int, int], None] = lambda done, total: None
) -> tuple[JobCandidates, list[list[Estimate]]]:
    """Estimates of every candidate, a row per size, and the candidates that have them.

    If the calibration lacks a class for a candidate's links, the candidate moves to ``absent`` with the reason. The
    error is raised if the caller named the candidate or no other remains.
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
    """True if all plans of a size have blocks without elements, so that none is faster than another."""
    plans = [estimate.simulation for estimate in row if estimate.simulation is not None]
    return bool(plans) and all(plan.translation.bound.count == 0 for plan in plans)


def wins(rows: Sequence[Sequence[Estimate]]) -> list[Win]:
    """The fastest candidate by range of sizes; ``rows`` are ascending by size, and of equal times the first wins.

    Sizes at which plans move nothing have no winner.
    """
    ranges: list[Win] = []
    for row in rows:
        if moves_nothing(row):
            continue
        best = min(row, key=lambda estimate: estimate.seconds)
        if ranges and ranges[-1].name == best.name:
            ranges[-1] = Win(best.name, ranges[-1].first_bytes, best.size_bytes)
        else:
            ranges.append(Win(best.name, best.size_bytes, best.size_bytes))
    return ranges
