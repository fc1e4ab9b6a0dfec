"""The binding to libblink.so's plain C interface: what is passed, what results become. The library is a script."""

from __future__ import annotations

import ctypes.util
import os
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.errors import CommunicationError, DeadlineError, InternalError, UnsupportedError
from blinkccl.runtime import gpu_group
from blinkccl.runtime.gpu_group import GpuGroup, open_gpu_group
from blinkccl.runtime.store import FileStore

ROOT = Path(__file__).parents[3]


class Library:
    """The C functions; ``results`` says what each returns, 0 where it says nothing."""

    def __init__(self) -> None:
        self.results: dict[str, int] = {}
        self.why = b""
        self.calls: list[tuple[Any, ...]] = []

    def blink_shim_comm_create(self, comm, key, size, rank, device, algorithm, why, why_bytes) -> int:
        self.calls.append(("create", key, size, rank, device, algorithm))
        comm._obj.value = 4711
        why.value = self.why[: why_bytes - 1]
        return self.results.get("create", 0)

    def blink_shim_comm_run(self, comm, collective, send, recv, count, dtype, op, scale, root, stream) -> int:
        assert comm.value == 4711
        self.calls.append(("run", collective, send, recv, count, dtype, op, scale and scale.raw, root, stream))
        return self.results.get("run", 0)

    def blink_shim_comm_message(self, comm, sends, at, size, peer, stream) -> int:
        self.calls.append(("message", sends, at, size, peer, stream))
        return self.results.get("message", 0)

    def blink_shim_comm_error(self, comm) -> int:
        return self.results.get("error", 0)

    def blink_shim_comm_abort(self, comm) -> int:
        self.calls.append(("abort",))
        return 0

    def blink_shim_comm_destroy(self, comm) -> int:
        self.calls.append(("destroy",))
        return 0


@pytest.fixture
def library():
    return Library()


@pytest.fixture
def group(library, monkeypatch):
    monkeypatch.delenv("BLINK_PYTHON", raising=False)
    made = GpuGroup("key", 1, 4, 2, "ring", library)
    monkeypatch.setenv("BLINK_PYTHON", os.environ["BLINK_PYTHON"])  # taken away again after the test
    return made


def test_it_is_created_with_its_place_and_plans_with_this_python(group, library):
    assert library.calls == [("create", b"key", 4, 1, 2, b"ring")]
    assert os.environ["BLINK_PYTHON"] == sys.executable


def test_calls_have_nccls_numbers(group, library):
    group.run(CollectiveCall("allreduce", "float32", 5, "max"), 16, 32, stream=9)
    group.run(CollectiveCall("broadcast", "uint8", 5, root=3), None, 32, stream=9)
    group.run(CollectiveCall("allgather", "bfloat16", 5), 16, 32)
    assert library.calls[1:] == [
        ("run", 2, 16, 32, 5, 7, 2, None, -1, 9),
        ("run", 0, None, 32, 5, 1, 0, None, 3, 9),
        ("run", 3, 16, 32, 5, 9, 0, None, -1, None),
    ]
    assert group.stats() == {"gpu_allreduce": 1, "gpu_broadcast": 1, "gpu_allgather": 1, "gpu_bytes": 20 + 5 + 10}


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("float32", struct.pack("f", 0.1)),
        ("float16", struct.pack("e", 0.1)),
        ("float64", struct.pack("d", 0.1)),
        ("bfloat16", b"\xcd\x3d"),
        ("int32", struct.pack("i", 0)),
    ],
)
def test_a_premul_sum_is_told_its_factor_as_an_element(group, library, dtype, element):
    group.run(CollectiveCall("allreduce", dtype, 5, "premul_sum"), 16, 16, scale=0.1)
    assert library.calls[1:] == [("run", 2, 16, 16, 5, gpu_group.DTYPE_NUMBERS[dtype], 5, element, -1, None)]


def test_messages_are_bytes_to_or_from_a_rank(group, library):
    group.message(True, 16, 12, 3, 9)
    group.message(False, 32, 7, 0)
    assert library.calls[1:] == [("message", 1, 16, 12, 3, 9), ("message", 0, 32, 7, 0, None)]
    assert group.stats() == {"gpu_send": 1, "gpu_recv": 1, "gpu_bytes": 19}
    library.results["message"] = 5
    with pytest.raises(UnsupportedError, match="serves send of 12 bytes to rank 3"):
        group.message(True, 16, 12, 3)
    library.results["message"] = 6
    with pytest.raises(CommunicationError, match="recv: another rank"):
        group.message(False, 16, 12, 3)


