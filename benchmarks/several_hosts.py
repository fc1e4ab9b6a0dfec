"""Collectives among ranks on several hosts, beside gloo, Open MPI, one message of UCX and the bound of the network.

    sudo python benchmarks/several_hosts.py [--layout 1+1,2+2] [--mbits 0,400] [--sizes 4K,16M] [--rounds 5] [--json]

Hosts are network namespaces of this machine, a layout has their numbers of ranks. ``tc`` shapes their interfaces to
``--mbits``; 0 leaves them alone. Two hosts share a pair of interfaces, more hosts a bridge. They are removed at the
end, also after a signal; the next run (or ``--clean``) removes those of a killed one.

Candidates take turns (:mod:`blinkccl.bench.interleave`) in two groups: torch's AllReduce on blink and on gloo, and
loops in C of blink and Open MPI. Times are medians in ms, in place, of an iteration's slowest rank. Ratios are medians
of pairs in one round, times as fast as a peer. ``one way`` is a message of ucx_perftest: its time over blink's. ``of
bound`` is the least time of the busiest interface over the measured time. A mark ``<`` follows a ratio below its goal.

Needs root, ``ip``, ``tc`` and torch. Open MPI is the one on PATH, or in ``--openmpi PREFIX``. Other commands:
``--exec "torchrun …"`` runs a command on both of two hosts, with HOST_INDEX, MASTER_ADDR and GLOO_SOCKET_IFNAME set.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blinkccl.bench.candidate import CandidateLaunch, Process, RankTimes, RunningCandidate
from blinkccl.bench.interleave import BenchSettings, Interleaved, Participant
from blinkccl.bench.libraries import GlooLibrary
from blinkccl.bench.pattern import TimedCall
from blinkccl.bench.peers import registry
from blinkccl.bench.peers.build import build
from blinkccl.bench.protocol import Command
from blinkccl.bench.rows import Series, paired
from blinkccl.bench.sizes import block_count
from blinkccl.bench.worker import serve
from blinkccl.collectives.spec import Collective
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.runtime.store import FileStore

Layout = tuple[int, ...]

PREFIX = "blink-bench"
NETWORK = "10.76.5"
#: Of shaped interfaces: the credit is four packets, so that a timer that fires late loses none of the rate. With two of
#: them a plain TCP stream gets 0.8 of 4 Gbit/s, with four 0.99.
MTU, BURST_BYTES, QUEUE_BYTES = 16384, 66_000, 8 << 20
PORT = 29_471
LIMIT_S = 120.0
#: Seconds of a block of timed runs, by which large sizes get fewer of them, and a guess of an unshaped network's rate.
BLOCK_S, GUESSED_MBITS = 0.4, 8_000
KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
#: The least ratio by peer, for all layouts and for 1+1. Between hosts without shapes only.
GOALS: dict[str, tuple[dict[int, float], dict[int, float]]] = {
    "gloo": (dict.fromkeys(SIZES[:4], 1.0), dict(zip(SIZES, (20.0, 8.0, 2.0, 1.15, 0.97), strict=True))),
    "openmpi": (dict.fromkeys(SIZES, 0.95), dict.fromkeys(SIZES, 0.95)),
    "one way": ({}, {4 * KIB: 0.25}),
}
BOUND_GOAL, BOUND_FROM = 0.95, 16 * MIB


# ---- hosts


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")


def clean(everything: bool = False) -> None:
    """Remove the namespaces of ended runs, and the processes in them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")):
        if everything or not Path(f"/proc/{name.split('-')[2]}").exists():
            remove(name)


def remove(name: str) -> None:
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=30).stdout.split()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


@contextmanager
def hosts(count: int, mbits: float) -> Iterator[list[str]]:
    """The names of ``count`` namespaces; host h has the address NETWORK.(h + 1) on its interface ``nic``."""
    names = [f"{PREFIX}-{os.getpid()}-{host + 1}" for host in range(count)]
    hub = f"{PREFIX}-{os.getpid()}-0"
    with ExitStack() as undo:
        for name in names if count == 2 else [*names, hub]:
            run("ip", "netns", "add", name)
            undo.callback(remove, name)
        ends = [(name, "nic") for name in names]
        if count == 2:
            run(*f"ip link add nic netns {names[0]} type veth peer name nic netns {names[1]}".split())
        else:
            run(*f"ip -n {hub} link add bridge type bridge".split())
            run(*f"ip -n {hub} link set bridge up".split())
            for host, name in enumerate(names):
                run(*f"ip link add nic netns {name} type veth peer name port{host} netns {hub}".split())
                run(*f"ip -n {hub} link set port{host} master bridge".split())
                ends.append((hub, f"port{host}"))
        for name, device in ends:
            shape = f"mtu {MTU} gso_max_size {MTU}" if mbits else ""
            run(*f"ip -n {name} link set {device} {shape} up".split())
            if mbits:
                shaped = f"tbf rate {mbits * 1e6:.0f}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"
                run(*f"tc -n {name} qdisc add dev {device} root {shaped}".split())
        for host, name in enumerate(names):
            run(*f"ip -n {name} link set lo up".split())
            run(*f"ip -n {name} addr add {address(host)}/24 dev nic".split())
            # Of Linux's algorithms, cubic fills a shaped link best.
            subnet = f"ip -n {name} route replace {NETWORK}.0/24 dev nic src {address(host)} congctl cubic"
            subprocess.run(subnet.split(), capture_output=True, timeout=30)
        yield names


