"""``blink dump``: the calls that a live job waits for."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from blinkccl.cli import arguments, console

HELP = """
Examples:

\b
  blink dump 4711                any process of the job
  blink dump 4711 --json

Read the shared memory of a running job on this host. For each group, print the call of every rank, the data and
the peer that it waits for, since when, and the rank that blocks all others. The job is not disturbed.

Exit code 2: no such process, another user's process, or a process in no group.
"""


def dump(
    pid: Annotated[int, Argument(metavar="PID", min=1, help="A process that is a rank of the job.")],
    json: arguments.Json = False,
) -> None:
    """Print the groups of process ``pid``."""
    from blinkccl.runtime.dump import groups_of

    groups = groups_of(pid)
    if json:
        documents = [group.document() for group in groups]
        console.emit_json({"pid": pid, "groups": documents})
        return
    from blinkccl.show.job_text import job_text

    console.emit(job_text(pid, groups, console.paint(), console.width()))
