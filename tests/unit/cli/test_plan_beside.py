"""``blink plan``: what stands beside a plan."""

from __future__ import annotations

import json


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
