"""``blink bench`` on processes: output, files and refusals. Ranks are fakes, except in tests of real ranks."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blinkccl.bench import host
from blinkccl.bench.bound import MemoryBaseline
from blinkccl.bench.candidate import CandidateLaunch, Process
from blinkccl.bench.peers import registry
from blinkccl.engines.native_library import load
from blinkccl.errors import UnsupportedError
from support.fake_ranks import launch
from support.processes import until, until_gone

SMALL = ["-b", "1K", "-e", "4K", "-f", "4", "-n", "4", "--rounds", "2"]
OWN = registry.own
LAUNCHERS = ("RANK", "WORLD_SIZE", "BLINK_RANK", "BLINK_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class Floor:
    """A probe that takes no time."""

    def __init__(self, ranks):
        self.ranks = ranks

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def rate(self, working_bytes):
        return 1e9

    def baseline(self, working_bytes):
        return MemoryBaseline(1e9, 100e-9)


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "load", lambda: None)
    monkeypatch.setattr(host, "Probe", Floor)
    monkeypatch.setattr(registry, "own", lambda ranks, deadline_s: launch("", ranks, "blink"))
    monkeypatch.setattr(registry, "launches", lambda name, prefix, ranks, cores: [launch(prefix or "", ranks, name)])


def _rows(ended):
    return [line for line in ended.out.splitlines() if not line.startswith("#")]


def test_the_table_is_nccl_tests_with_bound_to_the_right(blink):
    ended = blink("bench", "allreduce", *SMALL)
    assert ended.code == 0, ended.err
    assert "# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 4(factor) warmup iters: 1 iters: 4" in ended.out
    assert len(re.findall(r"^#  Rank +\d Group  0 Pid +\d+ on .* process of this host$", ended.out, re.M)) == 2
    assert "# Cores at the start: near, 100 ns round trip; memory 1.0 GB/s.\n" in ended.out
    assert "time: of the slowest rank, mean over iterations," in ended.out
    titles = next(line for line in ended.out.splitlines() if line.startswith("#       size"))
    assert titles.split()[-10:] == ["time", "algbw", "busbw", "#wrong"] * 2 + ["%bound", "%bound"]
    [first, second] = _rows(ended)
    assert first.split()[:5] == ["1024", "256", "float", "sum", "-1"]
    # The slower fake reports 2, 4, 6, 8 ms, so 5 ms on average; memory at 1 GB/s would move 4 · S bytes.
    assert first.split()[5:] == ["5000.0", "0.00", "0.00", "0"] * 2 + ["0.1", "0.1"]
    assert second.split()[0] == "4096"
    assert ended.out.endswith(
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.000512\n#\n"
        "# Collective test concluded: allreduce\n#\n"
    )


def test_peers_stand_in_comment_lines(blink):
    ended = blink("bench", "allreduce", *SMALL, "--peer", "mpich,impi")
    assert len(_rows(ended)) == 2
    peers = [line for line in ended.out.splitlines() if line.startswith("#   ")]
    peers = [line for line in peers if "fake" not in line and re.match(r"#   (mpich|impi)", line)]
    assert [line[4:15].strip() for line in peers] == ["mpich 1.2.3", "impi 1.2.3"] * 2
    assert all(line.split()[-2:] == ["1.00x", "1.00x"] for line in peers)
    assert len({len(line) for line in [*peers, *_rows(ended)]}) == 1
    assert "# Peer mpich 1.2.3: fake 1.2.3\n" in ended.out


def test_a_peer_that_leaves_is_said_and_its_cells_are_empty(blink, monkeypatch):
    monkeypatch.setattr("blinkccl.cli.bench.DEADLINE_S", 1)
    ended = blink("bench", "allreduce", "-b", "1K", "-n", "1", "--rounds", "1", "--peer", "gloo=failing")
    assert ended.code == 0
    assert "continuing without gloo: gloo, rank 0: CommunicationError: rank 0 waited for nobody" in ended.err
    line = next(line for line in ended.out.splitlines() if line.startswith("#   gloo"))
    assert line.split().count("N/A") == 10


def test_json_has_the_bound_and_the_peers(blink):
    run = json.loads(blink("bench", "allreduce", *SMALL, "--peer", "gloo", "--json").out)
    [first, _] = run["results"]
    assert first["in_place"]["bound_percent"] == pytest.approx(100 * 4 * 1024 / 1e9 / 5e-3)
    assert first["peers"][0]["name"] == "gloo"
    assert first["peers"][0]["in_place"]["ratio"] == 1.0
    assert run["config"]["rounds"] == 2
    assert run["engine"] == "host"


def test_json_on_stdout_is_one_object(blink):
    run = json.loads(blink("bench", "allreduce", *SMALL, "-g", "3", "--json").out)
    assert (run["schema_version"], run["ranks"], run["launcher"]) == (2, [0, 1, 2], None)
    assert run["probe"] == {"bytes_per_s": 1e9, "round_trip_s": 100e-9, "placement": "near"}
    assert len({device["pid"] for device in run["config"]["devices"]}) == 3


def test_wrong_elements_exit_with_1(blink, monkeypatch):
    monkeypatch.setattr(registry, "own", lambda ranks, deadline_s: launch("wrong", ranks, "blink"))
    ended = blink("bench", "allreduce", *SMALL)
    assert ended.code == 1
    assert "# Out of bounds values : 4 FAILED" in ended.out
    assert _rows(ended)[0].split()[8] == "2"  # one in each round


def test_a_lost_rank_exits_with_4(blink, monkeypatch):
    monkeypatch.setattr(registry, "own", lambda ranks, deadline_s: launch("dying", ranks, "blink"))
    monkeypatch.setattr("blinkccl.cli.bench.DEADLINE_S", 1)
    ended = blink("bench", "allreduce", *SMALL)
    assert ended.code == 4
    assert "the last words of rank 1" in ended.err


def test_without_a_compiler_there_is_no_bound(blink, monkeypatch):
    def no_compiler(ranks):
        raise UnsupportedError("there is no cc")

    monkeypatch.setattr(host, "Probe", no_compiler)
    ended = blink("bench", "allreduce", *SMALL)
    assert ended.code == 0
    assert "no C compiler (cc) for the memory probe" in ended.out
    assert len(_rows(ended)[0].split()) == 13


def test_no_variant_of_a_peer_starts(blink, monkeypatch):
    variants = [launch("absent", 2, "mpich", "a"), launch("absent", 2, "mpich")]
    monkeypatch.setattr(registry, "launches", lambda *_: variants)
    ended = blink("bench", "allreduce", *SMALL, "--peer", "mpich")
    assert ended.code == 0
    assert ended.err.count("continuing without mpich") == 2
    assert "there is nobody here" in ended.err


def test_ranks_that_cannot_run_here_are_a_usage_error(blink, monkeypatch):
    def processes(path, room):
        return [Process(["sh", "-c", "echo look at the limit on address space >&2; exit 3"])]

    monkeypatch.setattr(
        registry, "own", lambda ranks, deadline_s: CandidateLaunch("blink", ranks, processes, of_blink=True)
    )
    blink("bench", "allreduce", *SMALL).assert_refused(
        "ranks cannot run here; it printed:\n  look at the limit on address space"
    )


def test_many_ranks_on_few_cores_are_said(blink, monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 1)
    assert "5 ranks share 1 cores" in blink("bench", "allreduce", *SMALL, "-g", "5").err
    assert blink("bench", "allreduce", *SMALL, "-g", "4").err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_neither_ranks_nor_folders(number, tmp_path):
    """The signal comes while ranks start: fake ones never do."""
    code = (
        f"import signal; signal.signal({number:d}, signal.SIG_DFL)\n"  # tests may run under nohup
        "import sys; from blinkccl.bench import host; from blinkccl.bench.candidate import CandidateLaunch, Process\n"
        "from blinkccl.bench.peers import registry; from blinkccl.cli import main\n"
        "host.load = lambda: None\n"
        "start = lambda path, room: [Process(['sleep', '60']) for _ in range(30)]\n"
        "registry.own = lambda ranks, deadline_s: CandidateLaunch('blink', ranks, start)\n"
        "sys.argv = ['blink', 'bench', 'allreduce', '-g', '30']; main()"
    )
    environment = {**{k: v for k, v in os.environ.items() if k not in LAUNCHERS}, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)
    with run:
        try:
            until(lambda: len(_children(run.pid)) == 30)
            ranks = _children(run.pid)
            run.send_signal(number)
            _, errors = run.communicate(timeout=30)
        finally:
            run.kill()
    assert (run.returncode, "Traceback" in errors) == (128 + number, False)
    until_gone(ranks, 60)
    assert list(tmp_path.iterdir()) == []


def _children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-g", "1"], "-g"),
        (["--peer", "nccl"], "--peer nccl: expected some of gloo, openmpi, mpich, impi"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["-n", "4294967296"], "-n must be at most 1,000,000, got 4294967296"),
        (["-b", "900G"], "of memory for 2 ranks"),
        (["--algo", "rings"], "unknown algorithm 'rings'"),
        (["--algo", "hybrid"], "hybrid needs PCIe between all ranks"),
        (["--topo", "ring:4", "-g", "3"], "3 processes for 4 GPUs of ring:4: choose 3 with --gpus, or start 4"),
        (["--topo", "ring:4", "-g", "4", "--algo", "one_hop"], "one_hop needs every pair of ranks one hop"),
        (["--root", "1"], "allreduce has no root"),
        (["--peer", "impi=/no/such"], "impi=/no/such: expected bin/mpirun"),
    ],
)
def test_refused(blink, monkeypatch, arguments, message):
    if "impi=/no/such" in arguments:
        monkeypatch.undo()
        monkeypatch.setattr(host, "load", lambda: None)
        monkeypatch.setattr(registry, "own", lambda ranks, deadline_s: launch("", ranks, "blink"))
    blink("bench", "allreduce", *arguments).assert_refused(message)


def test_without_the_native_library(blink, monkeypatch):
    def missing():
        raise UnsupportedError("this installation has no native library")

    monkeypatch.setattr(host, "load", missing)
    blink("bench", "allreduce").assert_refused("has no native library")


@pytest.mark.parametrize("option", [["-g", "2"], ["--peer", "gloo"]])
def test_a_launcher_starts_the_processes(blink, monkeypatch, option):
    for name, value in {"BLINK_RANK": "0", "BLINK_WORLD_SIZE": "2", "BLINK_STORE": "file:///nowhere"}.items():
        monkeypatch.setenv(name, value)
    blink("bench", "allreduce", *option).assert_refused(
        f"{option[0]} starts processes, but blink has started them already: leave {option[0]} out"
    )


@pytest.fixture
def native():
    try:
        load()
    except UnsupportedError as reason:
        pytest.skip(str(reason))


def test_real_ranks(blink, monkeypatch, native):
    """The host engine, in real processes."""
    monkeypatch.undo()
    for extra in ([], ["--shared"]):
        ended = blink("bench", "reduce_scatter", "-g", "3", "-b", "100K", "-n", "2", "--rounds", "1", *extra)
        assert ended.code == 0, ended.err
        assert _rows(ended)[0].split()[8:13:4] == ["0", "0"]


@pytest.mark.parametrize(
    ("collective", "options", "columns"),
    [
        ("allreduce", ["-g", "3", "--algo", "all", "--peer", "gloo"], 7),
        (
            "broadcast",
            ["-g", "3", "--topo", "dgx-1v", "--gpus", "1,4,5", "--root", "4", "--algo", "ring,blink"],
            2,
        ),
        ("alltoall", ["-g", "2", "--algo", "optimal,auto"], 2),
    ],
)
def test_algorithms_on_real_ranks(blink, monkeypatch, native, collective, options, columns):
    """All algorithms run in turns in the same processes, with correct results."""
    monkeypatch.setattr(registry, "own", OWN)
    sizes = ["-b", "60", "-e", "300K", "-f", "5000", "-n", "2", "--rounds", "1"]
    ended = blink("bench", collective, *options, *sizes)
    assert ended.code == 0, ended.err
    rows = _rows(ended)
    assert [len(row.split()) for row in rows] == [1 + columns] * 2
    assert all("*" in row for row in rows)
    assert "# Out of bounds values : 0 OK" in ended.out
    assert "#   from 48: " in ended.out or "#   from 60: " in ended.out or "#   from 32: " in ended.out, ended.out
    if collective == "broadcast":
        run = json.loads(blink("bench", collective, *options, *sizes, "--json").out)
        assert run["crossovers"][0]["before"] is None
        assert len(run["results"][0]["peers"]) == columns - 1


def test_one_algorithm_has_nccl_tests_table(blink, monkeypatch, native):
    monkeypatch.setattr(registry, "own", OWN)
    ended = blink("bench", "allreduce", "-b", "4K", "-n", "2", "--rounds", "1", "--algo", "ring")
    assert ended.code == 0, ended.err
    assert "engine=host algorithm=ring\n" in ended.out
    assert _rows(ended)[0].split()[8:13:4] == ["0", "0"]


def test_real_ranks_of_a_launcher(monkeypatch, tmp_path, native):
    """Every process is one rank, as with torchrun; only rank 0 prints."""
    monkeypatch.setenv("BLINK_STORE", f"file://{tmp_path}")
    monkeypatch.setenv("BLINK_WORLD_SIZE", "2")
    ranks = []
    for rank in ("0", "1"):
        monkeypatch.setenv("BLINK_RANK", rank)
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "blinkccl", "bench", "allgather", "-b", "4K", "-n", "2", "--rounds", "1"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[1][0] == ""
    assert "# Out of bounds values : 0 OK" in outputs[0][0]
    assert "nGpus 1 " in outputs[0][0]
