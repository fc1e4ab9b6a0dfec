"""A missing or broken part, on any rank: NCCL runs all calls on all ranks, and one line has the reason."""

import os
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from preloaded import Built, Outcome, Preloaded

from blinkccl.native.headers import header
from blinkccl.nccl import bundle as bundles
from blinkccl.runtime.peer_info import package_version

RANKS = 3
#: A short job of a communicator's creation, calls and end.
SHORT = {"cases": "sizes,streams", "sizes": "1,1000"}


def on(rank: int, **variables: object) -> list[dict[str, object]]:
    """These variables on one rank, and none on the others."""
    return [dict(variables) if one == rank else {} for one in range(RANKS)]


@pytest.fixture
def fallen(preloaded: Preloaded) -> Callable[..., Outcome]:
    """A run of the client with right results, all of them from NCCL, and one line with the reason ``words``."""

    def run(words: str, **variables: object) -> Outcome:
        outcome = preloaded.client("process", RANKS, timeout_s=40, **SHORT, **variables).right()
        assert outcome.calls("blink").total() == 0
        assert outcome.agreed()
        assert outcome.reached_nccl()["AllReduce"] == outcome.calls("nccl")["allreduce"] > 0
        reasons = [line for line in outcome.blink if "NCCL runs everything" in line]
        assert len(reasons) == 1, outcome.blink
        assert words in reasons[0]
        assert len(reasons[0]) < 900
        return outcome

    return run


def test_driver_too_old(fallen, files: Built) -> None:
    fallen("is too old for Blink: it has no cuDeviceGetUuid_v2", BLINK_CUDA_LIB=files.doubles.cuda_old)


def test_no_driver(preloaded: Preloaded, files: Built, tmp_path: Path) -> None:
    """NCCL itself returns ncclUnhandledCudaError, and still its version; Blink adds nothing."""
    code = "import ctypes, sys; nccl = ctypes.CDLL(sys.argv[1]); out = (ctypes.c_void_p * 2)(); "
    code += "sys.exit(nccl.ncclGetVersion(out) or nccl.ncclCommInitAll(out, 2, None))"
    command = ["python3", "-c", code, files.doubles.nccl]
    (ended,) = preloaded.run([command], BLINK_CUDA_LIB=tmp_path / "none.so").ended
    assert (ended.code, ended.blink) == (1, [])


def test_no_python(fallen) -> None:
    fallen("the planner (/nonexistent -m blinkccl.nccl.planner) cannot be started", BLINK_PYTHON="/nonexistent")


def test_planner_hangs(fallen, planner) -> None:
    """The planner is killed with its children."""
    path = planner("sleep 1000 & sleep 1000")
    fallen("did not end within its timeout (BLINK_PLAN_TIMEOUT)", BLINK_PYTHON=path, BLINK_PLAN_TIMEOUT=1)


def test_no_compiler(fallen) -> None:
    missing = {"BLINK_NVCC": "/nonexistent/nvcc", "BLINK_NVRTC_LIB": "/nonexistent/nvrtc"}
    fallen("/nonexistent/nvcc cannot be started", BLINK_TOPO="clique:5", **missing)


def test_no_compiler_that_knows_the_gpu(preloaded: Preloaded) -> None:
    """A warning with the command that installs a compiler, once for all communicators of a process."""
    unknown = {"BLINK_NVCC": None, "BLINK_DOUBLE_ARCH": 99, "BLINK_DEBUG": "WARN"}
    outcome = preloaded.client("threads", RANKS, cases="split", sizes="1000", **unknown).right()
    assert outcome.calls("blink").total() == 0
    assert len({line.comm for line in outcome.usage}) > 1
    (line,) = outcome.blink
    start = "WARN Blink runs no call: the plan's code was not compiled: no compiler for sm_99; install one: "
    assert line.startswith(f'{start}{sys.executable} -m pip install --upgrade "nvidia-cuda-nvrtc<14" (')


def test_compiler_fails(preloaded: Preloaded, tmp_path: Path) -> None:
    """The compiler's input is kept, and the line names its place."""
    broken = {"BLINK_DOUBLE_NVCC_FAIL": "no licence", "BLINK_CACHE": tmp_path / "own"}
    outcome = preloaded.client("process", RANKS, **SHORT, **broken)
    assert [one.code for one in outcome.ended] == [0] * RANKS
    assert outcome.calls("blink").total() == 0
    warning, line = outcome.blink
    assert warning.startswith("WARN Blink runs no call: the plan's code was not compiled: nvcc refuses the generated ")
    assert "NCCL runs everything" in line
    assert "nvcc refuses the generated code" in line
    (left,) = outcome.left
    assert "blink-failed-" in left
    assert left in line


