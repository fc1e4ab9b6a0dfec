"""Mistakes on the command line end with exit code 2, one clear sentence, and no traceback."""

import json
import re
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[3] / "src/blinkccl/topology/fixtures"

#: The first words of a command: (further words, part of the message).
REFUSED: dict[str, list[tuple[list[str], str]]] = {
    "plan allreduce": [
        (["--topo", "dgx-1v", "--gpus", "1,1,4"], "GPU 1 is given twice"),
        (["--topo", "dgx-1v", "--gpus", "0,99"], "GPU 99 is not in dgx-1v"),
        (["--topo", "dgx-1v", "--gpus", "0,8"], "8 is not a GPU of dgx-1v but its switch"),
        (["--topo", "dgx-1v", "--gpus", "0,x"], "'x' is no GPU number"),
        (["--topo", "dgx-1v", "--gpus", "3-1"], "3-1 is no range"),
        (["--topo", "dgx-1v", "--gpus", "0,1+2,3"], "2 lists for 1 server"),
        (["--topo", "dgx-1v", "--gpus", "5"], "fewer than two ranks"),
        (["--topo", "dgx-1v", "--links", "slow"], "unknown links 'slow'; expected one of fast, pcie, staged, all"),
        (["--topo", "dgx-1v", "--root", "0"], "allreduce has no root"),
        (["--topo", "dgx-1v", "--gpus", ""], "--gpus is empty; leave it out for all GPUs"),
        (["--topo", "dgx-1v", "--gpus", "0-99"], "the range 0-99 goes beyond the last GPU, 7"),
        (["--topo", "ring:4", "--links", "pcie"], "this topology has no PCIe links; --links fast or --links all would"),
        (["--topo", "ring:999999999999"], "too many GPUs: at most 1024"),
        (
            ["--topo", "dgx-1v", "-o", "no/such/folder/x.json"],
            "no/such/folder/x.json cannot be written: there is no folder no/such/folder",
        ),
        (["--topo", "dgx-1v", "-o", "."], ". cannot be written"),
        (["--topo", "ring:zero"], "ring"),
        (["--topo", "2x dgx-1v"], "40Gbps"),
        (["--topo", "2x dgx-1v @ fast"], "not a rate: 'fast'"),
        (["--topo", "missing.xml"], "missing.xml: there is no such file"),
        (["--topo", ""], "no topology given"),
        (["--topo", "dgx-1v", "--objective", "best"], "--objective best: expected one of shallow"),
        (["--topo", "dgx-1v", "--without", "0-5"], "dgx-1v has no link 0-5; 0 has links to 1-4"),
        (["--topo", "dgx-1v", "--without", "0-x"], "--without 0-x: '0-x' is no link; expected two vertices like 0-3"),
        (["--topo", "dgx-1v", "--gpus", "0-3", "--without", "5"], "--without 5: GPU 5 is no rank of the job"),
        (["--topo", "dgx-1v", "--without", "8"], "8 is not a GPU of dgx-1v but its switch"),
        (["--topo", "dgx-1v", "--gpus", "0,1", "--without", "1"], "fewer than two ranks"),
        (["--topo", "dgx-1v", "--gpus", "0,1", "--without", "0,1"], "these are all GPUs of the job; expected some"),
        (["--topo", "clique:2", "--without", "0-1"], "--links fast leaves the GPUs 0,1 in 2 parts"),
        (["--topo", "dgx-1v", "-o", "p.svg"], "a plan is written as JSON; expected a name that ends in .json"),
    ],
    "plan broadcast --topo dgx-1v --gpus 1,4,5,6": [
        (["--root", "0"], "--root 0 is not among the GPUs of the job: expected one of 1, 4, 5, 6"),
        (["--root", "-1"], "--root -1 is not among the GPUs"),
    ],
    "plan sendrecv --topo dgx-1v": [(["--gpus", "5"], "fewer than two ranks")],
    "lab --topo dgx-1v": [
        (["broadcast", "--lane", "0"], "--lane 0.0: expected a positive number of Mbit/s"),
        (["broadcast", "--lane", "0.001"], "would be shaped to 0.001 Mbit/s; give a --lane for which every link is"),
        (["broadcast", "--algo", "optimal,best"], "unknown algorithm 'best'; expected one of"),
        (["broadcast", "--algo", "double_binary_tree"], "no algorithm can run: "),
        (["broadcast", "--fail", "melt:0-3"], "--fail melt:0-3: expected cut:0-3, slow:0-3 or lossy:0-3"),
        (["broadcast", "--fail", "9"], "--fail kill:9: not a rank of the job"),
        (["broadcast", "-b", "2M", "-e", "1M"], "-e 1M is below -b 2M"),
        (
            ["broadcast", "-o", "t.json", "--fail", "cut:0-3"],
            "-o writes measured times, and --fail measures none",
        ),
        (["sendrecv", "--algo", "path:0-x"], "path:0-x: expected a path of vertices, as in path:0-4-1"),
    ],
    "bench allreduce --topo ring:4": [
        (["-b", "1Q"], "-b: not a size"),
        (["-b", "4K", "-e", "1K"], "-e 1K is below -b 4K"),
        (["-b", "4K", "-e", "8K", "-f", "1"], "-f 1"),
        (["-b", "999T"], "at most 1T"),
        (["-b", "900G"], "of memory for 4 ranks"),
        (["-n", "0"], "-n must be at least 1"),
        (["-d", "complex64"], "-d complex64: expected one of int8, uint8"),
        (["-d", "float99"], "half, bfloat16, float, double, f8e4m3"),
        (["-o", "xor"], "--op xor: expected one of sum, prod, min, max, avg, mulsum, band"),
    ],
    "pick --topo dgx-1v": [
        (["-k", "1"], "-k 1"),
        (["-k", "9"], "-k 9"),
        (["-k", "3", "--free", ""], "--free is empty; leave it out for all GPUs"),
        (["-k", "3", "--free", "0-9"], "--free 0-9: the range 0-9 goes beyond the last GPU, 7"),
        (["-k", "3", "--free", "0,1"], "expected 2 to 2, the number of free GPUs"),
        (["-k", "3", "--collective", "sum"], "unknown collective 'sum'"),
        (["-k", "3", "--top", "0"], "--top"),
        (["-k", "20", "--topo", "8x dgx-a100"], "name fewer GPUs with --free"),
        ([], "-k"),
    ],
    "sim allreduce --topo dgx-1v": [
        (["--size", ""], "--size: not a size in bytes: ''"),
        (["--size", "9E"], "--size: not a size in bytes"),
        (["--size", "9999999999T"], "at most 2^63 - 1 bytes"),
        (["-b", "1M", "-e", "4K"], "-e 4K is below -b 1M; expected sizes from the smaller to the larger"),
        (["--chunk", "0"], "at least one byte"),
        (["--calibration", "v200"], "no calibration 'v200': expected one of"),
        (["--algo", "rings"], "unknown algorithm 'rings'"),
        # An empty word, from an empty variable of a script, is no valid value.
        (["--algo", ""], "unknown algorithm ''"),
        (["--calibration", ""], "no calibration ''"),
        (["--chunk", ""], "--chunk: not a size in bytes: ''"),
        (["--code", ""], "unknown code ''; expected one of"),
        (["--links", ""], "unknown links ''; expected one of fast, pcie, staged, all"),
        (["--plot", "f.doc"], "expected a name that ends in"),
        (["--size", "1M", "-b", "4K"], "--size is for one size"),
        (["--algo", "nccl-2.30", "--timeline", "t.json"], "no algorithm here has one (NCCL's models and hybrid"),
        (["--algo", "optimal", "--model", "lenet"], "lenet"),
        (["--algo", "optimal", "--topo", "hgx-h100", "--model", "vgg16"], "no published throughputs for h100 GPUs"),
    ],
    "tune": [
        (["-g", "2", "--topo", "clique:3"], "-g is for ranks on this host's CPUs, --topo and --gpus for GPUs"),
        (["alltoall", "--topo", "clique:3"], "collective 'alltoall': on GPUs, expected some of allreduce, "),
        (["--topo", "clique:3", "--gpus", "1"], "expected at least 2 GPUs, got 1 rank(s) of clique:3"),
        (["--topo", "nowhere"], "nowhere"),
    ],
}


