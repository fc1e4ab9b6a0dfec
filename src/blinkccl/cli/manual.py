"""``blink --man``: the manual page, generated from the help of the verbs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

_ESCAPES = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq"})


def manual(root: Any) -> str:
    """The page of a click program's commands, in roff (man(7)). Same version, same bytes."""
    lines = [f'.TH BLINK 1 "" "blink {version("blink-ccl")}" "Blink"', ".SH NAME"]
    lines += [r"blink \- collective communication planned from the links that a job really has", ".SH SYNOPSIS"]
    lines += [r".B blink", ".I VERB", "[OPTIONS] [ARGUMENTS]", ".SH DESCRIPTION", *_paragraphs(root.help)]
    for name, command in root.commands.items():
        lines += [f".SH {_text(f'blink {name}').upper()}", _text(command.short_help), *_paragraphs(command.help)]
        for parameter in command.params:
            if (record := parameter.get_help_record(_context(command, name))) is not None:
                lines += [".TP", rf"\fB{_text(record[0])}\fR", _text(record[1])]
    return "\n".join(lines) + "\n"


def _context(command: Any, name: str) -> Any:
    return command.context_class(command, info_name=name)


def _paragraphs(text: str) -> Iterator[str]:
    """A help text in roff; paragraphs behind a \\b, and indented ones, keep their lines."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        verbatim = part.lstrip().startswith("\b") or part.startswith("  ")
        body = [line for line in part.replace("\b", "").splitlines() if line.strip()]
        yield ".PP"
        if verbatim:
            yield from (".nf", *(_text(line) for line in body), ".fi")
        else:
            yield _text(" ".join(line.strip() for line in body))


def _text(text: str) -> str:
    """Text escaped for roff; a line that begins with a full stop or a quote would be a request."""
    escaped = text.translate(_ESCAPES)
    return rf"\&{escaped}" if escaped.startswith((".", r"\(aq")) else escaped
