"""Which formats of other runtimes are read: each tells by a file's first bytes, and translates it.

To add one: a file beside this one with ``looks_like(content)`` and ``read(content, source)``, and its row here.
"""

from __future__ import annotations

from blinkccl.foreign import msccl, mscclpp
from blinkccl.foreign.verify import ForeignAudit, audit

FORMATS = (msccl, mscclpp)


def audits(content: bytes, source: str) -> tuple[ForeignAudit, ...] | None:
    """What is found in a file, once for each way in which it serves calls; None if it is of none of these formats.

    ScheduleError where no runtime would read it.
    """
    for form in FORMATS:
        if form.looks_like(content):
            return tuple(audit(plan) for plan in form.read(content, source))
    return None