@pytest.mark.parametrize(
    ("typed", "message"),
    [([*verb.split(), *options], message) for verb, rows in REFUSED.items() for options, message in rows],
)
def test_a_mistake_is_refused_and_writes_no_file(blink, tmp_path, monkeypatch, typed, message):
    monkeypatch.setattr("blinkccl.apps.lab.namespaces.lacking", lambda: None)
    monkeypatch.chdir(tmp_path)
    blink(*typed).assert_refused(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("gpus", "ends"), [("1,4,5,6", (1, 6)), ("6,1", (6, 1))])
def test_sendrecv_goes_from_the_first_gpu_to_the_last(blink, gpus, ends):
    plan = json.loads(blink("plan", "sendrecv", "--topo", "dgx-1v", "--gpus", gpus, "--json").out)
    assert (plan["src"], plan["dst"]) == ends


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe\x00", "no UTF-8"),
        (b"hello, world\n", "no topology (blink doctor reads logs)"),
        (b'{"schema_version": 2, "name": "x", "unit_gb_per_s": 1.0, "vertices": [', "no JSON"),
        (b'<!DOCTYPE s [<!ENTITY a "b">]><system version="1"/>', "are refused, as no topology format"),
        (b"<system>" * 400, ""),
        (
            b'<system><cpu><pci busid="0"><gpu dev="1000000000"/></pci></cpu></system>',
            "expected a whole number from 0 to",
        ),
    ],
)
def test_files_that_are_no_topology(blink, tmp_path, content, message):
    path = tmp_path / "given"
    path.write_bytes(content)
    ended = blink("topo", path)
    ended.assert_refused(message)
    assert "given" in ended.err


