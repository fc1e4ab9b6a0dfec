"""Reading of arbitrary bytes: every input gives a case, with notes on unreadable parts and on inferences."""

import io
import json
import pickle
import random
from pathlib import Path

import pytest

from blinkccl.apps.doctor.diagnose import diagnose
from blinkccl.apps.doctor.evidence import (
    ChannelCounts,
    ChannelHop,
    Device,
    GpuName,
    MachineRead,
    MeasuredCall,
    NicPath,
    RankReport,
    RingGraph,
    Setting,
    Started,
    SystemLink,
)
from blinkccl.apps.doctor.reading import read_files
from blinkccl.errors import UsageError
from blinkccl.show.text import plain
from support.examples import ALL_TESTS

CORPUS = Path(__file__).parent / "corpus"
SAMPLES = [path for path in sorted(CORPUS.glob("*/*")) if path.name != "case.toml"]
FIXTURES = sorted((Path(__file__).parents[2] / "src/blinkccl/topology/fixtures").iterdir())


def _read(tmp_path, data, name="file"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_files([path])


def _told(case):
    diagnosis = diagnose(case)
    json.dumps(diagnosis.document())
    return diagnosis.text(plain, 100)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_topology_fixtures_are_read(path):
    assert _told(read_files([path]))


def test_files_that_are_cut_off_or_damaged_never_crash(tmp_path):
    rng = random.Random(7)
    for path in SAMPLES if ALL_TESTS else SAMPLES[::2]:
        data = path.read_bytes()
        for _ in range(6 if ALL_TESTS else 2):
            cut = data[: rng.randrange(len(data))]
            odd = bytearray(data)
            for _ in range(10):
                odd[rng.randrange(len(odd))] = rng.randrange(256)
            for damaged in (cut, bytes(odd), data + b"\x00\x1b]0;owned\x07\xff" + cut):
                text = _told(_read(tmp_path, damaged))
                assert "\x1b" not in text
                assert "\x07" not in text


def test_decimal_commas_tags_colours_and_carriage_returns(tmp_path):
    row = "[1,0]<stdout>:   1073741824     268435456     float     sum      -1   8000,0  134,22  201,33      0\r\n"
    ranks = "".join(
        f"[1,0]<stdout>:\x1b[1m#  Rank {r} Group 0 Pid 1 on n device {r} [0x0] X\x1b[0m\r\n" for r in range(4)
    )
    case = _read(tmp_path, "[1,0]<stdout>:# Collective test starting: all_reduce_perf\r\n" + ranks + row)
    (measured,) = case.of(MeasuredCall)
    assert (measured.ranks, measured.busbw_gb_per_s, measured.gpus) == (4, 201.33, (0, 1, 2, 3))
    assert any("decimal commas" in note for note in case.notes)


def test_rows_that_contradict_themselves_are_left_out_with_a_note(tmp_path):
    head = "# Collective test starting: all_reduce_perf\n#  Rank 0 Pid 1 on n device 0 [0x0] X\n"
    case = _read(tmp_path, head + "1073741824 268435456 float sum -1 8000.0 99.0 99.0 0\n")
    assert not case.of(MeasuredCall)
    assert any("134.22 GB/s, but algbw is 99" in note for note in case.notes)


@pytest.mark.parametrize(
    ("row", "ranks", "busbw"),
    [
        ("33554432 8388608 float sum -1 209.7 160.0 240.0 0 209.7 160.0 240.0 0", 2, 240.0),
        ("33554432 8388608 float sum 209.7 160.0 240.0 0e+00 209.7 160.0 240.0 0e+00", 2, 240.0),
        ("33554432 8388608 float sum -1 209.7 160.0 240.0 N/A 209.7 160.0 240.0 N/A", 2, 240.0),
        ("33554432 8388608 float sum -1 209.7 160.0 240.0", 1, 240.0),
    ],
)
def test_rows_of_every_version(tmp_path, row, ranks, busbw):
    head = "all_reduce_perf -g 4\n" + "".join(f"#  Rank {r} Pid 1 on n device {r} [0x0] X\n" for r in range(4))
    rows = _read(tmp_path, head + row + "\n").of(MeasuredCall)
    assert len(rows) == ranks
    assert {one.busbw_gb_per_s for one in rows} == {busbw}


def test_what_a_log_does_not_say_is_inferred_from_its_numbers_and_said(tmp_path):
    head = "".join(f"#  Rank {r} Pid 1 on n device {r} [0x0] X\n" for r in range(4))
    case = _read(tmp_path, head + "33554432 8388608 float sum -1 209.7 160.0 240.0 0\n")
    assert case.of(MeasuredCall)[0].collective == "allreduce"
    assert any("busbw / algbw is that of allreduce" in note for note in case.notes)


@pytest.mark.parametrize(
    ("ranks", "columns", "busbw", "collective"),
    [
        (2, "sum -1", 160.0, "allreduce"),
        (8, "sum -1", 280.0, "allreduce"),
        (8, "sum -1", 140.0, "reduce_scatter"),
        (8, "sum 0", 160.0, "reduce"),
        (8, "none 0", 160.0, "broadcast"),
    ],
)
def test_a_missing_name_follows_from_operation_root_and_ratio(tmp_path, ranks, columns, busbw, collective):
    case = _read(tmp_path, _nameless(ranks, columns, busbw))
    assert [row.collective for row in case.of(MeasuredCall)] == [collective]


def test_a_row_that_several_collectives_fit_is_not_judged(tmp_path):
    """An AllGather and an AllToAll print the same columns."""
    case = _read(tmp_path, _nameless(8, "none -1", 140.0))
    assert not case.of(MeasuredCall)
    diagnosis = diagnose(case)
    (unjudged,) = diagnosis.not_judged
    assert unjudged == "140 GB/s busbw on 8 × X, as the log does not name the collective; allgather and alltoall fit"
    assert not diagnosis.healthy


def _nameless(ranks, columns, busbw):
    """A log without the line that names the collective."""
    listed = "".join(f"#  Rank {r} Pid 1 on n device {r} [0x0] X\n" for r in range(ranks))
    titles = "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
    return f"{listed}{titles}33554432 8388608 float {columns} 209.7 160.0 {busbw} 0\n"


@pytest.mark.parametrize(
    "tag",
    [
        "2026-03-04T05:06:07.89Z ",
        "2026-03-04 05:06:07,891 ",
        "2026-03-04T05:06:07.891234567+00:00 stdout F ",
        "node-3   | ",
        "[pod/bench-0/main] 2026-03-04T05:06:07Z [1,0]<stdout>: ",
        "0: ",
    ],
)
def test_tags_of_containers_hide_no_row(tmp_path, tag):
    lines = _nameless(4, "sum -1", 240.0).splitlines()
    case = _read(tmp_path, "".join(f"{tag}{line}\n" for line in lines))
    assert [(row.collective, row.ranks, row.busbw_gb_per_s) for row in case.of(MeasuredCall)] == [("allreduce", 4, 240)]


@pytest.mark.parametrize(("gpu", "advice"), [("NVIDIA H100 80GB HBM3", "fabricmanager"), ("X", "NCCL_P2P_DISABLE=1")])
def test_advice_without_a_result_is_of_the_machine(tmp_path, gpu, advice):
    """NCCL_P2P_DISABLE takes NVLink away, and says nothing of an NVSwitch."""
    ranks = "".join(f"#  Rank {r} Pid 1 on n device {r} [0x0] {gpu}\n" for r in range(8))
    (finding,) = diagnose(_read(tmp_path, ranks)).findings
    assert finding.cause == "no-result"
    assert advice in finding.attempt
    assert ("NCCL_P2P_DISABLE" in finding.attempt) == (gpu == "X")


def test_variables_of_env_and_collect_env_are_settings(tmp_path):
    text = "Environment Variables\nLD_LIBRARY_PATH=/lib\nNCCL_P2P_DISABLE=1\nsee NCCL_ALGO=Ring and Tree\n"
    assert [(one.name, one.value) for one in _read(tmp_path, text).of(Setting)] == [("NCCL_P2P_DISABLE", "1")]


def _init(rank, state="START", comm="0xa"):
    return (
        f"n:7:{rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x5 rank {rank} nranks 3 commId {comm} - Init {state}\n"
    )


CHANNEL = "n:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"


@pytest.mark.parametrize(
    ("log", "title"),
    [
        (_init(0), "ranks 1, 2 of communicator 0xa have not joined"),
        (_init(0) + _init(1) + _init(2), "ranks 0, 1, 2 of communicator 0xa have not ended the setup"),
        (_init(0) + _init(1) + _init(2) + _init(0, "COMPLETE") + _init(1, "COMPLETE"),
         "rank 2 of communicator 0xa has not ended the setup"),
        (_init(0) + CHANNEL, ""),
        (_init(0) + _nameless(3, "sum -1", 213.33), ""),
        (_nameless(3, "sum -1", 213.33) + _init(0), "ranks 1, 2 of communicator 0xa have not joined"),
        (_init(0) + _init(0, "COMPLETE") + _init(0, comm="0xb"), "ranks 1, 2 of communicator 0xb have not joined"),
    ],
)  # fmt: skip
def test_a_setup_that_has_not_ended(tmp_path, log, title):
    """Not where later lines or results show that it has; a log may hold the lines of one rank only."""
    assert [one.title for one in diagnose(_read(tmp_path, log)).findings if one.wrong] == ([title] if title else [])


def test_ncclss_lines_of_many_versions(tmp_path):
    lines = """
    n:1:2 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to LOC
    n:1:2 [0] NCCL INFO Ring 00 : 1[90] -> 2[b0] via direct shared memory
    n:1:2 [0] NCCL INFO Channel 00 : 0[1] -> 1[2] via P2P/IPC/read
    n:1:2 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[2] [send] via NET/IB/1/GDRDMA
    n:1:2 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[2] [receive] via NET/IB/1/GDRDMA
    n:1:2 [0] NCCL INFO Channel 02/0 : 5[1] -> 6[2] [receive] via NET/IB/1/GDRDMA
    n:1:2 [0] NCCL INFO Channel 01/0 : 2[1] -> 3[2] via SHM/direct/direct
    """
    case = _read(tmp_path, lines)
    assert [(hop.src, hop.dst, hop.transport) for hop in case.of(ChannelHop)] == [
        (1, 2, "SHM"), (0, 1, "P2P"), (3, 0, "NET"), (2, 3, "SHM"),
    ]  # fmt: skip
    assert [(one.name, one.value) for one in case.of(Setting)] == [("NCCL_P2P_LEVEL", "LOC")]


@pytest.mark.parametrize(
    "line",
    [
        "n:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 1, bw 1.2.3/1.2, type NVL/PIX, sameChannels 1",
        "n:1:2 [0] NCCL INFO + SYS[1.2.3] - CPU/1",
        f"n:1:2 [0] NCCL INFO Channel 00 : {'9' * 5000}[1] -> 1[2] via P2P/IPC",
    ],
)
def test_a_line_with_no_number_for_a_number_is_left_out_with_a_note(tmp_path, line):
    case = _read(tmp_path, line + "\nn:1:2 [0] NCCL INFO NCCL_PROTO set by environment to LL\n")
    assert [type(piece) for piece in case.pieces] == [Setting]
    assert any("without the expected number are skipped" in note for note in case.notes)


def test_a_matrix_within_a_log(tmp_path):
    noise = "".join(f"some line {n}\n" for n in range(500))
    matrix = (CORPUS / "nics-on-one-socket/topo.txt").read_text()
    case = _read(tmp_path, noise + matrix + "\n" + noise)
    assert len(case.of(MachineRead)[0].topology.ranks) == 8
    assert len(case.of(NicPath)) == 32
    assert case.of(MachineRead)[0].place.line == 501


def test_a_large_log_is_streamed(tmp_path, monkeypatch):
    """The log is streamed, with progress by parts, and a repeated line gives one piece."""
    path = tmp_path / "large.log"
    line = b"n:1:2 [0] step 17 loss 0.1234567 and nothing else that matters here\n"
    row = b"n:1:2 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
    path.write_bytes(line * 20_000 + row * 20_000)
    ticks = []
    real = io.BufferedReader.read

    def tick(done, total):
        ticks.append((done, total))

    case = read_files([path], tick)
    assert len(case.of(Setting)) == 1  # one piece for 20,000 equal lines
    assert ticks[-1] == (path.stat().st_size,) * 2
    assert real is io.BufferedReader.read


def test_a_line_without_an_end(tmp_path):
    case = _read(tmp_path, b"NCCL INFO " + b"x" * 10_000_000)
    assert not case.pieces
    assert list(case.read.values()) == [[]]


def test_json_that_is_cut_off_is_said_and_not_used(tmp_path):
    whole = (CORPUS / "pro6000-writes-slow/links.json").read_text()
    case = _read(tmp_path, whole[:-30])
    assert not case.pieces
    assert "possibly cut off" in case.notes[0]


def test_pickles_run_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    case = _read(tmp_path, pickle.dumps(Evil(), 2), "trace_0")
    assert not (tmp_path / "owned").exists()
    assert not case.pieces
    assert "its structure differs" in case.notes[0]


def test_a_flight_recorder_says_rank_call_and_line(tmp_path):
    entry = {
        "process_group": ("0", "default_pg"), "collective_seq_id": 5, "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]], "state": "scheduled",
        "frames": [
            {"filename": "/lib/torch/x.py", "line": 1, "name": "f"}, {"filename": "/j/t.py", "line": 9, "name": "go"},
        ],
    }  # fmt: skip
    document = {"entries": [entry], "pg_config": {"0": {"ranks": "[0, 1, 2]"}}}
    case = _read(tmp_path, json.dumps(document), "trace_2.json")
    (state,) = case.of(RankReport)
    assert (state.rank, state.members, state.line) == (2, (0, 1, 2), "/j/t.py:9 in go")
    assert "ranks 0, 1" in diagnose(case).findings[0].title


def test_inspector_and_benchmark_json(tmp_path):
    row = {
        "header": {"id": "0x7", "rank": 2, "n_ranks": 8, "nnodes": 1},
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 1 << 30, "coll_exec_time_us": 4000,
            "coll_algobw_gbs": 268.4, "coll_busbw_gbs": 469.7,
        },
    }  # fmt: skip
    lines = json.dumps(row) + "\n" + json.dumps(row) + "\n" + json.dumps(row)[:40]
    assert [one.busbw_gb_per_s for one in _read(tmp_path, lines).of(MeasuredCall)] == [469.7, 469.7]
    benchmark = {
        "config": {"nthreads": 1, "ngpus": 8, "devices": [{"hostname": "n", "pid": 1, "name": "H"}]},
        "args": ["./build/all_reduce_perf"],
        "results": [{"size": 1 << 30, "out_of_place": {"time": 4000, "alg_bw": 268.4, "bus_bw": 469.7, "nwrong": 0}}],
    }
    (measured,) = _read(tmp_path, json.dumps(benchmark)).of(MeasuredCall)
    assert (measured.ranks, measured.collective, measured.gpu) == (8, "allreduce", "H")


