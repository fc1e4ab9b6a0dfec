"""How do messages travel over a torch process group, and who is to blame where one does not?

One batch per round: all receives first, then all sends, both in the order that both ends agree on. Gloo's sends
wait for their receives, NCCL's must be in one batch with what they depend on and are matched by order, MPI and UCC
ask for less. Messages travel as bytes, so any element type does on any backend.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError, PlanMismatchError, UsageError
from blinkccl.schedule.program import Role

#: What MPI promises at least; tags only keep calls that do not belong together from being matched.
TAGS = 32767


@dataclass(frozen=True, slots=True)
class Message:
    """One half of a message: ``chunk`` of ``role``'s slice, received from or sent to ``peer`` (a rank of the group)."""

    memory: torch.Tensor
    role: Role
    chunk: int
    peer: int
    received: bool

    def __str__(self) -> str:
        role = self.role
        what = f"chunk {self.chunk} of channel {role.channel} {'from' if self.received else 'to'} rank {self.peer}"
        return f"{what} ({role.stage} of share {role.share})"


@dataclass(frozen=True, slots=True)
class Batch:
    """What was posted in one round: a handle per message, or one for all where the backend groups them."""

    messages: Sequence[Message]
    works: Sequence[Any]


class Exchange:
    """Point-to-point messages between this rank and the others of ``group``.

    Parameters
    ----------
    group
        Any process group that has send and recv; None is the default group.
    device
        Where all messages are.

    Raises
    ------
    UsageError
        If there is no such group, or this process is not in it.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        if not dist.is_initialized():
            raise UsageError("torch.distributed is not initialised: call init_process_group() first")
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        if self.rank < 0:
            raise UsageError(f"rank {dist.get_rank()} is not in this process group; only its members may use it")
        self.size = dist.get_world_size(self.group)
        self.device = device

    def agree(self, token: bytes, what: str, deadline_s: float) -> None:
        """Makes sure that all ranks hold the same ``token``; a collective call.

        It is a collective of the library on purpose: NCCL wants all ranks in the first call on a group.

        Raises
        ------
        PlanMismatchError
            If they do not: which ranks differ from rank 0.
        DeadlineError, CommunicationError
            If they do not answer.
        """
        mine = torch.tensor(list(token), dtype=torch.uint8, device=self.device)
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        deadline = time.monotonic() + deadline_s
        try:
            work = dist.all_gather(theirs, mine, group=self.group, async_op=True)
            if work is not None:
                work.wait(_left(deadline))
        except RuntimeError as error:
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"rank {self.rank} waited past the deadline ({deadline_s:g} s) for all ranks of the group to make "
                    f"the same execution: {error}"
                ) from error
            raise CommunicationError(f"rank {self.rank} could not compare {what} with the others: {error}") from error
        others = [rank for rank, their in enumerate(theirs) if bytes(their.tolist()) != bytes(theirs[0].tolist())]
        if others:
            raise PlanMismatchError(
                f"{what} of rank(s) {', '.join(map(str, others))} is not that of rank 0; give all ranks the same"
            )

    def post(self, messages: Sequence[Message], tag: int) -> Batch:
        """Posts one batch; receives must stand before sends.

        Raises
        ------
        PeerLostError, CommunicationError
            If the connection is broken already.
        """
        try:
            if self.device.type == "cpu":  # nothing to group: what batch_isend_irecv does then, at a third of its cost
                works = [self._post_one(message, tag) for message in messages]
            else:
                works = dist.batch_isend_irecv([self._operation(message, tag) for message in messages])
        except RuntimeError as error:
            raise self._lost(messages, error) from error
        return Batch(messages, works)

    def _post_one(self, message: Message, tag: int) -> Any:
        post = self.group.recv if message.received else self.group.send
        return post([message.memory.view(torch.uint8)], message.peer, tag)

    def _operation(self, message: Message, tag: int) -> dist.P2POp:
        kind = dist.irecv if message.received else dist.isend
        memory = message.memory.view(torch.uint8)
        return dist.P2POp(kind, memory, group=self.group, tag=tag, group_peer=message.peer)

    def wait(self, batch: Batch, deadline: float) -> None:
        """Waits until a batch has been sent and received; on a GPU the current stream waits, not the host.

        Parameters
        ----------
        deadline
            By ``time.monotonic()``. MPI's handles do not know deadlines.

        Raises
        ------
        DeadlineError
            Naming rank, chunk, channel and peer.
        PeerLostError
            If the connection to a peer broke; where the backend does not tell which, CommunicationError.
        """
        single = len(batch.works) == len(batch.messages)
        for index, work in enumerate(batch.works):
            messages = [batch.messages[index]] if single else batch.messages
            try:
                if self.device.type == "cpu":
                    work.wait(_left(deadline))
                else:
                    work.wait()
            except RuntimeError as error:
                if time.monotonic() >= deadline:
                    raise self._late(messages) from error
                raise self._lost(messages, error) from error

    def finish(self, batches: Sequence[Batch], deadline: float) -> None:
        """Waits for the device itself, where it works on its own: here the host polls until the deadline.

        Raises
        ------
        DeadlineError
            Naming the last messages.
        """
        if self.device.type != "cuda":
            return
        cuda: Any = torch.cuda  # its events have no types
        done = cuda.Event()
        done.record(cuda.current_stream(self.device))
        while not done.query():
            if time.monotonic() >= deadline:
                raise self._late([message for batch in batches for message in batch.messages])
            time.sleep(20e-6)

    def _late(self, messages: Sequence[Message]) -> DeadlineError:
        return DeadlineError(
            f"rank {self.rank} waited past the deadline for {_named(messages)}; do all ranks make this call, with "
            "the same count, type, operation and chunk_bytes, and is the deadline long enough for this size?"
        )

    def _lost(self, messages: Sequence[Message], error: Exception) -> CommunicationError:
        peers = sorted(dict.fromkeys(message.peer for message in messages))
        reason = " ".join(str(error).split())
        text = f"rank {self.rank} waited for {_named(messages)}: {reason}"
        return PeerLostError(peers[0], text) if len(peers) == 1 else CommunicationError(text)


def _left(deadline: float) -> timedelta:
    """What is left; never 0, which torch takes for "no deadline"."""
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _named(messages: Sequence[Message]) -> str:
    shown = "; ".join(map(str, messages[:4]))
    return shown + (f"; and {len(messages) - 4} more" if len(messages) > 4 else "")
