"""The blocks of a communicator and the size of its messages, within two budgets per rank.

- *Blocks* (BLINK_MAX_BLOCKS) must all be resident on the GPU, because they wait for other ranks. The default is a
  quarter of the multiprocessors, at most 32, shared by the ranks of a GPU.
- *Staging memory* (BLINK_STAGING_BYTES) has a default of 256 MiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from blinkccl.codegen.layout import LINE_BYTES, Geometry, ProgramGroup
from blinkccl.cost.choice.programs import (
    MOST_COPY_BYTES,
    MOST_LINE_BYTES,
    MOST_SLOT_BYTES,
    SLOTS,
    default_blocks,
)
from blinkccl.errors import LaunchError, UnsupportedError
from blinkccl.native.headers import header
from blinkccl.nccl.peer_info import GpuJob
from blinkccl.units import parse_bytes

T = TypeVar("T", int, float)

#: Bytes of one part's message: fewer parts are preferred to messages below the first; the others are minimums.
WORTH_SLOT_BYTES, LEAST_SLOT_BYTES, LEAST_LINE_BYTES = 32 << 10, 4096, 1024
#: Minimum message size of copy engines.
LEAST_COPY_BYTES = 4096
#: Threads of a GPU block. Any multiple of 32 up to 512 works; 16 warps keep enough stores in flight.
THREADS = header("call.h").constants["kMostThreads"]
STAGING_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Budget:
    """The resources of a rank: blocks on its GPU, and bytes of its memory."""

    blocks: int
    staging_bytes: int


def budget(job: GpuJob, environ: Mapping[str, str]) -> Budget:
    """The budgets of each rank."""
    multiprocessors = min(peer.multiprocessors for peer in job.peers)
    default = default_blocks(multiprocessors // job.shared)
    blocks = number(environ, "BLINK_MAX_BLOCKS", default, 1024, int)
    blocks = min(blocks, number({"maxCTAs": job.setting("most_blocks")}, "maxCTAs", blocks, 2**31, int))
    return Budget(blocks, number(environ, "BLINK_STAGING_BYTES", STAGING_BYTES, 1 << 40, parse_bytes))


def number(environ: Mapping[str, str], name: str, default: T, most: T, read: Callable[[str], T]) -> T:
    """The value of setting ``name``, parsed by ``read``; LaunchError unless it is above 0 and at most ``most``."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = read(text)
    except ValueError:
        value = read("0")
    if not 0 < value <= most:
        raise LaunchError(f"{name}={text[:40]}: expected a number above 0, at most {most}")
    return value


def geometry(group: ProgramGroup, parts: int, limits: Budget, copies: bool = False) -> Geometry:
    """Parts and sizes of messages for which no rank's segment exceeds the budget.

    ``parts`` is the maximum of all programs; programs with fewer use the first ones of a connection. If memory is
    short, programs with the most parts get fewer. If copy engines run any of them, kernels get half, copies the rest.
    """
    if not copies:
        return _for_kernels(group, parts, limits, limits.staging_bytes)
    for_kernels = _for_kernels(group, parts, limits, limits.staging_bytes // 2)
    ends = _most_ends(group)
    taken = max(group.layout(for_kernels).segment_bytes) + ends * 2 * LINE_BYTES
    arriving = _rings(group)
    each = (limits.staging_bytes - taken) // (arriving * SLOTS) // LEAST_COPY_BYTES * LEAST_COPY_BYTES
    if each < LEAST_COPY_BYTES:
        least = taken + arriving * SLOTS * LEAST_COPY_BYTES
        raise UnsupportedError(
            f"{arriving} connections into one rank need at least {least} bytes of staging memory with copy engines, "
            f"but BLINK_STAGING_BYTES is {limits.staging_bytes}; raise it"
        )
    return replace(for_kernels, copy_slots=SLOTS, copy_slot_bytes=min(MOST_COPY_BYTES, each))


def _arriving(group: ProgramGroup) -> int:
    """The maximum number of connections with messages in one segment."""
    return max(Counter(home for _, _, home in group.ways).values(), default=1)


def _rings(group: ProgramGroup) -> int:
    """The maximum number of copy engines' rings in one segment; staged messages also have one at the receiver."""
    segments = ({home, dst} for src, dst, home in group.ways if home != src)
    return max(Counter(segment for some in segments for segment in some).values(), default=1)


def _most_ends(group: ProgramGroup) -> int:
    """The maximum number of connections with counters in one segment, two lines each."""
    return max(Counter(segment for way in group.ways for segment in set(way)).values(), default=1)


def _for_kernels(group: ProgramGroup, parts: int, limits: Budget, most_bytes: int) -> Geometry:
    arriving, ends = _arriving(group), _most_ends(group)
    while True:
        each = (most_bytes - ends * parts * 2 * LINE_BYTES) // (arriving * parts * SLOTS)
        line = min(MOST_LINE_BYTES, max(LEAST_LINE_BYTES, each // 8 // 1024 * 1024))
        slot = min(MOST_SLOT_BYTES, (each - 2 * line) // LEAST_SLOT_BYTES * LEAST_SLOT_BYTES)
        if slot >= (WORTH_SLOT_BYTES if parts > 1 else LEAST_SLOT_BYTES):
            return Geometry(parts, SLOTS, slot, line)
        if parts == 1:
            least = arriving * SLOTS * (LEAST_SLOT_BYTES + 2 * LEAST_LINE_BYTES) + ends * 2 * LINE_BYTES
            raise UnsupportedError(
                f"{arriving} connections into one rank need at least {least} bytes of staging memory, but "
                f"BLINK_STAGING_BYTES is {limits.staging_bytes}; raise it"
                + ("" if most_bytes == limits.staging_bytes else f" (copy engines leave {most_bytes})")
            )
        parts //= 2
