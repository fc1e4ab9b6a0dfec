"""Copy engines do what the collective's definition says, whatever runs late, and with as few streams as they may.

The same generated text as on GPUs, the engine of libblink.so, and a double of the CUDA driver whose streams run late by
a seed: what is not ordered happens out of order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from blinkccl.native.headers import DIRECTORY, abi
from doubles.build import Doubles, compile_library

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "native"
DEADLINE_S = 280
SEEDS = (1, 2, 3)
ALL_TESTS = bool(os.environ.get("BLINK_ALL_TESTS"))

Task = Callable[..., Any]

#: Types and operations, separate buffers and in place, fewer elements than slices and more chunks than slots.
CALLS: list[dict[str, Any]] = [
    {"count": 1, "dtype": "int8"},
    {"count": 101, "dtype": "int32"},
    {"count": 401, "dtype": "float32", "op": "avg", "in_place": True},
    {"count": 333, "dtype": "bfloat16", "op": "premul_sum", "in_place": True},
    {"count": 999, "dtype": "uint8", "op": "max"},
]
DGX: dict[str, Any] = {"spec": "dgx-1v", "ranks": [1, 4, 5, 6]}
COLLECTIVES = ("allreduce", "broadcast", "allgather", "reduce_scatter")
PLANS = {
    "trees": [{**DGX, "algorithm": "blink", "collective": name} for name in COLLECTIVES],
    "one hop": [{"spec": "clique:4", "ranks": None, "algorithm": "one_hop", "collective": "allreduce"}],
    # Every rank still sends its data to one peer while those of another arrive, which in place take their room.
    "one shot": [{"spec": "clique:4", "ranks": None, "algorithm": "one_shot", "collective": "allreduce"}],
    "ring": [{"spec": "ring:5", "ranks": None, "algorithm": "ring", "collective": name} for name in COLLECTIVES],
}
LONG: dict[str, Any] = {
    **DGX,
    "algorithm": "blink",
    "collective": "allreduce",
    "calls": [{"count": 999, "dtype": "int32", "in_place": place, "seed": place} for place in (False, True)],
}


@pytest.fixture(scope="module")
def environment(doubles: Doubles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process needs to run the ranks of a job: this checkout's libraries and headers, built."""
    place = tmp_path_factory.mktemp("copies")
    headers = sorted(
        [
            *NATIVE.glob("device/blink/*.h"),
            *NATIVE.glob("shim/*.h"),
            *NATIVE.glob("bootstrap/*.h"),
            *DIRECTORY.glob("blink/*.h"),
        ]
    )
    stamp = sha256(b"".join(header.read_bytes() for header in headers)).hexdigest()[:16]
    # The stamp makes objects of other headers other objects.
    include = tuple(f"-I{place}" for place in (NATIVE / "device", NATIVE / "shim", NATIVE / "bootstrap", DIRECTORY))
    flags = (*include, "-ffp-contract=off", f"-DHEADERS=0x{stamp}")
    device = compile_library(
        sorted(NATIVE.glob("device/host/*.cpp")),
        place / "libblink_device.so",
        flags=(*flags, '-DBLINK_VERSION="test"', f"-DBLINK_ABI={abi()}u"),
    )
    names = (
        *("bundle", "copy_engine", "copy_plan", "driver", "engine", "log", "peer_write_probe", "sha256"),
        "shared_page",
    )
    harness = compile_library(
        [
            HERE / "copy_engine_harness.cpp",
            NATIVE / "bootstrap/deadline.cpp",
            *(NATIVE / "shim" / f"{name}.cpp" for name in names),
        ],
        place / "libharness.so",
        flags=(*flags, "-ldl"),
    )
    (place / "fold.cpp").write_text('#include "blink/context.h"\nBLINK_FOLD_ENTRY(blink_fold)\n')
    fold = compile_library([place / "fold.cpp"], place / "fold.so", flags=(*flags, str(device), f"-Wl,-rpath,{place}"))
    return {
        **os.environ,
        "BLINK_CUDA_LIB": str(doubles.cuda),
        "BLINK_DEVICE_INCLUDE": str(NATIVE / "device"),
        "BLINK_DEVICE_LIBRARY": str(device),
        "BLINK_DOUBLE_DEVICES": "8",
        "COPY_ENGINE_HARNESS": str(harness),
        "COPY_ENGINE_FOLD": str(fold),
    }


