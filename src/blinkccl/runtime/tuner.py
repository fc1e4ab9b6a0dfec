"""Which Program for which size: a table of choices, a function of agreed numbers only, so that all ranks choose alike.

The numbers were measured on small machines (benchmarks/README.md); none of them changes a result.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = KIB * KIB


@dataclass(frozen=True, slots=True)
class Choice:
    """What there is to choose.

    Parameters
    ----------
    algorithm
        Of the registry.
    inline
        Messages carry their flags inside.
    chunk_bytes
        Size of a chunk.
    cross_memory
        The system may copy between private buffers.
    """

    algorithm: str
    inline: bool
    chunk_bytes: int
    cross_memory: bool = False


def choose(name: str, nbytes: int, world_size: int, cores: int, crosses: bool = False) -> Choice:
    """The choice for a collective.

    Parameters
    ----------
    name
        Of the collective.
    nbytes
        S: what nccl-tests prints as its size.
    world_size
        Ranks, ≥ 2.
    cores
        Cores of the host, as the ranks have agreed.
    crosses
        Whether copies by the system pay, as they have agreed.
    """
    if name == "allreduce":
        return _allreduce(nbytes, world_size, crosses)
    if crosses and nbytes >= 32 * KIB and name != "reduce":  # which goes one way: in a ring both work on it
        return Choice("one_hop", False, _halves(nbytes), True)
    return Choice("one_hop", nbytes < 64 * KIB, 256 * KIB)


def _halves(nbytes: int) -> int:
    """Chunks for two ranks, of which each moves every other one where data goes one way only."""
    return min(512 * KIB, -(-nbytes // 128) * 64)


def _allreduce(nbytes: int, world_size: int, crosses: bool) -> Choice:
    """One step while a step costs more than the bytes; then two, in which two ranks write replies over questions.

    With cross-memory copies the sums come back when all are made: what a core has just written is slow to read for
    another, and has left its cache by then.
    """
    if world_size == 2:
        if nbytes < 16 * KIB:
            return Choice("one_shot", True, 64 * KIB)
        if 2 * MIB < nbytes <= 16 * MIB:
            return Choice("one_hop", False, 8 * MIB, True) if crosses else Choice("one_hop", False, 256 * KIB)
        return Choice("one_hop", False, 512 * KIB)
    if nbytes * world_size < 256 * KIB:
        return Choice("one_shot", True, 64 * KIB)
    return Choice("one_hop", nbytes < 64 * KIB, 64 * KIB)