def _topology_json(**changes):
    vertices = [{"id": 0, "kind": "gpu"}, {"id": 1, "kind": "gpu"}]
    links = [{"src": s, "dst": 1 - s, "kind": "nvlink", "capacity": 1} for s in (0, 1)]
    return json.dumps(
        {"schema_version": 2, "name": "x", "unit_gb_per_s": 25.0, "vertices": vertices, "links": links, **changes}
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "\x1b[2Jgone"}, "name has the control character U+001B"),
        ({"name": "x" * 201}, "name has 201 characters, expected at most 200"),
        ({"notes": ["one", "two\nlines"]}, "notes[1] has the control character U+000A"),
        (
            {"vertices": [{"id": 0, "kind": "gpu", "name": "G\u202e"}, {"id": 1, "kind": "gpu"}]},
            "vertices[0].name has the control character U+202E",
        ),
        ({"schema_version": 99, "new": True}, "schema_version 99; this blink reads 1 and 2"),
        ({"\x1b[31m": 1}, "unknown field"),
        ({"x" * 100_000: 1}, "unknown field `xxx"),
    ],
)
def test_texts_that_a_terminal_would_obey(blink, tmp_path, changes, message):
    path = tmp_path / "given.json"
    path.write_text(_topology_json(**changes))
    ended = blink("topo", path)
    ended.assert_refused(message)
    assert f"{path}: " in ended.err
    assert "\x1b" not in ended.err
    assert len(ended.err) < 600


