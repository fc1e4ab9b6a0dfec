"""The page of a GPU day is complete after any failure of a step, and all steps pass on the driver's double."""

import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_bundle
import gpu_day
import pytest
from gpu_day import Step, run_all
from gpu_group import LIBRARY, LIBRARY_OVERRIDE
from gpu_steps import STEPS

from blinkccl.cli.exits import CHECK_FAILED, HARDWARE
from blinkccl.codegen import device_files
from blinkccl.native import absent, find_library
from doubles.build import Doubles

PROGRAM = Path(gpu_day.__file__)
#: Steps of the quick day that only measure speed, need missing tools, or run what other tests here run; ``make
#: test-all`` runs the whole day.
NOT_ON_THE_DOUBLE = ("memcheck", "fold", "grid", "two", "replays-1M")


def step(name: str, text: str, deadline_s: float = 20.0) -> Step:
    return Step(name, f"what {name} is", deadline_s, (sys.executable, "-X", "faulthandler", "-c", text))


def says(verdict: str, rows: str = "[]") -> str:
    return f'print(\'a line before\'); print(\'{{"rows": {rows}, "verdicts": [["{verdict}", "words"]]}}\')'


def test_the_page_is_complete_after_any_failure(tmp_path: Path) -> None:
    page, late = tmp_path / "gpu.md", tmp_path / "late"
    left_behind = f"import subprocess, sys, time; subprocess.Popen(['sh', '-c', 'sleep 5; touch {late}'])"
    todo = [
        step("machine", says("ok", '[{\\"GPU\\": \\"H200\\"}]')),
        step(
            "hangs",
            f"{left_behind}; print('begun', flush=True); {says('ok')}; sys.stdout.flush(); time.sleep(100)",
            deadline_s=3.0,
        ),
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
    assert "| hangs | ok | words" in text
    assert "FAILED | not done within 3 s" in table["hangs"]
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
    time.sleep(max(0.0, began + 8.0 - time.monotonic()))
    assert not late.exists(), "processes of a step end with it"


def test_a_step_that_is_not_begun_is_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    todo = [step("machine", "import time; time.sleep(100)"), step("fold", says("ok"))]
    assert run_all(todo, page, 3.2, "") == CHECK_FAILED
    assert "| machine | FAILED | not done within 3 s |" in page.read_text()
    assert "| fold | not begun | the 3 s of all steps were used up |" in page.read_text()


@pytest.mark.parametrize(("quick", "within_s"), [(True, gpu_day.QUICK_S), (False, gpu_day.WHOLE_S)])
def test_deadlines_add_up_to_less_than_there_is(quick: bool, within_s: float) -> None:
    """No step takes the time of a later one; a few seconds are left between steps."""
    todo = gpu_day.steps(list(STEPS), quick)
    assert sum(one.deadline_s for one in todo) <= within_s - 5
    assert gpu_day.QUICK_S + gpu_day.WHOLE_S <= 540, "one of ten minutes is for the preparation"
    assert ((("--quick",) if quick else ()), within_s) in gpu_bundle.DAYS
    assert all(one.deadline_s >= 2 + 2 * gpu_day.LAST_WORDS_S for one in todo)
    twice = gpu_day.steps(list(STEPS), quick, 2 * within_s)
    assert [one.deadline_s for one in twice] == [2 * one.deadline_s for one in todo]


def test_the_page_exists_after_the_first_step(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    reads = f"import pathlib; text = pathlib.Path({str(page)!r}).read_text(); assert '| last | not begun |' in text; "
    assert run_all([step("machine", says("ok")), step("last", reads + says("ok"))], page, 60.0, "") == 0


def test_without_a_gpu_there_is_one_sentence_and_no_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    environment = os.environ | {"BLINK_CUDA_LIB": "/nothing/libcuda.so.1"}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), "--to", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, page.exists()) == (HARDWARE, "", False)
    assert ended.stderr.startswith("benchmarks/gpu_day.py needs an NVIDIA GPU: no NVIDIA driver: /nothing/libcuda.so.1")
    assert ended.stderr.count("\n") == 1


@pytest.fixture
def double(doubles: Doubles) -> dict[str, str]:
    """The environment of a process on a double of a GPU with few multiprocessors."""
    library = find_library(LIBRARY, LIBRARY_OVERRIDE)
    if library is None:
        pytest.skip(absent(LIBRARY))
    return os.environ | {
        "BLINK_LIBRARY": str(library),
        "BLINK_CUDA_LIB": str(doubles.cuda),
        "BLINK_NVCC": str(doubles.compiler),
        "BLINK_DOUBLE_DEVICE_LIB": str(device_files.host_library()),
        "BLINK_DOUBLE_SMS": "16",
    }


@pytest.mark.parametrize(("program", "output"), [("gpu_grid.py 2", "ok"), ("gpu_conformance.py 2 few", None)])
def test_ranks_in_one_grid_need_no_two_kernels_at_once(
    double: dict[str, str], program: str, output: str | None
) -> None:
    """compute-sanitizer serializes kernels, so ranks with a kernel each wait for ever there; it runs gpu_grid.py."""
    name, *arguments = program.split()
    ended = subprocess.run(
        [sys.executable, str(PROGRAM.with_name(name)), *arguments],
        env=double | {"BLINK_DOUBLE_SERIAL": "kernels", "BLINK_TIMEOUT": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.stdout.strip() == "ok") == (output == "ok"), ended.stdout + ended.stderr


def test_ranks_meet_where_gpus_read_the_pages_of_the_host(double: dict[str, str]) -> None:
    """Pageable memory stays valid until a copy from it has ended: freed memory is overwritten here."""
    command = [sys.executable, str(PROGRAM.with_name("gpu_conformance.py")), "2", "few"]
    ended = subprocess.run(
        command,
        env=double | {"BLINK_DOUBLE_ATS": "1", "MALLOC_PERTURB_": "165"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout.strip() == "ok", ended.stdout + ended.stderr


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=(pytest.mark.slow, pytest.mark.timeout(2200)))])
def test_steps_find_nothing_wrong_on_the_double(tmp_path: Path, double: dict[str, str], quick: bool) -> None:
    names = [name for name, row in STEPS.items() if row.deadline_s(quick) and not (quick and name in NOT_ON_THE_DOUBLE)]
    settings = ["--to", str(tmp_path / "pages"), "--within", "600" if quick else "2000", "--only", ",".join(names)]
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *settings, *(["--quick"] if quick else [])],
        env=double,
        capture_output=True,
        text=True,
        timeout=250 if quick else 2100,
    )
    text = (tmp_path / "pages" / ("gpu-quick.md" if quick else "gpu.md")).read_text()
    verdicts = [row.split(" | ")[:2] for row in text.splitlines() if row.count(" | ") == 3]
    steps = {(name.strip("| "), kind) for name, kind in verdicts}
    assert {name for name, _ in steps} >= set(names), ended.stderr
    assert not {kind for _, kind in steps} & {"WRONG", "FAILED", "not begun"}, text
    measured = {name for name, kind in steps if kind in ("ok", "MISSED")}
    assert measured >= set(names) - {"torn", "memcheck", "racecheck", "nccl"}, text
