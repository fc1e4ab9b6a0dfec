"""Ranks in sibling PID namespaces of one host, as in containers with the host's network: they share memory.

A process's number is another process's there, or none's; both ranks below are process 1 or 2 of their own namespaces.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blinkccl.engines import native_library
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.dump import groups_of
from blinkccl.runtime.process import namespace

try:
    native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)

ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")
OWN_PROC = "mount -t proc proc /proc && exec"
PROGRAM = """
import json, os, subprocess, sys, time
import numpy as np
import blinkccl

def tell(**said):
    print(json.dumps(said), flush=True)

try:
    comm = blinkccl.init()
    array = np.full(300_000, comm.rank + 1.0, np.float32)
    comm.allreduce(array)
    seen = {}
    if comm.rank == 0 and sys.argv[1] == "own":
        line = [sys.executable, "-m", "blinkccl", "dump", str(os.getpid()), "--json"]
        seen = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    tell(pid=os.getpid(), sum=float(array[0]), shared=not comm.stats()["network_bytes"], seen=seen)
    while True:
        comm.allreduce(array)
except blinkccl.BlinkError as error:
    tell(kind=type(error).__name__, rank=getattr(error, "rank", None), message=str(error))
"""


def entered(*kinds: str, command: str = "exec") -> list[str]:
    """Return the beginning of a command line that runs the rest in namespaces of its own."""
    return ["unshare", *ROOT, *kinds, "--fork", "--kill-child", "sh", "-c", f'{command} "$@"', "sh"]


def check_allowed(*kinds: str, command: str = "exec") -> None:
    try:
        tried = subprocess.run([*entered(*kinds, command=command), "true"], capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("needs unshare, of util-linux")
    if tried.returncode:
        pytest.skip(f"another namespace may not be entered here: {tried.stderr.strip()}")


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start two ranks, each in namespaces of these kinds; end both in any case."""
    kinds, command, mode, timeout_s = request.param
    check_allowed(*kinds, command=command)
    started = []
    try:
        for rank in range(2):
            environment = os.environ | {
                "BLINK_RANK": str(rank),
                "BLINK_WORLD_SIZE": "2",
                "BLINK_STORE": f"file://{tmp_path}",
                "BLINK_TIMEOUT": timeout_s,
                "OPENBLAS_NUM_THREADS": "1",
            }
            line = [*entered(*kinds, command=command), sys.executable, "-c", PROGRAM, mode]
            started.append(subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True))
        stop = threading.Timer(100, lambda: [each.kill() for each in started])
        stop.start()
        yield started
        stop.cancel()
    finally:
        for each in started:
            each.kill()  # also kills the rank in it, by --kill-child
            each.communicate(timeout=20)


def heard(rank: subprocess.Popen[str]) -> Any:
    assert rank.stdout is not None
    return json.loads(rank.stdout.readline() or '{"nothing": "it has ended"}')


def number_of(rank: subprocess.Popen[str]) -> int:
    """Return the number of the rank's process in this namespace."""
    return int(Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()[0])


CONTAINERS = (("--mount", "--pid"), OWN_PROC, "own", "60")
WITHOUT_PROC = (("--pid",), "exec", "none", "60")
APART = (("--mount", "--pid", "--net"), OWN_PROC, "own", "5")


@pytest.mark.parametrize("ranks", [CONTAINERS, WITHOUT_PROC], indirect=True, ids=["containers", "proc of the host"])
def test_ranks_share_memory_and_a_killed_one_is_named(ranks: list[subprocess.Popen[str]]) -> None:
    first, second = heard(ranks[0]), heard(ranks[1])
    assert (first.get("sum"), second.get("sum")) == (3.0, 3.0), (first, second)
    assert first["pid"] == second["pid"]
    assert first["shared"]
    pids = [number_of(rank) for rank in ranks]
    [group] = groups_of(pids[0])
    assert [rank.pid for rank in group.ranks] == pids
    assert {rank.state for rank in group.ranks} <= {"waiting", "running", "between calls"}
    assert not any(rank.elsewhere for rank in group.ranks)
    if first["seen"]:
        [inside] = first["seen"]["groups"] if "groups" in first["seen"] else first["seen"]
        assert [rank["elsewhere"] for rank in inside["ranks"]] == [False, True]
        assert inside["ranks"][1]["state"] in ("waiting", "running", "between calls")
    ranks[1].kill()
    lost = heard(ranks[0])
    assert (lost["kind"], lost["rank"]) == ("PeerLostError", 1)
    assert "its process ended during call" in lost["message"]


@pytest.mark.parametrize("ranks", [APART], indirect=True, ids=["own networks"])
def test_without_a_common_network_they_are_on_several_hosts(ranks: list[subprocess.Popen[str]]) -> None:
    """They count as hosts without a path between them: an error by the deadline, which names the cause."""
    ends = [heard(rank) for rank in ranks]
    assert all(end["kind"] in ("UnsupportedError", "RendezvousTimeout", "CommunicationError") for end in ends), ends
    assert any("serves one host" in end["message"] for end in ends), ends


def test_numbers_of_another_namespace_mean_nothing_here() -> None:
    from blinkccl.runtime.process import number_here

    assert number_here(os.getpid(), namespace("pid")) == os.getpid()
    assert number_here(os.getpid(), 0) == os.getpid()
    assert number_here(os.getpid(), 1) is None


def test_where_proc_is_of_another_namespace_no_number_is_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from blinkccl.runtime import process

    monkeypatch.setattr(process, "PROC", Path("/proc/sys"))  # a folder without "self"
    assert process.number_here(os.getpid(), namespace("pid")) is None
    assert process.number_here(os.getpid(), 0) is None
