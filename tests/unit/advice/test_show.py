"""What a plan and results are shown as: the machine, the ring beside, words, and documents that are none."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest

from blinkccl.advice.show import MOST_TRANSFERS, drawn_on, of_plan, of_topology, shape_fault
from blinkccl.advice.show_results import chart, of_result
from blinkccl.errors import ScheduleError
from blinkccl.forest.model import Tree
from blinkccl.report.page import Figure, Pair, Stage, Table, exhibit_page
from blinkccl.topology.spec import machine_named, parse_spec
from support.planned import plan

SIMULATION = {
    "schema_version": 2, "collective": "allreduce", "topology": "dgx-1v", "ranks": [1, 4, 5, 6], "code": "kernels",
    "bound_gb_per_s": 50.0, "wins": [{"algorithm": "optimal", "first_bytes": 64, "last_bytes": 64}],
    "absent": {"one_ring": "one_ring: there is but one ring"},
    "sizes": [{"size_bytes": 64 << 20, "algorithms": [
        {"algorithm": name, "seconds": seconds, "algbw_gb_per_s": 0.08 / seconds, "busbw_gb_per_s": 0.12 / seconds,
         "percent_bound": 0.16 / seconds, "how": "Simple"} for name, seconds in (("optimal", 0.002), ("nccl-2.4", 0.02))
    ]}],
    "decided_by": {"algorithm": "optimal", "size_bytes": 64 << 20, "seconds": {"move": 0.0019, "signal": 0.0001},
                   "hops": [{"src": 1, "dst": 5, "seconds": 0.001}],
                   "links": [{"src": 1, "dst": 5, "bytes": 5.0, "gb_per_s": 50.0, "busy": 0.999}]},
}  # fmt: skip
BENCHMARK = {
    "version": 3, "algorithm": "auto", "engine": "host", "blink_version": "0.1.0",
    "config": {"collective": "allreduce", "devices": [{}, {}]},
    "results": [{"size": size, "out_of_place": {"time": 10.0, "alg_bw": size / 1e4, "bus_bw": size / 1e4, "nwrong": 0,
                                                "bound_percent": 20.0},
                 "in_place": None, "peers": [{"name": "gloo", "out_of_place": {"time": 40.0, "alg_bw": size / 4e4,
                                                                               "bus_bw": size / 4e4, "nwrong": None}}]}
                for size in (4096, 65536)],
}  # fmt: skip
LABORATORY = {
    "schema_version": 2, "collective": "allreduce", "topology": "dgx-1v", "ranks": [1, 4, 5, 6], "lane_gb_per_s": 25.0,
    "lane_mbit_per_s": 200.0, "absent": [{"algorithm": "x", "reason": "because"}],
    "rows": [{"algorithm": name, "size_bytes": 1 << 24, "seconds": [0.3, 0.1, 0.2], "algbw_gb_per_s": rate,
              "plan_algbw_gb_per_s": 50.0, "part_of_plan": rate / 50, "simulated_part_of_plan": 0.98, "busy": 1.0,
              "wrong": 0} for name, rate in (("optimal", 49.0), ("ring", 7.0))],
}  # fmt: skip
RESULTS = {"simulation": SIMULATION, "benchmark": BENCHMARK, "laboratory": LABORATORY}


def said(shown):
    return dict(shown.summary)


def test_a_plan_is_summed_up_in_plain_words():
    shown = of_plan(plan("optimal", "dgx-1v", "1,4,5,6", "allreduce"), None, "p.json")
    words = said(shown)
    assert shown.title == "AllReduce among 4 GPUs (1,4-6) of dgx-1v"
    assert words["How fast"].startswith("50 GB/s: a gigabyte takes 20 ms")
    assert words["Why not faster"].startswith("The slowest cut: 2 links between {1,5,6} and {4}, 50 GB/s each way")
    assert words["Against rings"] == (
        "6.667 GB/s algbw by the rule of NCCL 2.4, Blink's baseline of 2019 (no NVLink ring, so one over PCIe); "
        "this plan 50 GB/s: 7.5 times as fast, nominal rates."
    )
    assert words["Today's NCCL"].startswith(
        "26.22 GB/s algbw at 64M by nccl-2.30 (ring Simple over NVLink and a relay); "
    )
    assert "as the simulator predicts" in words["At a size"]
    assert shown.next[0] == "blink check p.json"
    assert any(isinstance(part, Pair) for part in shown.parts)


def test_a_plan_is_drawn_on_the_machine_that_it_names():
    forest = plan("optimal", "dgx-1v", "1,4,5,6", "allreduce")
    on = drawn_on(forest, machine_named("dgx-1v"))
    assert len(on.topology.ranks) == 8
    assert on.request.links == "fast"
    assert set(on.sockets.values()) == {12, 13}
    other = drawn_on(forest, parse_spec("dgx-1p"))
    assert other.topology is forest.topology


def test_what_moves_is_bounded_and_told_by_share():
    shown = of_plan(plan("optimal", "dgx-1v", None, "allreduce"), None)
    moves = shown.data["moves"]
    assert 0 < len(moves) <= MOST_TRANSFERS
    assert {move[0] for move in moves} == set(range(len(shown.data["shares"])))
    (stage,) = (part for part in shown.parts if isinstance(part, Stage))
    assert stage.timeline is not None
    for share, _, _, *links in moves:
        known = shown.data["shares"][share]
        assert set(links) <= {*known["up"], *known["down"]}


def test_a_large_plan_is_shown_in_part_and_says_so():
    forest = plan("optimal", "16x dgx-a100 @ 200Gbps", None, "allgather")
    shown = of_plan(forest, None)
    (stage,) = (part for part in shown.parts if isinstance(part, Stage))
    assert len(stage.shares) == len(shown.data["shares"]) < len(forest.shares)
    assert stage.more == f"{len(stage.shares)} of {len(forest.shares)} shares are drawn; the file has all."
    assert stage.timeline is None
    assert said(shown)["At a size"].startswith("Not simulated here")


def test_a_plan_that_nobody_checked_is_refused_where_it_cannot_be_drawn():
    forest = plan("optimal", "ring:4", None, "broadcast")
    assert shape_fault(forest) is None
    share = forest.shares[0]
    first, *others = share.broadcast.edges

    def with_edges(*edges):
        return replace(forest, shares=(replace(share, broadcast=Tree(share.root, edges)), *forest.shares[1:]))

    assert shape_fault(with_edges(*others)) == "shares[0].broadcast is not one tree with root 0"
    assert "is not one tree" in shape_fault(with_edges(first, *others, first))
    circle = ((0, 1), (1, 2), (2, 1))
    assert "is not one tree" in shape_fault(with_edges(*circle))
    assert shape_fault(with_edges((0, 2), *others)) == "a tree crosses 0 → 2, which is no link of it"


@pytest.mark.parametrize(("spec", "name"), [("chain:3", "sendrecv"), ("star:4", "alltoall"), ("mist", "scatter")])
def test_every_collective_is_shown(spec, name):
    assert exhibit_page(of_plan(plan("optimal", spec, None, name), None))


def test_a_topology_of_a_file_has_no_commands_that_name_it():
    assert of_topology(parse_spec("dgx-2")).next
    renamed = parse_spec("ring:3")
    object.__setattr__(renamed, "name", "node7.txt")
    assert not of_topology(renamed).next


# Results.
@pytest.mark.parametrize("kind", RESULTS)
def test_results_have_a_chart_and_a_table(kind):
    shown = of_result(json.loads(json.dumps(RESULTS[kind])))
    assert shown.kind == kind
    assert any(isinstance(part, Figure) for part in shown.parts)
    (table,) = (part for part in shown.parts if isinstance(part, Table))
    assert len(table.rows) >= 2
    assert exhibit_page(shown) == exhibit_page(of_result(RESULTS[kind]))


def test_a_simulation_shows_the_links_that_were_full():
    shown = of_result(SIMULATION)
    machine = next(part for part in shown.parts if isinstance(part, Figure) and part.name == "machine")
    assert "full" in str(machine.picture.shapes)
    assert said(shown)["Against others"] == "They take so many times as long: nccl-2.4 10."


def test_a_benchmark_says_what_is_wrong():
    document = copy.deepcopy(BENCHMARK)
    document["results"][1]["out_of_place"]["nwrong"] = 3
    assert said(of_result(BENCHMARK))["Right"] == "Every result is right."
    assert said(of_result(document))["Right"] == "3 results are wrong."


def test_an_algorithm_in_several_chunks_is_told_by_its_chunk():
    document = copy.deepcopy(LABORATORY)
    first, second = document["rows"]
    document["rows"] = [first | {"chunk_bytes": 1 << 14}, first | {"chunk_bytes": 1 << 16}, second]
    about = chart(of_result(document)).about
    assert all(name in about for name in ("optimal in 16K: 49", "optimal in 64K: 49", "ring: 7"))


def test_several_sizes_are_curves():
    document = copy.deepcopy(LABORATORY)
    document["rows"] += [{**row, "size_bytes": 1 << 20} for row in document["rows"]]
    first = of_result(document).parts[0]
    assert first.picture.title == "Measured and simulated"


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("simulation", {"sizes": []}, "sizes is empty: there are no timings"),
        ("benchmark", {"results": []}, "results is empty: there are no timings"),
        ("laboratory", {"rows": []}, "rows is empty: there are no timings"),
        ("simulation", {"schema_version": 3}, "this blink reads 1 and 2"),
        ("simulation", {"bound_gb_per_s": "fast"}, "Expected `float`, got `str` - at `bound_gb_per_s`"),
        ("laboratory", {"rows": [{"algorithm": "x"}]}, "missing required field"),
        ("laboratory", {"topology": "a\x1b[31m"}, "control character U+001B"),
        ("benchmark", {"results": [{"size": -1}]}, "Expected `int` >= 0"),
    ],
)
def test_documents_that_are_none(kind, change, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        of_result({**RESULTS[kind], **change})


def test_other_documents_are_nobodys():
    assert of_result({"a": 1}) is None
