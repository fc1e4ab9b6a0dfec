"""The planner as a process of libblink.so: peers on standard input, one line on standard output, exit code 0."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs_by_hand import peers, settings

from blinkccl.codegen.device_files import host_library
from blinkccl.codegen.host_compiler import COPIES_FLAGS
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.nccl import bundle as bundles
from blinkccl.nccl import images
from blinkccl.nccl.planner import answer

SUMS = ("allreduce", "reduce", "reduce_scatter")


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory, doubles):
    """An environment with doubles of GPUs and of a compiler."""
    directory = tmp_path_factory.mktemp("planner")
    try:
        library = host_library()
    except BlinkError as error:
        pytest.skip(str(error))
    return {key: value for key, value in os.environ.items() if not key.startswith(("BLINK_", "NCCL_"))} | {
        "BLINK_CACHE": str(directory / "cache"),
        "BLINK_CUDA_LIB": str(doubles.cuda),
        "BLINK_DOUBLE_DEVICES": "8",
        "BLINK_NVCC": str(doubles.compiler),
        "BLINK_DOUBLE_DEVICE_LIB": str(library),
        "BLINK_DEBUG": "1",
    }


def ask(surroundings, rows, **changes):
    ended = subprocess.run(
        [sys.executable, "-m", "blinkccl.nccl.planner"],
        input=rows if isinstance(rows, str) else json.dumps(rows),
        capture_output=True,
        text=True,
        env=surroundings | changes,
        timeout=250,
    )
    assert ended.returncode == 0
    assert ended.stdout.count("\n") == 1
    return ended.stdout.rstrip("\n"), ended.stderr


@pytest.fixture(scope="module")
def planned(surroundings):
    """The answer for three ranks of an NVSwitch, and the messages before it."""
    return ask(surroundings, peers(3, settings=settings(topo="hgx-h100", algo="one_hop")))


def test_a_job_gets_a_bundle(planned):
    line, messages = planned
    word, _, path = line.partition(" ")
    assert word == "bundle"
    file = bundles.read((Path(path) / bundles.FILE).read_bytes())
    assert file["header"][0]["nranks"] == 3
    row = next(row for row in file["choice"] if row["collective"] == bundles.CODES["allreduce"])
    assert row["least"] == 0
    assert row["why"].startswith("BLINK_ALGO=one_hop; blink one_hop")
    assert file["image"]
    assert all((Path(path) / row["file"]).read_bytes().startswith(b"\x7fELF") for row in file["image"])
    assert "images compiled" in messages


def test_the_same_job_again_neither_plans_nor_compiles(planned, surroundings):
    rows = peers(3, settings=settings(topo="hgx-h100", algo="one_hop"), pid=lambda rank: 99 + rank)
    line, messages = ask(surroundings, rows, BLINK_DOUBLE_NVCC_FAIL="must not be called")
    assert line == planned[0]
    assert "found" in messages
    assert "programs planned" not in messages


@pytest.mark.parametrize(
    "change", [{"BLINK_STAGING_BYTES": "32M"}, {"BLINK_MAX_BLOCKS": "2"}, {"BLINK_NVCC": "/nothing/nvcc"}]
)
def test_another_question_has_another_answer(planned, surroundings, change):
    line, messages = ask(surroundings, peers(3, settings=settings(topo="hgx-h100", algo="one_hop")), **change)
    assert line != planned[0]
    assert "programs planned" in messages


def test_another_protocol_has_another_answer(planned, surroundings):
    rows = peers(3, settings=settings(topo="hgx-h100", algo="one_hop", protocol="copies"))
    line, messages = ask(surroundings, rows)
    assert line != planned[0]
    assert "programs planned" in messages
    path = Path(line.partition(" ")[2])
    file = bundles.read((path / bundles.FILE).read_bytes())
    whys = {row["why"].partition(" copies")[0] for row in file["choice"]}
    assert "BLINK_ALGO=one_hop BLINK_PROTOCOL=copies; blink one_hop" in whys
    assert {row["arch"] for row in file["image"]} == {"sm_90", "host"}
    assert all((path / row["file"]).read_bytes().startswith(b"\x7fELF") for row in file["image"])
    assert ask(surroundings, rows, BLINK_DOUBLE_NVCC_FAIL="must not be called")[0] == line


def test_copies_that_are_forced_need_a_compiler_for_this_host(surroundings):
    rows = peers(2, settings=settings(topo="ring:2", algo="ring", protocol="copies"))
    line, _ = ask(surroundings, rows, CXX="no-such-compiler")
    assert line.startswith("refused nothing can run with BLINK_ALGO=ring BLINK_PROTOCOL=copies (allreduce: ")
    assert "CXX names 'no-such-compiler'" in line


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "no peer info"),
        ("[]", r"0 rank(s)"),
        (peers(2, boot_id=lambda rank: "ab"[rank]), "different hosts (rank 0: a; rank 1: b)"),
        (peers(2, settings=settings(algo="nccl")), "BLINK_ALGO=nccl"),
        (peers(2, settings=settings(algo="fastest")), "unknown algorithm 'fastest'"),
        (
            peers(2, settings=settings(protocol="fast")),
            "refused BLINK_PROTOCOL=fast: expected one of simple, ll, ll128, copies",
        ),
        (peers(2, settings=settings(topo="/no/such/file.xml")), "there is no such file"),
        (peers(2, settings=settings(topo="chain:1")), "chain:1"),
        (peers(9, settings=settings(topo="hgx-h100")), "has 8 GPUs"),
    ],
)
def test_expected_errors_are_one_line(surroundings, rows, said):
    line, err = ask(surroundings, rows)
    assert line.startswith("refused ")
    assert said in line
    assert "Traceback" not in err


def test_code_without_a_compiler_has_its_own_answer(surroundings):
    line, err = ask(surroundings, peers(2, arch="sm_33", settings=settings(topo="ring:2", algo="ring")))
    assert line.startswith("uncompiled the plan's code was not compiled: ")
    assert "does not compile for sm_33" in line
    assert "Traceback" not in err


def test_a_driver_that_is_missing_is_a_reason(surroundings):
    line, _ = ask(surroundings, peers(2, settings=settings(topo="ring:2")), BLINK_CUDA_LIB="/nothing.so")
    assert line.startswith("refused P2P could not be checked: /nothing.so cannot be used")


def test_settings_that_are_no_numbers_are_reasons(surroundings):
    for name in ("BLINK_STAGING_BYTES", "BLINK_MAX_BLOCKS", "BLINK_PEER_TIMEOUT"):
        line, _ = ask(surroundings, peers(2, settings=settings(topo="ring:2")), **{name: "lots"})
        assert line.startswith(f"refused {name}=lots: expected")


def test_an_order_leaves_no_sum_to_nccl(surroundings):
    rows = peers(3, settings=settings(topo="hgx-h100", deterministic="order"))
    line, _ = ask(surroundings, rows)
    file = bundles.read((Path(line.partition(" ")[2]) / bundles.FILE).read_bytes())
    sums = [row for row in file["choice"] if row["collective"] in map(bundles.CODES.get, SUMS)]
    assert len({(row["collective"], row["root"]) for row in sums}) == 5  # a Reduce to each of 3
    assert all(row["program"] >= 0 and row["why"].startswith("BLINK_DETERMINISTIC=order; blink ") for row in sums)
    others = [row for row in file["choice"] if row not in sums]
    assert any(row["program"] < 0 for row in others)
    assert not any("DETERMINISTIC" in row["why"] for row in others)


def test_a_compiler_that_is_too_slow_leaves_all_to_nccl(surroundings, tmp_path):
    slow = tmp_path / "nvcc"
    nvcc = f'exec {surroundings["BLINK_NVCC"]} "$@"'
    slow.write_text(f'#!/bin/sh\ncase "$*" in *cubin*) sleep 60;; *) {nvcc};; esac\n')
    slow.chmod(0o755)
    rows = peers(2, settings=settings(topo="ring:2", algo="ring"))
    line, messages = ask(
        surroundings, rows, BLINK_NVCC=str(slow), BLINK_PLAN_TIMEOUT="4", BLINK_CACHE=str(tmp_path / "c")
    )
    assert line.startswith("uncompiled the plan's code was not compiled: no file was compiled within ")
    assert "is left to NCCL" in messages


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Ranks of one GPU, and a compiler that is too slow for texts with the strings in a set."""
    slow: set[str] = set()

    def build(text, compiler, deadline_s):
        if any(word in text for word in slow):
            raise UnsupportedError("too slow")
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.cubin"
        path.write_bytes(b"code")
        return path

    monkeypatch.setattr("blinkccl.nccl.images.build", build)
    monkeypatch.setattr("blinkccl.nccl.images.compiler_for", lambda *_: SimpleNamespace(fingerprint=lambda: "none"))
    monkeypatch.setattr("blinkccl.nccl.planner.headers_digest", lambda _: "")
    monkeypatch.setattr("blinkccl.nccl.planner.include_directory", lambda: tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the directory of bundles outside the cache
    return slow


def rows_of(line):
    word, _, path = line.partition(" ")
    assert word == "bundle"
    return bundles.read((Path(path) / bundles.FILE).read_bytes())


def programs_of(file, collective):
    return {row["program"] >= 0 for row in file["choice"] if row["collective"] == bundles.CODES[collective]}


def test_programs_not_compiled_in_time_are_left_to_nccl(compiled, tmp_path):
    environ = {"BLINK_CACHE": str(tmp_path / "cache")}
    data = json.dumps(peers(2, device=0, uuid="0" * 32, settings=settings(algo="one_hop"))).encode()
    compiled.add("blink_moves_")
    first = answer(data, environ)
    file = rows_of(first)
    assert (programs_of(file, "broadcast"), programs_of(file, "allreduce")) == ({False}, {True})
    late = "not compiled in time, but perhaps for the next job: one_hop ll; BLINK_ALGO=one_hop"
    assert any(row["why"].startswith(late) for row in file["choice"])
    compiled.clear()
    second = answer(data, environ)
    assert all(row["program"] >= 0 for row in rows_of(second)["choice"])
    assert second.startswith(f"bundle {tmp_path / 'cache'}")
    assert answer(data, environ) == second


def test_copies_without_their_object_are_left_to_nccl(compiled, monkeypatch, tmp_path):
    to_gpu = images.build

    def build(text, compiler, deadline_s):
        if getattr(compiler, "flags", ()) == COPIES_FLAGS and "blink_broadcast_" in text:
            raise UnsupportedError("too slow")
        return to_gpu(text, compiler, deadline_s)

    monkeypatch.setattr("blinkccl.nccl.images.build", build)
    chosen = settings(algo="one_hop", protocol="copies")
    data = json.dumps(peers(2, device=0, uuid="0" * 32, settings=chosen)).encode()
    file = rows_of(answer(data, {"BLINK_CACHE": str(tmp_path / "cache")}))
    assert (programs_of(file, "broadcast"), programs_of(file, "allreduce")) == ({False}, {True})
    assert {bundles.PROTOCOLS[row["protocol"]] for row in file["choice"] if row["program"] >= 0} == {"copies"}
    late = "not compiled in time, but perhaps for the next job: one_hop copies"
    assert any(row["why"].startswith(late) for row in file["choice"])
    assert not any("broadcast" in row["file"] for row in file["image"])
    assert not list((tmp_path / "cache").glob(f"bundles/*/{bundles.FILE}"))


def test_an_algorithm_that_serves_nothing_is_a_reason(compiled):
    data = json.dumps(peers(2, device=0, uuid="0" * 32, nccl_version=0, settings=settings(algo="three_phase"))).encode()
    line = answer(data, {"BLINK_CACHE": ""})
    assert line.startswith("refused nothing can run with BLINK_ALGO=three_phase (allreduce: three_phase is for ")


def test_an_internal_error_is_a_refusal(monkeypatch, capsys):
    def broken(*_):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("blinkccl.nccl.planner.place", broken)
    line = answer(json.dumps(peers(2)).encode(), {})
    assert line == "refused internal error of the planner (its traceback is on standard error): on purpose"
    assert "Traceback" in capsys.readouterr().err
