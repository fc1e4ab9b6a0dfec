"""Jobs on hosts that cables join in a ring, without a route to the host across: a stated topology's plan runs there.

The hosts are network namespaces of the laboratory, with cables of 1 Gbit/s. A slow hub joins them too, for the start.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from blinkccl.apps.lab.layout import lay_out
from blinkccl.apps.lab.namespaces import Namespaces, lacking
from blinkccl.errors import UnsupportedError
from blinkccl.runtime import ucx
from blinkccl.topology.model import Link, Topology, Vertex
from support.extras import needs

HOSTS, HUB = 4, 4
RING = "4x dgx-spark @ cables=ring"
PORT = 7711
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(170)

#: A namespace shows its devices in a /sys of its own.
OWN_SYS = ["unshare", "--mount", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "sh", sys.executable]
#: A rank's job, in which every element is checked.
JOB = """
import json, sys
import numpy as np
import blinkccl
try:
    comm = blinkccl.init(topo=sys.argv[1] or None, deadline_s=60)
except blinkccl.BlinkError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    sys.exit()
wrong = 0
for count in (1, 1000, 1 << 20):
    total = comm.allreduce(np.full(count, comm.rank + 1.0, np.float32), np.empty(count, np.float32))
    wrong += int((total != comm.size * (comm.size + 1) / 2).sum())
    rows = comm.allgather(np.full(count, comm.rank, np.int32)).reshape(comm.size, count)
    wrong += int((rows != np.arange(comm.size)[:, None]).sum())
