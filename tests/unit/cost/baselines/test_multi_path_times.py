"""``multi_path`` on calibrated links: as fast as its paths together, and at no size slower than one of them."""

import pytest

from blinkccl.cost.baselines.by_size import MultiPath, prepare_multi_path, timed_split
from blinkccl.cost.baselines.candidate import Conditions
from blinkccl.cost.baselines.registry import candidates
from blinkccl.cost.simulate.calibration import calibration, calibration_for
from blinkccl.errors import UnsupportedError
from blinkccl.trees.algorithms.multi_path import direct_path, on_one_path, ways
from blinkccl.trees.algorithms.path_table import PairSplits, PathTable
from blinkccl.trees.forest.model import Path
from support.examples import ALL_TESTS
from support.planned import asked
from support.timed import calibration_of, link_class

MIB = 2**20
#: Sizes on and between the classes of tables.
SIZES = tuple(round(64 * 1.7**power) for power in range(0, 36, 1 if ALL_TESTS else 3))


def multi_path(spec: str, gpus: str | None = "0,1") -> MultiPath:
    request = asked(spec, "sendrecv", gpus)
    return prepare_multi_path(request, Conditions(calibration_for(request.topology)))


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ("mist", "0,1"),
        ("mist", "0,2"),
        ("cedar", None),
        ("dgx-1p", "0,1"),
        ("dgx-a100", "0,1"),
        ("pcie-8gpu", "0,2"),
        ("pcie-4gpu-nvlink-pairs", "0,3"),  # its maximum flow uses GPU 2
    ],
)
def test_never_slower_than_any_of_its_paths_alone(spec: str, gpus: str | None) -> None:
    message = multi_path(spec, gpus)
    paths = (direct_path(message.flow), *(way.path for way in ways(message.flow)))
    alone = [timed_split(message.flow, message.conditions, on_one_path(path)) for path in paths]
    one_hop = candidates()["one_hop"].prepare(asked(spec, "sendrecv", gpus), message.conditions)
    for size in SIZES:
        least = min(one.at(size).seconds for one in (*alone, one_hop))
        assert message.at(size).seconds <= least * (1 + 1e-9), size


@pytest.mark.parametrize(("most", "paths"), [(0, {(2, 3)}), (1, {(2, 3), (2, 5, 3)}), (None, {(2, 3), (2, 5, 3)})])
def test_a_filled_row_is_of_its_two_ends_and_crosses_no_more_memories(most: int | None, paths: set[Path]) -> None:
    request = asked("mist", "sendrecv", "2,3")
    row = prepare_multi_path(request, Conditions(calibration_for(request.topology), most_memories=most)).row
    assert (row.src, row.dst) == (2, 3)
    assert {part.path for split in row.splits for part in split.parts} == paths


@pytest.mark.parametrize(("spec", "sum_gb_per_s"), [("mist", 71.85 + 62.15), ("cedar", 3 * 45.8 + 4.1)])
def test_large_messages_reach_the_sum_of_the_paths(spec: str, sum_gb_per_s: float) -> None:
    assert 0.95 * sum_gb_per_s < multi_path(spec).at(512 * MIB).algbw_gb_per_s


@pytest.mark.parametrize("spec", ["mist", "cedar"])
def test_a_small_message_takes_the_direct_path_alone(spec: str) -> None:
    """A copy of 1 MiB on Cedar in eight streams is slower than a direct copy."""
    message = multi_path(spec)
    assert "all on 0-1" in message.at(64 * 1024).detail
    assert "all on 0-1" in message.at(MIB).detail
    assert "8 streams" in message.at(64 * MIB).detail


def test_only_paths_with_memories_have_several_streams() -> None:
    parts = multi_path("cedar").row.at(64 * MIB).parts
    assert [(part.path, part.streams) for part in parts] == [((0, 1), 1), *(((0, v, 1), 8) for v in (2, 3, 4))]


def test_the_splits_of_a_table_are_used() -> None:
    request = asked("mist", "sendrecv", "0,1")
    table = PathTable("", "", "").merged(PairSplits(0, 1, (on_one_path((0, 4, 1)),)))
    message = prepare_multi_path(request, Conditions(calibration("mist"), paths=table))
    assert message.at(MIB).detail == "all on 0-4-1"
    other = PathTable("", "", "").merged(PairSplits(1, 0, (on_one_path((1, 0)),)))
    assert prepare_multi_path(request, Conditions(calibration("mist"), paths=other)).row == multi_path("mist").row
    wrong = PathTable("", "", "").merged(PairSplits(0, 1, (on_one_path((0, 5, 1)),)))
    with pytest.raises(UnsupportedError, match="mist has no link 0 → 5"):
        prepare_multi_path(request, Conditions(calibration("mist"), paths=wrong))


def test_links_that_the_calibration_does_not_know_rule_it_out() -> None:
    with pytest.raises(UnsupportedError, match="no link class for pcie"):
        prepare_multi_path(
            asked("cedar", "sendrecv", "0,1"), Conditions(calibration_of(link_class("nvlink", 25.0, 25.0)))
        )
