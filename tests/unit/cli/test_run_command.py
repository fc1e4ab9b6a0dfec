"""``blink run``: the environment of the command, its exit code, and the report of its calls."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.cli.run import environment
from blinkccl.native import absent, find_library
from doubles.build import nvrtc_wheel
from support.processes import until

PYTHON = sys.executable
ALLREDUCE = {
    "nranks": 2,
    "comm": "ab" * 8,
    "state": "blink",
    "why": "faster",
    "collective": "allreduce",
    "dtype": "float32",
    "op": "sum",
    "most": 4096,
    "program": 0,
    "protocol": "ll",
}
BROADCAST = {
    "collective": "broadcast",
    "dtype": "int8",
    "state": "nccl",
    "why": "slower",
    "program": -1,
    "protocol": "",
}
ROWS = [
    {**ALLREDUCE, "pid": 11, "rank": 1, "least": 1024, "calls": 3, "bytes": 6144},
    {**ALLREDUCE, "pid": 10, "rank": 0, "least": 512, "calls": 4, "bytes": 6656},
    {**ALLREDUCE, **BROADCAST, "pid": 10, "rank": 0, "least": 12, "most": 12, "calls": 1, "bytes": 12},
]
TELL = f"import os; open(os.environ['BLINK_REPORT'], 'a').write({chr(10).join(map(json.dumps, ROWS))!r} + chr(10))"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library for preloading that does nothing."""
    path = tmp_path / "libblink.so"
    source = tmp_path / "empty.c"
    source.write_text("int blink_nothing;\n")
    try:
        subprocess.run(["gcc", "-shared", "-o", str(path), str(source)], check=True)
    except OSError:
        pytest.skip("no C compiler")
    monkeypatch.setenv("BLINK_LIBRARY", str(path))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    return path


def test_the_environment_names_library_python_and_report(library):
    variables = environment({"A": "1"}, [library], Path("/r"), {"BLINK_ALGO": "ring"})
    assert variables == {
        "A": "1",
        "LD_PRELOAD": str(library),
        "BLINK_PYTHON": PYTHON,
        "BLINK_REPORT": "/r",
        "BLINK_ALGO": "ring",
    }
    assert environment({"LD_PRELOAD": "/lib/a.so:"}, [library], Path("/r"), {})["LD_PRELOAD"] == f"/lib/a.so:{library}"


