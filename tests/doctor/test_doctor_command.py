"""``blink doctor`` and ``blink topo --gather`` on the command line: exit codes, JSON, and usage errors."""

import io
import json
import shlex
from pathlib import Path

import pytest

from blinkccl.apps.doctor.rules.job import expected_of
from blinkccl.cost.baselines.nccl_links import VERSION
from blinkccl.topology.spec import parse_spec

CORPUS = Path(__file__).parent / "corpus"


def test_1_where_something_is_wrong_and_0_where_not(blink):
    assert blink("doctor", CORPUS / "p2p-level-loc/run.log").code == 1
    healthy = blink("doctor", CORPUS / "dgx-a100-healthy/run.log")
    assert healthy.code == 0, healthy.out
    assert "nothing wrong was found" in healthy.out
    assert "taken for dgx-a100" in " ".join(healthy.out.split())


def test_json_has_what_is_promised(blink):
    ended = blink("doctor", CORPUS / "iommu-corruption/run.log", CORPUS / "iommu-corruption/cmdline.txt", "--json")
    document = json.loads(ended.out)
    assert ended.code == 1
    assert set(document) == {
        "schema_version",
        "healthy",
        "verdict",
        "subject",
        "findings",
        "read",
        "notes",
        "not_judged",
        "p2p",
    }
    assert document["healthy"] is False
    assert set(document["findings"][0]) == {
        "cause", "severity", "title", "bound", "got", "why", "try", "evidence",
    }  # fmt: skip
    assert document["findings"][0]["evidence"][0]["line"] == 1


def test_a_machine_beside_a_log(blink):
    log = CORPUS / "dgx1-fragment/run.log"
    ended = blink("doctor", log, "--topo", "dgx-1v", "--gpus", "0,1,6")
    assert "{0,1} | {6}" in ended.out
    assert ended.code == 1


def test_standard_input(blink, monkeypatch):
    data = (CORPUS / "p2p-level-loc/run.log").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    ended = blink("doctor", "-")
    assert ended.code == 1
    assert "standard input, line 1" in ended.out


def test_folders(blink):
    assert "IOMMU" in blink("doctor", CORPUS / "iommu-corruption").out


def test_contradicting_files_are_named(blink):
    first, second = CORPUS / "turin-socket-bus/system.xml", CORPUS / "nics-on-one-socket/topo.txt"
    ended = blink("doctor", first, second)
    assert ended.code == 1
    assert "describe different machines" in ended.out


def test_rates_behind_a_file_as_topo_takes_them(blink, tmp_path, monkeypatch):
    """A name with a space, in a command that can be pasted."""
    monkeypatch.chdir(tmp_path)
    Path("my topo.txt").write_bytes((CORPUS / "l40s-two-sockets/topo.txt").read_bytes())
    spec = "my topo.txt @ smp=40GB/s, pcie=gen4"
    ended = blink("doctor", spec, CORPUS / "l40s-two-sockets/run.log", "--json")
    document = json.loads(ended.out)
    bound = next(finding for finding in document["findings"] if finding["cause"] == "bound")
    assert bound["bound"].startswith("24 GB/s busbw, by"), "all rates are stated"
    words = shlex.split(bound["try"].partition(": ")[2].removesuffix(" -b 4K"))
    assert words == ["blink", "sim", "allreduce", "--topo", spec]
    assert blink(*words[1:], "-s", "4K").code == 0


def test_a_name_from_the_log_stands_in_the_suggested_command(blink, monkeypatch):
    monkeypatch.chdir(CORPUS / "b200-half-matrix")
    out = " ".join(blink("doctor", "run.log", "topo.txt").out.split())
    assert "blink sim allreduce --topo 'topo.txt @ nvlink=50GB/s, pcie=gen5'" in out


