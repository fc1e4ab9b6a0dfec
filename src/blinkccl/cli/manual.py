"""``blink --man``: the manual page, made of the help that the verbs print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

_ESCAPES = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq"})


def manual(root: Any) -> str:
    """The page in roff (man(7)) of a program's commands, as click has them. Same version, same bytes."""
    lines = [f'.TH BLINK 1 "" "blink {version("blink-ccl")}" "Blink"', ".SH NAME"]
    lines += [r"blink \- collective communication planned from the links a job really has", ".SH SYNOPSIS"]
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
    """A help text: what stands behind a \\b, or is indented, keeps its lines."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        kept = part.lstrip().startswith("\b") or part.startswith("  ")
        body = [line for line in part.replace("\b", "").splitlines() if line.strip()]
        yield ".PP"
        if kept:
            yield from (".nf", *(_text(line) for line in body), ".fi")
        else:
            yield _text(" ".join(line.strip() for line in body))


def _text(text: str) -> str:
    """Text for roff; a line that begins with a full stop or a quote would be a request."""
    escaped = text.translate(_ESCAPES)
    return rf"\&{escaped}" if escaped.startswith((".", r"\(aq")) else escaped
