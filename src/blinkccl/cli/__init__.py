"""What does a person type? One file per verb: it parses, calls the rooms below, prints, picks an exit code.

Nothing heavy is imported before a verb runs, so that ``blink --help`` answers at once.
"""

from __future__ import annotations

import errno
import sys

from blinkccl.errors import BlinkError

#: The exit code after Ctrl-C, as shells have it.
INTERRUPTED = 130
#: Files are read and written under messages of their own; what is left is typer printing a help page.
_OUTPUT_TROUBLE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG, errno.EDQUOT)


def main() -> None:
    """Run the command line, and exit with a code of :mod:`blinkccl.cli.exits`."""
    try:
        from blinkccl.cli import console
        from blinkccl.cli.app import command
        from blinkccl.cli.exits import exit_code
    except KeyboardInterrupt:  # Later ones are typer's.
        sys.exit(INTERRUPTED)
    console.make_printable()
    try:
        command(prog_name="blink")
    except BlinkError as error:
        console.error(str(error))
        sys.exit(exit_code(error))
    except OSError as problem:
        if problem.filename is not None or problem.errno not in _OUTPUT_TROUBLE:
            raise
        console.unwritable(problem)
