"""Runs a Program over the send and recv of a process group of PyTorch: gloo, MPI, UCC, whatever matches by tags.

Each rank executes its own roles in the order of their ticks. For every queue that ends here, receives are posted as
many messages ahead as the queue has slots; a send is waited for when as many are under way. So a queue holds at least
its slots, which is all that liveness needs. Operands are combined by :func:`blinkccl.collectives.ops.fold` in the order
that the Program says: the bits are those of the reference engine. Messages travel as bytes, so any element type does.
Tensors on a device are combined on the host. NCCL has no tags, and wants what depends on each other in one batch: it is
refused.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type
from blinkccl.engines.buffers import (
    Arithmetic,
    RankBuffers,
    RoleViews,
    check_overlap,
    check_roles,
    execute,
    filled,
    role_views,
)
from blinkccl.errors import (
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    UnsupportedError,
    UsageError,
)
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES, Bound, bind
from blinkccl.schedule.program import Program, Role
from blinkccl.schedule.text import program_hash

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
#: What MPI promises at least. A call's own tags keep calls that differ between ranks from being matched.
_TAGS = 32767
#: Of a local run, for its ranks to meet.
_MEET_S = 60.0


class TorchP2P:
    """A program that the verifier accepts on a process group, or on a backend of one.

    Rank i of the program is rank i of the group. Making one is a collective call, which waits for the others at most
    ``deadline_s``: a PlanMismatchError if the ranks hold different programs.
    """

    def __init__(self, program: Program, group: Any, *, deadline_s: float = 60.0) -> None:
        self._program = program
        self._group = group
        self._rank: int = self._group.rank()
        if self._group.size() != len(program.ranks):
            raise UsageError(
                f"the program has {len(program.ranks)} ranks, the process group {self._group.size()}; plan for these"
            )
        if self._group.name() == "nccl":
            raise UnsupportedError("NCCL's send and recv have no tags; give the program a group of gloo, MPI or UCC")
        check_roles(program)
        self._hash = program_hash(program)
        self._calls = 0
        self._failed: str | None = None
        self._agree(deadline_s)

    def run(
        self,
        call: CollectiveCall,
        send: Tensor | None,
        recv: Tensor | None,
        *,
        scale: float | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        deadline_s: float = 60.0,
    ) -> None:
        """Runs the collective once; all ranks call it in the same order, with the same arguments.

        ``send`` and ``recv`` are this rank's blocks, of any shape and layout, or None where the collective gives it
        none; in place as in nccl.h. ``scale`` is this rank's scalar of ``premul_sum``. ``chunk_bytes`` is the wanted
        size of a message: the default suits shared memory; networks want more.

        Where tensors, type or operation do not fit nothing has been sent. After a DeadlineError or PeerLostError, which
        name rank, chunk, channel and peer, this object, and with gloo the group, is of no use any more.
        """
        source = _as_array(self._program, self._rank, call, send, "input")
        target = _as_array(self._program, self._rank, call, recv, "output")
        if source is not None and target is not None:
            check_overlap(self._program.collective, self._rank, source, target, call.elements)
        size = len(self._program.ranks)
        scales = None if scale is None else [scale] * size
        self.execute(call, RankBuffers((source,) * size, (target,) * size), scales, chunk_bytes, deadline_s)
        if recv is not None and target is not None and recv.data_ptr() != target.ctypes.data:
            recv.detach().copy_(_as_tensor(target).view(recv.dtype).view(recv.shape))

    def execute(
        self,
        call: CollectiveCall,
        buffers: RankBuffers,
        scales: Sequence[float] | None,
        chunk_bytes: int,
        deadline_s: float,
    ) -> None:
        """As :meth:`run`, on arrays; only this rank's are used."""
        if self._failed is not None:
            raise CommunicationError(f"this execution failed before ({self._failed}); make a new process group")
        values = Arithmetic.of(self._program.collective, call, scales)
        bound = bind(self._program, call.elements, values.dtype.itemsize, chunk_bytes)
        self._calls += 1
        told = f"{self._hash} {self._calls} {call.elements} {call.dtype} {call.op} {chunk_bytes}"
        queues = max(1, len(self._program.queues))
        first_tag = 1 + zlib.crc32(told.encode()) % max(1, _TAGS // queues) * queues  # 0 is other users' of the group
        deadline = time.monotonic() + deadline_s
        try:
            actor = _RankActor(self._group, bound, values, first_tag, deadline)
            with np.errstate(all="ignore"):  # an overflow to inf is a result
                actor.go([role_views(bound, buffers, role, values) for role in actor.roles])
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise

    def _agree(self, deadline_s: float) -> None:
        """Makes sure that all ranks hold the same program; the others' answers are waited for."""
        import torch

        mine = torch.tensor(list(self._hash.encode()), dtype=torch.uint8)
        theirs = [torch.empty_like(mine) for _ in range(self._group.size())]
        deadline = time.monotonic() + deadline_s
        try:
            self._group.allgather([theirs], [mine]).wait(_left(deadline))
        except RuntimeError as error:
            kind = DeadlineError if time.monotonic() >= deadline else CommunicationError
            raise kind(f"rank {self._rank} could not compare the program with the other ranks: {error}") from error
        others = [str(rank) for rank, their in enumerate(theirs) if not torch.equal(their, theirs[0])]
        if others:
            raise PlanMismatchError(f"the program of rank(s) {', '.join(others)} is not that of rank 0; give all one")


class _RankActor:
    """One rank in one call: its roles, and the messages that are under way to and from it."""

    def __init__(self, group: Any, bound: Bound, values: Arithmetic, first_tag: int, deadline: float) -> None:
        self._group, self._rank, self._bound, self._values = group, group.rank(), bound, values
        self._first_tag, self._deadline = first_tag, deadline
        program = bound.program
        self.roles = [role for role in program.roles if role.rank == self._rank and bound.extents[role.slice].chunks]
        #: Per queue: its slots, the lengths of messages still to be received, and the receives and sends under way.
        self._slots = {q: program.channels[role.channel].slots for role in program.roles for q in role.sends}
        self._expected: dict[int, deque[int]] = {}
        self._arriving: dict[int, deque[tuple[Any, Array]]] = {}
        self._leaving: dict[int, deque[tuple[Any, Array, str]]] = {}

    def go(self, views: Sequence[RoleViews]) -> None:
        """Executes the roles tick by tick, then waits until all has been sent."""
        schedule = list(self._bound.executions(self.roles))
        for place, _, span in schedule:
            for queue in self.roles[place].receives:
                self._expected.setdefault(queue, deque()).append(span.stop - span.start)
        for queue in self._expected:
            self._arriving[queue] = deque()
            for _ in range(self._slots[queue]):
                self._post(queue)
        for place, chunk, span in schedule:
            self._execute(self.roles[place], views[place], chunk, span)
        for queue in self._leaving:
            while self._leaving[queue]:
                self._sent(queue)

    def _execute(self, role: Role, view: RoleViews, chunk: int, span: slice) -> None:
        """One execution: receive, combine, keep, send, as :mod:`blinkccl.schedule.program` says."""
        messages = [self._received(queue, role, chunk) for queue in role.receives]
        value = execute(role, view, span, messages, self._values)
        for queue in role.sends:
            if len(self._leaving.setdefault(queue, deque())) >= self._slots[queue]:
                self._sent(queue)
            peer = self._bound.program.queues[queue].dst
            what = _words(role, chunk, f"to rank {peer}")
            work = self._try(partial(self._group.send, [_as_tensor(value)], peer, self._first_tag + queue), what, peer)
            self._leaving[queue].append((work, value, what))

    def _received(self, queue: int, role: Role, chunk: int) -> Array:
        """The next message of a queue; the receive of a later one takes its place."""
        peer = self._bound.program.queues[queue].src
        work, message = self._arriving[queue].popleft()
        self._try(lambda: work.wait(_left(self._deadline)), _words(role, chunk, f"from rank {peer}"), peer)
        self._post(queue)
        return message

    def _post(self, queue: int) -> None:
        if self._expected[queue]:
            message = np.empty(self._expected[queue].popleft(), self._values.dtype.storage)
            peer = self._bound.program.queues[queue].src
            receive = partial(self._group.recv, [_as_tensor(message)], peer, self._first_tag + queue)
            self._arriving[queue].append((self._try(receive, f"a message from rank {peer}", peer), message))

    def _sent(self, queue: int) -> None:
        """Waits for the oldest message that leaves by a queue."""
        work, _, what = self._leaving[queue].popleft()
        self._try(lambda: work.wait(_left(self._deadline)), what, self._bound.program.queues[queue].dst)

    def _try(self, step: Any, what: str, peer: int) -> Any:
        """What ``step`` returns; its error says what this rank waited for, and from whom."""
        try:
            return step()
        except RuntimeError as error:
            if time.monotonic() >= self._deadline:
                raise DeadlineError(
                    f"rank {self._rank} waited past the deadline for {what}; do all ranks make this call, with "
                    "the same count, type, operation and chunk_bytes, and is the deadline long enough for this size?"
                ) from error
            reason = " ".join(str(error).split())
            raise PeerLostError(peer, f"rank {self._rank} waited for {what}: {reason}") from error


def _words(role: Role, chunk: int, peer: str) -> str:
    return f"chunk {chunk} of channel {role.channel} {peer} ({role.stage} of share {role.share})"


def _left(deadline: float) -> timedelta:
    """What is left; never 0, which torch takes for "no deadline"."""
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _as_tensor(array: Array) -> Tensor:
    """The same memory as bytes."""
    import torch

    return torch.from_numpy(array.view(np.uint8))


def _as_array(program: Program, rank: int, call: CollectiveCall, tensor: Tensor | None, side: str) -> Array | None:
    """The tensor's elements, one after the other: its own memory where it is contiguous and on the CPU, else a copy."""
    import torch

    collective = program.collective
    blocks = collective.input_blocks(rank) if side == "input" else collective.output_blocks(rank)
    where = f"{collective.name}: rank {rank}'s {side}"
    if (tensor is None) != (blocks == 0):
        raise UsageError(f"{where}: expected {blocks} block(s), got {'none' if tensor is None else 'a tensor'}")
    if tensor is None:
        return None
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"{where} is sparse: give its values")
    if tensor.dtype != getattr(torch, call.dtype, None):
        raise UsageError(f"{where} is {tensor.dtype}; expected {call.dtype}")
    if tensor.numel() != blocks * call.elements:
        raise UsageError(f"{where} has {tensor.numel()} elements, expected {blocks} block(s) of {call.elements}")
    flat = tensor.detach().contiguous().view(-1).cpu().view(torch.uint8)
    array: Array = flat.numpy().view(element_type(call.dtype).storage)
    return array


