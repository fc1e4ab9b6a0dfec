"""A strict reader of GOAL schedules: it accepts only the part of txt2bin's input that is unambiguous."""

import re

from support.message_schedules import Operation

_MESSAGE = re.compile(
    r"(l[0-9]+): (send|recv) ([1-9][0-9]*)b (to|from) ([0-9]+) tag ([0-9]+) cpu ([0-9]+) nic ([0-9]+)"
)
_CALC = re.compile(r"(l[0-9]+): calc ([0-9]+) cpu ([0-9]+)")
_AFTER = re.compile(r"(l[0-9]+) requires (l[0-9]+)")


def read(text: str) -> list[list[Operation]]:
    """Return the operations of each rank; ValueError with the first line that a reader may reject."""
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line and not line.startswith("//")]
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    number, head = lines[0]
    if not re.fullmatch("num_ranks [1-9][0-9]*", head):
        raise ValueError(f"line {number}: {head}")
    ranks: list[list[Operation]] = []
    open_rank: dict[str, Operation] | None = None
    for number, line in lines[1:]:
        if open_rank is None:
            if line != f"rank {len(ranks)} {{":
                raise ValueError(f"line {number}: {line}")
            open_rank = {}
        elif line == "}":
            ranks.append(list(open_rank.values()))
            open_rank = None
        else:
            _operation(open_rank, len(ranks), number, line)
    if open_rank is not None or head != f"num_ranks {len(ranks)}":
        raise ValueError(f"{head}, and {len(ranks)} are there")
    return ranks


def _operation(into: dict[str, Operation], rank: int, number: int, line: str) -> None:
    message, calc, after = _MESSAGE.fullmatch(line), _CALC.fullmatch(line), _AFTER.fullmatch(line)
    if message and (message[2] == "send") == (message[4] == "to") and message[7] == message[8]:
        size, peer, tag, port = int(message[3]), int(message[5]), int(message[6]), int(message[8])
        operation = Operation(rank, message[1], message[2], peer, size, tag, port=port)
    elif calc:
        operation = Operation(rank, calc[1], "calc", ns=int(calc[2]), port=int(calc[3]))
    elif after and after[1] in into and after[2] in into:
        old = into[after[1]]
        into[after[1]] = Operation(**{**vars(old), "after": (*old.after, after[2])})
        return
    else:
        raise ValueError(f"line {number}: {line}")
    if operation.name in into or (operation.port or 0) > 255 or operation.tag >= 2**32 - 1:
        raise ValueError(f"line {number}: {line}")
    into[operation.name] = operation