def test_what_a_file_says_forges_no_line_and_no_colour(tmp_path):
    """Names in JSON may hold any text; in findings they stay on one line."""
    entry = {
        "process_group": ("0", "default_pg"), "collective_seq_id": 5, "state": "scheduled",
        "profiling_name": "a\n        try     evil\x1b[2J", "input_sizes": [],
    }  # fmt: skip
    other = entry | {"profiling_name": "all_reduce"}
    for rank, one in enumerate((entry, other, other)):
        (tmp_path / f"trace_{rank}.json").write_text(json.dumps({"entries": [one], "pg_config": {}}))
    diagnosis = diagnose(read_files([tmp_path]))
    (finding,) = diagnosis.findings
    assert finding.cause == "call-mismatch"
    assert finding.got == "a?        try     evil?[2J of []"
    assert finding.attempt.startswith("compare the call of rank 0")
    assert all(line.isprintable() for line in diagnosis.text(plain).split("\n"))


def test_utf_16(tmp_path):
    line = "n:1:2 [0] NCCL INFO NCCL_PROTO set by environment to LL\r\n"
    assert _read(tmp_path, line.encode("utf-16")).of(Setting)[0].value == "LL"


def test_the_channels_that_nccl_printed_are_what_it_expects(tmp_path):
    """No file of the machine is given. Rings of a smaller communicator belong to another job."""
    pattern = "n:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels {}, bw {}/{}, type NVL/PIX, sameChannels 1\n"
    members = "n:1:2 [0] NCCL INFO  0 :{}\n"
    text = pattern.format(12, 20.0, 20.0) + members.format(" GPU/0 GPU/1 GPU/2 GPU/3")
    text += pattern.format(1, 5.0, 5.0) + members.format(" GPU/0 GPU/1")
    text += "all_reduce_perf\n" + "".join(f"#  Rank {r} Pid 1 on n device {r} [0x0] X\n" for r in range(4))
    case = _read(tmp_path, text + "1073741824 268435456 float sum -1 16000.0 67.11 100.66 0\n")
    assert [(graph.ranks, graph.total_gb_per_s) for graph in case.of(RingGraph)] == [(4, 240.0), (2, 5.0)]
    (finding,) = diagnose(case).findings
    assert (finding.cause, finding.severity) == ("measured-low", "warning")
    assert "42% of NCCL's expectation" in finding.title


