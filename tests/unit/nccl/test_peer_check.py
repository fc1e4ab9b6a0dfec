"""Bytes are moved between all pairs of GPUs before P2P is trusted, and no driver takes us along."""

from __future__ import annotations

import os

import pytest
from jobs_by_hand import job, peers, uuid

from blinkccl.errors import UnsupportedError
from blinkccl.nccl import peer_check
from blinkccl.nccl.peer_check import bad_pairs
from blinkccl.nccl.peer_copies import PATTERN_BYTES, pattern


@pytest.fixture
def driver(doubles, monkeypatch):
    """Sets variables of the double of CUDA's driver; those that are not named are unset."""
    monkeypatch.setenv("BLINK_CUDA_LIB", str(doubles.cuda))
    monkeypatch.setattr(peer_check, "PAIR_DEADLINE_S", 2.0)

    def behave(**variables):
        for name in [name for name in os.environ if name.startswith("BLINK_DOUBLE_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(f"BLINK_DOUBLE_{name}", value)

    behave()
    return behave


def test_good_gpus_have_no_bad_pairs(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # what a launcher tells rank 0 is not for the check
    assert bad_pairs(job(4), None) == {}


def test_what_is_wrong_is_told_by_ordered_pair(driver):
    driver(BAD_PEER="1-2", NO_PEER="2-0", FAIL="cuMemcpyDtoDAsync_v2:1:999")
    found = bad_pairs(job(3), None)
    assert found == {
        (1, 2): f"1 of {PATTERN_BYTES} bytes arrive wrong, the first is byte {PATTERN_BYTES // 2}",
        (2, 0): "CUDA grants no peer access",
        (0, 1): "cuMemcpyDtoDAsync_v2: CUDA_ERROR_UNKNOWN",
    }


def test_pairs_are_of_ranks_and_ranks_of_one_gpu_need_no_check(driver):
    driver(BAD_PEER="1-2")
    devices = (2, 1, 1)
    shared = job(3, device=lambda rank: devices[rank], uuid=lambda rank: uuid(devices[rank]))
    assert set(bad_pairs(shared, None)) == {(1, 0), (2, 0)}


def test_one_gpu_needs_no_driver(monkeypatch):
    monkeypatch.setenv("BLINK_CUDA_LIB", "/nothing/there.so")
    assert bad_pairs(job(3, device=0, uuid="0" * 32), None) == {}


@pytest.mark.parametrize(
    ("how", "said"), [(-1, "the driver crashed"), (-2, "the driver did not answer in time")], ids=["crashes", "hangs"]
)
def test_a_driver_that_hangs_or_crashes_costs_only_that_pair(driver, how, said):
    driver(FAIL=f"cuMemcpyDtoDAsync_v2:5:{how}")
    assert bad_pairs(job(3), None) == {(2, 0): said}


def test_a_driver_that_fails_again_and_again_is_left_alone(driver, monkeypatch):
    monkeypatch.setattr(peer_check, "MOST_CHILDREN", 2)
    driver(FAIL="cuMemcpyDtoDAsync_v2:1:-1")
    found = bad_pairs(job(3), None)
    assert (found[0, 1], found[0, 2]) == ("the driver crashed", "the driver crashed")
    assert {found[1, 0], found[2, 1]} == {"not tried, because the driver hung or crashed on other pairs"}


def test_what_was_found_is_kept_until_the_host_boots_again(driver, tmp_path, monkeypatch):
    directory = tmp_path / "peers"
    driver(BAD_PEER="1-0")
    first = bad_pairs(job(2), directory)
    driver()
    assert bad_pairs(job(2), directory) == first
    assert bad_pairs(job(2, boot_id="after"), directory) == {}
    assert len(list(directory.iterdir())) == 2
    # What was kept is by GPU, in whatever order and company they come; only pairs that are new are tried.
    swapped = job(2, uuid=lambda rank: peers(2)[1 - rank]["uuid"])
    assert set(bad_pairs(swapped, directory)) == {(0, 1)}
    driver(BAD_PEER="0-1,2-1")
    assert set(bad_pairs(job(3), directory)) == {(1, 0), (2, 1)}


def test_what_is_kept_is_read_with_care(driver, tmp_path):
    directory = tmp_path / "peers"
    driver(BAD_PEER="1-0")
    first = bad_pairs(job(2), directory)
    (file,) = directory.iterdir()
    for text in ("", "[]", '{"pairs": []}', '{"pairs": [[0, 1, ""], [7, 0, ""]]}', '{"pairs": [["a", "b", "c"]]}'):
        file.write_text(text)
        assert bad_pairs(job(2), directory) == first


def test_a_check_that_broke_down_is_not_kept(driver, tmp_path):
    driver(FAIL="cuMemcpyDtoDAsync_v2:1:-1")
    assert bad_pairs(job(2), tmp_path / "peers")
    assert not (tmp_path / "peers").exists()


def test_without_a_driver_nothing_can_be_said(monkeypatch):
    monkeypatch.setenv("BLINK_CUDA_LIB", "/nothing/there.so")
    with pytest.raises(UnsupportedError, match=r"P2P could not be checked: /nothing/there.so cannot be used"):
        bad_pairs(job(2), None)


def test_without_gpus_the_drivers_own_word_is_told(driver):
    driver(DEVICES="0")
    with pytest.raises(UnsupportedError, match="cuInit: CUDA_ERROR_NO_DEVICE"):
        bad_pairs(job(2), None)


def test_a_gpu_that_rank_0_does_not_see_is_named(driver):
    with pytest.raises(UnsupportedError, match="does not see GPU " + "f" * 32):
        bad_pairs(job(2, uuid=lambda rank: (uuid(0), "f" * 32)[rank]), None)


@pytest.mark.parametrize(
    ("variables", "untried", "denied"),
    [
        # Without a context, too, CUDA says what it denies.
        ({"FAIL": "cuDevicePrimaryCtxRetain:2:46", "NO_PEER": "1-0"}, 3, {(1, 0)}),
        ({"FAIL": "cuDevicePrimaryCtxRetain:2:2", "NO_PEER": "1-0"}, 3, {(1, 0)}),
        ({"FAIL": "cuDevicePrimaryCtxRetain:2:101", "NO_PEER": "1-0", "EXCLUSIVE": str(os.getpid())}, 3, {(1, 0)}),
        ({"FAIL": "cuCtxEnablePeerAccess:6:2"}, 1, set()),
    ],
)
def test_what_cannot_be_tried_is_taken_on_the_drivers_word(driver, tmp_path, variables, untried, denied):
    """And tried again by the next job: only what was seen is kept."""
    driver(BAD_PEER="0-2", **variables)
    told: list[str] = []
    bad = bad_pairs(job(3), tmp_path / "peers", note=told.append)
    assert set(bad) == {(0, 2)} | denied
    (line,) = told
    assert line.startswith(f"{untried} of 6 ordered pairs of GPUs are trusted without a check")
    driver(BAD_PEER="2-1")
    assert set(bad_pairs(job(3), tmp_path / "peers")) == {*bad, (2, 1)}


def test_a_gpu_that_fails_for_another_reason_is_no_excuse(driver):
    driver(FAIL="cuDevicePrimaryCtxRetain:2:101")  # and the GPU is nobody's own
    with pytest.raises(UnsupportedError, match="cuDevicePrimaryCtxRetain: CUDA_ERROR_INVALID_DEVICE"):
        bad_pairs(job(2), None)


def test_patterns_of_pairs_differ_everywhere():
    one, two = pattern(0, 1), pattern(1, 0)
    assert len(one) == PATTERN_BYTES
    assert sum(a == b for a, b in zip(one, two, strict=True)) < PATTERN_BYTES // 100
    # Pages in the wrong order, or one twice, would be noticed.
    pages = [one[at : at + 4096] for at in range(0, PATTERN_BYTES, 4096)]
    assert len(set(pages)) == len(pages)
