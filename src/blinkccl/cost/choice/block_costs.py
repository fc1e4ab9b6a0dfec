"""How long the busiest block of a call is busy: what a plan takes at least, however fast its links are.

A block goes through executions one after the other, and each moves what it reads and stores
(:mod:`blinkccl.schedule.balance`). Nobody has measured here what a block of ours moves in a second. NCCL's own model
(2.30, src/graph/tuning.cc) says what one of its channels, a block of at most 640 threads, reaches in a tree on one
server, and ours are taken for as good. GB/s of busbw there are half as much algbw, for which an inner rank of NCCL's
chain reads two operands and stores one on the way up, reads one and stores two on the way down:

=============================  ======  ======  ======  =========  ====================================================
GB/s that a block moves        Volta   Ampere  Hopper  Blackwell
=============================  ======  ======  ======  =========  ====================================================
Simple                         79.5    72      116.1   210        3 × ``TREE_GB_PER_S``
LL128                          60      60      110.1   166.8      3 × ``TREE_LL128_GB_PER_S``
LL                             39.8    36      58.1    105        1/2 of Simple: 4 of 8 bytes
=============================  ======  ======  ======  =========  ====================================================

A block's roles come one after the other, and each that receives takes a step of NCCL's trees (that of a send is the
receiver's). It contains a message's way over the link, for which a block does not wait when the message is there; so it
is the most that it can be. What further chunks of a role cost is in the rate, as it is in NCCL's.
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
#: Of what one of NCCL's channels is said to reach, what its block moves.
_MOVED = 3
_OF_SIMPLE = {"simple": 1.0, "ll": 0.5}


def block_gb_per_s(protocol: str, row: int) -> float:
    """What a block moves; ``row``: of NCCL's tables, 0 for Volta to 3 for Blackwell."""
    if protocol == "ll128":
        return _MOVED * float(TREE_LL128_GB_PER_S[row][0])
    return _MOVED * float(TREE_GB_PER_S[row][0]) * _OF_SIMPLE[protocol]


@dataclass(frozen=True)
class BlockWork:
    """Of each (rank, channel) in a row, by slice: how often its roles move it, and how many of them receive."""

    moves: NDArray[np.float64]
    receives: NDArray[np.float64]
    turns: NDArray[np.int64]


def work_of(program: Program) -> BlockWork:
    """What the generated code of ``program`` does, where sends of one chunk are one execution."""
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
    """How long the busiest block of a channel's ``parts`` takes: its bytes at its rate, and a step per message."""
    length = np.asarray([extent.length * bound.itemsize for extent in bound.extents], np.float64)
    pieces = np.clip(np.ceil(length / PIECE_BYTES), 1, parts)
    # The longest piece; blocks differ by a group at most.
    piece = np.ceil(length / ALIGNMENT_BYTES / pieces) * ALIGNMENT_BYTES
    number = (np.arange(parts)[None, :] - (work.turns * parts // TURNS)[:, None]) % parts
    there = (number < pieces[:, None]) & (length > 0)[:, None]
    seconds = work.moves @ (piece[:, None] * there) / (gb_per_s * 1e9)
    seconds += work.receives @ there * (step_us * 1e-6)
    return float(seconds.max(initial=0.0))
