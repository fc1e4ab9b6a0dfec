"""A runner of programs with libblink.so before NCCL, on doubles of driver and NCCL, and the outcome of its runs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blinkccl.native import find_library
from blinkccl.nccl.call_report import ReportLine, read_call_report
from doubles.build import Doubles, build

HERE = Path(__file__).resolve().parent
DOUBLES = HERE.parent / "doubles"
#: The client's calls that Blink may serve, without the double's own inner calls.
COLLECTIVES = (
    *("AllReduce", "Reduce", "Broadcast", "Bcast", "AllGather", "ReduceScatter", "Gather", "Scatter", "AlltoAll"),
)
_MARK = "BLINK_TEST_RUN"
Environment = dict[str, str]


@dataclass(frozen=True)
class Built:
    """The files of a run: the doubles, the library under test and the library of generated code."""

    doubles: Doubles
    library: Path | None
    device_library: Path | None


def built(sanitizer: str | None = None) -> Built:
    """The doubles, compiled once per content, and the installed libblink.so."""
    library, device_library = find_library("libblink.so", ""), find_library("libblink_device.so", "")
    return Built(build(sanitizer=sanitizer), library, device_library)


@dataclass(frozen=True)
class Ended:
    """The end of one process. ``code`` is negative for a signal."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> list[dict[str, Any]]:
        """The lines of JSON that it printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def blink(self) -> list[str]:
        """The lines of libblink.so without host and process, except for the planner's steps."""
        lines = [line.partition(" BLINK ")[2] for line in self.err.splitlines() if " BLINK " in line]
        return [line for line in lines if "planner: blink planner: " not in line]


@dataclass(frozen=True)
class Outcome:
    """The results of a run of several processes."""

    ended: list[Ended]
    usage: list[ReportLine]
    journal: list[list[str]]
    seconds: float
    unread: int
    left: list[str] = field(default_factory=list)

    def calls(self, state: str) -> Counter[str]:
        """Calls per collective in Blink's report, counted as ``blink`` or ``nccl``, over all ranks."""
        counted: Counter[str] = Counter()
        for line in self.usage:
            if line.state == state:
                counted[line.collective] += line.calls
        return counted

    def reached_nccl(self) -> Counter[str]:
        """Collectives that reached NCCL: by name, over all ranks, without empty ones."""
        counted: Counter[str] = Counter()
        for function, _, _, count, _, whose in self.journal:
            name = function.removeprefix("nccl").removesuffix("Config")
            if name in COLLECTIVES and whose == "outer" and count != "0":
                counted[name] += 1
        return counted

    @property
    def blink(self) -> list[str]:
        """The lines of all processes."""
        return [line for one in self.ended for line in one.blink]

    def agreed(self) -> bool:
        """True if all ranks of each communicator ran the same calls in the same way."""
        ways: dict[str, dict[tuple[int, int], Counter[tuple[Any, ...]]]] = {}
        for x in self.usage:
            row = (x.collective, x.dtype, x.op, x.state, x.least, x.most, x.program, x.protocol)
            ways.setdefault(x.comm, {}).setdefault((x.pid, x.rank), Counter())[row] += x.calls
        return all(len({tuple(sorted(one.items())) for one in ranks.values()}) == 1 for ranks in ways.values())

    def right(self) -> Outcome:
        """Return itself after checks: every process has all bits right, and nothing is left of the run."""
        for one in self.ended:
            wrong = [line for line in one.said if not line.get("ok", line.get("code") == 0)]
            assert (one.code, wrong) == (0, []), f"exit code {one.code}, {wrong}\n{one.err[-4000:]}"
        assert self.unread == 0
        assert self.left == []
        return self


