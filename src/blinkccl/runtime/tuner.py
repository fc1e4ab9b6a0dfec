"""Which Program for which size? A table of choices, a function of agreed numbers only, so that all ranks choose alike.

The numbers were measured on small machines (benchmarks/README.md); none of them changes a result.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm of the registry, whether messages carry their flags inside, and the size of a chunk."""

    algorithm: str
    inline: bool
    chunk_bytes: int


def choose(name: str, nbytes: int, world_size: int, cores: int) -> Choice:
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
    """
    if name == "allreduce":
        return _allreduce(nbytes, world_size)
    return Choice("one_hop", nbytes < 64 * KIB, 256 * KIB)


def _allreduce(nbytes: int, world_size: int) -> Choice:
    """One step while a step costs more than the bytes; then two, in which two ranks write replies over questions."""
    if world_size == 2:
        return Choice("one_shot", True, 64 * KIB) if nbytes < 16 * KIB else Choice("one_hop", False, 512 * KIB)
    if nbytes * world_size < 256 * KIB:
        return Choice("one_shot", True, 64 * KIB)
    return Choice("one_hop", nbytes < 64 * KIB, 64 * KIB)
