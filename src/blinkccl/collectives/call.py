"""A collective call: the collective, element type and count, on which all ranks of a group must agree.

It passes through every layer, from the public functions to the engines. Arguments that each rank sets per call
(addresses, its scale, a deadline) are passed separately.
"""

from __future__ import annotations

from typing import NamedTuple

from blinkccl.collectives.ops import DTYPE_CODES, OPS
from blinkccl.collectives.spec import COLLECTIVES, Collective


class CollectiveCall(NamedTuple):
    """One collective on ``elements`` per block (nccl.h's ``count``); the key of prepared calls.

    ``root`` of ``sendrecv`` is the source, and only ``sendrecv`` has ``dst``. Small calls construct and hash it too, so
    it is a named tuple: a frozen dataclass takes four times as long.
    """

    collective: str
    dtype: str
    elements: int
    op: str = "sum"
    root: int = 0
    dst: int = 0

    @classmethod
    def of(cls, collective: Collective, dtype: str, elements: int, op: str = "sum") -> CollectiveCall:
        """The call of ``collective`` on ``elements`` per block."""
        root = collective.src if collective.root is None else collective.root
        return cls(collective.name, dtype, elements, op, root or 0, collective.dst or 0)

    def among(self, world_size: int) -> Collective:
        """The collective on ``world_size`` ranks; a UsageError if its name, root, source or destination is invalid."""
        definition = COLLECTIVES.get(self.collective)
        values = {"root": self.root, "src": self.root, "dst": self.dst}
        parameters = definition.parameters if definition else ()
        return Collective(self.collective, world_size, **{key: values[key] for key in parameters})

    @property
    def reduces(self) -> bool:
        """True if an operation reduces the contributions."""
        return self.collective in COLLECTIVES and COLLECTIVES[self.collective].reduces

    def __str__(self) -> str:
        rooted = self.collective in COLLECTIVES and "root" in COLLECTIVES[self.collective].parameters
        return (
            f"{self.collective} of {self.elements} × {self.dtype}"
            + (f", {self.op}" if self.reduces else "")
            + (f", root {self.root}" if rooted else "")
        )

    def number(self) -> int:
        """All fields but the elements and ``dst``, in 64 bits: native code compares this number between ranks."""
        kind = list(COLLECTIVES).index(self.collective) + 1
        return kind | DTYPE_CODES[self.dtype] << 8 | OPS[self.op].code << 16 | (self.root & 0xFFFFFFFF) << 24

    @classmethod
    def from_number(cls, number: int, elements: int) -> CollectiveCall:
        """The inverse of :meth:`number`; fields of a newer version come out as "?"."""

        def name(table: list[str], index: int) -> str:
            return table[index] if 0 <= index < len(table) else "?"

        return cls(
            name(["nothing yet", *COLLECTIVES], number & 0xFF),
            name(list(DTYPE_CODES), number >> 8 & 0xFF),
            elements,
            next((row.name for row in OPS.values() if row.code == number >> 16 & 0xFF), "?"),
            number >> 24 & 0xFFFFFFFF,
        )
