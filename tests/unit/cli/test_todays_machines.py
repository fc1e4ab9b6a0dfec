"""Machines of 2024 to 2026: the verbs give one answer, and it is that of the links.

The files are written anew from facts of public reports. Expected numbers follow from the links, or name a report.
"""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

FIXTURES = files("blinkccl.topology") / "fixtures"
TRAY = str(FIXTURES / "gb200-tray.nccl.xml")


def document(blink, *command):
    ended = blink(*command, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def bound_of_plan(document):
    rate, _, below = document["bound"].partition("/")
    return int(rate) / int(below or 1) * document["unit_gb_per_s"]


@pytest.mark.parametrize("gpus", [(0, 1), (0, 1, 2), (0, 1, 2, 3)], ids=len)
def test_verbs_state_one_bound_on_a_grace_blackwell_tray(blink, gpus):
    # Every element leaves each of n ranks 2 (n - 1) / n times over 18 lanes of 50 GB/s, where nothing is reduced in
    # the switch. C2C would add the processors' 224 GB/s, but no store goes through a processor to a peer.
    n = len(gpus)
    expected = 18 * 50 * n / (2 * (n - 1))
    job = ("allreduce", "--topo", TRAY, "--gpus", ",".join(map(str, gpus)))
    plan = document(blink, "plan", *job)
    assert {link["kind"] for link in plan["topology"]["links"]} == {"nvlink"}
    assert bound_of_plan(plan) == pytest.approx(expected)
    for verb in ("sim", "explain"):
        assert document(blink, verb, *job, "-s", "1G")["bound_gb_per_s"] == pytest.approx(expected)


def test_a_grace_blackwell_tray_shows_its_nvlinks(blink):
    shown = blink("topo", TRAY).out
    assert shown.count("NV18") == 12
    assert "PHB" not in shown


@pytest.mark.parametrize(("machine", "links"), [("mist", "fast"), (TRAY, "all")])
def test_kernels_bound_stands_beside_the_bound_of_all_links(blink, machine, links):
    job = ("allreduce", "--topo", machine, "--gpus", "0,1", "--links", links)
    stated = bound_of_plan(document(blink, "plan", *job))
    for verb in ("sim", "explain"):
        assert document(blink, verb, *job, "-s", "64M")["bound_gb_per_s"] == pytest.approx(stated)
        printed = " ".join(blink(verb, *job, "-s", "64M").out.split())
        assert "only into a processor's memory" in printed


def test_mscclpp_gets_no_channel_through_a_processors_memory(blink, tmp_path):
    job = ("plan", "allreduce", "--topo", TRAY, "--gpus", "0,1")
    for links, code in (("fast", 0), ("all", 2)):
        plan = tmp_path / f"{links}.json"
        assert blink(*job, "--links", links, "-o", plan).code == 0
        ended = blink("export", plan, "--to", "mscclpp", "-o", tmp_path / "x.json")
        assert ended.code == code
    assert "the memory of CPU0" in ended.err