@dataclass(frozen=True)
class Preloaded:
    """A runner; ``directory`` belongs to the test, ``cache`` with its plans to the session.

    ``more`` are variables for all processes, ``runtime`` is a library that precedes all preloaded ones, and ``before``
    is called in each process before its program. ``others``: the reason why programs that are no doubles cannot run.
    """

    built: Built
    directory: Path
    cache: Path
    more: Mapping[str, object] = field(default_factory=dict)
    runtime: str = ""
    before: Callable[[], object] | None = None
    others: str = ""

    def environment(self, **variables: object) -> Environment:
        """The environment of a process that uses the doubles, without Blink's variables; None removes a variable."""
        doubles = self.built.doubles
        result: Environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BLINK_", "NCCL_", "CUDA_", "PYTEST_")) and name != "LD_PRELOAD"
        }
        result |= {
            "BLINK_CUDA_LIB": str(doubles.cuda),
            "LD_LIBRARY_PATH": str(doubles.nccl.parent),
            "BLINK_NVCC": str(doubles.compiler),
            "BLINK_DOUBLE_DEVICE_LIB": str(self.built.device_library),
            "BLINK_DOUBLE_DEVICES": "8",
            "BLINK_PYTHON": sys.executable,
            "BLINK_CACHE": str(self.cache),
            "BLINK_TOPO": "clique:4",
            "BLINK_ALGO": "optimal",
            "BLINK_DEBUG": "INFO",
            "BLINK_STAGING_BYTES": str(16 << 20),
            "LD_PRELOAD": str(self.built.library),
            "TMPDIR": str(self._made("temporary")),
            _MARK: str(self.directory),
        }
        for name, value in {**self.more, **variables}.items():
            result.pop(name, None)
            if value is not None:
                result[name] = str(value)
        if "BLINK_DOUBLE_JOURNAL" in result and "BLINK_PYTHON" in result:
            result["BLINK_PYTHON"] = str(self._without_journal(result["BLINK_PYTHON"]))
        if self.runtime:
            result["LD_PRELOAD"] = ":".join(filter(None, (self.runtime, result.get("LD_PRELOAD"))))
        return result

    def _without_journal(self, python: str) -> Path:
        """The planner's Python without the journal of ranks, since the planner calls the driver once per session."""
        path = self.directory / f"planner.{sha256(python.encode()).hexdigest()[:8]}"
        if not path.exists():
            path.write_text(f'#!/bin/sh\nunset BLINK_DOUBLE_JOURNAL\nexec {shlex.quote(python)} "$@"\n')
            path.chmod(0o700)
        return path

    def run(
        self,
        commands: Sequence[Sequence[str | Path]],
        *,
        each: Sequence[Mapping[str, object]] = (),
        timeout_s: float = 60,
        **variables: object,
    ) -> Outcome:
        """Start all commands, wait for them and collect their results; ``each``: more variables for each command.

        If one is still running after ``timeout_s``, all are killed and the test fails.
        """
        own_programs = (self.built.doubles.client, self.built.doubles.ranks)
        if self.others and any(command[0] not in own_programs for command in commands):
            pytest.skip(self.others)
        number = len(list(self.directory.glob("report.*")))
        report, journal = self.directory / f"report.{number}", self.directory / f"journal.{number}"
        report.touch()
        own = {"BLINK_REPORT": report, "BLINK_DOUBLE_NCCL_JOURNAL": journal}
        began = time.monotonic()
        running, files = [], []
        for place, command in enumerate(commands):
            more = each[place] if each else {}
            streams = [self.directory / f"{name}.{number}.{place}" for name in ("out", "err")]
            files.append(streams)
            environment = self.environment(**{**own, **variables, **more})
            words = [str(word) for word in command]
            # Not a pipe: a remaining process would keep its end open, and the read would block.
            with streams[0].open("w") as out, streams[1].open("w") as err:
                how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
                running.append(subprocess.Popen(words, env=environment, preexec_fn=self.before, **how))
        late = False
        for process in running:
            try:
                process.wait(max(0.0, timeout_s - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                late = True
        seconds = time.monotonic() - began
        left = [] if late else self._left()
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
        ended = [
            Ended(process.returncode, *(stream.read_text() for stream in streams))
            for process, streams in zip(running, files, strict=True)
        ]
        tails = "\n".join(one.out[-1000:] + one.err[-3000:] for one in ended)
        assert not late, f"not ended after {timeout_s} s:\n{tails}"
        for one in ended:  # a program may have survived, or been killed after it
            assert "Sanitizer: " not in one.err, one.err[-8000:]
            assert "runtime error: " not in one.err, one.err[-8000:]
        lines_of_report = report.read_bytes()
        lines = [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []
        usage = msgspec.json.Decoder(ReportLine).decode_lines(lines_of_report)
        return Outcome(ended, usage, lines, seconds, read_call_report(lines_of_report).unread, left)

    def client(
        self,
        mode: str,
        ranks: int = 4,
        *,
        cases: str = "sizes",
        sizes: str = "0,1,1000,4099",
        each: Sequence[Mapping[str, object]] = (),
        timeout_s: float = 60,
        **variables: object,
    ) -> Outcome:
        """Run the doubles' client in one process, or in mode ``process`` as one process per rank."""
        words = [self.built.doubles.client, "--ranks", str(ranks), "--cases", cases, "--sizes", sizes, "--mode", mode]
        if mode != "process":
            return self.run([words], each=each, timeout_s=timeout_s, **variables)
        identity = self._made("ids") / f"id{len(list(self.directory.glob('report.*')))}"
        commands = [[*words, "--rank", str(rank), "--id", identity] for rank in range(ranks)]
        return self.run(commands, each=each, timeout_s=timeout_s, **variables)

    def scene(
        self,
        name: str,
        ranks: int = 3,
        *,
        odd: int = -1,
        calls: int = 1,
        count: int = 1000,
        start: Sequence[str | Path] = (),
        each: Sequence[Mapping[str, object]] = (),
        timeout_s: float = 60,
        **variables: object,
    ) -> Outcome:
        """Run a scene of ranks.c, one process per rank; ``start`` replaces the program."""
        identity = self._made("ids") / f"id{len(list(self.directory.glob('report.*')))}"
        program = list(start) or [self.built.doubles.ranks]
        commands = [[*program, name, *map(str, (ranks, rank, identity, odd, calls, count))] for rank in range(ranks)]
        return self.run(commands, each=each, timeout_s=timeout_s, **variables)

    def _made(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path

    def _left(self) -> list[str]:
        """Processes with this run's mark, and files in the temporary directory that stay for two seconds."""
        for _ in range(40):
            left = [*_marked(str(self.directory)), *map(str, (self.directory / "temporary").glob("*"))]
            if not left:
                return []
            time.sleep(0.05)
        return left


def _marked(mark: str) -> list[str]:
    variable = f"{_MARK}={mark}".encode()
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if variable in (entry / "environ").read_bytes().split(b"\0"):
                processes.append(f"process {entry.name}: {(entry / 'cmdline').read_bytes()!r}")
        except OSError:
            continue  # ended, or another user's
    return processes
