"""Exhibits: the content of a view of a plan or a machine, and its output as a page, a picture, or text.

An :class:`Exhibit` holds all content; the writers add nothing. The page is one file that loads nothing: it contains its
styles, its script (``page.js``) and its pictures, and without script it is a document with pictures.
Equal exhibits give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from blinkccl.errors import UsageError
from blinkccl.show.picture import folded
from blinkccl.show.shapes import Picture, palette_css, stacked, styles_css, svg, svg_file
from blinkccl.show.words import Said


@dataclass(frozen=True)
class Figure:
    """A picture with a caption; ``name`` is its id on the page, and ``large`` marks a cluster with zoom."""

    picture: Picture
    caption: str
    name: str
    large: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text; columns in ``left`` (by index) are words, the others numbers."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: tuple[int, ...] = (0,)
    about: str = ""


@dataclass(frozen=True)
class Prose:
    """Paragraphs below a heading."""

    title: str
    paragraphs: Sequence[str]


@dataclass(frozen=True)
class PlayerStage:
    """The interactive part: the machine, the trees of its shares, and the player if ``plays``.

    ``shares`` has one picture each, in the order of ``data["shares"]`` of the exhibit; ``more`` says how many are
    missing.
    """

    machine: Figure
    shares: Sequence[Picture] = ()
    more: str = ""
    plays: bool = False


@dataclass(frozen=True)
class Pair:
    """Two pictures for comparison."""

    title: str
    first: Figure
    second: Figure
    about: str = ""


Part = Figure | Table | Prose | PlayerStage | Pair


@dataclass(frozen=True)
class Exhibit:
    """``kind``: plan or topology. ``text`` gives the text form, for a number of columns or None.

    ``next`` are commands to try; ``data`` is for the script.
    """

    kind: str
    title: str
    summary: Sequence[Said]
    parts: Sequence[Part]
    text: Callable[[int | None], str]
    next: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


#: Suffixes of a file's name, which select the form.
FORMS = (".html", ".svg", ".txt")


def check_form(path: Path) -> None:
    """Refuse a file name with an unknown suffix."""
    if path.suffix.lower() not in FORMS:
        raise UsageError(f"{path}: expected a name that ends in {', '.join(FORMS[:-1])} or {FORMS[-1]}")


def exhibit_file(shown: Exhibit, path: Path) -> str:
    """The content of a file with that name, in the form of its suffix; errors as in :func:`check_form`."""
    check_form(path)
    match path.suffix.lower():
        case ".html":
            return exhibit_page(shown)
        case ".svg":
            return exhibit_svg(shown)
    return shown.text(None)


def exhibit_svg(shown: Exhibit) -> str:
    """:func:`exhibit_picture` as a file."""
    return svg_file(exhibit_picture(shown))


def exhibit_cell(shown: Exhibit) -> str:
    """HTML for a notebook: the summary and the pictures, without script."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(term)}</th><td style="text-align:left">{escape(words)}</td></tr>'
        for term, words in shown.summary
    )
    return f"<div><p><b>{escape(shown.title)}</b></p><table>{rows}</table>{exhibit_svg(shown)}</div>"


def exhibit_document(shown: Exhibit) -> dict[str, Any]:
    """The JSON object of ``blink show --json``: title, summary and tables."""
    tables = [part for part in shown.parts if isinstance(part, Table)]
    return {
        "kind": shown.kind,
        "title": shown.title,
        "summary": [{"term": term, "said": words} for term, words in shown.summary],
        "tables": [
            {"title": table.title, "header": list(table.header), "rows": [list(r) for r in table.rows]}
            for table in tables
        ],
        "next": list(shown.next),
    }


def exhibit_picture(shown: Exhibit) -> Picture:
    """The main pictures as one figure, as for a paper: the machine and its trees.

    A cluster is shown alone, because other pictures would be tiny beside it.
    """
    pictures: list[Picture] = []
    for part in shown.parts:
        if isinstance(part, Figure):
            pictures.append(folded(part.picture))
        elif isinstance(part, PlayerStage):
            pictures.append(folded(part.machine.picture))
            if part.machine.large:
                break
            if part.shares:
                trees = stacked(part.shares, _per_row(part.shares))
                pictures.append(replace(trees, title="The trees, one per share of the data"))
    if len(pictures) == 1:
        return pictures[0]
    whole = stacked(pictures, 1)
    return replace(whole, title=shown.title, about=" ".join(f"{term}: {words}" for term, words in shown.summary))


def _per_row(pictures: Sequence[Picture]) -> int:
    """The number of pictures that is about 1000 px wide."""
    return max(1, min(len(pictures), int(1000 / (max(picture.width for picture in pictures) + 60))))


# The page.
#: Rows of a table that is open at first.
_FEW = 24
#: Wider pictures take the whole width of the page.
_HALF = 1000
#: Above this width of one, the pictures of a pair are stacked, to keep words legible.
_PAIRED = 800


def exhibit_page(shown: Exhibit) -> str:
    """The page as text."""
    css = f":root{{{palette_css(False)}color-scheme:light}}\n"
    css += f":root[data-theme=dark]{{{palette_css(True)}color-scheme:dark}}\n"
    css += (
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{palette_css(True)}color-scheme:dark}}}}\n"
    )
    css += f"{styles_css()}\n{_resource('page.css')}"
    data = json.dumps(shown.data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    body = "\n".join(_part(part, number) for number, part in enumerate(shown.parts))
    following = "".join(f"<li><code>{escape(line)}</code></li>" for line in shown.next)
    if following:
        body += (
            f'\n<section aria-labelledby="try-h"><h2 id="try-h">Next</h2><ul class="next">{following}</ul></section>'
        )
    return Template(_resource("page.html")).substitute(
        title=escape(shown.title),
        kind=escape(shown.kind),
        css=css,
        body=f"{_summary(shown.summary)}\n{body}",
        data=data,
        script=_resource("page.js"),
    )


@lru_cache(maxsize=4)
def _resource(name: str) -> str:
    return (files("blinkccl.show") / name).read_text(encoding="utf-8")


def _summary(summary: Sequence[Said]) -> str:
    rows = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(words)}</dd></div>" for term, words in summary)
    return f'<dl class="summary">{rows}</dl>'


