"""A plan as HTML, for a notebook: the rate, the shares with their trees, and the proof."""

from __future__ import annotations

from html import escape

from blinkccl.forest.model import Forest
from blinkccl.report.plan_text import SHARES_SHOWN, certificate_lines, headline, share_drawing
from blinkccl.report.text import gb_per_s_text, rate_text
from blinkccl.units import bus_factor


def report(forest: Forest) -> str:
    """What a notebook shows of a plan, as an element that brings no script and loads nothing."""
    verdict = "optimal" if forest.optimal else f"{float(forest.rate / forest.bound):.1%} of the bound"
    busbw = forest.algbw_gb_per_s * float(bus_factor(forest.collective.name, len(forest.ranks)))
    facts = {
        "rate": f"{rate_text(forest.rate, forest.topology)} algbw, {gb_per_s_text(busbw)} busbw",
        "bound": f"{rate_text(forest.bound, forest.topology)}: {verdict}",
        "depth": str(forest.depth),
    }
    head = "".join(_row(f"<b>{key}</b>", escape(text)) for key, text in facts.items())
    moving = [share for share in forest.shares if any(tree.edges for tree in share.trees())]
    shares = "".join(
        _row(str(share.weight), str(share.root), _pre("\n".join(share_drawing(share))))
        for share in moving[:SHARES_SHOWN]
    )
    more = len(moving) - SHARES_SHOWN
    left_out = f"<p>… and {more} more shares</p>" if more > 0 else ""
    return (
        f"<div><p><b>{escape(headline(forest))}</b></p><table>{head}</table>"
        f"<table><tr><th>weight</th><th>root</th><th>trees</th></tr>{shares}</table>"
        f"{left_out}{_pre(chr(10).join(certificate_lines(forest)))}</div>"
    )


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _pre(text: str) -> str:
    return f'<pre style="text-align:left">{escape(text)}</pre>'
