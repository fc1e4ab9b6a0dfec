"""The claims with their verdicts as text, Markdown and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isinf
from typing import Any

from blinkccl.schema import SCHEMA_VERSION
from blinkccl.show.text import Paint
from reproduction.claim import DOCUMENTS, VERDICTS, JudgedClaim, Value

_STYLES = dict(zip(VERDICTS, ("green", "cyan", "blue", "blue", "yellow", "magenta", "dim"), strict=True))
_RELATIONS = {"=": "", "<=": "≤ ", ">=": "≥ "}
#: Meanings of verdicts, for the head of a table.
MEANINGS = {
    "reproduced": "our number is the published one, within the tolerance given",
    "close": "beyond that tolerance, but within 20 %",
    "fitted": "our numbers agree because our constants were chosen to match: this confirms nothing",
    "by construction": "true of our model or package by design: this confirms nothing",
    "differs": "beyond 20 %; the reason is given",
    "contradicted": "the document is wrong here, by its own numbers or by a theorem; our number is the right one",
    "cannot be checked": "raw data were not published, or it needs machines that are not here",
}


def counts_text(rows: Sequence[JudgedClaim]) -> str:
    """Number of claims by verdict, in a sentence."""
    counts = Counter(row.verdict for row in rows)
    what = "claim" if len(rows) == 1 else "claims"
    return f"{len(rows)} {what}: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])


def text(rows: Sequence[JudgedClaim], paint: Paint) -> str:
    """Text for a terminal: a paragraph per claim, documents in order."""
    lines: list[str] = []
    for letter, mine in by_document(rows):
        lines += ["", paint(f"{letter}  {DOCUMENTS[letter]}", "bold")]
        for row in mine:
            claim = row.claim
            lines.append(f"{claim.id:<5}{paint(row.verdict, _STYLES[row.verdict])}: {claim.text} ({claim.where})")
            for value in row.values:
                lines.append(f"        {value.what}: {published_text(value)}ours {ours_text(value)}{error_text(value)}")
            lines += [f"        by {basis}" for basis in bases(row)]
            if claim.why:
                lines.append(f"        why: {claim.why}")
    return "\n".join([counts_text(rows), *lines]) + "\n"


def markdown(rows: Sequence[JudgedClaim]) -> str:
    """A page of ``docs/``: a table per document."""
    lines = [
        "# The documents' claims",
        "",
        "Written by `make claims`; a test computes every number anew and compares.",
        "",
        f"{counts_text(rows)}.",
        "",
        *(f"- **{verdict}**: {MEANINGS[verdict]}" for verdict in VERDICTS),
    ]
    for letter, mine in by_document(rows):
        lines += ["", f"## {letter}: {DOCUMENTS[letter]}", "", "| id | claim | published | ours | verdict | why |"]
        lines.append("|---|---|---|---|---|---|")
        lines += [markdown_row(row) for row in mine]
    return "\n".join(lines) + "\n"


def markdown_row(row: JudgedClaim) -> str:
    """A claim as a line of its document's table."""
    claim = row.claim
    published = "<br>".join(published_lines(row))
    computed = "<br>".join(f"{v.what}: {ours_text(v)}{error_text(v)}" for v in row.values)
    sources = bases(row)
    why = " ".join(part for part in (claim.why, f"By {'; '.join(sources)}." if sources else "") if part)
    cells = (claim.id, f"{claim.text} ({claim.where})", published or "-", computed or "-", row.verdict, why)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def bases(row: JudgedClaim) -> list[str]:
    """The bases of a row's numbers, each once."""
    return list(dict.fromkeys(value.basis for value in row.values if value.basis))


def document(rows: Sequence[JudgedClaim]) -> dict[str, Any]:
    """The claims as a JSON document."""
    counts = Counter(row.verdict for row in rows)
    return {
        "schema_version": SCHEMA_VERSION,
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
        "claims": [
            {
                "id": row.claim.id,
                "document": DOCUMENTS[row.claim.document],
                "where": row.claim.where,
                "claim": row.claim.text,
                "verdict": row.verdict,
                "values": [
                    {
                        "what": value.what,
                        "published": value.published,
                        "relation": value.relation,
                        "ours": value.computed,
                        "unit": value.unit,
                        # Against a published 0 there is no relative error.
                        "error": None if value.error is None or isinf(value.error) else value.error,
                        "tolerance": value.tolerance,
                        "basis": value.basis,
                    }
                    for value in row.values
                ],
                "why": row.claim.why,
            }
            for row in rows
        ],
    }


def by_document(rows: Sequence[JudgedClaim]) -> Iterator[tuple[str, list[JudgedClaim]]]:
    """Each document's letter and its rows."""
    for letter in DOCUMENTS:
        mine = [row for row in rows if row.claim.document == letter]
        if mine:
            yield letter, mine


def published_number(value: Value) -> str:
    """The published number with its relation and unit; "-" without one."""
    if value.published is None:
        return "-"
    return f"{_RELATIONS[value.relation]}{_number(value.published)}{_unit(value)}"


def published_lines(row: JudgedClaim) -> list[str]:
    """Name and value of each published number."""
    return [f"{value.what}: {published_number(value)}" for value in row.values if value.published is not None]


def published_text(value: Value) -> str:
    """``published 21 GB/s, `` in a line of text."""
    return "" if value.published is None else f"published {published_number(value)}, "


def ours_text(value: Value) -> str:
    """Our number with its unit."""
    return f"{_number(value.computed)}{_unit(value)}"


def error_text(value: Value) -> str:
    """`` (-4.4 %)`` for a number that differs from the published one."""
    error = value.error
    if error is None or abs(error) < 5e-4:
        return ""
    return " (against none)" if isinf(error) else f" ({error:+.1%})".replace("%", " %")


def _unit(value: Value) -> str:
    return f" {value.unit}" if value.unit and value.unit not in ("x", "×") else "×" if value.unit else ""


def _number(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) and abs(number) < 1e12 else f"{number:.4g}"
