"""The rows of one rank that the native library binds to a plan, with names."""

import ctypes as c
from types import SimpleNamespace
from typing import Any

from blinkccl.collectives.ops import DTYPE_CODES, element_type, operation
from blinkccl.engines import native_library as native
from blinkccl.engines.host import shape_of
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import UnsupportedError


@native.HEADER.layout("blink_tables")
class _Tables(c.Structure):
    """``blink_tables``."""


class BoundRank:
    """``plan`` bound to ``count`` elements per block on ``rank``; UnsupportedError if the library says it never fits.

    ``roles``, ``receives``, ``rings`` and ``readers`` are rows with their members' names; ``numbers`` has the rest.
    """

    def __init__(
        self, plan: HostPlan, rank: int, count: int, chunk_bytes: int, dtype: str = "float32", op: str = "sum"
    ) -> None:
        library, error = native.load(), native.Error()
        binding = native.Binding(count, DTYPE_CODES[element_type(dtype).name], operation(op).code, chunk_bytes, 0)
        shape = shape_of(len(plan.program.ranks), plan.area)
        held = library.blink_plan_read(plan.rows, len(plan.rows), c.byref(error))
        assert held, error.text.decode()
        bound = library.blink_bind(held, c.byref(shape), rank, c.byref(binding), c.byref(error))
        library.blink_plan_free(held)
        if not bound:
            assert error.code == native.UNSUPPORTED, error.text.decode()
            raise UnsupportedError(error.text.decode())
        tables = _Tables.from_address(library.blink_bound_tables(bound))
        self.rank = rank
        self.numbers = SimpleNamespace(**{name: getattr(tables, name) for name, _ in _Tables._fields_})
        self.roles, self.receives, self.rings, self.readers = (
            _rows(getattr(tables, f"{name}s"), getattr(tables, f"{name}_count"), f"blink_{name}")
            for name in ("role", "receive", "ring", "reader")
        )
        self.sends = list((c.c_int64 * tables.send_count).from_address(tables.sends)) if tables.send_count else []
        library.blink_bound_free(bound)

    @property
    def in_place(self) -> tuple[int, int]:
        """Return whether peers may read the input, and write the output, when both are one buffer."""
        return self.numbers.direct_read_in_place, self.numbers.direct_write_in_place

    def readers_of(self, ring: Any) -> list[Any]:
        """Return the rows of ``ring``'s readers."""
        return self.readers[ring.first_reader : ring.first_reader + ring.readers]


def all_ranks(plan: HostPlan, count: int, chunk_bytes: int, dtype: str = "float32", op: str = "sum") -> list[BoundRank]:
    """Return every rank's rows."""
    return [BoundRank(plan, rank, count, chunk_bytes, dtype, op) for rank in range(len(plan.program.ranks))]


def _rows(address: int | None, count: int, struct: str) -> list[Any]:
    names = native.HEADER.structs[struct].names
    if not count or address is None:
        return []
    numbers = iter((c.c_int64 * (count * len(names))).from_address(address))
    return [SimpleNamespace(**{name: next(numbers) for name in names}) for _ in range(count)]
