"""AllReduce among ranks on two hosts with a slow network between: blink, gloo and Open MPI in turns.

    sudo python benchmarks/several_hosts.py [--layout 3+5] [--mbits 400] [--sizes 64K,1M,16M] [--rounds 5] [--json]

The hosts are two network namespaces of this machine, joined by a pair of virtual interfaces that ``tc`` shapes. They
are removed at the end, also after a signal; the next run (or ``--clean``) removes those of a killed one. Every
candidate is one process per rank, which sleeps until its turn. A round gives each candidate one block of runs per
size; ratios are taken between medians of all rounds. An iteration takes as long as its slowest rank. ``bound`` is the
limit of the network: H hosts must send 2(H−1)/H of the data each way.

Needs root, ``ip`` and ``tc``; Open MPI is measured if mpirun is on PATH and mpi4py can be imported. Other commands:
``--exec "torchrun …"`` runs a command on both hosts, with HOST_INDEX, MASTER_ADDR and GLOO_SOCKET_IFNAME set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PREFIX = "blink-bench"
NETWORK = "10.76.5"
MTU = 16384
#: More than a packet with headers, and the least free credit that allows this.
BURST_BYTES, QUEUE_BYTES = 33_000, 8 << 20
PORT = 29_471
LIMIT_S = 120.0

# ---- two hosts


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]


def clean(everything: bool = False) -> None:
    """Remove the namespaces of ended runs, and the processes in them."""
    for name in namespaces():
        owner = name.split("-")[2]
        if everything or not Path(f"/proc/{owner}").exists():
            remove(name)


def remove(name: str) -> None:
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=30).stdout.split()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


@contextmanager
def two_hosts(mbits: float) -> Iterator[list[str]]:
    """The names of two namespaces whose addresses are NETWORK.1 and NETWORK.2."""
    names = [f"{PREFIX}-{os.getpid()}-{side}" for side in "ab"]
    with ExitStack() as undo:
        for name in names:
            run("ip", "netns", "add", name)
            undo.callback(remove, name)
        run("ip", "link", "add", "nic", "netns", names[0], "type", "veth", "peer", "name", "nic", "netns", names[1])
        for index, name in enumerate(names):
            host = f"{NETWORK}.{index + 1}"
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "nic", "mtu", str(MTU), "gso_max_size", str(MTU), "up")
            run("ip", "-n", name, "addr", "add", f"{host}/24", "dev", "nic")
            # Of Linux's algorithms, cubic fills such a link best.
            subnet = ["route", "replace", f"{NETWORK}.0/24", "dev", "nic", "src", host, "congctl", "cubic"]
            subprocess.run(["ip", "-n", name, *subnet], capture_output=True, timeout=30)
            shaped = f"tbf rate {mbits * 1e6:.0f}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"
            run("tc", "-n", name, "qdisc", "add", "dev", "nic", "root", *shaped.split())
        yield names


# ---- candidates


class Candidate:
    """The processes of one library, which connect to ``listener`` when they are ready."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.ranks: list[Any] = [None] * size
        self.processes: list[subprocess.Popen[bytes]] = []

    def ask(self, nbytes: int, iterations: int) -> list[float]:
        """Seconds of each iteration."""
        for rank in self.ranks:
            print(nbytes, iterations, file=rank, flush=True)
        answers = [json.loads(rank.readline() or '{"error": "it ended"}') for rank in self.ranks]
        for rank, answer in enumerate(answers):
            if "error" in answer:
                raise SystemExit(f"{self.name}, rank {rank}: {answer['error']}")
        return [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]


