"""The latency and bandwidth that fit measured times best, and the calibration with these numbers.

:func:`fit` fits a line, which is fast and shows the numbers that the sizes determine. A simulated ring is no line,
because its chunks pipeline: with the line's numbers a chain of 8 is up to 76 % faster than the line.
:func:`as_simulated` therefore adjusts both numbers until the simulator fits best, and reports its error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt

import numpy as np

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.simulate.calibration import Calibration, EngineCosts, LinkClass, Number
from blinkccl.cost.simulate.chunk_search import near_best
from blinkccl.cost.simulate.translate import frame
from blinkccl.errors import UnsupportedError
from blinkccl.formats.nccl_tests import Measurement
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.topology.limits import label_fault
from blinkccl.topology.model import LINK_KINDS, Topology
from blinkccl.topology.synthetic import LANE_GB_PER_S, synthetic
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.units import bus_factor

#: Minimum sizes of a fit, because fewer points always fit a line.
LEAST_SIZES = 3
#: Relative error above which one line is no model of the measurements.
POOR = 0.25

#: The minimum assumed error of a time, and the maximum standard error of a number as a part of it.
NOISE, MOST_UNSURE = 0.01, 0.25

#: Steps of a ring of n ranks: the links that a byte crosses one after the other.
_RING_STEPS: dict[str, Callable[[int], int]] = {
    "allreduce": lambda n: 2 * (n - 1),
    "allgather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "broadcast": lambda n: n - 1,
    "reduce": lambda n: n - 1,
}
#: Maximum ranks of a simulated ring, and maximum number of sizes, evenly selected.
MOST_SIMULATED_RANKS, MOST_SIMULATED_POINTS = 16, 8
#: Maximum factor between α·β of the line and of the simulated ring, and steps of the search for it.
_FARTHEST, _STEPS = 16.0, 12

_CONTAINED = Number(0.0, "contained in the engine's numbers")
#: Models of a collective.
MODELS = ("ring", "whole")


@dataclass(frozen=True, slots=True)
class Fit:
    """The best α and β of one of :data:`MODELS`, for the line t = α · steps + bytes / β or for the simulator.

    ``alpha_us`` or ``beta_gb_per_s`` is ``None`` if the measurements do not determine it; ``warnings`` has the reason
    and the sizes to measure. The maximum error |t_model − t| / t of the line, or after :func:`as_simulated` of the
    simulator, is ``max_relative_error`` at ``worst_size_bytes``. The fit covers ``points`` times of ``sizes`` sizes.
    """

    model: str
    alpha_us: float | None
    beta_gb_per_s: float | None
    max_relative_error: float
    points: int
    sizes: int
    worst_size_bytes: int
    warnings: tuple[str, ...] = ()


def cost(model: str, collective: str, ranks: int) -> tuple[int, float]:
    """Steps of a collective, and bytes on the fullest link per byte of S.

    ``ring``: 2(n−1) steps for AllReduce, n−1 for AllGather, ReduceScatter, Broadcast and Reduce, and nccl-tests' bus
    factor: β is then the rate of the ring's links. ``whole``: one step and the same factor: α is the latency of the
    whole collective, β the busbw that it tends to.
    """
    if model not in MODELS:
        raise UnsupportedError(f"unknown model {model!r}; expected one of {', '.join(MODELS)}")
    if ranks < 2:
        raise UnsupportedError(f"{collective} on {ranks} rank moves nothing over links; expected two ranks or more")
    if model == "ring" and collective not in _RING_STEPS:
        raise UnsupportedError(f"{collective} has no ring; use --algo whole, which fits the collective as a whole")
    steps = _RING_STEPS[collective](ranks) if model == "ring" else 1
    return steps, float(bus_factor(collective, ranks))


def fit(measurements: Sequence[Measurement], model: str = "ring") -> Fit:
    """α and β by least squares of the relative error: Σ ((α · steps + bytes / β − t) / t)² is minimal, with α, 1/β ≥ 0.

    With absolute errors the largest sizes would decide alone, and α would be noise. Collectives and numbers of ranks
    may be mixed: each has its own steps and bytes.

    From three sizes on, α and β are determined if their standard errors are at most :data:`MOST_UNSURE` of them. The
    error of the times is the residual of the fit, but at least :data:`NOISE`. Cost: O(measurements).
    """
    if not measurements:
        raise UnsupportedError("nothing to fit: no measurement remains")
    costs = [cost(model, one.collective, one.ranks) for one in measurements]
    seconds = np.asarray([one.seconds for one in measurements])
    steps = np.asarray([float(count) for count, _ in costs])
    crossing = np.asarray([factor * one.size_bytes for (_, factor), one in zip(costs, measurements, strict=True)])
    alpha_s, s_per_byte = _least_squares(steps / seconds, crossing / seconds)
    error = np.abs((alpha_s * steps + s_per_byte * crossing) / seconds - 1.0)
    worst = int(np.argmax(error))
    sizes = sorted({one.size_bytes for one in measurements})
    unsure = _standard_errors(steps / seconds, crossing / seconds, alpha_s, s_per_byte)
    alpha_known, beta_known, warnings = _determined(sizes, *unsure)
    if alpha_known and beta_known and error[worst] > POOR:
        warnings.append(
            f"the fitted line is {error[worst]:.0%} off at {measurements[worst].size_bytes:,} bytes: the "
            "algorithm or protocol may change between these sizes; fit fewer of them (-b, -e)"
        )
    return Fit(
        model,
        alpha_s * 1e6 if alpha_known else None,
        1e-9 / s_per_byte if beta_known else None,
        float(error[worst]),
        len(measurements),
        len(sizes),
        measurements[worst].size_bytes,
        tuple(warnings),
    )


def as_simulated(line: Fit, measurements: Sequence[Measurement]) -> Fit:
    """``line`` with α and β for which simulated rings come closest to the times; least squares as in :func:`fit`.

    Rings are simulated as in ``blink sim``, with α before each transfer and one-way links of β. ``line`` is returned
    unchanged if its model is no ring, if it lacks a number, or, with a warning, for more ranks than
    :data:`MOST_SIMULATED_RANKS`. Cost: 400 simulations of a ring, half a second for 8 ranks.
    """
    if line.model != "ring" or line.alpha_us is None or line.beta_gb_per_s is None:
        return line
    if max(one.ranks for one in measurements) > MOST_SIMULATED_RANKS:
        many = f"rings of more than {MOST_SIMULATED_RANKS} ranks are fitted as lines; times of blink sim may differ"
        return replace(line, warnings=(*line.warnings, many))
    alpha_us, beta_gb_per_s = line.alpha_us, line.beta_gb_per_s
    rings = {key: _ring(*key) for key in dict.fromkeys((one.collective, one.ranks) for one in measurements)}

    def ratios(factor: float, of: Sequence[Measurement]) -> np.ndarray:
        """Simulated time / measured time, with α · factor and β."""
        row = LinkClass("nvlink", LANE_GB_PER_S, Number(beta_gb_per_s, "fitted"), _CONTAINED)
        engine = EngineCosts(issue_us=Number(alpha_us * factor, "fitted"))
        costs = Calibration(SCHEMA_VERSION, "fitted", "", engine, (row,))
        timed = {key: frame(*ring, costs) for key, ring in rings.items()}
        return np.asarray([near_best(timed[x.collective, x.ranks], x.size_bytes).seconds / x.seconds for x in of])

    def scale(ratio: np.ndarray) -> float:
        # α · c and β / c take c times as long, so the best c follows from each α · β.
        return float(ratio.sum() / (ratio @ ratio))

    def distance(factor: float) -> float:
        ratio = ratios(factor, chosen)
        return float(((scale(ratio) * ratio - 1.0) ** 2).sum())

    every = sorted(measurements, key=lambda one: one.size_bytes)
    chosen = [every[round(at)] for at in np.linspace(0, len(every) - 1, min(len(every), MOST_SIMULATED_POINTS))]
    factor = _least(distance)
    ratio = ratios(factor, every)
    times = scale(ratio)
    error = np.abs(times * ratio - 1.0)
    worst = int(np.argmax(error))
    return replace(
        line,
        alpha_us=alpha_us * factor * times,
        beta_gb_per_s=beta_gb_per_s / times,
        max_relative_error=float(error[worst]),
        worst_size_bytes=every[worst].size_bytes,
    )


def _least(distance: Callable[[float], float]) -> float:
    """The factor within :data:`_FARTHEST` up or down with the least distance, by golden sections of its log."""
    golden = (sqrt(5.0) - 1.0) / 2.0
    low, high = -log(_FARTHEST), log(_FARTHEST)
    inner, outer = high - golden * (high - low), low + golden * (high - low)
    at_inner, at_outer = distance(exp(inner)), distance(exp(outer))
    for _ in range(_STEPS):
        if at_inner <= at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - golden * (high - low)
            at_inner = distance(exp(inner))
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + golden * (high - low)
            at_outer = distance(exp(outer))
    return exp(inner if at_inner <= at_outer else outer)


def _ring(collective: str, ranks: int) -> tuple[Program, Topology]:
    """One ring of one-way links."""
    topology = synthetic(f"oneway:{ranks}")
    root = {"root": 0} if COLLECTIVES[collective].parameters else {}
    forest = ALGORITHMS["ring"].plan(Request(topology, Collective(collective, ranks, **root), tuple(topology.ranks)))
    return lower(forest), forest.topology


def _least_squares(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """x, y ≥ 0 with a·x + b·y closest to 1, for positive a and b.

    If the unconstrained best has a negative part, one of x and y is 0, so two lines remain to compare.
    """
    # Columns of size 1, so that the rank does not depend on units.
    scale_a, scale_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    table = np.column_stack((a / scale_a, b / scale_b))
    ones = np.ones(len(a))
    free = np.linalg.lstsq(table, ones, rcond=None)[0]
    if free.min() >= 0.0:
        return float(free[0]) / scale_a, float(free[1]) / scale_b
    alone = table.T @ ones
    if np.linalg.norm(table[:, 0] * alone[0] - ones) <= np.linalg.norm(table[:, 1] * alone[1] - ones):
        return float(alone[0]) / scale_a, 0.0
    return 0.0, float(alone[1]) / scale_b


def _standard_errors(a: np.ndarray, b: np.ndarray, x: float, y: float) -> tuple[float, float]:
    """Standard errors of x and y as parts of them, infinite for 0; the error of times is at least :data:`NOISE`."""
    off = a * x + b * y - 1.0
    sigma = max(NOISE, float(np.sqrt(off @ off / max(1, len(off) - 2))))
    if x == 0.0 or y == 0.0:
        return (inf if x == 0.0 else 0.0), (inf if y == 0.0 else 0.0)
    u, v = a * x, b * y  # so that both numbers are 1
    alone = float(u @ u), float(v @ v)
    both = alone[0] * alone[1] - float(u @ v) ** 2
    if both <= 1e-14 * alone[0] * alone[1]:  # one is a multiple of the other, to all digits
        return (inf, 0.0) if alone[0] < alone[1] else (0.0, inf)
    return sigma * float(np.sqrt(alone[1] / both)), sigma * float(np.sqrt(alone[0] / both))


def _determined(sizes: Sequence[int], alpha_part: float, beta_part: float) -> tuple[bool, bool, list[str]]:
    """Two flags that are true for determined α and β, and warnings with the reasons otherwise."""
    if len(sizes) < LEAST_SIZES:
        few = f"{len(sizes)} size{'s' if len(sizes) > 1 else ''}: neither α nor β is determined; measure at least "
        return False, False, [f"{few}{LEAST_SIZES}, from some KiB to some hundred MiB"]
    warnings = []
    for name, part, which in (("α", alpha_part, "smaller"), ("β", beta_part, "larger")):
        if part > MOST_UNSURE:
            of_it = "0 fits as well" if part == inf else f"its standard error is {part:.0%} of it"
            warnings.append(
                f"{name} is not determined by {sizes[0]:,} to {sizes[-1]:,} bytes: {of_it}; measure {which} sizes too"
            )
    return alpha_part <= MOST_UNSURE, beta_part <= MOST_UNSURE, warnings


def fits(measurements: Sequence[Measurement], model: str = "ring") -> dict[str, Fit]:
    """A fit for each collective in the order of first appearance; raises as :func:`fit`."""
    names = dict.fromkeys(one.collective for one in measurements)
    return {name: fit([one for one in measurements if one.collective == name], model) for name in names}


def fitted_calibration(
    fit: Fit, name: str, kind: str, nominal_gb_per_s: float, source: str, lanes: int = 1
) -> Calibration:
    """The calibration of a fit: β for the links of one kind, and α before each transfer, or once for model ``whole``.

    A simulated ring then takes the times of :func:`as_simulated` again. ``nominal_gb_per_s`` is that of one lane,
    ``source`` names the measurements, e.g. ``"out.log"``, and β was measured over ``lanes`` lanes.
    """
    if fit.alpha_us is None or fit.beta_gb_per_s is None:
        raise UnsupportedError(f"no calibration can be written: {'; '.join(fit.warnings)}")
    fault = label_fault(name)
    if fault is not None or not name:
        raise UnsupportedError(f"the calibration's name {fault or 'is empty'}")
    if kind not in LINK_KINDS:
        raise UnsupportedError(f"unknown kind of links {kind!r}; expected one of {', '.join(LINK_KINDS)}")
    if not 0 < nominal_gb_per_s < 1e6:
        raise UnsupportedError(f"the nominal rate of a lane must be above 0 GB/s, got {nominal_gb_per_s:g}")
    if not 0 < lanes <= 1000:
        raise UnsupportedError(f"expected β of 1 to 1000 lanes, got {lanes}")
    shown = "".join(c if c.isprintable() else "?" for c in source)
    where = f"measured: {shown}, {fit.sizes} sizes"
    over = "" if lanes == 1 else f", over {lanes} lanes"
    alpha = Number(_rounded(fit.alpha_us), where)
    return Calibration(
        SCHEMA_VERSION,
        name,
        f"fitted to {fit.points} timings, within {fit.max_relative_error:.1%}",
        EngineCosts(issue_us=alpha) if fit.model == "ring" else EngineCosts(launch_us=alpha),
        (
            LinkClass(
                kind,
                nominal_gb_per_s,
                Number(_rounded(fit.beta_gb_per_s / lanes), where + over),
                _CONTAINED,
                kernels=True,
            ),
        ),
    )


def calibration_text(written: Calibration) -> str:
    """``written`` as TOML; :func:`~blinkccl.cost.simulate.calibration.parse_calibration` reads it back unchanged."""
    lines = [
        f"schema_version = {written.schema_version}",
        f"name = {_quoted(written.name)}",
        f"about = {_quoted(written.about)}",
        f"machines = [{', '.join(map(_quoted, written.machines))}]",
        "",
        "[engine]",
        *_numbers(written.engine),
    ]
    for row in written.link:
        lines += [
            "",
            "[[link]]",
            f"kind = {_quoted(row.kind)}",
            f"nominal_gb_per_s = {row.nominal_gb_per_s!r}",
            *(["kernels = true"] if row.kernels else []),
            *_numbers(row),
        ]
    return "\n".join(lines) + "\n"


def _numbers(table: EngineCosts | LinkClass) -> list[str]:
    fields = [(name, getattr(table, name)) for name in table.__struct_fields__]
    return [
        f"{name} = {{ value = {number.value!r}, source = {_quoted(number.source)} }}"
        for name, number in fields
        if isinstance(number, Number)
    ]


def _quoted(text: str) -> str:
    """A TOML string with JSON's escapes, and the one for DEL that TOML also requires."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _rounded(number: float) -> float:
    """``number`` with six digits, more than any measurement has."""
    return float(f"{number:.6g}")
