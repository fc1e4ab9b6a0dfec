"""A compiler run as a command with a deadline, whose log is kept where it fails."""

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
    """A directory for everything that fails in this process: a plan is many files, and they fail together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directory: Path | None = None

    def directory(self) -> Path:
        with self._lock:
            if self._directory is None or not self._directory.is_dir():  # somebody may have cleaned up
                self._directory = Path(tempfile.mkdtemp(prefix="blink-failed-"))
            return self._directory


_failures = _Failures()


def compiled(
    text: str,
    suffix: str,
    command: Callable[[Path, Path], Sequence[str]],
    deadline_s: float,
    given: str | None = None,
    name: str = "",
) -> bytes:
    """What ``command(source, output)`` writes to ``output`` for a source file of this suffix that holds ``text``.

    ``given`` is its standard input, ``name`` the compiler's, where that is not its file's. InternalError if it fails:
    the text and the whole log stay in a directory that the message names, one per process. UnsupportedError as
    :func:`run` says.
    """
    with tempfile.TemporaryDirectory(prefix="blink-compile-") as directory:
        source, output = Path(directory, f"blink{suffix}"), Path(directory, "output")
        source.write_text(text, encoding="utf-8")
        arguments = command(source, output)
        code, log = run(arguments, deadline_s, given)
        if code == 0 and output.is_file():
            return output.read_bytes()
    kept = _failures.directory() / f"{sha256(text.encode()).hexdigest()[:16]}{suffix}"
    kept.write_text(text, encoding="utf-8")
    kept.with_suffix(".log").write_text(log, encoding="utf-8")
    shown = "\n".join(f"  {line}" for line in log.splitlines()[:_LOG_LINES])
    raise InternalError(
        f"{name or Path(arguments[0]).name} refuses the generated code (exit code {code}); text and log lie in "
        f"{kept.parent}:\n{shown}"
    )


def run(arguments: Sequence[str], deadline_s: float, given: str | None = None) -> tuple[int, str]:
    """Exit code and output of a command, whose children end with it; UnsupportedError if it cannot start or is late."""
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a compiler driver starts others, and all must end together
        )
    except OSError as error:
        raise UnsupportedError(f"{arguments[0]} cannot be started: {error}") from None
    with child:
        try:
            log, _ = child.communicate(given, timeout=deadline_s)
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
    """What a compiler of ``what`` prints; an UnsupportedError says why it does not, and ``advice``."""
    try:
        done = subprocess.run(line, capture_output=True, timeout=deadline_s, check=False)
    except OSError as error:
        raise UnsupportedError(f"{line[0]} cannot be started for {what}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"{line[0]} took more than {deadline_s:.0f} s for {what}") from None
    if done.returncode != 0:
        said = "\n  ".join(done.stderr.decode(errors="replace").strip().splitlines()[:6])
        raise UnsupportedError(f"{what} does not compile: {shlex.join(line)}\n  {said}{advice}")
    return done.stdout


@lru_cache(maxsize=32)
def version_of(command: str) -> str:
    """What ``command --version`` says; UnsupportedError if it cannot say."""
    code, said = run([*command.split(), "--version"], 20.0)
    if code:
        raise UnsupportedError(f"{command} --version fails (exit code {code}): {said[:200]}")
    return said
