"""What does a file say? One file per format, each known by its content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from blinkccl.apps.doctor.evidence import Evidence, Location


@dataclass
class Listener:
    """A reader of lines, one for each file; ``notes`` are what it had to leave out or assume."""

    title: ClassVar[str]
    notes: list[str]

    def hear(self, line: str, place: Location) -> Iterable[Evidence]:
        """The pieces of one line."""
        raise NotImplementedError

    def end(self) -> Iterable[Evidence]:
        """What can be said when the file is over."""
        return ()
