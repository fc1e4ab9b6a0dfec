"""Measured choices as the decision rules of Open MPI's ``coll/tuned`` (``coll_tuned_dynamic_rules_filename``).

The file is numbers, and ``#`` begins a comment: how many collectives; of each its number and how many sizes of
communicators; of each that size and how many sizes of messages; of each that size in bytes, an algorithm, its fan-out
and its segments' bytes. A size stands for all from there to the next one, and algorithm 0 for what Open MPI would take
without the file. A communicator smaller than all that are there takes the first: so there is one for 0, and one behind
the last, both of algorithm 0. Bytes are S as nccl-tests counts it. Open MPI 4 to 6 read this (each one's
``coll_tuned_dynamic_file.c``); a line with a version, or JSON, only newer ones do. Releases say nothing of a file that
they cannot read, so that only what it does tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: What each collective of ours is there: its number, and its name in parameters (``coll_tuned_bcast_algorithm``).
NUMBERS = {
    "allgather": (0, "allgather"),
    "allreduce": (2, "allreduce"),
    "alltoall": (3, "alltoall"),
    "broadcast": (7, "bcast"),
    "gather": (9, "gather"),
    "reduce": (11, "reduce"),
    "reduce_scatter": (13, "reduce_scatter_block"),
    "scatter": (15, "scatter"),
}
#: As Open MPI decides by itself.
OWN = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """From ``least`` bytes on ``algorithm``, with segments of so many bytes (0: none) and a fan-out."""

    least: int
    algorithm: int
    segment_bytes: int = 0
    fan_out: int = 0
    remark: str = ""

    @property
    def choice(self) -> tuple[int, int, int]:
        """Without where it begins."""
        return self.algorithm, self.segment_bytes, self.fan_out


def rules_text(ranks: int, rules: Mapping[str, Sequence[Rule]], remarks: Sequence[str] = ()) -> str:
    """The file for communicators of so many ``ranks``; of each collective the rules in rising order of ``least``."""
    lines = [f"# {line}" for line in remarks]
    lines.append(f"{len(rules)} # collectives")
    for name, listed in sorted(rules.items(), key=lambda item: NUMBERS[item[0]]):
        number, theirs = NUMBERS[name]
        lines += ["", f"{number} # {theirs}", "3 # sizes of communicators", *_communicator(0, ())]
        lines += [*_communicator(ranks, listed), *_communicator(ranks + 1, ())]
    return "\n".join(lines) + "\n"


def _communicator(size: int, rules: Sequence[Rule]) -> list[str]:
    found: list[Rule] = [] if rules and not rules[0].least else [Rule(0, OWN)]
    for rule in rules:
        if not found or found[-1].choice != rule.choice:
            found.append(rule)
    lines = [f"{size} # ranks or more", f"{len(found)} # sizes of messages"]
    for rule in found:
        numbers = f"{rule.least} {rule.algorithm} {rule.fan_out} {rule.segment_bytes}"
        lines.append(f"{numbers} # {rule.remark}" if rule.remark else numbers)
    return lines
