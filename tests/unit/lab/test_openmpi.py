"""The substitute for ssh when mpirun starts its daemons in namespaces."""

import subprocess
from pathlib import Path

import pytest

from blinkccl.apps.lab import openmpi
from blinkccl.bench.peers.registry import Installation


def test_the_agent_enters_the_namespace_of_the_host_that_it_is_given(tmp_path: Path) -> None:
    """A double of nsenter prints its arguments; the command is one argument, as mpirun passes it."""
    (tmp_path / "nsenter").write_text('#!/bin/sh\necho "$1" "$2" "$3"; shift 5; exec "$@"\n')
    (tmp_path / "hostname").write_text('#!/bin/sh\necho "I am $1"\n')
    (tmp_path / "agent").write_text(openmpi._agent({4: 100, 5: 200}))
    for name in ("nsenter", "hostname", "agent"):
        (tmp_path / name).chmod(0o700)
    done = subprocess.run(
        [tmp_path / "agent", "vertex5", "A=1; echo 'two  words' $A"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["--net --target 200", "I am vertex5", "two  words 1"]


def test_daemons_are_started_by_the_agent_under_every_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 4 reads ``OMPI_MCA_…`` alone for this, PRRTE under Open MPI 5 ``PRTE_MCA_…``."""
    mpi = Installation("mpirun", ("mpicc",), (), {"PATH": "/opt/bin"})
    monkeypatch.setattr(openmpi, "installation", lambda name, prefix: mpi)
    monkeypatch.setattr(openmpi, "build", lambda source, compiler, options: Path("peer"))
    (mpirun,) = openmpi.launch({4: 100, 5: 200}).processes(tmp_path / "socket", tmp_path)
    agent = str(tmp_path / "agent")
    assert Path(agent).read_text() == openmpi._agent({4: 100, 5: 200})
    started = {name: text for name, text in mpirun.environment.items() if "MCA" in name}
    assert started == {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_oob_tcp_if_include": "host0",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_prte_if_include": "host0",
    }
    assert not [text for text in mpirun.command if "plm" in text or "oob" in text]
