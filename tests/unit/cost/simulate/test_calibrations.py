"""Calibrations: each machine of the catalog has one, every number has a source, and bad files are refused."""

from collections import Counter

import msgspec
import pytest

from blinkccl.cost.baselines.candidate import Conditions, planned
from blinkccl.cost.baselines.registry import candidates
from blinkccl.cost.simulate.calibration import (
    FALLBACK,
    Number,
    calibration,
    calibration_for,
    calibration_names,
    link_cost,
    parse_calibration,
)
from blinkccl.errors import TopologyError
from blinkccl.topology.catalog import CATALOG, machine
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.planned import asked

GOOD = """
schema_version = 2
name = "good"
about = "a test"

[engine]
issue_us = { value = 5, source = "a test" }

[[link]]
kind = "nvlink"
nominal_gb_per_s = 25.0
gb_per_s = { value = 22.0, source = "a test" }
latency_us = { value = 0.0, source = "a test" }
"""
HEAD = GOOD[: GOOD.index("[[link]]")]


def numbers(part):
    """All numbers in a calibration."""
    if isinstance(part, Number):
        yield part
    elif isinstance(part, msgspec.Struct):
        for field in part.__struct_fields__:
            yield from numbers(getattr(part, field))
    elif isinstance(part, tuple):
        for each in part:
            yield from numbers(each)


@pytest.mark.parametrize("name", calibration_names())
def test_every_number_says_where_it_is_from(name):
    read = calibration(name)
    assert read.name == name
    assert read.about
    listed = list(numbers(read))
    assert len(listed) >= 4
    assert all(len(number.source) >= 5 for number in listed)


@pytest.mark.parametrize("name", CATALOG)
def test_every_machine_has_one_that_knows_all_its_links(name):
    topology = machine(name)
    calibrated = calibration_for(topology)
    assert calibrated.name != FALLBACK
    assert name in calibrated.machines
    for link in topology.links:
        cost = link_cost(calibrated, link)
        assert 0.5 * link.gb_per_s < cost.rate / 1e9 < 1.15 * link.gb_per_s, link
        assert cost.duplex_rate <= cost.rate


@pytest.mark.parametrize("name", CATALOG)
def test_servers_on_a_network_have_the_same_one(name):
    cluster = parse_spec(f"2x {name} @ 40Gbps")
    assert calibration_for(cluster) == calibration_for(machine(name))


@pytest.mark.parametrize(("name", "server"), [("nccl-2.4-v100", "dgx-1v"), ("nccl-2.4-p100", "dgx-1p")])
def test_those_of_nccl_are_asked_for_by_name(name, server):
    assert calibration(name).machines == ()
    assert calibration(name).serves(machine(server))
    assert calibration(name).serves(parse_spec(f"3x {server} @ 100Gbps"))


def test_no_machine_is_claimed_twice_and_none_is_unknown():
    claimed = Counter(server for name in calibration_names() for server in calibration(name).machines)
    assert set(claimed) == set(CATALOG)
    assert set(claimed.values()) == {1}


def test_nominal_serves_every_machine():
    assert calibration_for(parse_spec("ring:8")).name == FALLBACK
    assert all(calibration(FALLBACK).serves(machine(name)) for name in CATALOG)


def busbw(spec, gpus, collective, name=None, links="fast"):
    """GB/s of rings with 1 GiB: NCCL 2.4's with its calibration as ``name``, else those of the machine's own."""
    request = asked(spec, collective, gpus, links=links)
    conditions = Conditions(calibration_for(request.topology))
    if name:
        prepared = candidates()["nccl-2.4"].prepare(request, conditions)
        assert prepared.algorithms["ring"].simple.conditions.calibration.name == name
        return prepared.at(1 << 30).busbw_gb_per_s
    return planned("ring", ALGORITHMS["ring"].plan(request), conditions).at(1 << 30).busbw_gb_per_s


