"""``blink bench --timeline``: the recorded calls."""

from pathlib import Path

import pytest

from blinkccl.bench.timeline import CALLS
from support.engines import ENGINES
from support.trace_reader import read_trace

NEEDED = pytest.mark.skipif(ENGINES["host"].missing is not None, reason=str(ENGINES["host"].missing))
SHORT = ["-n", "2", "--rounds", "1"]


@NEEDED
@pytest.mark.parametrize("algo", [None, "ring,one_hop"])
def test_measured_calls_stand_on_one_axis(blink, tmp_path: Path, algo: str | None) -> None:
    path = tmp_path / "t.json"
    options = ["-b", "64K", "-e", "256K", "-f", "4", *SHORT, "--timeline", str(path)]
    ended = blink("bench", "allreduce", *options, *([] if algo is None else ["--algo", algo]))
    assert ended.code == 0, ended.err
    assert "shows calls after those of the table" in ended.err
    trace = read_trace(path.read_text())
    measured = [number for number, name in trace.processes.items() if name.startswith("measured: rank ")]
    assert len(measured) == 2
    names = ["auto"] if algo is None else algo.split(",")
    blocks = [span["name"] for span in trace.of("block")]
    assert blocks == [
        f"{name}, {size}, {place}"
        for size in ("64K", "256K")
        for place in ("out of place", "in place")
        for name in names
    ]
    # Every call has a barrier before it, which is a call too.
    assert len(trace.of("call")) == 2 * 2 * CALLS * len(blocks)
    ends = [(begin, end) for spans in trace.spans.values() for begin, end, span in spans if span["cat"] == "block"]
    for process in measured:
        begins = [begin for (pid, _), spans in trace.spans.items() if pid == process for begin, _, _ in spans]
        assert all(any(first <= begin <= last for begin in begins) for first, last in ends)
    assert all(sent["pid"] in measured and taken["pid"] in measured for sent, taken in trace.arrows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timeline", "t.json", "--topo", "dgx-1v"], "--timeline is for several processes"),
        (["--timeline", "/nosuch/t.json"], "/nosuch"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(blink, options: list[str], message: str) -> None:
    ended = blink("bench", "allreduce", *options)
    assert ended.code == 2
    assert message in ended.err
    assert not ended.out
