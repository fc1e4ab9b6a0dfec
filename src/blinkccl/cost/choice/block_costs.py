"""The time of the busiest block of a call, a lower bound on a plan's time at any speed of its links.

A block runs its executions one after the other, and each moves the bytes that it reads and stores
(:mod:`blinkccl.schedule.balance`). The rate of the library's blocks is not measured. It is assumed to equal the rate in
NCCL's own model (2.30, src/graph/tuning.cc) of one channel, a block of at most 640 threads, in a tree on one server.
Busbw there is twice algbw. For each byte of algbw, an inner rank of NCCL's chain reads two operands and stores
one on the way up. On the way down it reads one and stores two.

=============================  ======  ======  ======  =========  ====================================================
GB/s that a block moves        Volta   Ampere  Hopper  Blackwell
=============================  ======  ======  ======  =========  ====================================================
Simple                         79.5    72      116.1   210        3 × ``TREE_GB_PER_S``
LL128                          60      60      110.1   166.8      3 × ``TREE_LL128_GB_PER_S``
LL                             39.8    36      58.1    105        1/2 of Simple: 4 of 8 bytes
=============================  ======  ======  ======  =========  ====================================================

A block runs its roles one after the other. Each role that receives takes a step of NCCL's trees, which covers the send
of the peer too. The step includes the message's time on the link, so it is an upper limit: a block does not wait for a
message that has arrived. As in NCCL, the rate includes the cost of further chunks of a role.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blinkccl.codegen.channels import MAX_ENDS, merged
from blinkccl.cost.baselines.nccl_model import TREE_GB_PER_S, TREE_LL128_GB_PER_S
from blinkccl.native.headers import header
from blinkccl.schedule.balance import operands_moved
from blinkccl.schedule.chunking import ALIGNMENT_BYTES, Bound
from blinkccl.schedule.dealing import TURNS, turns
from blinkccl.schedule.program import Program

PIECE_BYTES = header("call.h").constants["kPieceBytes"]
#: GB/s that a block moves per GB/s of its NCCL channel.
_MOVED = 3
_OF_SIMPLE = {"simple": 1.0, "ll": 0.5}


def block_gb_per_s(protocol: str, row: int) -> float:
    """The GB/s that a block moves; ``row`` is that of NCCL's tables, 0 for Volta to 3 for Blackwell."""
    if protocol == "ll128":
        return _MOVED * float(TREE_LL128_GB_PER_S[row][0])
    return _MOVED * float(TREE_GB_PER_S[row][0]) * _OF_SIMPLE[protocol]


@dataclass(frozen=True)
class BlockWork:
    """Work of blocks, with a row for each (rank, channel) and a column for each slice: moves, and receiving roles."""

    moves: NDArray[np.float64]
    receives: NDArray[np.float64]
    turns: NDArray[np.int64]


def work_of(program: Program) -> BlockWork:
    """The work of the generated code of ``program``, in which all sends of one chunk are one execution."""
    joined, _ = merged(program, MAX_ENDS)
    rows = {key: number for number, key in enumerate(dict.fromkeys((role.rank, role.channel) for role in joined.roles))}
    moves = np.zeros((len(rows), len(program.slices)))
    receives = np.zeros_like(moves)
    for role in joined.roles:
        row = rows[role.rank, role.channel]
        moves[row, role.slice] += operands_moved(role)
        receives[row, role.slice] += bool(role.receives)
    return BlockWork(moves, receives, np.asarray(turns(program), np.int64))


def busiest_block_s(work: BlockWork, bound: Bound, parts: int, gb_per_s: float, step_us: float) -> float:
    """Seconds of the busiest block among a channel's ``parts``: its bytes at its rate, and a step per message."""
    length = np.asarray([extent.length * bound.itemsize for extent in bound.extents], np.float64)
    pieces = np.clip(np.ceil(length / PIECE_BYTES), 1, parts)
    # The longest piece; blocks differ by one alignment at most.
    piece = np.ceil(length / ALIGNMENT_BYTES / pieces) * ALIGNMENT_BYTES
    number = (np.arange(parts)[None, :] - (work.turns * parts // TURNS)[:, None]) % parts
    active = (number < pieces[:, None]) & (length > 0)[:, None]
    seconds = work.moves @ (piece[:, None] * active) / (gb_per_s * 1e9)
    seconds += work.receives @ active * (step_us * 1e-6)
    return float(seconds.max(initial=0.0))
