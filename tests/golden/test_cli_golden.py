"""The output of the command line, word for word. After an intended change: ``pytest tests/golden --update-golden``."""

import shlex
from pathlib import Path

import pytest

EXPECTED = Path(__file__).parent / "expected"

#: Name of the golden file → commands, the last of which is compared. Each file holds exit code, stdout and stderr.
CASES = {
    "topo-dgx-1v": "topo dgx-1v",
    "topo-allocation": "topo dgx-1v --gpus 1,4,5,6 --json",
    "topo-cluster": "topo '2x mist @ 100Gbps'",
    "topo-pcie": "topo pcie-8gpu --links pcie",
    "plan-allreduce-1456": "plan allreduce --topo dgx-1v --gpus 1,4,5,6",
    "plan-oneway-allreduce": "plan allreduce --topo oneway:3",
    "plan-gather": "plan gather --topo chain:4 --root 1",
    "plan-through-switch": "plan broadcast --topo star:4 --gpus 2,0,3 --root 3",
    "plan-ring-fallback": "plan allgather --topo dgx-1v --gpus 1,4,5,6 --algo ring",
    "pick": "pick -k 3 --topo dgx-1v --free 0,1,4,6,7",
    "pick-json": "pick -k 2 --topo dgx-1p --free 0,1,4,6 --collective broadcast --top 2 --json",
    "sim-1456": "sim allreduce --topo dgx-1v --gpus 1,4,5,6 --size 500M",
    "sim-sweep": "sim broadcast --topo dgx-1p --gpus 0,1,4 -b 4K --algo optimal,nccl-2.4",
    "sim-json": "sim allreduce --topo ring:3 --size 1M --algo optimal --json",
    "error-no-spec": "plan allreduce --topo dgx-1w",
    "error-no-collective": "plan allreduced --topo dgx-1v",
    "error-no-algorithm": "plan allreduce --topo dgx-1v --algo rings",
    "error-root": "plan broadcast --topo dgx-1v --gpus 1,4 --root 0",
    "plan-parts": "plan allreduce --topo dgx-1v --gpus 0,1,6",
    "error-parts": "plan allreduce --topo dgx-1v --gpus 0,1,6 --links fast",
    "error-unsupported": "plan alltoall --topo dgx-1v --algo ring",
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name, blink, pytestconfig, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *before, last = CASES[name].split(" && ")
    for line in before:
        assert blink(*shlex.split(line)).code == 0
    ended = blink(*shlex.split(last))
    text = f"exit code {ended.code}\n--- stdout\n{ended.out}--- stderr\n{ended.err}"
    path = EXPECTED / f"{name}.txt"
    if pytestconfig.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    assert sorted(path.stem for path in EXPECTED.glob("*.txt")) == sorted(CASES)
