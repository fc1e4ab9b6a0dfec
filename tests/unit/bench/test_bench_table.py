"""Table and JSON in the exact format of nccl-tests."""

import json
import re

import pytest

#: The first line ends in ten blanks, like that of nccl-tests.
COLUMNS = "\n".join(
    [
        "#                                                              out-of-place                       in-place"
        + " " * 10,
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
        "             (us)  (GB/s)  (GB/s)\n",
    ]
)
TIMES = r" +[0-9.]+ +[0-9.]+ +[0-9.]+ +(?:0|N/A)"
#: Titles of the columns that a probe of the memory adds, and their cells.
BOUND = re.compile(r"  %bound  %bound$|             out      in$", re.MULTILINE)
BOUNDS = r"(?: +[0-9.]+ +[0-9.]+)?"
SMALL = ["-b", "1K", "-e", "4K", "-n", "2"]


def test_header_columns_and_footer(blink):
    ended = blink("bench", "allreduce", "--topo", "dgx-1v", "--gpus", "1,4,5,6", *SMALL)
    assert ended.code == 0
    head, columns, body = BOUND.sub("", ended.out).partition(COLUMNS)
    assert columns
    assert (
        "# nThread 1 nGpus 4 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 2 agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0\n"
    ) in head
    devices = re.findall(r"#  Rank  (\d) Group  0 Pid +\d+ on +\S+ device  (\d) \[0000:00:00\] \S", head)
    assert devices == [("0", "0"), ("1", "1"), ("2", "2"), ("3", "3")]
    rows = body.splitlines()
    for row, size in zip(rows[:3], (1024, 2048, 4096), strict=True):
        assert row.startswith(f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}  ")
        assert re.fullmatch(TIMES * 2 + BOUNDS, row[54:]), row
    assert rows[3] == "# Out of bounds values : 0 OK"
    assert re.fullmatch(r"# Avg bus bandwidth    : [0-9.e-]+", rows[4])
    assert rows[5:] == ["#", "# Collective test concluded: allreduce", "#"]


@pytest.mark.parametrize(
    ("collective", "count", "redop", "root"),
    [
        ("allgather", 256, "none", -1),
        ("reduce_scatter", 256, "sum", -1),
        ("alltoall", 256, "none", -1),
        ("gather", 256, "none", 2),
        ("scatter", 256, "none", 2),
        ("broadcast", 1024, "none", 2),
        ("reduce", 1024, "sum", 2),
        ("sendrecv", 1024, "none", -1),
    ],
)
def test_count_and_root_are_those_of_nccl_tests(blink, collective, count, redop, root):
    chosen = ["--root", "6"] if root == 2 else []
    ended = blink("bench", collective, "--topo", "dgx-1v", "--gpus", "4,5,6,7", "-b", "4K", "-n", "1", *chosen)
    row = next(line for line in ended.out.splitlines() if not line.startswith("#"))
    assert row.split()[:5] == ["4096", str(count), "float", redop, str(root)]
    assert row.count("N/A") in ((4, 5) if collective == "alltoall" else (0,))


def test_blocks_are_whole_groups_of_16_bytes(blink):
    ended = blink("bench", "allgather", "--topo", "ring:3", "-b", "1000", "-n", "1", "-d", "half")
    row = next(line for line in ended.out.splitlines() if not line.startswith("#"))
    assert row.split()[:3] == ["960", "160", "half"]


@pytest.mark.parametrize("size", ["0", "4", "40"])
def test_sizes_too_small_for_every_share(blink, size):
    ended = blink("bench", "allreduce", "--topo", "dgx-1v", "-b", size, "-n", "1", "-d", "int8", "-o", "max")
    assert ended.code == 0
    assert "# Out of bounds values : 0 OK" in ended.out


def test_sizes_that_hold_no_element_are_noted(blink):
    ended = blink("bench", "reduce", "--topo", "ring:3", "-b", "3", "-n", "1")
    assert ended.code == 0
    assert "3 bytes hold less than one element of float per block: these rows have 0 elements" in ended.err
    assert blink("bench", "reduce", "--topo", "ring:3", "-b", "0", "-n", "1").err == ""


def test_json_in_nccl_tests_shape(blink):
    run = json.loads(blink("bench", "allreduce", "--topo", "ring:3", *SMALL, "--json").out)
    assert run["version"] == 3
    fields = "start_time args env nccl_version config results out_of_bounds average_bus_bandwidth errors end_time"
    assert set(run) >= set(fields.split())
    assert set(run["results"][0]) == {"size", "count", "type", "redop", "root", "out_of_place", "in_place"}
    assert set(run["results"][0]["in_place"]) >= {"time", "alg_bw", "bus_bw", "nwrong", "median"}
    assert run["out_of_bounds"] == {"count": 0, "okay": True}
    assert len(run["config"]["devices"]) == 3
    assert run["config"]["iters"] == 2


def test_json_on_stdout_is_one_object(blink):
    run = json.loads(blink("bench", "alltoall", "--topo", "ring:3", *SMALL, "--json").out)
    assert run["schema_version"] == 2
    assert run["collective"] == "alltoall"
    assert run["results"][0]["in_place"] is None
    assert (run["algorithms"], run["topology"]) == (["auto"], "GPUs 0,1,2 of ring:3")


def test_bus_bandwidth_follows_from_algorithm_bandwidth(blink):
    for collective, factor in (("allreduce", 4 / 3), ("allgather", 2 / 3), ("broadcast", 1)):
        run = json.loads(blink("bench", collective, "--topo", "ring:3", *SMALL, "--json").out)
        for result in run["results"]:
            for place in ("out_of_place", "in_place"):
                timing = result[place]
                assert timing["bus_bw"] == pytest.approx(factor * timing["alg_bw"])
                assert timing["alg_bw"] == pytest.approx(result["size"] / timing["time"] / 1000)
