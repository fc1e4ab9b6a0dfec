"""Readers: one per format, which recognizes its content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from blinkccl.apps.doctor.evidence import Evidence, Location


@dataclass
class Listener:
    """A reader of lines, one per file; ``notes`` list its omissions and assumptions."""

    title: ClassVar[str]
    notes: list[str]

    def hear(self, line: str, place: Location) -> Iterable[Evidence]:
        """Return the pieces of one line."""
        raise NotImplementedError

    def end(self) -> Iterable[Evidence]:
        """Return the remaining pieces at the end of the file."""
        return ()
