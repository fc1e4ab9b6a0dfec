"""No verb prints lines wider than the terminal, and all print the same words there as into a pipe."""

import io
import re
import shlex
from pathlib import Path

import pytest

from blinkccl.cli import console, run
from blinkccl.cli.doctor import PIPED_WIDTH
from blinkccl.nccl.call_report import ReportedCalls, ReportedCommunicator
from blinkccl.runtime.dump import GroupState, RankState
from blinkccl.show.job_text import job_text

#: Commands, and their files: {plan} of ``blink plan``, {false} with a wrong rate, {bench} of ``blink bench --json``.
SAME = {
    "topo": "topo dgx-1v",
    "topo-16": "topo '2x dgx-1v @ 40Gbps'",
    "topo-72": "topo gb200-nvl72",
    "topo-list": "topo --list",
    "check": "check {plan}",
    "check-false": "check {false}",
    "show-machine": "show dgx-2",
    "sim": "sim allreduce --topo dgx-1v --gpus 1,4,5,6",
    "sim-sweep": "sim allreduce --topo dgx-1v --gpus 1,4,5,6 -b 4K",
    "sim-model": "sim allreduce --topo dgx-1v --gpus 0,1,3 --model alexnet --algo optimal,ring",
    "sim-paths": "sim sendrecv --topo mist --algo multi_path -s 1M",
    "explain": "explain allreduce --size 64M --topo dgx-1v --gpus 1,4,5,6",
    "explain-host": "explain allreduce --size 1M -g 4",
    "pick": "pick -k 3 --topo dgx-1v --free 0,1,4,6,7",
    "doctor": "doctor {bench} --topo dgx-1v",
    "tune": "tune -g 2 --show",
}
#: Commands with other words on a narrow terminal: a plan's table of loads has no bars, and measured numbers vary.
OTHER = {
    "plan": "plan allreduce --topo dgx-1v --gpus 1,4,5,6",
    "plan-size": "plan allreduce --topo dgx-1p --gpus 0-3 --size 64M",
    "plan-72": "plan allgather --topo gb200-nvl72",
    "show-plan": "show {plan}",
    "bench": "bench allreduce -g 2 -b 4K -e 8K -n 2 --rounds 1",
    "bench-plan": "bench alltoall --topo dgx-1v --gpus 1,4,5,6 -b 4K -n 2",
    "bench-all": "bench allreduce -g 2 -b 4K -n 2 --rounds 1 --algo all",
    "version": "--version",
}
CORPUS = Path(__file__).parents[2] / "doctor/corpus"
#: Lines that are not wrapped: names of files, commands and processors, and commands to copy.
_UNBROKEN = re.compile(r"\s*(\S+|blink .*)")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The paths of these files."""
    folder = tmp_path_factory.mktemp("files")
    return {name: folder / f"{name}.json" for name in ("plan", "false", "bench")}


@pytest.fixture
def typed(blink, files, monkeypatch, tmp_path):
    """A function that runs a command on a terminal of ``width`` columns, or with None into a pipe."""
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))

    def run(line, width):
        monkeypatch.setattr(console, "width", lambda: width)
        return blink(*shlex.split(line.format(**files))).out

    if not files["plan"].exists():
        run("plan allreduce --topo dgx-1v --gpus 1,4,5,6 -o {plan}", None)
        files["false"].write_text(files["plan"].read_text().replace('"rate": "2"', '"rate": "3"', 1))
        files["bench"].write_text(run("bench allreduce -g 2 -b 4K -e 64K -n 2 --rounds 1 --json", None))
    return run


def beyond(text, width):
    """The lines that are too long although they can be wrapped."""
    return [line for line in text.split("\n") if len(line) > width and not _UNBROKEN.fullmatch(line)]


@pytest.mark.parametrize("name", [*SAME, *OTHER])
def test_no_line_is_wider_than_the_terminal(typed, name):
    line = (SAME | OTHER)[name]
    narrow, wide = typed(line, 40), typed(line, 80)
    for text, width in ((narrow, 40), (wide, 80)):
        assert text.count("\n") > 1
        assert beyond(text, width) == []
    if name in SAME:
        assert set(typed(line, None).split()) <= set(narrow.split()), "a narrow terminal says all that a pipe says"


def test_a_diagnosis_is_folded_where_there_is_no_terminal(typed):
    text = typed(f"doctor '{CORPUS / 'acs-5880-deadlock'}'", None)
    assert beyond(text, PIPED_WIDTH) == []
    assert "try     NCCL_P2P_DISABLE=1 with the same command: if that runs, P2P is at fault" in text
    assert re.search(r"^ {8}P2P\); NCCL_DEBUG=INFO shows the last step$", text, re.MULTILINE), text


def test_tables_in_a_pipe_have_a_line_per_row(typed):
    text = typed("sim allreduce --topo dgx-1v -b 4K", None)
    assert re.search(r"^size( +\S+){8}\n +4K( +[\d.]+ µs\*?){8}$", text, re.MULTILINE), text


def test_a_bench_says_which_columns_have_no_room(typed):
    text = typed(OTHER["bench"], 40)
    head = " ".join(re.search(r"^# float, sum.*?\n#\n", text, re.MULTILINE | re.DOTALL)[0].replace("#", "").split())
    assert head.startswith("float, sum, root -1; out of place, in place. Without count, algbw,")
    assert "%bound: a wider terminal, a pipe and --json have them" in head
    assert re.search(r"^ +4096  out +[\d.]+ +[\d.]+ +0\n +in +[\d.]+ +[\d.]+ +0$", text, re.MULTILINE), text
    assert "Without" not in typed("bench allreduce -g 2 -b 4K -n 2 --rounds 1", 120)


def test_equal_ranks_are_one_row(typed):
    assert "         GPU0-71\nGPU0-71  NV18\n" in typed("topo gb200-nvl72", None)
    assert "GPU0-7   NV12    NET      0\nGPU8-15  NET     NV12     1\n" in typed("topo '2x dgx-a100'", None)


def test_a_live_job_is_printed_on_a_narrow_terminal():
    call, awaits = "allreduce of 64M of float32", "for chunk 1 of rank 1"
    ranks = (
        RankState(0, 1234, "waiting", 3, call, awaits, 1, 0, chunk=1, waiting_s=4.5),
        RankState(1, 1235, "gone", 3),
    )
    text = job_text(1234, [GroupState(7, 2, None, ranks)], width=40)
    assert beyond(text, 40) == []
    assert "allreduce of 64M" in text
    assert re.search(r"^rank  process  state +since  peer$", text, re.MULTILINE), text


@pytest.mark.parametrize("width", [40, 80])
def test_a_report_of_calls_is_printed_on_a_narrow_terminal(monkeypatch, width):
    calls = ReportedCalls(
        "allreduce", "float32", "sum", 1 << 20, 1 << 26, "blink", "Simple", 1200, 1 << 30, "the fastest"
    )
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(console.sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    for line in run.group_lines(ReportedCommunicator("abcdef0123", 8, [1, 2, 3], [calls])):
        console.note(line)
    assert beyond(terminal.getvalue(), width) == []
    assert "1200 calls" in " ".join(terminal.getvalue().split())
