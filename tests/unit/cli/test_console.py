"""Destinations of output, colours, and the progress bar."""

import io
import os
import subprocess
import sys

import pytest

from blinkccl.cli import console


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (_Terminal(), {"TERM": "xterm"}, True),
        (_Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (_Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (_Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colour(monkeypatch, stream, environment, expected):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert console.coloured(stream) is expected


def test_a_bar_appears_after_two_seconds_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    times = iter([0.0, 1.9, 2.0])
    with console.Progress("sets", clock=lambda: next(times)) as progress:
        progress(1, 10)
        assert terminal.getvalue() == ""
        progress(2, 10)
        with progress.aside():
            pass
        progress(3, 10)
    assert "sets" in terminal.getvalue()


def test_a_search_without_known_length_says_what_it_knows(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    times = iter([0.0, 1.9, 2.0])
    with console.Progress("planning", clock=lambda: next(times)) as progress:
        progress.tell("planning: bound 3 GB/s")
        assert terminal.getvalue() == ""
        progress.tell("planning: bound 2 GB/s, best so far 99.1 %")
    assert "bound 2 GB/s, best so far 99.1 %" in terminal.getvalue()


def test_no_bar_without_a_terminal(capsys):
    times = iter([0.0, 100.0])
    with console.Progress("sets", clock=lambda: next(times, 200.0)) as progress:
        progress(1, 10)
        with progress.aside():
            print("row")
    assert capsys.readouterr() == ("row\n", "")


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "blinkccl", "plan", "alltoall", "--topo", "clique:24", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def _shell(command):
    return subprocess.run(
        ["sh", "-c", f"{sys.executable} -m blinkccl {command}"], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "redirected", "why"),
    [
        *(
            (arguments, "> /dev/full", "No space left on device")
            for arguments in ("plan reduce --topo ring:4", "topo ring:4 --json", "--help", "plan --help")
        ),
        *((arguments, ">&-", "it is closed") for arguments in ("plan reduce --topo ring:4", "topo ring:4 --json")),
        ("topo ring:4", ">&-", "it is closed"),
    ],
)
def test_an_output_that_takes_nothing_is_one_line(arguments, redirected, why):
    ended = _shell(f"{arguments} {redirected}")
    assert (ended.returncode, ended.stderr) == (2, f"blink: error: cannot write to standard output: {why}\n")


def test_a_closed_input_is_one_line():
    ended = _shell("check - <&-")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "standard input is closed; give a file" in ended.stderr


def test_a_closed_stderr_keeps_notes_out_of_the_data():
    ended = _shell("plan allreduce --topo dgx-1v --gpus 0,1,6 --json 2>&-")
    assert (ended.returncode, ended.stdout[0]) == (0, "{")


def test_messages_show_control_characters_as_escapes(capsys):
    console.note("a\x1b[31mb\x9b\u202e\nc")
    assert capsys.readouterr().err == "blink: a\\x1b[31mb\\x9b\\u202e\nc\n"


def test_a_path_is_tried_without_leaving_a_trace(tmp_path):
    path = tmp_path / "run.json"
    console.check_writable(path)
    assert not path.exists()
    path.write_text("content")
    console.check_writable(path)
    assert path.read_text() == "content"


def test_an_encoding_that_lacks_the_arrows_does_no_harm():
    ended = subprocess.run(
        [sys.executable, "-m", "blinkccl", "plan", "reduce", "--topo", "ring:4"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"reduce" in ended.stdout


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("--help", "numpy highspy rich msgspec pynvml ctypes"),
        ("plan broadcast --topo dgx-1v --json", "numpy rich pynvml xml urllib.request blinkccl.proof.check"),
    ],
)
def test_a_command_loads_what_it_needs(command, unneeded):
    code = (
        "import sys; from blinkccl.cli import main\n"
        "try: main()\n"
        f"finally: print([m for m in {unneeded.split()} if m in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *command.split()]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == "[]"


def test_ctrl_c_while_the_command_line_is_loaded():
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'blinkccl.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from blinkccl.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
