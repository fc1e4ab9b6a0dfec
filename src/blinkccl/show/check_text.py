"""The audit of a plan as text: a line for each check, then the violations."""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.proof.audit import Audit
from blinkccl.proof.check import Verdict
from blinkccl.schedule.program import Program
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.show.plan_text import ORDER_SHOWN, assumed_lines, headline
from blinkccl.show.text import Paint, count, plain, rate_text
from blinkccl.trees.forest.model import Forest
from blinkccl.trees.forest.order import shortened

#: Limit on printed violations.
SHOWN = 20


def audit_text(audit: Audit, paint: Paint = plain) -> str:
    """The text of ``blink check``."""
    verdict, faults = audit.verdict, audit.faults
    lines = [headline(audit.forest)]
    if audit.schema_version < SCHEMA_VERSION:
        lines.append(f"        schema_version {audit.schema_version}, of an earlier blink: its gbps are GB/s")
    lines += [f"        {line}" for line in assumed_lines(audit.forest.topology)]
    lines += _checker(audit.forest, verdict, paint, audit.scope)
    lines += _program(audit.program, faults, paint)
    if audit.ok:
        proved = "proved" if verdict.optimal else "proved, but not optimal: see the bound"
        lines.append(paint(proved, "bold green"))
    else:
        lines.append(paint(f"refused: {count(len(audit.all_faults), 'violation')}", "bold red"))
    return "\n".join(lines) + "\n"


def _checker(forest: Forest, verdict: Verdict, paint: Paint, scope: str) -> list[str]:
    if verdict.violations:
        return [*_listed("the checker refuses the plan", verdict.violations, paint)]
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
    order = [f"{ok}order: {shortened(forest.order, ORDER_SHOWN)}, in every share"] if forest.order else []
    return [*lines, proof, *optimal, *order]


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
