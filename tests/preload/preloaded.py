"""Runs programs with libblink.so before NCCL, on doubles of driver and NCCL, and says what happened."""

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
#: Calls of the client that Blink may take. The double's own inner calls do not count.
COLLECTIVES = (
    *("AllReduce", "Reduce", "Broadcast", "Bcast", "AllGather", "ReduceScatter", "Gather", "Scatter", "AlltoAll"),
)
_MARK = "BLINK_TEST_RUN"
Environment = dict[str, str]


@dataclass(frozen=True)
class Built:
    """The files of a run: the doubles, the library under test and what generated code needs."""

    doubles: Doubles
    library: Path | None
    device_library: Path | None


def built(sanitizer: str | None = None) -> Built:
    """Doubles, compiled once per content; libblink.so as it is installed."""
    library, device_library = find_library("libblink.so", ""), find_library("libblink_device.so", "")
    return Built(build(sanitizer=sanitizer), library, device_library)


@dataclass(frozen=True)
class Ended:
    """How one process ended. ``code`` is negative for a signal."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> list[dict[str, Any]]:
        """The lines of JSON that it printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def blink(self) -> list[str]:
        """What libblink.so said: its lines without host and process; the planner's steps are left out."""
        lines = [line.partition(" BLINK ")[2] for line in self.err.splitlines() if " BLINK " in line]
        return [line for line in lines if "planner: blink planner: " not in line]


@dataclass(frozen=True)
class Outcome:
    """What a run of several processes left."""

    ended: list[Ended]
    usage: list[ReportLine]
    journal: list[list[str]]
    seconds: float
    unread: int
    left: list[str] = field(default_factory=list)

    def calls(self, state: str) -> Counter[str]:
        """Calls per collective that Blink's report counts as ``blink`` or ``nccl``, over all ranks."""
        counted: Counter[str] = Counter()
        for line in self.usage:
            if line.state == state:
                counted[line.collective] += line.calls
        return counted

    def reached_nccl(self) -> Counter[str]:
        """Collectives that arrived in NCCL: by name, all ranks, without those that move nothing."""
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
        """Whether all ranks of each communicator sent the same calls the same way."""
        ways: dict[str, dict[tuple[int, int], Counter[tuple[Any, ...]]]] = {}
        for x in self.usage:
            row = (x.collective, x.dtype, x.op, x.state, x.least, x.most, x.program, x.protocol)
            ways.setdefault(x.comm, {}).setdefault((x.pid, x.rank), Counter())[row] += x.calls
        return all(len({tuple(sorted(one.items())) for one in ranks.values()}) == 1 for ranks in ways.values())

    def right(self) -> Outcome:
        """Itself, if every process found every bit right, and nothing is left of the run."""
        for one in self.ended:
            wrong = [line for line in one.said if not line.get("ok", line.get("code") == 0)]
            assert (one.code, wrong) == (0, []), f"exit code {one.code}, {wrong}\n{one.err[-4000:]}"
        assert self.unread == 0
        assert self.left == []
        return self


@dataclass(frozen=True)
class Preloaded:
    """Runs programs; ``directory`` is the test's own, ``cache`` the session's plans'.

    ``more`` are variables of all, ``runtime`` is a library that comes before whatever is preloaded, and ``before`` is
    called in each process before its program. ``others`` says why programs other than the doubles' cannot run.
    """

    built: Built
    directory: Path
    cache: Path
    more: Mapping[str, object] = field(default_factory=dict)
    runtime: str = ""
    before: Callable[[], object] | None = None
    others: str = ""

    def environment(self, **variables: object) -> Environment:
        """Of a process that finds the doubles, with nothing of ours from outside; None removes a variable."""
        doubles = self.built.doubles
        kept: Environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BLINK_", "NCCL_", "CUDA_", "PYTEST_")) and name != "LD_PRELOAD"
        }
        kept |= {
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
            kept.pop(name, None)
            if value is not None:
                kept[name] = str(value)
        if "BLINK_DOUBLE_JOURNAL" in kept and "BLINK_PYTHON" in kept:
            kept["BLINK_PYTHON"] = str(self._without_journal(kept["BLINK_PYTHON"]))
        if self.runtime:
            kept["LD_PRELOAD"] = ":".join(filter(None, (self.runtime, kept.get("LD_PRELOAD"))))
        return kept

    def _without_journal(self, python: str) -> Path:
        """The planner's Python, whose process calls the driver too, once per session: the journal is of ranks alone."""
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
        """Starts all commands at once, waits for them and gathers what they left; ``each``: more variables of each.

        When one is still there after ``timeout_s``, all are killed and the test fails.
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
            # Not a pipe: a process that is left over would keep its end, and us waiting.
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
        said = "\n".join(one.out[-1000:] + one.err[-3000:] for one in ended)
        assert not late, f"not ended after {timeout_s} s:\n{said}"
        for one in ended:  # a program may have survived, or been killed after it
            assert "Sanitizer: " not in one.err, one.err[-8000:]
            assert "runtime error: " not in one.err, one.err[-8000:]
        found = report.read_bytes()
        lines = [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []
        usage = msgspec.json.Decoder(ReportLine).decode_lines(found)
        return Outcome(ended, usage, lines, seconds, read_call_report(found).unread, left)

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
        """The doubles' client in one process, or in mode ``process`` as one per rank."""
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
        """A scene of ranks.c, a process per rank; ``start`` instead of the program itself."""
        identity = self._made("ids") / f"id{len(list(self.directory.glob('report.*')))}"
        program = list(start) or [self.built.doubles.ranks]
        commands = [[*program, name, *map(str, (ranks, rank, identity, odd, calls, count))] for rank in range(ranks)]
        return self.run(commands, each=each, timeout_s=timeout_s, **variables)

    def _made(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path

    def _left(self) -> list[str]:
        """Processes that carry our mark, zombies of ours, and files in the temporary directory; soon none."""
        for _ in range(40):
            left = [*_marked(str(self.directory)), *map(str, (self.directory / "temporary").glob("*"))]
            if not left:
                return []
            time.sleep(0.05)
        return left


def _marked(mark: str) -> list[str]:
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(f"process {entry.name}: {(entry / 'cmdline').read_bytes()!r}")
        except OSError:
            continue  # gone, or another user's
    return found
