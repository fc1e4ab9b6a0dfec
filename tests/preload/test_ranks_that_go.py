"""A rank that dies, does not call, or aborts: the others get an error and end, and nothing is left."""

import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from preloaded import Preloaded

WAITED = re.compile(r": waited 1 s for (room for )?message \d+ on connection from rank \d to rank \d, channel \d+$")


@pytest.mark.parametrize(
    ("scene", "odd", "count", "protocol"),
    [
        ("killed", 0, 1000, None),
        ("killed", 2, 1000, None),
        ("killed", 0, 300_000, None),
        ("killed", 2, 300_000, None),
        ("killed", 2, 1000, "copies"),
        ("killed_before_replay", 2, 1000, None),
    ],
)
def test_killed_while_peers_wait(preloaded: Preloaded, scene: str, odd: int, count: int, protocol: str | None) -> None:
    """The peers' watchdogs abort, the kernels give up, and the streams are free again."""
    outcome = preloaded.scene(scene, odd=odd, count=count, BLINK_PROTOCOL=protocol, timeout_s=60)
    codes = [one.code for one in outcome.ended]
    assert codes.pop(odd) == -signal.SIGKILL
    assert codes == [0, 0]
    alive = [one for rank, one in enumerate(outcome.ended) if rank != odd]
    assert [one.said[-1]["what"] for one in alive] == ["aborted"] * 2
    assert any(line.endswith(": aborted") for one in alive for line in one.blink)
    assert outcome.left == []


@pytest.mark.parametrize(("protocol", "count"), [("ll", 1000), ("simple", 300_000), ("copies", 1000)])
def test_rank_that_does_not_call(preloaded: Preloaded, protocol: str, count: int) -> None:
    """After BLINK_TIMEOUT: ncclRemoteError on all ranks and a line on each; a rank that waited names its peer."""
    job = {"BLINK_PROTOCOL": protocol, "BLINK_TIMEOUT": 1, "BLINK_DEBUG": "WARN"}
    outcome = preloaded.scene("lonely", odd=1, count=count, timeout_s=20, **job)
    assert [one.code for one in outcome.ended] == [0, 0, 0]
    waited = 0
    for rank, one in enumerate(outcome.ended):
        (result,) = one.said
        assert result["code"] == 6
        assert 0.8 < result["seconds"] < 5
        (line,) = one.blink
        assert line.startswith(f"WARN rank {rank} of ")
        waited += bool(WAITED.search(line))
        # A rank that sees the abort before its own timeout reports that.
        assert WAITED.search(line) or "gave up waiting for" in line or line.endswith("another rank has given up")
    assert waited >= 1
    assert "another rank has given up" in outcome.ended[1].blink[0]
    assert outcome.left == []


def test_abort_while_the_planner_hangs(preloaded: Preloaded, planner) -> None:
    outcome = preloaded.scene("impatient", BLINK_PYTHON=planner("sleep 1000 & sleep 1000"), timeout_s=20)
    assert [one.code for one in outcome.ended] == [0, 0, 0]
    results = [line for one in outcome.ended for line in one.said]
    # The first rank to abort has seen only ncclInProgress; by then the others may have seen the abort.
    assert {line["code"] for line in results} in ({7}, {0, 7})
    assert max(line["seconds"] for line in results) < 5
    assert outcome.seconds < 30
    assert outcome.left == []  # including the planner and its children
    assert any("aborted before its plan was loaded" in line for line in outcome.blink)


def test_killed_while_the_planner_hangs(preloaded: Preloaded, planner) -> None:
    """The others need not wait for BLINK_PLAN_TIMEOUT to learn that the setup has failed."""
    outcome = preloaded.scene("impatient", odd=2, BLINK_PYTHON=planner("sleep 1000 & sleep 1000"), timeout_s=20)
    assert [one.code for one in outcome.ended] == [0, 0, -signal.SIGKILL]
    assert outcome.seconds < 10
    assert outcome.left == []


@pytest.mark.parametrize("scene", ["leaves", "leaves_after_graph"])
def test_rank_that_leaves_with_nothing_under_way(preloaded: Preloaded, scene: str) -> None:
    """Programs that abort their communicators at the end, one rank after another, cause no errors."""
    outcome = preloaded.scene(scene, odd=1).right()
    assert [(line["what"], line["code"]) for one in outcome.ended for line in one.said] == [("left", 0)] * 3


def test_aborts_wait_for_no_other_communicator(preloaded: Preloaded, tmp_path: Path) -> None:
    """An abort frees only NCCL's own memory: freeing waits for all work on the GPU, and so do these functions."""
    waits = {"cuMemFree_v2", "cuMemHostUnregister", "cuModuleUnload", "cuIpcCloseMemHandle", "cuCtxSynchronize"}

    def called(name: str, **variables: object) -> list[Counter[str]]:
        journals = [tmp_path / f"{name}{rank}" for rank in range(3)]
        each = [{"BLINK_DOUBLE_JOURNAL": journal} for journal in journals]
        preloaded.scene("leaves", odd=1, each=each, **variables).right()
        words = [[line.split()[0] for line in journal.read_text().splitlines()] for journal in journals[1:]]
        return [Counter(word for word in of_rank if word in waits) for of_rank in words]  # rank 0 has a planner

    assert called("with") == called("without", LD_PRELOAD=None)


@pytest.mark.parametrize("fault", ["", "cuIpcOpenMemHandle_v2:2:1"])
def test_memory_is_used_again(preloaded: Preloaded, fault: str) -> None:
    """The next communicator reuses it, even after a rank failed to map its peers, which had mapped each other."""
    each = [{}, {}, {"BLINK_DOUBLE_FAIL": fault or None}]
    outcome = preloaded.scene("followed", odd=1, each=each, timeout_s=60).right()
    for one in outcome.ended:
        taken = [line["seconds"] for line in one.said]
        assert len(taken) == 3
        assert taken[0] == taken[1] == taken[2] > 1 << 20
    assert outcome.reached_nccl()["AllReduce"] == (3 if fault else 0)
