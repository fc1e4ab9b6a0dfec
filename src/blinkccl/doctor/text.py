"""A diagnosis as people read it: the verdict, then bound, got, cause and one line to try, per finding."""

from __future__ import annotations

from collections.abc import Sequence

from blinkccl.doctor.diagnose import Diagnosis
from blinkccl.doctor.evidence import Place
from blinkccl.report.text import Paint, fit

_STYLE = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
_PLACES = 4


def diagnosis_text(diagnosis: Diagnosis, paint: Paint, width: int | None = None) -> str:
    """The report. Lines are broken between words where ``width`` is small; sources are shown as they were given."""
    lines = [f"about   {diagnosis.subject}", f"verdict {diagnosis.verdict}"]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [
            "",
            f"{number}. {paint(finding.severity, _STYLE[finding.severity])}: {finding.title}  [{finding.cause}]",
            f"bound   {finding.bound}",
            f"got     {finding.got}",
            f"cause   {finding.why}",
            f"try     {finding.attempt}",
        ]
        if finding.places:
            lines.append(f"from    {_places(finding.places)}")
    if diagnosis.read:
        lines += [
            "",
            *(f"read    {source}: {', '.join(kinds) or 'nothing known'}" for source, kinds in diagnosis.read.items()),
        ]
    lines += [f"note    {note}" for note in diagnosis.notes]
    return fit("\n".join(_printable(line) for line in lines), width) + "\n"


def _places(places: Sequence[Place]) -> str:
    shown = ", ".join(map(str, places[:_PLACES]))
    return shown + (f" and {len(places) - _PLACES} more" if len(places) > _PLACES else "")


def _printable(line: str) -> str:
    """Files may hold what a terminal would obey; colours of our own are kept."""
    return "".join(c if c.isprintable() or c == "\x1b" else "?" for c in line)
