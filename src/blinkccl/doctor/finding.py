"""What the doctor says: bound, got, cause and one line to try, each with the evidence that it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blinkccl.doctor.evidence import Piece, Place
from blinkccl.report.text import ids

#: "error": it does not work, or gives wrong results. "warning": slower than it could be, or nobody can tell.
#: "note": no fault, but what explains a number. The first two are what exit code 1 means.
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause: ``cause`` is its name for schedulers and tests, ``title`` for people.

    ``bound`` is what could be and ``got`` what is, each with its number where there is one.
    """

    cause: str
    severity: str
    title: str
    bound: str
    got: str
    why: str
    attempt: str
    places: tuple[Place, ...] = ()

    @property
    def wrong(self) -> bool:
        return self.severity != "note"

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cause": self.cause,
            "severity": self.severity,
            "title": self.title,
            "bound": self.bound,
            "got": self.got,
            "why": self.why,
            "try": self.attempt,
            "evidence": [{"source": place.source, "line": place.line or None} for place in self.places],
        }


def named(devices: Iterable[str]) -> str:
    """Devices as people list them, each once: ``GPU3``, ``GPUs 0-3,5``, ``NIC0, NIC2``."""
    names = list(dict.fromkeys(devices))
    numbers = [name.removeprefix("GPU") for name in names]
    if len(names) > 1 and all(
        name.startswith("GPU") and number.isdigit() for name, number in zip(names, numbers, strict=True)
    ):
        return f"GPUs {ids(sorted(map(int, numbers)))}"
    return ", ".join(names)


def places(*pieces: Piece | Iterable[Piece]) -> tuple[Place, ...]:
    """Where these pieces were read, each place once."""
    flat = [one for each in pieces for one in ([each] if isinstance(each, Piece) else each)]
    return tuple(dict.fromkeys(piece.place for piece in flat))
