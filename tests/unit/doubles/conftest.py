"""What the tests of the doubles share: the programs that use them in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
Environment = dict[str, str]
Scene = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(doubles) -> Environment:
    """The variables with which a process finds the doubles, and none that tells them more."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BLINK_", "NCCL_", "CUDA_"))}
    return kept | {"BLINK_CUDA_LIB": str(doubles.cuda), "LD_LIBRARY_PATH": str(doubles.nccl.parent)}


@pytest.fixture
def scene(environment: Environment) -> Scene:
    """Plays one scene of cuda_scenes.py in a process of its own, and returns how it ended."""

    def play(name: str, *arguments: str, **variables: object) -> subprocess.CompletedProcess[str]:
        given = {key: str(value) for key, value in variables.items()}
        command = [sys.executable, str(HERE / "cuda_scenes.py"), name, *arguments]
        return subprocess.run(command, env=environment | given, capture_output=True, text=True, timeout=60, check=False)

    return play
