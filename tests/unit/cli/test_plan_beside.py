"""``blink plan``: what stands beside a plan."""

from __future__ import annotations

import json
from pathlib import Path


def test_what_switches_could_add_up_is_said_beside_an_allreduce(blink):
    ended = blink("plan", "allreduce", "--topo", "hgx-h100")
    assert (
        "switch  450 GB/s algbw where NVSwitch adds up and multicasts too (1 tree; nothing is faster, by the links "
        "out of {0})" in " ".join(ended.out.split()).replace("switch 450", "switch  450")
    )
    stated = json.loads(blink("plan", "allreduce", "--topo", "hgx-h100", "--json").out)["in_switch"]
    assert (stated["gb_per_s"], stated["certificate"]["kind"], len(stated["trees"])) == (450, "cut", 1)
    assert "switch  " not in blink("plan", "allreduce", "--topo", "dgx-a100").out
    assert "300 GB/s algbw where NVSwitch" in blink("plan", "allreduce", "--topo", "dgx-a100", "--sharp").out
    assert "in_switch" not in json.loads(blink("plan", "broadcast", "--topo", "hgx-h100", "--json").out)
    many = blink("plan", "allreduce", "--topo", "8x hgx-h100")
    assert "switch  not computed: 8 switches that combine among 64 ranks" in many.out


def test_an_order_and_its_price_stand_in_text_file_and_check(blink, tmp_path):
    plan = str(tmp_path / "plan.json")
    said = blink(
        "plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-2,4,6", "--deterministic", "order", "-o", plan
    ).out
    assert "order   0+1+2+(4+6), of every element, whatever the size, chunks and engine\n" in said
    assert "price   1.43x: order-invariant 35 GB/s, in any orders at most 50 GB/s\n" in said
    checked = blink("check", plan).out
    assert "  ok  order: 0+1+2+(4+6), in every share\n" in checked
    free = str(tmp_path / "free.json")
    assert blink("plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-2,4,6", "-o", free).code == 0
    assert ["order", "not", "one", "0+1+2+(4+6)"] in [
        line.split() for line in blink("diff", free, plan).out.splitlines()
    ]
    blink("show", plan, "-o", tmp_path / "plan.html")
    assert "Every element is the sum 0+1+2+(4+6), whatever" in (tmp_path / "plan.html").read_text()
    document = json.loads(Path(plan).read_text())
    assert (document["order"], document["price"], document["algorithm"]) == ("0+1+2+(4+6)", "10/7", "order")
    document["order"] = "0+1+2+4+6"
    Path(plan).write_text(json.dumps(document))
    refused = blink("check", plan).out
    assert "sums (4+6); expected the order 0+1+2+4+6, got 0+1+2+(4+6)" in refused
    assert "it keeps slice 0 summed as 0+1+2+(4+6), expected 0+1+2+4+6" in refused
    assert (
        "broadcast sums nothing: no order to keep"
        in blink("plan", "broadcast", "--topo", "dgx-1v", "--deterministic", "order").out
    )


def test_an_order_and_a_size_exclude_each_other(blink):
    said = blink("plan", "allreduce", "--topo", "ring:4", "--deterministic", "order", "--size", "1M").err
    assert "a size chooses trees for it, and deterministic wants the same for all sizes" in said
