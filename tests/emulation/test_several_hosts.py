"""The benchmark of ranks in network namespaces, benchmarks/several_hosts.py, with its clean-up."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import several_hosts

from support.extras import needs

distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "several_hosts.py"
PROBE = "blink-bench-0-probe"

pytestmark = [needs("torch"), pytest.mark.timeout(150)]


PAGE = Path(__file__).parents[2] / "docs" / "howto" / "several-hosts.md"
#: A Slurm step of the page's srun line, as its ranks see it: rank r of 4, of which two are on each node.
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": f"{several_hosts.NETWORK}.[1-2]",
}


def commands_of_page(way: str) -> list[str]:
    """Return the page's commands for two hosts, started by torchrun, by srun, or without a launcher ("BLINK")."""
    lines = [line.partition("#")[0].strip() for line in PAGE.read_text().splitlines()]
    chosen = [line for line in lines if line.startswith((f"{way} ", f"{way}_RANK=", f"export {way}_"))]
    if way == "srun":
        assert chosen == ["srun --nodes 2 --ntasks-per-node 2 python sum.py"]
        rank = "SLURM_PROCID={} SLURM_LOCALID={} python sum.py"
        return [" & ".join(rank.format(2 * host + local, local) for local in range(2)) + "; wait" for host in range(2)]
    settings = [line for line in chosen if line.startswith("export")]
    return ["; ".join([*settings, line, "wait"]) for line in chosen if line not in settings]


@pytest.mark.parametrize("way", ["torchrun", "srun", "BLINK"])
def test_the_page_starts_its_program_on_two_hosts(way: str, hosts: list[str], tmp_path: Path) -> None:
    program = PAGE.read_text().partition("<!-- file: sum.py -->\n```python\n")[2].partition("```")[0]
    (tmp_path / "sum.py").write_text(program)
    environ = os.environ | {"UCX_TLS": "tcp", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environ |= {"BLINK_TIMEOUT": "60", **(STEP if way == "srun" else {})}
    commands = [command.replace("node1", several_hosts.address(0)) for command in commands_of_page(way)]
    assert len(commands) == 2
    running = [
        subprocess.Popen(
            several_hosts.on(host, "sh", "-c", command),
            env=environ,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host, command in zip(hosts, commands, strict=True)
    ]
    try:
        (first, errors), (second, more) = (process.communicate(timeout=100) for process in running)
    finally:
        for process in running:
            process.kill()
    assert first == "4 ranks: [10. 10. 10. 10.]\n", errors + more
    assert second == "", second


def why_not() -> str | None:
    """Return the reason why namespaces are unavailable; None if they work."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        return "needs root, ip and tc"
    made = subprocess.run(["ip", "netns", "add", PROBE], capture_output=True, text=True, timeout=30)
    subprocess.run(["ip", "netns", "del", PROBE], capture_output=True, timeout=30)
    return f"no network namespace can be made here: {made.stderr.strip()}" if made.returncode else None


def test_a_shaped_pair_is_measured_and_nothing_is_left() -> None:
    if reason := why_not():
        pytest.skip(reason)
    options = ["--layout", "1+1", "--mbits", "1000", "--sizes", "64K,1M", "--rounds", "1", "--road", "torch", "--json"]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)["rows"]
    assert [(row["layout"], row["collective"], row["bytes"], row["wrong"], sorted(row["peers"])) for row in rows] == [
        ("1+1", "allreduce", size, 0, ["gloo"]) for size in (1 << 16, 1 << 20)
    ]
    assert all(0 < row["of_bound"] < 1.5 and row["peers"]["gloo"]["ratio"] > 0 for row in rows), rows
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30).stdout
    mine = [line for line in listed.splitlines() if line.startswith("blink-bench-")]
    assert all(Path(f"/proc/{line.split('-')[2]}").exists() for line in mine), mine  # of concurrent runs
