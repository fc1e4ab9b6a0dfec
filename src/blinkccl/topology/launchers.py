"""What terminals and launchers put around a tool's output: escapes, and the labels of ``srun -l`` and ``pdsh``."""

from __future__ import annotations

import re
from collections.abc import Callable

from blinkccl.errors import TopologyError

#: What to do about several dumps in one file.
MANY_NODES = 'give those of one; several equal servers are "2x FILE @ 400Gbps"'
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: A task's number or a node's name.
_LABELLED = re.compile(r" *([\w.-]{1,64}): ?(.*)")


def without_escapes(text: str) -> list[str]:
    """The lines of ``text``, without a terminal's colours and underlining."""
    return _ESCAPES.sub("", text).splitlines()


def label_of(line: str, begins: Callable[[str], bool]) -> str:
    """The label before a line with which the output proper ``begins``, or nothing."""
    match = _LABELLED.match(line)
    return match[1] if match is not None and begins(match[2]) else ""


def of_one_node(lines: list[str], begins: Callable[[str], bool], source: str) -> list[str]:
    """The lines without labels; a TopologyError if there are those of several nodes."""
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