def test_cache_that_cannot_be_written(preloaded: Preloaded, tmp_path: Path) -> None:
    """Plans are made without the cache."""
    place = tmp_path / "file"
    place.write_text("")
    outcome = preloaded.client("process", 2, **SHORT, BLINK_CACHE=place / "cache", BLINK_TOPO="clique:2")
    assert [one.code for one in outcome.ended] == [0, 0]
    assert set(outcome.calls("nccl")) <= {"send"}  # messages without a path table
    assert outcome.calls("blink")["allreduce"] > 0
    assert all("blink-bundle-" in path for path in outcome.left)  # later planners remove it


def hostile(content: bytes) -> bytes:
    """A bundle whose first choice names a missing program, with a matching digest."""
    row = header("gpu_bundle.h").structs["blink_gpu_choice"]
    choice, file = row.wire(), bundles.read(content)
    at = len(content) - file["header"][0]["text_bytes"] - len(file["choice"]) * choice.size
    members = dict(zip(row.names, choice.unpack_from(content, at), strict=True)) | {"program": 1 << 30}
    spoilt = content[:at] + choice.pack(*members.values()) + content[at + choice.size :]
    return spoilt[:24] + sha256(spoilt[56:]).digest() + spoilt[56:]


def test_hostile_plan_in_the_cache(preloaded: Preloaded, tmp_path: Path) -> None:
    """Its digest is right, but a row names a missing program: NCCL runs all calls, and a line has the reason."""
    own = tmp_path / "own"
    two = {"BLINK_CACHE": own, "BLINK_TOPO": "clique:2", "BLINK_ALGO": "ring"}
    assert preloaded.client("process", 2, **SHORT, **two).right().calls("blink").total() > 0
    (bundle,) = (own / "bundles").iterdir()
    file = bundle / bundles.FILE
    file.write_bytes(hostile(file.read_bytes()))
    outcome = preloaded.client("process", 2, **SHORT, **two).right()
    assert outcome.agreed()
    assert outcome.calls("blink").total() == 0
    (line,) = [line for line in outcome.blink if "NCCL runs everything" in line]
    assert f"{file}: choice 0: expected program of -1 to " in line


@pytest.mark.parametrize("what", ["bit", "cut", "version", "code", "empty"])
def test_damaged_plan_in_the_cache(preloaded: Preloaded, tmp_path: Path, what: str) -> None:
    """The plan is made anew."""
    own = tmp_path / "own"
    two = {"BLINK_CACHE": own, "BLINK_TOPO": "clique:2", "BLINK_ALGO": "ring"}
    assert preloaded.client("process", 2, **SHORT, **two).right().calls("blink").total() > 0
    (bundle,) = (own / "bundles").iterdir()
    file = bundle / bundles.FILE
    content = file.read_bytes()
    if what == "code":
        for image in bundle.glob("*.cubin"):
            image.write_bytes(image.read_bytes()[:100] + b"\0" * 400 + image.read_bytes()[500:])
    else:
        spoilt = {"bit": content[:-9] + b"\1" + content[-8:], "cut": content[:-1], "empty": b""}
        file.write_bytes(spoilt.get(what, content[:8] + b"\0" * 8 + content[16:]))
    outcome = preloaded.client("process", 2, **SHORT, **two).right()
    assert outcome.agreed()
    assert outcome.calls("blink").total() > 0
    assert file.read_bytes() == content


def test_unknown_algorithm(fallen) -> None:
    fallen("unknown algorithm 'fastest'", BLINK_ALGO="fastest")


