"""Logs of nccl-tests: all forms give the same timings; an impossible row is refused with its line."""

from __future__ import annotations

import pytest

from blinkccl.apps.doctor.readers.nccl_tests import BenchmarkLog, document_rows, untagged
from blinkccl.errors import TopologyError
from support.nccl_tests_logs import V1_0, V2_0, V2_17

BROADCAST = V2_0.replace("all_reduce", "broadcast").replace("redop ", " root ").replace("  sum ", "    0 ")

FOUR = [
    ("allreduce", 2, 65536, 23.78),
    ("allreduce", 2, 65536, 24.00),
    ("allreduce", 2, 1048576, 66.99),
    ("allreduce", 2, 1048576, 67.10),
]


def read(text):
    """Collective, ranks, bytes and microseconds of each timing of a log, called x.log."""
    log = BenchmarkLog("x.log")
    lines = enumerate(text.splitlines(), 1)
    return summary(row for number, line in lines for row in log.hear(untagged(line.strip()).strip(), number))


def summary(rows):
    return [(row.run.collective, row.run.ranks, row.size_bytes, round(row.seconds * 1e6, 6)) for row in rows]


@pytest.mark.parametrize("text", [V2_0, V2_17], ids=["2.0", "2.17"])
def test_logs_of_several_versions(text):
    assert read(text) == FOUR


def test_the_oldest_logs_count_milliseconds():
    assert [micros for *_, micros in read(V1_0)] == [24, 24, 67, 67]


def test_a_root_instead_of_an_operation():
    assert "root" in BROADCAST
    assert read(BROADCAST) == [("broadcast", *rest) for _, *rest in FOUR]


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "[0] ", "0: "])
def test_tags_of_launchers_are_removed(tag):
    assert read("\n".join(tag + line for line in V2_17.splitlines())) == FOUR


def test_a_tag_may_stand_between_columns():
    pieces = V2_17.replace("    66.99", "[0]    66.99").replace("    67.10", "[0]    67.10")
    assert read("\n".join("[0]" + line for line in pieces.splitlines())) == FOUR


def test_more_columns_and_the_time_of_day():
    more = V2_17.replace("#wrong", "#wrong    i_min    i_max").replace("       0", "       0    20.10    30.20")
    assert read(more) == FOUR
    after = V2_17.replace("busbw  #wrong\n", "busbw  #wrong     algo     proto\n")
    after = after.replace("       0\n", "       0  RING    SIMPLE\n")
    assert read(after) == FOUR
    lines = V2_17.splitlines()
    lines[9] += " timestamp"
    lines[10] += " %Y-%m-%d %H:%M:%S"
    for row in (11, 12):
        lines[row] += "  2025-01-02 03:04:05"
    assert read("\n".join(lines)) == FOUR


def test_missing_times_and_checks_give_no_measurement():
    unchecked = V2_17.replace("       0", "     N/A")
    assert read(unchecked) == FOUR
    only_out = V2_17.replace("24.00    2.73    2.73       0", "N/A     N/A     N/A     N/A")
    assert read(only_out) == [FOUR[0], *FOUR[2:]]


def test_rows_without_data_are_left_out():
    empty = V2_17.replace("       65536         16384", "           0             0").replace("2.76", "0.00")
    assert read(empty) == FOUR[2:]


def test_runs_one_after_the_other():
    three = V2_0.replace("#   Rank  1", "#   Rank  2 Pid   9212 on      node1 device  2\n#   Rank  1")
    for algbw, busbw in (("2.76 ", "3.68"), ("2.73 ", "3.64"), ("15.65", "20.87"), ("15.63", "20.84")):
        three = three.replace(f"{algbw}   {algbw.strip()}", f"{algbw}   {busbw}")
    runs = [(collective, ranks) for collective, ranks, *_ in read(V2_0 + three + BROADCAST)[::4]]
    assert runs == [("allreduce", 2), ("allreduce", 3), ("broadcast", 2)]


