"""Tests that the double of the CUDA driver is as weak as CUDA may be, and reports mistakes of its user.

Other tests depend on it. A test of libblink.so proves little on a driver that orders more than CUDA promises, runs more
at once, or ignores mistakes. Those tests also check the double's results.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blinkccl.native.headers import DIRECTORY

Scene = Callable[..., "subprocess.CompletedProcess[str]"]

KERNELS = """
#include <cstdint>
#include <thread>
#include "blink/call.h"
// Each block writes its number, from 1, once the gate is open.
extern "C" void gather(const blink::Call* call, uint32_t block) {
  reinterpret_cast<uint64_t*>(call->output)[block] = *reinterpret_cast<const uint64_t*>(call->input) ? block + 1 : 0;
}
// Each block waits until as many have come as `input` says, or somebody gives up.
extern "C" void meet(const blink::Call* call, uint32_t) {
  auto* come = reinterpret_cast<uint64_t*>(call->output);
  __atomic_add_fetch(come, 1, __ATOMIC_ACQ_REL);
  while (__atomic_load_n(come, __ATOMIC_ACQUIRE) < reinterpret_cast<uint64_t>(call->input) &&
         !__atomic_load_n(call->abort, __ATOMIC_ACQUIRE)) {
    std::this_thread::yield();
  }
}
"""


@pytest.fixture(scope="module")
def kernels(doubles, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file that the compiler double makes of the kernels."""
    directory = tmp_path_factory.mktemp("kernels")
    source, output = directory / "kernels.cu", directory / "kernels.cubin"
    source.write_text(KERNELS)
    line = [doubles.compiler, "-std=c++17", "-O3", "-fmad=false", "-cubin", "-arch=sm_90", f"-I{DIRECTORY}", source]
    subprocess.run([*line, "-o", output], check=True)
    return str(output)


@pytest.fixture
def scene(doubles) -> Scene:
    """Plays one scene of cuda_scenes.py in a process of its own, and returns how it ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BLINK_", "CUDA_"))}
    environment["BLINK_CUDA_LIB"] = str(doubles.cuda)

    def play(name: str, *arguments: str, **variables: object) -> subprocess.CompletedProcess[str]:
        settings = {key: str(value) for key, value in variables.items()}
        command = [sys.executable, str(Path(__file__).with_name("cuda_scenes.py")), name, *arguments]
        env = environment | settings
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    return play


def passes(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", ["fresh_memory", "staging", "capture_errors"])
@pytest.mark.parametrize("seed", [0, 7])
def test_scene(scene: Scene, name: str, seed: int) -> None:
    passes(scene(name, BLINK_DOUBLE_SEED=seed))


def test_copies_out_of_pageable_memory_are_late(scene: Scene) -> None:
    passes(scene("late_copies"))
    passes(scene("ats", BLINK_DOUBLE_ATS=1))


@pytest.mark.parametrize(
    ("way", "serial", "at_once"),
    [
        ("streams", "", 2),
        ("streams", "branches", 2),
        ("streams", "kernels", 1),
        ("branches", "", 2),
        ("branches", "branches", 1),
        ("branches", None, 1),
    ],
)
def test_what_may_run_side_by_side(scene: Scene, kernels: str, way: str, serial: str | None, at_once: int) -> None:
    variables = {} if serial is None else {"BLINK_DOUBLE_SERIAL": serial}
    assert passes(scene("side_by_side", kernels, way, **variables)) == f"{at_once}\n"


@pytest.mark.parametrize(
    ("name", "ends_by"),
    [
        ("overrun", signal.SIGSEGV),
        ("underrun", signal.SIGSEGV),
        ("use_after_free", signal.SIGSEGV),
        ("small_overrun", signal.SIGABRT),
        ("free_while_open", signal.SIGABRT),
    ],
)
def test_memory_errors_do_not_pass(scene: Scene, name: str, ends_by: signal.Signals) -> None:
    ended = scene(name)
    assert ended.returncode == -ends_by
    assert "not noticed" not in ended.stdout
    assert name != "free_while_open" or "freed while process" in ended.stderr


@pytest.mark.parametrize("seed", range(6))
def test_events_order_streams(scene: Scene, seed: int) -> None:
    assert passes(scene("events", "12", "yes", BLINK_DOUBLE_SEED=seed)) == "in order\n"


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_missing_event_shows(scene: Scene, seed: int) -> None:
    """The same program without its wait: with every seed a copy comes too early soon.

    How soon is the machine's affair too: one that runs this thread a millisecond late hides a few of them.
    """
    assert passes(scene("events", "1000", "no", BLINK_DOUBLE_SEED=seed)) == "early\n"


def test_blocks_beyond_co_residency_wait(scene: Scene, kernels: str) -> None:
    passes(scene("co_residency", kernels, BLINK_DOUBLE_SMS=1, BLINK_DOUBLE_OCCUPANCY=2))


@pytest.mark.parametrize(("mode", "code"), [("LAZY", -signal.SIGABRT), ("EAGER", 0)])
def test_a_kernel_loaded_while_another_one_waits(scene: Scene, kernels: str, mode: str, code: int) -> None:
    ended = scene("late_load", kernels, CUDA_MODULE_LOADING=mode)
    assert (ended.returncode, ended.stdout) == (code, "asked again\n"), ended.stderr
    assert ("gather is loaded while 1 kernels run on device 0" in ended.stderr) == (mode == "LAZY")