@pytest.fixture
def start(environment: Mapping[str, str]) -> Task:
    """Starts a task of copy_engine_job.py in a process of its own."""

    def go(
        name: str, seed: int = 0, variables: Mapping[str, str] | None = None, **arguments: Any
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(HERE / "copy_engine_job.py"), json.dumps({"task": name, **arguments})],
            env={**environment, "BLINK_DOUBLE_SEED": str(seed), **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return go


def result(process: subprocess.Popen[str]) -> Any:
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.fixture
def run(start: Task) -> Task:
    """Does a task in a process of its own."""
    return lambda *arguments, **named: result(start(*arguments, **named))


@pytest.mark.parametrize("seed", [0, *SEEDS] if ALL_TESTS else [0, 1])
@pytest.mark.parametrize("plan", PLANS)
def test_equals_the_oracle_whatever_runs_late(plan: str, seed: int, run: Task) -> None:
    found = run("oracle", seed, cases=[{**case, "calls": CALLS} for case in PLANS[plan]])
    assert found == [None] * (len(PLANS[plan]) * len(CALLS))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_process_per_rank_gives_the_same(seed: int, start: Task, tmp_path: Path) -> None:
    case = {**LONG, "calls": CALLS}
    ranks = [start("one_rank", seed, case=case, rank=rank, meeting=str(tmp_path)) for rank in range(4)]
    assert [result(rank) for rank in ranks] == [[None] * len(CALLS)] * 4


#: (kind of call, which of a launch's; −1: all): 1 waits for a counter, 2 for an event, 3 writes a counter.
EVERY_WAIT, EVERY_EVENT = (1, -1), (2, -1)
SINGLE = [(1, 5), (1, 20), (2, 4), (2, 9)]


@pytest.mark.slow
def test_a_missing_wait_is_found(run: Task) -> None:
    faults = [EVERY_WAIT, EVERY_EVENT, *SINGLE]
    found = [run("planted", seed, case=LONG, faults=faults) for seed in SEEDS]
    for at, fault in enumerate(faults[:2]):
        assert all(seen[at] for seen in found), f"without all of {fault} a seed finds nothing wrong"
    caught = [fault for at, fault in enumerate(faults) if any(seen[at] for seen in found)]
    assert len(set(caught) & set(SINGLE)) >= 2, f"of single waits that were left out only {caught} were found"


@pytest.mark.parametrize("collective", ["broadcast", "allreduce"])
def test_trees_that_share_a_link_at_one_position_share_a_stream(collective: str, run: Task, tmp_path: Path) -> None:
    case = {"spec": "dgx-1v", "ranks": None, "algorithm": "optimal", "collective": collective, "calls": CALLS[1:2]}
    seen = run("streams", variables={"BLINK_DOUBLE_JOURNAL": str(tmp_path / "journal")}, case=case)
    assert seen["made"] == seen["positions"] < seen["per_tree"]


def test_slices_of_any_size_take_as_many_chunks(run: Task, tmp_path: Path) -> None:
    case = {**DGX, "algorithm": "optimal", "collective": "allgather"}  # some blocks whole, some in halves
    seen = run("messages", variables={"BLINK_DOUBLE_JOURNAL": str(tmp_path / "journal")}, case=case, count=960)
    # A message is counted by its sender and by its receiver, a launch when it begins and when it ends.
    assert seen["counted"] == 2 * seen["even"] + 2 * len(DGX["ranks"])
    assert seen["even"] > seen["plain"]


def test_a_launch_never_waits_on_the_host(run: Task, tmp_path: Path) -> None:
    seen = run("streams", variables={"BLINK_DOUBLE_JOURNAL": str(tmp_path / "journal")}, case=LONG)
    assert {"cuStreamWaitValue64_v2", "cuStreamWriteValue64_v2", "cuMemcpyDtoDAsync_v2", "cuLaunchKernel"} <= set(
        seen["calls"]
    )
    waits = [name for name in seen["calls"] if "Synchronize" in name or "Query" in name]
    assert waits == []
    assert all(name.endswith(("Async", "Async_v2")) for name in seen["calls"] if name.startswith("cuMemcpy"))


def test_who_waits_is_freed_when_somebody_gives_up(run: Task) -> None:
    seen = run("ending", case=LONG, absent=2, abort_after_ms=30)
    assert seen == {"code": 1, "src": 2}


def test_nobody_waits_longer_than_the_deadline(run: Task) -> None:
    assert run("ending", case=LONG, absent=2, deadline_s=0.3)["code"] == 2


def test_a_driver_without_memory_operations_is_a_reason(run: Task) -> None:
    assert "the CUDA driver has no stream memory operations" in run("refusal", case=LONG, trouble=1)
    seen = run("refusal", variables={"BLINK_DOUBLE_MEM_OPS": "0"}, case=LONG, trouble=0)
    assert "this GPU has no stream memory operations" in seen


def test_several_ranks_of_a_process_on_one_gpu_are_a_reason(run: Task) -> None:
    assert "copy engines serve one rank per GPU of a process" in run("refusal", case=LONG, trouble=2)