def address(host: int) -> str:
    return f"{NETWORK}.{host + 1}"


#: Numbers of Linux: a new network, new mounts, and mounts that stay inside (private, with all below).
_NEW_NETWORK, _NEW_MOUNTS, _INSIDE, _DETACHED = 0x40000000, 0x20000, 1 << 18 | 1 << 14, 2


def enter(name: str) -> None:
    """Move this process into a namespace, as ``ip netns exec`` does; UCX then sends over TCP alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        done = libc.setns(namespace.fileno(), _NEW_NETWORK) or libc.unshare(_NEW_MOUNTS)
    # UCX looks for devices in /sys, which shows those of the namespace that it was mounted in.
    done = done or libc.mount(b"", b"/", None, _INSIDE, None) or libc.umount2(b"/sys", _DETACHED)
    if done or libc.mount(b"sys", b"/sys", b"sysfs", 0, None):
        raise OSError(ctypes.get_errno(), f"cannot enter {name}")
    os.environ["UCX_TLS"] = "tcp"  # not the memory that both namespaces share in truth


class SharedDirectory(FileStore):
    """A directory as the store of ranks on both hosts; rank 0 is on the first one."""

    def addresses(self) -> list[str]:
        return [address(0)]


def on(host: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", host, *command]


def execute(arguments: argparse.Namespace) -> int:
    """Run a command on both hosts; return the first exit code that is not 0."""
    with hosts(2, arguments.mbits[0]) as names, ExitStack() as undo:
        running = []
        for index, host in enumerate(names):
            own = {"HOST_INDEX": str(index), "MASTER_ADDR": address(0), "GLOO_SOCKET_IFNAME": "nic"}
            command = on(host, "sh", "-c", arguments.exec)
            running.append(subprocess.Popen(command, env=os.environ | own, start_new_session=True))
        for process in running:
            undo.callback(lambda process=process: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return next((code for process in running if (code := process.wait(arguments.limit))), 0)


# ---- candidates

#: UCX must not find the memory that all namespaces share in truth.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "UCX_TLS": "tcp", "GLOO_SOCKET_IFNAME": "nic"}
PORTS = itertools.count(PORT)
WORKERS = {
    "torch": [str(Path(__file__).resolve()), "--worker"],
    "gloo": ["-m", "blinkccl.bench.worker", "gloo"],
    "native": ["-m", "blinkccl.bench.worker", "blink"],
}


def ours(kind: str, names: Sequence[str], layout: Layout) -> CandidateLaunch:
    """Ranks in Python: ``torch`` and ``gloo`` are torch's backends, ``native`` is the loop in C."""
    port = str(next(PORTS))

    def processes(path: Path, room: Path) -> Sequence[Process]:
        ranks = enumerate(host for host, count in enumerate(layout) for _ in range(count))
        job = ENVIRONMENT | {"WORLD_SIZE": str(sum(layout)), "MASTER_ADDR": address(0), "MASTER_PORT": port}
        command = [sys.executable, *WORKERS[kind], str(path)]
        return [Process(on(names[host], *command), {**job, "RANK": str(rank)}) for rank, host in ranks]

    return CandidateLaunch(kind, sum(layout), processes)


