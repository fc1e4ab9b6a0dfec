"""The same bytes from every process."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
from pathlib import Path
from blinkccl.errors import TopologyError
from blinkccl.topology import json_format, nccl_xml_write, formats, spec
from blinkccl.report.topology_text import matrix
from blinkccl.topology.select import network_for
for name in ("dgx-1v", "mist", "2x dgx-a100", "random:9:seed=1", "random:7:seed=1:directed"):
    topology = spec.parse_spec(name)
    print(json_format.write(topology), matrix(topology))
    for ranks in ((0, 1, 4), (1, 4, 6)):
        try:
            print(json_format.write(network_for(topology, ranks, "fast", relays=True)))
            print(json_format.write(network_for(topology, ranks)))
        except TopologyError as error:
            print(error)
print(nccl_xml_write.write(spec.parse_spec("dgx-a100")))
for path in sorted((Path(formats.__file__).parent / "fixtures").iterdir()):
    try:
        print(json_format.write(formats.read_topology(path)))
    except TopologyError as error:
        print(error)
"""


def test_the_same_bytes_whatever_the_hash_seed() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            check=True,
            timeout=120,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 10_000
