"""The peer check copies bytes between all pairs of GPUs, and a failing driver does not stop it."""

import os

import pytest
from jobs_by_hand import job, peers, uuid

from blinkccl.errors import UnsupportedError
from blinkccl.nccl import peer_check
from blinkccl.nccl.peer_check import bad_pairs
from blinkccl.nccl.peer_copies import PATTERN_BYTES, pattern


@pytest.fixture
def driver(doubles, monkeypatch):
    """Set variables of the double of CUDA's driver, and unset the others."""
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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # a launcher's restriction of rank 0 does not apply to the check
    assert bad_pairs(job(4), None) == {}


def test_faults_are_reported_by_ordered_pair(driver):
    driver(BAD_PEER="1-2", NO_PEER="2-0", FAIL="cuMemcpyDtoDAsync_v2:1:999")
    faults = bad_pairs(job(3), None)
    assert faults == {
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
    faults = bad_pairs(job(3), None)
    assert (faults[0, 1], faults[0, 2]) == ("the driver crashed", "the driver crashed")
    assert {faults[1, 0], faults[2, 1]} == {"not tried, because the driver hung or crashed on other pairs"}


def test_results_are_kept_until_the_next_boot(driver, tmp_path, monkeypatch):
    directory = tmp_path / "peers"
    driver(BAD_PEER="1-0")
    first = bad_pairs(job(2), directory)
    driver()
    assert bad_pairs(job(2), directory) == first
    assert bad_pairs(job(2, boot_id="after"), directory) == {}
    assert len(list(directory.iterdir())) == 2
    # Results are kept by GPU, for any order and set of GPUs; only new pairs are tried.
    swapped = job(2, uuid=lambda rank: peers(2)[1 - rank]["uuid"])
    assert set(bad_pairs(swapped, directory)) == {(0, 1)}
    driver(BAD_PEER="0-1,2-1")
    assert set(bad_pairs(job(3), directory)) == {(1, 0), (2, 1)}


def test_damaged_results_are_ignored(driver, tmp_path):
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


def test_without_a_driver_the_check_is_refused(monkeypatch):
    monkeypatch.setenv("BLINK_CUDA_LIB", "/nothing/there.so")
    with pytest.raises(UnsupportedError, match=r"P2P could not be checked: /nothing/there.so cannot be used"):
        bad_pairs(job(2), None)


def test_without_gpus_the_drivers_error_is_reported(driver):
    driver(DEVICES="0")
    with pytest.raises(UnsupportedError, match="cuInit: CUDA_ERROR_NO_DEVICE"):
        bad_pairs(job(2), None)


def test_a_gpu_that_rank_0_does_not_see_is_named(driver):
    with pytest.raises(UnsupportedError, match="does not see GPU " + "f" * 32):
        bad_pairs(job(2, uuid=lambda rank: (uuid(0), "f" * 32)[rank]), None)


@pytest.mark.parametrize(
    ("variables", "untried", "denied"),
    [
        # CUDA reports denied access even without a context.
        ({"FAIL": "cuDevicePrimaryCtxRetain:2:46", "NO_PEER": "1-0"}, 3, {(1, 0)}),
        ({"FAIL": "cuDevicePrimaryCtxRetain:2:2", "NO_PEER": "1-0"}, 3, {(1, 0)}),
        ({"FAIL": "cuDevicePrimaryCtxRetain:2:101", "NO_PEER": "1-0", "EXCLUSIVE": str(os.getpid())}, 3, {(1, 0)}),
        ({"FAIL": "cuCtxEnablePeerAccess:6:2"}, 1, set()),
    ],
)
def test_pairs_that_cannot_be_tried_follow_the_drivers_answer(driver, tmp_path, variables, untried, denied):
    """The next job tries them again, because only results of copies are kept."""
    driver(BAD_PEER="0-2", **variables)
    notes: list[str] = []
    bad = bad_pairs(job(3), tmp_path / "peers", note=notes.append)
    assert set(bad) == {(0, 2)} | denied
    (line,) = notes
    assert line.startswith(f"stores between {untried} of 6 ordered pairs of GPUs were not tested")
    driver(BAD_PEER="2-1")
    assert set(bad_pairs(job(3), tmp_path / "peers")) == {*bad, (2, 1)}


def test_a_gpu_that_fails_for_another_reason_is_no_excuse(driver):
    driver(FAIL="cuDevicePrimaryCtxRetain:2:101")  # and no process uses the GPU exclusively
    with pytest.raises(UnsupportedError, match="cuDevicePrimaryCtxRetain: CUDA_ERROR_INVALID_DEVICE"):
        bad_pairs(job(2), None)


def test_patterns_of_pairs_differ_everywhere():
    one, two = pattern(0, 1), pattern(1, 0)
    assert len(one) == PATTERN_BYTES
    assert sum(a == b for a, b in zip(one, two, strict=True)) < PATTERN_BYTES // 100
    # The check notices pages in the wrong order or twice.
    pages = [one[at : at + 4096] for at in range(0, PATTERN_BYTES, 4096)]
    assert len(set(pages)) == len(pages)