_local: dict[int, list[Any]] = {}
_one_at_a_time = Lock()


def run(
    program: Program,
    inputs: Sequence[Array | None],
    call: CollectiveCall,
    *,
    scales: Sequence[float] | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    in_place: bool = False,
    deadline_s: float = 60.0,
) -> list[Array | None]:
    """Runs a collective once over gloo, a thread per rank; see :class:`blinkccl.engines.registry.RunProgram`."""
    buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place)
    size = len(program.ranks)
    with _one_at_a_time, ThreadPoolExecutor(size, "blink-torch-p2p") as pool:

        def one(group: Any) -> None:
            execution = TorchP2P(program, group, deadline_s=deadline_s)
            execution.execute(call, buffers, scales, chunk_bytes, deadline_s)

        futures = [pool.submit(one, group) for group in _local_groups(size, pool)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            del _local[size]  # gloo's connections do not survive a call that one rank has left
            raise next((error for error in errors if isinstance(error, DeadlineError)), errors[0])
    return list(buffers.outputs)


def _local_groups(size: int, pool: ThreadPoolExecutor) -> list[Any]:
    """A backend of gloo per rank, all in this process; they stay for the next call of so many ranks."""
    if size not in _local:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_gloo_available()):
            raise UnsupportedError("this PyTorch has no gloo")
        store, options = dist.HashStore(), dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="localhost")]  # nothing to reach from outside
        options._timeout = timedelta(seconds=_MEET_S)
        _local[size] = list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, size, options), range(size)))
    return _local[size]
