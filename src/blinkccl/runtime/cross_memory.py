"""Whether the system's copies between two processes' memories pay here: asked once per group, answered alike by all.

A ring copies a message twice, and keeps the second core busy; the system copies it once, after a call and a look at
every page. Which is faster depends on the machine: facts about one say little about the next. So both move the same
bytes a few times. The bytes are at rest, as those of a large tensor are: what a core has just written comes out of
its cache about as fast either way. Among more than two ranks nothing is asked: a ring's one copy serves all readers,
which was faster for all that was measured but Scatter, and AllToAll of some sizes.
"""

from __future__ import annotations

import os
import time
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blinkccl.collectives.call import CollectiveCall
from blinkccl.engines.host import NativeOp
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import LaunchError

#: Of one rank; two of them are more than first-level caches hold, and less than second-level ones.
PROBE_BYTES = 256 << 10
#: Of each way, in turns. The least counts: what makes one slower says nothing about the way.
ROUNDS = 4
_VARIABLE = "BLINK_CROSS_MEMORY"


class ProbedGroup(Protocol):
    """What is needed of a :class:`~blinkccl.runtime.host_group.HostGroup`."""

    rank: int
    size: int

    def can_cross(self) -> bool: ...
    def run(self, call: CollectiveCall, send: int | None, recv: int | None) -> None: ...
    def barrier(self) -> None: ...
    def prepare(
        self, plan: HostPlan, count: int, dtype: str, op: str, chunk_bytes: int, cross_memory: bool = False
    ) -> NativeOp: ...
    def run_prepared(self, call: NativeOp, send: int | None, recv: int | None) -> None: ...


class Wish(IntEnum):
    """What the user of a rank wants. Of the ranks' wishes the least holds for all."""

    NEVER = 0
    MEASURED = 1
    WHEREVER_POSSIBLE = 2


def wish() -> Wish:
    """From ``BLINK_CROSS_MEMORY``: 0 never, 1 wherever possible, not set: measured; LaunchError for anything else."""
    text = os.environ.get(_VARIABLE, "")
    wishes = {"": Wish.MEASURED, "0": Wish.NEVER, "1": Wish.WHEREVER_POSSIBLE}
    if text not in wishes:
        raise LaunchError(f"{_VARIABLE}={text!r}: expected 0 (never), 1 (wherever possible) or nothing (measured)")
    return wishes[text]


def pays(group: ProbedGroup, wanted: Wish, gather: HostPlan) -> bool:
    """Whether the system's copies are possible between all ranks of a new group, and faster than its rings.

    All ranks call this, each with what :func:`wish` said; ``gather`` is an AllGather among them with large messages.
    """
    if group.size != 2:
        return False
    agreed = np.array([wanted if group.can_cross() else Wish.NEVER], np.int32)
    group.run(CollectiveCall("allreduce", "int32", 1, "min"), agreed.ctypes.data, agreed.ctypes.data)
    if agreed[0] != Wish.MEASURED:
        return bool(agreed[0] == Wish.WHEREVER_POSSIBLE)
    seconds = _measured(group, gather)
    group.run(CollectiveCall("allreduce", "float64", 2, "max"), seconds.ctypes.data, seconds.ctypes.data)
    return bool(seconds[1] < seconds[0])


def _measured(group: ProbedGroup, gather: HostPlan) -> NDArray[np.float64]:
    """This rank's least seconds of an AllGather in place: through rings, and with the system's copies."""
    memory = np.zeros((group.size, PROBE_BYTES), np.uint8)
    own = memory[group.rank]
    own[:] = 1
    ways = [group.prepare(gather, PROBE_BYTES, "uint8", "sum", PROBE_BYTES, crosses) for crosses in (False, True)]
    least = np.full(len(ways), np.inf)
    for _ in range(ROUNDS):
        for number, way in enumerate(ways):
            group.barrier()
            began = time.perf_counter()
            group.run_prepared(way, own.ctypes.data, memory.ctypes.data)
            least[number] = min(least[number], time.perf_counter() - began)
    for way in ways:
        way.close()
    return least
