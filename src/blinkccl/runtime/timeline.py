"""BLINK_TIMELINE=FILE: every group of this process records, and adds to the file what it did when it is closed.

All ranks of a host write the same file, one after the other, and it can be read at any time between. Their clock is
one, and the numbers of arrows are made of what both ends know, so nobody has to hear of the others. A file that was
last written before this process began is of an earlier job, and begun anew. What ends without closing its groups
(``kill -9``, ``os._exit``) leaves nothing.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from blinkccl.engines.host import Endpoint
from blinkccl.engines.recording import add_recording, recording_of
from blinkccl.trace_events import TraceEvents

VARIABLE = "BLINK_TIMELINE"
#: The last so many events of a group: 4 MiB.
EVENTS = 65_536
#: Of messages below this only calls are recorded: then it costs less than 2 % from calls of 64 KiB on.
LEAST_BYTES = 64 * 1024

_HEAD, _TAIL = b'{"displayTimeUnit": "ns", "traceEvents": [\n', b"\n]}\n"
#: Times of files lag behind the clock by a tick of the system.
_LAG_S = 0.1
_log = logging.getLogger(__name__)
_BEGAN_S = time.time()
_groups_written = 0


def start(endpoint: Endpoint, environ: Mapping[str, str]) -> Path | None:
    """Lets the endpoint record if the environment asks for it: the file to write at its end."""
    if not environ.get(VARIABLE):
        return None
    endpoint.record(EVENTS, LEAST_BYTES)
    return Path(environ[VARIABLE])


def write(path: Path, endpoint: Endpoint, group: str) -> None:
    """Adds what the endpoint's rank did in this group; a file that cannot be written is a warning, not an error."""
    global _groups_written
    _groups_written += 1
    events = TraceEvents()
    recording = recording_of(endpoint, EVENTS)
    process = events.process(f"process {os.getpid()}", os.getpid())
    thread = f"rank {recording.rank} of {group}"
    events.thread(process, ("calls", group), thread, _groups_written)
    add_recording(events, recording, process, 0, group)
    if events.left_out:
        _log.warning("%s is without %s", path, events.left_out)
    lines = [json.dumps(event).encode() for event in events.events(whole=False)]
    try:
        _append(path, lines, _BEGAN_S - _LAG_S)
    except OSError as error:
        _log.warning("%s=%s: %s", VARIABLE, path, error.strerror or error)


def _append(path: Path, lines: list[bytes], not_before_s: float) -> None:
    """Adds events to a file that is one JSON object before and afterwards."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = os.fstat(file.fileno())
        end = known.st_size - len(_TAIL)
        ours = known.st_mtime >= not_before_s and end >= len(_HEAD)
        if ours:
            file.seek(end)
            ours = file.read() == _TAIL
        file.truncate(end if ours else 0)
        file.seek(0, os.SEEK_END)
        file.write((b",\n" if ours else _HEAD) + b",\n".join(lines) + _TAIL)