@pytest.mark.parametrize(
    ("spec", "gpus", "collective", "name", "least", "most"),
    [
        ("dgx-1v", (1, 4, 5, 6), "allreduce", "nccl-2.4-v100", 7.25, 7.5),
        ("dgx-1v", (1, 4, 5, 6), "broadcast", "nccl-2.4-v100", 7.25, 7.5),
        ("dgx-1p", (0, 1, 4), "allreduce", "nccl-2.4-p100", 5.5, 5.75),
        ("dgx-1v", (0, 1), "allreduce", "nccl-2.4-v100", 22.5, 22.9),
        ("dgx-1v", (0, 3), "allreduce", "nccl-2.4-v100", 45.0, 45.9),
        ("dgx-1v", None, "allreduce", "nccl-2.4-v100", 125.0, 130.0),
        ("dgx-2", None, "allreduce", "nccl-2.4-v100", 120.0, 135.0),
        ("dgx-1p", None, "allreduce", "nccl-2.4-p100", 61.0, 62.5),
        ("dgx-1p", (0, 1, 2, 3), "allreduce", "nccl-2.4-p100", 53.0, 54.0),
        ("dgx-a100", None, "allreduce", None, 230.0, 233.0),
        ("hgx-h100", None, "allreduce", None, 365.0, 370.0),
        ("hgx-h200", (0, 1), "allreduce", None, 365.0, 370.0),
        ("pcie-8gpu-nvlink-pairs", (0, 1, 2), "allreduce", None, 19.5, 20.5),
        ("pcie-8gpu-nvlink-pairs", (0, 1), "allreduce", None, 200.0, 208.5),
    ],
)
def test_simulated_rings_reach_the_measured_rate(spec, gpus, collective, name, least, most):
    assert least <= busbw(spec, gpus, collective, name) <= most


def test_pcie_is_slower_between_sockets():
    assert 11.0 <= busbw("dgx-1v", (0, 1, 2, 3), "allreduce", "nccl-2.4-v100", "pcie") <= 11.2
    assert 7.25 <= busbw("dgx-1v", None, "allreduce", "nccl-2.4-v100", "pcie") <= 7.5


def test_a_small_allreduce_of_nccl_takes_the_time_of_its_logs():
    """Simple takes 20.9 us, of which the 16 us for a reduced slice were once unknown; NCCL uses LL at this size."""
    ring = candidates()["nccl-2.4"].prepare(asked("dgx-1v", "allreduce", (0, 1)), Conditions(calibration(FALLBACK)))
    assert "LL" in ring.at(1024).detail
    assert 15e-6 <= ring.at(1024).seconds <= 21.2e-6


