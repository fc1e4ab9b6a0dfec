"""Runs one rank's part of a Program, round by round: wait, fire, post."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from blinkccl.collectives.ops import DType, Operation
from blinkccl.engines.torch_p2p_actors import Actor, Inlet, Outlet
from blinkccl.engines.torch_p2p_exchange import Batch, Exchange, Message
from blinkccl.engines.torch_p2p_fold import Fold
from blinkccl.engines.torch_p2p_rounds import Rounds
from blinkccl.engines.torch_p2p_tensors import Tensors
from blinkccl.schedule.chunking import Bound
from blinkccl.schedule.program import Role

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Part:
    """An actor for one size: where its slice lies in the rank's input and output, and its staging.

    ``slots`` has the memory of each inlet, or None where messages are received where they are kept.
    """

    role: Role
    start: int
    chunks: int
    length: int
    source: int | None
    target: int | None
    divisor: int
    inlets: tuple[Inlet, ...]
    outlets: tuple[Outlet, ...]
    slots: tuple[list[torch.Tensor] | None, ...]
    scratch: list[torch.Tensor]


class Memory:
    """What calls of one size, type and operation need besides the caller's tensors."""

    def __init__(
        self,
        actors: tuple[Actor, ...],
        rounds: Rounds,
        bound: Bound,
        row: DType,
        chosen: Operation,
        device: torch.device,
    ) -> None:
        self.chunk_elements = bound.chunk_elements
        self._bound = bound
        self._dtype: torch.dtype = getattr(torch, row.name)
        self._device = device
        at_work = [actor for actor in actors if bound.extents[actor.role.slice].chunks]
        self.parts = [self._part(actor, rounds, chosen.averages) for actor in at_work]
        longest = max((min(part.length, self.chunk_elements) for part in self.parts), default=0)
        self.fold = Fold(row, chosen, longest, device)

    def _part(self, actor: Actor, rounds: Rounds, averages: bool) -> Part:
        role, bound = actor.role, self._bound
        extent = bound.extents[role.slice]
        divisor = bound.contributions(role.slice) if role.completes and averages else 1
        elements = min(self.chunk_elements, extent.length)

        def staging(copies: int) -> list[torch.Tensor]:
            number = min(copies, extent.chunks)
            return [torch.empty(elements, dtype=self._dtype, device=self._device) for _ in range(number)]

        return Part(
            role,
            actor.start,
            extent.chunks,
            extent.length,
            bound.source(role.rank, role.slice),
            bound.target(role.rank, role.slice),
            divisor,
            actor.inlets,
            actor.outlets,
            tuple(None if inlet.direct and divisor == 1 else staging(inlet.depth) for inlet in actor.inlets),
            [] if role.keeps else staging(math.ceil(rounds.ahead / rounds.period)),
        )

    @property
    def staging_bytes(self) -> int:
        """Bytes of all staging."""
        slots = [copies for part in self.parts for copies in (*part.slots, part.scratch) if copies is not None]
        staged: int = sum(copy.nbytes for copies in slots for copy in copies)
        return staged + self.fold.scratch_bytes


