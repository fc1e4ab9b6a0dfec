"""libblink.so, generated code and the doubles have no races and no memory errors: all are built with a sanitizer."""

import pytest
from preloaded import Preloaded
from variants import sanitized

CASES = (
    "types,sizes,scaled,groups,streams,legacy_stream,several,graph,graph_fork,graph_order,graph_lost,split,nonblocking,"
    "finalize,abort"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
@pytest.mark.parametrize(("mode", "seed"), [("threads", 0), ("threads", 9), ("process", 4), ("all", 2)])
def test_sanitizers_report_nothing(preloaded: Preloaded, sanitizers: str, mode: str, seed: int) -> None:
    job = {"cases": CASES, "sizes": "0,3,1000,100000", "BLINK_DOUBLE_SEED": seed}
    outcome = sanitized(preloaded, sanitizers).client(mode, 3, timeout_s=400, **job).right()
    assert outcome.calls("blink")["allreduce"] > 0, outcome.blink
