"""A GPU day: one page with numbers and verdicts on generated code and ``libblink.so`` on one NVIDIA GPU.

      python benchmarks/gpu_day.py --quick [--to FOLDER] [--only fold,latency]    # at most 2 minutes
      python benchmarks/gpu_day.py                                                # at most 7

It runs the steps of ``gpu_steps.py``; checks that only a GPU can make come first. Each step is a process with a
timeout, and the timeouts sum to less than the whole. The page (``gpu.md``, or ``gpu-quick.md``) is rewritten after
each step, so it is always complete: for a step that hangs, dies or prints nothing readable, it holds the earlier
results and the last lines of output. Exit 0: all goals are reached; 1: a goal is missed, a result is wrong or a step
failed; 3: there is no GPU, and no page.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_steps import ENVIRONMENT, NO_GPU, STEPS, Verdict

HERE = Path(__file__).parent
#: Seconds of all steps; with the setup of a machine this is ten minutes.
QUICK_S, WHOLE_S = 120.0, 420.0
SHOWN_LINES = 25
#: Seconds for an aborted process to print its position, and then for it to end.
LAST_WORDS_S = 1.0
_NO_VERDICT = ("not begun", "not measured")


@dataclass(frozen=True)
class Step:
    """A process that prints lines of JSON, ``{"rows": [{…}], "verdicts": [["ok", "what"], …]}``, and text for people.

    ``deadline_s`` includes the time to end it.
    """

    name: str
    what: str
    deadline_s: float
    command: tuple[str, ...]


@dataclass
class Outcome:
    """The result of a step; ``verdicts`` are never empty."""

    step: Step
    verdicts: list[Verdict]
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    last_lines: str = ""


def steps(names: Sequence[str], quick: bool, within_s: float | None = None) -> list[Step]:
    """The steps of a day; the first one describes the machine. More time is divided among all."""
    usual_s = QUICK_S if quick else WHOLE_S
    program, more = str(HERE / "gpu_steps.py"), max(1.0, (within_s or usual_s) / usual_s)
    start = (sys.executable, "-X", "faulthandler", program)
    return [
        Step(name, row.what, more * row.deadline_s(quick), (*start, name, *(["--quick"] if quick else [])))
        for name, row in STEPS.items()
        if name in names and row.deadline_s(quick)
    ]


def run_step(step: Step, limit_s: float) -> tuple[Outcome, int | None]:
    """Run a step; return its outcome, and its exit code (None: it had to be ended)."""
    began = time.monotonic()
    # A file, because a dead step's children would hold a pipe open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            step.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**ENVIRONMENT, **os.environ},
        )
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(max(limit_s - 2 * LAST_WORDS_S, 0.0))
        _end(process)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    verdicts, rows, others = _read(printed)
    why = _failure(code, limit_s, bool(verdicts))
    if why:
        verdicts.append(("FAILED", why))
    well = all(kind in ("ok", "MISSED", *_NO_VERDICT) for kind, _ in verdicts)
    last_lines = "" if well else "\n".join(others[-SHOWN_LINES:])
    return Outcome(step, verdicts, rows, time.monotonic() - began, last_lines), code


def _failure(code: int | None, limit_s: float, says: bool) -> str:
    """The reason of a failure; "" for none."""
    if code is None:
        return f"not done within {limit_s:.0f} s"
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    if code:
        return f"ended with exit code {code}"
    return "" if says else "said nothing that can be read"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Abort the process, which first prints its position, then kill it and its children."""
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver cannot be ended
        process.wait(LAST_WORDS_S)


def _read(printed: str) -> tuple[list[Verdict], list[dict[str, Any]], list[str]]:
    """All verdicts and rows, and the lines for people."""
    verdicts: list[Verdict] = []
    rows: list[dict[str, Any]] = []
    others = []
    for line in printed.strip().splitlines():
        try:
            document = json.loads(line)
            more = [(str(kind), str(words)) for kind, words in document["verdicts"]]
            rows += [dict(row) for row in document["rows"]]
            verdicts += more
        except (LookupError, TypeError, ValueError):
            others.append(line)
    return verdicts, rows, others


def run_all(todo: Sequence[Step], page: Path, within_s: float, command: str) -> int:
    """Run the steps and write the page after each; return 0, 1, or 3 without a GPU."""
    began, ends = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), time.monotonic() + within_s
    outcomes = [Outcome(step, [("not begun", "the page was written before")]) for step in todo]
    for index, step in enumerate(todo):
        left_s = ends - time.monotonic()
        if left_s < 1 + 2 * LAST_WORDS_S:
            outcomes[index].verdicts = [("not begun", f"the {within_s:.0f} s of all steps were used up")]
            continue
        outcomes[index], code = run_step(step, min(step.deadline_s, left_s))
        if index == 0 and code == NO_GPU:
            print(outcomes[0].last_lines, file=sys.stderr)
            return NO_GPU
        write(page, text(outcomes, began, command))
        for kind, words in outcomes[index].verdicts:
            print(f"{step.name:10} {kind:12} {words}", flush=True)
    write(page, text(outcomes, began, command))
    kinds = [kind for outcome in outcomes for kind, _ in outcome.verdicts]
    return int(any(kind not in ("ok", *_NO_VERDICT) for kind in kinds))


def write(page: Path, content: str) -> None:
    """Write a file atomically, because this process may be ended at any time."""
    fresh = page.with_name(f"{page.name}.{os.getpid()}")
    fresh.write_text(content, encoding="utf-8")
    fresh.replace(page)


def text(outcomes: Sequence[Outcome], began: str, command: str) -> str:
    """The text of the page."""
    machine = outcomes[0].rows[0] if outcomes[0].rows else {}
    head = {"date": began, "command": f"`{command}`", **machine}
    verdicts = [
        {"step": one.step.name, "verdict": kind, "what": words, "seconds": f"{one.seconds:.1f}"}
        for one in outcomes
        for kind, words in one.verdicts
    ]
    lines = ["# A GPU day", "", *_table([{"": name, " ": value} for name, value in head.items()])]
    lines += ["", "## Verdicts", "", *_table(verdicts), ""]
    for one in outcomes:
        table = [*_table(one.rows), ""] if one.rows and one is not outcomes[0] else []
        output = ["```", one.last_lines.replace("```", "` ` `"), "```", ""] if one.last_lines else []
        if table or output:
            lines += [
                "",
                f"## {one.step.name}",
                "",
                one.step.what,
                "",
                *table,
                *([""] if table and output else []),
                *output,
            ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_cell(row.get(name, '')) for name in columns)} |"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(shown.replace("|", "\\|").split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER", help="folder for the page")
    parser.add_argument("--quick", action="store_true", help="small buffers and few rounds: whether it works at all")
    parser.add_argument("--only", default=",".join(STEPS), help="names of steps; the first one runs always")
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help="limit of all steps; more time is divided among them"
    )
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        parser.error(f"--only {unknown[0]}: expected some of {', '.join(STEPS)}")
    within_s = options.within or (QUICK_S if options.quick else WHOLE_S)
    options.to.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", "benchmarks/gpu_day.py", *sys.argv[1:]])
    todo = steps([next(iter(STEPS)), *names], options.quick, within_s)
    return run_all(todo, options.to / ("gpu-quick.md" if options.quick else "gpu.md"), within_s, command)


if __name__ == "__main__":
    sys.exit(main())
