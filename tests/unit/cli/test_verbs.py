"""Output of the verbs: documented JSON fields, and files that other verbs read."""

import io
import json
from pathlib import Path

import pytest

import blinkccl
from blinkccl.collectives.spec import COLLECTIVES

FIXTURES = Path(__file__).parents[3] / "src/blinkccl/topology/fixtures"
REFUSED = ("README.md", "dgx-2-truncated.nvidia-smi.txt", "no-gpu-tags.nccl.xml", "rings.nccl-graph.xml")
READABLE = sorted(path.name for path in FIXTURES.iterdir() if path.name not in REFUSED)
PLAN_KEYS = (
    "schema_version collective algorithm ranks unit_gb_per_s rate bound optimal certificate algbw_gb_per_s shares "
    "link_load plan_seconds"
)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_plan_json_has_the_documented_fields(blink, name):
    plan = json.loads(blink("plan", name, "--topo", "dgx-1v", "--gpus", "1,4,5,6", "--json").out)
    assert set(plan) >= set(PLAN_KEYS.split())
    assert plan["schema_version"] == 2
    assert plan["ranks"] == [1, 4, 5, 6]
    assert plan["unit_gb_per_s"] == 25.0
    assert plan["optimal"] is True
    assert set(plan["shares"][0]) == {"weight", "slice", "block", "root", "reduce", "broadcast"}
    assert set(plan["link_load"][0]) == {"src", "dst", "load", "capacity"}


@pytest.mark.parametrize(("theirs", "ours"), [("all_reduce", "allreduce"), ("all_to_all", "alltoall")])
def test_names_of_pytorch_and_nccl_tests_are_accepted(blink, theirs, ours):
    job = ("--topo", "dgx-1v", "--gpus", "0-3")
    assert blink("plan", theirs, *job).out == blink("plan", ours, *job).out
    assert blink("sim", theirs, *job, "--json").code == 0
    assert blinkccl.plan(theirs, "dgx-1v", gpus=[0, 1, 2, 3]).forest.collective.name == ours


def test_plans_on_stdout_and_with_a_byte_order_mark(blink, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-3", "-o")
    written = blink(*command, "-")
    assert (written.code, list(tmp_path.iterdir())) == (0, [])
    blink(*command, "plan.json")
    assert Path("plan.json").read_text() == written.out
    Path("plan.json").write_text("\ufeff" + written.out)
    assert "proved" in blink("check", "plan.json").out


def test_plan_gives_the_numbers_of_the_paper(blink):
    plan = json.loads(blink("plan", "allreduce", "--topo", "dgx-1v", "--json").out)
    assert (plan["rate"], plan["bound"], plan["certificate"]["kind"]) == ("24/7", "24/7", "partition")
    few = json.loads(blink("plan", "broadcast", "--topo", "dgx-1v", "--objective", "fewest-trees", "--json").out)
    assert (few["rate"], len(few["shares"])) == ("6", 4)
    shallow = json.loads(blink("plan", "broadcast", "--topo", "dgx-1v", "--objective", "least-depth", "--json").out)
    assert (shallow["rate"], shallow["depth"]) == ("6", 4)


def test_ends_are_vertex_ids(blink):
    arguments = ["--topo", "dgx-1v", "--gpus", "1,4,5,6", "--json"]
    assert json.loads(blink("plan", "reduce", *arguments).out)["root"] == 1
    assert json.loads(blink("plan", "reduce", "--root", "5", *arguments).out)["root"] == 5


def test_relays_may_only_help(blink):
    arguments = ["plan", "sendrecv", "--topo", "dgx-1v", "--gpus", "0,3", "--json"]
    alone, helped = json.loads(blink(*arguments).out), json.loads(blink(*arguments, "--relays").out)
    assert (alone["rate"], helped["rate"]) == ("2", "6")


def test_a_written_plan_has_no_time_and_checks(blink, tmp_path):
    path = tmp_path / "plan.json"
    ended = blink("plan", "allgather", "--topo", "dgx-1v", "-o", path)
    assert ended.err == f"blink: wrote {path}\n"
    assert "plan_seconds" not in json.loads(path.read_text())
    assert blink("check", path).code == 0
    assert blink("check", path, "--topo", "dgx-1v").code == 0
    elsewhere = blink("check", path, "--topo", "dgx-1p")
    assert elsewhere.code == 1
    assert "GB/s in the topology given beside it" in elsewhere.out


def _changed_plan(blink, path, change, collective, *options):
    """Write a plan on a DGX-1V with ``options``, after ``change``."""
    blink("plan", collective, "--topo", "dgx-1v", *options, "-o", path)
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))


