"""``blink check`` and ``blink sim`` on NCCL graph files."""

import json
from pathlib import Path

import blinkccl.topology

SAMPLE = Path(blinkccl.topology.__file__).parent / "fixtures" / "rings.nccl-graph.xml"


def test_a_graph_file_is_checked_and_timed_like_a_plan(blink) -> None:
    checked = json.loads(blink("check", SAMPLE, "--topo", "dgx-1v", "--json").out)
    assert (checked["ok"], checked["algorithm"], checked["ranks"]) == (True, "nccl-graph", [0, 1, 2, 3])
    timed = blink("sim", SAMPLE, "--topo", "dgx-1v", "--json")
    assert timed.code == 0, timed.err
    assert json.loads(timed.out)["collective"] == "allreduce"


def test_a_graph_file_needs_its_machine(blink, tmp_path) -> None:
    blink("check", SAMPLE).assert_refused("an NCCL graph file has no links: give its machine as --topo SPEC")
    blink("check", SAMPLE, "--topo", "dgx-1v", "--links", "pcie").assert_refused("--links pcie")
    blink("sim", SAMPLE).assert_refused("an NCCL graph file has no links: give its machine as --topo SPEC")
    other = tmp_path / "other.xml"
    other.write_text(SAMPLE.read_text().replace('graph id="0"', 'graph id="2"').replace('graph id="1"', 'graph id="3"'))
    blink("check", other, "--topo", "dgx-1v").assert_refused("other.xml: the graph file has neither rings (id 0) nor")
    cut = tmp_path / "cut.xml"
    cut.write_bytes(SAMPLE.read_bytes()[:90])
    blink("check", cut, "--topo", "dgx-1v").assert_refused("not well-formed XML")
    cut.write_bytes(b"<graphs>\xff</graphs>")
    blink("check", cut, "--topo", "dgx-1v").assert_refused("no UTF-8 text")


def test_rings_through_a_gpu_are_checked_and_timed_by_copies(blink, tmp_path) -> None:
    file = tmp_path / "rings.xml"
    assert blink("export", "--to", "nccl-graph", "--topo", "dgx-1v", "--gpus", "0-5", "-o", file).code == 0
    assert 'typeintra="NVB"' in file.read_text()
    checked = json.loads(blink("check", file, "--topo", "dgx-1v", "--json").out)
    assert (checked["ok"], checked["ranks"]) == (True, [0, 1, 2, 3, 4, 5])
    timed = json.loads(blink("sim", file, "--topo", "dgx-1v", "--json").out)
    assert timed["code"] == "copies"
    refused = blink("sim", file, "--topo", "dgx-1v", "--code", "kernels")
    refused.assert_refused("NCCL relays through a GPU of the job (NVB), which kernels do not")
