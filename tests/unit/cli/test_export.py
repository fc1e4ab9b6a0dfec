"""``blink export``: output, files, refusals, and exit codes."""

import json
from base64 import b64decode
from pathlib import Path

import pytest

import blinkccl
from blinkccl.cli.export import HELP
from blinkccl.errors import UsageError
from blinkccl.formats.registry import FORMATS


@pytest.fixture
def plan(blink, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", "-o", path).code == 0
    return path


def test_every_format_is_in_the_help_and_writes_a_plan(blink, tmp_path) -> None:
    plan = tmp_path / "rings.json"
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--algo", "ring", "-o", plan).code == 0
    for name, row in FORMATS.items():
        assert f"\n  {name:8}" in HELP
        options = ["-s", "1M"] if row.sized else []
        ended = blink("export", plan, "--to", name, *options, *(["--json"] if row.per_rank else []))
        assert (ended.code, ended.err) == (0, ""), row.about
        assert ended.out.endswith("\n")


def test_the_code_is_printed_written_and_in_the_json(blink, plan, tmp_path) -> None:
    printed = blink("export", plan, "--to", "cuda")
    assert printed.out.startswith("// allreduce among 4 GPUs of dgx-1v, by optimal.")
    target = tmp_path / "code.cu"
    written = blink("export", plan, "--to", "cuda", "-o", target)
    assert (written.code, written.out) == (0, "")
    assert target.read_text(encoding="utf-8") == printed.out
    document = json.loads(blink("export", plan, "--to", "cuda", "--json").out)
    assert list(document) == ["schema_version", "format", "collective", "ranks", "program", "files"]
    assert document["files"] == [{"name": "allreduce.cu", "text": printed.out}]
    assert (document["schema_version"], document["format"], document["ranks"]) == (2, "cuda", [1, 4, 5, 6])


def test_a_plan_comes_from_standard_input_too(blink, plan, monkeypatch) -> None:
    with plan.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert blink("export", "-", "--to", "cuda").out == blink("export", plan, "--to", "cuda").out


def test_unknown_formats_are_refused_with_a_list(blink, plan) -> None:
    blink("export", plan, "--to", "ptx").assert_refused("unknown format 'ptx'; expected one of cuda")


def test_a_file_without_a_plan_is_refused(blink, tmp_path) -> None:
    nothing = tmp_path / "nothing.json"
    assert blink("export", nothing, "--to", "cuda").code == 2
    nothing.write_text("{}")
    blink("export", nothing, "--to", "cuda").assert_refused(str(nothing))
    assert blink("export", "-", "--to", "cuda", "--topo", "-").code == 2


def test_a_false_plan_is_not_exported(blink, plan, tmp_path) -> None:
    document = json.loads(plan.read_text())
    document["rate"] = "3"
    plan.write_text(json.dumps(document))
    target = tmp_path / "code.cu"
    ended = blink("export", plan, "--to", "cuda", "-o", target)
    assert (ended.code, ended.out) == (1, "")
    assert "plan.json is not exported" in ended.err
    assert "blink check lists them" in ended.err
    assert not target.exists()


def test_a_plan_beyond_the_limits_of_generated_code_is_refused_with_the_reason(blink, plan, monkeypatch) -> None:
    monkeypatch.setattr("blinkccl.codegen.channels.MAX_ENDS", 5)
    blink("export", plan, "--to", "cuda").assert_refused(
        "(root of share 0) receives from 3 and sends to 3 ranks at once: generated code allows 5 connections"
    )


def test_an_unwritable_file_is_refused(blink, plan, tmp_path) -> None:
    blink("export", plan, "--to", "cuda", "-o", tmp_path / "none" / "code.cu").assert_refused("cannot be written")


def test_a_schedule_for_simulators_is_of_one_size(blink, plan, tmp_path) -> None:
    printed = blink("export", plan, "--to", "goal", "-s", "1M", "--chunk", "256K")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.startswith(
        "// allreduce of 1,048,576 bytes among 4 ranks of dgx-1v, by optimal. Made by Blink.\n"
    )
    target = tmp_path / "plan.goal"
    assert blink("export", plan, "--to", "goal", "-s", "1M", "--chunk", "256K", "-o", target).code == 0
    assert target.read_text(encoding="utf-8") == printed.out
    assert blinkccl.load(plan).export("goal", size="1M") == blink("export", plan, "--to", "goal", "-s", "1M").out
    blink("export", plan, "--to", "goal").assert_refused("GOAL is for one size: give the size with -s")
    blink("export", plan, "--to", "goal", "-s", "0").assert_refused("-s 0: expected at least one byte")
    blink("export", plan, "--to", "goal", "-s", "3").assert_refused("3 bytes are fewer than one element")
    blink("export", plan, "--to", "goal", "-s", "big").assert_refused("-s: not a size in bytes: 'big'")
    blink("export", plan, "--to", "goal", "-s", "8G", "--chunk", "1K").assert_refused("give a larger --chunk")
    blink("export", plan, "--to", "goal", "-s", "1M", "--in-place").assert_refused("supports neither --in-place nor")
    blink("export", plan, "--to", "cuda", "-s", "1M").assert_refused(
        "CUDA C++ is for all sizes: leave -s and --chunk out"
    )


def test_traces_are_a_file_per_rank(blink, plan, tmp_path) -> None:
    target = tmp_path / "ar"
    wrote = blink("export", plan, "--to", "chakra", "-s", "1M", "-o", target)
    assert (wrote.code, wrote.out) == (0, "")
    assert wrote.err == "".join(f"blink: wrote {target}.{rank}.et\n" for rank in range(4))
    assert not target.exists()
    document = json.loads(blink("export", plan, "--to", "chakra", "-s", "1M", "--json").out)
    for rank, file in enumerate(document["files"]):
        assert file["name"] == f"allreduce.{rank}.et"
        assert b64decode(file["base64"]) == (tmp_path / f"ar.{rank}.et").read_bytes()
    blink("export", plan, "--to", "chakra", "-s", "1M").assert_refused(
        "--to chakra writes one binary file per rank: give -o PREFIX, or --json"
    )
    blink("export", plan, "--to", "chakra", "-o", target).assert_refused(
        "Chakra is for one size: give the size with -s"
    )
    blink("export", plan, "--to", "chakra", "-s", "1M", "-o", tmp_path / "no" / "x").assert_refused(
        "there is no folder"
    )
    (tmp_path / "other.2.et").mkdir()
    blink("export", plan, "--to", "chakra", "-s", "1M", "-o", tmp_path / "other").assert_refused("cannot be written")
    assert not (tmp_path / "other.0.et").exists()
    with pytest.raises(UsageError, match="chakra is one binary file per rank, and no text: use blink export --to"):
        blinkccl.load(plan).export("chakra", size="1M")
