"""The kernel: discrete events over a :class:`~blinkccl.cost.simulate.workload.Workload`, in native code.

It uses no closed form: every transfer ends in an event. Tests compare it bit by bit with a kernel in Python.
"""

from __future__ import annotations

import ctypes as c
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from blinkccl.cost.simulate.workload import SHARINGS, Actors, Hops, Outcome, Trace, Workload, dtype_of, not_live
from blinkccl.errors import InternalError
from blinkccl.native import library_file, open_library
from blinkccl.native.headers import header

LIBRARY = "libblink_simulate.so"
#: Environment variable with another library file, for development of the library.
OVERRIDE = "BLINK_SIMULATE_LIBRARY"

HEADER = header("simulate.h")
_DONE, _STUCK = HEADER.constants["BLINK_SIMULATED"], HEADER.constants["BLINK_SIMULATION_STUCK"]


@HEADER.layout("blink_workload")
class _Workload(c.Structure):
    pass


@HEADER.layout("blink_trace")
class _Trace(c.Structure):
    pass


@HEADER.layout("blink_outcome")
class _Outcome(c.Structure):
    pass


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library, opened once; a run releases the GIL."""
    return open_library(library_file(LIBRARY, OVERRIDE), HEADER.functions, "blink_simulate_abi")


def run(workload: Workload, sharing: str = "fifo", traced: bool = False) -> Outcome:
    """Simulate ``workload`` with links of ``sharing``; ``traced`` adds a trace of all tasks.

    UnsupportedError if the library is not built. Cost: O(tasks · log tasks) with fifo. With fair, each begin or end of
    a transfer also recomputes the rates on all links that other transfers connect to its own.
    """
    if sharing not in SHARINGS:
        raise InternalError(f"unknown sharing {sharing!r}; expected one of {', '.join(SHARINGS)}")
    library = load()
    actors, hops = workload.actors, workload.hops
    # The order of the header's fields, which equals the order of the dataclasses.
    held = [*_columns(actors), *_columns(hops)]
    held += [np.ascontiguousarray(workload.rates, np.float64), np.ascontiguousarray(workload.pools, np.int32)]
    counts = (len(actors.chunks), len(hops.tail), workload.streams, len(workload.pools), len(workload.rates))
    native = _Workload(*counts, *(array.ctypes.data for array in held))
    actor_s = np.zeros(len(actors.chunks))
    outcome = _Outcome(actor_s=actor_s.ctypes.data)
    trace = Trace(*(np.zeros(workload.tasks, dtype_of(column)) for column in fields(Trace))) if traced else None
    written = _Trace(*(array.ctypes.data for array in _columns(trace))) if trace is not None else None
    code = library.blink_simulate(
        c.byref(native), SHARINGS.index(sharing), c.byref(outcome), None if written is None else c.byref(written)
    )
    if code == _STUCK:
        chunks = int(actors.chunks[outcome.stuck])
        raise not_live(outcome.seconds, int(outcome.stuck), int(outcome.stuck_chunk), chunks)
    if code != _DONE:
        raise InternalError(f"the simulation ran out of memory at {workload.tasks:,} tasks")
    busy_s = workload.link_bytes / workload.rates
    return Outcome(outcome.seconds, outcome.transfers, outcome.executions, busy_s, actor_s, trace)


def _columns(rows: Actors | Hops | Trace) -> list[Any]:
    """The arrays of a table, in one piece of memory each."""
    return [np.ascontiguousarray(getattr(rows, column.name), dtype_of(column)) for column in fields(rows)]
