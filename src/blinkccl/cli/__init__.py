"""The command line, one file per verb: it parses, calls the packages below, prints, and chooses the exit code.

Heavy modules are imported when a verb runs, so ``blink --help`` answers at once.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from blinkccl.errors import BlinkError

#: The exit code after Ctrl-C, as in shells: 128 + SIGINT.
INTERRUPTED = 130
#: Errors of standard output, from typer's help pages: reading and writing files has its own messages.
_OUTPUT_TROUBLE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG, errno.EDQUOT)


def main() -> None:
    """Run the command line, and exit with a code of :mod:`blinkccl.cli.exits`."""
    try:
        from blinkccl.cli.app import command
    except KeyboardInterrupt:  # Later ones are typer's.
        sys.exit(INTERRUPTED)
    run_command(lambda: command(prog_name="blink"))


def run_command(command: Callable[[], object]) -> None:
    """Run a command of typer; an error becomes one line on stderr and an exit code."""
    from blinkccl.cli import console
    from blinkccl.cli.exits import exit_code

    console.make_printable()
    try:
        command()
    except BlinkError as error:
        console.error(str(error))
        sys.exit(exit_code(error))
    except OSError as problem:
        if problem.filename is not None or problem.errno not in _OUTPUT_TROUBLE:
            raise
        console.unwritable(problem)
