"""The page of a GPU day is complete whatever a step does; and on the driver's double the steps find nothing wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_fold
import pytest
from gpu_day import Step, run_all

from blinkccl.cli.exits import CHECK_FAILED, HARDWARE
from blinkccl.codegen import device_files
from blinkccl.codegen.gpu_compiler import nvcc, nvrtc
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.gpu_group import LIBRARY, LIBRARY_OVERRIDE, find_library
from doubles.build import Doubles
from support.examples import ALL_TESTS

PROGRAM = Path(gpu_fold.__file__).with_name("gpu_day.py")
#: All but those that no double can run.
ON_THE_DOUBLE = ("occupancy", "two", "graphs", "latency", *(("eight",) if ALL_TESTS else ()))


def step(name: str, text: str, deadline_s: float = 20.0) -> Step:
    return Step(name, f"what {name} is", deadline_s, (sys.executable, "-X", "faulthandler", "-c", text))


def says(verdict: str, rows: str = "[]") -> str:
    return f'print(\'a line before\'); print(\'{{"rows": {rows}, "verdicts": [["{verdict}", "words"]]}}\')'


def test_the_page_is_complete_whatever_steps_do(tmp_path: Path) -> None:
    page, late = tmp_path / "gpu.md", tmp_path / "late"
    left_behind = f"import subprocess, time; subprocess.Popen(['sh', '-c', 'sleep 3; touch {late}'])"
    todo = [
        step("machine", says("ok", '[{\\"GPU\\": \\"H200\\"}]')),
        step("hangs", f"{left_behind}; print('begun', flush=True); time.sleep(100)", deadline_s=1.0),
        step("dies", "import os; print('so far', flush=True); os.kill(os.getpid(), 11)"),
        step("raises", "raise ValueError('a reason')"),
        step("babbles", "print('no JSON')"),
        step("nothing", "pass"),
        step("halfway", 'print(\'{"rows": [], "verdicts": [[1]]}\')'),
        step("empty", 'print(\'{"rows": [], "verdicts": []}\')'),
        step("slow", says("MISSED", '[{\\"us\\": 17.5, \\"right\\": true}]')),
        step("wrong", says("WRONG")),
        step("absent", says("not measured")),
    ]
    began = time.monotonic()
    assert run_all(todo, page, 60.0, "the command") == CHECK_FAILED
    text = page.read_text()
    table = {row.split(" | ")[0][2:]: row for row in text.splitlines() if row.startswith("| ")}
    assert "| GPU | H200 |" in text
    assert "FAILED | not done within 1 s" in table["hangs"]
    assert "FAILED | died of SIGSEGV" in table["dies"]
    assert "FAILED | ended with exit code 1" in table["raises"]
    for name in ("babbles", "nothing", "halfway", "empty"):
        assert "FAILED | said nothing that can be read" in table[name]
    assert "MISSED | words" in table["slow"]
    assert "| 17.5 | yes |" in text
    assert "WRONG | words" in table["wrong"]
    assert "not measured | words" in table["absent"]
    for last_words in ("begun", "so far", "ValueError: a reason", "no JSON", 'File "<string>", line 1 in <module>'):
        assert last_words in text
    assert "what slow is" in text
    time.sleep(max(0.0, began + 6.0 - time.monotonic()))
    assert not late.exists(), "what a step starts ends with it"


def test_what_is_not_begun_stands_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    todo = [step("machine", "import time; time.sleep(100)"), step("fold", says("ok"))]
    assert run_all(todo, page, 1.5, "") == CHECK_FAILED
    assert "| machine | FAILED | not done within 1 s |" in page.read_text()
    assert "| fold | not begun | the 2 s of all steps were used up |" in page.read_text()


def test_a_page_exists_as_soon_as_there_is_something_to_say(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    reads = f"import pathlib; text = pathlib.Path({str(page)!r}).read_text(); assert '| last | not begun |' in text; "
    assert run_all([step("machine", says("ok")), step("last", reads + says("ok"))], page, 60.0, "") == 0


def test_without_a_gpu_there_is_one_sentence_and_no_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    environment = os.environ | {"BLINK_CUDA_LIB": "/nothing/libcuda.so.1"}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), "--page", str(page)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, page.exists()) == (HARDWARE, "", False)
    assert ended.stderr.startswith("benchmarks/gpu_day.py needs an NVIDIA GPU: no NVIDIA driver: /nothing/libcuda.so.1")
    assert ended.stderr.count("\n") == 1


def test_steps_find_nothing_wrong_on_the_double(tmp_path: Path, doubles: Doubles) -> None:
    library = find_library(LIBRARY, LIBRARY_OVERRIDE)
    if library is None:
        pytest.skip(f"{LIBRARY} is not installed: no C++ compiler at installation")
    page = tmp_path / "gpu.md"
    environment = os.environ | {
        "BLINK_LIBRARY": str(library),
        "BLINK_CUDA_LIB": str(doubles.cuda),
        "BLINK_NVCC": str(doubles.compiler),
        "BLINK_DOUBLE_DEVICE_LIB": str(device_files.host_library()),
    }
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), "--quick", "--page", str(page), "--only", ",".join(ON_THE_DOUBLE)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    verdicts = [row.split(" | ")[:2] for row in page.read_text().splitlines() if row.count(" | ") == 3]
    found = {(name.strip("| "), kind) for name, kind in verdicts}
    assert {name for name, kind in found if kind == "ok"} >= {"machine", *ON_THE_DOUBLE} - {"latency"}, ended.stderr
    assert not {kind for _, kind in found} & {"WRONG", "FAILED", "not begun"}, page.read_text()


@pytest.mark.parametrize("format_", gpu_fold.FORMATS.values())
def test_the_kernel_of_the_step_fold_compiles(format_: str) -> None:
    for find in (nvrtc, nvcc):
        try:
            compiler = find("sm_90")
        except UnsupportedError:
            continue
        assert compiler.compile(f"#define FORMAT {format_}\n{gpu_fold.TEXT}", 120.0)
        return
    pytest.skip("neither NVRTC nor nvcc for sm_90 is here")
