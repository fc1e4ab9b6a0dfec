"""``blink diff``: two files, exit codes, JSON, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def files(blink, tmp_path, monkeypatch):
    """a.json and ring.json of the same job, and files that are not to be compared with them."""
    monkeypatch.chdir(tmp_path)
    job = ("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-3")
    blink(*job, "-o", "a.json")
    blink(*job, "--algo", "ring", "-o", "ring.json")
    blink("plan", "broadcast", "--topo", "dgx-1v", "--gpus", "0-3", "-o", "broadcast.json")
    blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-2", "-o", "three.json")
    blink("export", "--to", "nccl-graph", "--topo", "dgx-1v", "--gpus", "0-3", "-o", "graph.xml")
    blink("export", "a.json", "--to", "msccl", "-o", "msccl.xml")
    blink("export", "a.json", "--to", "mscclpp", "-o", "mscclpp.json")
    (tmp_path / "false.json").write_text((tmp_path / "a.json").read_text().replace('"rate": "3"', '"rate": "4"', 1))
    (tmp_path / "broken.json").write_text("{")
    return tmp_path


def test_a_difference_is_no_fault_unless_the_exit_code_is_asked_for(blink, files):
    assert [blink("diff", "a.json", "ring.json", *more).code for more in ((), ("--exit-code",))] == [0, 1]
    same = blink("diff", "a.json", "a.json", "--exit-code")
    assert (same.code, same.err) == (0, "")
    assert same.out.endswith("\n\nthe same plan: 3 shares, 75 GB/s algbw\n")


def test_json_has_all_of_it(blink, files):
    found = json.loads(blink("diff", "a.json", "ring.json", "--size", "64M,1M", "--json").out)
    assert (found["same"], found["collective"], found["why_not_compared"]) == (False, "allreduce", None)
    assert (found["a"]["algorithm"], found["b"]["algorithm"]) == ("optimal", "ring")
    assert [row["size_bytes"] for row in found["times"]["sizes"]] == [1 << 20, 64 << 20]
    sim = json.loads(blink("sim", "--plan", "ring.json", "--size", "64M", "--json").out)
    assert found["times"]["sizes"][1]["b_seconds"] == sim["sizes"][0]["algorithms"][0]["seconds"]
    text = blink("diff", "a.json", "ring.json", "--size", "64M").out
    trees, links = found["trees"], found["links"]
    only = [sum(1 for one in trees["differ"] if not one[f"{side}_weights"]) for side in "ba"]
    assert f"trees  in both {trees['alike']}, with other weights 0, only in A {only[0]}, only in B {only[1]}" in text
    assert f"own rate: {len(links['differ'])}; with the same: {links['alike']}" in text
    assert all(sorted(one["a"]) == ["capacity_gb_per_s", "load_gb_per_s"] for one in links["differ"] if one["a"])


def test_one_of_them_may_be_standard_input(blink, files, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO((files / "a.json").read_bytes())))
    ended = blink("diff", "a.json", "-")
    assert ended.code == 0
    assert "B  standard input: allreduce among 4 ranks" in ended.out


def test_an_nccl_graph_file_is_of_the_other_plans_collective(blink, files):
    ended = blink("diff", "graph.xml", "broadcast.json", "--topo", "dgx-1v", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["collective"], found["a"]["algorithm"]) == ("broadcast", "nccl-graph")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("a.json", "broadcast.json"), "the collective of A is allreduce, that of B broadcast"),
        (("a.json", "three.json"), "the number of ranks of A is 4, that of B 3"),
        (("-", "-"), "- is given twice, and standard input can be read once"),
        (("a.json", "graph.xml"), "graph.xml: a graph file has no links: give --topo SPEC"),
        (("a.json", "msccl.xml"), "msccl.xml: an MSCCL algorithm or MSCCL++ execution plan says which thread block"),
        (("mscclpp.json", "a.json"), "blink check mscclpp.json says whether it is right"),
        (("a.json", "none.json"), "none.json cannot be read: No such file or directory"),
        (("a.json", "broken.json"), "broken.json, line 1, column 2: not JSON"),
        (("a.json", "a.json", "--size", "1M,x"), "--size: not a size in bytes: 'x'"),
        (("a.json", "a.json", "--size", "0"), "--size 0: nothing moves at 0 bytes"),
        (("a.json", "ring.json", "--topo", "dgx-1w"), "dgx-1w"),
    ],
)
def test_what_is_refused(blink, files, typed, message):
    blink("diff", *typed).assert_refused(message)


def test_a_plan_that_states_what_is_not_so_is_not_compared(blink, files):
    ended = blink("diff", "a.json", "false.json")
    assert (ended.code, ended.out) == (1, "")
    assert "false.json is not what it says it is: " in ended.err
