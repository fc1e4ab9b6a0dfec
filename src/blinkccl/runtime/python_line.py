"""Where a rank's Python program stands, told by the process itself when it is asked.

A process that joins a group of a host makes a file of its memory, which /proc shows, and has Python's fault handler
write
the stacks of its threads into it at a signal. That happens in the handler: no line of Python runs, system calls go on
where they were, and a process that never made such a file is never signalled.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from pathlib import Path

from blinkccl.runtime.process import PROC

_NAME = "python-line"
#: One that nobody uses: programs and their libraries begin at either end.
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 11
_WAIT_S, _STEP_S = 0.3, 0.005
_MOST_BYTES = 1 << 20
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
#: Frames of these are ours or torch's; the program's own line is above them.
_INSIDE = re.compile(r"/(?:blinkccl|torch)/")
_offered = False


def offer() -> None:
    """Let others of this user ask, once per process; nothing where the signal is taken or this is not Linux."""
    global _offered
    if _offered or not hasattr(os, "memfd_create"):
        return
    _offered = True
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            file = os.memfd_create(_NAME)
            os.fchmod(file, 0o600)
            faulthandler.register(_SIGNAL, file=file, all_threads=True)


def ask(pid: int) -> str:
    """``train.py:17 in step`` where process ``pid`` stands; "" where it does not say."""
    file = _file_of(pid)
    if file is None or not _handles(pid) or pid == os.getpid():
        return ""
    try:
        before = file.stat().st_size
        os.kill(pid, _SIGNAL)
        return line_of(_written(file, before))
    except (OSError, ValueError):
        return ""


def _file_of(pid: int) -> Path | None:
    with contextlib.suppress(OSError):
        for path in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{_NAME}"):
                    return path
    return None


def _handles(pid: int) -> bool:
    """Whether the signal has a handler there: without one it would end the process."""
    with contextlib.suppress(OSError):
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", (PROC / str(pid) / "status").read_text(), re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (_SIGNAL - 1) & 1)
    return False


def _written(file: Path, before: int) -> str:
    """What was written since, once it does not grow any more."""
    end, size = time.monotonic() + _WAIT_S, before
    while time.monotonic() < end:
        time.sleep(_STEP_S)
        now = file.stat().st_size
        if now == size > before:
            break
        size = now
    with file.open("rb") as written:
        written.seek(before)
        return written.read(_MOST_BYTES).decode("utf-8", "replace")


def line_of(stacks: str) -> str:
    """The program's own innermost line: of the thread that is inside of us, else of the one that was interrupted."""
    threads = [found for block in stacks.split("\n\n") if (found := _frames(block))]
    inside = [frames for frames in threads if any("/blinkccl/" in file for file, _, _ in frames)]
    current = [
        frames for frames in [_frames(b) for b in stacks.split("\n\n") if b.startswith("Current thread")] if frames
    ]
    for frames in (*inside, *current, *threads):
        own = next((frame for frame in frames if not _INSIDE.search(frame[0])), None)
        if own is not None:
            return f"{own[0]}:{own[1]} in {own[2]}"
    return ""


def _frames(block: str) -> list[tuple[str, str, str]]:
    return [(found[1], found[2], found[3]) for text in block.splitlines() if (found := _FRAME.match(text))]