@pytest.mark.parametrize(
    ("rank", "fault", "words"),
    [
        (1, "cuMemAlloc_v2:4:2", "out of memory) from cuMemAlloc_v2 of the staging segment"),
        (0, "cuMemsetD8Async:1:2", "rank 0: CUDA_ERROR_OUT_OF_MEMORY"),
        (2, "cuIpcOpenMemHandle_v2:1:1", "rank 2: CUDA_ERROR_INVALID_VALUE (invalid argument) from cuIpcOpenMemHandle"),
        (0, "cuModuleLoadData:1:200", "rank 0: CUDA_ERROR_INVALID_IMAGE"),
        (1, "cuModuleGetFunction:1:500", "rank 1: CUDA_ERROR_NOT_FOUND"),
        (1, "cuMemHostRegister_v2:1:1", "cuMemHostRegister of the status page"),
        (2, "cuMemHostRegister_v2:2:1", "cuMemHostRegister of the shared page"),
        (0, "cuDeviceGetUuid_v2:*:1", "rank 0: CUDA does not describe GPU 0"),
        (1, "cuModuleGetFunction:1:4711", "rank 1: CUDA error 4711 from cuModuleGetFunction"),
    ],
)
def test_driver_call_that_fails_on_one_rank(fallen, rank: int, fault: str, words: str) -> None:
    fallen(words, each=on(rank, BLINK_DOUBLE_FAIL=fault))


def test_ranks_of_one_process_without_handles(preloaded: Preloaded) -> None:
    """Some containers provide no IPC handles, and threads do not need them."""
    outcome = preloaded.client("threads", RANKS, **SHORT, BLINK_DOUBLE_FAIL="cuIpcGetMemHandle:*:801").right()
    assert outcome.calls("blink")["allreduce"] > 0


def test_gpu_without_stream_memory_operations(fallen) -> None:
    reason = "this GPU has no stream memory operations of 64 bits, which copy engines need"
    fallen(reason, BLINK_DOUBLE_MEM_OPS=0, BLINK_PROTOCOL="copies")


def test_too_few_blocks(fallen) -> None:
    fallen("blocks at once", BLINK_DOUBLE_SMS=1, BLINK_DOUBLE_OCCUPANCY=1)


@pytest.mark.parametrize("part", ["GREEN", "MPS"])
def test_too_few_blocks_in_a_part_of_the_gpu(fallen, preloaded: Preloaded, part: str) -> None:
    """A green context made current by the program, or an MPS share: only its multiprocessors count."""
    fallen("blocks at once", BLINK_DOUBLE_OCCUPANCY=1, **{f"BLINK_DOUBLE_{part}_SMS": 1})
    some = {"BLINK_DOUBLE_OCCUPANCY": 1, "BLINK_DOUBLE_SMS": 132, "BLINK_MAX_BLOCKS": 16}
    # All ranks use the number of blocks that fit on one of them: an eighth of 40.
    small = on(1, **{f"BLINK_DOUBLE_{part}_SMS": 40})
    outcome = preloaded.client("process", RANKS, **SHORT, each=small, **some).right()
    assert outcome.calls("blink")["allreduce"] > 0
    assert [line for line in outcome.blink if ", with 5 of 16 thread blocks, the most that fit the GPU" in line]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("variables", [{"LD_PRELOAD": None}, {"BLINK_DISABLE": 1}], ids=["without", "disabled"])
def test_one_rank_without_blink(preloaded: Preloaded, rank: int, variables: dict[str, object]) -> None:
    outcome = preloaded.client("process", RANKS, **SHORT, each=on(rank, **variables), timeout_s=40).right()
    assert outcome.calls("blink").total() == 0
    assert outcome.reached_nccl() == preloaded.client("process", RANKS, **SHORT, LD_PRELOAD=None).reached_nccl()
    reasons = [line for line in outcome.blink if "NCCL runs everything" in line]
    # Rank 0 logs for all; if rank 0 runs without Blink, the others do.
    assert len(reasons) == (1 if rank else RANKS - 1)
    assert all(f"rank {rank} does not answer on this host: it runs without Blink" in line for line in reasons)


def test_ranks_with_different_settings(fallen) -> None:
    fallen("the ranks have different settings", each=on(1, BLINK_TOPO="ring:4"))


def test_pair_without_peer_access(preloaded: Preloaded) -> None:
    """The plan avoids it, in both directions."""
    own = preloaded.directory / "own"
    outcome = preloaded.client("process", RANKS, **SHORT, BLINK_DOUBLE_NO_PEER="0-1", BLINK_CACHE=own).right()
    assert outcome.calls("blink")["allreduce"] > 0
    assert outcome.agreed()
    (file,) = (own / "bundles").glob(f"*/{bundles.FILE}")
    rows = bundles.read(file.read_bytes())["connection"]
    assert {(row["src"], row["dst"]) for row in rows} == {(0, 2), (2, 0), (1, 2), (2, 1)}


