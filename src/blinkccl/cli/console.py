"""Data to stdout, everything else to stderr: printing, writing files, colour and progress."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer

#: Nobody needs a bar for less than this.
PROGRESS_AFTER_S = 2.0


def make_printable() -> None:
    """Let stdout and stderr replace what their encoding cannot say, rather than fail in mid-report."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Print data. If nobody reads any more (``blink … | head``), end quietly.

    Raises
    ------
    SystemExit
        With code 0, if the reader has gone.
    """
    try:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    except BrokenPipeError:
        # Python flushes stdout once more when it ends; give it something that still takes the bytes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def note(text: str) -> None:
    """Print a message for the person at the terminal."""
    print(f"blink: {text}", file=sys.stderr)


def error(text: str) -> None:
    """Print an error message."""
    note(f"error: {text}")


def coloured(stream: TextIO | None = None) -> bool:
    """Whether to colour what goes to ``stream`` (stdout): a terminal that can, and no ``NO_COLOR``."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` and say so.

    Raises
    ------
    typer.BadParameter
        If the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as problem:
        raise typer.BadParameter(f"{path} cannot be written: {problem.strerror or problem}") from None
    note(f"wrote {path}")


def write_new_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, or to the first of path.1, path.2, … that does not exist yet; say which.

    Raises
    ------
    typer.BadParameter
        If the file cannot be written.
    """
    target, suffix = path, 0
    while target.exists():
        suffix += 1
        target = path.with_name(f"{path.name}.{suffix}")
    write_file(target, text)


def read_file(path: Path) -> bytes:
    """The bytes of ``path``; of standard input for ``-``.

    Raises
    ------
    typer.BadParameter
        If the file cannot be read.
    """
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as problem:
        raise typer.BadParameter(f"{path} cannot be read: {problem.strerror or problem}") from None


class Progress:
    """A bar on stderr, on a terminal only, once the work has taken two seconds.

    Parameters
    ----------
    what
        What is under way, in a few words.
    clock
        Seconds, rising.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._began = clock()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` steps are done."""
        if self._bar is None and sys.stderr.isatty() and self._clock() - self._began >= PROGRESS_AFTER_S:
            # Imported when a bar is wanted: rich takes longer to load than most plans to make.
            from rich.console import Console
            from rich.progress import Progress as Bar
            self._bar = Bar(console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._task = self._bar.add_task(self._what, total=total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away while something is printed to the same terminal."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
