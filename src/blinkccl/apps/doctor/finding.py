"""What the doctor says: bound, got, cause and one line to try, each with the evidence that it rests on.

A rule writes a finding as people will read it; :func:`finding` takes it apart for schedulers and tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from blinkccl.apps.doctor.evidence import Evidence, Location
from blinkccl.show.text import Paint, ids

#: "error": it does not work, or gives wrong results. "warning": slower than it could be, or nobody can tell.
#: "note": no fault, but what explains a number. The first two are what exit code 1 means.
SEVERITIES = ("error", "warning", "note")
_STYLE = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
_FORM = re.compile(
    r"\s*(?P<severity>\w+): (?P<title>.*?)  \[(?P<cause>[\w-]+)\]\n +bound +(?P<bound>.*?)\n +got +(?P<got>.*?)"
    r"\n +cause +(?P<why>.*?)\n +try +(?P<try>.*?)\s*",
    re.DOTALL,
)
#: Places that are shown to people; JSON has all.
_SHOWN = 4


class Finding(msgspec.Struct, frozen=True, rename={"attempt": "try", "places": "evidence"}):
    """One cause: ``cause`` is its name for schedulers and tests, ``title`` for people.

    ``bound`` is what could be and ``got`` what is, each with its number where there is one. JSON has these fields.
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
        """With the pieces that it rests on: each place once."""
        flat = [one for each in pieces if each is not None for one in ([each] if isinstance(each, Evidence) else each)]
        return msgspec.structs.replace(self, places=tuple(dict.fromkeys(piece.place for piece in flat)))

    @property
    def wrong(self) -> bool:
        return self.severity != "note"

    def lines(self, paint: Paint) -> list[str]:
        """For people."""
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
    return "; ".join(f"{source}{_at(sorted(set(found)))}" for source, found in lines.items())


def _at(lines: list[int]) -> str:
    return f", line{'s' if len(lines) > 1 else ''} {ids(lines)}" if lines else ""


def finding(text: str) -> Finding:
    """The finding that is written like this; a line that goes on is indented below its own words::

        warning: GPU3: NVLinks are down  [nvlink-down]
        bound   6 NVLinks, as the other GPUs have
        got     4 on GPU3
        cause   what crosses this GPU is slower by as much, and in a ring so is everybody
        try     nvidia-smi nvlink -s -i 3, then nvidia-smi nvlink -e for errors; reset the GPU, or reseat the bridge
                or the module

    What files said is on one line (:mod:`~.evidence`), so it cannot be taken for one of these words.
    """
    form = _FORM.fullmatch(text)
    assert form is not None, text
    return msgspec.convert({name: re.sub(r"\n +", " ", part) for name, part in form.groupdict().items()}, Finding)


def named(devices: Iterable[str]) -> str:
    """Devices as people list them, each once: ``GPU3``, ``GPUs 0-3,5``, ``NIC0, NIC2``."""
    names = list(dict.fromkeys(devices))
    numbers = [name.removeprefix("GPU") for name in names]
    if len(names) > 1 and all(
        name.startswith("GPU") and number.isdigit() for name, number in zip(names, numbers, strict=True)
    ):
        return f"GPUs {ids(sorted(map(int, numbers)))}"
    return ", ".join(names)
