"""Plans and topologies of the same input are byte-identical in processes with different hash seeds."""

import os
import subprocess
import sys
from pathlib import Path

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.trees.algorithms.registry import ALGORITHMS
from support.examples import ALL_TESTS

#: Topology → algorithms; those that refuse must refuse with the same message.
TOPOLOGIES = {
    "dgx-1v": ["optimal", "blink"],
    "dgx-1v --gpus 1,4,5,6": [*ALGORITHMS],
    "cedar": [*ALGORITHMS],
    "dgx-2 --gpus 0-3": ["optimal", "one_hop", "ring"],
    "mist": ["optimal", "three_stage"],
    "2x dgx-a100": ["optimal"],
    "random:6:seed=5:directed": ["optimal", "blink"],
    "pcie-8gpu --gpus 0,2,5": ["optimal", "ring"],
}
#: Collectives on whole machines, where plans take longest: one rooted, one that reduces, one that gathers.
WHOLE = ("broadcast", "allreduce", "allgather")
SCRIPT = """
import contextlib, io, sys
from blinkccl.cli import main
folder, *commands = sys.argv[1:]
for number, command in enumerate(commands):
    out, err = io.StringIO(), io.StringIO()
    suffix = "xml" if command == "topo|dgx-a100" else "json"
    sys.argv = ["blink", *command.split("|"), "-o", f"{folder}/{number}.{suffix}"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main()
    with open(f"{folder}/{number}.txt", "w") as file:
        file.write(command + out.getvalue() + err.getvalue().replace(folder, ""))
"""


def _commands():
    """All commands. ``make test`` skips every second pair of algorithm and collective, others on each topology."""
    for number, (spec, algorithms) in enumerate(TOPOLOGIES.items()):
        topology, _, gpus = spec.partition(" --gpus ")
        for row, algorithm in enumerate(algorithms):
            for column, collective in enumerate(WHOLE if spec in ("dgx-1v", "2x dgx-a100") else COLLECTIVES):
                if (row + column + number) % 2 and not ALL_TESTS:
                    continue
                chosen = ["--gpus", gpus] if gpus else []
                yield "|".join(["plan", collective, "--topo", topology, "--algo", algorithm, *chosen])
    for spec in ("dgx-1v", "mist", "2x dgx-a100", "random:9:seed=1", "random:7:seed=1:directed"):
        yield f"topo|{spec}"
        for gpus in ("0,1,4", "1,4,6"):
            yield f"topo|{spec}|--gpus|{gpus}|--links|fast"
            yield f"plan|broadcast|--topo|{spec}|--gpus|{gpus}|--relays"
    yield "topo|dgx-a100"
    for path in sorted((Path(__file__).parents[3] / "src/blinkccl/topology/fixtures").iterdir()):
        yield f"topo|{path}"


def test_other_hash_seeds_write_the_same_bytes(tmp_path):
    commands = list(_commands())
    places = {seed: tmp_path / seed for seed in ("0", "4711")}
    running = []
    for seed, folder in places.items():
        folder.mkdir()
        command = [sys.executable, "-c", SCRIPT, str(folder), *commands]
        running.append(subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed}))
    assert [one.wait() for one in running] == [0, 0]
    folders = [{path.name: path.read_bytes() for path in sorted(folder.iterdir())} for folder in places.values()]
    assert folders[0] == folders[1]
    assert sum(name.endswith(".json") for name in folders[0]) > 60
