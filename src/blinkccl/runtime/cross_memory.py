"""Whether the system may copy between the memories of a group's processes: asked once per group, answered alike by all.

A ring copies a message twice, and keeps the second core busy; the system copies it once, after a call and a look at
every page. Which is faster depends on the machine, on the size and on the pages, and is found out while the group works
(native/src/variants.h); whether it is possible depends on the system's settings.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from blinkccl.collectives.call import CollectiveCall
from blinkccl.cost.choice.host_table import Crossing
from blinkccl.errors import LaunchError

_VARIABLE = "BLINK_CROSS_MEMORY"


class AskedGroup(Protocol):
    """What is needed of a :class:`~blinkccl.runtime.host_group.HostGroup`."""

    def can_cross(self) -> bool: ...
    def run(self, call: CollectiveCall, send: int | None, recv: int | None) -> None: ...


def wish() -> Crossing:
    """From ``BLINK_CROSS_MEMORY``: 0 never, 1 wherever possible, not set: measured; LaunchError for anything else."""
    text = os.environ.get(_VARIABLE, "")
    wishes = {"": Crossing.MEASURED, "0": Crossing.NEVER, "1": Crossing.WHEREVER_POSSIBLE}
    if text not in wishes:
        raise LaunchError(f"{_VARIABLE}={text!r}: expected 0 (never), 1 (wherever possible) or nothing (measured)")
    return wishes[text]


def agreed(group: AskedGroup, wanted: Crossing) -> Crossing:
    """What holds for the new group: all ranks call this, each with what :func:`wish` said."""
    least = np.array([wanted if group.can_cross() else Crossing.NEVER], np.int32)
    group.run(CollectiveCall("allreduce", "int32", 1, "min"), least.ctypes.data, least.ctypes.data)
    return Crossing(int(least[0]))
