"""A cache of plans returns the stored program, or none."""

import logging
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from blinkccl.collectives.spec import Collective
from blinkccl.private_files import cache_directory
from blinkccl.runtime import plans
from blinkccl.runtime.plans import PlanCache, PlanKey
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import to_json
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request

TOPOLOGY = parse_spec("clique:3")


def key(name: str = "allreduce", algorithm: str = "ring", **options: str) -> PlanKey:
    return PlanKey(TOPOLOGY, Collective(name, 3), TOPOLOGY.ranks, algorithm, options)


def plan(asked: PlanKey) -> Program:
    return lower(ALGORITHMS[asked.algorithm].plan(Request(asked.topology, asked.collective, asked.ranks)))


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "plans"


def test_a_stored_plan_is_returned(directory: Path) -> None:
    cache = PlanCache(directory)
    assert cache.get(key()) is None
    cache.put(key(), plan(key()))
    assert PlanCache(directory).get(key()) == plan(key())
    (file,) = files(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_is_all_that_the_answer_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        key(),
        key("allgather"),
        key(algorithm="optimal"),
        key(slots="4"),
        key(slots="2"),
        replace(key(), topology=parse_spec("chain:3")),
        replace(key(), ranks=(2, 1, 0)),
        PlanKey(TOPOLOGY, Collective("broadcast", 3, 0), TOPOLOGY.ranks, "ring"),
        PlanKey(TOPOLOGY, Collective("broadcast", 3, 1), TOPOLOGY.ranks, "ring"),
    ]
    digests = [one.digest for one in keys]
    assert len(set(digests)) == len(keys)
    assert [replace(one).digest for one in keys] == digests
    assert key(a="1", b="2").digest == key(b="2", a="1").digest
    monkeypatch.setattr("blinkccl.runtime.plans.package_version", lambda: "another")
    assert key().digest not in digests
    monkeypatch.undo()
    planner = plans._planner()
    assert {"trees/algorithms/optimal.py", "schedule/lower.py"} <= {name for name, _, _ in planner}
    monkeypatch.setattr(plans, "_planner", lambda: planner[1:])
    assert key().digest not in digests


def test_a_key_is_the_same_in_every_process() -> None:
    script = (
        "from blinkccl.runtime.plans import *; from blinkccl.topology.spec import parse_spec;"
        "t = parse_spec('clique:3'); print(PlanKey(t, Collective('allreduce', 3), t.ranks, 'ring', {}).digest)"
    )
    environ = {**os.environ, "PYTHONHASHSEED": "77"}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ, timeout=60)
    assert ended.stdout.strip() == key().digest


def invalid(program: Program) -> Program:
    return replace(program, roles=program.roles[:-1])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b'{"schema_version": 1',
        to_json(invalid(plan(key()))).encode(),
        to_json(plan(key("allgather"))).encode(),
        to_json(replace(plan(key()), rate=plan(key()).rate * 2)).encode(),
        to_json(plan(key())).encode()[:-1],
    ],
)
def test_corrupt_foreign_and_invalid_files_are_replaced(
    directory: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    cache = PlanCache(directory)
    cache.put(key(), plan(key()))
    (file,) = files(directory)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cache.get(key()) is None
        assert cache.get(key()) is None
    assert len(caplog.records) == 1
    assert str(file) in caplog.text
    cache.put(key(), plan(key()))
    assert cache.get(key()) == plan(key())


def test_links_and_pipes_are_not_followed(directory: Path, tmp_path: Path) -> None:
    cache = PlanCache(directory)
    cache.put(key(), plan(key()))
    (file,) = files(directory)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert cache.get(key()) is None
    file.unlink()
    os.mkfifo(file)
    assert cache.get(key()) is None


def test_the_files_not_used_for_longest_go_first(directory: Path) -> None:
    keys = [key(number=str(number)) for number in range(4)]
    size = len(to_json(plan(key())))
    cache = PlanCache(directory, max_bytes=3 * size)
    for age, one in enumerate(keys[:3]):
        cache.put(one, plan(one))
        os.utime(directory / f"{one.digest}.json", (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is not None  # marks it as used
    cache.put(keys[3], plan(keys[3]))
    assert [cache.get(one) is not None for one in keys] == [True, False, True, True]
    PlanCache(directory, max_bytes=size - 1).put(keys[1], plan(keys[1]))
    assert cache.get(keys[1]) is None


@pytest.mark.parametrize("where", ["file", "proc"])
def test_a_directory_that_cannot_be_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str) -> None:
    (tmp_path / "file").write_text("")
    cache = PlanCache({"file": tmp_path / "file" / "below", "proc": Path("/proc/blink")}[where])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert cache.get(key()) is None
            cache.put(key(), plan(key()))
    assert 1 <= len(caplog.records) <= 2  # one for reading, one for writing


def test_a_directory_that_others_may_write_is_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    cache = PlanCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        cache.put(key(), plan(key()))
    assert files(tmp_path) == []
    assert "expected mode 0700" in caplog.text


def test_where_the_cache_is(tmp_path: Path) -> None:
    assert cache_directory({"BLINK_CACHE": "/b", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "plans") == Path("/b/plans")
    assert cache_directory({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "plans") == Path("/x/blink/plans")
    assert cache_directory({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "plans") == Path("/h/.cache/blink/plans")
    assert cache_directory({"BLINK_CACHE": "", "HOME": "/h"}, "plans") is None
    assert cache_directory({}, "plans") is None


def test_no_cache_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLINK_CACHE", "")
    cache = PlanCache()
    cache.put(key(), plan(key()))
    assert cache.get(key()) is None


def test_ranks_that_write_at_once_leave_a_whole_file(directory: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    program = plan(key())
    caches = [PlanCache(directory) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda cache: cache.put(key(), program), caches * 4))
    assert PlanCache(directory).get(key()) == program
    assert len(files(directory)) == 1
