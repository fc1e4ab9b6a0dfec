"""Data to stdout, everything else to stderr: printing, writing files, colour and progress."""

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

#: Nobody needs a bar for less than this.
PROGRESS_AFTER_S = 2.0
#: Of a line of a message.
MOST_CHARACTERS = 1000


def make_printable() -> None:
    """Let stdout and stderr replace what their encoding cannot say, rather than fail in mid-report."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Print data. If nobody reads any more (``blink … | head``), end quietly; with 2 if it is closed or full."""
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
    """Print one JSON object, with the version of its schema before what it has."""
    from blinkccl.trees.forest.document import dumps

    emit(dumps({"schema_version": SCHEMA_VERSION} | document))


def emit_sentences(text: str) -> None:
    """Print text whose long lines are broken between words where a terminal is narrow."""
    emit(fit(text, width()))


def paint() -> Paint:
    """How text is coloured that goes to standard output."""
    return painter(coloured())


def width() -> int | None:
    """Columns that text may take: those of the terminal (or ``COLUMNS``); None where nobody looks at it."""
    return _width(sys.stdout)


def _width(stream: TextIO | None) -> int | None:
    return shutil.get_terminal_size().columns if _is_terminal(stream) else None


def unwritable(problem: OSError) -> NoReturn:
    """End with code 2, as standard output takes no more for the reason in ``problem``."""
    _give_up_stdout()
    _no_output(problem.strerror or str(problem))


def _no_output(why: str) -> NoReturn:
    error(f"cannot write to standard output: {why}")
    raise SystemExit(USAGE)


def _give_up_stdout() -> None:
    # Python flushes stdout once more when it ends; give it something that still takes the bytes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Print a message for the person at the terminal, as far as there is one.

    Parts of messages come from files: characters that a terminal would obey are shown as escapes.
    """
    if sys.stderr is None:
        return  # print() would take None for standard output.
    shown = "blink: " + "\n".join(map(shortened, text.split("\n")))
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in shown)
    columns = _width(sys.stderr)
    with suppress(OSError):
        # A log keeps a message on its line.
        print(shown if columns is None else fit(shown, columns), file=sys.stderr, flush=True)


def shortened(line: str) -> str:
    """A line of a message without the middle, where it is too long for anybody to read: it may quote an argument."""
    if len(line) <= MOST_CHARACTERS:
        return line
    half = MOST_CHARACTERS // 2
    return f"{line[:half]} … ({len(line) - 2 * half} characters) … {line[-half:]}"


def error(text: str) -> None:
    """Print an error message."""
    note(f"error: {text}")


def coloured(stream: TextIO | None = None) -> bool:
    """Whether to colour what goes to ``stream`` (stdout): a terminal that can, and no ``NO_COLOR``."""
    stream = sys.stdout if stream is None else stream
    if stream is None:
        return False  # Standard output is closed; emit() will say so.
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def check_writable(path: Path) -> None:
    """Refuse, before any work, a ``path`` that :func:`write_file` could not write; leaves no trace."""
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
    """Refuse, before any work, what could not be written, and a ``plot`` that is no SVG."""
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
    """Write ``text`` to ``path`` and say so."""
    with written(path):
        path.write_text(text, encoding="utf-8", newline="\n")


def write_timeline(path: Path, events: TraceEvents, what: str) -> None:
    """Write ``events`` as Chrome's trace to ``path``, and say ``what`` it shows, and what it leaves out."""
    import json

    write_file(path, json.dumps(events.document()) + "\n")
    without = f", without {events.left_out}" if events.left_out else ""
    note(f"{what}{without}: open it in ui.perfetto.dev")


def write_bytes(path: Path, content: bytes) -> None:
    """The same for what is no text."""
    with written(path):
        path.write_bytes(content)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Say that the body has written ``path``; where it cannot, that is a mistake of who typed the name."""
    try:
        yield
    except OSError as problem:
        raise _unwritten(path, problem) from None
    note(f"wrote {path}")


def read_file(path: Path, limit: int) -> bytes:
    """The first ``limit`` + 1 bytes, which tell that there are too many, of ``path`` or (``-``) of standard input."""
    name = source_name(path)
    try:
        if str(path) != "-":
            with path.open("rb") as file:
                return file.read(limit + 1)
        if sys.stdin is None:
            raise typer.BadParameter(f"{name} cannot be read: it is closed")
        return sys.stdin.buffer.read(limit + 1)
    except OSError as problem:
        raise typer.BadParameter(f"{name} cannot be read: {problem.strerror or problem}") from None


def source_name(path: Path) -> str:
    """What messages call the input ``path``: the path as given, "standard input" for ``-``."""
    return "standard input" if str(path) == "-" else str(path)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


class Progress:
    """A bar on stderr that says ``what`` is under way, on a terminal only, once the work has taken two seconds."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._began = clock()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` steps are done."""
        self._show(total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def tell(self, what: str) -> None:
        """``what`` is under way, nobody knows how long."""
        self._show(None)
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def _show(self, total: int | None) -> None:
        """Make the bar, if it is time."""
        if self._bar is None and _is_terminal(sys.stderr) and self._clock() - self._began >= PROGRESS_AFTER_S:
            # Imported when a bar is wanted: rich takes longer to load than most plans to make.
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._task = self._bar.add_task(self._what, total=total)
            self._bar.start()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away while something is printed to the same terminal."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