@pytest.mark.parametrize(
    ("typed", "rates"),
    [
        (["run.log", "--topo", "topo.txt"], "nvlink=50GB/s, pcie=gen5"),
        (["run.log", "topo.txt @ smp=22GB/s"], "smp=22GB/s, nvlink=50GB/s, pcie=gen5"),
        (["run.log", "--topo", "topo.txt @ nvlink=50GB/s, pcie=gen4"], "nvlink=50GB/s, pcie=gen4"),
    ],
)
def test_a_matrix_behind_topo_or_with_rates_has_the_log_s_names_too(blink, monkeypatch, typed, rates):
    """With H100's NVLinks in place of B200's the half rate would pass."""
    monkeypatch.chdir(CORPUS / "b200-half-matrix")
    document = json.loads(blink("doctor", *typed, "--json").out)
    assert [finding["cause"] for finding in document["findings"]] == ["measured-low", "bound"]
    words = shlex.split(document["findings"][1]["try"].partition(": ")[2].removesuffix(" -b 4K"))
    assert words[-1] == f"topo.txt @ {rates}"
    assert blink(*words[1:], "-s", "4K").code == 0


def test_a_file_with_rates_was_understood(blink, monkeypatch, tmp_path):
    monkeypatch.chdir(CORPUS / "b200-half-matrix")
    fast = Path("run.log").read_text().replace("B200", "H100 80GB HBM3")
    (tmp_path / "run.log").write_text(fast)
    document = json.loads(blink("doctor", tmp_path / "run.log", "topo.txt @ nvlink=25GB/s", "--json").out)
    assert document["not_judged"] == []
    assert document["healthy"]


def test_what_cannot_be_judged_is_neither_a_problem_nor_health(blink):
    ended = blink("doctor", CORPUS / "l20-default/run.log")
    assert ended.code == 0
    assert "could not be judged: 12.5 GB/s busbw of alltoall on 8 × NVIDIA L20" in " ".join(ended.out.split())
    document = json.loads(blink("doctor", CORPUS / "l20-default/run.log", "--json").out)
    assert document["healthy"] is False
    assert len(document["not_judged"]) == 1


