"""What the tests of the doubles share: the environment of the programs that use them."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def environment(doubles) -> dict[str, str]:
    """The variables with which a process finds the doubles, and none that tells them more."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BLINK_", "NCCL_", "CUDA_"))}
    return kept | {"BLINK_CUDA_LIB": str(doubles.cuda), "LD_LIBRARY_PATH": str(doubles.nccl.parent)}
