"""What a call of S bytes runs between processes of one host, and why: the row of the host's table that serves it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UsageError
from blinkccl.runtime.host_table import Crossing, label, machine, path_of_host, table_for
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.show.text import bytes_text, seconds_text
from blinkccl.trees.algorithms.tables import BUILT_IN, Cell, Way, cell_at, read


@dataclass(frozen=True)
class HostExplanation:
    """``ways``: what serves the call, and its variants; ``cell``: what was measured there, None nothing."""

    collective: Collective
    size_bytes: int
    source: str
    ways: Sequence[Way]
    cell: Cell | None

    def text(self) -> str:
        """For people."""
        ranks = self.collective.world_size
        first, *variants = self.ways
        here = label(first)
        if variants:
            here += f", or {', or '.join(label(row) for row in variants)}: the group measures which while it works"
        lines = [
            f"{self.collective.name} of {bytes_text(self.size_bytes)} ({self.size_bytes:,} bytes) among {ranks} ranks "
            "of this host, on its CPUs",
            "",
            f"here    {here}",
            f"why     {self._why()}",
        ]
        return "\n".join(lines) + "\n"

    def _why(self) -> str:
        cell = self.cell
        if cell is None:
            return f"built in; blink tune -g {self.collective.world_size} measures what is the fastest on this machine"
        took = f"blink tune measured {cell.tried} candidates at {bytes_text(cell.size_bytes)} on {cell.measured}"
        now, base = cell.times[0], cell.times[-1]
        if now.algorithm == BUILT_IN or not cell.confirmed:
            return f"{took}, and none was clearly faster than what is built in ({seconds_text(base.seconds)})"
        gain = f"{seconds_text(now.seconds)}, and {seconds_text(base.seconds)} as it is built in"
        return f"{took}: {gain} ({self.source})"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "schema_version": SCHEMA_VERSION,
            "collective": self.collective.name,
            "ranks": self.collective.world_size,
            "size_bytes": self.size_bytes,
            "table": self.source or None,
            "rows": msgspec.to_builtins(self.ways),
            "measured": msgspec.to_builtins(self.cell),
        }


def explain(collective: Collective, size_bytes: int) -> HostExplanation:
    """By the table that a group would read now."""
    ranks = collective.world_size
    table, path, cell = table_for(ranks), path_of_host(ranks), None
    if table.source and path is not None:
        with suppress(OSError, UsageError):
            cell = cell_at(read(path, machine()).of(range(ranks)), collective, size_bytes)
    ways = table.choose(collective.name, size_bytes, Crossing.MEASURED)
    return HostExplanation(collective, size_bytes, table.source, ways, cell)
