"""What the tests of the doubles share: the built doubles, and the programs that use them in processes of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
Environment = dict[str, str]
Scene = Callable[..., "subprocess.CompletedProcess[str]"]


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("double_builds", HERE.parents[1] / "doubles" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    """tests/doubles/build.py; skips the test where there is no compiler."""
    module = _builder()
    if not module.have_compiler():
        pytest.skip("the test doubles need Linux, gcc and g++; none is on PATH")
    return module


@pytest.fixture(scope="session")
def doubles(builder: ModuleType):
    return builder.build()


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