def test_a_plan_without_topology_needs_one(blink, tmp_path):
    path = tmp_path / "plan.json"
    _changed_plan(blink, path, lambda plan: plan.pop("topology"), "allreduce", "--gpus", "1,4,5,6")
    blink("check", path).assert_refused(
        f"{path}: the plan has no topology: give the machine that it was made for, --topo SPEC"
    )
    assert blink("check", path, "--topo", "dgx-1v").code == 0


@pytest.mark.parametrize(
    ("links", "relays"), [("fast", False), ("pcie", False), ("staged", False), ("all", False), ("fast", True)]
)
def test_the_links_of_a_plan_without_topology_are_found_again(blink, tmp_path, links, relays):
    path = tmp_path / "plan.json"
    options = ["--links", links, *(["--relays"] if relays else [])]
    gpus = "0,1,2,6" if relays else "0,1,2"
    _changed_plan(blink, path, lambda plan: plan.pop("topology"), "broadcast", "--gpus", gpus, *options)
    ended = blink("check", path, "--topo", "dgx-1v")
    assert ended.code == 0, ended.out
    assert f"optimal on the links of dgx-1v with {' '.join(options)}" in ended.out
    if links == "pcie":
        blink("check", path, "--topo", "dgx-1v", "--links", "fast").assert_refused(
            "match --links pcie, not --links fast"
        )


def test_check_says_on_which_links_a_plan_is_optimal(blink, tmp_path):
    path = tmp_path / "plan.json"
    blink("plan", "broadcast", "--topo", "ring:4", "-o", path)
    assert "optimal on the links that the plan lists\n" in blink("check", path).out
    assert "optimal on the links of ring:4 with --links fast" in blink("check", path, "--topo", "ring:4").out
    more = blink("check", path, "--topo", "clique:4")
    assert more.code == 0
    assert (
        "optimal on the links that the plan lists, which are not all that clique:4 has for these ranks with any --links"
    ) in more.out


