"""The double of NCCL works, and the client notices where a library under it does not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from doubles.build import build, compile_library

DOUBLES = Path(__file__).resolve().parents[2] / "doubles"
QUICK = ("--sizes", "0,3,1000,4099")
Environment = dict[str, str]
Ended = subprocess.CompletedProcess[str]


@pytest.fixture
def client(doubles, environment: Environment) -> Callable[..., list[Ended]]:
    """Runs the client, as one process or as several that meet, and returns how each ended."""

    def run(*arguments: str, processes: Iterable[Environment] = ({},), timeout_s: float = 60) -> list[Ended]:
        command = [str(doubles.client), *arguments]
        running = []
        own = list(processes)
        for rank, variables in enumerate(own):
            rank_of = ["--rank", str(rank)] if len(own) > 1 else []
            pipe = subprocess.PIPE
            given = environment | variables
            running.append(subprocess.Popen([*command, *rank_of], env=given, stdout=pipe, stderr=pipe, text=True))
        ended = []
        try:
            for process in running:
                out, err = process.communicate(timeout=timeout_s)
                ended.append(subprocess.CompletedProcess(command, process.returncode, out, err))
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return ended

    return run


def said(ended: list[Ended]) -> list[dict[str, object]]:
    """What all processes printed; each must have found everything right."""
    lines = [json.loads(line) for one in ended for line in one.stdout.splitlines()]
    assert [line for line in lines if not line["ok"]] == []
    assert [(one.returncode, one.stderr) for one in ended] == [(0, "")] * len(ended)
    return lines


@pytest.mark.parametrize(("mode", "ranks"), [("threads", 3), ("all", 4), ("group", 2), ("threads", 1)])
@pytest.mark.parametrize("seed", [0, 5])
def test_client_in_one_process(client, mode: str, ranks: int, seed: int) -> None:
    lines = said(client("--mode", mode, "--ranks", str(ranks), *QUICK, processes=[{"BLINK_DOUBLE_SEED": str(seed)}]))
    assert len({line["case"] for line in lines}) == 20
    assert len(lines) == 20 * (ranks if mode == "threads" else 1)


@pytest.mark.parametrize(("processes", "locals_"), [(4, 1), (2, 2)])
def test_client_in_several_processes(client, tmp_path: Path, processes: int, locals_: int) -> None:
    arguments = ["--mode", "process", "--ranks", "4", "--locals", str(locals_), "--id", str(tmp_path / "id"), *QUICK]
    variables = [{"BLINK_DOUBLE_SEED": str(rank)} for rank in range(processes)]
    assert len(said(client(*arguments, processes=variables))) == 20 * processes


def test_client_notices_a_collective_that_did_nothing(client, doubles, tmp_path: Path) -> None:
    source = doubles.compiler.parents[1] / "client" / "lazy_allreduce.c"
    lazy = compile_library([source], tmp_path / "liblazy.so")
    (ended,) = client("--ranks", "2", "--cases", "sizes", *QUICK, processes=[{"LD_PRELOAD": str(lazy)}])
    assert ended.returncode == 1
    wrong = [json.loads(line) for line in ended.stdout.splitlines()]
    assert "output of ncclAllReduce" in wrong[0]["what"]


def test_nobody_waits_for_a_rank_that_died(client, tmp_path: Path) -> None:
    arguments = ["--mode", "process", "--ranks", "2", "--id", str(tmp_path / "id"), "--cases", "types,sizes", *QUICK]
    ended = client(*arguments, processes=[{}, {"BLINK_DOUBLE_FAIL": "cuMemcpyDtoHAsync_v2:40:2"}], timeout_s=20)
    assert [one.returncode for one in ended] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 9])
def test_no_races(environment: Environment, seed: int) -> None:
    """Of both doubles: ranks as threads, all cases, under ThreadSanitizer."""
    doubles = build(sanitizer="thread")
    given = environment | {
        "BLINK_CUDA_LIB": str(doubles.cuda),
        "LD_LIBRARY_PATH": str(doubles.nccl.parent),
        "BLINK_DOUBLE_SEED": str(seed),
        "TSAN_OPTIONS": f"halt_on_error=1 print_suppressions=0 suppressions={DOUBLES.parent / 'preload' / 'tsan.supp'}",
    }
    command = [doubles.client, "--mode", "threads", "--ranks", "3", "--sizes", "0,3,1000"]
    ended = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
