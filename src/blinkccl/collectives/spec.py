"""The nine collectives, each defined by its inputs and its outputs.

A collective is a list of **items**. An item is a piece of data that is reduced from the input blocks in
``contributions`` and must end in the output blocks in ``destinations``. The NumPy oracle, the verifier, the load that a
cut must carry and the names on the command line all derive from these items.

Buffers are cut into *blocks* of ``count`` elements. Input and output of a rank hold one block or ``world_size`` blocks
(nccl.h), e.g. AllGather: one in, N out. Ranks in this module are positions 0 … N−1, not ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from blinkccl.errors import UsageError, did_you_mean

#: Names of PyTorch and nccl-tests, accepted wherever a person types a collective.
SPELLINGS = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}
#: The name of an item: None (the whole buffer), a rank's block, or (source, destination) for alltoall.
Block = int | tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Item:
    """Data reduced from ``contributions`` and delivered to ``destinations``.

    Both are tuples of ``(rank, block index in that rank's input / output buffer)``, by ascending rank.
    ``weight`` is the item's size as a fraction of S, the size that nccl-tests prints.
    """

    block: Block
    weight: Fraction
    contributions: tuple[tuple[int, int], ...]
    destinations: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on ``world_size`` ranks, with its ``root``, or ``src`` and ``dst``, if it has them.

    An unknown name, no rank, or a missing, superfluous or invalid ``root``, ``src`` or ``dst`` is a UsageError.
    """

    name: str
    world_size: int
    root: int | None = None
    src: int | None = None
    dst: int | None = None

    def __post_init__(self) -> None:
        if self.name not in COLLECTIVES:
            near = did_you_mean(self.name, COLLECTIVES)
            raise UsageError(f"unknown collective {self.name!r}{near}; expected one of {', '.join(COLLECTIVES)}")
        if self.world_size < 1:
            raise UsageError(f"{self.name}: world_size must be at least 1, got {self.world_size}")
        required = COLLECTIVES[self.name].parameters
        for key in ("root", "src", "dst"):
            value = getattr(self, key)
            if key in required and value is None:
                raise UsageError(f"{self.name} needs {key}: a rank in 0 … {self.world_size - 1}")
            if key not in required and value is not None:
                raise UsageError(f"{self.name} takes no {key}, got {value}")
            if value is not None and not 0 <= value < self.world_size:
                raise UsageError(f"{self.name}: {key} {value} is outside 0 … {self.world_size - 1}")
        if self.name == "sendrecv" and self.src == self.dst:
            raise UsageError(f"sendrecv needs two different ranks, got {self.src} twice")

    @property
    def reduces(self) -> bool:
        """True if an operation (sum, …) reduces the contributions."""
        return COLLECTIVES[self.name].reduces

    @property
    def only_reduces(self) -> bool:
        """True if each reduced item ends at one rank, as in reduce and reduce_scatter: only up-trees are needed."""
        return self.reduces and self.name != "allreduce"

    def items(self) -> tuple[Item, ...]:
        """The items; their weights sum to 1 (to N for alltoall, as S is one rank's buffer)."""
        return _items(self)

    def input_blocks(self, rank: int) -> int:
        """Number of blocks of ``count`` elements in ``rank``'s input buffer; 0 if it has none."""
        return _buffer_blocks(self, rank, "contributions")

    def output_blocks(self, rank: int) -> int:
        """Number of blocks of ``count`` elements in ``rank``'s output buffer; 0 if it has none."""
        return _buffer_blocks(self, rank, "destinations")

    def total_blocks(self) -> int:
        """S / count: the number of blocks in the size that nccl-tests prints for this collective."""
        return 1 if COLLECTIVES[self.name].whole else self.world_size


@lru_cache(maxsize=256)
def _items(coll: Collective) -> tuple[Item, ...]:
    return tuple(COLLECTIVES[coll.name].items(coll))


def _buffer_blocks(coll: Collective, rank: int, side: str) -> int:
    held = [index for item in coll.items() for r, index in getattr(item, side) if r == rank]
    return max(held) + 1 if held else 0


@dataclass(frozen=True, slots=True)
class Definition:
    """A row of the registry: the items and the parameters of one collective."""

    items: Callable[[Collective], list[Item]]
    reduces: bool = False
    parameters: tuple[str, ...] = ()
    whole: bool = True


def _all(coll: Collective, index: int = 0) -> tuple[tuple[int, int], ...]:
    return tuple((rank, index) for rank in range(coll.world_size))


def _at(rank: int | None, index: int = 0) -> tuple[tuple[int, int], ...]:
    assert rank is not None
    return ((rank, index),)


def _per_rank(
    coll: Collective, make: Callable[[int], tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]
) -> list[Item]:
    weight = Fraction(1, coll.world_size)
    return [Item(j, weight, *make(j)) for j in range(coll.world_size)]


#: The registry: a new collective is one more row.
COLLECTIVES: dict[str, Definition] = {
    "broadcast": Definition(lambda c: [Item(None, Fraction(1), _at(c.root), _all(c))], parameters=("root",)),
    "reduce": Definition(lambda c: [Item(None, Fraction(1), _all(c), _at(c.root))], True, ("root",)),
    "allreduce": Definition(lambda c: [Item(None, Fraction(1), _all(c), _all(c))], True),
    "allgather": Definition(lambda c: _per_rank(c, lambda j: (_at(j), _all(c, j))), whole=False),
    "reduce_scatter": Definition(lambda c: _per_rank(c, lambda j: (_all(c, j), _at(j))), True, whole=False),
    "gather": Definition(lambda c: _per_rank(c, lambda j: (_at(j), _at(c.root, j))), parameters=("root",), whole=False),
    "scatter": Definition(
        lambda c: _per_rank(c, lambda j: (_at(c.root, j), _at(j))), parameters=("root",), whole=False
    ),
    "alltoall": Definition(
        lambda c: [
            Item((s, d), Fraction(1, c.world_size), _at(s, d), _at(d, s))
            for s in range(c.world_size)
            for d in range(c.world_size)
        ],
        whole=False,
    ),
    "sendrecv": Definition(lambda c: [Item(None, Fraction(1), _at(c.src), _at(c.dst))], parameters=("src", "dst")),
}
