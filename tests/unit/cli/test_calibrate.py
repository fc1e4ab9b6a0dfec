"""``blink calibrate``: output, files, and refusals."""

import json

import pytest

from blinkccl.cost.simulate.calibration import parse_calibration

LOG = """\
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid  18083 on      node1 device  0 [0000:18:00] Tesla V100-SXM2-16GB
#  Rank  1 Group  0 Pid  18083 on      node1 device  1 [0000:2a:00] Tesla V100-SXM2-16GB
#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        4096          1024     float     sum      -1    21.08    0.19    0.19       0    21.08    0.19    0.19       0
       65536         16384     float     sum      -1    23.78    2.76    2.76       0    23.78    2.76    2.76       0
     1048576        262144     float     sum      -1    66.99   15.65   15.65       0    66.99   15.65   15.65       0
   134217728      33554432     float     sum      -1   5920.6   22.67   22.67       0   5920.6   22.67   22.67       0
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "v100.log"
    path.write_text(LOG)
    return path


def test_as_a_ring_and_as_a_whole(blink, log):
    ring = blink("calibrate", log)
    assert (ring.code, ring.err) == (0, "")
    assert ring.out.splitlines() == [
        "allreduce on 2 ranks, as a ring",
        "  α      10.46 us per step",
        "  β      22.78 GB/s per link of the ring",
        "  error  0.1% at most, at 134,217,728 bytes; 8 times of 4 sizes",
    ]
    whole = blink("calibrate", log, "--algo", "whole")
    assert "α      20.9 us in all" in whole.out
    assert "β      22.75 GB/s of busbw" in whole.out


def test_json_has_the_documented_fields(blink, log):
    document = json.loads(blink("calibrate", log, "--json").out)
    assert (document["schema_version"], document["files"], document["algorithm"]) == (2, [str(log)], "ring")
    (only,) = document["fits"]
    assert (only["collective"], only["ranks"], only["points"], only["sizes"]) == ("allreduce", [2], 8, 4)
    assert only["alpha_us"] == pytest.approx(10.45, rel=0.01)
    assert only["beta_gb_per_s"] == pytest.approx(22.75, rel=0.01)
    assert only["max_relative_error"] < 2e-3
    assert only["worst_size_bytes"] in (4096, 65536, 1048576, 134217728)
    assert only["warnings"] == []


def test_a_written_calibration_is_read_by_sim(blink, log, tmp_path):
    path = tmp_path / "mine.toml"
    ended = blink("calibrate", log, "--nominal", "25", "-o", path)
    assert ended.err == f"blink: wrote {path}\n"
    written = parse_calibration(path.read_text(), "x")
    assert (written.name, written.link[0].kind, written.link[0].nominal_gb_per_s) == ("mine", "nvlink", 25.0)
    assert written.engine.issue_us.source == f"measured: {log}, 4 sizes"
    job = ["allreduce", "--topo", "dgx-1v", "--gpus", "0,1", "--algo", "ring", "--size", "128M", "--calibration", path]
    assert "calibration mine:" in blink("sim", *job).out
    assert blink("calibrate", log, "--nominal", "25", "-o", path, "--name", "other", "--json").code == 0
    assert parse_calibration(path.read_text(), "x").name == "other"


def test_an_undetermined_number_is_reported_and_not_written(blink, log, tmp_path):
    path = tmp_path / "mine.toml"
    ended = blink("calibrate", log, "-b", "1")
    assert ended.code == 0
    ended = blink("calibrate", log, "-e", "64K")
    assert "α      not determined" in ended.out
    assert "blink: allreduce: 2 sizes: neither α nor β is determined; measure at least 3" in ended.err
    few = blink("calibrate", log, "-e", "64K", "--nominal", "25", "-o", path)
    assert few.code == 2
    assert "no calibration can be written: 2 sizes" in few.err
    assert not path.exists()
    assert json.loads(blink("calibrate", log, "-e", "64K", "--json").out)["fits"][0]["alpha_us"] is None


def test_several_files_and_collectives(blink, log, tmp_path):
    other = tmp_path / "other.log"
    other.write_text(LOG.replace("all_reduce", "broadcast"))
    both = blink("calibrate", log, other)
    assert both.out.count("as a ring") == 2
    refused = blink("calibrate", log, other, "--nominal", "25", "-o", tmp_path / "x.toml")
    assert refused.code == 2
    assert "-o writes one fit, but the files have allreduce, broadcast; choose with --collective" in refused.err
    chosen = blink("calibrate", log, other, "--collective", "broadcast", "--json")
    assert [one["collective"] for one in json.loads(chosen.out)["fits"]] == ["broadcast"]


def test_files_of_blink_bench_are_read(blink, tmp_path):
    path = tmp_path / "x.json"
    measured = blink("bench", "allreduce", "--topo", "ring:2", "-b", "1K", "-e", "64K", "-f", "4", "--json")
    path.write_text(measured.out)
    assert measured.code == 0, measured.err
    (fit,) = json.loads(blink("calibrate", path, "--json").out)["fits"]
    assert (fit["ranks"], fit["sizes"], fit["points"]) == ([2], 4, 8)
    text = tmp_path / "x.log"
    text.write_text(measured.out)
    assert json.loads(blink("calibrate", text, "--json").out)["fits"][0]["points"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--collective", "sum"], "unknown collective 'sum'; expected one of"),
        (["--collective", "broadcast"], "--collective broadcast: no measurement of it; the files have allreduce"),
        (["--algo", "tree"], "unknown model 'tree'; expected one of ring, whole"),
        (["-b", "1G"], "no size from -b 1G: the files have 4,096 to 134,217,728 bytes"),
        (["-b", "1K", "-e", "2K"], "no size from -b 1K to -e 2K"),
        (["-b", "some"], "-b"),
        (["--ranks", "1"], "--ranks"),
        (["-o", "x.toml"], "-o needs --nominal"),
        (["-o", "no/such/folder/x.toml", "--nominal", "25"], "no/such/folder/x.toml cannot be written"),
        (["-o", "x.toml", "--nominal", "-1"], "the nominal rate of a lane must be above 0 GB/s, got -1"),
        (["-o", "x.toml", "--nominal", "1e-4"], "nominal_gb_per_s must be 0 (any rate), or from 0.001"),
        (["-o", "x.toml", "--nominal", "25", "--kind", "wire"], "--kind wire: expected one of nvlink"),
        (["--kind", "wire"], "--kind wire: expected one of nvlink"),
        (["--kind", "pcie"], "--kind needs -o, which writes a calibration"),
        (["--nominal", "25", "--lanes", "2"], "--nominal, --lanes needs -o, which writes a calibration"),
        (["--name", "mine"], "--name needs -o, which writes a calibration"),
        (["no-such-file"], "no-such-file cannot be read"),
        (["-", "-"], "standard input can be read once"),
    ],
)
def test_mistakes_are_refused(blink, log, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ended = blink("calibrate", log, *arguments)
    assert (ended.code, message in ended.err) == (2, True), ended.err
    assert not list(tmp_path.glob("*.toml"))


def test_a_file_that_is_no_log(blink, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xff\x00 nothing")
    blink("calibrate", path).assert_refused("no measurement; expected")
    path.write_bytes(b" " * (9 << 20))
    assert "expected a log of at most 8 MiB, got more" in blink("calibrate", path).err
