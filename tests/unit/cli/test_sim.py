"""``blink sim`` on the command line: tables, JSON, files, and refusals."""

import json
import re
from pathlib import Path

import pytest

from support.trace_reader import read_trace


def test_json_is_one_object_with_all_numbers(blink) -> None:
    ended = blink("sim", "broadcast", "--topo", "dgx-1p", "-e", "1M", "--algo", "optimal,ring", "--json")
    document = json.loads(ended.out)
    assert document["schema_version"] == 2
    assert [row["size_bytes"] for row in document["sizes"]] == [4096 * 4**k for k in range(5)]
    for row in document["sizes"]:
        assert [one["algorithm"] for one in row["algorithms"]] == ["optimal", "ring"]
        for one in row["algorithms"]:
            assert one["algbw_gb_per_s"] == pytest.approx(row["size_bytes"] / one["seconds"] / 1e9)
            assert one["percent_bound"] == pytest.approx(100 * one["algbw_gb_per_s"] / document["bound_gb_per_s"])
    assert document["wins"][-1]["last_bytes"] == 2**20
    assert set(document["decided_by"]) == {"algorithm", "size_bytes", "seconds", "hops", "links"}


def test_a_plan_file_is_timed_as_its_algorithm(blink, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--algo", "blink", "-o", plan).code == 0
    from_file = json.loads(blink("sim", plan, "--json").out)
    planned = json.loads(blink("sim", "allreduce", "--topo", "dgx-1v", "--algo", "blink", "--json").out)
    assert from_file["sizes"] == planned["sizes"]


@pytest.mark.parametrize(
    "change", [lambda plan: plan["shares"][0]["broadcast"].pop(), lambda plan: plan.update(bound="144")]
)
def test_a_plan_that_is_false_is_a_failed_check(blink, tmp_path: Path, change) -> None:
    plan = tmp_path / "plan.json"
    blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0,1,2,3", "-o", str(plan))
    document = json.loads(plan.read_text())
    change(document)
    plan.write_text(json.dumps(document))
    ended = blink("sim", str(plan))
    assert ended.code == 1
    assert "is not a correct plan" in ended.err


def test_a_plan_file_needs_no_option(blink, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-4", "-o", plan).code == 0
    assert "allreduce among GPUs 0-4 of dgx-1v" in blink("sim", plan, "-s", "1M").out
    blink("sim", tmp_path / "none.xml").assert_refused("none.xml cannot be read: No such file or directory")


def test_a_plan_over_relays_has_the_bound_of_its_links(blink, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    for options in (["--gpus", "1,4,6", "--relays"], ["--gpus", "0,1,2", "--links", "all"]):
        assert blink("plan", "broadcast", "--topo", "dgx-1v", *options, "-o", plan).code == 0
        ended = blink("sim", plan, "--size", "1G", "--calibration", "nominal")
        assert ended.code == 0, ended.err
        assert "no schedule of trees on the plan's links is faster" in ended.out
        document = json.loads(blink("sim", plan, "--size", "1G", "--calibration", "nominal", "--json").out)
        assert document["sizes"][0]["algorithms"][0]["percent_bound"] <= 100


def test_the_timeline_is_chromes(blink, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert blink("sim", "allreduce", "--topo", "dgx-1v", "--size", "1M", "--timeline", str(path)).code == 0
    trace = read_trace(path.read_text())
    assert [name.partition(":")[0] for name in trace.processes.values()] == [*(f"rank {r}" for r in range(8)), "links"]
    assert trace.arrows
    assert trace.counters


def test_a_calibration_without_the_links_class_says_so(blink, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'schema_version = 2\nname = "mine"\nabout = "x"\n[engine]\n[[link]]\nkind = "pcie"\nnominal_gb_per_s = 12.0\n'
        'gb_per_s = { value = 9.0, source = "x" }\nlatency_us = { value = 1.0, source = "x" }\n'
    )
    blink("sim", "allreduce", "--topo", "dgx-1v", "--algo", "optimal", "--calibration", str(path)).assert_refused(
        "calibration mine has no link class for nvlink"
    )


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        (["allreduce", "--topo", "dgx-1p"], "kernels", "Blink's kernels on pascal GPUs, 14 blocks each"),
        (["allreduce", "--topo", "dgx-1p", "--code", "copies"], "copies", "calibration p100-copy-engine"),
        (["allreduce", "--topo", "dgx-1p", "--chunk", "1M"], "copies", "copy engines (--chunk)"),
        (["sendrecv", "--topo", "dgx-1p"], "copies", "copy engines move messages"),
        (["allreduce", "--topo", "mi250"], "copies", "kernels need NVIDIA GPUs"),
        (["allreduce", "--topo", "2x dgx-1p @ 100Gbps"], "copies", "kernels do not store between servers"),
    ],
)
def test_the_execution_of_plans_is_named_with_its_reason(blink, options: list[str], code: str, why: str) -> None:
    command = ["sim", *options, "--algo", "optimal", "--size", "1M"]
    assert why in blink(*command).out
    document = json.loads(blink(*command, "--json").out)
    assert document["code"] == code
    (row,) = document["sizes"][0]["algorithms"]
    assert (row["protocol"] is None) == (document["calibration"] is not None) == (code == "copies")


def test_a_run_of_too_many_chunks_is_timed_in_coarser_ones(blink, monkeypatch) -> None:
    monkeypatch.setattr("blinkccl.cost.simulate.run.EVENT_BUDGET", 1000)
    command = ["sim", "broadcast", "--topo", "ring:2", "--algo", "optimal", "--size", "1G", "--chunk", "64K", "--json"]
    (coarse,) = json.loads(blink(*command).out)["sizes"][0]["algorithms"]
    assert coarse["aggregated"] > 1
    assert coarse["transfers"] <= 1000
    assert coarse["how"].endswith(f", {coarse['aggregated']} chunks timed as one")


def test_a_bound_of_sizes_is_a_sweep(blink) -> None:
    command = ["sim", "allreduce", "--topo", "dgx-1v", "--algo", "optimal"]
    for limit, sizes in (
        (["-b", "256M"], [2**28, 2**30]),
        (["-e", "16K"], [2**12, 2**14]),
    ):
        assert [row["size_bytes"] for row in json.loads(blink(*command, *limit, "--json").out)["sizes"]] == sizes
    ended = blink(*command, "-e", "16K")
    assert "fastest by size" in ended.out
    assert "critical path" not in ended.out


def test_a_size_that_moves_nothing_has_no_winner(blink, tmp_path: Path) -> None:
    command = ["sim", "allgather", "--topo", "dgx-1v", "--algo", "optimal,ring"]
    one = blink(*command, "--size", "28")
    assert one.code == 0, one.err
    assert "nothing moves: fewer than one element per block" in one.out
    assert "nothing moves" not in blink(*command, "--size", "32").out
    swept = blink(*command, "-b", "16", "-e", "64").out.splitlines()
    stars = {line.split()[0]: "*" in line for line in swept if line.split()[:1] in (["16"], ["64"]) and "µs" in line}
    assert stars == {"16": False, "64": True}
    assert [line.split()[0] for line in swept[swept.index("fastest by size:") + 1 :] if line] == ["64"]


def test_a_size_that_moves_nothing_is_not_drawn(blink, tmp_path: Path) -> None:
    path = tmp_path / "f.svg"
    command = ["sim", "allgather", "--topo", "dgx-1v", "--algo", "optimal,ring", "--plot", str(path)]
    nothing = blink(*command, "-b", "4", "-e", "16")
    assert nothing.code == 2
    assert "--plot: every size is smaller than one element per block; give a larger -b or -e" in nothing.err
    assert not path.exists()
    assert blink(*command, "-b", "4", "-e", "64").code == 0
    drawn = path.read_text()
    assert all(f">{words}<" in drawn for words in ("optimal", "proved bound", "algbw, GB/s", "64"))


def test_beyond_gigabytes_there_are_units_too(blink, monkeypatch) -> None:
    monkeypatch.setattr("blinkccl.cost.simulate.run.EVENT_BUDGET", 1000)
    for size, shown in (("2T", "2T (2,199,023,255,552 bytes)"), ("4096T", "4P ("), ("1048576T", "1E (")):
        ended = blink("sim", "broadcast", "--topo", "ring:2", "--algo", "optimal", "--size", size)
        assert shown in ended.out, ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p.json"], "a plan has its own collective, links and ranks: leave --topo out"),
        (["p.json", "--links", "all"], "leave --links, --topo out"),
        (["p.json", "--relays"], "leave --relays, --topo out"),
        (["allreduce", "--algo", "hybrid"], "hybrid cannot be predicted with kernels; use --code copies"),
        (["allreduce", "--code", "threads"], "unknown code 'threads'; expected one of kernels, copies"),
        (["allreduce", "--code", "kernels", "--chunk", "1M"], "--code kernels: --chunk is for copies; leave one out"),
        (["sendrecv", "--code", "kernels"], "kernels do not run sendrecv: copy engines move messages"),
        (["broadcast", "--algo", "optimal", "--model", "vgg16"], "reduces gradients by allreduce, not by broadcast"),
        (["allreduce", "--model", "transformer:7B:0:1"], "expected transformer:PARAMETERS:BLOCKS:TOKENS, like"),
        (
            ["allreduce", "--algo", "hybrid", "--code", "copies", "--size", "1G", "--timeline", "t.json"],
            "no algorithm here has one (NCCL's models and hybrid have none); add another with --algo",
        ),
    ],
)
def test_jobs_that_cannot_be_timed(blink, tmp_path: Path, monkeypatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    ended = blink("sim", *arguments, "--topo", "dgx-1v")
    assert ended.code == 2
    assert message in ended.err
    assert not list(tmp_path.iterdir())


def test_the_papers_search_ends_near_the_best_chunk(blink) -> None:
    seconds = {}
    for choice in ("near", "miad"):
        job = ["broadcast", "--topo", "dgx-1v", "--algo", "blink", "--size", "16M", "--chunk", choice, "--json"]
        (row,) = json.loads(blink("sim", *job).out)["sizes"][0]["algorithms"]
        seconds[choice] = row["seconds"]
    assert seconds["near"] <= seconds["miad"] < 1.5 * seconds["near"]


def test_a_training_step_with_each_allreduce(blink) -> None:
    command = ["sim", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", "--algo", "optimal,nccl-2.4"]
    command += ["--model", "alexnet"]
    steps = {one["algorithm"]: one for one in json.loads(blink(*command, "--json").out)["steps"]}
    for one in steps.values():
        assert one["step_s"] == pytest.approx(one["compute_s"] + one["exposed_s"])
        assert 0 <= one["exposed_s"] <= one["communication_s"]
    assert steps["optimal"]["step_s"] < steps["nccl-2.4"]["step_s"]
    assert "a step of alexnet on V100s" in blink(*command).out


def test_the_table_of_paths_is_written_shown_and_read(blink, tmp_path: Path) -> None:
    file = tmp_path / "paths.json"
    command = ["sim", "sendrecv", "--topo", "mist", "--gpus", "0,1", "--algo", "multi_path"]
    ended = blink(*command, "-s", "64M", "-o", str(file))
    assert (ended.code, f"wrote {file}" in ended.err) == (0, True)
    assert "up to 1M" in ended.out
    assert "44.6 % on 0-4-1 in 8 streams" in ended.out
    written = file.read_text()
    timed = json.loads(blink(*command, "--json", "--paths", str(file)).out)
    assert [timed["paths"]] == json.loads(written)["pairs"]
    # Another pair is added; the first is kept.
    assert blink(*command[:5], "1,0", *command[6:], "-o", str(file)).code == 0
    table = json.loads(file.read_text())
    assert [(row["src"], row["dst"]) for row in table["pairs"]] == [(0, 1), (1, 0)]
    # A table measured in a laboratory is replaced.
    file.write_text(json.dumps(table | {"kind": "laboratory", "source": "measured in a laboratory"}))
    ended = blink(*command, "-o", str(file))
    assert "the new paths, simulated on calibration mist, replace the old ones, measured in a laboratory" in ended.err
    table = json.loads(file.read_text())
    assert ([row["src"] for row in table["pairs"]], table["kind"]) == ([0], "simulated")


def test_a_table_that_is_not_for_this_machine_is_ignored_with_a_line(blink, tmp_path: Path) -> None:
    file = tmp_path / "paths.json"
    blink("sim", "sendrecv", "--topo", "cedar", "--gpus", "0,1", "--algo", "multi_path", "-o", str(file))
    command = ["sim", "sendrecv", "--topo", "mist", "--gpus", "0,1", "--algo", "multi_path", "--paths", str(file)]
    ended = blink(*command)
    assert ended.code == 0
    assert "it is for machine" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert ended.out == blink(*command[:-2]).out
    file.write_bytes(file.read_bytes()[:300])
    assert "not a table of paths" in blink(*command).err
    blink(*command[:-2], "--paths", str(tmp_path / "none")).assert_refused("cannot be read")
    blink("sim", "allreduce", "--topo", "mist", "-o", str(file)).assert_refused("-o writes the table of multi_path")
    blink(*command[:-2], "-o", str(tmp_path / "no" / "where")).assert_refused("cannot be written")


def test_auto_is_the_fastest_algorithm_here_and_in_a_plan_for_that_size(blink) -> None:
    """Fewer hops win at small sizes: the plan with the best rate would be some 30 % slower."""
    job = ("allreduce", "--topo", "dgx-1v", "--gpus", "0-3", "--size", "1M")
    rows = json.loads(blink("sim", *job, "--algo", "auto,optimal,one_hop,blink", "--json").out)["sizes"][0][
        "algorithms"
    ]
    seconds = {one["algorithm"]: one["seconds"] for one in rows}
    (auto,) = (one for one in rows if one["algorithm"] == "auto")
    assert auto["seconds"] == min(seconds.values()) < seconds["optimal"]
    plan = json.loads(blink("plan", *job, "--json").out)
    best, second = plan["choice"]["timed"][:2]
    assert best == {"algorithm": plan["algorithm"], "seconds": auto["seconds"], "protocol": auto["protocol"]}
    assert f"auto: {plan['algorithm']} (" in blink("plan", *job).out.replace("\n", " ")
    assert f"next {second['algorithm']} (" in blink("plan", *job).out.replace("\n", " ")


def test_a_size_is_for_auto_alone(blink) -> None:
    ended = blink("plan", "allreduce", "--topo", "dgx-1p", "--algo", "ring", "--size", "64M")
    assert ended.code == 2
    assert "--size is for --algo auto" in ended.err


def test_a_transformers_step(blink) -> None:
    job = ["allreduce", "--topo", "hgx-h100", "--algo", "optimal,ring", "--model", "transformer:1.3B:24:2048"]
    plain = {one["algorithm"]: one for one in json.loads(blink("sim", *job, "--json").out)["steps"]}
    for name in ("optimal", "ring"):
        assert plain[name]["compute_s"] == pytest.approx(6 * 1.3e9 * 2048 / (0.45 * 989e12))
        assert plain[name]["exposed_s"] > 0
    assert "in buckets of 25M during the backward pass" in blink("sim", *job).out


def test_both_ways_of_sharing_are_reported_if_they_differ(blink) -> None:
    command = ["sim", "allreduce", "--topo", "torus:4x4", "--algo", "optimal", "--size", "64M"]
    fifo = json.loads(blink(*command, "--json").out)
    other = fifo["other_sharing"]
    assert (other["algorithm"], other["sharing"]) == ("optimal", "fair")
    assert other["seconds"] / fifo["sizes"][0]["algorithms"][0]["seconds"] > 1.05
    assert re.search(r"^sharing +optimal takes .* \(fifo\), .* \(\+1\d%\) if trans", blink(*command).out, re.M)
    equal = json.loads(blink("sim", "allreduce", "--topo", "ring:4", "--algo", "ring", "--size", "64M", "--json").out)
    assert "other_sharing" not in equal