def _part(part: Part, number: int) -> str:
    match part:
        case Figure():
            return _section(part.picture.title, _figure(part), part.name)
        case Table():
            return _section(part.title, _table(part), f"table{number}")
        case Prose():
            words = "".join(f"<p>{escape(line)}</p>" for line in part.paragraphs)
            return _section(part.title, f'<div class="prose">{words}</div>', f"prose{number}")
        case PlayerStage():
            return _stage(part)
        case Pair():
            about = f"<p>{escape(part.about)}</p>" if part.about else ""
            wide = " wide" if max(part.first.picture.width, part.second.picture.width) > _PAIRED else ""
            pair = f'<div class="pair{wide}">{_figure(part.first, named=True)}{_figure(part.second, named=True)}</div>'
            return _section(part.title, about + pair, f"pair{number}")


def _section(title: str, inner: str, name: str) -> str:
    return f'<section aria-labelledby="{name}-h"><h2 id="{name}-h">{escape(title)}</h2>{inner}</section>'


def _figure(shown: Figure, named: bool = False) -> str:
    picture, title = svg(shown.picture, name=shown.name, role="group" if shown.large else "img"), shown.picture.title
    width = shown.picture.width
    least, most = min(0.22 * width, 560.0) if shown.large else min(0.6 * width, 720.0), max(1.25 * width, 480)
    canvas = f'<div class="canvas" style="min-width:{least:.0f}px;max-width:{most:.0f}px">{picture}</div>'
    name = f"<strong>{escape(title)}.</strong> " if named else ""
    return (
        f'<figure class="picture">{_scroll(f"{title}, figure", canvas)}'
        f"<figcaption>{name}{escape(shown.caption)}</figcaption></figure>"
    )


def _scroll(label: str, inner: str) -> str:
    """A scrollable region for content wider than the page, with keyboard access."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{inner}</div>'


def _stage(stage: PlayerStage) -> str:
    machine = _tools(bool(stage.shares), stage.machine.large) + _figure(stage.machine)
    if stage.plays:
        machine += _player()
    if not stage.shares:
        return _section(stage.machine.picture.title, machine, "stage")
    cards = "".join(_card(picture, number) for number, picture in enumerate(stage.shares))
    more = f'<p class="note">{escape(stage.more)}</p>' if stage.more else ""
    trees = (
        f'<section aria-labelledby="trees-h" class="trees"><h2 id="trees-h">The trees</h2>{_TREES}'
        f'<div class="cards" tabindex="0" role="region" aria-label="trees, one per share">{cards}</div>{more}</section>'
    )
    wide = " wide" if stage.machine.large or stage.machine.picture.width > _HALF else ""
    return f'<div class="stage{wide}">{_section(stage.machine.picture.title, machine, "stage")}{trees}</div>'


_TREES = (
    '<p class="note">Arrows <span class="up">up</span>: data of the ranks are reduced on the way to the root. '
    'Arrows <span class="down">down</span>: copies go from the root to the ranks (broadcast).</p>'
)


def _tools(shares: bool, large: bool) -> str:
    controls = ""
    if shares:
        controls += (
            '<button type="button" id="prev" aria-label="previous share">←</button>'
            '<button type="button" id="all" aria-pressed="true">all shares</button>'
            '<button type="button" id="next" aria-label="next share">→</button>'
            '<label><input type="checkbox" id="up" checked> up</label>'
            '<label><input type="checkbox" id="down" checked> down</label>'
        )
    controls += '<label id="cut-label"><input type="checkbox" id="show-cut" checked> bottleneck</label>'
    if large:
        controls += '<button type="button" id="whole" disabled>whole cluster</button>'
    controls += '<output id="which" aria-live="polite"></output>'
    return f'<div class="tools script" role="group" aria-label="visible parts">{controls}</div>'


def _player() -> str:
    return (
        '<div class="tools script" role="group" aria-label="time"><button type="button" id="play">play</button>'
        '<input type="range" id="at" min="0" max="240" value="0" aria-label="time"><output id="now">0</output></div>'
    )


def _card(picture: Picture, number: int) -> str:
    button = f'<button type="button" class="pick" aria-pressed="false">{escape(picture.title)}</button>'
    drawn = svg(picture, name=f"share{number}")
    return f'<figure class="card" data-share="{number}"><figcaption>{button}</figcaption>{drawn}</figure>'


def _table(table: Table) -> str:
    def cell(text: str, i: int) -> str:
        return f"<td{'' if i in table.left else ' class=n'}>{escape(text)}</td>"

    head = "".join(
        f'<th scope="col"{"" if i in table.left else " class=n"}>{escape(name)}</th>'
        for i, name in enumerate(table.header)
    )
    rows = "".join(f"<tr>{''.join(cell(text, i) for i, text in enumerate(row))}</tr>" for row in table.rows)
    about = f'<p class="note">{escape(table.about)}</p>' if table.about else ""
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    whole = _scroll(f"{table.title}, table", whole)
    if len(table.rows) > _FEW:
        whole = f"<details><summary>{len(table.rows)} rows</summary>{whole}</details>"
    return about + whole