def test_nothing_known_is_no_health(blink, tmp_path):
    (tmp_path / "x.txt").write_text("hello\n")
    ended = blink("doctor", tmp_path / "x.txt")
    assert ended.code == 1
    assert "nothing was read" in ended.out


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["none.log"], "none.log cannot be read: No such file or directory"),
        (["--topo", "dgx-9"], "unknown topology 'dgx-9'"),
        (["--gpus", "0"], "fewer than two"),
    ],
)
def test_mistakes(blink, typed, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if typed[0] == "--gpus":
        (tmp_path / "x.log").write_text("NCCL INFO NCCL_PROTO set by environment to LL\n")
        typed, message = ["x.log", *typed], "no file describes one"
    blink("doctor", *typed).assert_refused(message)


def test_this_machine_gathers_and_reads_itself(blink, tmp_path):
    path = tmp_path / "machine.json"
    assert blink("topo", "--gather", path).code == 0
    here, from_file = blink("doctor", "--json"), blink("doctor", path, "--json")
    causes = [[finding["cause"] for finding in json.loads(ended.out)["findings"]] for ended in (here, from_file)]
    assert causes[0] == causes[1]
    assert blink("topo", path).out == blink("topo").out


def test_gather_takes_ncclss_own_dump_and_nothing_else(blink, tmp_path):
    xml = CORPUS / "turin-socket-bus/system.xml"
    path = tmp_path / "machine.json"
    assert blink("topo", xml, "--gather", path).code == 0
    assert "socket-bus" in blink("doctor", path).out
    blink("topo", CORPUS / "titans-x8/case.toml", "--gather", path).assert_refused(
        "expected a file written by NCCL_TOPO_DUMP_FILE"
    )


def test_processors_are_measured_against_their_memory(blink):
    findings = json.loads(blink("doctor", "--measure", "--json").out)["findings"]
    (memory,) = [finding for finding in findings if finding["cause"] == "memory-bound"]
    assert "GB/s busbw" in memory["bound"]
    assert "at 16M" in memory["got"]


def test_ranks_without_processors(blink):
    assert "too-few-processors" in blink("doctor", "-g", "100000").out


def test_without_files_it_says_what_it_looked_at(blink):
    ended = blink("doctor")
    assert "read    this machine: links, " in ended.out
    assert "memory, /dev/shm and limits of processes" in ended.out


def test_nccl_is_expected_to_reduce_in_the_switch_where_it_does():
    """480 GB/s on 8 H100s, as in public logs; NCCL's rings alone would give about 360."""
    topology = parse_spec("hgx-h100")
    expected = expected_of(topology, topology.ranks, "allreduce", 8 << 30, VERSION)
    assert expected is not None
    assert expected.how.startswith("NVLS, ")
    assert expected.busbw_gb_per_s == pytest.approx(480, rel=0.02)


def test_the_plan_that_it_advises_is_one(blink):
    """NVLink joins two of the three GPUs, so a plan needs ``--links all``."""
    ended = blink("doctor", CORPUS / "a100-pairs-three", "--json")
    advice = json.loads(ended.out)["findings"][0]["try"]
    command, _, rest = advice.partition(" shows")
    assert command.startswith("blink plan")
    assert blink(*command.split()[1:]).code == 0
    assert "blink pick -k 3" in rest


@pytest.mark.parametrize(("pairs", "level"), [("02", False), ("01", True)])
def test_the_plan_through_memory_is_a_command_of_this_job(blink, tmp_path, pairs, level):
    """Two GPUs on each of two sockets; NCCL_P2P_LEVEL=PHB helps no pair across them."""
    (tmp_path / "topo.txt").write_text(
        "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\nGPU0\tX\tPHB\tSYS\tSYS\t0-7\nGPU1\tPHB\tX\tSYS\tSYS\t0-7\n"
        "GPU2\tSYS\tSYS\tX\tPHB\t8-15\nGPU3\tSYS\tSYS\tPHB\tX\t8-15\n"
    )
    a, b = pairs
    lines = "".join(f"n:1:2 [0] NCCL INFO Channel 00 : {x}[a] -> {y}[b] via SHM/direct\n" for x, y in (a + b, b + a))
    (tmp_path / "run.log").write_text(lines)
    document = json.loads(blink("doctor", tmp_path / "run.log", tmp_path / "topo.txt", "--json").out)
    advice = next(finding["try"] for finding in document["findings"] if finding["cause"] == "p2p-off")
    assert ("NCCL_P2P_LEVEL=PHB" in advice) == level
    command = shlex.split(advice.rpartition(": ")[2])
    assert command[:3] == ["blink", "plan", "allreduce"]
    assert blink(*command[1:]).code == 0


def test_who_has_all_gpus_is_not_told_to_ask_for_others(blink, tmp_path):
    rings = "Pattern 4, crossNic 0, nChannels 1, bw 3.000000/3.000000, type PHB/PIX, sameChannels 1"
    (tmp_path / "run.log").write_text(f"n:1:2 [0] NCCL INFO {rings}\n")
    ended = blink("doctor", tmp_path / "run.log", "--topo", "pcie-8gpu")
    assert "blink plan allreduce" in ended.out
    assert "blink pick" not in ended.out


@pytest.mark.parametrize(("more", "wanting"), [((), True), (("topo.txt",), False)])
def test_rates_without_a_machine_are_compared_with_nothing_and_that_is_said(blink, more, wanting):
    case = CORPUS / "a100-pairs-three"
    ended = blink("doctor", case / "three.log", *(case / name for name in more))
    assert ("no machine is known" in ended.out) == wanting


def test_a_file_is_named_once_with_all_its_lines(blink):
    ended = blink("doctor", CORPUS / "rtx4090-no-p2p/run.log")
    assert "run.log, lines 2-5\n" in ended.out


def test_a_plan_is_called_one(blink, tmp_path):
    blink("plan", "allreduce", "--topo", "ring:4", "-o", tmp_path / "plan.json")
    output = blink("doctor", tmp_path / "plan.json").out
    assert "a plan, for blink check and blink show" in " ".join(output.split())  # folded, wherever the path ends
