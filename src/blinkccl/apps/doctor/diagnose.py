"""From evidence to a diagnosis: all rules, the worst first, and what it comes to in a sentence.

To add a family of rules: a file in ``rules/`` with its ``RULES``, and its row in :data:`FAMILIES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from blinkccl.apps.doctor.evidence import Case, Host, MachineRead, MeasuredCall, RankReport, printable
from blinkccl.apps.doctor.finding import SEVERITIES, Finding
from blinkccl.apps.doctor.rules import bound, cabling, hang, host, links, measured, network, peers, settings
from blinkccl.apps.doctor.rules.job import best_rows, jobs
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.show.text import Paint, count, fit, gb_per_s_text

FAMILIES = (hang, peers, links, cabling, network, settings, host, measured, bound)
#: What another finding explains is not told as a cause of its own.
FOLLOWS_FROM = {"nccl-gap": {"pcie-narrow", "pcie-slow", "pcie-uplink", "nvlink-down", "contradiction"}}


@dataclass(frozen=True)
class Diagnosis:
    """What was found, worst first; ``subject`` says of what in a sentence, ``notes`` what was inferred or left out."""

    subject: str
    findings: tuple[Finding, ...]
    read: dict[str, list[str]]
    notes: tuple[str, ...]
    known: bool

    @property
    def healthy(self) -> bool:
        """Whether there was something to look at, and nothing is wrong with it."""
        return self.known and not any(finding.wrong for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The first thing to read."""
        wrong = [finding for finding in self.findings if finding.wrong]
        if not self.known:
            return "nothing was read that says anything about a job or a machine; blink doctor -h says what it reads"
        if not wrong:
            return "nothing wrong was found in what was read"
        return f"{count(len(wrong), 'problem')}; the worst: {wrong[0].title}"

    def document(self) -> dict[str, Any]:
        """The JSON object of ``blink doctor --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "healthy": self.healthy,
            "verdict": self.verdict,
            "subject": self.subject,
            "findings": [msgspec.to_builtins(finding) for finding in self.findings],
            "read": [{"source": source, "as": kinds} for source, kinds in self.read.items()],
            "notes": list(self.notes),
        }

    def text(self, paint: Paint, width: int | None = None) -> str:
        """The report for people: the verdict, the findings, what was read; in lines of ``width`` at most."""
        lines = [f"about   {self.subject}", f"verdict {self.verdict}"]
        for number, finding in enumerate(self.findings, 1):
            first, *rest = finding.lines(paint)
            lines += ["", f"{number}. {first}", *rest]
        lines += [""] if self.read else []
        lines += [f"read    {source}: {', '.join(kinds) or 'nothing known'}" for source, kinds in self.read.items()]
        lines += [f"note    {note}" for note in self.notes]
        return fit("\n".join(lines), width) + "\n"


def diagnose(case: Case) -> Diagnosis:
    """Runs every rule. Cost: a proof and a search of NCCL's channels per job, some 10 ms each."""
    found = [finding for family in FAMILIES for rule in family.RULES for finding in rule(case)]
    found += measured.unexplained(case, found)
    causes = {finding.cause for finding in found}
    found = [finding for finding in found if not causes & FOLLOWS_FROM.get(finding.cause, set())]
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    read = {printable(source): kinds for source, kinds in case.read.items()}
    notes = tuple(dict.fromkeys(map(printable, [*case.notes, *_wanting(case)])))
    return Diagnosis(_subject(case), tuple(found), read, notes, bool(case.pieces))


def _wanting(case: Case) -> list[str]:
    """What would tell whether a rate that was measured is a good one."""
    if not best_rows(case) or any(job.measured is not None for job in jobs(case)):
        return []
    return [
        "no machine is known to compare these rates with: give its nvidia-smi topo -m or NCCL's topology too, or "
        "--topo SPEC, and --gpus where the job had a part of it"
    ]


def _subject(case: Case) -> str:
    """What this is about."""
    said = []
    machines = case.of(MachineRead)
    if machines:
        topology = machines[-1].topology
        said.append(f"{topology.name}: {count(len(topology.ranks), 'GPU' if machines[-1].gpus else 'CPU rank')}")
    elif (host := case.last(Host)) is not None:
        said.append(f"a host of {host.cpus} processors")
    for job in jobs(case):
        if job.measured is not None:
            rate = gb_per_s_text(job.measured.busbw_gb_per_s)
            said.append(f"{job.collective} among {len(job.ranks)} at {rate} busbw")
    rows = case.of(MeasuredCall)
    if rows and len(said) <= bool(machines):
        best = max(rows, key=lambda row: row.busbw_gb_per_s)
        said.append(f"{best.collective} among {best.ranks} at {gb_per_s_text(best.busbw_gb_per_s)} busbw")
    states = case.of(RankReport)
    if states:
        said.append(f"{count(len({state.rank for state in states}), 'rank')} of a job that stands still or did")
    if not said and case.pieces:
        said.append(f"{count(len(case.pieces), 'piece')} of evidence, and no whole machine or job")
    return "; ".join(said) or "nothing"
