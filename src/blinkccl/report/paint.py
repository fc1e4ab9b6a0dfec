"""Colour, or none: reports are written once and painted at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

#: ``paint(text, style)`` with a style as rich names it: "green", "bold red", "dim".
Paint = Callable[[str, str], str]


class _Renders(Protocol):
    def render(self, text: str = "") -> str: ...


def plain(text: str, style: str) -> str:
    """``text`` as it is."""
    return text


def terminal(text: str, style: str) -> str:
    """``text`` in the terminal's escape codes."""
    return _style(style).render(text)


@lru_cache(maxsize=64)
def _style(style: str) -> _Renders:
    # rich is loaded for a terminal only.
    from rich.style import Style

    return Style.parse(style)


def painter(coloured: bool) -> Paint:
    """:func:`terminal` where colours are wanted, else :func:`plain`."""
    return terminal if coloured else plain