@pytest.mark.parametrize(
    ("script", "code"),
    [*((f"raise SystemExit({code})", code) for code in (0, 1, 7)), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_the_commands_own_or_128_and_its_signal(blink, library, script, code):
    assert blink("run", "--", PYTHON, "-c", script).code == code


def test_options_after_the_command_are_its_own(blink, library, tmp_path):
    target = tmp_path / "arguments"
    script = f"import sys; open({str(target)!r}, 'w').write(repr(sys.argv[1:]))"
    assert blink("run", PYTHON, "-c", script, "--algo", "x", "--require").code == 0
    assert target.read_text() == "['--algo', 'x', '--require']"


@pytest.mark.parametrize(("command", "code"), [("/no/such/program", 127), ("/", 126)])
def test_a_command_that_cannot_be_started(blink, library, command, code):
    ended = blink("run", "--", command)
    assert ended.code == code
    (line,) = ended.err.splitlines()  # No line on NCCL.
    assert f"{command} cannot be started" in line


@pytest.mark.parametrize(
    ("name", "exists", "message"),
    [
        ("none.so", False, "none.so, named by BLINK_LIBRARY, does not exist"),
        ("a b.so", True, "with spaces or colons"),
    ],
)
def test_without_a_library_that_can_be_preloaded_the_code_is_3(blink, monkeypatch, tmp_path, name, exists, message):
    if exists:
        (tmp_path / name).touch()
    monkeypatch.setenv("BLINK_LIBRARY", str(tmp_path / name))
    ended = blink("run", "--", "true")
    assert ended.code == 3
    assert message in ended.err


def test_mistakes_are_found_before_the_command_starts(blink, library, tmp_path):
    target = tmp_path / "ran"
    for option in (["--algo", "fastest"], ["--topo", "no-such"], ["--report", str(tmp_path / "no" / "dir.json")]):
        assert blink("run", *option, "--", "touch", target).code == 2
    assert not target.exists()


def test_settings_reach_the_command(blink, library, tmp_path, monkeypatch):
    target = tmp_path / "values"
    machine = tmp_path / "machine.txt"
    monkeypatch.delenv("BLINK_DEBUG", raising=False)
    machine.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n")
    script = "import os; values = map(os.environ.get, ('BLINK_ALGO', 'BLINK_TOPO', 'BLINK_DEBUG')); "
    script += f"open({str(target)!r}, 'w').write(' '.join(map(str, values)))"
    assert blink("run", "--algo", "nccl", "--topo", machine, "--", PYTHON, "-c", script).code == 0
    assert target.read_text() == f"nccl {machine} None"  # A level would override the program's NCCL_DEBUG.


def test_without_a_call_likely_causes_are_named(blink, library, monkeypatch):
    monkeypatch.setenv("BLINK_CUDA_LIB", str(library))  # Stands for a driver.
    ended = blink("run", "--", "true")
    assert ended.code == 0
    assert ended.out == ""
    assert "libblink.so was not used: it received no NCCL call" in ended.err
    assert f"VLLM_NCCL_SO_PATH={library}" in ended.err
    assert blink("run", "--require", "--", "true").code == 1
    assert blink("run", "--require", "--", PYTHON, "-c", "raise SystemExit(5)").code == 5


def test_without_a_driver_it_says_so(blink, library, monkeypatch, tmp_path):
    monkeypatch.setenv("BLINK_CUDA_LIB", str(tmp_path / "libcuda.so.1"))
    ended = blink("run", "--", "true")
    assert ended.code == 0
    assert f"libblink.so was not used: {tmp_path}/libcuda.so.1 cannot be opened, so NCCL has no GPU" in ended.err
    assert "Likely causes" not in ended.err


def test_the_calls_of_each_communicator_are_reported(blink, library, tmp_path):
    target = tmp_path / "used.json"
    ended = blink("run", "--require", "--report", target, "--", PYTHON, "-c", TELL)
    assert ended.code == 0
    lines = ended.err.splitlines()
    assert lines[0] == "blink: 1 communicator of 2 processes: Blink ran 4 calls per rank, NCCL 1"
    assert lines[1] == "blink:   communicator abababab, 2 ranks, process 10, 11"
    assert " ".join(lines[2].split()) == "blink: allreduce float32 sum 512 to 4K 4 calls Blink, ll"
    assert lines[3].strip() == "blink:       faster"
    assert "broadcast int8 sum" in lines[4]
    assert lines[4].split()[4:6] == ["12", "1"]
    document = json.loads(target.read_text())
    assert (document["used"], document["exit_code"], document["calls"]) == (True, 0, {"blink": 4, "nccl": 1})
    (group,) = document["communicators"]
    assert [row["bytes"] for row in group["rows"]] == [6656, 12]


@pytest.mark.parametrize("reported", [[], [10]])
def test_ranks_that_were_killed_are_counted_and_named(blink, library, tmp_path, reported):
    """Marks name the ranks that made calls; a process that wrote its report is reported as usual."""
    rank = {"nranks": 2, "comm": "ab" * 8, "state": "nccl"}
    lines = [{**rank, "rank": pid - 10, "pid": pid, "mark": "begin"} for pid in (10, 11)]
    if reported:
        lines += [row for row in ROWS if row["pid"] == 10] + [{**rank, "rank": 0, "pid": 10, "mark": "end"}]
    text = chr(10).join(map(json.dumps, lines)) + chr(10)
    target = tmp_path / "used.json"
    script = f"import os; open(os.environ['BLINK_REPORT'], 'a').write({text!r}); os.kill(os.getpid(), 9)"
    ended = blink("run", "--report", target, "--", PYTHON, "-c", script)
    assert ended.code == 128 + 9
    silent = [pid for pid in (10, 11) if pid not in reported]
    named = ", ".join(f"process {pid} (rank {pid - 10})" for pid in silent)
    assert (
        f"blink: {len(silent)} of 2 processes that called NCCL ended before reporting all calls: {named}\n"
    ) in ended.err
    assert "was not used" not in ended.err
    assert ("Blink ran 4 calls" in ended.err) == bool(reported)
    document = json.loads(target.read_text())
    assert (document["used"], [each["pid"] for each in document["silent"]]) == (True, silent)


def test_a_reported_communicator_is_printed_though_its_process_is_killed_in_another(blink, library):
    first = {"nranks": 2, "comm": "ab" * 8, "state": "nccl", "pid": 10, "rank": 0}
    other = {**first, "rank": 1, "comm": "cd" * 8}
    own = [row for row in ROWS if row["pid"] == 10]
    lines = [{**first, "mark": "begin"}, *own, {**first, "mark": "end"}, {**other, "mark": "begin"}]
    text = chr(10).join(map(json.dumps, lines)) + chr(10)
    script = f"import os; open(os.environ['BLINK_REPORT'], 'a').write({text!r}); os.kill(os.getpid(), 9)"
    ended = blink("run", "--", PYTHON, "-c", script)
    heading, communicators, group, *_ = ended.err.splitlines()
    assert heading.startswith("blink: 1 of 1 process that called NCCL ended before ")
    assert heading.endswith(": process 10 (rank 1)")
    assert communicators.startswith("blink: 1 communicator of 1 process: Blink ran 4 calls per rank")
    assert group == "blink:   communicator abababab, 2 ranks, process 10"
    assert "cdcdcdcd" not in ended.err


def test_lines_that_cannot_be_read_are_counted(blink, library):
    spoiled = TELL + "; open(os.environ['BLINK_REPORT'], 'a').write('{\"pid\": 1')"
    ended = blink("run", "--", PYTHON, "-c", spoiled)
    assert "1 line of the report could not be read" in ended.err
    assert "Blink ran 4 calls" in ended.err


def test_reasons_cannot_move_the_cursor(blink, library):
    script = (
        "import os, json; open(os.environ['BLINK_REPORT'], 'w').write(json.dumps(dict(pid=1, rank=0, nranks=1, "
        "comm='x', state='nccl', why='a' + chr(27) + '[2J', calls=1, collective='reduce')) + chr(10))"
    )
    assert "\x1b" not in blink("run", "--", PYTHON, "-c", script).err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_sent_on(library, tmp_path, number):
    ready = tmp_path / "ready"
    script = (
        f"import signal, sys, time\nsignal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        f"open({str(ready)!r}, 'w').close()\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [PYTHON, "-m", "blinkccl", "run", "--", PYTHON, "-c", script],
        stderr=subprocess.PIPE,
        env=os.environ | {"BLINK_LIBRARY": str(library)},
        start_new_session=True,
    )
    with process:
        until(ready.exists)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 42


def test_the_example_ends_with_a_message_where_it_cannot_run():
    example = Path(__file__).resolve().parents[3] / "examples/nccl_client.py"
    env = os.environ | {"BLINK_CUDA_LIB": "/no/such/libcuda.so", "LD_LIBRARY_PATH": ""}
    ended = subprocess.run([PYTHON, str(example)], capture_output=True, text=True, env=env)
    if "cannot run here" not in ended.stdout:
        pytest.skip("this machine can run it")
    assert (ended.returncode, ended.stderr) == (0, "")
    needed = subprocess.run([PYTHON, str(example), "--need-gpus"], capture_output=True, text=True, env=env)
    assert needed.returncode == 1


@pytest.fixture
def example(doubles, session_cache, monkeypatch):
    """A function that runs the example on doubles of GPUs and NCCL, and returns the lines of its stderr."""
    root = Path(__file__).resolve().parents[3]
    libraries = [find_library(name, "BLINK_UNSET") for name in ("libblink.so", "libblink_device.so")]
    if None in libraries:
        pytest.skip(absent("libblink.so"))
    for name, value in {
        "BLINK_CUDA_LIB": doubles.cuda,
        "BLINK_NCCL_LIB": doubles.nccl,
        "BLINK_NVCC": doubles.compiler,
        "BLINK_DOUBLE_DEVICES": 4,
        "BLINK_DOUBLE_DEVICE_LIB": libraries[1],
        "BLINK_CACHE": session_cache,
        "BLINK_MAX_BLOCKS": 4,
    }.items():
        monkeypatch.setenv(name, str(value))
    for name in ("BLINK_DEBUG", "NCCL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    start = (PYTHON, "-m", "blinkccl", "run", "--topo", "clique:4", "--algo", "optimal")
    command = ("--", PYTHON, root / "examples/nccl_client.py", "4", "65536")

    def run(*options):
        ended = subprocess.run([*start, *options, *command], capture_output=True, text=True, timeout=250)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr.splitlines()

    return run


def test_the_example_runs_on_trees_on_doubles_of_nccl_and_cuda(example, tmp_path):
    """The whole path runs: preload, cards, planner, generated code, launch, report; only GPUs and NCCL are doubles."""
    target = tmp_path / "used.json"
    assert not [line for line in example("--require", "--report", target) if "WARN" in line]
    document = json.loads(target.read_text())
    assert document["calls"] == {"blink": 1, "nccl": 0}
    (row,) = document["communicators"][0]["rows"]
    assert (row["collective"], row["least"], row["state"]) == ("allreduce", 65536, "blink")
    assert row["why"].startswith("BLINK_ALGO=optimal; blink optimal")


NOT_COMPILED = "blink: WARNING: NCCL ran all calls of 1 communicator: the plan's code was not compiled: "


def test_where_no_compiler_serves_the_gpu_a_line_installs_one(example, monkeypatch):
    """The line is printed when the communicator is created, and once more after the job."""
    monkeypatch.delenv("BLINK_NVCC")
    monkeypatch.setenv("BLINK_DOUBLE_ARCH", "99")  # Unknown to every compiler.
    monkeypatch.setenv("BLINK_DOUBLE_DRIVER", "12040")
    install = f"no compiler for sm_99; install one: {PYTHON} -m pip install --upgrade nvidia-cuda-nvrtc-cu12 ("
    first, total, again, *_ = example()
    assert f"BLINK WARN Blink runs no call: the plan's code was not compiled: {install}" in first
    assert total == "blink: 1 communicator of 1 process: Blink ran 0 calls per rank, NCCL 1"
    assert again.startswith(f"{NOT_COMPILED}{install}")


def test_the_message_of_a_failed_compiler_is_printed(example, monkeypatch, tmp_path):
    monkeypatch.delenv("BLINK_NVCC")
    monkeypatch.setenv("BLINK_NVRTC_LIB", str(nvrtc_wheel(tmp_path / "wheel")))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # Refused code is kept there.
    (line,) = [line for line in example() if line.startswith(NOT_COMPILED)]
    assert line.startswith(
        f"{NOT_COMPILED}libnvrtc.so.13 refuses the generated code (exit code 1); text and log are in "
    )
    assert line.endswith(": blink.cu(1): error: no licence nvrtcCompileProgram: NVRTC_ERROR_COMPILATION")


def test_an_order_of_sums_is_refused_for_mpi(blink, monkeypatch):
    monkeypatch.setenv("BLINK_DETERMINISTIC", "order")
    assert "BLINK_DETERMINISTIC=order is not supported with --mpi" in blink("run", "--mpi", "--", "true").err
