"""Which Program for which size? A table of choices, a function of agreed numbers only, so that all ranks choose alike.

The numbers were measured on small machines (benchmarks/README.md); none of them changes a result.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm of the registry, whether small messages carry their flags, and the size of a chunk."""

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
    inline = nbytes <= 64 * KIB
    if name == "allreduce" and nbytes <= _one_shot_limit(world_size):
        return Choice("one_shot", inline, 64 * KIB)
    return Choice("one_hop", inline, 256 * KIB)


def _one_shot_limit(world_size: int) -> int:
    """Up to here everybody reduces everything: one step saves more than the additional bytes cost."""
    return 128 * KIB // world_size
