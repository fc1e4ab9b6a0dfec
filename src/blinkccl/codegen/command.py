"""Runs of compilers as commands with a timeout; the log of a failed run is kept."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from blinkccl.errors import InternalError, UnsupportedError

_LOG_LINES = 12


class _Failures:
    """A directory for all failures of this process: a plan has many files, and they fail together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directory: Path | None = None

    def directory(self) -> Path:
        with self._lock:
            if self._directory is None or not self._directory.is_dir():  # it may have been cleaned up
                self._directory = Path(tempfile.mkdtemp(prefix="blink-failed-"))
            return self._directory


_failures = _Failures()


def compiled(
    text: str,
    suffix: str,
    command: Callable[[Path, Path], Sequence[str]],
    deadline_s: float,
    stdin: str | None = None,
    name: str = "",
) -> bytes:
    """Return the output of ``command(source, output)`` for a source file with this suffix that contains ``text``.

    ``name`` is the compiler's name in messages if it differs from its file's. Raise InternalError if the command
    fails: the text and the whole log stay in a directory that the message names, one per process. UnsupportedError as
    in :func:`run`.
    """
    with tempfile.TemporaryDirectory(prefix="blink-compile-") as directory:
        source, output = Path(directory, f"blink{suffix}"), Path(directory, "output")
        source.write_text(text, encoding="utf-8")
        arguments = command(source, output)
        code, log = run(arguments, deadline_s, stdin)
        if code == 0 and output.is_file():
            return output.read_bytes()
    saved = _failures.directory() / f"{sha256(text.encode()).hexdigest()[:16]}{suffix}"
    saved.write_text(text, encoding="utf-8")
    saved.with_suffix(".log").write_text(log, encoding="utf-8")
    shown = "\n".join(f"  {line}" for line in log.splitlines()[:_LOG_LINES])
    raise InternalError(
        f"{name or Path(arguments[0]).name} refuses the generated code (exit code {code}); text and log are in "
        f"{saved.parent}:\n{shown}"
    )


def run(arguments: Sequence[str], deadline_s: float, stdin: str | None = None) -> tuple[int, str]:
    """Exit code and output of a command, whose children end with it; UnsupportedError on a failed start or timeout."""
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a compiler driver has children, which must end with it
        )
    except OSError as error:
        raise UnsupportedError(f"{arguments[0]} cannot be started: {error}") from None
    with child:
        try:
            log, _ = child.communicate(stdin, timeout=deadline_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UnsupportedError(
                    f"{arguments[0]} took longer than {deadline_s:g} s for the generated code; give it more time, or "
                    "plan with fewer trees"
                ) from None
            raise
    return child.returncode, log


def output_of(line: Sequence[str], deadline_s: float, what: str, advice: str = "") -> bytes:
    """The output of a compiler for ``what``; UnsupportedError with the reason and ``advice`` if it fails."""
    try:
        done = subprocess.run(line, capture_output=True, timeout=deadline_s, check=False)
    except OSError as error:
        raise UnsupportedError(f"{line[0]} cannot be started for {what}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"{line[0]} took more than {deadline_s:.0f} s for {what}") from None
    if done.returncode != 0:
        errors = "\n  ".join(done.stderr.decode(errors="replace").strip().splitlines()[:6])
        raise UnsupportedError(f"{what} does not compile: {shlex.join(line)}\n  {errors}{advice}")
    return done.stdout


@lru_cache(maxsize=32)
def version_of(command: str) -> str:
    """The output of ``command --version``; UnsupportedError if it fails."""
    code, text = run([*command.split(), "--version"], 20.0)
    if code:
        raise UnsupportedError(f"{command} --version fails (exit code {code}): {text[:200]}")
    return text
