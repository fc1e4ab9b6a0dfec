"""Open MPI in a laboratory: mpirun starts its daemons in namespaces instead of on hosts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from blinkccl.apps.lab.layout import HOST_DEVICE
from blinkccl.bench.candidate import CandidateLaunch, Process
from blinkccl.bench.peers.build import build
from blinkccl.bench.peers.registry import LIBRARIES, installation

#: TCP between the hosts' addresses, and no transport in shared memory; waiting ranks yield the processor.
_OPTIONS = (
    *("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", HOST_DEVICE, "--mca", "pml", "ob1"),
    *("--mca", "mpi_yield_when_idle", "1", "--map-by", "node"),
)
#: Names of the setting for the launch agent: Open MPI 5 uses PRRTE, and each release reads only its own names.
_AGENT = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
_DAEMONS = {
    "OMPI_MCA_plm": "rsh",
    "OMPI_MCA_oob_tcp_if_include": HOST_DEVICE,
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_prte_if_include": HOST_DEVICE,
}


def launch(pids: Mapping[int, int]) -> CandidateLaunch:
    """The launch for ranks at these vertices, each with a process in its namespace; start mpirun in the first's.

    UnsupportedError without Open MPI or its compiler.
    """
    mpi = installation("openmpi", None)
    program = build("mpi_peer.c", mpi.compiler, mpi.options)

    def processes(path: Path, room: Path) -> Sequence[Process]:
        agent = room / "agent"
        agent.write_text(_agent(pids))
        agent.chmod(0o700)
        hosts = ",".join(f"vertex{vertex}:1" for vertex in pids)
        line = [mpi.launcher, *_OPTIONS, "--host", hosts]
        line += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        line += ["-n", str(len(pids)), str(program), str(path)]
        environment = {**_DAEMONS, **dict.fromkeys(_AGENT, str(agent)), "TMPDIR": str(room)}
        return [Process(line, {**mpi.environment, **environment})]

    return CandidateLaunch("openmpi", len(pids), processes, library=LIBRARIES["openmpi"])


def _agent(pids: Mapping[int, int]) -> str:
    """A substitute for ssh, called with a host's name and a command. Hosts have names of their own, too."""
    cases = "\n".join(f"  vertex{vertex}) pid={pid} ;;" for vertex, pid in pids.items())
    inside = quote('hostname $0 && eval "$*"')
    return f"#!/bin/sh\nname=$1\nshift\ncase $name in\n{cases}\nesac\n" + (
        f'exec nsenter --net --target "$pid" unshare --uts sh -c {inside} "$name" "$@"\n'
    )
