"""The current line of a rank's Python program, reported by the process itself on request.

A process that joins a group of a host creates a memory file, which /proc shows. On a signal Python's fault handler
writes the stacks of the process's threads into it. The handler runs no line of Python and system calls resume. A
process that never created such a file is never signalled.
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
#: A signal in the middle of the range: programs and their libraries take signals from either end.
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 11
_WAIT_S, _STEP_S = 2.0, 0.002
_MOST_BYTES = 1 << 20
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
#: Frames of Blink and torch; the program's own line is above them.
_INSIDE = re.compile(r"/(?:blinkccl|torch)/")
_offered = False


def offer() -> None:
    """Accept requests of this user's processes, once per process; no effect if the signal is taken or without Linux."""
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
    """Return the current line of process ``pid``, as ``train.py:17 in step``; "" if it does not report one."""
    file = _file_of(pid)
    if file is None or not _handles(pid) or pid == os.getpid():
        return ""
    try:
        before, masked = file.stat().st_size, _masking(pid)
        os.kill(pid, _SIGNAL)
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            time.sleep(_STEP_S)
            if file.stat().st_size > before and _masking(pid) <= masked:
                break
        with file.open("rb") as written:
            written.seek(before)
            return line_of(written.read(_MOST_BYTES).decode("utf-8", "replace"))
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
    """True if the process handles the signal: without a handler the signal would end it."""
    with contextlib.suppress(OSError):
        return _in_set("SigCgt", PROC / str(pid))
    return False


def _masking(pid: int) -> set[str]:
    """The threads of ``pid`` that block the signal: the system blocks it in a thread while its handler runs."""
    masking = set()
    for thread in (PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if _in_set("SigBlk", thread):
                masking.add(thread.name)
    return masking


def _in_set(name: str, task: Path) -> bool:
    """True if the set of signals ``name`` of a task below /proc contains the signal of this module."""
    bits = re.search(rf"^{name}:\s*([0-9a-f]+)$", (task / "status").read_text(), re.MULTILINE)
    return bits is not None and bool(int(bits[1], 16) >> (_SIGNAL - 1) & 1)


def line_of(stacks: str) -> str:
    """Return the program's innermost line in a thread that is inside Blink, else in the interrupted thread."""
    threads = [frames for block in stacks.split("\n\n") if (frames := _frames(block))]
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
    return [(frame[1], frame[2], frame[3]) for text in block.splitlines() if (frame := _FRAME.match(text))]
