"""What a check of a plan proved, or what is false, as text."""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.forest.check import Verdict
from blinkccl.forest.model import Forest
from blinkccl.report.paint import Paint, plain
from blinkccl.report.plan_text import headline
from blinkccl.report.units_text import count, rate_text
from blinkccl.schedule.program import Program
from blinkccl.schema import SCHEMA_VERSION

SHOWN = 20


def check_text(
    forest: Forest,
    verdict: Verdict,
    program: Program | None,
    faults: Sequence[str],
    paint: Paint = plain,
    scope: str = "the links that the plan lists",
    schema_version: int = SCHEMA_VERSION,
) -> str:
    """One line per thing that was checked, then the violations.

    Parameters
    ----------
    verdict
        Of the independent checker.
    program, faults
        The lowered plan, and what the verifier found in it.
    scope
        The links that the proof speaks of.
    schema_version
        Of the plan's document.
    """
    lines = [headline(forest)]
    if schema_version != SCHEMA_VERSION:
        lines.append(f"        schema_version {schema_version}, of an earlier blink: its gbps are GB/s")
    lines += _checker(forest, verdict, paint, scope)
    lines += _program(program, faults, paint)
    if verdict.violations or faults:
        lines.append(paint(f"refused: {count(len(verdict.violations) + len(faults), 'violation')}", "bold red"))
    else:
        proved = "proved" if verdict.optimal else "proved, but not optimal: see the bound"
        lines.append(paint(proved, "bold green"))
    return "\n".join(lines) + "\n"


def _checker(forest: Forest, verdict: Verdict, paint: Paint, scope: str) -> list[str]:
    if verdict.violations:
        return [*_listed("the plan is not what it says", verdict.violations, paint)]
    ok = paint("  ok  ", "green")
    assert verdict.rate is not None  # A plan without violations has a rate and a bound.
    assert verdict.bound is not None
    unit = forest.topology
    shares = count(len(forest.shares), "share")
    lines = [
        f"{ok}trees: {shares}; every contribution once, every destination served",
        f"{ok}rate: {rate_text(verdict.rate, unit)}, recomputed from the loads of "
        f"{count(len(forest.link_load), 'link')}",
    ]
    proof = f"{ok}bound: {rate_text(verdict.bound, unit)}, by the {forest.certificate.kind} in the plan"
    optimal = [f"{ok}optimal on {scope}"] if verdict.optimal else []
    return [*lines, proof, *optimal]


def _program(program: Program | None, faults: Sequence[str], paint: Paint) -> list[str]:
    if faults or program is None:
        return _listed("the program is invalid", faults, paint)
    size = (
        f"{count(len(program.roles), 'role')}, {count(len(program.queues), 'queue')}, "
        f"{count(len(program.channels), 'channel')}"
    )
    return [f"{paint('  ok  ', 'green')}program: {size}; complete, live with finite buffers, no link overloaded"]


def _listed(what: str, texts: Sequence[str], paint: Paint) -> list[str]:
    more = [f"        … and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return [f"{paint('  no  ', 'red')}{what}:", *(f"        {text}" for text in texts[:SHOWN]), *more]
