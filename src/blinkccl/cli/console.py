"""Output: data on stdout, messages and progress on stderr, files, and colour."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

import typer

from blinkccl.cli.exits import USAGE
from blinkccl.errors import UsageError
from blinkccl.schema import SCHEMA_VERSION
from blinkccl.show.text import Paint, fit, painter

if TYPE_CHECKING:
    from blinkccl.trace_events import TraceEvents

#: Seconds of work before a progress bar appears.
PROGRESS_AFTER_S = 2.0
#: Longest line of a message.
MOST_CHARACTERS = 1000


def make_printable() -> None:
    """Make stdout and stderr replace characters outside their encoding, so a report never fails halfway."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Print data. Exit quietly if the reader has left (``blink … | head``), with 2 if stdout is closed or full."""
    if sys.stdout is None:
        _no_output("it is closed")
    try:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    except BrokenPipeError:
        _give_up_stdout()
        raise SystemExit(0) from None
    except OSError as problem:
        unwritable(problem)


def emit_json(document: dict[str, Any]) -> None:
    """Print one JSON object, beginning with the version of its schema."""
    from blinkccl.trees.forest.document import dumps

    emit(dumps({"schema_version": SCHEMA_VERSION} | document))


def emit_sentences(text: str) -> None:
    """Print text with long lines wrapped at the terminal's width."""
    emit(fit(text, width()))


def paint() -> Paint:
    """The colours of standard output."""
    return painter(coloured())


def width() -> int | None:
    """The columns of the terminal (or ``COLUMNS``); None if stdout is no terminal."""
    return _width(sys.stdout)


def _width(stream: TextIO | None) -> int | None:
    return shutil.get_terminal_size().columns if _is_terminal(stream) else None


def unwritable(problem: OSError) -> NoReturn:
    """Exit with code 2, because standard output failed with ``problem``."""
    _give_up_stdout()
    _no_output(problem.strerror or str(problem))


def _no_output(why: str) -> NoReturn:
    error(f"cannot write to standard output: {why}")
    raise SystemExit(USAGE)


def _give_up_stdout() -> None:
    # Python flushes stdout once more at exit, which must succeed.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Print a message to stderr, if it is open.

    Parts of messages come from files, so control characters are shown as escapes.
    """
    if sys.stderr is None:
        return  # print(file=None) would write to stdout.
    shown = "blink: " + "\n".join(map(shortened, text.split("\n")))
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in shown)
    columns = _width(sys.stderr)
    with suppress(OSError):
        # A log has one line per message, so only a terminal wraps them.
        print(shown if columns is None else fit(shown, columns), file=sys.stderr, flush=True)


def shortened(line: str) -> str:
    """A line of a message, without its middle if it exceeds :data:`MOST_CHARACTERS`: it may quote an argument."""
    if len(line) <= MOST_CHARACTERS:
        return line
    half = MOST_CHARACTERS // 2
    return f"{line[:half]} … ({len(line) - 2 * half} characters) … {line[-half:]}"


def error(text: str) -> None:
    """Print an error message."""
    note(f"error: {text}")


def coloured(stream: TextIO | None = None) -> bool:
    """True if ``stream`` (stdout) is a terminal with colours and ``NO_COLOR`` is not set."""
    stream = sys.stdout if stream is None else stream
    if stream is None:
        return False  # Standard output is closed; emit() reports it.
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def check_writable(path: Path) -> None:
    """Refuse, before any work, a ``path`` that :func:`write_file` could not write; leave no file behind."""
    try:
        new = not path.exists()
        if new or path.is_file() or path.is_dir():
            with path.open("ab"):
                pass
        if new:
            path.unlink()
    except OSError as problem:
        raise _unwritten(path, problem) from None


def check_files(*paths: Path | None, plot: Path | None = None) -> None:
    """Refuse, before any work, paths that cannot be written, and a ``plot`` that is not named .svg."""
    for path in (*paths, plot):
        if path is not None:
            check_writable(path)
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(f"--plot {plot}: expected a name that ends in .svg")


def _unwritten(path: Path, problem: OSError) -> typer.BadParameter:
    if isinstance(problem, FileNotFoundError) and not path.parent.exists():
        return typer.BadParameter(f"{path} cannot be written: there is no folder {path.parent}")
    return typer.BadParameter(f"{path} cannot be written: {problem.strerror or problem}")


def write_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, and note it."""
    with written(path):
        path.write_text(text, encoding="utf-8", newline="\n")


def write_timeline(path: Path, events: TraceEvents, content: str) -> None:
    """Write ``events`` to ``path`` in Chrome's trace format, and note their ``content`` and the omitted events."""
    import json

    write_file(path, json.dumps(events.document()) + "\n")
    without = f", without {events.left_out}" if events.left_out else ""
    note(f"{content}{without}: open it in ui.perfetto.dev")


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, and note it."""
    with written(path):
        path.write_bytes(content)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Note after the body that it has written ``path``; an OSError becomes a usage error."""
    try:
        yield
    except OSError as problem:
        raise _unwritten(path, problem) from None
    note(f"wrote {path}")


def read_file(path: Path, limit: int) -> bytes:
    """Up to ``limit`` + 1 bytes of ``path`` or (``-``) of standard input; more than ``limit`` means it is too large."""
    name = source_name(path)
    try:
        if str(path) != "-":
            with path.open("rb") as file:
                return file.read(limit + 1)
        if sys.stdin is None:
            raise typer.BadParameter(f"{name} is closed; give a file, or a pipe on standard input")
        return sys.stdin.buffer.read(limit + 1)
    except OSError as problem:
        raise typer.BadParameter(f"{name} cannot be read: {problem.strerror or problem}") from None


def source_name(path: Path) -> str:
    """The name of input ``path`` in messages: the path itself, or "standard input" for ``-``."""
    return "standard input" if str(path) == "-" else str(path)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


class Progress:
    """A progress bar of ``task`` on stderr, on a terminal only, after :data:`PROGRESS_AFTER_S`."""

    def __init__(self, task: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = task
        self._clock = clock
        self._began = clock()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` steps are done."""
        self._show(total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def tell(self, task: str) -> None:
        """Report ``task``, of unknown length."""
        self._show(None)
        if self._bar is not None:
            self._bar.update(self._task, description=task)

    def _show(self, total: int | None) -> None:
        """Start the bar, if it is time."""
        if self._bar is None and _is_terminal(sys.stderr) and self._clock() - self._began >= PROGRESS_AFTER_S:
            # Imported only for a bar: loading rich takes longer than most plans.
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._task = self._bar.add_task(self._name, total=total)
            self._bar.start()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the bar while the body prints to the same terminal."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
