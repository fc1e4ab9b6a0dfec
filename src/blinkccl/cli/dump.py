"""``blink dump``: what a live job waits for."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from blinkccl.cli import arguments, console

HELP = """
Examples:

\b
  blink dump 4711                any process of the job will do
  blink dump 4711 --json

Look into the shared memory of a job that runs on this host: for each group, which call every rank is in,
what it waits for, from whom and since when, which line of Python it is at, and who keeps everybody waiting.
The job does not notice.

Exit code 2: there is no such process, it is another user's, or it is in no group.
"""


def dump(
    pid: Annotated[int, Argument(metavar="PID", min=1, help="A process that is a rank of the job.")],
    json: arguments.Json = False,
) -> None:
    """Print the groups of process ``pid``."""
    from blinkccl.runtime.dump import groups_of, with_lines

    groups = with_lines(groups_of(pid))
    if json:
        documents = [group.document() for group in groups]
        console.emit_json({"pid": pid, "groups": documents})
        return
    from blinkccl.show.job_text import job_text

    console.emit(job_text(pid, groups, console.paint(), console.width()))
