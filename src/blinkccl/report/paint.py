"""Colour, or none: reports are written once and painted at the end."""

from __future__ import annotations

from collections.abc import Callable

#: ``paint(text, style)`` with a style as rich names it: "green", "bold red", "dim".
Paint = Callable[[str, str], str]


def plain(text: str, style: str) -> str:
    """``text`` as it is."""
    return text


def terminal(text: str, style: str) -> str:
    """``text`` in the terminal's escape codes."""
    from rich.style import Style  # loaded for a terminal only

    return Style.parse(style).render(text)


def painter(coloured: bool) -> Paint:
    """:func:`terminal` where colours are wanted, else :func:`plain`."""
    return terminal if coloured else plain