class Run:
    """One call on one rank's tensors; ``factor`` is its scalar of premul_sum, ``tag`` the call's."""

    def __init__(
        self,
        exchange: Exchange,
        rounds: Rounds,
        memory: Memory,
        tensors: Tensors,
        factor: torch.Tensor | None,
        tag: int,
    ) -> None:
        self._exchange = exchange
        self._rounds = rounds
        self._memory = memory
        self._tensors = tensors
        self._factor = factor
        self._tag = tag

    def go(self, deadline: float) -> None:
        """All rounds."""
        parts, period = self._memory.parts, self._rounds.period
        last = max((part.start + period * (part.chunks - 1) for part in parts), default=-1)
        firings = _agenda([(part.start, part.chunks, part) for part in parts], period, last)
        ports = sorted(
            ((inlet.order, inlet.start, part, number) for part in parts for number, inlet in enumerate(part.inlets)),
            key=lambda port: port[0],
        )
        arrivals = _agenda([(start, part.chunks, (part, number)) for _, start, part, number in ports], period, last)
        under_way: deque[tuple[int, Batch]] = deque()
        batch: Batch | None = None
        for now, (firing, arriving) in enumerate(zip(firings, arrivals, strict=True)):
            while under_way and under_way[0][0] <= now - self._rounds.ahead:
                self._exchange.wait(under_way.popleft()[1], deadline)
            sends = [send for part, chunk in firing for send in self._fire(part, chunk)]
            sends.sort(key=lambda send: send[0])
            messages = [self._arrival(part, number, chunk) for (part, number), chunk in arriving]
            messages += [message for _, message in sends]
            if messages:
                batch = self._exchange.post(messages, self._tag)
                under_way.append((now, batch))
        for _, left in under_way:
            self._exchange.wait(left, deadline)
        self._exchange.finish([] if batch is None else [batch], deadline)

    def _arrival(self, part: Part, number: int, chunk: int) -> Message:
        """The message that inlet ``number`` receives."""
        return Message(self._slot(part, number, chunk), part.role, chunk, part.inlets[number].peer, True)

    def _fire(self, part: Part, chunk: int) -> list[tuple[int, Message]]:
        """One firing; what it sends, with the places in the batch."""
        value = self._value(part, chunk)
        return [(outlet.order, Message(value, part.role, chunk, outlet.peer, False)) for outlet in part.outlets]

    def _value(self, part: Part, chunk: int) -> torch.Tensor:
        """What a firing makes, as :mod:`blinkccl.schedule.program` says, where it stays until it has been sent."""
        role = part.role
        operands = [self._slot(part, number, chunk) for number in range(len(part.inlets))]
        own = role.own_operand_index if role.contributes else None
        factor = self._factor if role.contributes else None
        if own is not None:
            operands.insert(own, self._chunk(self._tensors.input, part.source, part, chunk))
        kept = self._chunk(self._tensors.output, part.target, part, chunk) if role.keeps else None
        if len(operands) == 1 and factor is None and part.divisor == 1:
            if kept is None:
                return operands[0]
            if kept.data_ptr() != operands[0].data_ptr():
                kept.copy_(operands[0])
            return kept
        value = kept if kept is not None else self._staged(part.scratch, part, chunk)
        self._memory.fold(operands, value, own, factor, part.divisor)
        return value

    def _slot(self, part: Part, number: int, chunk: int) -> torch.Tensor:
        """Where a message is received."""
        slots = part.slots[number]
        if slots is None:
            return self._chunk(self._tensors.output, part.target, part, chunk)
        return self._staged(slots, part, chunk)

    def _staged(self, copies: list[torch.Tensor], part: Part, chunk: int) -> torch.Tensor:
        return copies[chunk % len(copies)][: part.length - chunk * self._memory.chunk_elements]

    def _chunk(self, memory: torch.Tensor | None, at: int | None, part: Part, chunk: int) -> torch.Tensor:
        """A chunk of the part's slice in one of the caller's tensors."""
        assert at is not None  # check_roles has seen to it
        assert memory is not None  # and bound_tensors to that
        first = chunk * self._memory.chunk_elements
        stop = min(first + self._memory.chunk_elements, part.length)
        return memory[at + first : at + stop]


def _agenda(entries: Sequence[tuple[int, int, _Item]], period: int, last: int) -> Iterator[list[tuple[_Item, int]]]:
    """For each round up to ``last`` what is due in it, as (item, chunk), in the order of ``entries``.

    An entry (start, chunks, item) is due ``chunks`` times, first in round ``start`` and then every ``period``.
    """
    due: dict[int, list[tuple[int, int]]] = {}
    for index, (start, _, _) in enumerate(entries):
        due.setdefault(start, []).append((index, 0))
    for now in range(last + 1):
        today = sorted(due.pop(now, ()))
        for index, chunk in today:
            if chunk + 1 < entries[index][1]:
                due.setdefault(now + period, []).append((index, chunk + 1))
        yield [(entries[index][2], chunk) for index, chunk in today]
