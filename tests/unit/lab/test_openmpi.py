"""What stands in for ssh when mpirun starts its daemons in namespaces."""

from __future__ import annotations

import subprocess
from pathlib import Path

from blinkccl.lab import openmpi


def test_the_agent_enters_the_namespace_of_the_host_that_it_is_given(tmp_path: Path) -> None:
    """With a double of nsenter, which says what it was asked; the command comes as mpirun gives it, in one argument."""
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
