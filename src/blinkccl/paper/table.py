"""The claims with their verdicts as text, Markdown and JSON; with the figures, as one self-contained page of HTML."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from math import isinf
from typing import Any

from blinkccl.paper.claim import DOCUMENTS, VERDICTS, JudgedClaim, Value
from blinkccl.paper.registry import Drawn
from blinkccl.report.text import Paint
from blinkccl.schema import SCHEMA_VERSION

_STYLES = dict(zip(VERDICTS, ("green", "cyan", "blue", "blue", "yellow", "magenta", "dim"), strict=True))
_RELATIONS = {"=": "", "<=": "≤ ", ">=": "≥ "}
#: What a verdict means, for the head of a table.
MEANINGS = {
    "reproduced": "our number is the published one, within the tolerance given",
    "close": "beyond that tolerance, but within 20 %",
    "fitted": "our numbers agree, as constants of ours were chosen so that they do: it confirms nothing",
    "by construction": "true of our model or package because it was made so: it confirms nothing",
    "differs": "further off; the reason is given",
    "contradicted": "the document is wrong here, by its own numbers or by a theorem; our number is the right one",
    "cannot be checked": "raw data were not published, or it needs machines that are not here",
}


def counts_text(rows: Sequence[JudgedClaim]) -> str:
    """How many claims have which verdict, in a sentence."""
    counts = Counter(row.verdict for row in rows)
    what = "claim" if len(rows) == 1 else "claims"
    return f"{len(rows)} {what}: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])


def text(rows: Sequence[JudgedClaim], paint: Paint) -> str:
    """For a terminal: a paragraph per claim, documents in order."""
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
    """As a page of ``docs/``: a table per document."""
    lines = [
        "# The documents' claims",
        "",
        "Written by `blink paper --markdown docs/claims.md`; a test computes every number anew and compares.",
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
    ours = "<br>".join(f"{v.what}: {ours_text(v)}{error_text(v)}" for v in row.values)
    found = bases(row)
    why = " ".join(part for part in (claim.why, f"By {'; '.join(found)}." if found else "") if part)
    cells = (claim.id, f"{claim.text} ({claim.where})", published or "-", ours or "-", row.verdict, why)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def bases(row: JudgedClaim) -> list[str]:
    """What a row's numbers were computed with, each once."""
    return list(dict.fromkeys(value.basis for value in row.values if value.basis))


def document(rows: Sequence[JudgedClaim]) -> dict[str, Any]:
    """As JSON."""
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
                        "ours": value.ours,
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
    """The published number with its relation and unit; "-" where there is none."""
    if value.published is None:
        return "-"
    return f"{_RELATIONS[value.relation]}{_number(value.published)}{_unit(value)}"


def published_lines(row: JudgedClaim) -> list[str]:
    """What each published number is of, and the number."""
    return [f"{value.what}: {published_number(value)}" for value in row.values if value.published is not None]


def published_text(value: Value) -> str:
    """``published 21 GB/s, `` in a line of text."""
    return "" if value.published is None else f"published {published_number(value)}, "


def ours_text(value: Value) -> str:
    """Our number with its unit."""
    return f"{_number(value.ours)}{_unit(value)}"


def error_text(value: Value) -> str:
    """`` (-4.4 %)`` where there is a number to compare with and it is not the same."""
    error = value.error
    if error is None or abs(error) < 5e-4:
        return ""
    return " (against none)" if isinf(error) else f" ({error:+.1%})".replace("%", " %")


def _unit(value: Value) -> str:
    return f" {value.unit}" if value.unit and value.unit not in ("x", "×") else "×" if value.unit else ""


def _number(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) and abs(number) < 1e12 else f"{number:.4g}"


_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .4rem .5rem; text-align: left; vertical-align: top; }
td.numbers { white-space: nowrap; } .basis, .why { color: #777; font-size: .85em; }
.verdict { border-radius: .6em; padding: .1em .6em; white-space: nowrap; color: #fff; }
.v0 { background: #2a7d3f; } .v1 { background: #2b7a8c; } .v2, .v3 { background: #47679b; }
.v4 { background: #b07d12; } .v5 { background: #8a3b8f; } .v6 { background: #777; }
figure { margin: 1.5rem 0; background: #fff; color: #000; padding: .5rem; border-radius: .4rem; }
figure img { max-width: 100%; height: auto; } figcaption { padding: .3rem .5rem; }
nav a { margin-right: 1rem; }
"""


def page(rows: Sequence[JudgedClaim], drawn: Sequence[Drawn]) -> str:
    """The page: counts, a table per document, and its figures after it."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>The documents' claims</title><style>{_PAGE_STYLE}</style></head><body>",
        f"<h1>The documents' claims</h1><p>{escape(counts_text(rows))}.</p><ul>",
        *(f"<li>{_badge(verdict)} {escape(MEANINGS[verdict])}</li>" for verdict in VERDICTS),
        "</ul><nav>",
        *(f'<a href="#{letter}">{letter}: {escape(DOCUMENTS[letter])}</a>' for letter, _ in by_document(rows)),
        "</nav>",
    ]
    for letter, mine in by_document(rows):
        parts.append(f'<h2 id="{letter}">{letter}: {escape(DOCUMENTS[letter])}</h2><table><thead><tr>')
        parts.append("<th>id<th>claim<th>published<th>ours<th>verdict</tr></thead><tbody>")
        parts += [_row_html(row) for row in mine]
        parts.append("</tbody></table>")
        parts += [_figure_html(one) for one in drawn if one.document == letter]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _row_html(row: JudgedClaim) -> str:
    claim = row.claim
    published = "<br>".join(escape(line) for line in published_lines(row)) or "-"
    why = f'<div class="why">{escape(claim.why)}</div>' if claim.why else ""
    ours = "".join(_ours_html(value) for value in row.values) or "-"
    return (
        f"<tr><td>{escape(claim.id)}<td>{escape(claim.text)} <small>({escape(claim.where)})</small>{why}"
        f'<td class="numbers">{published}<td>{ours}<td>{_badge(row.verdict)}</tr>'
    )


def _ours_html(value: Value) -> str:
    basis = f'<div class="basis">{escape(value.basis)}</div>' if value.basis else ""
    return f"<div>{escape(value.what)}: {escape(ours_text(value) + error_text(value))}</div>{basis}"


def _badge(verdict: str) -> str:
    return f'<span class="verdict v{VERDICTS.index(verdict)}">{escape(verdict)}</span>'


def _figure_html(drawn: Drawn) -> str:
    data = b64encode(drawn.png).decode("ascii")
    return (
        f'<figure><img alt="{escape(drawn.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(drawn.title)}. {escape(drawn.basis)}</figcaption></figure>"
    )
