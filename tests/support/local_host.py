"""The host engine with all ranks in this process: a thread each, with the same native code and segment.

Only the loss of a rank cannot happen here. :func:`run` has the form of :class:`support.engines.RunProgram`.
"""

import ctypes as c
import mmap
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import Scale
from blinkccl.collectives.spec import Collective
from blinkccl.engines.buffers import Arithmetic, Array, RankBuffers, Zeros, filled
from blinkccl.engines.host import Endpoint, NativeOp, format_segment, native_scale, segment_bytes, shape_of
from blinkccl.engines.host_plan import Area, HostPlan
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.program import Program


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of :func:`run`.

    ``shared``: put the buffers into the ranks' shared heaps, where messages are read and written directly.
    ``cross_memory``: read messages in private buffers by system calls. Every rank's counters are appended to ``stats``.
    """

    shared: bool = False
    cross_memory: bool = False
    stats: list[dict[str, int]] | None = None


def run(
    program: Program,
    inputs: Sequence[Array | None],
    call: CollectiveCall,
    *,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    in_place: bool = False,
    deadline_s: float = 60.0,
    scales: Sequence[float] | None = None,
    options: HostOptions | None = None,
) -> list[Array | None]:
    """Run a collective once, with all ranks in this process; see :class:`support.engines.RunProgram`.

    The result has the bits of the reference engine. Cost beside the run: mapping a segment, and a thread per rank.
    """
    ways = options or HostOptions()
    values = Arithmetic.of(program.collective, call, scales)
    plan = HostPlan(program)
    block_bytes = call.elements * values.dtype.itemsize
    heap = mmap.mmap(-1, _heap_bytes(program.collective, block_bytes)) if ways.shared else None
    zeros = np.zeros if heap is None else _in_heap(heap)
    buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place, zeros)
    with local_endpoints(len(program.ranks), plan.area, heap) as endpoints:
        ops = [NativeOp(endpoint, plan, call, chunk_bytes, ways.cross_memory) for endpoint in endpoints]
        try:
            _go(ops, buffers, int(deadline_s * 1e6), values.factors)
            if ways.stats is not None:
                ways.stats.extend([endpoint.stats() for endpoint in endpoints])
        finally:
            for each in ops:
                each.close()
    return list(buffers.outputs)


def _go(ops: Sequence[NativeOp], buffers: RankBuffers, timeout_us: int, factors: tuple[Scale, ...] | None) -> None:
    """Run all ranks concurrently, a thread each; the first error ends all of them."""
    scales = [None] * len(ops) if factors is None else [native_scale(factor) for factor in factors]
    calls = zip(ops, map(_address, buffers.inputs), map(_address, buffers.outputs), scales, strict=True)
    with ThreadPoolExecutor(len(ops), "blink-host-rank") as pool:
        futures = [pool.submit(each.run, source, target, timeout_us, scale) for each, source, target, scale in calls]
        try:
            for future in futures:
                future.result()
        except BaseException:  # If the caller was interrupted, the ranks must stop waiting.
            ops[0].endpoint.abort("it was interrupted")
            raise


def _address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


@contextmanager
def local_endpoints(ranks: int, area: Area, heap: mmap.mmap | None = None) -> Iterator[list[Endpoint]]:
    """A segment in private memory of this process, with an endpoint per rank; ``heap`` is shared by all ranks."""
    shape, token = shape_of(ranks, area), secrets.token_bytes(16)
    size = segment_bytes(shape)
    memory = mmap.mmap(-1, size)
    base = _Mapped(memory)
    endpoints: list[Endpoint] = []
    try:
        format_segment(base.address, size, shape, token)
        for rank in range(ranks):
            endpoints.append(Endpoint(base.address, size, rank, token))
        if heap is not None:
            at = _Mapped(heap)
            for endpoint in endpoints:
                for rank in range(ranks):
                    endpoint.set_heap(rank, len(heap), address=at.address)
            at.release()
        yield endpoints
    finally:
        for endpoint in endpoints:
            endpoint.close()
        base.release()
        memory.close()


@dataclass
class _Mapped:
    """The address of a mapping; ctypes gives it only while it exports the buffer."""

    memory: mmap.mmap

    def __post_init__(self) -> None:
        self._view: Any = (c.c_char * 1).from_buffer(self.memory)
        self.address = c.addressof(self._view)

    def release(self) -> None:
        """Release the buffer, so that the mapping can be closed."""
        self._view = None


def _in_heap(heap: mmap.mmap) -> Zeros:
    """An allocator of consecutive arrays in ``heap``, each on its own pages."""
    place = 0

    def zeros(elements: int, dtype: np.dtype[Any]) -> Array:
        nonlocal place
        array = np.frombuffer(heap, dtype, elements, place)
        place += -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return array

    return zeros


def _heap_bytes(collective: Collective, block_bytes: int) -> int:
    """Bytes for all ranks' buffers, each on its own pages."""
    ranks = range(collective.world_size)
    blocks = sum(collective.input_blocks(rank) + collective.output_blocks(rank) for rank in ranks)
    return blocks * block_bytes + (2 * collective.world_size + 1) * mmap.PAGESIZE