def test_bools_are_bytes_that_or_and_and(group, library):
    for op in ("sum", "max", "prod", "min"):
        group.run(CollectiveCall("allreduce", "bool", 5, op), 16, 16)
    assert [call[5:7] for call in library.calls[1:]] == [(1, 2), (1, 2), (1, 3), (1, 3)]
    with pytest.raises(UnsupportedError, match="GPUs have no avg of bool"):
        group.run(CollectiveCall("allreduce", "bool", 5, "avg"), 16, 16)


def test_what_gpus_do_not_have_is_refused_before_the_library(group, library):
    for dtype, op in (("int16", "sum"), ("float32", "bxor"), ("int32", "band")):
        with pytest.raises(UnsupportedError, match="GPUs"):
            group.run(CollectiveCall("reduce", dtype, 5, op), 16, 16)
    assert len(library.calls) == 1


def test_no_program_is_an_unsupported_call(group, library):
    library.results["run"] = 5
    with pytest.raises(UnsupportedError, match=r"serves allreduce of 5 x float32 \(avg\) on 4 ranks"):
        group.run(CollectiveCall("allreduce", "float32", 5, "avg"), 16, 16)
    with pytest.raises(UnsupportedError, match="serves gather of 7 x uint8 from root 2 on 4 ranks"):
        group.run(CollectiveCall("gather", "uint8", 7, root=2), 16, 16)
    assert group.stats() == {}


@pytest.mark.parametrize(
    ("result", "kind"),
    [*((number, CommunicationError) for number in (1, 6, 77)), (3, InternalError), (8, DeadlineError)],
)
def test_results_are_errors(group, library, result, kind):
    library.results["run"] = result
    with pytest.raises(kind, match="rank 1 of 4, GPU 2: allreduce: "):
        group.run(CollectiveCall("allreduce", "uint8", 5), 16, 16)


def test_what_kernels_say(group, library):
    assert group.error() is None
    library.results["error"] = 6
    assert "gave up" in str(group.error())


def test_a_refusal_has_the_librarys_words(library):
    library.results["create"], library.why = 5, b"rank 2: there is no libcuda.so.1"
    with pytest.raises(UnsupportedError, match=r"rank 0 of 4 on GPU 1 .*: rank 2: there is no libcuda"):
        GpuGroup("key", 0, 4, 1, library=library)


def test_the_end_comes_once(group, library):
    group.abort()
    group.close()
    group.close()
    group.abort()
    assert library.calls[1:] == [("abort",), ("destroy",)]
    assert group.error() is None
    with pytest.raises(CommunicationError, match="closed"):
        group.run(CollectiveCall("allreduce", "uint8", 5), 16, 16)


def opened(tmp_path, size):
    stores = [FileStore(tmp_path / "store") for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        futures = [
            pool.submit(open_gpu_group, store, rank, size, rank, prefix="blink/cuda/0", deadline_s=60.0)
            for rank, store in enumerate(stores)
        ]
        return [future.exception() or future.result() for future in futures]


def test_ranks_agree_on_a_key_that_no_other_group_has(tmp_path, library, monkeypatch):
    monkeypatch.setattr(gpu_group, "gpu_library", lambda: library)
    for _ in range(2):
        groups = opened(tmp_path, 3)
        assert [group.device for group in groups] == [0, 1, 2]
    keys = [call[1] for call in library.calls]
    assert [keys.count(key) for key in keys] == [3] * 6
    assert keys[0].startswith(b"blink-gpu-group/")
    assert keys[0] != keys[3]


def test_one_rank_without_the_library_is_everybodys_refusal(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_group, "_refusal", iter(["", "there is no libblink.so"]).__next__)
    first, second = opened(tmp_path, 2)
    assert str(first) == str(second)
    assert isinstance(first, UnsupportedError)
    assert "there is no libblink.so" in str(first)


def test_a_library_that_is_none_is_told(tmp_path, monkeypatch):
    with pytest.raises(UnsupportedError, match="cannot be used"):
        gpu_group.gpu_library(Path(ctypes.util.find_library("m") or "libm.so.6"))
    monkeypatch.setattr(gpu_group, "find_library", lambda *_: None)
    gpu_group.gpu_library.cache_clear()
    with pytest.raises(UnsupportedError, match=r"no libblink\.so"):
        gpu_group.gpu_library()
    gpu_group.gpu_library.cache_clear()
