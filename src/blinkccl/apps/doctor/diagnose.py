"""The diagnosis of a case: the findings of all rules, worst first, and a verdict of one sentence.

To add a family of rules, write a file in ``rules/`` with its ``RULES`` and add it to :data:`FAMILIES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from blinkccl.apps.doctor.evidence import (
    Case,
    Host,
    MachineRead,
    MeasuredCall,
    RankReport,
    RingGraph,
    UnnamedCall,
    printable,
)
from blinkccl.apps.doctor.finding import SEVERITIES, Finding
from blinkccl.apps.doctor.p2p import P2pVerdict, p2p_verdict
from blinkccl.apps.doctor.rules import bound, cabling, hang, host, links, measured, nccl_lines, network, peers, settings
from blinkccl.apps.doctor.rules.job import LEAST_BYTES, MeasuredJob, best_rows, jobs, stated
from blinkccl.show.text import Paint, count, fit, gb_per_s_text

FAMILIES = (hang, peers, links, nccl_lines, cabling, network, settings, host, measured, bound)
#: Causes that are dropped if a finding with one of these explains them.
FOLLOWS_FROM = {
    "nccl-gap": {"pcie-narrow", "pcie-slow", "pcie-uplink", "nvlink-down", "nvlink-unused", "contradiction"},
    "ring-slow": {"pcie-uplink"},
    "no-nvls": {"nvlink-unused"},
}


@dataclass(frozen=True)
class Diagnosis:
    """Findings, worst first. ``subject`` names the job or machine; ``notes`` list inferences and omissions.

    ``not_judged`` lists evidence without a model or machine to compare it with.
    """

    subject: str
    findings: tuple[Finding, ...]
    read: dict[str, list[str]]
    notes: tuple[str, ...]
    known: bool
    not_judged: tuple[str, ...]
    p2p: P2pVerdict

    @property
    def healthy(self) -> bool:
        """True if evidence was read, all of it could be judged, and no finding is an error or a warning."""
        return self.known and not self.not_judged and not self.wrong

    @property
    def wrong(self) -> list[Finding]:
        """The findings that are errors or warnings."""
        return [finding for finding in self.findings if finding.wrong]

    @property
    def verdict(self) -> str:
        """The verdict, in one sentence."""
        wrong = self.wrong
        if not self.known:
            return "nothing was read that describes a job or a machine; blink doctor -h lists the formats"
        if not wrong and self.not_judged:
            return f"no problem was found, but this could not be judged: {'; '.join(self.not_judged)}"
        if not wrong:
            return "nothing wrong was found in the evidence"
        return f"{count(len(wrong), 'problem')}; the worst: {wrong[0].title}"

    def document(self) -> dict[str, Any]:
        """The JSON object of ``blink doctor --json``."""
        return {
            "healthy": self.healthy,
            "verdict": self.verdict,
            "subject": self.subject,
            "findings": [msgspec.to_builtins(finding) for finding in self.findings],
            "not_judged": list(self.not_judged),
            "p2p": msgspec.to_builtins(self.p2p),
            "read": [{"source": source, "as": kinds} for source, kinds in self.read.items()],
            "notes": list(self.notes),
        }

    def text(self, paint: Paint, width: int | None = None) -> str:
        """The report for people: verdict, findings and sources, in lines of at most ``width`` characters."""
        lines = [f"about   {self.subject}", f"verdict {self.verdict}"]
        for number, finding in enumerate(self.findings, 1):
            first, *rest = finding.lines(paint)
            lines += ["", f"{number}. {first}", *rest]
        lines += [""] if self.read else []
        lines += [f"read    {source}: {', '.join(kinds) or 'nothing known'}" for source, kinds in self.read.items()]
        lines += [f"note    {note}" for note in self.notes]
        return fit("\n".join(lines), width) + "\n"


def diagnose(case: Case) -> Diagnosis:
    """Run every rule. Cost: a proof and a search of NCCL's channels per job, about 10 ms each."""
    findings = [finding for family in FAMILIES for rule in family.RULES for finding in rule(case)]
    findings += measured.unexplained(case, findings)
    causes = {finding.cause for finding in findings}
    findings = [finding for finding in findings if not causes & FOLLOWS_FROM.get(finding.cause, set())]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    read = {printable(source): kinds for source, kinds in case.read.items()}
    notes = tuple(dict.fromkeys(map(printable, [*case.notes, *_wanting(case)])))
    verdict, unjudged = p2p_verdict(case, findings), tuple(map(printable, _not_judged(case)))
    return Diagnosis(_subject(case), tuple(findings), read, notes, bool(case.pieces), unjudged, verdict)