def test_a_path_is_shown_as_it_was_given(blink, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/given.json").write_text("{")
    assert "error: ./folder//given.json, line 1, column 2: no JSON" in blink("topo", "./folder//given.json").err


def test_an_xml_name_that_a_terminal_would_obey(blink, tmp_path):
    path = tmp_path / "given.xml"
    text = (FIXTURES / "hgx-h100.nccl.xml").read_text()
    path.write_text(re.sub(r'<net name="[^"]*"', '<net name="a\x9b31m"', text, count=1))
    blink("topo", path).assert_refused("has the control character U+009B")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx-2-truncated.nvidia-smi.txt", "GPU rows are missing"),
        ("no-gpu-tags.nccl.xml", "NCCL_TOPO_DUMP_FILE"),
        ("rings.nccl-graph.xml", "this is a graph file"),
    ],
)
def test_sample_files_that_must_be_refused(blink, name, message):
    ended = blink("plan", "allreduce", "--topo", FIXTURES / name)
    ended.assert_refused(name)
    assert message in ended.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "plan.json: the file is empty"),
        (b'{"schema_version": 2,\n "ranks": [1,]}', "plan.json, line 2, column 14: not JSON"),
        (b'{"schema_version": 2,\n "ranks": [1', "plan.json, line 2, column 13: not JSON: Input data was truncated"),
        (b'{"schema_version": 2, "\xff": 2}', "plan.json"),
        (b'{"schema_version": 2, "ranks": [0, 1], "shares": []}', "give the machine that it was made for, --topo SPEC"),
        (b"[]", "expected an object"),
        (b"{}", "schema_version"),
        (b'{"schema_version": 99}', "plan.json: schema_version 99; this blink reads 1, 2 and 3"),
        (b'{"schema_version": 2, "topology": {"schema_version": 99}}', "topology: schema_version 99; this blink"),
        (b"\x00\xff", "not JSON"),
        (b"\tGPU0\tGPU1\nGPU0\tX\tNV1\n", 'not JSON; expected what "blink plan -o" writes'),
        (
            b'{"schema_version": 2, "name": "x", "vertices": []}',
            "expected a plan, got a topology; blink plan COLLECTIVE --topo",
        ),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_plans_that_are_none(blink, tmp_path, content, message):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    blink("check", path).assert_refused(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.update(algorithm="\x1b]0;title\x07"), "algorithm: has"),
        (lambda plan: plan.update(algorithm="x" * 201), "algorithm: has"),
        (lambda plan: plan["shares"][1].update(weight=0.5), "shares[1].weight"),
    ],
)
def test_a_plan_with_a_wrong_field_names_the_place(blink, tmp_path, change, message):
    path = tmp_path / "plan.json"
    blink("plan", "reduce", "--topo", "ring:4", "-o", path)
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))
    blink("check", path).assert_refused(f"{path}: {message}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0," * 50_000],
        ["plan", "allreduce", "--topo", "dgx-1v", "--root", "x" * 100_000],
        ["plan", "x" * 100_000, "--topo", "dgx-1v"],
        ["x" * 100_000],
        ["sim", "allreduce", "--topo", "dgx-1v", "--size", "9" * 5_000],
    ],
)
def test_messages_do_not_quote_an_argument_of_any_length(blink, arguments):
    ended = blink(*arguments)
    assert ended.code == 2
    assert len(ended.err) < 2_500
    assert "set_int_max_str_digits" not in ended.err


@pytest.mark.parametrize(
    ("spec", "name", "message"),
    [
        ("ring:4", "x.png", "one of .json, .xml, .svg"),
        *((spec, "x.xml", "a place for GPUs on PCIe only; write JSON") for spec in ("ring:6", "star:4", "clique:4")),
    ],
)
def test_topologies_that_cannot_be_written_so(blink, tmp_path, spec, name, message):
    blink("topo", spec, "-o", tmp_path / name).assert_refused(message)
    assert not (tmp_path / name).exists()


def test_xml_that_does_not_keep_everything_says_so(blink, tmp_path):
    ended = blink("topo", "mist", "-o", tmp_path / "x.xml")
    assert ended.code == 0
    assert "x.xml loses facts that JSON would keep: read back, --links pcie gives" in ended.err
