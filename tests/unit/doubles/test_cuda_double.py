"""The double of the CUDA driver behaves like the driver where a program can tell, and unkindly where it may."""

from __future__ import annotations

import ast
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


def compiled(doubles, directory: Path, *architecture: str) -> str:
    """What the compiler double makes of the kernels."""
    source, output = directory / "kernels.cu", directory / "kernels.cubin"
    source.write_text(KERNELS)
    command = [doubles.compiler, "-std=c++17", "-O3", "-fmad=false", *architecture, f"-I{DIRECTORY}", source]
    subprocess.run([*command, "-o", output], check=True)
    return str(output)


@pytest.fixture(scope="module")
def kernels(doubles, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(doubles, tmp_path_factory.mktemp("kernels"), "-cubin", "-arch=sm_90")


@pytest.fixture
def scene(doubles) -> Scene:
    """Plays one scene of cuda_scenes.py in a process of its own, and returns how it ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BLINK_", "CUDA_"))}
    environment["BLINK_CUDA_LIB"] = str(doubles.cuda)

    def play(name: str, *arguments: str, **variables: object) -> subprocess.CompletedProcess[str]:
        given = {key: str(value) for key, value in variables.items()}
        command = [sys.executable, str(Path(__file__).with_name("cuda_scenes.py")), name, *arguments]
        return subprocess.run(command, env=environment | given, capture_output=True, text=True, timeout=60, check=False)

    return play


def passes(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "name",
    [
        *("before_init", "fresh_memory", "latest_record", "legacy_stream", "timing", "ipc", "staging"),
        "external_errors",
    ],
)
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


def test_errors(scene: Scene) -> None:
    passes(scene("errors", BLINK_DOUBLE_NO_PEER="0-2,3-1"))


def test_devices_are_as_described(scene: Scene) -> None:
    said = passes(
        scene(
            "devices",
            BLINK_DOUBLE_DEVICES=3,
            BLINK_DOUBLE_ARCH=75,
            BLINK_DOUBLE_SMS=40,
            CUDA_VISIBLE_DEVICES="2,0",
        )
    )
    assert ast.literal_eval(said) == [("0000:02:00.0", 2, 40, 7, 5), ("0000:00:00.0", 0, 40, 7, 5)]


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


@pytest.mark.parametrize("seed", [0, 3])
def test_kernels_run(scene: Scene, kernels: str, seed: int) -> None:
    passes(scene("launches", kernels, BLINK_DOUBLE_SEED=seed))


@pytest.mark.parametrize(
    ("driver", "arch", "wanted"), [(13000, 90, (0, 4, 0)), (13000, 80, (0, 1, 1)), (11080, 90, (1, -1, 1))]
)
def test_memory_domains(scene: Scene, doubles, tmp_path: Path, driver: int, arch: int, wanted: tuple[int, ...]) -> None:
    """Old drivers do not know them, and GPUs before Hopper have one."""
    image = compiled(doubles, tmp_path, "-cubin", f"-arch=sm_{arch}")
    passes(scene("memory_domains", image, *map(str, wanted), BLINK_DOUBLE_DRIVER=driver, BLINK_DOUBLE_ARCH=arch))


def test_blocks_beyond_co_residency_wait(scene: Scene, kernels: str) -> None:
    passes(scene("co_residency", kernels, BLINK_DOUBLE_SMS=1, BLINK_DOUBLE_OCCUPANCY=2))


@pytest.mark.parametrize(("arch", "wanted"), [(75, (3, 2, 1)), (80, (8, 2, 1)), (90, (8, 2, 1)), (120, (5, 2, 1))])
def test_occupancy_is_that_of_kernels_within_their_budgets(
    scene: Scene, doubles, tmp_path: Path, arch: int, wanted: tuple[int, ...]
) -> None:
    """64 registers a thread and 17 KiB of shared memory a block, by each architecture's limits."""
    image = compiled(doubles, tmp_path, "-cubin", f"-arch=sm_{arch}")
    passes(scene("occupancy", image, *map(str, wanted), BLINK_DOUBLE_ARCH=arch))


@pytest.mark.parametrize(("mode", "code"), [("LAZY", -signal.SIGABRT), ("EAGER", 0)])
def test_a_kernel_loaded_while_another_one_waits(scene: Scene, kernels: str, mode: str, code: int) -> None:
    ended = scene("late_load", kernels, CUDA_MODULE_LOADING=mode)
    assert (ended.returncode, ended.stdout) == (code, "asked again\n"), ended.stderr
    assert ("gather is loaded while 1 kernels run on device 0" in ended.stderr) == (mode == "LAZY")


def test_image_for_another_architecture(scene: Scene, kernels: str, doubles, tmp_path: Path) -> None:
    passes(scene("wrong_arch", kernels, BLINK_DOUBLE_ARCH=80))
    several = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90"]
    passes(scene("launches", compiled(doubles, tmp_path, "-fatbin", *several), BLINK_DOUBLE_ARCH=86))


def test_capture_errors(scene: Scene) -> None:
    passes(scene("capture_errors"))


def test_a_driver_that_is_too_old(doubles) -> None:
    def symbols(path: Path) -> set[str]:
        listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
        return {line.split()[-1] for line in listed.stdout.splitlines()}

    assert symbols(doubles.cuda) - symbols(doubles.cuda_old) == {"cuDeviceGetUuid_v2"}
    assert symbols(doubles.cuda) - symbols(doubles.cuda_11_7) == {"cuLaunchKernelEx", "cuCtxGetDevResource"}


def test_compiler_refuses_what_nvcc_refuses(doubles) -> None:
    compiler = str(doubles.compiler)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)

    assert "release 13.0" in run("--version").stdout
    assert run("--list-gpu-code").stdout.split()[0] == "sm_75"
    assert "Unsupported gpu architecture" in run("-cubin", "-arch=sm_70", "x.cu", "-o", "x").stderr
    assert run("-cubin", "-arch=sm_90", "-o", "x").returncode == 1
