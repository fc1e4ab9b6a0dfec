"""Blink's JSON: exact round trips and strict checks."""

import json

import pytest

from blinkccl.errors import TopologyError
from blinkccl.topology import json_format
from blinkccl.topology.catalog import CATALOG
from blinkccl.topology.spec import parse_spec

SMALL = """{"schema_version": 2, "name": "pair", "unit_gb_per_s": 25.0,
 "vertices": [{"id": 0, "kind": "gpu"}, {"id": 1, "kind": "gpu", "server": 0}],
 "links": [{"src": 0, "dst": 1, "capacity": 2, "kind": "nvlink"},
           {"src": 1, "dst": 0, "capacity": 2, "kind": "nvlink", "gb_per_s": 50.0, "provenance": "measured"}]}"""


@pytest.mark.parametrize("spec", [*CATALOG, "2x dgx-a100 @ 200Gbps", "random:9:seed=4", "2x dgx-1v @ 40Gbps"])
def test_round_trip_is_exact(spec: str) -> None:
    topology = parse_spec(spec).noted("a note")
    text = json_format.write(topology)
    again = json_format.parse(text)
    assert again == topology
    assert again.notes == topology.notes
    assert json_format.write(again) == text
    assert json.loads(text) == json_format.to_document(topology)


def test_gpus_without_p2p_over_pcie_are_kept() -> None:
    text = json_format.write(json_format.parse(SMALL.replace('"id": 0, ', '"id": 0, "peers": false, ')))
    assert text.count('"peers":false') == 1
    assert [v.peers for v in json_format.parse(text).vertices] == [False, True]


def test_derived_fields_may_be_left_out() -> None:
    topology = json_format.parse(SMALL)
    assert topology.link[0, 1].gb_per_s == 50.0
    assert topology.link[0, 1].provenance == "declared"
    assert topology.link[1, 0].provenance == "measured"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"capacity": 2, "kind": "nvlink"}',
            '"capacity": -2, "kind": "nvlink"}',
            "capacity must be a positive integer",
        ),
        ('"capacity": 2, "kind": "nvlink"}', '"capacity": 0, "kind": "nvlink"}', "capacity must be a positive integer"),
        ('"capacity": 2, "kind": "nvlink"}', '"capacity": 2.5, "kind": "nvlink"}', r"\$\.links\[0\]\.capacity"),
        ('"capacity": 2, "kind": "nvlink"}', '"capacity": NaN, "kind": "nvlink"}', "line 3, column 45: no JSON"),
        ('"capacity": 2, "kind": "nvlink"}', '"capacity": 1e400, "kind": "nvlink"}', "bad.json"),
        ('"capacity": 2, "kind": "nvlink"}', '"capacity": "fast", "kind": "nvlink"}', r"\$\.links\[0\]\.capacity"),
        ('"capacity": 2, "kind": "nvlink"}', '"capacity": 99999999999999999999, "kind": "nvlink"}', "capacity"),
        ('"unit_gb_per_s": 25.0', '"unit_gb_per_s": NaN', "line 1, column 56: no JSON"),
        ('"unit_gb_per_s": 25.0', '"unit_gb_per_s": Infinity', "no JSON"),
        ('"unit_gb_per_s": 25.0', '"unit_gb_per_s": 1e999', "bad.json"),
        ('"unit_gb_per_s": 25.0', '"unit_gb_per_s": -1', "unit_gb_per_s must be above 0"),
        ('"unit_gb_per_s": 25.0', '"unit_gb_per_s": 0', "unit_gb_per_s must be above 0"),
        ('"unit_gb_per_s": 25.0', '"unit_gb_per_s": 1e-300', "gb_per_s 50, but capacity 2"),
        ('"unit_gb_per_s": 25.0', '"unit_gb_per_s": 900000', "no valid link rate"),
        (
            '"gb_per_s": 50.0',
            '"gb_per_s": 51.0',
            r"links\[1\], 1 → 0: gb_per_s 51, but capacity 2 × unit_gb_per_s 25 is 50",
        ),
        ('"gb_per_s": 50.0', '"gb_per_s": -50.0', "gb_per_s -50"),
        ('"dst": 1', '"dst": 7', "names an unknown vertex"),
        ('"dst": 1', '"dst": 0', "joins a vertex to itself"),
        ('"src": 1, "dst": 0', '"src": 0, "dst": 1', "is given twice"),
        ('"id": 1', '"id": 0', "not unique"),
        ('"id": 1', '"id": -1', "ids are 0"),
        ('"kind": "gpu"}', '"kind": "toaster"}', "unknown kind 'toaster'"),
        ('"measured"', '"hearsay"', "unknown provenance 'hearsay'"),
        ('"vertices": [{"id": 0, "kind": "gpu"}, {"id": 1, "kind": "gpu", "server": 0}]', '"vertices": []', "no ranks"),
        ('"name": "pair"', '"nane": "pair"', "nane"),
        ('"schema_version": 2', '"schema_version": 3', "schema_version 3; this blink reads 1 and 2"),
        ('"links"', '"shares": [], "links"', "looks like a plan"),
        ("]}", "", "no JSON"),
    ],
)
def test_bad_documents(old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(TopologyError, match=message):
        json_format.parse(SMALL.replace(old, new, 1), "bad.json")


def test_nesting_without_end() -> None:
    with pytest.raises(TopologyError):
        json_format.parse("[" * 100_000, "deep.json")
    with pytest.raises(TopologyError):
        json_format.parse('{"a":' * 100_000, "deep.json")
