"""The claims and figures as one page of HTML that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from blinkccl.paper import table
from blinkccl.paper.claim import DOCUMENTS, VERDICTS, JudgedClaim, Value
from blinkccl.paper.registry import Drawn

_STYLE = """
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
        f"<title>The documents' claims</title><style>{_STYLE}</style></head><body>",
        f"<h1>The documents' claims</h1><p>{escape(table.counts_text(rows))}.</p><ul>",
        *(f"<li>{_badge(verdict)} {escape(table.MEANINGS[verdict])}</li>" for verdict in VERDICTS),
        "</ul><nav>",
        *(f'<a href="#{letter}">{letter}: {escape(DOCUMENTS[letter])}</a>' for letter, _ in table.by_document(rows)),
        "</nav>",
    ]
    for letter, mine in table.by_document(rows):
        parts.append(f'<h2 id="{letter}">{letter}: {escape(DOCUMENTS[letter])}</h2><table><thead><tr>')
        parts.append("<th>id<th>claim<th>published<th>ours<th>verdict</tr></thead><tbody>")
        parts += [_row(row) for row in mine]
        parts.append("</tbody></table>")
        parts += [_figure(one) for one in drawn if one.document == letter]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _row(row: JudgedClaim) -> str:
    claim = row.claim
    published = "<br>".join(escape(line) for line in table.published_lines(row)) or "-"
    why = f'<div class="why">{escape(claim.why)}</div>' if claim.why else ""
    ours = "".join(_ours(value) for value in row.values) or "-"
    return (
        f"<tr><td>{escape(claim.id)}<td>{escape(claim.text)} <small>({escape(claim.where)})</small>{why}"
        f'<td class="numbers">{published}<td>{ours}<td>{_badge(row.verdict)}</tr>'
    )


def _ours(value: Value) -> str:
    basis = f'<div class="basis">{escape(value.basis)}</div>' if value.basis else ""
    return f"<div>{escape(value.what)}: {escape(table.ours_text(value) + table.error_text(value))}</div>{basis}"


def _badge(verdict: str) -> str:
    return f'<span class="verdict v{VERDICTS.index(verdict)}">{escape(verdict)}</span>'


def _figure(drawn: Drawn) -> str:
    data = b64encode(drawn.png).decode("ascii")
    return (
        f'<figure><img alt="{escape(drawn.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(drawn.title)}. {escape(drawn.basis)}</figcaption></figure>"
    )
