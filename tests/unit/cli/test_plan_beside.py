"""``blink plan``: the lines below a plan, and orders of sums."""

import json
from pathlib import Path


def test_an_allreduce_names_the_rate_of_in_network_reduction(blink):
    ended = blink("plan", "allreduce", "--topo", "hgx-h100")
    assert (
        "switch  450 GB/s algbw with reduction in NVSwitch (1 tree; nothing is faster, by the links "
        "out of {0})" in " ".join(ended.out.split()).replace("switch 450", "switch  450")
    )
    stated = json.loads(blink("plan", "allreduce", "--topo", "hgx-h100", "--json").out)["in_switch"]
    assert (stated["gb_per_s"], stated["certificate"]["kind"], stated["trees"]) == (450, "cut", 1)
    assert "switch  " not in blink("plan", "allreduce", "--topo", "dgx-a100").out
    assert (
        "300 GB/s algbw with reduction in NVSwitch"
        in blink("plan", "allreduce", "--topo", "dgx-a100 @ switches=sharp").out
    )
    assert "in_switch" not in json.loads(blink("plan", "broadcast", "--topo", "hgx-h100", "--json").out)
    several = blink("plan", "allreduce", "--topo", "4x hgx-h100").out
    assert "switch  266.7 GB/s algbw with reduction in 0/NVSwitch, 1/NVSwitch, 2/NVSwitch and 1 more (" in several
    assert "nothing is faster, by the links 0→43, 1→44 and 62 more" in " ".join(several.split())


def test_the_trees_of_switches_are_a_plan(blink, tmp_path):
    file = str(tmp_path / "plan.json")
    text = blink("plan", "allreduce", "--topo", "2x dgx-a100 @ switches=sharp", "--algo", "in_switch", "-o", file).out
    assert "bound   8 units = 200 GB/s: optimal\n" in text
    assert "in them 16 = 0/NVSwitch, 31 = 1/NVSwitch" in text
    assert "proof   no schedule of trees is faster, even if these switches reduce and multicast:" in text
    assert "switch  " not in text
    checked = blink("check", file)
    assert (checked.code, checked.out.splitlines()[-1]) == (0, "proved")
    refused = blink("check", file, "--topo", "2x dgx-a100")
    assert refused.code == 1
    assert "vertex 16 has in-network reduction (combines) in the plan, but not in the topology" in refused.out
    timed = json.loads(blink("sim", file, "--size", "64M", "--json").out)["sizes"][0]["algorithms"]
    both = (
        "sim",
        "allreduce",
        "--topo",
        "2x dgx-a100 @ switches=sharp",
        "--algo",
        "in_switch,optimal",
        "--size",
        "64M",
    )
    beside = json.loads(blink(*both, "--json").out)["sizes"][0]["algorithms"]
    assert [one["algorithm"] for one in beside] == ["in_switch", "optimal"]
    assert timed[0]["seconds"] == beside[0]["seconds"] < beside[1]["seconds"]


def test_in_switch_plans_are_not_exported(blink, tmp_path):
    file = str(tmp_path / "plan.json")
    blink("plan", "allreduce", "--topo", "hgx-h100", "--algo", "in_switch", "-o", file)
    for form, *options in (("cuda",), ("mscclpp",), ("goal", "--size", "1M"), ("chakra", "--json")):
        size = ("--size", "1M") if form == "chakra" else ()
        ended = blink("export", file, "--to", form, *options, *size)
        assert ended.code != 0, form
        assert any(word in ended.err for word in ("in switches [8]", "vertices [8]", "at NVSwitch")), ended.err


def test_an_order_and_its_price_stand_in_text_file_and_check(blink, tmp_path):
    plan = str(tmp_path / "plan.json")
    text = blink(
        "plan", "allreduce", "--topo", "dgx-1v", "--gpus", "0-2,4,6", "--deterministic", "order", "-o", plan
    ).out
    assert "order   0+1+2+(4+6), for every element, at any size, chunk and engine\n" in text
    assert "price   1.43x: 35 GB/s in this order, at most 50 GB/s in any order\n" in text
    checked = blink("check", plan).out
    assert "  ok  order: 0+1+2+(4+6), in every share\n" in checked
    blink("show", plan, "-o", tmp_path / "plan.html")
    assert "Every element is the sum 0+1+2+(4+6), at any size" in (tmp_path / "plan.html").read_text()
    document = json.loads(Path(plan).read_text())
    assert (document["order"], document["price"], document["algorithm"]) == ("0+1+2+(4+6)", "10/7", "order")
    document["order"] = "0+1+2+4+6"
    Path(plan).write_text(json.dumps(document))
    refused = blink("check", plan).out
    assert "sums (4+6); expected the order 0+1+2+4+6, got 0+1+2+(4+6)" in refused
    assert "it keeps slice 0 summed as 0+1+2+(4+6), expected 0+1+2+4+6" in refused
    assert (
        "broadcast sums nothing, so no order applies"
        in blink("plan", "broadcast", "--topo", "dgx-1v", "--deterministic", "order").out
    )


def test_an_order_and_a_size_exclude_each_other(blink):
    error = blink("plan", "allreduce", "--topo", "ring:4", "--deterministic", "order", "--size", "1M").err
    assert "a size selects trees for that size, and deterministic needs the same trees at all sizes" in error