def start(kind: str, hosts: list[str], layout: Sequence[int], control: Path, extra: Sequence[str] = ()) -> Candidate:
    candidate = Candidate(kind, sum(layout))
    work = [sys.executable, str(Path(__file__).resolve()), "--worker", kind]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "BLINK_BENCH_CONTROL": str(control),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "UCX_TLS": "tcp",  # not the memory that both namespaces share in truth
    }
    if kind.startswith("openmpi"):
        agent = control.parent / "agent.sh"
        agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {hosts[1]} unshare --uts sh -c "hostname other; $*"\n')
        agent.chmod(0o700)
        where = ",".join(f"{NETWORK}.{i + 1}:{count}" for i, count in enumerate(layout))
        options = f"-np {sum(layout)} --host {where} --allow-run-as-root --oversubscribe --bind-to none"
        options += f" --mca plm_rsh_agent {agent} --mca btl_tcp_if_include {NETWORK}.0/24 --mca oob_tcp_if_include"
        options += f" {NETWORK}.0/24 --mca btl tcp,vader,self --mca pml ob1 --mca mpi_yield_when_idle 1"
        options += " --mca btl_vader_single_copy_mechanism none -x BLINK_BENCH_CONTROL -x OMP_NUM_THREADS"
        command = [
            "ip",
            "netns",
            "exec",
            hosts[0],
            "mpirun",
            *options.split(),
            *extra,
            *work,
        ]
        candidate.processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return candidate
    port = PORT + (kind == "gloo")
    rank = 0
    for host, count in zip(hosts, layout, strict=True):
        for local in range(count):
            own = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": sum(layout), "MASTER_ADDR": f"{NETWORK}.1"}
            own |= {"MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "nic"}
            command = ["ip", "netns", "exec", host, *work]
            settings = environment | {key: str(value) for key, value in own.items()}
            candidate.processes.append(subprocess.Popen(command, env=settings, start_new_session=True))
            rank += 1
    return candidate


def welcome(listener: socket.socket, candidates: Sequence[Candidate]) -> None:
    """Wait until all ranks of all candidates have connected."""
    by_name = {candidate.name: candidate for candidate in candidates}
    listener.settimeout(LIMIT_S)
    for _ in range(sum(candidate.size for candidate in candidates)):
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            missing = [f"{one.name} rank {r}" for one in candidates for r, end in enumerate(one.ranks) if end is None]
            raise SystemExit(f"did not start within {LIMIT_S:g} s: {', '.join(missing)}") from None
        connection.settimeout(LIMIT_S)
        end = connection.makefile("rw")
        name, rank = end.readline().split()
        by_name[name].ranks[int(rank)] = end


# ---- a rank


def worker(kind: str) -> None:
    allreduce, barrier, rank, size = opened(kind)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["BLINK_BENCH_CONTROL"])
    end = connection.makefile("rw")
    print(kind, rank, file=end, flush=True)
    for line in end:
        nbytes, iterations = map(int, line.split())
        answer = json.dumps(measured(allreduce, barrier, rank, size, nbytes // 4, iterations))
        print(answer, file=end, flush=True)


def measured(
    allreduce: Callable[[Any], object], barrier: Callable[[], object], rank: int, size: int, count: int, iterations: int
) -> dict[str, Any]:
    import numpy as np

    seconds = []
    data = np.empty(count, np.float32)
    pattern = (np.arange(count) % 13).astype(np.float32)
    for _ in range(iterations):
        np.add(pattern, rank, out=data)
        barrier()
        began = time.perf_counter()
        allreduce(data)
        seconds.append(time.perf_counter() - began)
    if not np.array_equal(data, pattern * size + sum(range(size))):
        return {"error": f"wrong sums of {count} elements"}
    return {"seconds": seconds}


def opened(kind: str) -> tuple[Callable[[Any], object], Callable[[], object], int, int]:
    if kind.startswith("openmpi"):
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        return lambda data: world.Allreduce(MPI.IN_PLACE, data), world.Barrier, world.Get_rank(), world.Get_size()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(kind)
    return lambda data: dist.all_reduce(torch.from_numpy(data)), dist.barrier, dist.get_rank(), dist.get_world_size()


# ---- the comparison

#: Open MPI's own choice, and its rings: the faster at a size counts. (Its hierarchical component, han, ended with a
#: segmentation fault over these two hosts, in 4.1.4.)
OPENMPI = {
    "openmpi": (),
    "openmpi-ring": ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"],
}


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    layout, sizes = arguments.layout, arguments.sizes
    kinds = ["blink", *(peer for peer in arguments.peer if peer != "openmpi")]
    if "openmpi" in arguments.peer:
        if shutil.which("mpirun") and find_spec("mpi4py"):
            kinds += OPENMPI
        else:
            print("no mpirun or no mpi4py here: Open MPI is left out", file=sys.stderr)
    times: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as undo:
        hosts = undo.enter_context(two_hosts(arguments.mbits))
        control = Path(undo.enter_context(tempfile.TemporaryDirectory())) / "control"
        listener = undo.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(control))
        listener.listen(256)
        candidates = []
        for kind in kinds:
            candidates.append(start(kind, hosts, layout, control, OPENMPI.get(kind, ())))
            undo.callback(stop, candidates[-1])
            print(f"{kind} starts", file=sys.stderr)
            welcome(listener, candidates[-1:])
        for number in range(arguments.rounds + 1):
            print(f"round {number} of {arguments.rounds}", file=sys.stderr)
            for nbytes in sizes:
                iterations = max(2, min(20, int(arguments.block_s / (nbytes * 8 / arguments.mbits / 1e6))))
                shift = number % len(candidates)
                for candidate in candidates[shift:] + candidates[:shift]:
                    seconds = candidate.ask(nbytes, iterations)
                    if number:  # the first round connects
                        times.setdefault((candidate.name, nbytes), []).extend(seconds)
    return [row(arguments, kinds, times, nbytes) for nbytes in sizes]


def row(
    arguments: argparse.Namespace, kinds: Sequence[str], times: dict[tuple[str, int], list[float]], nbytes: int
) -> dict[str, Any]:
    middle = {kind: statistics.median(times[kind, nbytes]) for kind in kinds}
    bound_s = nbytes * 8 / arguments.mbits / 1e6  # two hosts: each sends all of it once
    openmpi = [seconds for kind, seconds in middle.items() if kind.startswith("openmpi")]
    ratios = {kind: middle[kind] / middle["blink"] for kind in kinds if kind == "gloo"}
    if openmpi:
        ratios["openmpi"] = min(openmpi) / middle["blink"]
    return {
        "layout": "+".join(map(str, arguments.layout)),
        "mbits": arguments.mbits,
        "bytes": nbytes,
        "ms": {kind: round(seconds * 1e3, 3) for kind, seconds in middle.items()},
        "of_bound": round(bound_s / middle["blink"], 3),
        "times_as_fast_as": {peer: round(ratio, 2) for peer, ratio in ratios.items()},
    }


def stop(candidate: Candidate) -> None:
    for rank in candidate.ranks:
        if rank is not None:
            rank.close()  # its worker ends, and Open MPI's removes its shared memory
    end = time.monotonic() + 5
    for process in candidate.processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def execute(arguments: argparse.Namespace) -> int:
    """Run a command on both hosts; return the first exit code that is not 0."""
    with two_hosts(arguments.mbits) as hosts, ExitStack() as undo:
        running = []
        for index, host in enumerate(hosts):
            own = {"HOST_INDEX": str(index), "MASTER_ADDR": f"{NETWORK}.1", "GLOO_SOCKET_IFNAME": "nic"}
            command = ["ip", "netns", "exec", host, "sh", "-c", arguments.exec]
            running.append(subprocess.Popen(command, env=os.environ | own, start_new_session=True))
        for process in running:
            undo.callback(lambda process=process: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return next((code for process in running if (code := process.wait(arguments.limit))), 0)


def layout_of(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9][0-9]*\+[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ranks of the two hosts, as in 3+5")
    return [int(part) for part in text.split("+")]


def sizes_of(text: str) -> list[int]:
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    if not re.fullmatch(r"[0-9]+[KM]?(,[0-9]+[KM]?)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected bytes, as in 64K,1M")
    return [int(part.rstrip("KM")) * units[part.lstrip("0123456789")] for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", type=layout_of, default=[3, 5])
    parser.add_argument("--mbits", type=float, default=400.0)
    parser.add_argument("--sizes", type=sizes_of, default="64K,256K,1M,4M,16M,32M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block-s", type=float, default=0.5, help="seconds that a block of runs takes on the network")
    parser.add_argument("--peer", type=lambda text: text.split(","), default="gloo,openmpi")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clean", action="store_true", help="remove namespaces of killed runs, and exit")
    parser.add_argument("--exec", help="run this command on both hosts, and nothing else")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for --exec")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return 0
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        print("this needs root, ip and tc: it makes network namespaces", file=sys.stderr)
        return 3
    clean(arguments.clean)
    if arguments.clean:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.exec:
        return execute(arguments)
    rows = compare(arguments)
    if arguments.json:
        print(json.dumps({"schema_version": 1, "rows": rows}))
        return 0
    for one in rows:
        print(one["layout"], f"{one['bytes']:>10}", one["ms"], "of bound", one["of_bound"], one["times_as_fast_as"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
