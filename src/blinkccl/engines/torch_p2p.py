"""Execution of a Program over send and recv of a PyTorch process group that matches by tags: gloo, MPI or UCC.

Each rank executes its own roles in the order of their ticks. It posts a receive for each slot of its incoming queues.
It waits for the oldest send of a queue when as many sends as the queue has slots are in progress. A queue thus holds at
least its slots, and liveness needs no more. :func:`blinkccl.collectives.ops.fold` reduces operands in the Program's
order, so results equal those of the reference engine bit for bit. Messages are bytes, so any element type works.
Tensors on a device are reduced on the host. NCCL is rejected: it has no tags, and it needs calls that depend on each
other in one batch.
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
#: The largest tag that every MPI allows. Each call has its own tags, so different calls do not match.
_TAGS = 32767
#: Seconds in which the ranks of a local run have to connect.
_MEET_S = 60.0


class TorchP2P:
    """A program that the verifier accepts on a process group, or on a backend of one.

    Rank i of the program is rank i of the group. The constructor is a collective call, which waits for the others at
    most ``deadline_s``; PlanMismatchError if the ranks hold different programs.
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
        """Run the collective once; all ranks call it in the same order, with the same arguments.

        ``send`` and ``recv`` are this rank's blocks, of any shape and layout, or None where the collective gives it
        none; in place as in nccl.h. ``scale`` is this rank's scalar of ``premul_sum``. ``chunk_bytes`` is the size of a
        message: the default suits shared memory; networks need more.

        Tensors, type and operation are checked before anything is sent. DeadlineError and PeerLostError name rank,
        chunk, channel and peer. After one of them this object, and with gloo the group, cannot be used again.
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
        """Do the same as :meth:`run`, on arrays; only this rank's arrays are used."""
        if self._failed is not None:
            raise CommunicationError(f"this execution failed before ({self._failed}); make a new process group")
        values = Arithmetic.of(self._program.collective, call, scales)
        bound = bind(self._program, call.elements, values.dtype.itemsize, chunk_bytes)
        self._calls += 1
        identity = f"{self._hash} {self._calls} {call.elements} {call.dtype} {call.op} {chunk_bytes}"
        queues = max(1, len(self._program.queues))
        # Other users of the group have tag 0.
        first_tag = 1 + zlib.crc32(identity.encode()) % max(1, _TAGS // queues) * queues
        deadline = time.monotonic() + deadline_s
        try:
            actor = _RankActor(self._group, bound, values, first_tag, deadline)
            with np.errstate(all="ignore"):  # an overflow to inf is a result
                actor.go([role_views(bound, buffers, role, values) for role in actor.roles])
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise

    def _agree(self, deadline_s: float) -> None:
        """Compare the hashes of all ranks' programs; PlanMismatchError if they differ, DeadlineError if one is late."""
        import torch

        own_hash = torch.tensor(list(self._hash.encode()), dtype=torch.uint8)
        hashes = [torch.empty_like(own_hash) for _ in range(self._group.size())]
        deadline = time.monotonic() + deadline_s
        try:
            self._group.allgather([hashes], [own_hash]).wait(_left(deadline))
        except RuntimeError as error:
            kind = DeadlineError if time.monotonic() >= deadline else CommunicationError
            raise kind(f"rank {self._rank} could not compare the program with the other ranks: {error}") from error
        others = [str(rank) for rank, value in enumerate(hashes) if not torch.equal(value, hashes[0])]
        if others:
            raise PlanMismatchError(
                f"the program of rank(s) {', '.join(others)} is not that of rank 0; pass the same program on all ranks"
            )


class _RankActor:
    """One rank in one call: its roles, and its messages in progress."""

    def __init__(self, group: Any, bound: Bound, values: Arithmetic, first_tag: int, deadline: float) -> None:
        self._group, self._rank, self._bound, self._values = group, group.rank(), bound, values
        self._first_tag, self._deadline = first_tag, deadline
        program = bound.program
        self.roles = [role for role in program.roles if role.rank == self._rank and bound.extents[role.slice].chunks]
        #: Per queue: its slots, the lengths of messages without a receive yet, and the receives and sends in progress.
        self._slots = {q: program.channels[role.channel].slots for role in program.roles for q in role.sends}
        self._expected: dict[int, deque[int]] = {}
        self._arriving: dict[int, deque[tuple[Any, Array]]] = {}
        self._leaving: dict[int, deque[tuple[Any, Array, str]]] = {}

    def go(self, views: Sequence[RoleViews]) -> None:
        """Execute the roles tick by tick, then wait for all sends."""
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
        """Execute a role for one chunk: receive, reduce, keep, send (:mod:`blinkccl.schedule.program`)."""
        messages = [self._received(queue, role, chunk) for queue in role.receives]
        value = execute(role, view, span, messages, self._values)
        for queue in role.sends:
            if len(self._leaving.setdefault(queue, deque())) >= self._slots[queue]:
                self._sent(queue)
            peer = self._bound.program.queues[queue].dst
            message = _words(role, chunk, f"to rank {peer}")
            send = partial(self._group.send, [_as_tensor(value)], peer, self._first_tag + queue)
            self._leaving[queue].append((self._try(send, message, peer), value, message))

    def _received(self, queue: int, role: Role, chunk: int) -> Array:
        """The next message of a queue; posts the receive of a later one."""
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
        """Wait for the oldest send of a queue."""
        work, _, message = self._leaving[queue].popleft()
        self._try(lambda: work.wait(_left(self._deadline)), message, self._bound.program.queues[queue].dst)

    def _try(self, step: Any, message: str, peer: int) -> Any:
        """The result of ``step``; errors name this rank, the message and the peer."""
        try:
            return step()
        except RuntimeError as error:
            if time.monotonic() >= self._deadline:
                raise DeadlineError(
                    f"rank {self._rank} waited past the deadline for {message}; check that all ranks make this call, "
                    "with the same count, type, operation and chunk_bytes, and that the deadline suits the size"
                ) from error
            reason = " ".join(str(error).split())
            raise PeerLostError(peer, f"rank {self._rank} waited for {message}: {reason}") from error


def _words(role: Role, chunk: int, peer: str) -> str:
    return f"chunk {chunk} of channel {role.channel} {peer} ({role.stage} of share {role.share})"


def _left(deadline: float) -> timedelta:
    """The time left; never 0, because torch reads 0 as no deadline."""
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _as_tensor(array: Array) -> Tensor:
    """A tensor of bytes on the same memory."""
    import torch

    return torch.from_numpy(array.view(np.uint8))


def _as_array(program: Program, rank: int, call: CollectiveCall, tensor: Tensor | None, side: str) -> Array | None:
    """The tensor's elements in order: its own memory if it is contiguous and on the CPU, else a copy."""
    import torch

    collective = program.collective
    blocks = collective.input_blocks(rank) if side == "input" else collective.output_blocks(rank)
    where = f"{collective.name}: rank {rank}'s {side}"
    if (tensor is None) != (blocks == 0):
        raise UsageError(f"{where}: expected {blocks} block(s), got {'none' if tensor is None else 'a tensor'}")
    if tensor is None:
        return None
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"{where} is sparse; pass its values")
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
    """Run a collective once over gloo, a thread per rank; see :class:`blinkccl.engines.registry.RunProgram`."""
    buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place)
    size = len(program.ranks)
    with _one_at_a_time, ThreadPoolExecutor(size, "blink-torch-p2p") as pool:

        def one(group: Any) -> None:
            execution = TorchP2P(program, group, deadline_s=deadline_s)
            execution.execute(call, buffers, scales, chunk_bytes, deadline_s)

        futures = [pool.submit(one, group) for group in _local_groups(size, pool)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            del _local[size]  # gloo's connections do not survive a call that failed on a rank
            raise next((error for error in errors if isinstance(error, DeadlineError)), errors[0])
    return list(buffers.outputs)


def _local_groups(size: int, pool: ThreadPoolExecutor) -> list[Any]:
    """A gloo backend per rank, all in this process; kept for later calls with the same number of ranks."""
    if size not in _local:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_gloo_available()):
            raise UnsupportedError("this PyTorch has no gloo")
        store, options = dist.HashStore(), dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="localhost")]  # not reachable from other hosts
        options._timeout = timedelta(seconds=_MEET_S)
        _local[size] = list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, size, options), range(size)))
    return _local[size]