def openmpi(names: Sequence[str], layout: Layout, prefix: str | None) -> list[CandidateLaunch]:
    """Open MPI's own choice, and its rings: the faster at a size counts."""
    library = registry.installation("openmpi", prefix)
    program = build("mpi_peer.c", library.compiler, library.options)
    forced = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"}

    def launch(variant: str, more: Mapping[str, str]) -> CandidateLaunch:
        def processes(path: Path, room: Path) -> Sequence[Process]:
            agent = room / "agent.sh"  # starts Open MPI's part of a host, in place of ssh
            inside = 'ip netns exec $name unshare --uts sh -c "hostname $name; $*"'
            agent.write_text(f"#!/bin/sh\nname={names[0][:-1]}${{1##*.}}\nshift\nexec {inside}\n")
            agent.chmod(0o700)
            settings = {
                "plm_rsh_agent": agent,
                "plm_ssh_agent": agent,
                "oob_tcp_if_include": f"{NETWORK}.0/24",
                "btl_tcp_if_include": f"{NETWORK}.0/24",
                "btl": "^openib,uct,usnic,ofi",
                "pml": "ob1",
                "btl_vader_single_copy_mechanism": "none",
                "smsc": "^cma,knem,xpmem",
                "btl_vader_backing_directory": room,
                "btl_sm_backing_directory": room,
                "mpi_yield_when_idle": int(sum(layout) > (os.cpu_count() or 1)),
                **more,
            }
            variables = {f"{of}_MCA_{key}": str(value) for key, value in settings.items() for of in ("OMPI", "PRTE")}
            where = ",".join(f"{address(host)}:{count}" for host, count in enumerate(layout))
            options = f"-np {sum(layout)} --host {where} --allow-run-as-root --oversubscribe --bind-to none"
            command = on(names[0], "unshare", "--uts", "sh", "-c", f'hostname {names[0]}; exec "$@"', "sh")
            command += [library.launcher, *options.split(), str(program), str(path)]
            return [Process(command, {**ENVIRONMENT, **library.environment, **variables, "TMPDIR": str(room)})]

        return CandidateLaunch("openmpi", sum(layout), processes, variant, "Open MPI", in_memory=True)

    return [launch("", {}), launch("ring", forced)]


