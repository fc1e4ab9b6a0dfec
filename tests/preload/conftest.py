"""What the tests under LD_PRELOAD share: built doubles, one cache of plans per session, and a runner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from preloaded import Built, Preloaded, builder, built


@pytest.fixture(scope="session")
def files() -> Built:
    if not builder().have_compiler():
        pytest.skip("the test doubles need Linux, gcc and g++; none is on PATH")
    found = built()
    if found.library is None or found.device_library is None:
        pytest.skip("this installation has no libblink.so: it is built where a C++ compiler is found")
    return found


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled plans lie: one directory for all workers of a session."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "plans"
    shared.mkdir(mode=0o700, exist_ok=True)
    return shared


@pytest.fixture
def preloaded(files: Built, plans: Path, tmp_path: Path) -> Preloaded:
    return Preloaded(files, tmp_path, plans)
