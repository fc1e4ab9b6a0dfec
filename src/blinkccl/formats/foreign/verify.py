"""Proof of an instruction list: the contributions that each output contains at the end, for every size at once.

A value here is *contributions*: a chunk of the inputs, and a set of ranks. Executing a list on these shows the contents
of every chunk of each output. :class:`~blinkccl.formats.foreign.execute.PlanExecution` shows that they hold for any
order in which thread blocks may run. The proof does not depend on the author of the list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import ScheduleError, ranks_text
from blinkccl.formats.foreign.execute import MOST_FAULTS, REMEDIES, PlanExecution
from blinkccl.formats.foreign.instructions import Fence, InstructionList

#: Collectives that can be checked, by Blink's names; MSCCL++ writes reducescatter.
SERVED = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce")
MOST_RANKS = 256
FORMAT = "MSCCL++ execution plan"
#: (chunk of the input, ranks as bits), or a sentence that explains why it is no sum of contributions.
Contributions = tuple[int, int] | str
_UNSET = "unwritten memory"
#: MSCCL++'s own plans rely on this, with relaxed signals at their end; PTX guarantees it only for releasing signals.
_TRUSTS = (
    "relaxed signals after stores through a switch guarantee that the stores are done; MSCCL++'s own plans rely on it, "
    "but only signal and wait guarantee it"
)


@dataclass(frozen=True, slots=True)
class ForeignAudit:
    """The verdict: ``faults`` has a sentence per violation, with its kind, GPU, thread block and step.

    ``assumes``: assumptions beyond the guarantees of the format, "" for none.
    """

    plan: InstructionList
    faults: tuple[str, ...]
    assumes: str = ""

    @property
    def ok(self) -> bool:
        """True if the plan computes its collective in every possible order."""
        return not self.faults

    def text(self) -> str:
        """The report of ``blink check``."""
        plan, coll = self.plan, self.plan.collective
        steps = sum(not isinstance(step, Fence) for block in plan.blocks for step in block.instructions)
        root = "" if coll.root is None else f", root {coll.root}"
        lines = [
            f"{coll.name} among {coll.world_size} ranks{root}, {'in' if plan.in_place else 'out of'} place",
            f"format  {FORMAT}, {plan.protocol}",
            f"size    {len(plan.blocks)} thread blocks, {steps} instructions, {plan.chunks} chunks per block of data",
        ]
        if plan.sized is not None:
            lines.append(
                f"rounds  of its pipelines: checked for one, and for blocks of {plan.judged_bytes[-1]:,} bytes"
            )
        if self.ok:
            lines.append(
                "proof   every output contains each contribution exactly once and nothing else, conflicting accesses "
                "of a chunk are ordered, and no wait blocks forever"
            )
            lines += [f"assumed {self.assumes}"] if self.assumes else []
        else:
            count = f"{len(self.faults)}{' or more' if len(self.faults) >= MOST_FAULTS else ''}"
            lines.append(f"wrong   in {count} place(s):")
            lines += [f"        {fault}" for fault in self.faults[:20]]
            kinds = dict.fromkeys(_kind(fault) for fault in self.faults)
            lines += [f"to do   {kind}: {REMEDIES[kind]}" for kind in kinds]
        return "\n".join(lines) + "\n"

    def document(self) -> dict[str, Any]:
        """The plan's part of the JSON object of ``blink check --json``."""
        coll = self.plan.collective
        return {
            "ok": self.ok,
            "collective": coll.name,
            "ranks": list(range(coll.world_size)),
            "root": coll.root,
            "in_place": self.plan.in_place,
            "chunks": self.plan.chunks,
            "format": FORMAT,
            "protocol": self.plan.protocol,
            "assumes": self.assumes,
            "violations": [
                {"by": "verifier", "text": text, "kind": _kind(text), "remedy": REMEDIES[_kind(text)]}
                for text in self.faults
            ],
        }


def _kind(fault: str) -> str:
    return fault.partition(":")[0]