class OneWay:
    """The time of one message from host to host, by ucx_perftest."""

    def __init__(self, names: Sequence[str], program: str) -> None:
        self._names, self._program = names, program

    def run(self, commands: Sequence[Command]) -> RankTimes:
        """A message of the commands' bytes; see :class:`blinkccl.bench.interleave.Runs`."""
        nbytes = commands[0].count * commands[0].itemsize
        port = str(next(PORTS))
        environment = os.environ | ENVIRONMENT | {"UCX_WARN_UNUSED_ENV_VARS": "n"}
        base = [self._program, "-t", "tag_lat", "-s", str(nbytes), "-n", str(max(10, min(2000, (16 << 20) // nbytes)))]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
        server = subprocess.Popen(on(self._names[0], *base, "-p", port), **quiet)
        try:
            time.sleep(0.3)
            client = subprocess.run(on(self._names[1], *base, "-p", port, address(0)), timeout=60, **quiet)
            server.wait(10)
        finally:
            server.kill()
            server.communicate()
        numbers = re.findall(r"^Final:\s+\d+\s+([\d.]+)", client.stdout, re.MULTILINE)  # the median
        if not numbers:
            raise UnsupportedError(f"ucx_perftest ended without a result: {client.stderr.strip()[-500:]}")
        return RankTimes(np.array([[float(numbers[0]) * 1e-6]]), 0)


# ---- the comparison


@dataclass(frozen=True)
class Case:
    """A group of candidates on a network: ``collectives`` are measured at each of ``sizes``."""

    layout: Layout
    mbits: float
    road: str
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{'+'.join(map(str, self.layout))}, {f'{self.mbits:g} Mbit/s' if self.mbits else 'unshaped'}, {self.road}"
        )


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for mbits, layout in itertools.product(arguments.mbits, arguments.layout):
        sizes = tuple(arguments.sizes or (SIZES if layout == (1, 1) and not mbits else SIZES[:4]))
        yield Case(layout, mbits, "torch", ("allreduce",), sizes)
        more = ("allgather", "broadcast", "reduce_scatter") if mbits else ()
        yield Case(layout, mbits, "native", ("allreduce", *more), sizes)


def bound_bytes(name: str, layout: Layout, nbytes: int) -> float:
    """Bytes of the busiest interface, one direction, in any execution."""
    if name == "allreduce":
        return 2 * (len(layout) - 1) / len(layout) * nbytes
    return nbytes if name == "broadcast" else nbytes * (1 - min(layout) / sum(layout))


def measured(case: Case, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with hosts(len(case.layout), case.mbits) as names, ExitStack() as undo:
        launches = [ours(case.road, names, case.layout)]
        launches += [ours("gloo", names, case.layout)] if case.road == "torch" else _openmpi(names, case, arguments)
        participants = []
        for launch in launches:
            candidate = undo.enter_context(RunningCandidate(launch, LIMIT_S))
            participants.append(Participant(launch.name, launch.variant, candidate))
            note(f"{launch.title}: {candidate.library}")
        perftest = shutil.which("ucx_perftest")
        if case.road == "native" and case.layout == (1, 1) and not case.mbits and perftest:
            participants.append(Participant("one way", "", OneWay(names, perftest)))
        for name, nbytes in itertools.product(case.collectives, case.sizes):
            work = Collective(name, sum(case.layout), 0 if name == "broadcast" else None)
            yield row(case, work, nbytes, participants, arguments.rounds)


def _openmpi(names: Sequence[str], case: Case, arguments: argparse.Namespace) -> list[CandidateLaunch]:
    try:
        return openmpi(names, case.layout, arguments.openmpi)
    except BlinkError as error:
        note(f"without Open MPI: {error}")
        return []


def row(case: Case, work: Collective, nbytes: int, participants: list[Participant], rounds: int) -> dict[str, Any]:
    least_s = bound_bytes(work.name, case.layout, nbytes) * 8 / (case.mbits or GUESSED_MBITS) / 1e6
    settings = BenchSettings(iterations=max(3, min(20, int(BLOCK_S / least_s))), rounds=rounds, block_s=BLOCK_S)
    call = TimedCall(work, block_count(work, nbytes, 4), iterations=settings.iterations)
    series, _ = Interleaved(work, settings, participants, note=note).measure(call)
    own = series[0]
    assert own is not None
    peers: dict[str, tuple[Participant, Series]] = {}
    for participant, one in zip(participants[1:], series[1:], strict=True):
        best = peers.get(participant.name)
        if one is not None and (best is None or one.median_s() < best[1].median_s()):
            peers[participant.name] = participant, one
    return {
        "layout": "+".join(map(str, case.layout)),
        "mbits": case.mbits,
        "road": case.road,
        "collective": work.name,
        "bytes": call.size,
        "ms": round(own.median_s() * 1e3, 4),
        "wrong": sum(one.wrong for one in series if one is not None),
        "of_bound": round(least_s / own.median_s(), 3) if case.mbits else None,
        "peers": {
            name: {
                "variant": participant.variant,
                "ms": round(one.median_s() * 1e3, 4),
                "ratio": round(paired(one.medians_s(), own.medians_s()), 3),
                "goal": None if case.mbits else GOALS[name][case.layout == (1, 1)].get(nbytes),
            }
            for name, (participant, one) in peers.items()
        },
    }


def shown(one: dict[str, Any]) -> str:
    text = f"{one['collective']:<15}{one['bytes']:>10} {one['ms']:>10.3f} ms  #wrong {one['wrong']}"
    if one["of_bound"] is not None:
        below = one["bytes"] >= BOUND_FROM and one["of_bound"] < BOUND_GOAL
        text += f"  of bound {one['of_bound']:.3f}{'<' if below else ' '}"
    for name, peer in one["peers"].items():
        below = peer["goal"] is not None and peer["ratio"] < peer["goal"]
        text += f"  {name} {peer['ms']:.3f} ms, ratio {peer['ratio']:.2f}{'<' if below else ''}"
    return text


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def worker(path: str) -> int:
    """Serve as a rank of torch's backend ``blink``."""
    library = GlooLibrary("blink")
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        serve(peer, library, library.rank, library.size)
    library.close()
    return 0


def listed(of: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [of(part) for part in text.split(",")]


def layout_of(text: str) -> Layout:
    if not re.fullmatch(r"[1-9][0-9]*(\+[1-9][0-9]*)+", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ranks of the hosts, as in 3+5")
    return tuple(map(int, text.split("+")))


def bytes_of(text: str) -> int:
    if not re.fullmatch(r"[0-9]+[KM]?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected bytes, as in 64K")
    return int(text.rstrip("KM")) * {"K": KIB, "M": MIB}.get(text[-1], 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", type=listed(layout_of), default="1+1,2+2,3+1,4+4,1+1+1+1")
    parser.add_argument("--mbits", type=listed(float), default="0,400,4000")
    parser.add_argument("--sizes", type=listed(bytes_of), help="default: 4K,64K,1M,16M, and 64M of 1+1 if unshaped")
    parser.add_argument("--road", choices=("torch", "native"), help="only these candidates")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--openmpi", metavar="PREFIX", help="Open MPI's prefix, if it is not the one on PATH")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clean", action="store_true", help="remove namespaces of killed runs, and exit")
    parser.add_argument("--exec", help="run this command on both hosts, and nothing else")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for --exec")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker)
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        note("this needs root, ip and tc: it makes network namespaces")
        return 3
    clean(arguments.clean)
    if arguments.clean:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.exec:
        return execute(arguments)
    rows = []
    for case in cases(arguments):
        if arguments.road in (None, case.road):
            if not arguments.json:
                print(f"\n{case}", flush=True)
            for one in measured(case, arguments):
                rows.append(one)
                if not arguments.json:
                    print(shown(one), flush=True)
    if arguments.json:
        print(json.dumps({"schema_version": 1, "rows": rows}))
    return 1 if any(one["wrong"] for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
