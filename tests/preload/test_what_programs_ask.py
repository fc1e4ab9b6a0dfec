"""A program's requests to NCCL, by a configuration, a variable or a window: Blink or NCCL fulfils each by name."""

import pytest
from preloaded import Preloaded

#: Without BLINK_ALGO, at a size at which Blink is predicted to be faster.
FREE = {"BLINK_ALGO": None, "NCCL_ALGO": None}
COUNT = 1000


@pytest.mark.parametrize(
    ("variables", "setting"),
    [
        ({"CLIENT_CONFIG": "4 -1 -1 -1"}, "cgaClusterSize=4"),
        ({"NCCL_ALGO": "Ring"}, "NCCL_ALGO=Ring"),
        ({"NCCL_MAX_NCHANNELS": 2}, "NCCL_MAX_NCHANNELS=2"),
    ],
)
def test_settings_that_need_nccl(preloaded: Preloaded, variables: dict[str, object], setting: str) -> None:
    """NCCL runs all calls of the communicator, and rank 0 names the setting."""
    outcome = preloaded.scene("many_calls", count=COUNT, **{**FREE, **variables}).right()
    assert outcome.calls("blink").total() == 0
    assert outcome.reached_nccl()["AllReduce"] == 3
    (line,) = [line for line in outcome.blink if "NCCL runs everything" in line]
    assert f"the program asks for {setting}, which only NCCL supports" in line


@pytest.mark.slow
def test_default_settings_change_nothing(preloaded: Preloaded) -> None:
    outcome = preloaded.scene("many_calls", count=COUNT, CLIENT_CONFIG="0 1 -1 0", **FREE).right()
    assert outcome.calls("blink")["allreduce"] == 3


def test_blinks_variable_overrules(preloaded: Preloaded) -> None:
    """BLINK_ALGO is for this library alone, so it takes precedence; NCCL's limits hold all the same."""
    outcome = preloaded.scene("many_calls", NCCL_ALGO="Ring", CLIENT_CONFIG="4 -1 -1 -1").right()
    assert outcome.calls("blink")["allreduce"] == 3
    assert "BLINK_ALGO=optimal overrules cgaClusterSize=4, NCCL_ALGO=Ring" in outcome.ended[0].err


def test_ranks_with_different_settings(preloaded: Preloaded) -> None:
    each = [{}, {"CLIENT_CONFIG": "-1 -1 2 -1"}, {}]
    outcome = preloaded.scene("many_calls", each=each).right()
    assert outcome.calls("blink").total() == 0
    assert any("the ranks have different settings" in line for line in outcome.blink)


def test_communicators_with_windows_go_to_nccl(preloaded: Preloaded) -> None:
    """From the registration on, on all ranks; a buffer registered without a window changes nothing."""
    outcome = preloaded.scene("window").right()
    assert outcome.calls("blink")["allreduce"] == 2 * 3
    assert outcome.reached_nccl()["AllReduce"] == 3
    assert any("has a registered window: NCCL runs all later calls" in line for line in outcome.blink)
