"""Whether a group sums every element in one order, whatever the size: asked of the environment, agreed by all ranks.

Among the ranks of one host that order is ``0+1+2+…``, and most of what runs there has it anyway: stars and one-shot
fold by rank. In a group that promises it every program is proved to have it before it runs
(:mod:`blinkccl.schedule.order`); a measured table that wants another gives way to what is built in. Over several hosts
it is ``(ranks of host 0)+(ranks of host 1)+…`` for every call (:mod:`~blinkccl.runtime.three_phases`). So an AllReduce,
a Reduce and a ReduceScatter have the same bits for the same contributions, in buffers of any length, at any place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from blinkccl.errors import LaunchError, UnsupportedError
from blinkccl.schedule.order import order_faults
from blinkccl.schedule.program import Program
from blinkccl.trees.algorithms.request import DETERMINISTIC

VARIABLE = "BLINK_DETERMINISTIC"


def wish(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """``given``, or what the environment says: "order", or "" for nothing; LaunchError for anything else."""
    text = environ.get(VARIABLE, "") if given is None else given
    if text not in ("", *DETERMINISTIC):
        raise LaunchError(f"{VARIABLE}={text!r}: expected {' or '.join(DETERMINISTIC)}, or nothing")
    return text


def check_program(program: Program) -> None:
    """UnsupportedError, with the first step that departs, if the program does not sum in the order of the ranks."""
    if not program.collective.reduces:
        return
    faults = order_faults(program, "+".join(map(str, program.ranks)))
    if faults:
        raise UnsupportedError(f"{VARIABLE}=order: this program sums otherwise than in rank order: {faults[0]}")
