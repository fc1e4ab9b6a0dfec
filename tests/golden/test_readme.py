"""The README promises nothing that was not run: the lines it shows are lines that the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```\n\$ blink (.+?)\n(.+?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize(("command", "shown"), EXAMPLES)
def test_what_is_shown_is_what_is_printed(blink, command: str, shown: str) -> None:
    printed = blink(*shlex.split(command)).out.splitlines()
    for line in shown.splitlines():
        assert line.strip() == "…" or line.rstrip() in [got.rstrip() for got in printed], line


def test_the_plan_in_python_is_what_is_printed(blink, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (
        block for block in re.findall(r"```python\n(.+?)```", README, flags=re.DOTALL) if "blinkccl.plan(" in block
    )
    shown = re.search(r"# (75.+)", code)[1]
    printed = blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6").out
    exec(code, {})
    assert capsys.readouterr().out == f"{shown}\n{printed}"


def test_the_generated_code_is_what_is_exported(blink, tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```cuda\n(.+?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    plan = str(tmp_path / "plan.json")
    blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", "-o", plan)
    assert shown in blink("export", plan, "--to", "cuda").out
