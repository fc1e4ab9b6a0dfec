"""SimGrid's answers, usually from the system's Python, which has its bindings."""

import hashlib
import json
import shutil
import subprocess
import sys
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

from support.random_workloads import KINDS, make
from support.workload_rows import ActorRow, HopRow, as_json, workload

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
RECORDED_KINDS = [name for name, kind in KINDS.items() if kind.program is None]


#: A workload of a microsecond and a millisecond, which tests an interpreter.
TRIAL = workload([ActorRow(1, 1_000_000)] * 2, [HopRow(0, 1, latency_s=1e-6)], (1e9,))
TRIAL_S = 1.001e-3


@cache
def interpreter() -> str | None:
    """A Python with a working SimGrid: this one, the one on PATH or the system's; ``None`` without any."""
    for python in dict.fromkeys([sys.executable, shutil.which("python3") or sys.executable, "/usr/bin/python3"]):
        try:
            result = _answers(python, [{"latency": "network", "workload": as_json(TRIAL)}])
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
        if isclose(result["answers"][0]["finish_s"], TRIAL_S):
            return python
    return None


def ask(name: str) -> dict[str, Any]:
    """SimGrid's version and answers for all programs of a kind, as ``answers.py`` prints them."""
    python = interpreter()
    assert python is not None
    latency = "slept" if KINDS[name].slept else "network"
    programs = [{"latency": latency, "workload": as_json(make(name, n))} for n in range(KINDS[name].count)]
    result = _answers(python, programs)
    assert len(result["answers"]) == len(programs)
    return result


def _answers(python: str, programs: list[dict[str, Any]]) -> dict[str, Any]:
    command = [python, "-I", str(HERE / "answers.py")]
    question = json.dumps({"programs": programs})
    ran = subprocess.run(command, input=question, capture_output=True, text=True, timeout=240, check=True)
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def digest(name: str, number: int) -> str:
    """A hash of a workload, without the last digits of its numbers."""
    text = json.dumps(as_json(make(name, number)))
    rounded = json.loads(text, parse_float=lambda digits: f"{float(digits):.9g}")
    text = json.dumps(rounded, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def record() -> None:
    """Record SimGrid's answers for layers; workloads of programs are left out, because they change with the planner.

    Each workload without an open order of claims has a row: its number, its digest, its end, and the mean of its
    actors' ends.
    """
    written: dict[str, Any] = {"simgrid": "", "rows": "number, digest, finish_s, mean of actor_s", "layers": {}}
    for name in RECORDED_KINDS:
        result = ask(name)
        written["simgrid"] = result["version"]
        written["layers"][name] = [
            [n, digest(name, n), row["finish_s"], sum(row["actor_s"]) / len(row["actor_s"])]
            for n, row in enumerate(result["answers"])
            if not row["open_order"]
        ]
    blocks = (
        f"  {json.dumps(name)}: [\n" + ",\n".join(f"   {json.dumps(row)}" for row in rows) + "\n  ]"
        for name, rows in written.pop("layers").items()
    )
    head = json.dumps(written, indent=1)[:-2]
    RECORDED.write_text(f'{head},\n "layers": {{\n' + ",\n".join(blocks) + "\n }\n}\n")