def audit(plan: InstructionList) -> ForeignAudit:
    """Check ``plan``; if it depends on the size, for all of ``judged_bytes`` until there are faults.

    For a collective with a root, which the format does not name, all roots are tried and the best fit is reported.
    """
    if plan.sized is None:
        return _judged(plan)
    audits = [_judged(plan)]
    for block_bytes in plan.judged_bytes[1:]:
        if audits[-1].ok:
            audits.append(_judged(plan.sized(block_bytes)))
    return replace(audits[-1], plan=audits[0].plan)


def _judged(plan: InstructionList) -> ForeignAudit:
    def load(rank: int, index: int) -> Contributions:
        return index, 1 << rank

    done: PlanExecution[Contributions] = PlanExecution(plan, load, _combine, _UNSET)
    roots = range(plan.collective.world_size) if plan.collective.root is not None else [None]
    best: tuple[list[str], Collective] | None = None
    for root in roots:
        collective = replace(plan.collective, root=root)
        wrong = _wrong_outputs(plan, collective, done)
        if best is None or len(wrong) < len(best[0]):
            best = wrong, collective
    assert best is not None
    named = replace(plan, collective=best[1])
    if done.unpromised:
        trusting: PlanExecution[Contributions] = PlanExecution(plan, load, _combine, _UNSET, trusting=True)
        if done.faults or best[0] or trusting.faults:
            return ForeignAudit(named, (*done.faults, *best[0], *done.unpromised))
        return ForeignAudit(named, (), _TRUSTS)
    return ForeignAudit(named, (*done.faults, *best[0]))


def _combine(one: Contributions, other: Contributions, where: str) -> Contributions:
    if isinstance(one, str) or isinstance(other, str):
        return one if isinstance(one, str) else other
    if one[0] != other[0]:
        return f"chunk {one[0]} of the input added to chunk {other[0]} by {where}"
    if one[1] & other[1]:
        return f"the contribution of {_ranks(one[1] & other[1])} twice, by {where}"
    return one[0], one[1] | other[1]


def _wrong_outputs(plan: InstructionList, collective: Collective, done: PlanExecution[Contributions]) -> list[str]:
    """A sentence for each chunk of an output whose value is not the one required by ``collective``."""
    faults: list[str] = []
    for item in collective.items():
        ranks = sum(1 << rank for rank, _ in item.contributions)
        source = item.contributions[0][1]
        for rank, target in item.destinations:
            for index in range(plan.chunks):
                want = source * plan.chunks + index, ranks
                at = target * plan.chunks + index
                got = done.value(rank, at)
                if got != want and len(faults) < MOST_FAULTS:
                    by = done.written.get(plan.place(rank, "o", at))
                    wrote = f", written by {by}" if by else ""
                    faults.append(f"wrong result: o[{at}] of GPU {rank} is {_told(got)}{wrote}; expected {_told(want)}")
    return faults


def _told(value: Contributions) -> str:
    return value if isinstance(value, str) else f"chunk {value[0]} of {_ranks(value[1])}"


def _ranks(bits: int) -> str:
    return ranks_text([rank for rank in range(bits.bit_length()) if bits >> rank & 1])


def collective_of(name: str, ranks: int, source: str) -> Collective:
    """The collective named by a file, with root 0 if it has one; ScheduleError for collectives that are not checked."""
    collective = "reduce_scatter" if name == "reducescatter" else name
    if collective not in SERVED:
        raise ScheduleError(
            f"{source}: collective {name[:40]!r} cannot be checked; expected one of {', '.join(SERVED)}"
        )
    if not 1 <= ranks <= MOST_RANKS:
        raise ScheduleError(f"{source}: {ranks} GPUs, expected 1 … {MOST_RANKS}")
    return Collective(collective, ranks, **({"root": 0} if "root" in COLLECTIVES[collective].parameters else {}))


def buffer_chunks(collective: Collective, rank: int, chunks: int) -> tuple[int, int]:
    """Chunks of a rank's input and output, for ``chunks`` per block; with a root, sizes are those of the root."""
    if collective.root is not None:
        return chunks, chunks
    return collective.input_blocks(rank) * chunks, collective.output_blocks(rank) * chunks
