"""MPI programs under ``blink run --mpi``: a runner for each installed library."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mpi_libraries import LIBRARIES

from blinkccl.bench.peers.registry import Installation, installation
from blinkccl.errors import UnsupportedError
from blinkccl.native import absent, find_library

DEADLINE_S = 100


@dataclass(frozen=True)
class Done:
    """The end of a run; ``used`` is its report."""

    code: int
    out: str
    err: str
    used: dict[str, Any]

    def rows(self, state: str) -> dict[str, list[dict[str, Any]]]:
        """The report's rows of one state, by collective."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for group in self.used["communicators"]:
            for row in group["rows"]:
                if row["state"] == state and row["collective"]:
                    rows.setdefault(row["collective"], []).append(row)
        return rows

    def reasons(self) -> set[str]:
        """The reasons for which calls went to the MPI library."""
        return {row["why"] for rows in self.rows("mpi").values() for row in rows}


@dataclass(frozen=True)
class Mpi:
    """One MPI library: runs programs with it, compiled in ``room``."""

    name: str
    installed: Installation
    room: Path

    def program(self, source: str) -> Path:
        """The program of a file beside this one."""
        program = self.room / f"{Path(source).stem}-{self.name}"
        if not program.exists():
            file = Path(__file__).with_name(source)
            line = [*self.installed.compiler, str(file), "-o", str(program), *self.installed.options, "-lpthread"]
            subprocess.run(line, check=True, timeout=DEADLINE_S)
        return program

    def launch(self, ranks: int, *command: str | Path, options: Sequence[str] = ()) -> list[str]:
        """The launcher's command line."""
        own = ["--oversubscribe", "--allow-run-as-root"] if self.name == "openmpi" else []
        return [self.installed.launcher, *own, *options, "-n", str(ranks), *map(str, command)]

    def run(
        self,
        line: Sequence[str],
        environment: dict[str, str] | None = None,
        options: Sequence[str] = (),
        deadline_s: float = DEADLINE_S,
    ) -> Done:
        """``blink run --mpi`` of ``line``."""
        report = self.room / f"report-{os.getpid()}.json"
        report.unlink(missing_ok=True)
        blink = [sys.executable, "-m", "blinkccl", "run", "--mpi", *options, "--report", str(report), "--", *line]
        done = subprocess.run(
            blink,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            env={
                **os.environ,
                **self.installed.environment,
                "TMPDIR": str(self.room),
                "BLINK_MPI_AFTER": "0",
                **(environment or {}),
            },
        )
        used = json.loads(report.read_text()) if report.exists() else {}
        assert "Traceback" not in done.stderr
        return Done(done.returncode, done.stdout, done.stderr, used)


@pytest.fixture(scope="session", params=LIBRARIES, ids=lambda pair: pair[0])
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mpi:
    name, prefix = request.param
    if find_library("libblink_mpi.so", "BLINK_MPI_LIBRARY") is None:
        pytest.skip(absent("libblink_mpi.so"))
    try:
        installed = installation(name, prefix)
    except UnsupportedError as error:
        pytest.skip(str(error))
    return Mpi(name, installed, tmp_path_factory.mktemp("mpi"))
