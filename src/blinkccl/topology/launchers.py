"""Cleanup of captured output: a terminal's escapes, and the line labels of ``srun -l`` and ``pdsh``."""

from __future__ import annotations

import re
from collections.abc import Callable

from blinkccl.errors import TopologyError

#: Advice for a file with several dumps.
MANY_NODES = 'give the output of one node; for several equal servers write "2x FILE @ 400Gbps"'
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: A task's number or a node's name.
_LABELLED = re.compile(r" *([\w.-]{1,64}): ?(.*)")


def without_escapes(text: str) -> list[str]:
    """The lines of ``text``, without a terminal's colours and underlining."""
    return _ESCAPES.sub("", text).splitlines()


def label_of(line: str, begins: Callable[[str], bool]) -> str:
    """The label in front of a line whose remainder ``begins`` the output; "" without one."""
    match = _LABELLED.match(line)
    return match[1] if match is not None and begins(match[2]) else ""


def of_one_node(lines: list[str], begins: Callable[[str], bool], source: str) -> list[str]:
    """The lines without labels; TopologyError for labels of several nodes."""
    labels = list(dict.fromkeys(label for line in lines if (label := label_of(line, begins))))
    if not labels:
        return lines
    if len(labels) > 1:
        raise TopologyError(f"{source}: output of several nodes: {', '.join(labels[:8])}; {MANY_NODES}")
    matches = [_LABELLED.match(line) for line in lines]
    return [
        match[2] if match is not None and match[1] == labels[0] else line
        for match, line in zip(matches, lines, strict=True)
    ]