def test_no_pair_has_peer_access(preloaded: Preloaded) -> None:
    """All messages are staged in the processors' memories, and no rank maps another's memory."""
    own = preloaded.directory / "own"
    job = {
        "BLINK_TOPO": "pcie-8gpu",
        "BLINK_ALGO": "optimal",
        "BLINK_DOUBLE_NO_PEER": "0-1,0-2,1-2,1-0,2-0,2-1",
        "BLINK_CACHE": own,
    }
    outcome = preloaded.client("process", RANKS, **SHORT, **job).right()
    assert outcome.calls("blink")["allreduce"] > 0
    assert outcome.agreed()
    (file,) = (own / "bundles").glob(f"*/{bundles.FILE}")
    assert all(row["on_host"] for row in bundles.read(file.read_bytes())["connection"])


def test_pair_that_spoils_bytes(fallen, preloaded: Preloaded) -> None:
    """The peer check detects the pair, and a ring of three needs all pairs."""
    cache = preloaded.directory / "own"
    line = {"BLINK_TOPO": "ring:3", "BLINK_ALGO": "ring", "BLINK_CACHE": cache}
    fallen("rank 0", BLINK_DOUBLE_BAD_PEER="1-2", **line)


@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 1)])
def test_mapping_that_spoils_bytes(fallen, one: int, other: int) -> None:
    """The planner's own copies arrive; a rank's copies, through its mapping, do not."""
    reason = f"rank {other}: bytes written by rank {one} (GPU 0000:0{one}:00.0) did not arrive at rank {other}"
    fallen(reason, each=on(one, BLINK_DOUBLE_BAD_PEER=f"{one}-{other}"))


def test_mapping_that_hangs(fallen) -> None:
    slow = on(1, BLINK_DOUBLE_SLOW_PEER="1-2", BLINK_PEER_TIMEOUT=0.1)
    fallen("rank 1: writing into the peers' memory did not end within the timeout", each=slow)


def test_gpus_in_exclusive_mode(preloaded: Preloaded, files: Built, tmp_path: Path) -> None:
    """The peer check gets no context, so CUDA's own statement is used, and the job runs on trees."""
    if preloaded.more:
        pytest.skip("under sanitizers the planner has a driver of its own, whose peers other tests found out")
    library = tmp_path / "libcuda.so.1"  # results of the peer check are cached per driver file
    library.symlink_to(files.doubles.cuda)
    own = {"BLINK_DOUBLE_EXCLUSIVE": f"{os.getpid()} {tmp_path.name}", "BLINK_CUDA_LIB": library}
    outcome = preloaded.client("process", RANKS, **SHORT, **own).right()
    assert outcome.calls("blink")["allreduce"] > 0
    assert set(outcome.calls("nccl")) <= {"send"}  # messages without a path table
    lost = "Blink assumes that they work: the test gets no context or memory there"
    words = f"stores between 6 of 6 ordered pairs of GPUs were not tested, and {lost}"
    reason = "(rank 0 to rank 1: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE)"
    assert f"{words} {reason}" in outcome.ended[0].err


@pytest.mark.parametrize("seed", [0, 6])
def test_launch_that_fails_on_one_rank(preloaded: Preloaded, seed: int) -> None:
    """Too late for NCCL, since peers are inside the call. All ranks end with an error, and soon."""
    failing = on(1, BLINK_DOUBLE_FAIL="cuLaunchKernelEx:3:719")
    outcome = preloaded.client("process", RANKS, **SHORT, each=failing, BLINK_DOUBLE_SEED=seed, timeout_s=30)
    assert [one.code for one in outcome.ended] == [1] * RANKS
    assert "CUDA_ERROR_LAUNCH_FAILED" in "".join(outcome.ended[1].blink)
    assert outcome.left == []


def test_versions_that_differ(preloaded: Preloaded, files: Built, tmp_path: Path) -> None:
    """One rank has the library of another installation."""
    assert files.library is not None
    content = files.library.read_bytes()
    version = package_version().encode() + b"\0"
    assert content.count(version) >= 1
    other = tmp_path / "libblink.so"
    other.write_bytes(content.replace(version, version.replace(b"0", b"9", 1)))
    outcome = preloaded.client("process", RANKS, **SHORT, each=on(2, LD_PRELOAD=other)).right()
    assert outcome.calls("blink").total() == 0
    (line,) = [line for line in outcome.blink if "NCCL runs everything" in line]
    assert "Blink versions" in line