def test_ras_lists_ranks_of_smaller_sets_one_by_one(tmp_path):
    text = """
#0-0 (fa93daea) MISMATCH
  Communicator ranks have different AllGather operation counts
    2 ranks have launched up to operation 641
      Rank 0 -- GPU 0 managed by process 1 on node n
      Rank 3 -- GPU 3 managed by process 1 on node n
    30 ranks have launched up to operation 640
"""
    states = _read(tmp_path, text).of(RankReport)
    assert [(state.rank, state.calls) for state in states] == [
        (0, (("AllGather", 641),)), (3, (("AllGather", 641),)), (-30, (("AllGather", 640),)),
    ]  # fmt: skip


def test_a_run_without_results_is_one(tmp_path):
    lines = "".join(f"#  Rank {r} Group 0 Pid 1 on n device {r} [0x0] X\n" for r in range(2))
    assert _read(tmp_path, lines).of(Started)[0].ranks == 2


def test_folders_and_files_that_are_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_files([tmp_path / "none"])
    (tmp_path / "a").write_text("")
    assert "the file is empty" in read_files([tmp_path]).notes[0]


def test_xml_without_gpu_tags_still_says_its_links(tmp_path):
    path = next(path for path in FIXTURES if path.name == "no-gpu-tags.nccl.xml")
    case = read_files([path])
    assert case.of(Device)
    assert not case.of(MachineRead)
    assert any("NCCL_TOPO_DUMP_FILE" in note for note in case.notes)


