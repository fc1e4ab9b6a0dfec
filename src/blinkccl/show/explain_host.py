"""What a call of S bytes runs between processes of one host, and why: the row of the host's table that serves it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from blinkccl.collectives.spec import Collective
from blinkccl.cost.choice.host_table import Crossing, HostChoice, label
from blinkccl.errors import UsageError
from blinkccl.runtime import tuned
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.show.text import bytes_text, seconds_text


@dataclass(frozen=True)
class HostExplanation:
    """``rows``: what serves the call, and its variants; ``cell``: what was measured there, None nothing."""

    collective: Collective
    size_bytes: int
    source: str
    rows: Sequence[HostChoice]
    cell: tuned.TunedCell | None

    def text(self) -> str:
        """For people."""
        ranks = self.collective.world_size
        first, *variants = self.rows
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
        if not cell.rows or not cell.confirmed:
            return f"{took}, and none was clearly faster than what is built in ({seconds_text(cell.seconds)})"
        gain = f"{seconds_text(cell.seconds)}, and {seconds_text(cell.built_in_seconds)} as it is built in"
        return f"{took}: {gain} ({self.source})"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "schema_version": SCHEMA_VERSION,
            "collective": self.collective.name,
            "ranks": self.collective.world_size,
            "size_bytes": self.size_bytes,
            "table": self.source or None,
            "rows": msgspec.to_builtins(self.rows),
            "measured": msgspec.to_builtins(self.cell),
        }


def explain(collective: Collective, size_bytes: int) -> HostExplanation:
    """By the table that a group would read now."""
    table = tuned.table_for(collective.world_size)
    cell = None
    path = tuned.path_of(collective.world_size)
    if table.source and path is not None:
        with suppress(OSError, UsageError):
            cells = tuned.read(path, collective.world_size).cells
            ours = (one for one in cells if one.collective == collective.name)
            cell = next((one for one in ours if one.least <= size_bytes < one.below), None)
    rows = table.choose(collective.name, size_bytes, Crossing.MEASURED)
    return HostExplanation(collective, size_bytes, table.source, rows, cell)