#: Titles of readers whose files describe a machine.
_MACHINES = ("NCCL XML", "nvidia-smi topo -m", "rocm-smi or amd-smi")


def _not_judged(case: Case) -> list[str]:
    """Measurements without anything to compare them with, and files of machines that were not understood."""
    known = [job for job in jobs(case) if job.measured is not None]
    unjudged = []
    for row in best_rows(case):
        mine = [job for job in known if job.measured == row]
        if any(job.judgeable for job in mine) or stated(case, row.ranks, row.hosts) is not None:
            continue
        why = _why_not(mine[0]) if mine else "no machine and no model of it is known"
        unjudged.append(f"{gb_per_s_text(row.busbw_gb_per_s)} busbw of {row.collective} on {_ranks(row)}, as {why}")
    for call in _best_unnamed(case):
        fit = f"; {' and '.join(call.fits)} fit" if call.fits else ""
        rate = gb_per_s_text(call.busbw_gb_per_s)
        unjudged.append(f"{rate} busbw on {_ranks(call)}, as the log does not name the collective{fit}")
    places = [piece.place.source for piece in (*case.of(MachineRead), *case.of(RingGraph))]
    described = {place.partition(" @ ")[0].partition(", line")[0] for place in places}
    unread = [source for source, titles in case.read.items() if set(titles) & set(_MACHINES)]
    sources = [source for source in unread if source not in described]
    return [*dict.fromkeys(unjudged), *(f"the links in {source}, which were not understood" for source in sources)]


def _why_not(job: MeasuredJob) -> str:
    """The reason why no rate can be expected of NCCL on a known machine."""
    if job.between_hosts:
        return "there is no model of NCCL between hosts"
    return "rates of its links are assumed" if job.assumed else "no machine and no model of it is known"


def _best_unnamed(case: Case) -> list[UnnamedCall]:
    """The best large row of each source, number of ranks and set of collectives that fit."""
    rows = sorted(case.of(UnnamedCall), key=lambda row: row.busbw_gb_per_s)
    large = [row for row in rows if row.size_bytes >= LEAST_BYTES]
    return list({(row.place.source, row.ranks, row.fits): row for row in large}.values())


def _ranks(row: MeasuredCall | UnnamedCall) -> str:
    return f"{row.ranks} × {row.gpu}" if row.gpu else count(row.ranks, "rank")


def _wanting(case: Case) -> list[str]:
    """A note on the missing input, if measured rates have no machine to be compared with."""
    if not best_rows(case) or any(job.measured is not None for job in jobs(case)):
        return []
    return [
        "no machine is known to compare these rates with: give nvidia-smi topo -m or NCCL's topology of it, or "
        "--topo SPEC; add --gpus if the job used a part of it"
    ]


def _subject(case: Case) -> str:
    """The job and the machine, in one sentence."""
    subjects = []
    machines = case.of(MachineRead)
    if machines:
        topology = machines[-1].topology
        subjects.append(f"{topology.name}: {count(len(topology.ranks), 'GPU' if machines[-1].gpus else 'CPU rank')}")
    elif (host := case.last(Host)) is not None:
        subjects.append(f"a host of {host.cpus} processors")
    for job in jobs(case):
        if job.measured is not None:
            rate = gb_per_s_text(job.measured.busbw_gb_per_s)
            subjects.append(f"{job.collective} among {len(job.ranks)} at {rate} busbw")
    rows = case.of(MeasuredCall)
    if rows and len(subjects) <= bool(machines):
        best = max(rows, key=lambda row: row.busbw_gb_per_s)
        subjects.append(f"{best.collective} among {best.ranks} at {gb_per_s_text(best.busbw_gb_per_s)} busbw")
    states = case.of(RankReport)
    if states:
        subjects.append(f"{count(len({state.rank for state in states}), 'rank')} of a job that hangs or hung")
    if not subjects and case.pieces:
        subjects.append(f"{count(len(case.pieces), 'piece')} of evidence, and no whole machine or job")
    return "; ".join(subjects) or "nothing"
