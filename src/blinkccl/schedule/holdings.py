"""Who holds what? Propagates the contributions of every slice through the roles, as sets of ranks.

All chunks of a slice take the same way, so one symbolic pass covers every size.
"""

from __future__ import annotations

from dataclasses import dataclass

from blinkccl.collectives.spec import Block
from blinkccl.schedule.chunking import Placement, placements
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.wiring import Wiring, name_role


@dataclass(frozen=True, slots=True)
class _Value:
    """What a message holds: contributing ranks as bits, and whether the reduction has been completed."""

    ranks: int
    completed: bool


def holding_faults(program: Program, steps: list[int], wiring: Wiring) -> list[str]:
    """A sentence for every combination, completion or write that breaks the collective's definition.

    Checked: a rank contributes only what it has, once; ``completes`` is set exactly once on every way,
    exactly where all contributions are in; what is kept is complete and is kept where the collective
    wants it, once; every destination gets every slice.

    Notes
    -----
    Cost: O(roles + messages). Roles behind a missing message are left out: their cause is reported elsewhere.
    """
    return _Propagation(program, steps, wiring).faults()


class _Propagation:
    def __init__(self, program: Program, steps: list[int], wiring: Wiring) -> None:
        self.program = program
        self.steps = steps
        self.placements = placements(program.collective)
        self.full = {block: sum(1 << rank for rank in place.sources) for block, place in self.placements.items()}
        self.sender = {(arc.queue, arc.head): arc.tail for arc in wiring.data}
        self.found: list[str] = []
        self.writer: dict[tuple[int, int], int] = {}
        self.values: list[_Value | None] = [None] * len(program.roles)

    def faults(self) -> list[str]:
        order = self._order()
        for index in order:
            self.values[index] = self._fire(index)
        if len(order) == len(self.values):  # else chunks are missing for another reason, which is reported
            self._check_all_written()
        return self.found

    def _order(self) -> list[int]:
        """Roles in the order of the data, senders first; those that wait for each other are left out."""
        roles = self.program.roles
        waiting = [len(role.receives) for role in roles]
        followers: list[list[int]] = [[] for _ in roles]
        for (_, head), tail in self.sender.items():
            followers[tail].append(head)
        order = [index for index, count in enumerate(waiting) if count == 0]
        for index in order:
            for head in followers[index]:
                waiting[head] -= 1
                if waiting[head] == 0:
                    order.append(head)
        return order

    def _fire(self, index: int) -> _Value:
        role = self.program.roles[index]
        block = self.program.slices[role.slice].block
        place = self.placements[block]
        ranks, completed = 0, False
        if role.contributes:
            if role.rank not in place.sources:
                self._fault(index, f"wrong block: it contributes its own {_block(block)}, but has none")
            ranks = 1 << role.rank
        for queue in role.receives:
            message = self.values[self.sender[queue, index]]
            assert message is not None
            if ranks & message.ranks:
                self._fault(
                    index,
                    f"double contribution: slice {role.slice} of {_block(block)} gets "
                    f"{_ranks(ranks & message.ranks)} twice",
                )
            ranks |= message.ranks
            completed = completed or message.completed
        # A single contribution is complete from the start; dividing by one changes nothing.
        alone = len(place.sources) == 1
        completed = alone or self._complete(index, role, ranks, completed, self.full[block])
        if role.keeps:
            self._keep(index, role, ranks, completed, block, place)
        return _Value(ranks, completed)

    def _complete(self, index: int, role: Role, ranks: int, completed: bool, full: int) -> bool:
        if role.completes and ranks != full:
            self._fault(index, f"it completes the reduction without {_ranks(full & ~ranks)}")
        if role.completes and completed:
            self._fault(index, "it completes a reduction that was completed before")
        return completed or role.completes

    def _keep(self, index: int, role: Role, ranks: int, completed: bool, block: Block, place: Placement) -> None:
        full = self.full[block]
        if role.rank not in place.targets:
            self._fault(
                index,
                f"wrong block: it keeps slice {role.slice} of {_block(block)}, which this rank must not get",
            )
        if full & ~ranks:
            self._fault(
                index,
                f"missing contribution: it keeps slice {role.slice} of {_block(block)} without {_ranks(full & ~ranks)}",
            )
        elif not completed:
            self._fault(index, "it keeps a reduction that no step has completed (avg would not be divided)")
        first = self.writer.setdefault((role.rank, role.slice), index)
        if first != index:
            self._fault(
                index,
                f"it writes slice {role.slice} of {_block(block)}, which step {self.steps[first]} writes too",
            )

    def _check_all_written(self) -> None:
        carriers: dict[int, set[int]] = {}
        for role in self.program.roles:
            carriers.setdefault(role.slice, set()).add(role.channel)
        for index, part in enumerate(self.program.slices):
            lanes = ", ".join(map(str, sorted(carriers.get(index, ())))) or "none"
            for rank in self.placements[part.block].targets:
                if (rank, index) not in self.writer:
                    self.found.append(
                        f"rank {rank} never gets slice {index} of {_block(part.block)}, carried by channel {lanes}: "
                        "no step of this rank keeps it"
                    )

    def _fault(self, index: int, text: str) -> None:
        self.found.append(f"{name_role(self.program.roles[index], self.steps[index])}: {text}")


def _block(block: Block) -> str:
    return "the buffer" if block is None else f"block {block}"


def _ranks(bits: int) -> str:
    ranks = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    s = "s" if len(ranks) > 1 else ""
    return f"the contribution{s} of rank{s} {', '.join(ranks)}"