comm.barrier()
across = comm.split(comm.rank % 2)
wrong += int((across.allreduce(np.ones(1000), np.empty(1000)) != 2).sum())
beside = comm.split(comm.rank // 2)
wrong += int((beside.allreduce(np.ones(1000), np.empty(1000)) != 2).sum())
comm.barrier()
print(json.dumps({"wrong": wrong}))
beside.close(), across.close(), comm.close()
"""
#: Large messages: between all neighbours and across at once, then from rank 0 to 2 alone, and after rank 3 has left.
MESSAGES = """
import json, sys, time
import numpy as np
import blinkccl
comm = blinkccl.init(topo=sys.argv[1], deadline_s=60)
sizes = (1000, 1 << 20, 3_000_001)
def data(src, dst, size):
    return np.random.default_rng([src, dst, size]).integers(0, 255, size).astype(np.uint8)
wrong = 0
pairs = [(src, dst, size) for src in range(4) for dst in ((src + 1) % 4, (src + 2) % 4) for size in sizes]
sends = [comm.send(data(*pair), pair[1], tag=pair[2], wait=False) for pair in pairs if pair[0] == comm.rank]
into = {pair: np.zeros(pair[2], np.uint8) for pair in pairs if pair[1] == comm.rank}
receives = [comm.recv(array, pair[0], tag=pair[2], wait=False) for pair, array in into.items()]
for pending in sends + receives:
    pending.result()
wrong += sum(int((array != data(*pair)).sum()) for pair, array in into.items())
comm.barrier()
for number in range(2):
    if comm.rank == 0:
        comm.send(data(0, 2, 8 << 20), 2)
    if comm.rank == 2:
        into = np.zeros(8 << 20, np.uint8)
        comm.recv(into, 0)
        wrong += int((into != data(0, 2, 8 << 20)).sum())
    if number == 0:
        comm.barrier()
    if comm.rank == 3:
        break
    if number == 0:
        time.sleep(0.5)  # until rank 3 has left
print(json.dumps({"wrong": wrong}))
comm.close()
"""


def address(host: int) -> str:
    """The address of a host at the hub."""
    return f"10.77.0.{host + 1}"


@pytest.fixture(scope="module")
def ring() -> Iterator[Namespaces]:
    if reason := lacking():
        pytest.skip(reason)
    try:
        ucx.find()
    except UnsupportedError as error:
        pytest.skip(str(error))
    pairs = [(host, (host + 1) % HOSTS) for host in range(HOSTS)] + [(host, HUB) for host in range(HOSTS)]
    rates = {pair: 1 if HUB in pair else 50 for pair in pairs}
    links = [
        Link(*ends, rate, "net", rate / 50, "synthetic") for pair, rate in rates.items() for ends in (pair, pair[::-1])
    ]
    vertices = [*(Vertex(host, "cpu", host, "") for host in range(HOSTS)), Vertex(HUB, "switch", 0, "")]
    layout = lay_out([Topology("a ring and a hub", 0.02, tuple(vertices), tuple(links))], [], 1e9)
    namespaces = Namespaces(layout)
    ports = [f"link set to{host} master hub" for host in range(HOSTS)]
    namespaces.run(HUB, "ip", ["link add hub type bridge", "link set hub up", *ports])
    for host in range(HOSTS):
        namespaces.run(host, "ip", [f"addr flush dev to{HUB}", f"addr add {address(host)}/24 dev to{HUB}"])
    yield namespaces
    namespaces.close()


def sent(ring: Namespaces) -> list[dict[str, int]]:
    """Bytes that have left each host over each interface."""
    counts = []
    for host in range(HOSTS):
        with ring.inside(host):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        counts.append({name.strip(): int(row.split()[8]) for name, _, row in (line.partition(":") for line in lines)})
    return counts


def assert_cables_carried(ring: Namespaces, before: list[dict[str, int]], least: int) -> None:
    """Both cables of every host sent ``least`` bytes since ``before``, and the hub a third of them at most.

    The hub carries the start, and the test transfers of groups that have no plan on the cables.
    """
    for host, (then, now) in enumerate(zip(before, sent(ring), strict=True)):
        cables = [now[port] - then[port] for port in (f"to{(host + 1) % HOSTS}", f"to{(host - 1) % HOSTS}")]
        assert min(cables) >= least
        assert now[f"to{HUB}"] - then[f"to{HUB}"] < sum(cables) / 3


def ran(ring: Namespaces, command: Sequence[str], **more: str) -> list[Any]:
    """Run a command on every host, with HOST in it replaced; the last line of each output, read as JSON."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("BLINK_RANK", "BLINK_ST"))}
    outer |= {"UCX_TLS": "tcp", "OMP_NUM_THREADS": "1", "BLINK_STORE": f"tcp://{address(0)}:{PORT}"}
    processes = []
    for host in range(HOSTS):
        line = [*OWN_SYS, *(str(host) if word == "HOST" else word for word in command)]
        environment = outer | {"BLINK_RANK": str(host), "BLINK_WORLD_SIZE": str(HOSTS)} | more
        with ring.inside(host):
            processes.append(subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * HOSTS
    return [json.loads(output.splitlines()[-1]) if output else None for output in outputs]


@pytest.mark.parametrize("spec", [RING, "measure"])
def test_the_plan_of_a_ring_of_cables_runs_on_its_cables_alone(ring: Namespaces, spec: str) -> None:
    before = sent(ring)
    answers = ran(ring, ["-c", JOB, spec])
    assert [answer.get("wrong", answer) for answer in answers] == [0] * HOSTS
    assert_cables_carried(ring, before, 1 << 20)


def test_large_messages_take_both_ways_around_the_ring(ring: Namespaces) -> None:
    before = sent(ring)
    answers = ran(ring, ["-c", MESSAGES, "4x mac-studio @ cables=ring"])
    assert [answer.get("wrong", answer) for answer in answers] == [0] * HOSTS
    assert_cables_carried(ring, before, 5 << 20)


@needs("torch")
def test_torchrun_trains_on_the_cables(ring: Namespaces) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nnodes", str(HOSTS), "--node-rank", "HOST", "--nproc-per-node", "1"]
    torchrun += ["--master-addr", address(0), "--master-port", str(PORT + 1), str(EXAMPLES / "train.py"), "--json"]
    before = sent(ring)
    trained, *others = ran(ring, [*torchrun, "--steps", "20"], BLINK_TOPO=RING)
    assert others == [None] * (HOSTS - 1)  # rank 0 prints
    assert trained["ranks"] == HOSTS
    assert trained["losses"][-1] < trained["losses"][0] - 0.2
    assert_cables_carried(ring, before, 20 << 20)


def test_hosts_that_do_not_match_the_topology_get_one_error_everywhere(ring: Namespaces) -> None:
    answers = ran(ring, ["-c", JOB, "4x mac-studio @ cables=mesh"])
    (error,) = {answer.get("error", "none") for answer in answers}
    assert "expected 1 cable between servers 0 and 2" in error
    assert "got no subnet of these two alone" in error
    answers = ran(ring, ["-c", JOB, "2x dgx-spark @ cables=ring"])
    (error,) = {answer.get("error", "none") for answer in answers}
    assert "got ranks on hosts as 1 + 1 + 1 + 1" in error
