"""Ranks on several hosts in one process: a thread and a segment of its own each, with messages over UCX."""

import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines.buffers import Arithmetic, filled
from blinkccl.engines.host import Endpoint, NativeOp, format_segment, native_scale, segment_bytes, shape_of
from blinkccl.engines.host_plan import Area, HostPlan
from blinkccl.runtime import ucx
from blinkccl.runtime.hosts import Hosts
from blinkccl.schedule.program import Program

AREA = Area(staging_bytes=1 << 20)
TIMEOUT_US = 20_000_000


@contextmanager
def connected(hosts: Hosts, segments: list[tuple[int, int]] | None = None) -> Iterator[list[Endpoint]]:
    """An endpoint per rank; those of one host share a segment. ``segments`` gets address and size of each."""
    os.environ.setdefault("UCX_TLS", "tcp")
    library = ucx.find()
    endpoints: dict[int, Endpoint] = {}
    bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(hosts.size)]
    shape, token = shape_of(hosts.size, AREA), secrets.token_bytes(16)
    size = segment_bytes(shape)
    with ExitStack() as undo:
        for bell in bells:
            undo.callback(os.close, bell)
        for members in hosts.members:
            memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
            format_segment(memory.ctypes.data, size, shape, token)
            if segments is not None:
                segments.append((memory.ctypes.data, size))
            for rank in members:
                endpoints[rank] = Endpoint(memory.ctypes.data, size, rank, token)
            undo.callback(lambda memory: None, memory)
        addresses = [endpoints[rank].open_network(library, bells[rank]) for rank in range(hosts.size)]
        for rank in range(hosts.size):
            for peer, address in enumerate(addresses):
                if hosts.host_of[peer] != hosts.host_of[rank]:
                    endpoints[rank].connect(peer, address)
                else:
                    endpoints[rank].set_bell(peer, bells[peer])
        try:
            yield [endpoints[rank] for rank in range(hosts.size)]
        finally:
            # All at once: a connection closes in order when both its ends progress.
            with ThreadPoolExecutor(hosts.size) as pool:
                list(pool.map(lambda endpoint: endpoint.close(), endpoints.values()))


def run_on(
    endpoints: Sequence[Endpoint],
    plan: HostPlan,
    inputs: Sequence[Any],
    call: CollectiveCall,
    *,
    chunk_bytes: int,
    scales: Sequence[float] | None = None,
    in_place: bool = False,
) -> list[Any]:
    """The outputs of all ranks, each run by a thread."""
    collective = plan.program.collective
    factors = Arithmetic.of(collective, call, scales).factors
    buffers = filled(collective, inputs, call.elements, call.dtype, in_place)
    ops = [NativeOp(endpoint, plan, call, chunk_bytes) for endpoint in endpoints]

    def one(rank: int) -> None:
        send, recv = (
            None if each is None else each.ctypes.data for each in (buffers.inputs[rank], buffers.outputs[rank])
        )
        ops[rank].run(send, recv, TIMEOUT_US, None if factors is None else native_scale(factors[rank]))

    with ThreadPoolExecutor(len(ops)) as pool:
        list(pool.map(one, range(len(ops))))
    for op in ops:
        op.close()
    return list(buffers.outputs)


class EveryRankApart:
    """An engine, as :class:`support.engines.RunProgram`, with a host per rank; connections stay open."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._of_size: dict[int, list[Endpoint]] = {}

    def __call__(
        self,
        program: Program,
        inputs: Sequence[Any],
        call: CollectiveCall,
        *,
        scales: Sequence[float] | None = None,
        chunk_bytes: int,
        in_place: bool = False,
    ) -> list[Any]:
        size = len(program.ranks)
        if size not in self._of_size:
            self._of_size[size] = self._stack.enter_context(connected(Hosts.of(range(size))))
        plan = HostPlan(program, AREA)
        return run_on(
            self._of_size[size], plan, inputs, call, chunk_bytes=chunk_bytes, scales=scales, in_place=in_place
        )

    def close(self) -> None:
        """Close all connections; the next call makes new ones."""
        self._stack.close()
        self._of_size.clear()


#: The one of all conformance tests.
EVERY_RANK_APART = EveryRankApart()