def test_copies_of_a_p100_take_the_measured_time():
    request = asked("dgx-1p", "sendrecv", (0, 1))
    plan = ALGORITHMS["optimal"].plan(request)
    size = 1 << 24
    copy = planned("optimal", plan, Conditions(calibration_for(request.topology), chunk_bytes=size)).at(size)
    assert copy.seconds == pytest.approx(9.84e-6 + size / 18.37e9, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("schema_version = 2", "schema_version = 3"), "schema_version 3; this blink reads 1 and 2"),
        (("schema_version = 2", ""), "missing required field `schema_version`"),
        (("[engine]", "[engine"), "not a TOML file"),
        (("issue_us", "isue_us"), "unknown field `isue_us`"),
        (("value = 22.0, ", ""), "missing required field `value`"),
        ((', source = "a test" }\nlatency', " }\nlatency"), "missing required field `source`"),
        (("value = 22.0", "value = -22.0"), "gb_per_s must be from 1e-06 to below 1e+06 GB/s, got -22"),
        (("value = 22.0", "value = 9e-7"), "gb_per_s must be from 1e-06 to below 1e+06 GB/s, got 9e-07"),
        (("value = 22.0", "value = 1e6"), "gb_per_s must be from 1e-06 to below 1e+06 GB/s, got 1e+06"),
        (("value = 22.0", 'value = "fast"'), "Expected `float`, got `str`"),
        (("value = 22.0", "value = nan"), "gb_per_s must be from 1e-06"),
        (
            ("nominal_gb_per_s = 25.0", "nominal_gb_per_s = -25.0"),
            "nominal_gb_per_s must be 0 (any rate), or from 0.001",
        ),
        (
            ("nominal_gb_per_s = 25.0", "nominal_gb_per_s = 1e-4"),
            "nominal_gb_per_s must be 0 (any rate), or from 0.001",
        ),
        (("nominal_gb_per_s = 25.0", "nominal_gb_per_s = nan"), "nominal_gb_per_s must be 0 (any rate), or from 0.001"),
        (("nominal_gb_per_s = 25.0", "nominal_gb_per_s = 1e6"), "to below 1e+06 GB/s, got 1e+06"),
        (("issue_us = { value = 5", "copy_engines = { value = 0.5"), "copy_engines must be an integer"),
        (("issue_us = { value = 5", "copy_engines = { value = -1"), "copy_engines must not be negative, got -1"),
        (
            ("issue_us = { value = 5", "reduce_gb_per_s = { value = 1e-7"),
            "reduce_gb_per_s must be 0 (no limit), or at least",
        ),
        (("issue_us = { value = 5", "memory_gb_per_s = { value = 1e-7"), "memory_gb_per_s must be 0 (no limit), or at"),
        (('name = "good"', r'name = "go\u001bod"'), "name has the control character U+001B"),
        (('about = "a test"', f'about = "{"a" * 201}"'), "about has 201 characters, expected at most 200"),
        (('about = "a test"', r'about = "a"' + "\n" + r'machines = ["dgx\u009b"]'), "machines: has the control"),
        (('about = "a test"', "about = " + "[" * 100_000), "nested too deeply"),
        (("nominal_gb_per_s = 25.0", "nominal_gb_per_s = " + "9" * 5000), "a number with too many digits"),
        (("value = 0.0", "value = -0.5"), "latency_us must not be negative, got -0.5"),
        (("value = 5", "value = -5"), "issue_us must not be negative, got -5"),
        (('kind = "nvlink"', 'kind = "nvlinc"'), "link 0 (nvlinc): unknown kind; expected one of nvlink"),
        (("[[link]]", "[link]"), "Expected `array`, got `object`"),
        (("[engine]", "[motor]"), "unknown field `motor`"),
        (
            ("latency_us", 'duplex = { value = 1.5, source = "a test" }\nlatency_us'),
            "duplex must be in (0, 1], got 1.5",
        ),
        ((GOOD, HEAD), "missing required field `link`"),
        ((GOOD, "link = []\n" + HEAD), "it has no [[link]]"),
    ],
)
def test_bad_files_are_refused_with_their_fault(change, message):
    assert change[0] in GOOD
    with pytest.raises(TopologyError) as refused:
        parse_calibration(GOOD.replace(*change, 1), "mine.toml")
    assert str(refused.value).startswith("mine.toml: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        ("nominal_gb_per_s = 25.0", "nominal_gb_per_s = 0"),
        ("nominal_gb_per_s = 25.0", "nominal_gb_per_s = 1e-3"),
        ("value = 22.0", "value = 1e-6"),
        ("issue_us = { value = 5", "copy_engines = { value = 2"),
        ("issue_us = { value = 5", "reduce_gb_per_s = { value = 1e-6"),
        ("issue_us = { value = 5", "reduce_gb_per_s = { value = 0"),
    ],
)
def test_the_ends_of_ranges_are_read(change):
    assert change[0] in GOOD
    assert parse_calibration(GOOD.replace(*change, 1), "x").name == "good"


def test_a_missing_class_names_the_link_and_the_classes():
    good = parse_calibration(GOOD, "x")
    assert not good.serves(machine("dgx-1v"))
    pcie = next(link for link in machine("dgx-1v").links if link.kind == "pcie")
    with pytest.raises(TopologyError, match=r"no link class for pcie .* it has nvlink"):
        good.link_class(pcie)
    with pytest.raises(TopologyError, match=r"20 GB/s, no multiple of its lanes \(25 GB/s\)"):
        good.link_class(machine("dgx-1p").links[0])


def test_a_calibration_that_is_not_there_lists_those_that_are(tmp_path):
    with pytest.raises(TopologyError, match=r"no calibration 'v101': expected one of a100, .*nominal, .*pcie"):
        calibration("v101")
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert calibration(str(path)).name == "good"


def test_a_file_without_end_is_refused():
    with pytest.raises(TopologyError, match="/dev/zero: larger than 8 MiB; a calibration is a short TOML file"):
        calibration("/dev/zero")


def test_a_file_of_bytes_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TopologyError, match="it is not UTF-8 text"):
        calibration(str(path))