@pytest.mark.parametrize(
    ("name", "title", "gpus"),
    [
        ("mi250-4.rocm-smi.txt", "rocm-smi or amd-smi", 8),
        ("mi300x.amd-smi.txt", "rocm-smi or amd-smi", 8),
    ],
)
def test_the_topologies_of_other_tools_are_machines(name, title, gpus):
    (path,) = (path for path in FIXTURES if path.name == name)
    case = read_files([path])
    assert list(case.read.values()) == [[title]]
    assert len(case.last(MachineRead).topology.ranks) == gpus
    assert case.notes == []


TREE = """\
=== System : maxBw 48.0 totalBw 721.8 ===
CPU/0 (1/1/2)
+ PCI[48.0] - PCI/1000 (1000c0101000100b)
              + PCI[48.0] - GPU/2000 (0)
                            + NVL[721.8] - NVS/0
              + PCI[48.0] - NIC/3000
                            + NET[50.0] - NET/0 (0/0/50.000000)
+ SYS[22.0] - CPU/1
CPU/1 (1/1/2)
+ PCI[24.0] - GPU/9000 (4)
                            + NVL[721.8] - NVS/0
==========================================
"""


def test_nccls_tree_is_read_also_if_ranks_print_it_at_once(tmp_path):
    lines = [f"n:{rank}:9 [{rank}] NCCL INFO {line}" for line in TREE.splitlines() for rank in range(3)]
    links = _read(tmp_path, "\n".join(lines)).of(SystemLink)
    assert [(one.kind, one.gb_per_s, one.above, one.node, one.gpus) for one in links] == [
        ("PCI", 48.0, "CPU/0", "PCI/1000", 1),
        ("PCI", 48.0, "PCI/1000", "GPU/2000", 1),
        ("NVL", 721.8, "GPU/2000", "NVS/0", 0),
        ("PCI", 48.0, "PCI/1000", "NIC/3000", 0),
        ("NET", 50.0, "NIC/3000", "NET/0", 0),
        ("SYS", 22.0, "CPU/0", "CPU/1", 0),
        ("PCI", 24.0, "CPU/1", "GPU/9000", 1),
        ("NVL", 721.8, "GPU/9000", "NVS/0", 0),
    ]


