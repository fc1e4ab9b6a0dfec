"""libblink.so, generated code and the doubles neither race nor leave their memory: all is built with a sanitizer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from preloaded import HERE, Preloaded, built
from variants import with_sanitizer

CASES = (
    "types,sizes,scaled,groups,streams,legacy_stream,several,graph,graph_fork,graph_order,graph_lost,split,nonblocking,"
    "finalize,abort"
)
OPTIONS = {
    "thread": {"TSAN_OPTIONS": f"halt_on_error=1 exitcode=66 print_suppressions=0 suppressions={HERE / 'tsan.supp'}"},
    # What a process still has at its end is meant: NCCL's and CUDA's own libraries are never closed either.
    "address": {"ASAN_OPTIONS": "detect_leaks=0 exitcode=66"},
    "undefined": {"UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1 exitcode=66"},
}


def _preload(sanitizer: str, library: Path) -> str:
    """The address sanitizer insists on coming first; the others come with the program."""
    if sanitizer != "address":
        return str(library)
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return f"{found.stdout.strip()}:{library}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", ["thread", "address", "undefined"])
@pytest.mark.parametrize(("mode", "seed"), [("threads", 0), ("threads", 9), ("process", 4), ("all", 2)])
def test_nothing_is_found(preloaded: Preloaded, tmp_path: Path, sanitizer: str, mode: str, seed: int) -> None:
    files = with_sanitizer(sanitizer)
    assert files.library is not None
    # Our interpreter is not built with it: the planner gets neither its runtime nor a driver that needs it.
    python = tmp_path / "python"
    plain = f"BLINK_CUDA_LIB={preloaded.built.doubles.cuda}"
    python.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexport {plain}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    cache = preloaded.cache / sanitizer
    cache.mkdir(mode=0o700, exist_ok=True)
    outcome = Preloaded(files, tmp_path, cache).client(
        mode,
        3,
        cases=CASES,
        sizes="0,3,1000,100000",
        timeout_s=400,
        LD_PRELOAD=_preload(sanitizer, files.library),
        BLINK_PYTHON=python,
        BLINK_DOUBLE_CXXFLAGS=f"-fsanitize={sanitizer} -fno-sanitize-recover=all",
        BLINK_DOUBLE_SEED=seed,
        **OPTIONS[sanitizer],
    )
    assert not any("Sanitizer" in one.err or "runtime error" in one.err for one in outcome.ended), "\n".join(
        one.err[-8000:] for one in outcome.ended
    )
    outcome.right()
    assert outcome.calls("blink")["allreduce"] > 0, outcome.blink


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 9])
def test_the_doubles_alone_do_not_race(preloaded: Preloaded, seed: int) -> None:
    given = {"LD_PRELOAD": None, "BLINK_DOUBLE_SEED": seed, **OPTIONS["thread"]}
    alone = replace(preloaded, built=built("thread"))
    outcome = alone.client("threads", 3, cases="all", sizes="0,3,1000", timeout_s=120, **given).right()
    assert outcome.ended[0].err == ""
