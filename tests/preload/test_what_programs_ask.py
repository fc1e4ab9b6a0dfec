"""What a program asks of NCCL, by a configuration, a variable or a window, it gets: from us, or from NCCL, by name."""

from __future__ import annotations

import pytest
from preloaded import Preloaded

#: Without BLINK_ALGO, and a size at which we are predicted to be faster.
FREE = {"BLINK_ALGO": None, "NCCL_ALGO": None}
COUNT = 1000


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({"CLIENT_CONFIG": "4 -1 -1 -1"}, "cgaClusterSize=4"),
        ({"NCCL_ALGO": "Ring"}, "NCCL_ALGO=Ring"),
        ({"NCCL_MAX_NCHANNELS": 2}, "NCCL_MAX_NCHANNELS=2"),
    ],
)
def test_what_only_nccl_does(preloaded: Preloaded, variables: dict[str, object], asked: str) -> None:
    """All of the communicator is NCCL's, and rank 0 says what asked for it."""
    outcome = preloaded.scene("many_calls", count=COUNT, **{**FREE, **variables}).right()
    assert outcome.calls("blink").total() == 0
    assert outcome.reached_nccl()["AllReduce"] == 3
    (line,) = [line for line in outcome.blink if "NCCL runs everything" in line]
    assert f"the program asks for {asked}, which is NCCL's to do" in line


@pytest.mark.slow
def test_what_asks_for_nothing(preloaded: Preloaded) -> None:
    outcome = preloaded.scene("many_calls", count=COUNT, CLIENT_CONFIG="0 1 -1 0", **FREE).right()
    assert outcome.calls("blink")["allreduce"] == 3


def test_our_variable_overrules(preloaded: Preloaded) -> None:
    """BLINK_ALGO is for this library alone, so who sets it means us; NCCL's bounds hold all the same."""
    outcome = preloaded.scene("many_calls", NCCL_ALGO="Ring", CLIENT_CONFIG="4 -1 -1 -1").right()
    assert outcome.calls("blink")["allreduce"] == 3
    assert "BLINK_ALGO=optimal overrules cgaClusterSize=4, NCCL_ALGO=Ring" in outcome.ended[0].err


def test_ranks_that_ask_for_different_things(preloaded: Preloaded) -> None:
    each = [{}, {"CLIENT_CONFIG": "-1 -1 2 -1"}, {}]
    outcome = preloaded.scene("many_calls", each=each).right()
    assert outcome.calls("blink").total() == 0
    assert any("the ranks have different settings" in line for line in outcome.blink)


def test_windows_are_nccls(preloaded: Preloaded) -> None:
    """From the registration on, on all ranks; a buffer that is registered without a window changes nothing."""
    outcome = preloaded.scene("window").right()
    assert outcome.calls("blink")["allreduce"] == 2 * 3
    assert outcome.reached_nccl()["AllReduce"] == 3
    assert any("has a registered window: NCCL runs what comes" in line for line in outcome.blink)