@pytest.mark.parametrize("collnet", ["", "16 collnet channels, "])
def test_numbers_of_channels(tmp_path, collnet):
    line = (
        f"n:1:2 [0] NCCL INFO 24 coll channels, {collnet}0 nvls channels, 32 p2p channels, 32 p2p channels per peer\n"
    )
    (counts,) = _read(tmp_path, line).of(ChannelCounts)
    assert (counts.rings, counts.nvls) == (24, 0)


def test_the_names_of_gpus_in_a_list(tmp_path):
    case = _read(tmp_path, "GPU 0: NVIDIA GB300 (UUID: GPU-1)\nGPU 1: NVIDIA GB300 (UUID: GPU-2)\n")
    assert {one.name for one in case.of(GpuName)} == {"NVIDIA GB300"}


def test_gpus_of_two_hosts_in_one_dump_have_the_names_of_their_hosts():
    path = next(path for path in FIXTURES if path.name == "two-grace-hopper.nccl.xml")
    case = read_files([path])
    topology = case.of(MachineRead)[0].topology
    labels = [topology.vertex[gpu].label for gpu in topology.ranks]
    assert labels == ["0/GPU0", "1/GPU0"]
    assert {one.name for one in case.of(Device) if one.kind == "gpu"} == set(labels)
    assert all(one.nic and one.gpu in labels for one in case.of(NicPath))
