"""BLINK_TIMELINE=FILE: every group of this process records its events, and appends them to the file when it is closed.

All ranks of a host append to the same file, one after the other, and it can be read at any time in between. They share
one clock, and both ends of an arrow compute its number from data that they know, so ranks need not communicate. A file
that was last written before this process began belongs to an earlier job, and is overwritten. A process that ends
without closing its groups (``kill -9``, ``os._exit``) writes nothing.
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
#: Number of events that a group keeps, the last ones: 4 MiB.
EVENTS = 65_536
#: For smaller messages only calls are recorded, so that recording costs less than 2 % for calls of 64 KiB or more.
LEAST_BYTES = 64 * 1024

_HEAD, _TAIL = b'{"displayTimeUnit": "ns", "traceEvents": [\n', b"\n]}\n"
#: File times lag behind the clock by up to one tick of the system.
_LAG_S = 0.1
_log = logging.getLogger(__name__)
_BEGAN_S = time.time()
_groups_written = 0


def start(endpoint: Endpoint, environ: Mapping[str, str]) -> Path | None:
    """Start recording if the environment requests it; return the file to write at the end."""
    if not environ.get(VARIABLE):
        return None
    endpoint.record(EVENTS, LEAST_BYTES)
    return Path(environ[VARIABLE])


def write(path: Path, endpoint: Endpoint, group: str) -> None:
    """Append the events of the endpoint's rank in this group; warn, without an error, if the file is not writable."""
    global _groups_written
    _groups_written += 1
    events = TraceEvents()
    recording = recording_of(endpoint, EVENTS)
    process = events.process(f"process {os.getpid()}", os.getpid())
    thread = f"rank {recording.rank} of {group}"
    events.thread(process, ("calls", group), thread, _groups_written)
    add_recording(events, recording, process, 0, group)
    if events.left_out:
        _log.warning("%s lacks %s", path, events.left_out)
    lines = [json.dumps(event).encode() for event in events.events(whole=False)]
    try:
        _append(path, lines, _BEGAN_S - _LAG_S)
    except OSError as error:
        _log.warning("%s=%s: %s", VARIABLE, path, error.strerror or error)


def _append(path: Path, lines: list[bytes], not_before_s: float) -> None:
    """Append events to a file that is one JSON object before and afterwards."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = os.fstat(file.fileno())
        end = status.st_size - len(_TAIL)
        extends = status.st_mtime >= not_before_s and end >= len(_HEAD)
        if extends:
            file.seek(end)
            extends = file.read() == _TAIL
        file.truncate(end if extends else 0)
        file.seek(0, os.SEEK_END)
        file.write((b",\n" if extends else _HEAD) + b",\n".join(lines) + _TAIL)
