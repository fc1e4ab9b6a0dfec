"""``blink show``: input, output, and refusals."""

import io
import json
import os
import sys

import pytest

from blinkccl.cli import show


@pytest.fixture
def planned(blink, tmp_path):
    path = tmp_path / "plan.json"
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", "-o", path).code == 0
    return path


@pytest.mark.parametrize(
    ("suffix", "begin"), [(".html", "<!DOCTYPE html>"), (".svg", "<svg "), (".txt", "allreduce among")]
)
def test_the_suffix_chooses(blink, planned, suffix, begin):
    path = planned.with_suffix(suffix)
    ended = blink("show", planned, "-o", path)
    assert ended.code == 0
    assert ended.out == ""
    assert ended.err == f"blink: wrote {path}\n"
    text = path.read_text(encoding="utf-8")
    assert text.startswith(begin)
    blink("show", planned, "-o", path)
    assert path.read_text(encoding="utf-8") == text


def test_without_a_file_it_is_text(blink, planned):
    ended = blink("show", planned)
    assert "no schedule of unicast store-and-forward trees on these links is faster" in ended.out
    assert "this plan 50 GB/s: 7.5 times as fast, nominal rates" in ended.out
    assert blink("show", "dgx-1v").out.startswith("dgx-1v: 8 GPUs")


def test_json_has_summary_and_tables(blink, planned):
    document = json.loads(blink("show", planned, "--json").out)
    assert document["schema_version"] == 2
    assert document["kind"] == "plan"
    assert [row["term"] for row in document["summary"]][:2] == ["What", "How fast"]
    assert document["tables"][0]["rows"]


def test_topologies_of_all_kinds(blink, tmp_path):
    path = tmp_path / "x.json"
    assert blink("topo", "dgx-1v", "-o", path).code == 0
    assert blink("show", path, "-o", tmp_path / "x.html").code == 0
    assert "8 GPUs on 1 server" in (tmp_path / "x.html").read_text()
    assert blink("show", "dgx-1v", "--gpus", "0-2", "--json").out.count("3 GPUs on 1 server") == 1
    text = tmp_path / "node.txt"
    text.write_text("\tGPU0\tGPU1\nGPU0\tX\tNV2\nGPU1\tNV2\tX\n")
    assert blink("show", text, "-o", tmp_path / "node.svg").code == 0


def test_standard_input(blink, planned, monkeypatch, tmp_path):
    stdin = io.TextIOWrapper(io.BytesIO(planned.read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert blink("show", "-", "-o", tmp_path / "x.html").code == 0
    assert "blink check plan.json" in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.pdf"], "x.pdf: expected a name that ends in .html, .svg or .txt"),
        (["-o", "x"], "expected a name that ends in .html"),
        (["-o", "x.png"], "x.png: expected a name that ends in .html, .svg or .txt"),
        (["-o", "no/such/x.html"], "no/such/x.html cannot be written"),
        (["--gpus", "1"], "--gpus 1: the plan has its own GPUs; leave --gpus out"),
        (["--size", "x"], "--size: not a size"),
        (["--topo", "dgx-1w"], "unknown topology 'dgx-1w' (did you mean"),
    ],
)
def test_options_that_make_no_sense(blink, planned, arguments, message):
    blink("show", planned, *arguments).assert_refused(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("hello", "no topology (blink doctor reads logs)"),
        ('{"a": 1}', "expected a file of blink plan -o or blink topo -o, got the fields a"),
        ("{}", "got the fields nothing"),
        ('{"shares": []}', "plan"),
        ('{"sizes": [], "bound_gb_per_s": 1}', "(blink sim and blink lab draw times, with --plot)"),
        ('{"a": ', "not JSON"),
        ("\x00\x01", "no topology"),
    ],
)
def test_files_that_are_none(blink, tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    ended = blink("show", path)
    ended.assert_refused(message)
    assert "x.json" in ended.err


def test_a_newer_version_is_refused(blink, planned):
    document = json.loads(planned.read_text())
    planned.write_text(json.dumps({**document, "schema_version": 9}))
    blink("show", planned).assert_refused("schema_version 9; this blink reads 1, 2 and 3")


def test_a_false_plan_is_not_shown(blink, planned, tmp_path):
    document = json.loads(planned.read_text())
    planned.write_text(json.dumps({**document, "rate": "3"}))
    ended = blink("show", planned, "-o", tmp_path / "x.html")
    assert ended.code == 1
    assert "is not a correct plan" in ended.err
    assert not (tmp_path / "x.html").exists()


def test_a_large_plan_is_shown_unchecked_but_for_its_trees(blink, planned, tmp_path, monkeypatch):
    monkeypatch.setattr(show, "MOST_CHECKED_HOPS", 2)
    ended = blink("show", planned, "-o", tmp_path / "x.html")
    assert ended.code == 0
    assert "is shown unchecked, as it has over 2 hops: blink check" in ended.err
    document = json.loads(planned.read_text())
    edges = document["shares"][0]["reduce"]
    edges.append(edges[0])
    planned.write_text(json.dumps(document))
    ended = blink("show", planned)
    assert ended.code == 1
    assert "shares[0].reduce is not one tree with root 5" in ended.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(blink, planned, tmp_path):
    folder = tmp_path / "sealed"
    folder.mkdir(mode=0o500)
    blink("show", planned, "-o", folder / "x.html").assert_refused("cannot be written: Permission denied")
