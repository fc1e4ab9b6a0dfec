"""Ranks of a program with many imports, forked from one process that has done them once.

The program ends with :func:`serve`. A test starts it as a :class:`RankServer`; on a shell: ``echo CASE SIZE | python
…``.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

#: The function of a rank: the case, the rank, the number of ranks, and an empty directory that they share.
Rank = Callable[[str, int, int, Path], None]


class RankServer:
    """The process from which ranks are forked: a ``program`` with these options; its errors go to the file ``said``."""

    def __init__(self, program: Path, said: Path, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
        self._said = said
        with said.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *options, str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**environment, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *_inherited()])},
            )

    def failure(self, case: str, size: int, **settings: str) -> str | None:
        """Run a case on ``size`` ranks with these environment variables; return None, or the failure."""
        start = self._said.stat().st_size
        if self._process.poll() is not None:
            return f"the program has ended with {self._process.returncode}:\n{self._said.read_text()[-8000:]}"
        print(
            case, size, *(f"{name}={value}" for name, value in settings.items()), file=self._process.stdin, flush=True
        )
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        return None if answer == "right\n" else f"{answer}{self._said.read_text()[start:][-8000:]}"

    def __enter__(self) -> RankServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


def _inherited() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]


def serve(run: Rank, limit_s: float) -> None:
    """Run ``CASE SIZE [NAME=VALUE ...]`` for each line of standard input; answer ``right`` or ``wrong``."""
    gc.freeze()  # imported modules are never garbage, so ranks need not scan them
    for line in sys.stdin:
        case, size, *settings = line.split()
        variables = dict(each.split("=", 1) for each in settings)
        print("right" if _ran_well(run, case, int(size), variables, limit_s) else "wrong", flush=True)


def _ran_well(run: Rank, case: str, size: int, variables: Mapping[str, str], limit_s: float) -> bool:
    """Fork the ranks and wait for them, at most ``limit_s``."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        ranks = [
            context.Process(target=_rank, args=(run, case, rank, size, Path(directory), variables))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        end = time.monotonic() + limit_s
        for process in ranks:
            process.join(max(0.0, end - time.monotonic()))
        stuck = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        for process in ranks:
            process.kill()
            process.join()
    if stuck:
        print(f"ranks {stuck} did not end", file=sys.stderr)
    return not stuck and all(process.exitcode == 0 for process in ranks)


def _rank(run: Rank, case: str, rank: int, size: int, place: Path, variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
    try:
        run(case, rank, size, place)
    except BaseException:
        print(f"rank {rank} of {size}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
