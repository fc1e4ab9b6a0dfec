"""The pattern in the input buffers of a benchmark, and the expected outputs.

A collective works on blocks element by element. If every input block repeats its first ``period`` elements, every
output block repeats the result of those. One period of inputs and of the oracle therefore checks any size. The period
is a prime, so a chunk at the offset of another chunk is noticed.

Rank processes get their part of the pattern with the command, so a peer in C can check every type and operation
without its arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.bench.protocol import Command, Flag, Kind
from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.oracle import make_inputs, make_scales, oracle
from blinkccl.collectives.spec import Collective
from blinkccl.engines.buffers import shared_blocks

#: Period of a buffer, in elements.
PERIOD = 4093


@dataclass(frozen=True, slots=True)
class TimedCall:
    """Calls that all ranks of a candidate run and time: ``count`` elements per block, with timeout ``deadline_s``.

    ``in_place``, ``shared``, ``check``, ``keep`` and ``with_barrier`` are flags of :mod:`blinkccl.bench.protocol`.
    """

    collective: Collective
    count: int
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = True
    shared: bool = False
    check: bool = True
    keep: bool = False
    warmup: int = 1
    iterations: int = 20
    deadline_s: int = 60
    with_barrier: bool = False

    @property
    def size(self) -> int:
        """nccl-tests' S, in bytes."""
        return self.count * self.collective.total_blocks() * element_type(self.dtype).itemsize

    @property
    def buffer_bytes(self) -> list[int]:
        """Total bytes of each rank's buffers."""
        held = [_blocks(self.collective, rank, self.in_place) for rank in range(self.collective.world_size)]
        return [blocks * self.count * element_type(self.dtype).itemsize for blocks in held]


def _blocks(collective: Collective, rank: int, in_place: bool) -> int:
    inputs, outputs = collective.input_blocks(rank), collective.output_blocks(rank)
    return max(inputs, outputs) if in_place else inputs + outputs


def commands(work: TimedCall) -> list[Command]:
    """The command for each rank."""
    return [_command(work, rank) for rank in range(work.collective.world_size)]


def _command(work: TimedCall, rank: int) -> Command:
    collective, dtype = work.collective, element_type(work.dtype)
    period = min(PERIOD, work.count)
    fills, expected = _patterns(collective, period, work.dtype, work.op)
    flags = {
        Flag.IN_PLACE: work.in_place,
        Flag.SHARED: work.shared,
        Flag.CHECK: work.check,
        Flag.KEEP: work.keep,
        Flag.WITH_BARRIER: work.with_barrier,
    }
    source, target = next(shared_blocks(collective, rank), (0, 0))
    return Command(
        Kind.RUN,
        collective.name,
        work.dtype,
        work.op,
        collective.root or 0,
        collective.src or 0,
        collective.dst or 0,
        Flag(sum(flag for flag, is_set in flags.items() if is_set)),
        work.warmup,
        work.iterations,
        work.deadline_s,
        dtype.itemsize,
        collective.input_blocks(rank),
        collective.output_blocks(rank),
        max(source, target) - source,
        max(source, target) - target,
        work.count,
        period,
        scales(collective, work.dtype, work.op)[rank],
        fills[rank],
        expected[rank] if work.check else b"",
    )


def scales(collective: Collective, dtype: str, op: str) -> list[float]:
    """The scalar of every rank; 1 unless ``op`` scales."""
    return make_scales(collective, dtype) if operation(op).scales else [1.0] * collective.world_size


@lru_cache(maxsize=64)
def _patterns(collective: Collective, period: int, dtype: str, op: str) -> tuple[list[bytes], list[bytes]]:
    inputs = make_inputs(collective, period, dtype, seed=period, op=op)
    factors = scales(collective, dtype, op) if operation(op).scales else None
    return _as_bytes(inputs), _as_bytes(oracle(collective, inputs, op, factors))


def _as_bytes(buffers: list[NDArray[Any] | None]) -> list[bytes]:
    return [b"" if buffer is None else buffer.tobytes() for buffer in buffers]


def fill(memory: NDArray[np.uint8], pattern: bytes, blocks: int, itemsize: int) -> None:
    """Fill ``memory``, bytes of ``blocks`` blocks, with the repeated ``pattern``."""
    for target, source in _rows(memory, pattern, blocks, itemsize):
        whole = target.size // source.size * source.size
        target[:whole].reshape(-1, source.size)[:] = source
        target[whole:] = source[: target.size - whole]


def wrong_elements(memory: NDArray[np.uint8], pattern: bytes, blocks: int, itemsize: int) -> int:
    """The number of elements of ``memory`` that differ in any bit from the repeated ``pattern``."""
    wrong = 0
    for got, want in _rows(memory, pattern, blocks, itemsize):
        whole = got.size // want.size * want.size
        wrong += int(np.count_nonzero(got[:whole].reshape(-1, want.size) != want))
        wrong += int(np.count_nonzero(got[whole:] != want[: got.size - whole]))
    return wrong


def _rows(
    memory: NDArray[np.uint8], pattern: bytes, blocks: int, itemsize: int
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Memory and pattern of each block, as integers of an element's size."""
    if not blocks or not pattern:
        return []
    bits = np.dtype(f"u{itemsize}")
    rows = np.frombuffer(pattern, bits).reshape(blocks, -1)
    return list(zip(memory.view(bits).reshape(blocks, -1), rows, strict=True))