def row(line):
    """The log with ``line`` in place of its first row."""
    return V2_17.replace(V2_17.splitlines()[11], line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (row("65536 16384 float sum -1 23.78 2.76 2.76 0"), "line 12: 9 columns, but the titles above name 13: size"),
        (row("65536 16384 float sum -1 fast 2.76 2.76 0 24.00 2.73 2.73 0"), "line 12: 'fast' under 'time'"),
        (row("65536 16384 float sum -1 0.00 2.76 2.76 0 24.00 2.73 2.73 0"), "line 12: 65536 bytes in 0 us; expect"),
        (row("65536 16384 float sum -1 nan 2.76 2.76 0 24.00 2.73 2.73 0"), "line 12: 65536 bytes in nan us"),
        (row("65536 16384 float sum -1 47.56 2.76 2.76 0 24.00 2.73 2.73 0"), "are 1.38 GB/s, but algbw is 2.76"),
        (row(f"{'9' * 30} 16384 float sum -1 23.78 2.76 2.76 0 24.00 2.73 2.73 0"), "line 12: a size of 9999"),
        (V2_17.replace("all_reduce", "hypercube"), "line 2: 'hypercube' is no known collective; expected one"),
    ],
)  # fmt: skip
def test_bad_logs_are_refused_with_the_line(text, message):
    with pytest.raises(TopologyError) as refused:
        read(text)
    assert str(refused.value).startswith("x.log")
    assert message in str(refused.value)


def timing(micros, gb_per_s):
    return {"time": micros, "alg_bw": gb_per_s, "bus_bw": gb_per_s, "nwrong": 0}


RESULTS = [
    {"size": 65536, "out_of_place": timing(23.78, 2.756), "in_place": timing(24.0, 2.731)},
    {"size": 1048576, "out_of_place": timing(66.99, 15.653), "in_place": timing(67.1, 15.627)},
]
OURS = {"blink_version": "0.1.0", "config": {"collective": "allreduce", "devices": [{"rank": 0}, {"rank": 1}]},
        "results": RESULTS}  # fmt: skip
NCCL = {"version": 3, "args": ["./build/all_reduce_perf", "-g", "2"],
        "config": {"nthreads": 1, "ngpus": 2, "devices": [{"rank": 0, "pid": 7, "hostname": "a"}]},
        "results": RESULTS}  # fmt: skip


@pytest.mark.parametrize("document", [OURS, NCCL], ids=["ours", "nccl-tests"])
def test_json(document):
    assert summary(document_rows(document, "x.json")) == FOUR


def test_json_of_nccl_tests_lists_one_rank_of_each_process():
    config = {"nthreads": 2, "ngpus": 2, "devices": [{"pid": 7, "hostname": "a"}, {"pid": 7, "hostname": "b"}]}
    timed = {"size": 65536, "out_of_place": None, "in_place": {"cpu_time": 20.0}}
    eight = NCCL | {"config": config, "results": [timed]}
    assert summary(document_rows(eight, "x")) == [("allreduce", 8, 65536, 20)]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "x.json: no list 'results'"),
        (OURS | {"results": [7]}, "x.json, results[0]: expected an object with a 'size'"),
        (OURS | {"results": [{"size": 1.5}]}, "x.json, results[0]: expected an object with a 'size'"),
        (OURS | {"results": [{"size": 64, "in_place": 3}]}, "results[0].in_place: expected an object with"),
        (OURS | {"results": [{"size": 64, "in_place": {}}]}, "results[0].in_place: neither 'time' nor"),
        (OURS | {"results": [{"size": 64, "in_place": {"time": "x"}}]}, "in_place.time: 'x'; expected"),
        (OURS | {"results": [{"size": 64, "in_place": {"time": 10**400}}]}, "in_place.time: 1000"),
        (OURS | {"results": [{"size": 64, "in_place": {"time": -1}}]}, "64 bytes in -1 us; expected a pos"),
        (OURS | {"config": {"collective": "sum"}}, "config.collective: 'sum' is no known collective"),
        (NCCL | {"config": {"ngpus": "two", "devices": [{}]}}, "config.nthreads and config.ngpus are"),
    ],
)
def test_bad_json_is_refused_with_the_field(document, message):
    with pytest.raises(TopologyError) as refused:
        list(document_rows(document, "x.json"))
    assert message in str(refused.value)
