"""What does a file say? One file per format, each known by its content."""

from __future__ import annotations

from collections.abc import Iterable

from blinkccl.doctor.evidence import Piece, Place


class Listener:
    """A reader of lines, one for each file; ``notes`` are what it had to leave out or assume."""

    title: str

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def hear(self, line: str, place: Place) -> Iterable[Piece]:
        """The pieces of one line."""
        raise NotImplementedError

    def end(self) -> Iterable[Piece]:
        """What can be said when the file is over."""
        return ()
