"""Findings: bound, got, cause and one line to try, each with its evidence.

A rule writes a finding as people read it; :func:`finding` splits it into fields for schedulers and tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from blinkccl.apps.doctor.evidence import Evidence, Location
from blinkccl.show.text import Paint, ids

#: "error": it fails or gives wrong results. "warning": slower than possible, or undecidable. "note": no fault, but it
#: explains a number. Exit code 1 means an error or a warning.
SEVERITIES = ("error", "warning", "note")
_STYLE = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
_FORM = re.compile(
    r"\s*(?P<severity>\w+): (?P<title>.*?)  \[(?P<cause>[\w-]+)\]\n +bound +(?P<bound>.*?)\n +got +(?P<got>.*?)"
    r"\n +cause +(?P<why>.*?)\n +try +(?P<try>.*?)\s*",
    re.DOTALL,
)
#: Number of places in the text; JSON has all.
_SHOWN = 4


class Finding(msgspec.Struct, frozen=True, rename={"attempt": "try", "places": "evidence"}):
    """One cause: ``cause`` names it for schedulers and tests, ``title`` for people.

    ``bound`` is the possible value and ``got`` the present one, with numbers if known. JSON has these fields.
    """

    cause: str
    severity: str
    title: str
    bound: str
    got: str
    why: str
    attempt: str
    places: tuple[Location, ...] = ()

    def at(self, *pieces: Evidence | Iterable[Evidence] | None) -> Finding:
        """A copy with the places of these pieces as its evidence, each place once."""
        flat = [one for each in pieces if each is not None for one in ([each] if isinstance(each, Evidence) else each)]
        return msgspec.structs.replace(self, places=tuple(dict.fromkeys(piece.place for piece in flat)))

    @property
    def wrong(self) -> bool:
        return self.severity != "note"

    def lines(self, paint: Paint) -> list[str]:
        """The lines of the report for people."""
        more = f" and {len(self.places) - _SHOWN} more" if len(self.places) > _SHOWN else ""
        return [
            f"{paint(self.severity, _STYLE[self.severity])}: {self.title}  [{self.cause}]",
            f"bound   {self.bound}",
            f"got     {self.got}",
            f"cause   {self.why}",
            f"try     {self.attempt}",
            *([f"from    {_listed(self.places[:_SHOWN])}{more}"] if self.places else []),
        ]


def _listed(places: Iterable[Location]) -> str:
    """Each file once, with its lines: ``run.log, lines 2-5; topo.txt``."""
    lines: dict[str, list[int]] = {}
    for place in places:
        lines.setdefault(place.source, []).extend([place.line] if place.line else [])
    return "; ".join(f"{source}{_at(sorted(set(numbers)))}" for source, numbers in lines.items())


def _at(lines: list[int]) -> str:
    return f", line{'s' if len(lines) > 1 else ''} {ids(lines)}" if lines else ""


def finding(text: str) -> Finding:
    """Parse a finding from text of this form; continuation lines are indented further::

        warning: GPU3: NVLinks are down  [nvlink-down]
        bound   6 NVLinks, as the other GPUs have
        got     4 on GPU3
        cause   traffic through this GPU is slower by the same factor, and a ring slows down every GPU
        try     nvidia-smi nvlink -s -i 3, then nvidia-smi nvlink -e for errors; reset the GPU, or reseat the bridge
                or the module

    Text from files is on one line (:mod:`~.evidence`), so it cannot pass for one of these words.
    """
    form = _FORM.fullmatch(text)
    assert form is not None, text
    return msgspec.convert({name: re.sub(r"\n +", " ", part) for name, part in form.groupdict().items()}, Finding)


def named(devices: Iterable[str]) -> str:
    """Devices in a list for people, each once: ``GPU3``, ``GPUs 0-3,5``, ``NIC0, NIC2``."""
    names = list(dict.fromkeys(devices))
    numbers = [name.removeprefix("GPU") for name in names]
    if len(names) > 1 and all(
        name.startswith("GPU") and number.isdigit() for name, number in zip(names, numbers, strict=True)
    ):
        return f"GPUs {ids(sorted(map(int, numbers)))}"
    return ", ".join(names)
