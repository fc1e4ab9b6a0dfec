"""Faults of a link or a host during a collective, and plans around them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from threading import Timer
from typing import Any

from blinkccl.apps.lab import experiment
from blinkccl.apps.lab.experiment import Field, LabCandidate, Measured
from blinkccl.apps.lab.laboratory import Laboratory, Run
from blinkccl.apps.lab.layout import Layout
from blinkccl.collectives.spec import Collective
from blinkccl.errors import BlinkError, CommunicationError, UsageError
from blinkccl.topology.loss import Pair, parse_pairs, slowed, without
from blinkccl.trees.algorithms.request import Request

#: Faults of a link (cut; its rate; its queue), and of a host.
KINDS = ("cut", "slow", "lossy", "kill")
SLOW = Fraction(1, 10)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of ``kind`` of :data:`KINDS`, of a link in both directions or of a host (vertex ids)."""

    kind: str
    link: Pair | None = None
    host: int | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse ``0-3`` or ``cut:0-3``, ``slow:0-3``, ``lossy:0-3``; ``5`` or ``kill:5``."""
        kind, _, where = text.rpartition(":")
        if re.fullmatch(r"[0-9]{1,6}", where) and kind in ("", "kill"):
            return cls("kill", host=int(where))
        if kind not in ("", "cut", "slow", "lossy"):
            raise UsageError(f"--fail {text}: expected cut:0-3, slow:0-3 or lossy:0-3 for a link, kill:5 for a host")
        (link, *more) = parse_pairs(where, "--fail")
        if more:
            raise UsageError(f"--fail {text}: expected one link")
        return cls(kind or "cut", link)

    def __str__(self) -> str:
        if self.link is None:
            return f"host {self.host} is killed"
        what = {"cut": "is cut", "slow": f"has {SLOW} of its rate", "lossy": "has a queue of four packets"}
        return f"link {self.link[0]}-{self.link[1]} {what[self.kind]}"

    def request(self, request: Request) -> Request:
        """The job without the failed part: a slow link counts with its rest, others that fail do not count.

        UsageError if no part of the job fails, or its only sender or receiver does.
        """
        if self.link is not None:
            if self.kind == "slow":
                return replace(request, topology=slowed(request.topology, [self.link], SLOW))
            return replace(request, topology=without(request.topology, [self.link]))
        if self.host not in request.ranks:
            raise UsageError(f"--fail kill:{self.host}: not a rank of the job; expected one of {list(request.ranks)}")
        return without_rank(request, self.host)

    def check(self, layout: Layout) -> None:
        """Raise UsageError if the laboratory has no such link."""
        if self.link is not None and self.link not in layout.port:
            known = ", ".join(f"{a.vertex}-{a.peer}" for a, _ in layout.links)
            raise UsageError(f"--fail: no plan here uses a link {self.link[0]}-{self.link[1]}; expected one of {known}")

    def inject(self, lab: Laboratory) -> None:
        """Cause the fault."""
        if self.host is not None:
            lab.kill(self.host)
        elif self.link is not None and self.kind == "cut":
            lab.cut(*self.link)
        elif self.link is not None:
            ends = [self.link, self.link[::-1]]
            lab.reshape(float(SLOW) if self.kind == "slow" else 1.0, ends, lossy=self.kind == "lossy")


def without_rank(request: Request, vertex: int) -> Request:
    """The job among the other ranks; the first replaces a lost root."""
    ranks = tuple(rank for rank in request.ranks if rank != vertex)
    old = request.collective
    if old.src is not None:
        raise UsageError(f"{old.name} needs two ranks: without {vertex} only one is left")
    root = None if old.root is None else request.ranks[old.root]
    place = None if root is None else ranks.index(root) if root in ranks else 0
    return replace(
        request,
        topology=without(request.topology, vertices=[vertex]),
        ranks=ranks,
        collective=Collective(old.name, len(ranks), root=place),
    )


@dataclass(frozen=True)
class Story:
    """A job before, during and after a fault. ``during`` is a completed run, or an error and the seconds until it."""

    fault: Fault
    before: Measured
    at_s: float
    during: Run | tuple[str, float]
    after: Measured | str

    def text(self) -> str:
        """Three lines for people."""
        during = self.during
        lines = [
            f"before  {_rate(self.before)}",
            f"then    {self.fault} after {self.at_s:.2f} s",
            f"        it continued: {during.seconds:.2f} s, {during.wrong} wrong"
            if isinstance(during, Run)
            else f"        after {during[1]:.2f} s: {during[0]}",
            f"after   {self.after if isinstance(self.after, str) else _rate(self.after)}",
        ]
        return "".join(f"{line}\n" for line in lines)

    def document(self) -> dict[str, Any]:
        """The fields for JSON."""
        from blinkccl.apps.lab.output import entry

        run = self.during
        during = (
            {"seconds": run.seconds, "wrong": run.wrong}
            if isinstance(run, Run)
            else {"error": run[0], "after_s": run[1]}
        )
        after = {"error": self.after} if isinstance(self.after, str) else entry(self.after)
        return {
            "fault": str(self.fault),
            "at_s": self.at_s,
            "before": entry(self.before),
            "during": during,
            "after": after,
        }


def _rate(one: Measured) -> str:
    name = one.candidate.forest.topology.name
    planned = one.candidate.forest.algbw_gb_per_s
    return (
        f"{one.candidate.name} among {len(one.candidate.forest.ranks)} ranks of {name}: {one.seconds:.3f} s, "
        f"{one.gb_per_s:.1f} of {planned:.1f} GB/s planned, {one.wrong} wrong"
    )


def plan_around(field: Field, fault: Fault, name: str) -> LabCandidate | str:
    """The plan around the fault, or the reason why no plan exists."""
    try:
        around = experiment.prepare(fault.request(field.request), (name,), 1.0)
    except UsageError:
        raise
    except BlinkError as error:
        return f"no plan: {error}"
    return around.candidates[0]


def tell(
    field: Field, around: LabCandidate | str, lab: Laboratory, fault: Fault, size: int, rounds: int, timeout_s: float
) -> Story:
    """Run the first candidate, cause the fault halfway through a second run, and continue with the plan around it."""
    first = field.candidates[0]
    before, number = _measured(first, field, lab, size, rounds, timeout_s)
    began = time.monotonic()
    timer = Timer(before.seconds / 2, fault.inject, [lab])
    timer.start()
    deadline_s = min(timeout_s, 1.0 + 2 * before.seconds)
    during: Run | tuple[str, float]
    try:
        during = lab.run(number, before.pattern, before.chunk_bytes, deadline_s)
    except CommunicationError as error:
        during = str(error), time.monotonic() - began
    timer.join()
    lab.close(number)
    after = around if isinstance(around, str) else _measured(around, field, lab, size, rounds, timeout_s)[0]
    return Story(fault, before, before.seconds / 2, during, after)


def _measured(
    one: LabCandidate, field: Field, lab: Laboratory, size: int, rounds: int, timeout_s: float
) -> tuple[Measured, int]:
    """An open program's runs, and its number."""
    number = lab.open(one.program)
    measured = experiment.planned(one, size, field.slower)
    for _ in range(rounds):
        measured.runs.append(lab.run(number, measured.pattern, measured.chunk_bytes, timeout_s))
    return measured, number
