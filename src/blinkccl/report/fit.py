"""Long sentences on a narrow terminal: broken between words, and set in."""

from __future__ import annotations

import re
import textwrap

#: Below this there is no room for sentences beside their labels.
LEAST_WIDTH = 40
#: As deep as the labels in front of sentences ("rate    …", "proof   …").
_LABEL = 8
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def fit(text: str, width: int | None) -> str:
    """``text`` with lines of more than ``width`` characters broken between words; None breaks none.

    Escape codes count as characters, so that a coloured line may be broken earlier than it had to be, never
    later.
    """
    if width is None:
        return text
    return "\n".join(_broken(line, max(width, LEAST_WIDTH)) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    if len(_ESCAPE.sub("", line)) <= width:
        return line
    indent = len(line) - len(line.lstrip())
    lines = textwrap.wrap(
        line, width, subsequent_indent=" " * max(indent, _LABEL), break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)
