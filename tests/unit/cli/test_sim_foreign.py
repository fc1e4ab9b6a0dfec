"""``blink sim`` of MSCCL's and MSCCL++'s plans: beside ours on the links of a topology, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blinkccl.foreign.formats import audits
from blinkccl.topology.spec import parse_spec
from support import foreign_files

NAMES = {"msccl": "five.xml", "mscclpp": "five.json"}


@pytest.fixture
def five(blink, tmp_path: Path) -> Path:
    """A folder with an AllReduce plan for GPUs 0 to 4 of a DGX-1V in both formats."""
    plan = tmp_path / "plan.json"
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-4", "-o", plan).code == 0
    for name, file in NAMES.items():
        assert blink("export", plan, "--to", name, "-o", tmp_path / file).code == 0
    return tmp_path


@pytest.mark.parametrize("file", NAMES.values())
def test_a_foreign_plan_stands_beside_ours(blink, five: Path, file: str) -> None:
    asked = ["--topo", "dgx-1v", "--gpus", "0-4", "-s", "16M"]
    shown = blink("sim", five / file, *asked)
    assert shown.code == 0
    assert shown.out.startswith("allreduce among GPUs 0-4 of dgx-1v\n")
    document = json.loads(blink("sim", "--plan", five / file, *asked, "--json").out)
    (size,) = document["sizes"]
    rows = {row["algorithm"]: row for row in size["algorithms"]}
    assert list(rows) == [file, "optimal"]
    assert rows[file]["seconds"] > rows["optimal"]["seconds"] > 0
    assert rows[file]["protocol"] == "simple"
    assert rows[file]["how"].startswith(("MSCCL XML, Simple, 2 channels; 22 thread", "MSCCL++ execution plan, Simple;"))
    ours = json.loads(blink("sim", "allreduce", *asked, "--algo", "optimal", "--json").out)
    assert ours["sizes"][0]["algorithms"][0] == rows["optimal"]
    assert ours["bound_gb_per_s"] == document["bound_gb_per_s"]


def test_sizes_algorithms_and_copies(blink, five: Path) -> None:
    asked = ["--topo", "dgx-1v", "--gpus", "0-4"]
    swept = blink("sim", five / "five.xml", *asked, "--sweep", "-b", "1M", "-e", "16M", "--algo", "ring,optimal")
    assert swept.code == 0
    assert swept.out.splitlines()[4].split() == ["size", "five.xml", "ring", "optimal"]
    times = [
        json.loads(blink("sim", five / "five.xml", *asked, "--code", "copies", *more, "--json").out)
        for more in ([], ["--chunk", "64M"])
    ]
    small, large = (one["sizes"][0]["algorithms"][0] for one in times)
    assert (small["chunk_bytes"], small["protocol"]) == (2**21, None)
    assert large["chunk_bytes"] == 2**25
    assert large["seconds"] > 2 * small["seconds"]  # no pipeline


def test_standard_input_is_read_once(blink, five: Path, monkeypatch) -> None:
    with (five / "five.xml").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        shown = blink("sim", "--plan", "-", "--topo", "dgx-1v", "--gpus", "0-4")
    assert "\nstandard input " in shown.out


def test_a_plan_file_of_ours_needs_no_option(blink, five: Path) -> None:
    assert (
        blink("sim", five / "plan.json", "-s", "1M").out == blink("sim", "--plan", five / "plan.json", "-s", "1M").out
    )
    blink("sim", five / "none.xml").assert_refused("none.xml cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "five.xml: the plan of another runtime names no links: give --topo SPEC"),
        (["--topo", "dgx-1v"], "five.xml is for 5 GPUs, and these are 8: choose them with --gpus"),
        (
            ["--topo", "dgx-1v", "--gpus", "1,4,5,6,7"],
            "from GPU 0 to GPU 1, which are 1 and 4 of dgx-1v: no link joins",
        ),
        (["--topo", "dgx-1v", "--gpus", "0-4", "--root", "0"], "leave --root out"),
        (["--topo", "dgx-1v", "--gpus", "0-4", "--skew", "0,0,0,0,1"], "leave --skew out"),
        (
            ["--topo", "dgx-1v", "--gpus", "0-4", "--sharing", "unfair"],
            "--sharing unfair is for plans of ours; for this",
        ),
        (["--topo", "dgx-1v", "--gpus", "0-4", "--budget", "100"], "more than the budget of 100; take larger messages"),
        (["--topo", "dgx-1v", "--gpus", "0-4", "--algo", "fastest"], "unknown algorithm 'fastest'"),
    ],
)
def test_what_is_refused(blink, five: Path, arguments: list[str], says: str) -> None:
    blink("sim", five / "five.xml", *arguments).assert_refused(says)


def test_a_wrong_plan_is_a_failed_check(blink, tmp_path: Path) -> None:
    file = tmp_path / "wrong.xml"
    file.write_text(foreign_files.gathered_reduce_scatter().replace('hasdep="1"', 'hasdep="0"'))
    ended = blink("sim", file, "--topo", "clique:3")
    assert (ended.code, ended.out) == (1, "")
    assert "wrong.xml is not what it says it is: deadlock" in ended.err


def test_plans_by_hand_are_timed_whoever_wrote_them(blink, tmp_path: Path) -> None:
    made = [foreign_files.ring_allreduce(), foreign_files.pair_allgather(), foreign_files.relayed_alltoall()]
    made += [foreign_files.gathered_reduce_scatter(), foreign_files.broadcast_from_1()]
    documents = [foreign_files.read_allreduce(), foreign_files.put_reduce_scatter(), foreign_files.port_allgather()]
    documents += [foreign_files.packet_allreduce(), foreign_files.grouped_allreduce()]
    for text in [*made, *map(foreign_files.text, documents)]:
        (found, *_) = audits(text.encode(), "by hand") or ()
        file = tmp_path / ("plan.xml" if text.startswith("<") else "plan.json")
        file.write_text(text)
        ranks = found.plan.collective.world_size
        topology = f"clique:{ranks}"
        assert parse_spec(topology).ranks == tuple(range(ranks))
        document = json.loads(blink("sim", file, "--topo", topology, "-s", "32M", "--json").out)
        first = document["sizes"][0]["algorithms"][0]
        assert first["algorithm"] == file.name
        assert 0 < first["percent_bound"] <= 100.1