def test_standard_input_as_topology_and_plan(blink, monkeypatch):
    for arguments, text in (
        (["topo", "-"], blink("topo", "ring:4", "--json").out),
        (["plan", "reduce", "--topo", "- @ pcie=gen4"], "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n"),
        (["plan", "reduce", "--topo", "-"], blink("topo", "ring:4", "--json").out),
        (["check", "-"], blink("plan", "reduce", "--topo", "ring:4", "--json").out),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert blink(*arguments).code == 0
    blink("check", "-", "--topo", "-").assert_refused("standard input can be read once")


@pytest.mark.parametrize(
    ("change", "violation"),
    [
        (lambda plan: plan["shares"][0]["broadcast"].pop(0), "rank 0 never gets slice 0"),
        (lambda plan: plan["shares"][0]["reduce"][0].reverse(), "rank 2, channel 0, step"),
        (lambda plan: plan["shares"][0]["reduce"].append(plan["shares"][0]["reduce"][0]), "rank 2, channel 0, step"),
        (lambda plan: plan["shares"][0].update(weight="1/3"), ""),
        (lambda plan: plan["certificate"].update(capacity="99"), ""),
        (lambda plan: plan["shares"][0]["broadcast"].__setitem__(0, [1, 6]), ""),
        (lambda plan: plan.update(rate="99"), "rate: 99 is stated, recomputed "),
    ],
    ids=["lost edge", "edge turned round", "doubled contribution", "weight", "certificate", "no link", "rate"],
)
def test_damaged_plans_are_refused(blink, tmp_path, change, violation):
    path = tmp_path / "plan.json"
    _changed_plan(blink, path, change, "allreduce", "--gpus", "1,4,5,6")
    ended = blink("check", path)
    assert ended.code == 1
    assert "refused" in ended.out
    document = json.loads(blink("check", path, "--json").out)
    assert document["ok"] is False
    by = "checker" if "stated" in violation else "verifier"
    texts = [entry["text"] for entry in document["violations"] if entry["by"] == by or not violation]
    assert any(violation in text for text in texts)


def test_check_json(blink, tmp_path):
    path = tmp_path / "plan.json"
    blink("plan", "reduce_scatter", "--topo", "ring:4", "-o", path)
    document = json.loads(blink("check", path, "--json").out)
    assert document == {
        "schema_version": 2,
        "ok": True,
        "collective": "reduce_scatter",
        "algorithm": "optimal",
        "ranks": [0, 1, 2, 3],
        "rate": document["bound"],
        "bound": document["bound"],
        "optimal": True,
        "plan_schema_version": 2,
        "optimal_on": "the links that the plan lists",
        "assumed": [],
        "violations": [],
    }


def test_topo_json_has_the_links_of_a_plan(blink):
    topology = json.loads(blink("topo", "dgx-1v", "--json").out)
    assert topology["schema_version"] == 2
    assert topology["unit_gb_per_s"] == 25.0
    assert [vertex["kind"] for vertex in topology["vertices"]] == ["gpu"] * 8
    assert len(topology["links"]) == 32
    assert sorted(topology["links"][0]) == ["capacity", "dst", "gb_per_s", "kind", "provenance", "src"]
    everything = json.loads(blink("topo", "dgx-1v", "--links", "all", "--json").out)
    assert {link["kind"] for link in everything["links"]} == {"nvlink", "pcie", "smp"}


def test_topo_json_shows_all_links_if_fast_ones_join_nothing(blink):
    ended = blink("topo", "pcie-8gpu-nvlink-pairs", "--json")
    assert ended.code == 0
    assert {link["kind"] for link in json.loads(ended.out)["links"]} == {"nvlink", "pcie", "smp"}
    assert "; all links are shown" in ended.err
    assert blink("topo", "pcie-8gpu-nvlink-pairs", "--links", "fast", "--json").code == 2


@pytest.mark.parametrize("suffix", ["json", "xml"])
def test_written_topologies_read_back(blink, tmp_path, suffix):
    path = tmp_path / f"dgx-1v.{suffix}"
    assert blink("topo", "dgx-1v", "-o", path).code == 0
    arguments = ["--gpus", "1,4,5,6", "--json"]
    again = json.loads(blink("plan", "allreduce", "--topo", path, *arguments).out)
    first = json.loads(blink("plan", "allreduce", "--topo", "dgx-1v", *arguments).out)
    assert again["shares"] == first["shares"]
    assert blink("topo", path).out.splitlines()[2:11] == blink("topo", "dgx-1v").out.splitlines()[2:11]


def test_plan_begins_with_a_summary_and_ends_with_nccl(blink):
    ended = blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6")
    labels = [line.split()[0] for line in ended.out.splitlines() if line]
    assert labels[:4] == ["allreduce", "links", "rate", "bound"]
    assert labels[-2:] == ["nccl", "paper"]
    assert "this plan 50 GB/s: 7.5 times as fast, nominal rates" in ended.out


def test_topo_svg(blink, tmp_path):
    path = tmp_path / "x.svg"
    assert blink("topo", "2x dgx-a100", "-o", path).code == 0
    assert path.read_text().startswith("<svg ")


def test_this_machine(blink):
    assert json.loads(blink("topo", "--json").out)["vertices"]


@pytest.mark.parametrize("name", READABLE)
def test_sample_files(blink, name):
    assert blink("topo", FIXTURES / name).code == 0
    assert blink("topo", FIXTURES / name, "--json").code == 0
    ended = blink("plan", "allreduce", "--topo", FIXTURES / name, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["optimal"] is True


@pytest.mark.parametrize("verb", ["topo", "plan", "check", "bench", "explain", "tune", "pick", "doctor"])
def test_help_starts_with_examples(blink, verb):
    ended = blink(verb, "--help")
    assert ended.code == 0
    usage, _, rest = ended.out.partition("\n")
    assert usage.startswith(f"Usage: blink {verb}")
    assert rest.lstrip().startswith("Examples:")
    assert f"blink {verb}" in rest
