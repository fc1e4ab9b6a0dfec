"""Deterministic summation: the same order of summands for every element and size, agreed by all ranks of a group.

The order is ``0+1+2+…``, on one host and on several. Most programs of one host have it without the option, because
stars and one-shot reduce by rank. In a deterministic group every program is proved to have that order before it runs
(:mod:`blinkccl.schedule.order`); if a measured table selects another program, the built-in one is used instead, and on
several hosts only stars and one-shot are candidates. So an AllReduce, a Reduce and a ReduceScatter give the same bits
for the same contributions, in buffers of any length, at any place.
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
    """Return ``given``, or the environment's value: "order", or "" for none; LaunchError for anything else."""
    text = environ.get(VARIABLE, "") if given is None else given
    if text not in ("", *DETERMINISTIC):
        raise LaunchError(f"{VARIABLE}={text!r}: expected {' or '.join(DETERMINISTIC)}, or nothing")
    return text


def check_program(program: Program) -> None:
    """Raise UnsupportedError with the first deviating step if the program does not sum in the order of the ranks."""
    if not program.collective.reduces:
        return
    faults = order_faults(program, "+".join(map(str, program.ranks)))
    if faults:
        raise UnsupportedError(
            f"{VARIABLE}=order: this program does not sum in rank order: {faults[0]}; choose another algorithm, or "
            f"unset {VARIABLE}"
        )
