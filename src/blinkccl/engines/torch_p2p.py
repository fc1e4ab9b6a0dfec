"""Runs a Program over any process group of PyTorch that can send and receive: gloo, NCCL, MPI, UCC.

Each process is one rank of the program. All ranks exchange their messages in common rounds
(:mod:`blinkccl.engines.torch_p2p_rounds`): in each, a rank fires what is due, posts one batch, and goes on when the
batch is there. So chunks of all shares and channels travel at once, and nothing depends on tags or on buffering.

Memory besides the caller's tensors: a few chunks per queue, whatever the size. A message that is only kept is
received where it is kept, and an own contribution that nothing is added to is sent from where it lies.
"""

from __future__ import annotations

import time
import zlib

import torch
import torch.distributed as dist

from blinkccl.collectives.ops import DType, Operation, element_type, operation
from blinkccl.engines.buffers import check_roles
from blinkccl.engines.torch_p2p_actors import actors_of
from blinkccl.engines.torch_p2p_exchange import TAGS, Exchange
from blinkccl.engines.torch_p2p_rounds import plan_rounds
from blinkccl.engines.torch_p2p_run import Memory, Run
from blinkccl.engines.torch_p2p_tensors import bound_tensors
from blinkccl.errors import CommunicationError, UsageError
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES, bind
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import program_hash


class TorchP2P:
    """A program on a process group, prepared once. Making one is a collective call: all ranks compare programs.

    Parameters
    ----------
    program
        One that the verifier accepts, with as many ranks as the group; rank i of the program is rank i of the group.
    group
        A process group; None is the default one.
    device
        Where the tensors will be: "cpu", or "cuda:0" for NCCL.
    ahead
        Rounds that a message may take. 1 has the least latency; with 2 a round's messages travel while the next round
        is computed, at the price of a fill twice as long and, with one slot per queue, of half the rate.
    deadline_s
        Seconds for the other ranks to make theirs.

    Raises
    ------
    UsageError
        If group and program do not fit.
    UnsupportedError
        If the program cannot run in rounds.
    PlanMismatchError
        If the ranks hold different programs.
    DeadlineError, CommunicationError
        If the others do not answer.

    Examples
    --------
    >>> execution = TorchP2P(program, group)                      # doctest: +SKIP
    >>> execution.run(tensor, tensor, tensor.numel(), "sum")      # doctest: +SKIP
    """

    def __init__(
        self,
        program: Program,
        group: dist.ProcessGroup | None = None,
        *,
        device: torch.device | str = "cpu",
        ahead: int = 1,
        deadline_s: float = 60.0,
    ) -> None:
        self._program = program
        self._exchange = Exchange(group, torch.device(device))
        if self._exchange.size != len(program.ranks):
            raise UsageError(
                f"the program has {len(program.ranks)} ranks, the process group {self._exchange.size}; plan for these"
            )
        check_roles(program)
        self._rounds = plan_rounds(program, ahead)
        self._actors = actors_of(program, self._rounds, self._exchange.rank)
        self._hash = program_hash(program)
        self._calls = 0
        self._failed: str | None = None
        self._last: tuple[tuple[object, ...], Memory] | None = None
        self._exchange.agree(f"{self._hash} {ahead}".encode(), "the program", deadline_s)

    @property
    def staging_bytes(self) -> int:
        """Memory held besides the caller's tensors, for calls of the last call's sizes."""
        return 0 if self._last is None else self._last[1].staging_bytes

    def run(
        self,
        input_tensor: torch.Tensor | None,
        output_tensor: torch.Tensor | None,
        count: int,
        op: str = "sum",
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        *,
        scale: float | None = None,
        dtype: torch.dtype | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        """Runs the collective once; all ranks call it in the same order, with the same arguments.

        Parameters
        ----------
        input_tensor, output_tensor
            This rank's blocks of ``count`` elements each, of any shape and layout, or None where the collective
            gives it none. In place as in nccl.h: an item's input and output block are the same memory.
        count
            Elements per block.
        op
            A name in :data:`blinkccl.collectives.ops.OPS`.
        chunk_bytes
            Wanted size of a message. The default suits shared memory; networks want more.
        scale
            This rank's scalar of ``premul_sum``.
        dtype
            Needed only by a rank that has neither tensor, and passes on what others send.
        deadline_s
            Seconds for the whole call.

        Raises
        ------
        UsageError, UnsupportedError
            If tensors, count, type or operation do not fit; nothing has been sent then.
        DeadlineError
            If a message does not come in time: rank, chunk, channel and peer.
        PeerLostError, CommunicationError
            If a connection broke. After these three this object, and with gloo the group, is of no use any more.

        Notes
        -----
        Cost: one batch of messages per round; rounds = period · (chunks of the longest slice − 1) + the latest start
        + 1. The same bits as the reference engine. On a GPU the host waits for the result, for the deadline's sake.
        """
        if self._failed is not None:
            raise CommunicationError(f"this execution failed before ({self._failed}); make a new process group")
        deadline = time.monotonic() + deadline_s
        chosen = operation(op)
        rank, collective = self._exchange.rank, self._program.collective
        tensors = bound_tensors(collective, rank, input_tensor, output_tensor, count, dtype, self._exchange.device)
        row = element_type(str(tensors.dtype).removeprefix("torch."))
        if chosen.scales != (scale is not None):
            wanted = "needs a scale" if chosen.scales else "takes no scale"
            raise UsageError(f"{op} {wanted}, got {scale}; scales are for premul_sum")
        memory = self._memory(row, chosen, count, chunk_bytes)
        factor = memory.fold.scalar(scale) if scale is not None and collective.reduces else None
        self._calls += 1
        call = f"{self._hash} {self._calls} {count} {row.name} {op} {chunk_bytes}"
        tag = 1 + zlib.crc32(call.encode()) % TAGS  # 0 is what other users of the group take
        try:
            Run(self._exchange, self._rounds, memory, tensors, factor, tag).go(deadline)
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise
        tensors.store()

    def _memory(self, row: DType, chosen: Operation, count: int, chunk_bytes: int) -> Memory:
        """Staging for these sizes: that of the last call, if it had the same."""
        key = (row.name, chosen.name, count, chunk_bytes)
        if self._last is None or self._last[0] != key:
            bound = bind(self._program, count, row.itemsize, chunk_bytes)
            self._last = key, Memory(self._actors, self._rounds, bound, row, chosen, self._exchange.device)
        return self._last[1]
